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


def test_held_out_data_that_one_rank_cannot_read_end_all_ranks_before_a_step(tmp_path):
    """They were read after training; ranks that can read them do not wait for one that cannot."""
    (tmp_path / "nets.py").write_text(Path(nets.__file__).read_text(encoding="utf-8"))
    config = tmp_path / "run.yaml"
    config.write_text(
        "model: nets.py:build\n"
        "data: {function: nets.py:batches, valid: nets.py:lost_on_rank_1, batch_size: 16}\n"
        "devices: [cpu(0), cpu(1)]\n"
        "group2ctx: {a: cpu(0), b: cpu(1)}\n"
        "train: {steps: 4}\n"
    )
    ended = launch(2, "symgraph.run", config)
    assert ended.status == 2, str(ended)
    assert ended.lines("data.valid: .*failed at .*OSError: disk gone")
    assert not ended.lines("^step "), str(ended)
