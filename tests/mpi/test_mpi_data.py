"""Data that is not text over MPI: the bits and metrics of threads."""

from __future__ import annotations

import json

import pytest

from tests.examples.test_data_configs import SMALL, summary
from tests.mpi.launch import launch, needs_mpi

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
