"""The backward graph: its numbers, its origins, and what it does not hold."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import symgraph as sg
from symgraph.core.errors import GraphError
from symgraph.core.graph import Graph
from symgraph.core.reference import evaluate
from symgraph.core.registry import find
from symgraph.core.types import Value
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.passes.gradients import Differentiated, gradients
from symgraph.passes.testing import check_grads, strip_origins
from tests.helpers import mazur as mazur_example
from tests.symgraph.running import random_feeds


@pytest.fixture(autouse=True)
def fresh_names():
    with NameManager():
        yield


def graph_of(symbol: sg.Symbol, **shapes) -> Graph:
    return lower(symbol, shapes, dict.fromkeys(shapes, "float64"))


def grads_of(graph: Graph, wrt: list[str], **feeds) -> list[np.ndarray]:
    """The gradients; heads that are not fed are ones."""
    both = gradients(graph, wrt)
    fed = {name: np.asarray(a, "float64") for name, a in feeds.items()}
    for name in both.heads.values():
        fed.setdefault(name, np.ones(both.graph[name].types[0].shape))
    return evaluate(both.graph, random_feeds(both.graph) | fed)[len(graph.outputs) :]


def backward_nodes(both: Differentiated, graph: Graph) -> list:
    return [n for n in both.graph if n.name not in graph.nodes]


# -- numbers -----------------------------------------------------------------------------------


def test_gradients_of_all_uses_are_added():
    x = sym.Variable("x")
    graph = graph_of(x * x + 3.0 * x + sym.exp(x) - x, x=(3,))
    at = np.array([0.5, -1.0, 2.0])
    np.testing.assert_allclose(grads_of(graph, ["x"], x=at)[0], 2 * at + 2 + np.exp(at))


@pytest.mark.parametrize("n", range(1, 13))
def test_any_number_of_branches_add_up(n):
    """Case G10: MXNet summed wrongly when x had more than a few consumers (mxnet#10455)."""
    x = sym.Variable("x")
    total = 1.0 * x
    for i in range(2, n + 1):
        total = total + float(i) * x
    graph = graph_of(total, x=(1,))
    assert grads_of(graph, ["x"], x=[1.0])[0].tolist() == [n * (n + 1) / 2]
    one_sum = sym.add_n(*[float(i) * x for i in range(1, n + 1)])
    graph = graph_of(one_sum, x=(1,))
    assert grads_of(graph, ["x"], x=[1.0])[0].tolist() == [n * (n + 1) / 2]


def test_one_node_that_reads_a_value_twice():
    x = sym.Variable("x")
    graph = graph_of(sym.dot(x, x, transpose_b=True), x=(2, 3))
    check_grads(graph, random_feeds(graph))


def test_a_weight_used_twice_in_a_row():
    x, w = sym.Variable("x"), sym.Variable("w")
    graph = graph_of(sym.dot(sym.dot(x, w), w), x=(2, 3), w=(3, 3))
    feeds = random_feeds(graph)
    check_grads(graph, feeds)
    x_, w_, ones = feeds["x"], feeds["w"], np.ones((2, 3))
    want = x_.T @ ones @ w_.T + (x_ @ w_).T @ ones
    np.testing.assert_allclose(grads_of(graph, ["w"])[0], want)


def mazur() -> sg.Symbol:
    hidden = sym.Variable("data")
    for layer in range(2):
        hidden = sym.FullyConnected(hidden, num_hidden=2, name=f"fc_{layer}")
        hidden = sym.Activation(hidden, act_type="sigmoid", name=f"act_{layer}")
    loss = sym.sum(0.5 * sym.square(hidden - sym.Variable("label")))
    return sym.Group([sym.BlockGrad(hidden), sym.MakeLoss(loss, name="loss")])


def test_published_values_of_a_small_net():
    """Case G18: the "Mazur" example, outputs, loss and all gradients."""
    graph = graph_of(mazur(), data=(1, 2))
    arrays = {name: np.array(a) for name, a in mazur_example.INPUTS.items()}
    outputs = evaluate(graph, arrays)
    np.testing.assert_allclose(outputs[0], mazur_example.OUTPUT, atol=1e-8)
    np.testing.assert_allclose(outputs[1], mazur_example.LOSS, atol=1e-9)
    want = mazur_example.GRADIENTS
    for name, got in zip(want, grads_of(graph, list(want), **mazur_example.INPUTS), strict=True):
        np.testing.assert_allclose(got, want[name], atol=1e-8, err_msg=name)


def test_unused_outputs_of_a_node_have_no_gradient():
    x = sym.Variable("x")
    parts = sym.SliceChannel(x, num_outputs=3, axis=1, name="cut")
    graph = graph_of(sym.square(parts[1]), x=(2, 6))
    at = np.arange(12.0).reshape(2, 6)
    want = np.zeros((2, 6))
    want[:, 2:4] = 2 * at[:, 2:4]
    np.testing.assert_array_equal(grads_of(graph, ["x"], x=at)[0], want)
    graph = graph_of(sym.Group([parts[2], parts[0] * parts[2]]), x=(2, 6))
    check_grads(graph, random_feeds(graph))


def test_second_derivatives():
    x = sym.Variable("x")
    graph = graph_of(x**3.0, x=(3,))
    first = gradients(graph, ["x"])
    forward = Graph.of(strip_origins(first.graph), list(first.grads.values()))
    at = np.array([0.5, -1.0, 2.0])
    head = {name: np.ones(3) for name in first.heads.values()}
    np.testing.assert_allclose(grads_of(forward, ["x"], x=at, **head)[0], 6 * at)


def test_second_derivatives_of_an_unrolled_cell():
    outputs, _ = sg.rnn.LSTMCell(2).unroll(3, sym.Variable("x"), merge_outputs=True)
    graph = graph_of(sym.sum(outputs), x=(2, 3, 2))
    first = gradients(graph, ["lstm_h2h_weight", "x"])
    forward = Graph.of(strip_origins(first.graph), list(first.grads.values()))
    feeds = random_feeds(forward)
    check_grads(forward, feeds, ["lstm_h2h_weight", "lstm_i2h_bias", "x"], rtol=1e-5)


# -- where gradients start and end -------------------------------------------------------------


def test_heads_are_fed_for_outputs_that_are_no_loss():
    x = sym.Variable("x")
    net = sym.Group([sym.square(x, name="a"), sym.MakeLoss(x * 10.0, name="loss"), x])
    graph = graph_of(net, x=(2,))
    both = gradients(graph, ["x"])
    assert sorted(both.heads) == [0, 2]
    assert all(both.graph[name].is_variable for name in both.heads.values())
    feeds = {both.heads[0]: np.array([1.0, 2.0]), both.heads[2]: np.array([100.0, 200.0])}
    got = grads_of(graph, ["x"], x=[3.0, 4.0], **feeds)
    np.testing.assert_array_equal(got[0], [6 + 10 + 100, 16 + 10 + 200])
    without = gradients(graph, ["x"], heads=False)
    assert without.heads == {}
    np.testing.assert_array_equal(evaluate(without.graph, {"x": np.ones(2)})[-1], [10, 10])


def test_outputs_without_gradients_need_no_head():
    x = sym.Variable("x")
    whole = sym.one_hot(sym.Cast(x, dtype="int32"), depth=3, dtype="int32")
    net = sym.Group([sym.BlockGrad(x), whole, sym.Variable("y"), sym.square(x)])
    both = gradients(graph_of(net, x=(2,), y=(2,)), ["x"])
    assert sorted(both.heads) == [3]


def test_an_output_asked_for_twice_has_two_heads():
    y = sym.square(sym.Variable("x"))
    graph = graph_of(sym.Group([y, y]), x=(2,))
    assert sorted(gradients(graph, ["x"]).heads) == [0, 1]
    np.testing.assert_array_equal(grads_of(graph, ["x"], x=[1.0, 2.0])[0], [4, 8])


def test_a_loss_ignores_what_comes_back_to_its_output():
    x, label = sym.Variable("x"), sym.Variable("label")
    loss = sym.SoftmaxOutput(x, label, name="softmax")
    alone = graph_of(loss, x=(2, 3), label=(2,))
    with_more = graph_of(sym.Group([loss, sym.square(loss)]), x=(2, 3), label=(2,))
    labels = [0.0, 2.0]
    np.testing.assert_array_equal(
        grads_of(alone, ["x"], label=labels), grads_of(with_more, ["x"], label=labels)
    )


def test_gradients_stop_at_block_grad():
    x = sym.Variable("x")
    blocked = graph_of(sym.BlockGrad(sym.square(x)), x=(2,))
    np.testing.assert_array_equal(grads_of(blocked, ["x"])[0], [0, 0])
    graph = graph_of(sym.BlockGrad(x) * x, x=(2,))
    np.testing.assert_array_equal(grads_of(graph, ["x"], x=[3.0, 4.0])[0], [3, 4])


def test_a_variable_that_no_output_depends_on_has_a_zero_gradient():
    symbol = sym.Group([sym.square(sym.Variable("x")), sym.BlockGrad(sym.Variable("unused"))])
    graph = lower(symbol, {"x": (2,), "unused": (3, 2)}, {"x": "float64", "unused": "float16"})
    both = gradients(graph, ["unused", "x"])
    assert list(both.grads) == ["unused", "x"]
    zero = both.grads["unused"]
    assert both.graph.type_of(zero) == graph["unused"].types[0]
    assert both.graph[zero.node].origin == "unused"
    values = evaluate(both.graph, random_feeds(both.graph))
    np.testing.assert_array_equal(values[2], np.zeros((3, 2)))
    assert values[3].any()


def test_only_what_gradients_need_is_differentiated():
    data, weight = sym.Variable("data"), sym.Variable("weight")
    net = sym.FullyConnected(sym.exp(data), weight, num_hidden=2, no_bias=True, name="fc")
    both = gradients(graph_of(net, data=(3, 2)), ["weight"])
    origins = {n.origin for n in both.graph}
    assert origins == {None, "fc", "weight"}
    assert "_fc_grad_data" not in {n.op for n in both.graph}


def test_wrong_variables():
    graph = lower(
        sym.Embedding(sym.Variable("ids"), input_dim=5, output_dim=2, name="embed"),
        {"ids": (3,)},
        {"ids": "int32"},
    )
    with pytest.raises(GraphError, match=r"cannot differentiate by 'ids' of int32\[3\]"):
        gradients(graph, ["ids"])
    with pytest.raises(GraphError, match="'embed_wieght', which is not a variable; did you mean"):
        gradients(graph, ["embed_wieght"])
    with pytest.raises(GraphError, match="'embed', which is not a variable"):
        gradients(graph, ["embed"])


# -- origins -----------------------------------------------------------------------------------


def language_model() -> tuple[Graph, list[str]]:
    stack = sg.rnn.SequentialRNNCell()
    stack.add(sg.rnn.LSTMCell(3, prefix="l0_"))
    stack.add(sg.rnn.ResidualCell(sg.rnn.GRUCell(3, prefix="l1_")))
    outputs, _ = stack.unroll(3, sym.Variable("data"), merge_outputs=True, layout="TNC")
    rows = sym.Reshape(outputs, shape=(-1, 3))
    scores = sym.FullyConnected(rows, num_hidden=4, name="decode")
    label = sym.Reshape(sym.Variable("label"), shape=(-1,))
    net = sym.SoftmaxOutput(scores, label, normalization="valid", use_ignore=True, name="softmax")
    graph = graph_of(net, data=(3, 2, 5), label=(3, 2))
    return graph, [n.name for n in graph.variables if n.name not in ("data", "label")]


def test_every_gradient_node_serves_a_forward_node():
    graph, wrt = language_model()
    both = gradients(graph, wrt)
    added = backward_nodes(both, graph)
    assert len(added) > 50
    for node in added:
        assert node.origin in graph.nodes, node
    for node in graph:
        assert both.graph[node.name] == node  # the forward graph is as it was
    for name, value in both.grads.items():
        assert both.graph[value.node].origin == name
        assert both.graph.type_of(value) == graph[name].types[0]


def test_gradient_nodes_read_forward_values_and_gradients_alone():
    """A gradient node's inputs: what its origin reads or makes, or other gradients."""
    graph, wrt = language_model()
    both = gradients(graph, wrt)
    for node in backward_nodes(both, graph):
        origin = graph[node.origin]
        near = {v.node for v in origin.inputs} | {origin.name}
        for value in node.inputs:
            assert value.node in near or value.node not in graph.nodes, node


def test_a_sum_of_gradients_serves_the_producer_of_the_value():
    x = sym.Variable("x")
    shared = sym.tanh(x, name="shared")
    uses = [sym.exp(shared, name="a"), sym.square(shared, name="b"), sym.sqrt(shared, name="c")]
    graph = graph_of(sym.add_n(*uses, name="total"), x=(2,))
    both = gradients(graph, ["x"])
    sums = [n for n in backward_nodes(both, graph) if n.op == "elemwise_add"]
    assert [n.origin for n in sums] == ["shared", "shared"]
    # one running sum: each addition takes the sum so far and one more term
    assert sums[1].inputs[0] == Value(sums[0].name)


def test_a_tied_weight_holds_one_running_sum():
    outputs, _ = sg.rnn.RNNCell(2).unroll(9, sym.Variable("x"), merge_outputs=True)
    graph = graph_of(outputs, x=(2, 9, 2))
    both = gradients(graph, ["rnn_h2h_weight"])
    sums = [n for n in both.graph if n.origin == "rnn_h2h_weight"]
    assert [n.op for n in sums] == ["elemwise_add"] * (9 - 1) + ["identity"]
    for before, after in pairwise(sums):
        assert after.inputs[0] == Value(before.name)
    assert both.grads["rnn_h2h_weight"] == Value(sums[-1].name)


def test_names_of_gradient_nodes_are_deterministic():
    graph, wrt = language_model()
    assert gradients(graph, wrt).graph.digest == gradients(graph, wrt).graph.digest


def test_losses_are_marked_as_heads():
    for name in ("SoftmaxOutput", "LinearRegressionOutput", "MakeLoss"):
        assert find(name).loss
    assert not find("softmax_cross_entropy").loss
