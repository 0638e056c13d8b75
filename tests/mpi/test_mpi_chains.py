"""The patterns of ChainerMN (X1-X4, X6-X8) and the split MLP (X18) on 2, 3 and 4 processes."""

from __future__ import annotations

import pytest

from tests.helpers.pipelines import judge
from tests.mpi.chains import cases
from tests.mpi.launch import launch, needs_mpi

pytestmark = needs_mpi


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_patterns_are_the_serial_networks(ranks):
    ended = launch(ranks, "tests.mpi.chains")
    assert (ended.status, ended.stderr) == (0, ""), ended
    told = [line.split() for line in ended.lines("^checked")]
    assert len(told) == ranks
    serial = [judge(case) for _, case in cases(ranks).values()]
    assert sum(int(line[1]) for line in told) == sum(len(r.outputs) + len(r.grads) for r in serial)
    trained = sorted(name for line in told for name in line[2:])
    assert trained == [
        "fc1_bias",
        "fc1_weight",
        "fc2_bias",
        "fc2_weight",
        "fc3_bias",
        "fc3_weight",
        "losses",
    ]
