"""Random networks of every operator x placement x schedule x micro-batches."""

from __future__ import annotations

import pytest

from runtime.planning.options import Options
from runtime.schedule.generators.table import SCHEDULES
from tests.helpers.networks import random_groups
from tests.helpers.operators import drawable, random_operators
from tests.helpers.pipelines import assert_close, assert_same_bits, judge, on_devices, on_threads

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")

SEEDS, DEVICES = 50, 3
CLOSE = {"float64": 1e-10, "float32": 1e-5}


@pytest.mark.every(10)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_operator_on_any_placement_equals_reference(seed):
    """The test that matters most drew 15 operators of 222, in float64 alone (issue 21)."""
    case, apart = random_operators(seed)
    want = judge(case)
    (dtype,) = {str(a.dtype) for a in want.outputs}
    for micro_batches in (1, 3) if apart else (1,):
        alone = on_threads(case, Options(micro_batches=micro_batches))
        assert_close(alone, want, CLOSE[dtype])
        for turn, schedule in enumerate(SCHEDULES):
            groups = random_groups(100 * seed + turn, DEVICES)
            options = on_devices(DEVICES, groups, schedule, micro_batches)
            assert_same_bits(on_threads(case, options), alone)


def test_all_operators_that_users_call_are_drawn():
    """Of the registry's 219 operators, 166 are in some network, and 29 more in its backward pass.

    The rest are made by passes alone: shards, statistics over several devices, copies, messages,
    and a few gradients that these seeds do not need (of maximum pooling and pick).
    """
    drawn = set()
    for seed in range(SEEDS):
        symbol = random_operators(seed)[0].symbol
        drawn |= {e.node.op.name for e in symbol.get_internals().entries if e.node.op}
    assert drawn == set(drawable())
    assert len(drawn) >= 166
