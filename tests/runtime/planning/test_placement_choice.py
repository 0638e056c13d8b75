"""Deciding on a placement: what is best depends on what is to be short."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import ref

import pytest

import symgraph as sg
from partitioner.costs.cost import Speed
from partitioner.costs.machine import Machine
from partitioner.strategies import OBJECTIVES, STRATEGIES
from runtime.planning import placement_candidates, placement_choice, planner
from runtime.planning.costs.prices import CostModel
from runtime.planning.draft import Draft
from runtime.planning.network import PlanRequest, make_network
from runtime.planning.options import Options
from runtime.planning.placement_choice import select_placement
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.schedule.replay import Link
from symgraph.core.context import cpu
from symgraph.core.errors import LimitError
from symgraph.core.types import TensorType
from symgraph.passes.batching import Feed

LINK = Link(2e-6, 1e9)
PRICES = CostModel.alike(Speed(1e9, 0.0), LINK, overhead=0.0)
ON = Machine.uniform([cpu(0), cpu(1)], Speed(1e9, 0.0), LINK.latency, LINK.bandwidth)


def decided(objective: str, micro_batches: int, **limits: Any) -> Plan:
    """Eight layers, micro-batches of 8 samples, placed by all strategies."""
    x = sg.sym.Variable("data")
    for i in range(8):
        x = sg.sym.FullyConnected(x, num_hidden=16, name=f"fc{i}")
    chosen = {"devices": ON.contexts, "machine": ON, "strategy": "auto"} | limits
    options = Options(micro_batches=micro_batches, objective=objective, **chosen)
    feeds = {"data": Feed(TensorType((8 * micro_batches, 16)))}
    wrt = tuple([n for n in x.list_arguments() if n != "data"])
    network = make_network(PlanRequest(x, feeds, wrt, False, {}, {}), options, {})
    draft = partial(Draft, network, options=options)
    return select_placement(draft, network, options, PRICES)


def devices(made: Plan) -> int:
    return len({made.placement.rank_of[s] for s in made.placement.stage_of.values()})


@pytest.mark.slow
def test_one_micro_batch_alone_is_fastest_on_one_device_and_many_on_two():
    """A chain has nothing to do side by side: two devices only add messages for one micro-batch."""
    assert devices(decided("latency", 8)) == 1
    assert devices(decided("throughput", 8)) == 2
    assert devices(decided("step", 8)) == 2
    assert devices(decided("step", 1)) == 1, "the bottleneck alone would take two"
    assert devices(decided("throughput", 1)) == 2
    assert set(OBJECTIVES) == {"latency", "throughput", "step"}


def test_every_strategy_is_considered_and_none_beats_the_one_taken():
    made = decided("step", 8)
    names = [c.placed.strategy for c in made.placements]
    assert names[: len(STRATEGIES)] == list(STRATEGIES)
    assert names[len(STRATEGIES)] == "cpu(0) alone"
    taken = next(c for c in made.placements if c.placed.placement == made.placement)
    assert taken.seconds == min(c.seconds or c.bound for c in made.placements)


def test_a_limit_that_any_device_keeps_has_strategies_tried_once():
    """They were tried once for each estimate of what devices hold, though no limit was near."""
    named = [c.placed.strategy for c in decided("step", 8, memory=1 << 40).placements]
    assert named.count("chain") == 1


@pytest.mark.slow
@pytest.mark.parametrize("quick", [False, True])
def test_a_quick_plan_leaves_smaller_numbers_of_devices_to_its_caller(quick):
    """Quick plans of 64 devices took as long as thorough ones: for 32, 16, 8, ... devices."""
    on = Machine.uniform([cpu(i) for i in range(3)], Speed(1e9, 0.0), LINK.latency, LINK.bandwidth)
    made = decided("step", 8, devices=on.contexts, machine=on, named_only=quick)
    named = [c.placed.strategy for c in made.placements]
    assert ("chain, 2 devices" in named) is not quick


def test_what_a_strategy_finds_for_several_estimates_of_memory_is_listed_once():
    made = decided("step", 2, memory=21_000)
    found = [(c.placed.strategy, c.placed.placement) for c in made.placements]
    assert len(found) > len(STRATEGIES)
    assert all(found.count(one) == 1 for one in found)


def test_of_many_nodes_few_placements_are_scheduled_and_none_is_worse(monkeypatch):
    """All strategies on 8, 7, ... devices were scheduled, seconds each: 96 layers never ended."""
    every = decided("step", 8)
    monkeypatch.setattr(placement_candidates, "MANY_NODES", 10)
    few = decided("step", 8)
    assert few.choice.seconds == every.choice.seconds
    counts = [sum(c.seconds is not None for c in made.placements) for made in (every, few)]
    assert counts[1] < counts[0]


@pytest.mark.slow
@pytest.mark.parametrize("layers", [2, 8])
def test_grids_of_many_nodes_are_planned_if_a_row_alone_is_promising(monkeypatch, layers):
    x = sg.sym.Variable("data")
    for i in range(layers):
        x = sg.sym.FullyConnected(x, num_hidden=16, name=f"fc{i}")
    x = sg.sym.LinearRegressionOutput(x, name="loss")
    feeds = {name: Feed(TensorType((32, 16))) for name in ("data", "loss_label")}
    wrt = [n for n in x.list_arguments() if n not in feeds]
    on = {"devices": ON.contexts, "machine": ON, "strategy": "auto", "schedule": "auto"}
    options = Options(micro_batches=2, **on)
    every = plan(x, feeds, options, wrt=wrt)
    monkeypatch.setattr(planner, "MANY_NODES", 1)
    some = plan(x, feeds, options, wrt=wrt)
    assert some.choice.seconds == every.choice.seconds
    for grid, row in zip(every.splits, some.splits, strict=True):
        assert row.seconds == grid.seconds or row.bound <= grid.seconds * planner.ROW_GAIN


@pytest.mark.slow
def test_limits_that_nothing_keeps_to_are_told(monkeypatch):
    """Few placements are tried where weights alone exceed it; a closer limit needs more tries."""
    tried = []
    select = placement_choice.select_timed
    monkeypatch.setattr(
        placement_choice, "select_timed", lambda *a, **given: tried.append(0) or select(*a, **given)
    )
    with pytest.raises(LimitError, match="that is the smallest limit that works") as refused:
        decided("step", 2, memory=100)
    few, limit = len(tried), refused.value.smallest
    assert decided("step", 2, memory=limit).placements
    tried.clear()
    with pytest.raises(LimitError) as again:
        decided("step", 2, memory=limit - 1)
    assert again.value.smallest == limit
    assert few < len(tried) / 2


@pytest.mark.slow
def test_pieces_of_a_split_operator_share_their_devices_where_that_makes_a_shorter_step():
    """Layers on one device and the decoder on the other balance the load, but one would wait."""
    x = sg.sym.Variable("data")
    for i in range(2):
        x = sg.sym.FullyConnected(x, num_hidden=256, name=f"fc{i}")
    with sg.AttrScope(ctx_group="head", shard="devices"):
        x = sg.sym.FullyConnected(x, num_hidden=512, name="head")
        net = sg.sym.SoftmaxOutput(x, name="softmax", normalization="batch")
    shapes = {"data": (64, 256), "softmax_label": (64,)}
    feeds = {name: Feed(TensorType(shape, "float32")) for name, shape in shapes.items()}
    pair = cpu(0), cpu(1)
    options = Options(
        {"head": pair},
        cpu(0),
        pair,
        strategy="auto",
        schedule="auto",
        whole=False,
        update=True,
        pricing=lambda graph, contexts: PRICES,
    )
    made = plan(net, feeds, options, wrt=None)
    assert [made.rank_of(f"head_weight[{part}]") for part in ("0:256", "256:512")] == [0, 1]
    first = next(c for c in made.placements if c.placed.strategy == "optimal")
    assert first.seconds is not None
    best = min(c.seconds for c in made.placements if c.seconds is not None)
    assert best < 0.9 * first.seconds


def test_the_cuts_of_one_placement_are_dropped_before_those_of_another(monkeypatch):
    """They stayed until planning ended, for the memory of each candidate: gigabytes."""
    select, cuts, left = placement_choice.select_timed, list[ref[object]](), list[int]()

    def selected(*args: Any, **given: Any) -> Plan:
        left.append(sum(cut() is not None for cut in cuts))
        made = select(*args, **given)
        accounts = [c.account for c in made.candidates if c.account is not None]
        cuts.extend({ref(cut): None for a in accounts for cut in a.partitions.values()})
        return made

    monkeypatch.setattr(placement_choice, "select_timed", selected)
    decided("step", 8, schedule="auto")
    assert len(cuts) > len(left) > 2, "placements are tried with several cuts"
    assert max(left) <= 1, "that of the best plan"
