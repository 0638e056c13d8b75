"""Strategies on machines whose devices and links differ: which device takes which piece, proved."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace

import numpy as np
import pytest

from partitioner.costs.cost import KindCosts, Speed
from partitioner.costs.machine import Device, Level, Machine
from partitioner.cutting.cut import cut
from partitioner.strategies import STRATEGIES, Constraints
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.local_search import _better
from partitioner.strategies.problem import MAX_DEVICE_SETS, as_problem
from partitioner.strategies.user_groups import least_load
from symgraph.core.context import cpu, gpu
from symgraph.core.errors import PlacementError
from symgraph.core.graph import Graph
from tests.partitioner.strategies.test_strategies_exact import (
    Table,
    brute_force,
    every_placement,
    machine,
    net,
    random_net,
    ranks,
    real_loads,
)

WIRE = {"network": Level(0.01, 1e9)}
OPEN = ["chain", "optimal", "noncontiguous", "refine", "parameters", "uniform"]


def devices(*flops: float, memory: tuple[int | None, ...] = ()) -> tuple[Device, ...]:
    given = memory or (None,) * len(flops)
    return tuple(
        Device(cpu(i), x, memory=m) for i, (x, m) in enumerate(zip(flops, given, strict=True))
    )


def chain(count: int, seconds: float = 2.0) -> tuple[object, Table]:
    lines = ["n0 = x", *(f"n{i} = n{i - 1}" for i in range(1, count))]
    return net(*lines), Table({f"n{i}": seconds for i in range(count)} | {"x": 0.0})


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("name", ["chain", "optimal", "noncontiguous", "refine"])
def test_a_slow_device_gets_less(name, slow):
    """3 : 1, whichever of the two is named first."""
    graph, costs = chain(12)
    flops = (1.0, 3.0) if slow == 0 else (3.0, 1.0)
    placed = STRATEGIES[name](graph, costs, Machine(devices(*flops), WIRE), Constraints())
    held = [r for node, r in ranks(placed).items() if node != "x"]
    assert held.count(slow) == 3
    assert placed.lower_bound <= placed.load


def test_the_first_of_mixed_devices_may_be_of_one_kind():
    """As when the planner bounds what gpu(0) alone, or both GPUs without the CPU, could do."""
    graph, slow = chain(4, seconds=8.0)
    both = KindCosts({"gpu": chain(4)[1], "cpu": slow})
    on = Machine((Device(gpu(0), 1.0), Device(gpu(1), 1.0), Device(cpu(0), 1.0)), WIRE)
    loads = [least_load(graph, both, on.only(on.contexts[:count])) for count in (1, 2, 3)]
    assert loads == pytest.approx([12.0, 6.0, 12 / (1 + 1 + 1 / 4)])


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("name", OPEN)
def test_of_one_to_ten_nearly_all_is_on_the_fast_device(name, slow):
    """Local search alone stays where it starts: no single move off an even split helps."""
    graph, costs = chain(22)
    flops = (1.0, 10.0) if slow == 0 else (10.0, 1.0)
    wide = Machine(devices(*flops), {"network": Level(0.0, 1e9)})
    placed = STRATEGIES[name](graph, costs, wide, Constraints(parameters=["x"]))
    held = [r for node, r in ranks(placed).items() if node != "x"]
    if name != "parameters":  # all bytes are x, which the first node reads
        assert held.count(slow) <= 2
    if name in ("chain", "optimal", "noncontiguous", "refine"):
        assert placed.load == pytest.approx(20 * 3.0, rel=1e-6)
        assert placed.lower_bound == pytest.approx(22 * 3.0 / 1.1, rel=1e-6) or placed.optimal


def test_uniform_counts_by_speed():
    graph, costs = chain(12)
    for flops, counts in (((1, 1), [6, 6]), ((1, 2), [4, 8]), ((2, 1, 1), [6, 3, 3])):
        on = Machine(devices(*map(float, flops)), WIRE)
        placed = STRATEGIES["uniform"](graph, costs, on, Constraints())
        held = [ranks(placed)[f"n{i}"] for i in range(12)]
        assert [held.count(d) for d in range(len(flops))] == counts
        assert held == sorted(held)


@pytest.mark.every(4)
@pytest.mark.parametrize("seed", range(20))
def test_a_plan_by_hand_is_weighed_as_it_is_cut(seed):
    graph, costs = random_net(seed)
    on = random_machine(seed, 3)
    rng = np.random.default_rng(seed)
    groups = {f"g{i}": cpu(int(rng.integers(3))) for i in range(4)}
    tagged = Graph.of(
        (
            replace(n, tags={"ctx_group": f"g{rng.integers(4)}"}) if n.origin is None else n
            for n in graph
        ),
        graph.outputs,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # groups without a node
        placed = STRATEGIES["group2ctx"](tagged, costs, on, Constraints(groups=groups))
    assert placed.load == pytest.approx(max(real_loads(cut(tagged, placed.placement), costs, on)))
    assert placed.lower_bound <= brute_force(graph, costs, on) + 1e-9


def random_machine(seed: int, count: int) -> Machine:
    """Speeds, links by place, and now and then memory, all different."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        flops = float(rng.choice([1.0, 2.0, 5.0]))
        found.append(Device(cpu(i), flops, node=str(rng.integers(0, 2))))
    links = {"node": Level(0.5, 64.0), "network": Level(float(rng.choice([0.5, 3.0])), 16.0)}
    return Machine(tuple(found), links)


@pytest.mark.parametrize("seed", range(30))
def test_optimal_on_two_devices_that_differ_is_what_trying_everything_finds(seed):
    graph, costs = random_net(seed)
    on = random_machine(seed, 2)
    placed = STRATEGIES["optimal"](graph, costs, on, Constraints())
    assert placed.optimal
    assert placed.load == pytest.approx(brute_force(graph, costs, on))
    assert placed.load == pytest.approx(max(real_loads(cut(graph, placed.placement), costs, on)))


@pytest.mark.every(4)
@pytest.mark.parametrize("seed", range(20))
def test_optimal_on_three_devices_that_differ_is_what_trying_everything_finds(seed):
    graph, costs = random_net(seed)
    on = random_machine(seed, 3)
    placed = STRATEGIES["optimal"](graph, costs, on, Constraints())
    assert placed.optimal
    assert placed.load == pytest.approx(brute_force(graph, costs, on))


@pytest.mark.parametrize("seed", range(10))
def test_pins_on_devices_that_differ_are_kept_at_the_least_cost(seed):
    graph, costs = random_net(seed)
    on = random_machine(seed + 100, 3)
    names = [n.name for n in graph if n.origin is None and not n.is_variable]
    pins = {names[-1]: 0, names[0]: 2} if len(names) > 1 else {names[0]: 2}
    placed = STRATEGIES["optimal"](graph, costs, on, Constraints(pins=pins))
    assert {name: ranks(placed)[name] for name in pins} == pins
    best = min(
        max(real_loads(cut(graph, p), costs, on))
        for p in every_placement(graph, on)
        if all(p.rank_of[p.stage_of[name]] == d for name, d in pins.items())
    )
    assert placed.load == pytest.approx(best)
    assert placed.optimal


@pytest.mark.parametrize("seed", range(10))
def test_each_device_keeps_to_its_own_memory(seed):
    """What fits only one way round goes that way round; the fast device has the least room."""
    graph, costs = random_net(seed)
    alike = Constraints(in_flight=2)
    whole = sum(STRATEGIES["optimal"](graph, costs, machine(1), alike).memory)
    room = whole // 3 + 32
    on = Machine(devices(5.0, 1.0, memory=(room, whole)), WIRE)
    placed = STRATEGIES["optimal"](graph, costs, on, alike)
    assert placed.memory[0] <= room
    free = STRATEGIES["optimal"](graph, costs, Machine(devices(5.0, 1.0), WIRE), alike)
    assert free.load <= placed.load
    smaller = Machine(devices(5.0, 1.0, memory=(room, 1)), WIRE)
    if whole > room:
        with pytest.raises(PlacementError, match="the smallest limit that works is"):
            STRATEGIES["optimal"](graph, costs, smaller, alike)


def test_dear_links_are_crossed_where_little_flows():
    """Two nodes of two devices: the wide value stays inside a node, the cut between nodes is thin.

    The four layers could be cut anywhere; devices 0 and 2 are neighbours, and 1 and 3.
    """
    graph, costs = chain(4, seconds=20.0)
    inside, across = Level(0.0, 1e9), Level(4.0, 1e9)
    places = [replace(d, node=str(i % 2)) for i, d in enumerate(devices(1.0, 1.0, 1.0, 1.0))]
    on = Machine(tuple(places), {"node": inside, "network": across})
    for name in ("chain", "optimal", "refine", "noncontiguous"):
        placed = STRATEGIES[name](graph, costs, on, Constraints())
        row = [ranks(placed)[f"n{i}"] for i in range(4)]
        assert sorted(row) == [0, 1, 2, 3], name
        crossings = sum(a % 2 != b % 2 for a, b in itertools.pairwise(row))
        assert crossings == 1, (name, row)
    assert placed.load == pytest.approx(30.0 + 2 * 4.0)


def test_a_device_with_slow_memory_is_slow_for_what_moves_bytes():
    """The rooflines of both devices tell: one node's time is its bytes, the other's its sums."""
    wide = Device(cpu(0), 1.0, bandwidth=1e9)
    narrow = Device(cpu(1), 1.0, bandwidth=1e-3)
    graph, _ = chain(6)
    on = Machine((wide, narrow), WIRE)
    placed = STRATEGIES["optimal"](graph, Speed(1.0, 0.0, 1e9), on, Constraints())
    assert {r for node, r in ranks(placed).items() if node != "x"} == {0}


def test_many_devices_that_differ_are_told_apart_as_far_as_can_be():
    graph, costs = chain(20)
    on = Machine(devices(*(1.0 + i / 16 for i in range(16))), WIRE)
    coarse = coarsen(graph, costs, on, Constraints(), contiguous=True)
    kinds = as_problem(coarse).problem.kinds
    assert 1 < len(kinds) < 16
    assert np.prod([kind.count + 1 for kind in kinds]) <= MAX_DEVICE_SETS
    placed = STRATEGIES["optimal"](graph, costs, on, Constraints())
    alike = STRATEGIES["optimal"](graph, costs, Machine(devices(*[1.0] * 16), WIRE), Constraints())
    assert placed.lower_bound <= placed.load <= alike.load * 1.94
    assert placed.load >= 20 * 3.0 * (1 + 15 / 16) / sum(1.0 + i / 16 for i in range(16))


def test_swaps_of_idle_devices_come_to_an_end():
    """Loads of idle devices are what rounding left, less after every swap: a bind never ended."""
    assert not _better((0.0, [1.0, -2e-21, -3e-21]), (0.0, [1.0, 0.0, -3e-21]))
    assert _better((0.0, [1.0, 0.5, 0.0]), (0.0, [1.0, 0.5 + 2e-9, 0.0]))
