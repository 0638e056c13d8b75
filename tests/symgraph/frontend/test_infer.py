"""Inference of shapes and dtypes on symbols, in both directions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import symgraph as sg
from symgraph.core.errors import DTypeError, GraphError, ShapeError
from symgraph.frontend import infer, sym
from symgraph.frontend.name import NameManager
from tests.symgraph.running import mlp


@pytest.fixture(autouse=True)
def fresh_names():
    with NameManager():
        yield


def named(symbol: sg.Symbol, shapes: list) -> dict:
    return dict(zip(symbol.list_arguments(), shapes, strict=True))


# -- shapes, forward ---------------------------------------------------------------------------


def test_weights_follow_from_the_data():
    net = mlp()
    arguments, outputs, states = net.infer_shape(data=(100, 100))
    assert named(net, arguments) == {
        "data": (100, 100),
        "fc1_weight": (1000, 100),
        "fc1_bias": (1000,),
        "fc2_weight": (10, 1000),
        "fc2_bias": (10,),
    }
    assert (outputs, states) == ([(100, 10)], [])
    assert net.infer_shape((100, 100)) == net.infer_shape(data=(100, 100))


def test_a_wrong_weight_is_named_with_both_shapes():
    with pytest.raises(
        ShapeError,
        match=r"FullyConnected 'fc1': weight of shape \(1, 100\) does "
        r"not fit \(1000, 100\)",
    ):
        mlp().infer_shape(data=(100, 100), fc1_weight=(1, 100))


def test_states_have_shapes_too():
    net = sym.BatchNorm(sym.Variable("data"), name="bn")
    assert net.infer_shape(data=(5, 3)) == ([(5, 3), (3,), (3,)], [(5, 3)], [(3,), (3,)])


def test_a_variables_own_shape_is_a_hint_and_given_ones_win():
    net = sym.FullyConnected(sym.Variable("data", shape=(7, 3)), num_hidden=2, name="fc")
    assert net.infer_shape()[1] == [(7, 2)]
    assert net.infer_shape(data=(4, 5))[0] == [(4, 5), (2, 5), (2,)]


def test_internals_give_every_shape():
    internals = mlp().get_internals()
    shapes = dict(zip(internals.list_outputs(), internals.infer_shape(data=(2, 3))[1], strict=True))
    assert shapes["relu1_output"] == (2, 1000)
    assert shapes["fc1_weight"] == (1000, 3)


# -- shapes, unknown parts ---------------------------------------------------------------------


def recurrent() -> sg.Symbol:
    x2h = sym.FullyConnected(sym.Variable("data"), num_hidden=128, name="x2h")
    h2h = sym.FullyConnected(sym.Variable("prevstate"), num_hidden=128, name="h2h")
    return sym.elemwise_add(x2h, h2h, name="out")


def test_incomplete_shapes_raise_and_name_the_arguments():
    net = recurrent()
    with pytest.raises(ShapeError, match=r"cannot infer the shapes of prevstate, h2h_weight\("):
        net.infer_shape(data=(10, 64))
    shapes, outputs, _ = net.infer_shape_partial(data=(10, 64))
    partial = named(net, shapes)
    assert partial["data"] == (10, 64)
    assert partial["x2h_weight"] == (128, 64)
    assert partial["x2h_bias"] == partial["h2h_bias"] == (128,)
    assert partial["prevstate"] == ()
    assert outputs == [(10, 128)]
    full = named(net, net.infer_shape(data=(10, 64), prevstate=(10, 128))[0])
    assert full["h2h_weight"] == (128, 128)


def test_many_unknown_arguments_are_cut_short():
    group = sym.Group([sym.Variable(f"v{i}") for i in range(13)])
    with pytest.raises(ShapeError, match="v9 and 3 more; give them"):
        group.infer_shape()


def test_an_unknown_value_between_known_arguments_is_named():
    net = sym.elemwise_add(sym.zeros(shape=(0, 3), name="z") * 2.0, sym.zeros(shape=(0, 3)))
    with pytest.raises(ShapeError, match="cannot infer the shape of 'z_output'"):
        net.infer_shape()


def test_zero_dimensions_are_inferred_backwards():
    state = sym.Variable("state", shape=(0, 128))
    x2h = sym.FullyConnected(sym.Variable("data"), num_hidden=128, name="x2h")
    h2h = sym.FullyConnected(state, num_hidden=128, name="h2h")
    net = x2h + h2h
    shapes = named(net, net.infer_shape(data=(10, 64))[0])
    assert shapes["state"] == (10, 128)
    assert shapes["h2h_weight"] == (128, 128)


@pytest.mark.parametrize(
    ("make", "given", "expected"),
    [
        (lambda a, b: a + b, {"b": (2, 3)}, (2, 3)),
        (lambda a, b: sym.transpose(a) + b, {"b": (2, 3)}, (3, 2)),
        (lambda a, b: sym.expand_dims(a, axis=1) + b, {"b": (2, 1, 3)}, (2, 3)),
        (lambda a, b: sym.Reshape(a, shape=(-1, 3)) + b, {"b": (4, 3), "a": (2, 0, 3)}, (2, 2, 3)),
        (lambda a, b: sym.Concat(a, b, dim=1), {"b": (4, 3), "a": (0, 2)}, (4, 2)),
        (lambda a, b: sym.SliceChannel(a, num_outputs=2)[0] + b, {"b": (4, 3)}, (4, 6)),
        (lambda a, b: sym.tanh(sym.Dropout(sym.BlockGrad(a))) * b, {"b": (4, 3)}, (4, 3)),
    ],
)
def test_inputs_follow_from_outputs(make, given, expected):
    net = make(sym.Variable("a"), sym.Variable("b"))
    assert named(net, net.infer_shape(**given)[0])["a"] == expected


def test_contradictions_name_the_node_and_the_shapes():
    net = sym.elemwise_add(sym.Variable("a"), sym.Variable("b"), name="total")
    with pytest.raises(ShapeError, match=r"elemwise_add 'total': .*\(2, 3\) and \(2, 4\)"):
        net.infer_shape(a=(2, 3), b=(2, 4))
    with pytest.raises(ShapeError, match=r"'total': .*\(2, 3\) and \(2, 3, 1\)"):
        net.infer_shape(a=(2, 3), b=(2, 3, 1))


def test_a_contradiction_that_shows_only_later_is_found():
    """a is known from b at first; c contradicts, and both meet in one node behind them."""
    a, b, c = (sym.Variable(n) for n in "abc")
    with pytest.raises(ShapeError, match=r"\(2,\) and \(3,\)|\(3,\) and \(2,\)"):
        sym.Group([a + b, sym.tanh(c) * a]).infer_shape(b=(2,), c=(3,))


# -- wrong arguments ---------------------------------------------------------------------------


def test_unknown_names_raise_with_near_misses():
    with pytest.raises(GraphError, match="'fc1_wieght' not found; did you mean 'fc1_weight'"):
        mlp().infer_shape(fc1_wieght=(1, 2))
    with pytest.raises(GraphError, match="'dta' not found; did you mean 'data'"):
        mlp().infer_type(dta="float32")


def test_an_int_is_no_shape():
    with pytest.raises(TypeError, match=r"shapes \(tuple\), but 'data' is 10 \(int\)"):
        mlp().infer_shape(data=(10))


@pytest.mark.parametrize("shape", [(2.5, 3), (-1, 3), (None, 3), "23", object()])
def test_dimensions_are_whole_numbers(shape):
    """2.5 was taken as 2, and -1 as it is."""
    with pytest.raises(TypeError, match=r"'x' is .*; dimensions are whole numbers, 0 for one that"):
        sym.exp(sym.Variable("x")).infer_shape(x=shape)


def test_positional_arguments_are_those_of_list_arguments():
    with pytest.raises(TypeError, match="infer_shape takes positional or keyword"):
        mlp().infer_shape((1, 2), data=(1, 2))
    with pytest.raises(GraphError, match="6 are given for 5 arguments"):
        mlp().infer_shape(*[(1, 2)] * 6)
    two = sym.Variable("a") + sym.Variable("b")
    assert two.infer_shape(None, (2, 3))[0] == [(2, 3), (2, 3)]


def test_two_variables_of_one_name_are_refused():
    net = sym.Variable("x") + sym.Variable("x")
    with pytest.raises(GraphError, match="two variables are named 'x'"):
        net.infer_shape(x=(1,))


# -- work --------------------------------------------------------------------------------------


def unrolled(steps: int) -> sg.Symbol:
    stack = sg.rnn.SequentialRNNCell()
    for layer in range(2):
        stack.add(sg.rnn.LSTMCell(4, prefix=f"l{layer}_"))
    begin = stack.begin_state(func=sym.Variable)
    return stack.unroll(steps, sym.Variable("data"), begin_state=begin, merge_outputs=True)[0]


def test_inference_of_an_unrolled_network_is_linear(monkeypatch):
    """The states' batch sizes are known only from the other end of each step."""
    calls: Counter = Counter()
    apply_rule = infer._infer_node

    def counting(node, *args):
        calls[node.name] += 1
        return apply_rule(node, *args)

    monkeypatch.setattr(infer, "_infer_node", counting)
    unrolled(190).infer_shape(data=(2, 190, 3))
    assert len(calls) > 1300
    assert max(calls.values()) <= 3


# -- dtypes ------------------------------------------------------------------------------------


def test_dtypes_follow_from_the_data():
    net = sym.SoftmaxOutput(mlp(), name="softmax")
    assert net.infer_type(data="float64")[1] == ["float64"]
    assert named(net, net.infer_type(data=np.float64)[0]) == dict.fromkeys(
        net.list_arguments(), "float64"
    )
    assert {d.name for d in net.infer_type()[0]} == {"float32"}
    by_label = named(net, net.infer_type(data="float16", softmax_label="int32")[0])
    assert (by_label["fc1_weight"], by_label["softmax_label"]) == ("float16", "int32")


def test_a_variables_own_dtype_counts():
    x = sym.Variable("x", dtype=np.float64)
    net = sym.FullyConnected(x, num_hidden=1, name="fc")
    assert net.infer_type() == (["float64"] * 3, ["float64"], [])
    assert net.infer_type(x="float32")[1] == ["float32"]


def test_word_ids_do_not_make_their_embedding_an_integer():
    net = sym.Embedding(sym.Variable("ids", dtype="int32"), input_dim=9, output_dim=2, name="e")
    assert net.infer_type() == (["int32", "float32"], ["float32"], [])
    assert net.infer_type(e_weight="float64")[1] == ["float64"]


def test_casts_separate_dtypes():
    net = sym.Cast(sym.Variable("x"), dtype="float16") + sym.Variable("y")
    assert net.infer_type() == (["float32", "float16"], ["float16"], [])


def test_a_cast_tells_its_output_though_nothing_is_known_of_its_input():
    cast = sg.sym.Cast(sg.sym.Variable("x"), dtype="float16") + sg.sym.Variable("y")
    assert cast.infer_type_partial() == ([None, "float16"], ["float16"], [])
    assert (sg.sym.Variable("x") + 1).infer_type_partial() == ([None], [None], [])


def test_dtypes_go_back_from_outputs_to_inputs():
    """A state that is never computed from the data still meets it."""
    stack = sg.rnn.LSTMCell(4)
    begin = stack.begin_state(func=sym.Variable)
    outputs, _ = stack.unroll(1, sym.Variable("data"), begin_state=begin, merge_outputs=True)
    assert {d.name for d in outputs.infer_type(data="float64")[0]} == {"float64"}


def test_a_mixture_of_dtypes_names_the_node():
    net = sym.elemwise_add(sym.Variable("a"), sym.Variable("b"), name="total")
    with pytest.raises(DTypeError, match="'total': inputs have dtypes float32 and float64; add a"):
        net.infer_type(a="float32", b="float64")
    with pytest.raises(GraphError, match="variable 'a': no dtype 'flaot32'; did you mean"):
        net.infer_type(a="flaot32")
