"""benchmarks.search: its sweep has points enough, and a short run ends with a table and figures."""

from __future__ import annotations

import json
import sys
from functools import partial
from statistics import median

import pytest

from benchmarks import search
from runtime.profiling import measurements
from symgraph.app.command_line import BAD_INPUT, status_of
from tests.helpers.profiles import costs

SWEPT = 30


@pytest.mark.parametrize("name", ["small", "medium", "deep"])
def test_the_sweep_has_enough_points_and_all_are_different(name):
    configs = search.picked(name, 36, ())
    assert len(configs) >= SWEPT
    texts = {config.to_yaml() for config in configs.values()}
    assert len(texts) == len(configs)
    for config in configs.values():
        assert config.args["layers"] == search.CONFIGS[name].layers
        assert len(config.devices) == 2
    for key in ("schedule", "micro_batches", "time_segment"):
        assert len({getattr(config.pipeline, key) for config in configs.values()}) > 1
    assert len({str(config.group2ctx) for config in configs.values()}) > 2


@pytest.mark.slow
def test_a_short_run_says_how_far_the_winner_is_from_the_best(tmp_path, monkeypatch, capsys):
    text = tmp_path / "text.txt"
    text.write_text(
        "\n".join(" ".join(f"w{(i * i + j) % 17}" for i in range(30)) for j in range(60))
    )
    tiny = [
        "args={layers: 2, hidden: 8, embed: 8}",
        "data.batch_size=4",
        "data.sequence_length=5",
        f"data={{kind: text, path: {text}, batch_size: 4, sequence_length: 5, vocab: 20}}",
        f"partition.costs={costs(tmp_path)}",
        "partition.split=none",
    ]
    search_ = measurements.search
    monkeypatch.setattr(measurements, "search", partial(search_, seconds=3.0))
    out = tmp_path / "found.json"
    short = ["--configs", "small", "--points", "7", "--rounds", "1"]
    monkeypatch.setattr(
        sys, "argv", ["search", *short, "--finals", "3", "--steps", "2", "--json", str(out), *tiny]
    )
    assert search.run() == 0
    found = json.loads(out.read_text())["small"]
    rounds, finals = found["rounds"], found["finals"]
    assert {len(seconds) for seconds in rounds.values()} == {1}
    assert len(rounds) == 7 + 1
    assert {len(seconds) for seconds in finals.values()} == {3}
    points = sorted(set(rounds) - {search.WINNER}, key=rounds.__getitem__)
    assert set(finals) == {*points[: search.FINALISTS], search.WINNER}
    medians = {point: median(seconds) for point, seconds in finals.items()}
    assert found["winner_step_seconds"] == medians.pop(search.WINNER)
    assert found["best_step_seconds"] == min(medians.values()) == medians[found["best"]]
    assert found["simulating_seconds"] <= found["search_seconds"]
    assert found["simulated"] > 10
    assert found["winner"] in capsys.readouterr().out


def test_bad_overrides_are_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["search", "--configs", "small", "medium=3"])
    assert status_of(search.run) == BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert "medium" in line
