"""Rules: random constraints are kept by every plan, and refused exactly when nothing keeps them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest

import symgraph.frontend.sym as sym
from partitioner.costs.cost import Speed
from partitioner.costs.machine import Machine
from partitioner.strategies import STRATEGIES, Constraints
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.loads import Loads
from partitioner.strategies.rules import Rule, callable_nodes, contradiction, demands, require_kept
from symgraph.core.context import cpu
from symgraph.core.errors import PlacementError
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower

DEVICES, NODES = 3, 6
SPEED = Speed(1e9, 1e-6, 1e9)
CONTEXTS = tuple(map(cpu, range(DEVICES)))


def network(rng: random.Random) -> Graph:
    """Sums of values made before; some share their group with the one before."""
    made, group = [sym.Variable("x")], 0
    for i in range(NODES):
        group += rng.random() < 0.7
        with AttrScope(ctx_group=f"g{group}"):
            a, b = rng.choice(made[-3:]), rng.choice(made)
            made.append(sym.elemwise_add(a, b, name=f"n{i}"))
    return lower(sym.Group(made[1:]), {"x": (64,)})


def random_rules(rng: random.Random, graph: Graph) -> list[Rule]:
    nodes = [n.name for n in callable_nodes(graph)]
    names = [*nodes, *sorted({lookup(graph[n].tags, "ctx_group") or "" for n in nodes})]
    found = []
    for _ in range(rng.randint(1, 6)):
        kind = rng.choice(["together", "apart", "apart", "pin", "not_on", "at_most", "same"])
        some = tuple(rng.sample(names, rng.choice([2, 2, 3])))
        if kind in ("together", "apart"):
            found.append(Rule(kind, some))
        elif kind in ("pin", "not_on"):
            found.append(Rule(kind, some[:1], (rng.choice(CONTEXTS),)))
        elif kind == "same":
            found.append(Rule(kind, tuple(rng.sample(nodes, 2))))
        else:
            count = rng.randint(1, DEVICES)
            found.append(Rule(kind, (rng.choice(["*", some[0], "n[0-3]"]),), count=count))
    return found


def kept(graph: Graph, rules: Sequence[Rule]) -> list[tuple[int, ...]]:
    """All placements of single nodes that keep the rules."""
    found = demands(graph, rules, CONTEXTS)
    every = product(range(DEVICES), repeat=NODES)
    return [devices for devices in every if not found.broken(devices)]


@pytest.mark.every(120)
@pytest.mark.parametrize("seed", range(40))
def test_random_rules_are_kept_or_refused_as_brute_force_says(seed):
    """Also: no placement that keeps them has a lower load than the bound of `noncontiguous`."""
    rng = random.Random(seed)
    graph, machine = network(rng), Machine.uniform(CONTEXTS, SPEED, 1e-7, 1e9)
    rules = random_rules(rng, graph)
    constraints, possible = Constraints(rules=tuple(rules)), kept(graph, rules)
    if not possible:
        with pytest.raises(PlacementError, match=r"contradict each other|cannot be kept"):
            STRATEGIES["noncontiguous"](graph, SPEED, machine, constraints)
        wrong = contradiction(graph, rules, CONTEXTS, [])
        assert not kept(graph, wrong)
        assert all(kept(graph, [r for r in wrong if r is not rule]) for rule in wrong)
        return
    assert contradiction(graph, rules, CONTEXTS, []) == []
    for name, strategy in STRATEGIES.items():
        try:
            placed = strategy(graph, SPEED, machine, constraints)
        except PlacementError:
            assert name != "noncontiguous"
            continue
        device_of = {n: placed.placement.device_of(n) for n in placed.placement.stage_of}
        require_kept(graph, rules, device_of)
    free = coarsen(graph, SPEED, machine, Constraints(), contiguous=False)
    numbers = [free.of[n.name] for n in callable_nodes(graph)]
    assert sorted(numbers) == list(range(NODES))
    classes = [numbers.index(c) for c in range(NODES)]
    best = min(Loads(free, [devices[i] for i in classes]).largest for devices in possible)
    placed = STRATEGIES["noncontiguous"](graph, SPEED, machine, constraints)
    assert placed.lower_bound <= best * (1 + 1e-9)
    if placed.optimal:
        assert placed.load == pytest.approx(best)


def layers(count: int) -> Graph:
    x = sym.Variable("x")
    for i in range(count):
        with AttrScope(ctx_group=f"layer{i}"):
            x = sym.tanh(sym.FullyConnected(x, num_hidden=8, name=f"fc{i}"), name=f"act{i}")
    return lower(x, {"x": (4, 8)})


def test_the_fewest_rules_that_contradict_each_other_are_named():
    rules = (
        Rule("not_on", ("layer3",), (cpu(2),)),
        Rule("pin", ("layer0",), (cpu(0),)),
        Rule("at_most", ("*",), count=2),
        Rule("same", ("layer0", "layer2")),
        Rule("apart", ("layer1", "fc2")),
        Rule("together", ("layer[01]", "layer4")),
    )
    graph, machine = layers(5), Machine.uniform(CONTEXTS, SPEED, 1e-6, 1e9)
    with pytest.raises(PlacementError) as error:
        STRATEGIES["chain"](graph, SPEED, machine, Constraints(rules=rules))
    assert (
        "these constraints contradict each other: same: {layer2: layer0}; apart: [layer1, fc2]; "
        "together: [layer[01], layer4] (" in str(error.value)
    )
    pinned = Constraints(pins={"layer0": 0}, rules=(Rule("not_on", ("fc0",), (cpu(0),)),))
    with pytest.raises(PlacementError, match=r"contradict each other: pin: \{layer0: cpu\(0\)\}; "):
        STRATEGIES["chain"](graph, SPEED, machine, pinned)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Rule("apart", ("layer0", "layr1")), "no ctx_group or node 'layr1'; did you mean 'layer"),
        (Rule("pin", ("layer0",), (cpu(7),)), r"no device cpu\(7\); did you mean 'cpu"),
        (Rule("same", ("layer0", "fc1")), "'fc1' has 1 node and 'layer0' 2 nodes, so they do not"),
    ],
)
def test_names_and_devices_that_there_are_not(rule, words):
    with pytest.raises(PlacementError, match=words):
        demands(layers(3), [rule], CONTEXTS)


def test_a_placement_by_hand_is_checked():
    graph = layers(3)
    device_of = {n.name: cpu(int("1" in n.name)) for n in graph}
    require_kept(graph, [Rule("at_most", ("*",), count=2)], device_of)
    with pytest.raises(PlacementError, match=r"breaks the constraint at_most: \{a\*: 1\}"):
        require_kept(graph, [Rule("at_most", ("a*",), count=1)], device_of)
