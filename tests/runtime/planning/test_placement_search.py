"""Searching for a placement: estimates beside simulations, and what strategies do not find."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from partitioner.base.stages import form_stages
from partitioner.base.types import Placement
from partitioner.costs.cost import Speed
from partitioner.costs.machine import Device, Level, Machine
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.types import Constraints
from runtime.planning.costs.prices import CostModel, always
from runtime.planning.draft import Draft
from runtime.planning.network import Network, PlanRequest, make_network
from runtime.planning.options import Options
from runtime.planning.placement_sketch import Sketch
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.planning.schedule_choice import select_schedule
from runtime.schedule.replay import Link
from symgraph.core.context import cpu
from symgraph.core.errors import LimitError
from symgraph.core.types import TensorType
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed

WIDTH = 64


def machine(*flops: float, latency: float = 2e-5, bandwidth: float = 1e9) -> Machine:
    devices = tuple(Device(cpu(i), f, 1e-6, 2e10) for i, f in enumerate(flops))
    return Machine(devices, {"network": Level(latency, bandwidth)})


def towers(count: int, depth: int) -> Symbol:
    """Towers of layers side by side, which are added up at the end."""
    ends, data = [], sg.sym.Variable("data")
    for tower in range(count):
        x = data
        for layer in range(depth):
            x = sg.sym.FullyConnected(x, num_hidden=WIDTH, name=f"t{tower}fc{layer}")
        ends.append(x)
    total = ends[0]
    for end in ends[1:]:
        total = sg.sym.elemwise_add(total, end)
    return sg.sym.MakeLoss(total, name="loss")


def options(on: Machine, micro_batches: int, **more: object) -> Options:
    given: dict[str, object] = {
        "strategy": "auto",
        "schedule": "auto",
        "named_only": True,
        "machine": on,
        "pricing": always(CostModel.of_machine(on)),
    }
    free = {"default": on.contexts[0], "devices": on.contexts, "update": True}
    return Options(micro_batches=micro_batches, **free | given | more)


def fed(micro_batches: int) -> dict[str, Feed]:
    return {"data": Feed(TensorType((64 * micro_batches, WIDTH), "float32"))}


def planned(symbol: Symbol, on: Machine, micro_batches: int, **more: object) -> Plan:
    return plan(symbol, fed(micro_batches), options(on, micro_batches, **more), wrt=None)


def by_hand(symbol: Symbol, on: Machine, micro_batches: int, **groups: int) -> float:
    """Predict the step with every layer on the device that the start of its name is mapped to."""
    network, free = make(symbol, on, micro_batches)
    rank_of: dict[str, int] = {}
    for node in network.first:
        if node.origin is None:
            near = next((d for start, d in groups.items() if node.name.startswith(start)), 0)
            rank_of[node.name] = near
    stage_of, ranks = form_stages(network.first, rank_of)
    return simulated(network, free, Placement(stage_of, ranks, on.contexts))


def make(symbol: Symbol, on: Machine, micro_batches: int) -> tuple[Network, Options]:
    wrt = tuple([name for name in symbol.list_arguments() if name != "data"])
    request = PlanRequest(symbol, fed(micro_batches), wrt, False, {}, {})
    free = options(on, micro_batches)
    return make_network(request, free, {}), free


def simulated(network: Network, free: Options, placement: Placement) -> float:
    prices = free.pricing(network.first, free.contexts)
    seconds = select_schedule(Draft(network, placement, free), lambda: prices).choice.seconds
    assert seconds is not None
    return seconds


def used(made: Plan) -> set[int]:
    return set(made.placement.rank_of)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_estimates_are_what_the_simulator_says(micro_batches):
    on = machine(1e9, 3e9, 1e9)
    network, free = make(towers(2, 2), on, micro_batches)
    prices = free.pricing(network.first, free.contexts)
    kernels = prices.merged(network.first, on.contexts)
    known = Constraints(parameters=network.parameters, grads=network.grads)
    coarse = coarsen(network.first, kernels, on, known, contiguous=False)
    sketch = Sketch(network, free, coarse, kernels, prices)
    rng = np.random.default_rng(0)
    for _ in range(4):
        devices = rng.integers(0, 3, len(coarse)).tolist()
        stage_of, ranks = form_stages(
            network.first, {name: devices[c] for name, c in coarse.of.items()}
        )
        real = simulated(network, free, Placement(stage_of, ranks, on.contexts))
        assert sketch.seconds(devices) == pytest.approx(real, rel=0.03)
        assert sketch.bound <= real


def test_a_tower_each_is_found_for_one_micro_batch():
    """The strategies cut both towers in the middle, so that one device waited for the other."""
    on = machine(1e9, 1e9)
    made = planned(towers(2, 4), on, 1)
    assert made.choice.seconds <= 1.001 * by_hand(towers(2, 4), on, 1, t1=1)


def test_the_fast_device_alone_is_taken_where_the_slow_one_only_adds_messages():
    made = planned(towers(1, 4), machine(1e9, 3e9), 1)
    assert used(made) == {1}
    assert "cpu(1) alone" in [c.placed.strategy for c in made.placements]


@pytest.mark.slow
def test_more_devices_never_make_a_longer_step():
    """Over a slow link, two devices are enough, and the third stays idle."""
    prices = CostModel.alike(Speed(1e9, 1e-6, 2e10), Link(3e-4, 1e9))
    steps = []
    for count in (1, 2, 3):
        on = machine(*[1e9] * count)
        made = planned(towers(2, 2), on, 1, machine=None, pricing=always(prices))
        steps.append(made.choice.seconds)
    assert steps == sorted(steps, reverse=True)


def test_a_skipped_placement_could_not_have_been_shorter():
    """Placements were skipped for a load that charged both ends for messages beside their work."""
    on = machine(1e9, 1e9, bandwidth=2e7)
    made = planned(towers(2, 3), on, 4)
    skipped = [c for c in made.placements if c.bound is not None]
    assert skipped
    for candidate in skipped:
        real = simulated(made.network, made.options, candidate.placed.placement)
        assert real >= candidate.bound >= made.choice.seconds


@pytest.mark.slow
def test_the_smallest_limit_that_is_named_works():
    """Strategies refused what a schedule keeps in fewer bytes than they counted."""
    on = machine(1e9, 1e9)
    chain = towers(1, 6)
    with pytest.raises(LimitError) as refused:
        planned(chain, on, 4, memory=1000, recompute="auto", schedule="1f1b")
    limit = refused.value.smallest
    made = planned(chain, on, 4, memory=limit, recompute="auto", schedule="1f1b")
    assert made.choice.peak <= limit
    with pytest.raises(LimitError, match="the smallest limit that works"):
        planned(chain, on, 4, memory=limit - 1, recompute="auto", schedule="1f1b")
