"""Data that is not text over MPI: the bits and metrics of threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.test_data_configs import SMALL, summary
from tests.mpi.launch import launch, needs_mpi
from tests.runtime.training.data import nets

pytestmark = needs_mpi


@pytest.mark.parametrize("name", ["table", "tagger"])
def test_ranks_have_the_bits_and_metrics_of_threads(name):
    """The metrics need outputs that only the last rank has."""
    pytest.importorskip("sklearn", reason="needs the extra `examples`")
    ended = launch(2, "symgraph.run", f"examples/{name}.yaml", *SMALL[name], "--json")
    assert ended.status == 0, str(ended)
    found, here = json.loads(ended.stdout.splitlines()[-1]), summary(name)
    assert found["held_out"] == here["held_out"]
    assert found["train_loss"] == here["train_loss"]


def write_config(tmp_path: Path, data: str) -> Path:
    (tmp_path / "nets.py").write_text(Path(nets.__file__).read_text(encoding="utf-8"))
    config = tmp_path / "run.yaml"
    config.write_text(
        "model: nets.py:build\n"
        f"data: {{{data}, batch_size: 16}}\n"
        "devices: [cpu(0), cpu(1)]\n"
        "group2ctx: {a: cpu(0), b: cpu(1)}\n"
        "train: {steps: 8}\n"
    )
    return config


def test_ranks_that_read_different_batches_end_at_that_step(tmp_path):
    """With a shorter file on one rank, training used data and labels of different batches."""
    ended = launch(2, "symgraph.run", write_config(tmp_path, "function: nets.py:shorter_on_rank_1"))
    assert ended.status == 1, str(ended)
    assert ended.lines("rank 1 has read another batch than rank 0 for step 5: all ranks need")


@pytest.mark.parametrize("name", ["other_on_rank_1", "shorter_on_rank_1"])
def test_ranks_with_different_held_out_batches_end(tmp_path, name):
    """The loss was that of outputs of one rank's samples and labels of the other's."""
    data = f"function: nets.py:batches, valid: nets.py:{name}"
    ended = launch(2, "symgraph.run", write_config(tmp_path, data))
    assert ended.status == 1, str(ended)
    assert ended.lines("rank 1 has read another batch than rank 0 for the held-out part: all ranks")


def test_ranks_that_predict_for_different_batches_end(tmp_path):
    """The error was that ranks had different plans."""
    config = write_config(tmp_path, "function: nets.py:shorter_on_rank_1")
    ended = launch(2, "symgraph.run", config, "--predict", tmp_path / "out.npz")
    assert ended.status == 1, str(ended)
    assert ended.lines("rank 1 has read another batch than rank 0 for batch 5: all ranks")
    assert not (tmp_path / "out.npz").exists()


def test_data_that_break_off_on_one_rank_are_a_failure_that_all_ranks_hear_of(tmp_path):
    """It was bad input, after which a supervisor starts no run again, of a rank that "left"."""
    ended = launch(2, "symgraph.run", write_config(tmp_path, "function: nets.py:broken_on_rank_1"))
    assert ended.status == 1, str(ended)
    assert ended.lines("error: data.function: .*failed at .*OSError: disk gone")
    assert ended.lines("rank 0 stopped .*: rank 1 failed: RunError: data.function: .*disk gone")


def test_held_out_data_that_one_rank_cannot_read_end_all_ranks_before_a_step(tmp_path):
    """They were read after training; ranks that can read them do not wait for one that cannot."""
    config = write_config(tmp_path, "function: nets.py:batches, valid: nets.py:lost_on_rank_1")
    ended = launch(2, "symgraph.run", config)
    assert ended.status == 2, str(ended)
    assert ended.lines("data.valid: .*failed at .*OSError: disk gone")
    assert not ended.lines("^step "), str(ended)
