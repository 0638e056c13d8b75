"""The grid: every schedule runs every shape, with the same bits."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import symgraph.frontend.sym as sym
from runtime.planning.options import Options
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.replay import Costs, peak_in_flight, simulate
from runtime.transports import ThreadCluster
from symgraph.core.context import cpu
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.name import NameManager
from tests.helpers.pipelines import (
    Case,
    Result,
    assert_close,
    assert_same_bits,
    judge,
    make_plan,
    merged,
    on_devices,
    on_threads,
    run_step,
)
from tests.runtime.schedule.chains import GRID

CORNERS = [(1, 1, 4), (2, 1, 3), (1, 3, 5), (2, 2, 4), (1, 5, 1), (4, 1, 1)]
LARGE = 1024  # runs of one phase: more would take the test suite minutes


def groups(v: int, p: int, shape: str) -> dict[str, object]:
    """Stages dealt out in turn, or down the ranks and up again."""
    rank = {"loop": lambda s: s % p, "v": lambda s: min(s % (2 * p), 2 * p - 1 - s % (2 * p))}
    return {f"s{s}": cpu(rank[shape](s)) for s in range(v * p)}


@cache
def case_of(stages: int, mbs: int) -> Case:
    """A layer a stage over `mbs` + 1 samples (one micro-batch is larger), in float64."""
    rng = np.random.default_rng(stages)
    x, arrays = sym.Variable("x"), {}
    with NameManager():
        for stage in range(stages):
            with AttrScope(ctx_group=f"s{stage}"):
                arrays[f"w{stage}"] = rng.standard_normal((2, 2))
                weight = sym.Variable(f"w{stage}")
                x = sym.tanh(sym.FullyConnected(x, weight=weight, num_hidden=2, no_bias=True))
        with AttrScope(ctx_group=f"s{stages - 1}"):
            loss = sym.MakeLoss(sym.square(x), normalization="batch", name="loss")
    return Case(loss, {"x": rng.standard_normal((mbs + 1, 2))}, arrays)


@cache
def alone(stages: int, mbs: int) -> Result:
    """The same on one device, which equals the reference interpreter."""
    case = case_of(stages, mbs)
    found = on_threads(case, Options(micro_batches=mbs))
    assert_close(found, judge(case))
    return found


@pytest.mark.every(7)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("v", "m", "p"), GRID + CORNERS)
def test_grid(v, m, p, schedule):
    """Planned (so proved), simulated and, but for the largest, run."""
    shape = "v" if schedule in ("zb-v", "dualpipe-v") else "loop"
    case = case_of(v * p, m)
    options = on_devices(p, groups(v, p, shape), schedule, m)
    made = make_plan(case, options)
    timeline = simulate(made.schedule, made.partition, Costs(lambda key: 1))
    bodies = len(made.partition.bodies)
    assert sum(timeline.busy()) == bodies * m
    assert timeline.makespan >= max(timeline.busy())
    assert max(peak_in_flight(made.schedule, made.partition)) <= m * v * p
    if v * m * p <= LARGE:
        with ThreadCluster(p) as cluster:
            assert_same_bits(merged(run_step(made, case, cluster)), alone(v * p, m))
