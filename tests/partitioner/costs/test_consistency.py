"""Costs that do not add up, and backward times on the wrong operator."""

from __future__ import annotations

from dataclasses import replace

import pytest

import symgraph as sg
from partitioner.costs.consistency import Consistency, Timed, consistency, outliers
from partitioner.costs.cost import Caches, CostTable, Measured, Rates, Speed, signature
from symgraph.core.graph import Graph
from symgraph.frontend.lower import lower
from symgraph.passes.gradients import gradients


def network() -> Graph:
    """Three products of different widths with a tanh after each, and gradients by all weights."""
    x = sg.sym.Variable("data")
    for i, width in enumerate((8, 16, 24, 32)):
        x = sg.sym.tanh(sg.sym.FullyConnected(x, num_hidden=width, name=f"fc{i}"))
    graph = lower(x, {"data": (4, 40)})
    return gradients(graph, x.list_arguments()).graph


def table(graph: Graph, strange: str = "", by: float = 1.0) -> CostTable:
    """A millisecond for each forward node, two for each gradient: those of one node times `by`."""
    measured = {}
    for node in graph:
        if not node.is_variable:
            seconds = 1e-3 if node.origin is None else 2e-3
            seconds *= by if strange and node.origin == strange else 1.0
            measured[signature(node, graph)] = Measured(seconds, 0.0, 1)
    return CostTable(Speed(1e9, 0.0), Rates(1e9, 1e9), Caches(1, 2), measured, {}, {})


def step(costs: CostTable, graph: Graph) -> float:
    return sum(costs.seconds_of(node, graph) for node in graph)


def test_sound_costs_have_no_findings():
    graph = network()
    costs = table(graph)
    for measured in (1.0, 1.04, 0.97):
        found = consistency(costs, graph, measured * step(costs, graph))
        assert found.findings == ()
        assert found.nodes == pytest.approx(step(costs, graph))
        assert found.off == pytest.approx(1 / measured - 1)


@pytest.mark.parametrize(("share", "words"), [(0.5, "slower than together"), (2.0, "in no node")])
def test_a_sum_that_is_not_the_whole_is_told_with_both_figures(share, words):
    graph = network()
    costs = table(graph)
    found = consistency(costs, graph, share * step(costs, graph))
    (line,) = found.findings
    assert f"({1 / share - 1:+.0%})" in line
    assert words in line
    assert "the nodes' times add up to" in line


@pytest.mark.parametrize(("share", "nearest"), [(0.7, 0.8), (0.9, 0.9), (1.2, 1.0)])
def test_a_step_may_take_what_nodes_take_alone_or_among_others(share, nearest):
    graph = network()
    costs = table(graph)
    measured = {name: known._replace(alone=0.8) for name, known in costs.measured.items()}
    alone, whole = replace(costs, measured=measured).alone, step(costs, graph)
    found = consistency(costs, graph, share * whole, alone=alone)
    assert found.nodes == pytest.approx(nearest * whole)


@pytest.mark.parametrize("by", [0.01, 10.0])
def test_a_backward_time_far_from_that_of_its_twins_is_told(by):
    graph = network()
    costs = table(graph, "fc2", by)
    found = consistency(costs, graph, step(costs, graph))
    (outlier,) = found.outliers
    assert outlier.timed.name == signature(graph["fc2"], graph)
    assert outlier.timed.kind == "FullyConnected"
    assert outlier.timed.forward == pytest.approx(1e-3)
    usual = next(x for x in timed_of(costs, graph) if x.name != outlier.timed.name)
    assert outlier.timed.backward == pytest.approx(usual.backward * by)
    assert outlier.expected == pytest.approx(usual.backward)
    (line,) = found.findings
    assert "FullyConnected(" in line
    assert "measured on another node?" in line


def timed_of(costs: CostTable, graph: Graph) -> list[Timed]:
    """Products with the backward time that their gradient nodes take."""
    return [
        Timed(
            signature(n, graph),
            n.op,
            1e-3,
            sum(costs.seconds_of(g, graph) for g in graph if g.origin == n.name),
        )
        for n in graph
        if n.op == "FullyConnected"
    ]


def test_an_unrolled_network_is_judged_by_all_its_steps_together():
    """Each of 200 steps is far below what could matter; all of them are half of the time."""
    x = sg.sym.Variable("data")
    for t in range(200):
        x = sg.sym.tanh(x, name=f"t{t}")
    for i, width in enumerate((8, 16, 24)):
        x = sg.sym.FullyConnected(x, num_hidden=width, name=f"fc{i}")
    graph = gradients(lower(x, {"data": (4, 40)}), x.list_arguments()).graph
    measured = dict(table(graph).measured)
    for node in graph:
        if node.origin is not None and graph[node.origin].op == "tanh":
            measured[signature(node, graph)] = Measured(1e-7, 0.0, 1)
    costs = CostTable(Speed(1e9, 0.0), Rates(1e9, 1e9), Caches(1, 2), measured, {}, {})
    (outlier,) = consistency(costs, graph, step(costs, graph)).outliers
    assert outlier.timed.kind == "tanh"
    assert outlier.timed.forward == pytest.approx(0.2)


def test_the_published_mistake_is_found():
    """Anchors 7: gnmt_large's bidirectional LSTM and the embedding before it, as PipeDream has
    them; its other layers are sound."""
    layers = [Timed(f"lstm{i}", "LSTM", 5.0 + i, 10.0 + 2 * i) for i in range(6)]
    wrong = [Timed("embed", "Embedding", 0.14, 25.538), Timed("birnn", "LSTM2", 14.126, 0.019)]
    assert [x.timed.name for x in outliers([*wrong, *layers])] == ["embed", "birnn"]
    assert outliers(layers) == []
    assert outliers([]) == []


def test_inference_has_no_ratio_to_judge():
    x = sg.sym.tanh(sg.sym.Variable("data"))
    graph = lower(x, {"data": (4, 4)})
    costs = table(graph)
    assert consistency(costs, graph, step(costs, graph)) == Consistency(1e-3, 1e-3, ())
