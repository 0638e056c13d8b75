"""Time segments: where nodes of unrolled networks go, and what cannot be cut along time."""

from __future__ import annotations

import pytest

import symgraph as sg
import symgraph.frontend.sym as sym
from partitioner import group2ctx
from partitioner.base.segments import time_segments, time_steps
from partitioner.cutting.cut import cut
from symgraph.core.context import cpu
from symgraph.core.errors import GraphError
from symgraph.core.graph import Graph
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.frontend.symbol import Symbol
from symgraph.passes.gradients import Differentiated, gradients


def network() -> Symbol:
    """One LSTM layer over (2, 6, 3) and a head that reads all its outputs."""
    with NameManager():
        outs, _ = sg.rnn.LSTMCell(3, prefix="l_").unroll(6, sym.Variable("x"), merge_outputs=True)
        return sym.LinearRegressionOutput(outs, sym.Variable("y"), name="loss")


def trained(symbol: Symbol) -> Differentiated:
    graph = lower(symbol, {"x": (2, 6, 3), "y": (2, 6, 3)})
    return gradients(graph, ["l_h2h_weight", "l_i2h_weight"])


def steps_of(graph: Graph) -> dict[str, int]:
    """Forward nodes that have a time step."""
    return {
        n.name: int(n.tags["__time_step__"])
        for n in graph
        if n.origin is None and not n.is_variable and "__time_step__" in n.tags
    }


@pytest.mark.parametrize("k", [1, 2, 3, 4, 6, 7])
def test_forward_and_gradient_nodes_run_in_the_segment_of_their_step(k):
    graph = trained(network()).graph
    found = time_segments(graph, k)
    assert found.count == -(-6 // k)
    assert not found.late
    steps = steps_of(graph)
    assert len(steps) > 6 * 3
    assert all(found.of[name] == step // k for name, step in steps.items())
    for node in graph:  # the gradient of a step's node, unless it is a sum for a parameter
        if node.origin in steps:
            assert found.of[node.name] == steps[node.origin] // k


def test_without_time_segments_there_is_one():
    graph = trained(network()).graph
    found = time_segments(graph, None)
    assert (set(found.of.values()), found.count, found.why_late(1)) == ({0}, 1, "")
    assert time_steps(graph) == 6


def test_what_reads_all_steps_runs_in_the_last_segment():
    found = time_segments(trained(network()).graph, 2)
    assert found.of["loss"] == 2
    assert found.of["x"] == 0


@pytest.mark.parametrize("k", [1, 2, 5])
def test_forward_goes_up_and_backward_goes_down(k):
    graph = trained(network()).graph
    of = time_segments(graph, k).of
    for node in graph:
        for value in node.inputs:
            made = graph[value.node]
            if node.origin is None:
                assert of[made.name] <= of[node.name]
            elif made.origin is not None:
                assert of[made.name] >= of[node.name]


def test_gradients_of_parameters_are_added_up_as_they_come():
    """Else every segment's gradient would wait until the last one: T arrays instead of one."""
    both = trained(network())
    of = time_segments(both.graph, 2).of
    sums = [n for n in both.graph if n.origin == "l_h2h_weight" and n.op == "elemwise_add"]
    assert sorted(of[n.name] for n in sums) == [0, 0, 1, 1, 2]  # 6 terms
    assert of[both.grads["l_h2h_weight"].node] == 0


def test_a_reversed_layer_runs_in_the_last_segment_and_says_why():
    """A sum over later steps at every step; what reads it waits as well."""
    with NameManager():
        xs = [sym.Variable(f"x{t}") for t in range(6)]
        forth, back, both = {}, {}, {}
        for t in range(6):
            with AttrScope(time_step=str(t)):
                forth[t] = sym.tanh(xs[t] if t == 0 else xs[t] + forth[t - 1], name=f"l{t}")
        for t in reversed(range(6)):
            with AttrScope(time_step=str(t)):
                back[t] = sym.tanh(xs[t] if t == 5 else xs[t] + back[t + 1], name=f"r{t}")
        for t in range(6):
            with AttrScope(time_step=str(t)):
                both[t] = sym.elemwise_add(forth[t], back[t], name=f"b{t}")
    shapes = {f"x{t}": (2,) for t in range(6)}
    found = time_segments(lower(sym.Group(list(both.values())), shapes), 2)
    assert [found.of[f"l{t}"] for t in range(6)] == [0, 0, 1, 1, 2, 2]
    assert {found.of[f"{n}{t}"] for t in range(6) for n in "rb"} == {2}
    said = found.why_late(2)
    assert said.startswith("12 nodes cannot run in the segment of their time step: ")
    assert said.endswith("needs what segment 2 makes, not only segment 1")


def test_steps_are_marked_by_hand():
    x, layers = sym.Variable("x"), []
    for t in range(4):
        with AttrScope(time_step=str(t)):
            x = sym.tanh(x, name=f"y{t}")
            layers.append(x)
    found = time_segments(lower(sym.Group(layers), {"x": (2,)}), 2)
    assert [found.of[f"y{t}"] for t in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("step", ["one", "-1", "1.5", ""])
def test_a_time_step_that_is_no_number(step):
    with AttrScope(time_step=step):
        graph = lower(sym.tanh(sym.Variable("x"), name="y"), {"x": (2,)})
    with pytest.raises(GraphError, match=rf"node 'y' has time_step {step!r}; it must be a whole"):
        time_segments(graph, 2)


def test_segments_of_no_steps():
    with pytest.raises(GraphError, match="a time segment needs at least 1 step, not 0"):
        time_segments(trained(network()).graph, 0)


@pytest.mark.parametrize("split", [False, True])
def test_segments_of_a_stage_hand_over_no_more_than_states(split):
    """An edge a segment and direction between layers; what a later segment reads is kept."""
    with NameManager():
        x = sym.Variable("x")
        for layer in range(2):
            with AttrScope(ctx_group=f"g{layer}"):
                cell = sg.rnn.RNNCell(3, prefix=f"l{layer}_")
                x, _ = cell.unroll(6, x, merge_outputs=layer == 1)
        with AttrScope(ctx_group="g1"):
            loss = sym.LinearRegressionOutput(x, sym.Variable("y"), name="loss")
    graph = lower(loss, {"x": (2, 6, 3), "y": (2, 6, 3)})
    both = gradients(graph, ["l0_h2h_weight", "l1_h2h_weight", "l0_i2h_weight"])
    groups = {"g0": cpu(0), "g1": cpu(1)}
    found = cut(both.graph, group2ctx(both.graph, groups, cpu(0)), split=split, time_segment=2)
    back = "I" if split else "B"
    ends = sorted((str(e.src), str(e.dst)) for e in found.edges)
    want = [(f"0F{s}", f"1F{s}") for s in ("", ".1", ".2") for _ in range(2)]
    want += [(f"1{back}{s}", f"0{back}{s}") for s in ("", ".1", ".2") for _ in range(2)]
    assert ends == sorted(want)
