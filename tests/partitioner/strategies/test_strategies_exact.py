"""Exactness of strategies: no placement of a small graph, cut for real, is better than theirs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from partitioner import Partition, Placement
from partitioner.base.stages import form_stages
from partitioner.costs.cost import Speed
from partitioner.costs.machine import Machine
from partitioner.cutting.cut import cut
from partitioner.strategies import STRATEGIES, Constraints, Placed
from partitioner.strategies import coarse as coarse_module
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.contraction import contract
from partitioner.strategies.loads import Loads
from partitioner.strategies.local_search import refined
from partitioner.strategies.problem import as_problem
from symgraph.core.context import cpu
from symgraph.core.errors import PlacementError
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import VARIABLE
from symgraph.core.types import TensorType, Value
from symgraph.passes.gradients import gradients

LATENCY, BANDWIDTH = 2.0, 16.0


class Table:
    """Seconds by the name of the forward node; its gradient nodes take half of it each.

    Sums of gradients take none: the cut may add them up where the terms are made.
    """

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def seconds_of(self, node: Node, graph: Graph) -> float:
        if node.is_variable or (node.origin is not None and node.op == "elemwise_add"):
            return 0.0
        return self.seconds[node.name] if node.origin is None else self.seconds[node.origin] / 2


def machine(devices: int, latency: float = LATENCY, bandwidth: float = BANDWIDTH) -> Machine:
    return Machine.uniform([cpu(i) for i in range(devices)], Speed(1.0, 0.0), latency, bandwidth)


def net(*lines: str) -> Graph:
    """A graph with gradients by x, from lines like `y = a b` (one input: tanh; two: a product, or
    a sum after `+`); the first one reads `x`. Values are 32 bytes."""
    type_ = TensorType((4,), "float64")
    nodes = [Node("x", VARIABLE, types=(type_,))]
    for line in lines:
        name, _, right = line.partition("=")
        words = right.split()
        op = "elemwise_add" if words[0] == "+" else ("tanh", "elemwise_mul")[len(words) - 1]
        inputs = tuple(Value(w) for w in words if w != "+")
        nodes.append(Node(name.strip(), op, inputs, types=(type_,)))
    read = {v.node for n in nodes for v in n.inputs}
    ends = [Value(n.name) for n in nodes if n.name not in read]
    return gradients(Graph.of(nodes, ends), ["x"]).graph


def random_net(seed: int) -> tuple[Graph, Table]:
    """At most 7 nodes, each value read by 2 at most."""
    rng = np.random.default_rng(seed)
    lines, spare = ["n0 = x"], {"n0": 2}
    for i in range(1, int(rng.integers(2, 8))):
        open_ = [name for name, left in spare.items() if left]
        count = min(len(open_), int(rng.integers(1, 3)))
        inputs = [open_[j] for j in sorted(rng.choice(len(open_), count, replace=False))]
        for name in inputs:
            spare[name] -= 1
        lines.append(f"n{i} = {' '.join(inputs)}")
        spare[f"n{i}"] = 2
    seconds = {f"n{i}": float(rng.integers(0, 12)) for i in range(len(lines))}
    return net(*lines), Table(seconds | {"x": 0.0})


def real_loads(partition: Partition, costs: Table, on: Machine) -> list[float]:
    """Seconds of every device: its bodies' nodes, and all messages that it sends or receives.

    The costs are those of the fastest device.
    """
    found = [0.0] * len(on.devices)
    most = max(device.flops for device in on.devices)
    for key, body in partition.bodies.items():
        found[partition.rank(key)] += (
            most
            / on.devices[partition.rank(key)].flops
            * sum(
                costs.seconds_of(partition.graph[n.name], partition.graph)
                for n in body.graph
                if not n.is_variable
            )
        )
    for edge in partition.edges:
        a, b = partition.rank(edge.src), partition.rank(edge.dst)
        if a != b:
            link = on.link(a, b)
            for rank in (a, b):
                found[rank] += link.latency + edge.type.nbytes / link.bandwidth
    return found


def every_placement(graph: Graph, on: Machine) -> Iterator[Placement]:
    """All contiguous placements of the forward nodes; x is with its reader."""
    names = [n.name for n in graph if n.origin is None and not n.is_variable]
    arcs = [(v.node, n) for n in names for v in graph[n].inputs if not graph[v.node].is_variable]
    for placed in itertools.product(range(len(on.devices)), repeat=len(names)):
        rank = dict(zip(names, placed, strict=True))
        joins = {(rank[a], rank[b]) for a, b in arcs if rank[a] != rank[b]}
        if any((b, a) in joins for a, b in joins) or _round_trip(joins):
            continue
        rank["x"] = rank["n0"]
        yield Placement(*form_stages(graph, rank), on.contexts)


def _round_trip(joins: set[tuple[int, int]]) -> bool:
    return any(
        (a, b) in joins and (b, c) in joins and (c, a) in joins
        for a, b, c in itertools.permutations(range(3))
    )


def brute_force(graph: Graph, costs: Table, on: Machine) -> float:
    return min(max(real_loads(cut(graph, p), costs, on)) for p in every_placement(graph, on))


@pytest.mark.parametrize("seed", range(40))
def test_optimal_on_two_devices_is_what_trying_everything_finds(seed):
    graph, costs = random_net(seed)
    on = machine(2)
    placed = STRATEGIES["optimal"](graph, costs, on, Constraints())
    assert placed.optimal
    assert placed.load == pytest.approx(brute_force(graph, costs, on))
    assert placed.load == pytest.approx(max(real_loads(cut(graph, placed.placement), costs, on)))


@pytest.mark.parametrize("seed", range(40, 60))
def test_optimal_on_three_devices_is_what_trying_everything_finds(seed):
    graph, costs = random_net(seed)
    on = machine(3, latency=0.5, bandwidth=64.0)
    placed = STRATEGIES["optimal"](graph, costs, on, Constraints())
    assert placed.optimal
    assert placed.load == pytest.approx(brute_force(graph, costs, on))


def ranks(placed: Placed) -> dict[str, int]:
    place = placed.placement
    return {name: place.rank_of[stage] for name, stage in place.stage_of.items()}


def test_communication_decides_where_it_is_dear():
    """Pipelines 24. Compute alone would cut the wide middle of the graph.

       ┌─ a ─┐
    n0 ┼─ c ─┼─ m1 ─ m ── last        3 values cross where both halves take as long,
       └─ e ─┘                        1 where they do not
    """
    graph = net("n0 = x", "a = n0", "c = n0", "e = n0", "m1 = a c", "m = m1 e", "last = m")
    seconds = {"n0": 2.0, "a": 6.0, "c": 6.0, "e": 6.0, "m1": 0.0, "m": 0.0, "last": 8.0}
    costs = Table(seconds | {"x": 0.0})
    free, dear = machine(2, 1e-9, 1e12), machine(2, 5.0, 1e12)
    by_compute = STRATEGIES["optimal"](graph, costs, free, Constraints())
    best = STRATEGIES["optimal"](graph, costs, dear, Constraints())
    assert best.load == pytest.approx(brute_force(graph, costs, dear))
    as_if = max(real_loads(cut(graph, by_compute.placement), costs, dear))
    assert as_if > best.load + 0.5, "ignoring messages must be worse here"


def test_a_residual_block_costs_one_message_each_way():
    """The gradients of the block and of what goes past it are added up before they are sent."""
    graph = net("n0 = x", "a = n0", "y = + n0 a", "b = y", "last = + y b")
    costs = Table({"x": 0.0, "n0": 8.0, "a": 2.0, "y": 1.0, "b": 3.0, "last": 2.0})
    on = machine(2)
    placed = STRATEGIES["optimal"](graph, costs, on, Constraints(pins={"n0": 0, "a": 1}))
    part = cut(graph, placed.placement)
    assert sum(part.crosses(e) for e in part.edges) == 2
    assert placed.load == pytest.approx(max(real_loads(part, costs, on)))


@pytest.mark.parametrize("seed", range(20))
def test_memory_limits_are_kept_or_the_smallest_that_works_is_named(seed):
    """P4: one byte less than the named limit fails, the limit itself does not."""
    graph, costs = random_net(seed)
    on = machine(2)
    tight = Constraints(memory=1, in_flight=3)
    with pytest.raises(
        PlacementError, match=r"cpu\(.\) would have to hold \d+ bytes .* is 1 bytes"
    ) as e:
        STRATEGIES["optimal"](graph, costs, on, tight)
    limit = int(str(e.value).split()[-2])
    placed = STRATEGIES["optimal"](graph, costs, on, Constraints(memory=limit, in_flight=3))
    assert max(placed.memory) == limit
    with pytest.raises(PlacementError, match=f"that works is {limit} bytes"):
        STRATEGIES["optimal"](graph, costs, on, Constraints(memory=limit - 1, in_flight=3))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("limited", [False, True])
def test_pins_are_kept_at_the_least_cost(seed, limited):
    graph, costs = random_net(seed)
    on = machine(2)
    names = [n.name for n in graph if n.origin is None and not n.is_variable]
    pins = {names[0]: 1, names[-1]: 0} if len(names) > 1 else {names[0]: 1}
    memory = 32 * len(names) if limited else None
    placed = STRATEGIES["optimal"](graph, costs, on, Constraints(memory=memory, pins=pins))
    assert {name: ranks(placed)[name] for name in pins} == pins
    best = min(
        max(real_loads(cut(graph, p), costs, on))
        for p in every_placement(graph, on)
        if all(p.rank_of[p.stage_of[name]] == d for name, d in pins.items())
    )
    assert placed.load == pytest.approx(best)


@pytest.mark.parametrize("seed", range(20))
def test_refining_never_ends_worse_and_keeps_stages_in_a_row(seed):
    graph, costs = random_net(seed)
    on = machine(3)
    coarse = coarsen(graph, costs, on, Constraints(), contiguous=True)
    start = [c * 3 // len(coarse) for c in range(len(coarse))]
    before = Loads(coarse, start)
    after = Loads(coarse, refined(coarse, start))
    assert max(after.seconds) <= max(before.seconds)
    assert after.acyclic()


def test_strategies_of_one_graph_share_its_classes(monkeypatch):
    """Each strategy made them anew: most of the time of a plan of a 96-layer transformer."""
    graph, costs = random_net(0)
    made = []
    monkeypatch.setattr(coarse_module, "contract", lambda c: made.append(c) or contract(c))
    for name in ("chain", "optimal", "noncontiguous", "refine"):
        STRATEGIES[name](graph, costs, machine(2), Constraints())
    assert len(made) == 1  # nothing ties classes in a row closer than others
    STRATEGIES["chain"](graph, costs, machine(3), Constraints())
    assert len(made) == 2


@pytest.mark.parametrize("devices", [4, 8])
def test_a_machine_of_equal_links_is_one_problem_with_the_mean_link_and_the_cheapest(devices):
    """The mean differed from the cheapest link in its last bit, so each was solved twice."""
    graph, costs = random_net(1)
    on = machine(devices, latency=0.1, bandwidth=3e9)
    coarse = coarsen(graph, costs, on, Constraints(), contiguous=False)
    mean, cheapest = (as_problem(coarse, cheapest=c).problem.kinds[0] for c in (False, True))
    assert mean.moves.tobytes() == cheapest.moves.tobytes()


def test_loads_kept_up_to_date_are_those_counted_anew():
    rng = np.random.default_rng(0)
    for seed in range(10):
        graph, costs = random_net(seed)
        on = machine(3)
        coarse = coarsen(graph, costs, on, Constraints(), contiguous=True)
        loads = Loads(coarse, [0] * len(coarse))
        for _ in range(10):
            loads.move([(int(rng.integers(len(coarse))), int(rng.integers(3)))])
            fresh = Loads(coarse, loads.devices)
            assert loads.seconds == pytest.approx(fresh.seconds, abs=1e-9)
            assert loads.memory == fresh.memory


def test_a_value_for_two_receivers_is_sent_twice():
    graph = net("n0 = x", "a = n0", "b = n0")
    costs = Table({"x": 0.0, "n0": 30.0, "a": 30.0, "b": 30.0})
    placed = STRATEGIES["optimal"](graph, costs, machine(3), Constraints())
    assert placed.load == 45.0 + 4 * (LATENCY + 32 / BANDWIDTH)
    assert placed.load == max(real_loads(cut(graph, placed.placement), costs, machine(3)))
    assert placed.optimal, "the search counts every message, so it proves what the solver cannot"
