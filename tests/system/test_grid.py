"""The grid: every schedule runs every shape, with the same bits."""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pytest

import symgraph.frontend.sym as sym
from runtime.frontends.cli.plan_dump import plan_records
from runtime.frontends.cli.verify import verify
from runtime.planning.options import Options
from runtime.planning.plan import Plan
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
LARGE = 300  # runs of one phase: more would take the test suite minutes


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


def planned(v: int, m: int, p: int, schedule: str, **more: object) -> Plan:
    shape = "v" if schedule in ("zb-v", "dualpipe-v") else "loop"
    options = on_devices(p, groups(v, p, shape), schedule, m, **more)
    return make_plan(case_of(v * p, m), options)


@pytest.mark.every(100)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("v", "m", "p"), [c for c in GRID + CORNERS if math.prod(c) <= LARGE])
def test_plans_are_verified_from_their_text(v, m, p, schedule):
    records = plan_records(planned(v, m, p, schedule, update=True))
    assert verify(map(json.dumps, records)) == []


@pytest.mark.every(21)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("v", "m", "p"), GRID + CORNERS)
def test_grid(v, m, p, schedule):
    """Planned (so proved), simulated and, but for the largest, run."""
    case, made = case_of(v * p, m), planned(v, m, p, schedule)
    timeline = simulate(made.schedule, made.partition, Costs(lambda key: 1))
    bodies = len(made.partition.bodies)
    assert sum(timeline.busy()) == bodies * m
    assert timeline.makespan >= max(timeline.busy())
    assert max(peak_in_flight(made.schedule, made.partition)) <= m * v * p
    if v * m * p <= LARGE:
        with ThreadCluster(p) as cluster:
            assert_same_bits(merged(run_step(made, case, cluster)), alone(v * p, m))
