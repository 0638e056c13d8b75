"""sym.contrib.foreach: the same numbers as a network written step by step, and cut as one."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from partitioner.base.segments import time_segments
from symgraph import sym
from symgraph.core.errors import GraphError, ShapeError
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.core.tags import lookup
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import check_grads
from tests.symgraph.running import random_feeds, run

T, B, H = 4, 2, 3


def layer(x, name, state=None):
    """A recurrent layer; its weight is made inside the body, its scale outside."""
    scale = sym.exp(sym.Variable(f"{name}_scale"))

    def body(data, states):
        total = sym.FullyConnected(data, num_hidden=H, name=f"{name}_fc")
        new = sym.tanh(total + states * scale)
        return new, new

    state = sym.Variable(f"{name}_state") if state is None else state
    return sym.contrib.foreach(body, x, state)


def by_hand(x, name):
    scale = sym.exp(sym.Variable(f"{name}_scale"))
    weight, bias = (sym.Variable(f"{name}_fc_{n}") for n in ("weight", "bias"))
    state, outs = sym.Variable(f"{name}_state"), []
    for step in x:
        total = sym.FullyConnected(step, weight, bias, num_hidden=H)
        state = sym.tanh(total + state * scale)
        outs.append(state)
    return sym.stack(*outs, axis=0), state


def test_outputs_and_gradients_are_those_of_a_network_by_hand():
    loop = sym.Group(layer(sym.Variable("x"), "a"))
    steps = sym.SliceChannel(sym.Variable("x"), num_outputs=T, axis=0, squeeze_axis=True)
    hand = sym.Group(by_hand(steps, "a"))
    assert loop.list_arguments() == ["x", "a_state", "a_fc_weight", "a_fc_bias", "a_scale"]
    shapes = {"x": (T, B, 5)}
    assert loop.infer_shape(**shapes)[1] == [(T, B, H), (B, H)]
    graphs = [lower(net, shapes, {"x": "float64"}) for net in (loop, hand)]
    feeds = random_feeds(graphs[0])
    ours, theirs = (evaluate(graph, feeds) for graph in graphs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    check_grads(graphs[0], feeds)


def test_every_step_has_its_nodes_and_its_time():
    """Two loops behind each other can be cut along time: what joins them is taken away."""
    with NameManager():
        with sg.AttrScope(ctx_group="a"):
            x, _ = layer(sym.Variable("x"), "a")
        with sg.AttrScope(ctx_group="b"):
            x, _ = layer(x, "b")
    graph = lower(x, {"x": (T, B, H)})
    steps = [n for n in graph if n.op == "FullyConnected"]
    assert [lookup(n.tags, "time_step") for n in steps] == ["0", "1", "2", "3"] * 2
    assert [lookup(n.tags, "ctx_group") for n in steps] == ["a"] * 4 + ["b"] * 4
    segments = time_segments(graph, 1)
    assert segments.count == T
    both = gradients(graph, ["a_fc_weight"])
    of = time_segments(both.graph, 1).of
    for t in range(T):
        assert of[f"_foreach0_t{t}_a_fc"] == t
        assert of[f"_foreach1_t{t}_b_fc"] == t


def test_nested_lists_and_data_of_one_axis():
    def body(data, states):
        (x, [n]), (total,) = data, states
        return [sym.broadcast_add(x, n), []], [total + sym.broadcast_mul(x, n)]

    x, n, start = map(sym.Variable, ("x", "n", "start"))
    (outs, nothing), (total,) = sym.contrib.foreach(body, [x, [n]], [start])
    assert nothing == []
    a, b = np.arange(6.0).reshape(3, 2), np.array([2.0, 3.0, 5.0])
    sums, end = run(sym.Group([outs, total]), x=a, n=b, start=np.ones(2))
    np.testing.assert_array_equal(sums, a + b[:, None])
    np.testing.assert_array_equal(end, 1 + (a * b[:, None]).sum(0))


def test_loops_within_loops():
    """The products of each row, and of all elements, by two loops."""

    def element(x, product):
        product = product * x * sym.Variable("factor")
        return product, product

    def row(xs, total):
        products, last = sym.contrib.foreach(element, xs, sym.ones((1,)))
        return products, total + last

    x = sym.Variable("x")
    net = sym.Group(sym.contrib.foreach(row, x, sym.zeros((1,), name="zero")))
    assert net.list_arguments() == ["x", "factor"]
    net = sym.load_json(net.tojson())
    data = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "float32")
    products, total = run(net, x=data, factor=np.array([2.0], "float32"))
    np.testing.assert_array_equal(products[..., 0], np.cumprod(2 * data, axis=1))
    assert total == 8 * (6 + 120)


def test_numbers_drawn_inside_differ_and_those_from_outside_do_not():
    noise = sym.random.uniform(shape=(1,), name="outside")

    def body(x, states):
        return [x * 0 + sym.random.uniform(shape=(1,)), x * 0 + noise], states

    (inside, outside), _ = sym.contrib.foreach(body, sym.Variable("x"), [])
    drawn, same = run(sym.Group([inside, outside]), Env(seed=3), x=np.zeros((5, 1), "float32"))
    assert len(np.unique(drawn)) == 5
    assert len(np.unique(same)) == 1


def test_errors_say_what_does_not_fit():
    x, s = sym.Variable("x"), sym.Variable("s")
    with pytest.raises(GraphError, match="which are not nested as"):
        sym.contrib.foreach(lambda d, states: (d, [states]), x, s)
    with pytest.raises(TypeError, match="data are symbols, not int"):
        sym.contrib.foreach(lambda d, states: (d, states), 3, s)
    with pytest.raises(GraphError, match="needs data"):
        sym.contrib.foreach(lambda d, states: (d, states), [], s)
    grown, _ = sym.contrib.foreach(lambda d, s: (d, sym.concat(s, s, dim=1)), x, s)
    with pytest.raises(ShapeError, match="shapes of state0 in two time steps differ"):
        grown.infer_shape(x=(T, B), s=(B, H))
    pair, _ = sym.contrib.foreach(lambda d, s: (d[0] + d[1], s), [x, s], [])
    with pytest.raises(ShapeError, match="lengths of data1 and data differ"):
        pair.infer_shape(x=(T, B), s=(T + 1, B))
    with pytest.raises(AttributeError, match=r"sym.contrib has no .for_each.; did you"):
        sym.contrib.for_each()
