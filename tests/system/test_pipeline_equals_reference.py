"""The test that matters most: random network x placement x schedule x micro-batches x segments."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph.frontend.sym as sym
from runtime.planning.options import Options
from runtime.schedule.generators.table import SCHEDULES
from symgraph.core.context import cpu
from symgraph.frontend.attribute import AttrScope
from tests.helpers.networks import random_case, random_groups
from tests.helpers.pipelines import (
    Case,
    assert_close,
    assert_same_bits,
    judge,
    on_devices,
    on_threads,
)
from tests.helpers.recurrent import lstm_case

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")

DEVICES = 3


def options(seed: int, schedule: str, micro_batches: int, **more: object) -> Options:
    groups = random_groups(seed, DEVICES)
    return on_devices(DEVICES, groups, schedule, micro_batches, **more)


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(8))
def test_pipeline_equals_reference_and_no_placement_or_schedule_changes_a_bit(seed, micro_batches):
    case = random_case(seed)
    alone = on_threads(case, Options(micro_batches=micro_batches))
    assert_close(alone, judge(case))
    for other, schedule in enumerate(SCHEDULES):
        got = on_threads(case, options(100 * seed + other, schedule, micro_batches))
        assert got.grads.keys() == alone.grads.keys()
        assert_same_bits(got, alone)


@pytest.mark.every(3)
@pytest.mark.parametrize("recompute", ["none", "all"])
@pytest.mark.parametrize("time_segment", [1, 2, 5])
@pytest.mark.parametrize("schedule", ["wavefront", "1f1b", "zb-h1"])
@pytest.mark.parametrize("seed", range(6, 12))
def test_time_segments_and_recomputation_equal_reference(seed, schedule, time_segment, recompute):
    case = random_case(seed)
    more = {"time_segment": time_segment, "recompute": recompute}
    got = on_threads(case, options(seed, schedule, 1 + seed % 3, **more))
    assert_close(got, judge(case))


def shared_crosswise() -> Case:
    """Four layers; the first and the third share a weight, and the second and the fourth."""
    rng = np.random.default_rng(0)
    arrays = {f"w{i}": rng.standard_normal((4, 4)) for i in range(2)}
    x, weights = sym.Variable("x"), [sym.Variable(name) for name in arrays]
    for layer in range(4):
        with AttrScope(ctx_group=f"layer{layer}"):
            x = sym.FullyConnected(x, weight=weights[layer % 2], num_hidden=4, no_bias=True)
            x = sym.tanh(x)
    loss = sym.MakeLoss(sym.sum(sym.square(x), axis=1))
    return Case(loss, {"x": rng.standard_normal((6, 4))}, arrays)


@pytest.mark.parametrize("ranks", [(0, 1, 1, 0), (0, 1, 0, 1)])
def test_weights_shared_in_opposite_directions_do_not_hang(ranks):
    """zb-h2 could not be planned: on both ranks a W waited for one behind the other's W."""
    case = shared_crosswise()
    groups = {f"layer{layer}": cpu(rank) for layer, rank in enumerate(ranks)}
    alone = on_threads(case, Options(micro_batches=3))
    assert_close(alone, judge(case))
    for schedule in ("zb-h1", "zb-h2", "zb-v"):
        assert_same_bits(on_threads(case, on_devices(2, groups, schedule, 3)), alone)


@pytest.mark.every(54)
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_unrolled_lstm_in_every_way(schedule, micro_batches):
    """Stages 0 1 0 1 on two devices; time segments and recomputation on devices change no bit."""
    case = lstm_case(3, 5)
    groups = {f"layer{i}": cpu(i % 2) for i in range(3)} | {"head": cpu(1)}
    for time_segment in (None, 1, 2, 3):
        alone = on_threads(case, Options(micro_batches=micro_batches, time_segment=time_segment))
        assert_close(alone, judge(case))
        for recompute in ("none", (1,), "all"):
            more = {"time_segment": time_segment, "recompute": recompute}
            how = Options(groups, cpu(0), (), schedule, micro_batches, **more)
            assert_same_bits(on_threads(case, how), alone)


def test_calls_that_are_equal_for_one_sample_alone():
    """Plan micro-batches of 2 samples and 1: sums to (N, 4) and (1, 4) are alike for N = 1 only."""
    rng = np.random.default_rng(0)
    with AttrScope(ctx_group="a"):
        x = sym.broadcast_mul(sym.Variable("x"), sym.Variable("scale"))
        bias = sym.square(sym.Variable("bias"))
    with AttrScope(ctx_group="b"):
        loss = sym.MakeLoss(sym.square(sym.broadcast_add(x, bias)))
    arrays = {name: rng.standard_normal((1, 4)) for name in ("scale", "bias")}
    case = Case(loss, {"x": rng.standard_normal((3, 4))}, arrays)
    groups = {"a": cpu(0), "b": cpu(1)}
    assert_close(on_threads(case, on_devices(2, groups, micro_batches=2)), judge(case))


def test_losses_are_added_by_pythons_sum():
    """It begins with 0, which was "a constant that is added to a sum over the batch"."""
    x = sym.Variable("x") * 1.0
    loss = sym.MakeLoss(sum([sym.sum(sym.broadcast_mul(x, sym.Variable("w"))), sym.sum(x)]))
    case = Case(loss, {"x": np.ones((4, 3))}, {"w": np.ones((1, 3))})
    assert_close(on_threads(case, Options(micro_batches=2)), judge(case))
