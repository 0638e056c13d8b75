"""Profiles under mpiexec: every rank's steps are in the figures that rank 0 prints."""

from __future__ import annotations

import json

import pytest

from tests.helpers.small_lm import write_config
from tests.mpi.launch import launch, needs_mpi

pytestmark = needs_mpi


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path, "optimizer: sgd, learning_rate: 0.5")


def test_a_profile_over_two_processes(config, tmp_path):
    trace = tmp_path / "trace.json"
    ended = launch(
        2, "symgraph.run", config, "--profile", "--steps=3", "--json", f"--trace={trace}"
    )
    assert ended.status == 0, ended
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["transport"] == "mpi"
    assert found["steps"] == 3
    assert found["baseline"]["devices"] == ["cpu(0)"]
    assert found["baseline"]["step_seconds"] > 0
    for rank in found["ranks"]:
        assert rank["compute"] > 0
        assert rank["total"] == pytest.approx(found["step_seconds"])
    assert all(stage["peak_bytes_measured"] > 0 for stage in found["stages"])
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["pid"] for event in events if event.get("cat") == "node"} == {0, 1}


def test_a_comparison_over_two_processes(config):
    """One device is rank 0's, while the other rank waits; it was refused as one of two ranks."""
    with open(config, "a", encoding="utf-8") as file:
        file.write("candidates: {a: [], b: [pipeline.schedule=gpipe], c: ['devices=[cpu(0)]']}\n")
    ended = launch(2, "symgraph.run", config, "--compare", "--steps=4", "--json")
    assert ended.status == 0, ended
    (line,) = ended.stdout.splitlines()
    rows = {row["name"]: row for row in json.loads(line)["ranking"]}
    assert {name: len(row["devices"]) for name, row in rows.items()} == {
        "a": 2,
        "b": 2,
        "c": 1,
        "one device": 1,
    }
    assert rows["b"]["schedule"] == "gpipe"


def test_a_search_is_for_one_process(config):
    ended = launch(2, "symgraph.run", config, "--search")
    assert ended.status == 2
    assert "a search runs in one process" in ended.stderr
