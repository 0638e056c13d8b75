"""Bounds of steps beside simulations, and the search for the placements with the lowest ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import symgraph as sg
from benchmarks.planner_by_hand import inception, language, unet
from benchmarks.planner_optimum import ROWS, Enumeration, random_case
from partitioner import Placement
from partitioner.base.stages import form_stages
from partitioner.costs.machine import Device, Level, Machine
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.types import Constraints
from runtime.planning.costs.prices import CostModel, always
from runtime.planning.draft import Draft
from runtime.planning.network import PlanRequest, make_network
from runtime.planning.options import Options
from runtime.planning.placement_bound import PlacementBound
from runtime.planning.planner import plan
from runtime.planning.schedule_choice import select_schedule
from symgraph.core.context import cpu
from symgraph.core.types import TensorType
from symgraph.passes.batching import Feed

UNEQUAL = (2e9, 6e9, 2e9)


def machine(*flops: float, latency: float = 1e-4) -> Machine:
    devices = tuple(Device(cpu(i), f, 5e-6, 2e10) for i, f in enumerate(flops))
    return Machine(devices, {"network": Level(latency, 3e8)})


def options(on: Machine, micro_batches: int, **more) -> Options:
    free = Options(
        default=cpu(0),
        devices=on.contexts,
        micro_batches=micro_batches,
        strategy="auto",
        schedule="auto",
        machine=on,
        splits=False,
        update=True,
        pricing=always(CostModel.of_machine(on)),
    )
    return replace(free, **more)


@pytest.mark.parametrize(
    ("network", "shape", "micro_batches"),
    [
        (lambda: unet(2)[0], (128,), 4),
        (lambda: inception(1)[0], (128,), 1),
        (lambda: language(300, 2, tied=True)[0], (), 2),
    ],
    ids=["skips", "branches", "tied"],
)
def test_no_schedule_of_any_placement_beats_its_bound(network, shape, micro_batches):
    symbol, on = network(), machine(*UNEQUAL)
    free, rng = options(on, micro_batches), np.random.default_rng(0)
    feeds = {"data": Feed(TensorType((8 * micro_batches, *shape), "float32"))}
    wrt = tuple([name for name in symbol.list_arguments() if name != "data"])
    made = make_network(PlanRequest(symbol, feeds, wrt, False, {}, {}), free, {})
    prices = free.pricing(made.first, free.contexts)
    kernels = prices.merged(made.first, on.contexts)
    known = Constraints(
        parameters=made.parameters, grads=made.grads, split_tied=True
    )  # so that gradients of one parameter are summed across devices
    coarse = coarsen(made.first, kernels, on, known, contiguous=False)
    bound = PlacementBound(made, free, coarse, kernels, prices)
    for devices in rng.integers(0, len(UNEQUAL), (5, len(coarse))).tolist():
        homes = {name: devices[c] for name, c in coarse.of.items()}
        placement = Placement(*form_stages(made.first, homes), on.contexts)
        best = select_schedule(Draft(made, placement, free), lambda: prices).choice.seconds
        (least,) = bound.of(np.array([devices]))
        assert 0.4 * best <= least <= best


def test_the_lowest_bounds_are_those_of_all_placements():
    every = Enumeration(random_case(5, limited=False))
    on = every.case.machine
    kernels = every.prices.merged(every.network.first, on.contexts)
    bound = PlacementBound(every.network, every.case.options, every.coarse, kernels, every.prices)
    ranked = np.sort(every.bounds)
    few = bound.lowest(np.inf, 8, 10**6)
    np.testing.assert_allclose(few.seconds, ranked[: len(few.seconds)])
    assert len(few.seconds) >= 4
    assert few.others <= ranked[len(few.seconds)]
    np.testing.assert_allclose(bound.of(few.rows), few.seconds)
    assert bound.lowest(ranked[0], 8, 10**6).others == np.inf  # none is below the least
    cut_off = bound.lowest(np.inf, 8, 5)
    assert min([cut_off.others, *cut_off.seconds]) <= ranked[0]


@pytest.mark.slow
def test_a_plan_of_a_small_network_says_what_is_proved():
    symbol, on = unet(2)[0], machine(2e9, 2e9, latency=1e-5)
    feeds = {"data": Feed(TensorType((ROWS, 128), "float32"))}
    made = plan(symbol, feeds, options(on, 1), wrt=None)
    assert 0.9 * made.choice.seconds <= made.bound <= made.choice.seconds
    words = "no placement of whole operators on these devices, which all join the end of a step,"
    assert made.proof.startswith(f"{words} takes less than")
    names = [n.name for n in made.network.first if n.origin is None and not n.is_variable]
    pairs = product(range(2), repeat=len(names))
    assert len(names) == 7
    for devices in [*pairs][::40]:
        homes = dict(zip(names, devices, strict=True))
        for node in reversed([*made.network.first]):
            if node.origin is None:
                for value in node.inputs:
                    homes.setdefault(value.node, homes[node.name])
        placement = Placement(*form_stages(made.network.first, homes), on.contexts)
        draft = Draft(made.network, placement, made.options)
        seconds = select_schedule(draft, lambda: made.prices).choice.seconds
        assert seconds >= made.bound
    unrolled = sg.rnn.LSTMCell(4, prefix="a_").unroll(
        2, sg.sym.Variable("data"), merge_outputs=True
    )
    lstm = plan(
        sg.sym.MakeLoss(unrolled[0]),
        {"data": Feed(TensorType((4, 2, 3), "float32"))},
        options(on, 1),
        wrt=None,
    )
    assert (lstm.bound, lstm.proof) == (None, "")  # its products merge where they are together
