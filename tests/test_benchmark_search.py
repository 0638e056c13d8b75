"""benchmarks.search: its sweep has points enough, and a short run ends with a table and figures."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import search
from tests.profiles import costs

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


def test_a_short_run_says_how_far_the_winner_is_from_the_best(tmp_path, monkeypatch, capsys):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(f"w{(i * i + j) % 17}" for i in range(30))
                              for j in range(60)))  # fmt: skip
    tiny = ["args={layers: 2, hidden: 8, embed: 8}", "data.batch_size=4", "data.sequence_length=5",
            f"data={{kind: text, path: {text}, batch_size: 4, sequence_length: 5, vocab: 20}}",
            f"partition.costs={costs(tmp_path)}", "partition.split=none"]  # fmt: skip
    out = tmp_path / "found.json"
    short = ["--configs", "small", "--points", "3", "--rounds", "2", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", ["search", *short, "--json", str(out), *tiny])
    search.main()
    found = json.loads(out.read_text())["small"]
    rounds = found["rounds"]
    assert {len(seconds) for seconds in rounds.values()} == {2}
    assert len(rounds) == 3 + 1
    assert found["best"] in rounds
    assert found["best_step_seconds"] <= max(map(max, rounds.values()))
    assert found["simulating_seconds"] <= found["search_seconds"]
    assert found["simulated"] > 10
    assert found["winner"] in capsys.readouterr().out
