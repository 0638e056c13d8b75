"""Calls as MXNet's users write them: by position, as methods, with dtypes by number."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from symgraph.core.errors import GraphError
from symgraph.frontend import sym
from symgraph.frontend.name import NameManager
from symgraph.frontend.symbol import FLUENT
from tests.symgraph.running import run

X = np.random.default_rng(2).standard_normal((2, 3, 4))


@pytest.fixture(autouse=True)
def fresh_names():
    with NameManager():
        yield


DATA = sym.Variable("x")


# -- parameters by position --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("symbol", "want"),
    [
        (sym.transpose(DATA, (0, 2, 1)), X.transpose(0, 2, 1)),
        (sym.expand_dims(DATA, 1), X[:, None]),
        (sym.reshape(DATA, (0, -1)), X.reshape(2, 12)),
        (sym.slice_axis(DATA, 2, 1, None), X[:, :, 1:]),
        (sym.sum(DATA, 1, True), X.sum(1, keepdims=True)),
        (sym.norm(DATA, 1, 2), abs(X).sum(2)),
        (sym.clip(DATA, -0.5, 0.5), X.clip(-0.5, 0.5)),
        (sym.swapaxes(DATA, 0, 2), X.swapaxes(0, 2)),
        (sym.zeros((2, 3)) + 1, np.ones((2, 3))),
        (sym.full((2, 3), 7), np.full((2, 3), 7.0)),
        (sym.arange(2, 8, 3), [2, 5]),
        (sym.maximum(0.1, DATA), np.maximum(X, 0.1)),
        (sym.minimum(DATA, sym.tanh(DATA)), np.minimum(X, np.tanh(X))),
        (sym.power(2, DATA), 2**X),
        (sym.pow(DATA, 2), X**2),
    ],
)
def test_parameters_by_position(symbol, want):
    feeds = {"x": X} if symbol.list_arguments() else {}
    np.testing.assert_allclose(run(symbol, **feeds)[0], want, rtol=1e-6)


def test_inputs_left_out_by_position_are_made():
    net = sym.FullyConnected(DATA, None, sym.Variable("b"), 8, name="fc")
    assert net.list_arguments() == ["x", "fc_weight", "b"]
    assert sym.FullyConnected(DATA, None, None, 8, True, name="fc").list_arguments() == [
        "x",
        "fc_weight",
    ]
    with pytest.raises(GraphError, match="'num_hidden' is given by position and by name"):
        sym.FullyConnected(DATA, None, None, 8, num_hidden=8)
    with pytest.raises(
        TypeError, match="inputs are symbols, not int; parameters follow all inputs"
    ):
        sym.SoftmaxOutput(DATA, 3)
    with pytest.raises(TypeError, match="inputs are symbols, not int"):
        sym.tanh(DATA, 1)


def test_names_are_mxnets():
    made = [
        sym.zeros((2,)),
        sym.ones((2,)),
        sym.full((2,), 3),
        sym.arange(3),
        sym.maximum(DATA, 1),
        sym.maximum(1, DATA),
        sym.maximum(DATA, DATA),
        sym.power(DATA, 2),
        sym.power(2, DATA),
        DATA.astype("float16"),
        DATA.reshape((1, -1)),
        DATA.split(3, 1),
        DATA.sum(),
    ]
    assert [s.name for s in made] == [
        "_zeros0",
        "_ones0",
        "_full0",
        "_arange0",
        "_maximumscalar0",
        "_maximumscalar1",
        "_maximum0",
        "_powerscalar0",
        "_rpowerscalar0",
        "cast0",
        "reshape0",
        "split0",
        "sum0",
    ]


# -- methods -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("symbol", "want"),
    [
        (DATA.reshape(shape=(0, -1)), X.reshape(2, 12)),
        (DATA.reshape((-3, 0)), X.reshape(6, 4)),
        (DATA.transpose((2, 0, 1)), X.transpose(2, 0, 1)),
        (DATA.transpose(), X.T),
        (DATA.sum(axis=(0, 2)), X.sum((0, 2))),
        (DATA.mean(), [X.mean()]),
        (DATA.max(axis=1, keepdims=True), X.max(1, keepdims=True)),
        (DATA.softmax(axis=0), np.exp(X) / np.exp(X).sum(0)),
        (DATA.exp().log(), X),
        (DATA.slice_axis(axis=1, begin=0, end=2), X[:, :2]),
        (DATA.slice((0, 1), (2, 3)), X[0:2, 1:3]),
        (DATA.expand_dims(0).squeeze(0), X),
        (DATA.flatten(), X.reshape(2, 12)),
        (DATA.swapaxes(1, 2), X.swapaxes(1, 2)),
        (DATA.take(sym.zeros((1,)), axis=1), X[:, :1]),
        (DATA.split(num_outputs=2, axis=2)[1], X[:, :, 2:]),
    ],
)
def test_methods_are_the_operators(symbol, want):
    np.testing.assert_allclose(run(symbol, x=X)[0], want, rtol=1e-6)


def test_every_method_is_there():
    for name in FLUENT:
        assert getattr(sg.Symbol, name).__doc__ == f"Call `sym.{name}` on this symbol."
        assert getattr(sym, name).__name__ == name
    assert DATA.astype("float64").infer_type(x="float32")[1] == ["float64"]
    named = DATA.sum(axis=1, name="total", attr={"__a__": "b"})
    assert (named.name, named.attr("__a__"), named.attr("axis")) == ("total", "b", "(1,)")


def test_eval_runs_the_symbol():
    net = sym.Group([DATA * 2, DATA.sum()])
    doubled, total = net.eval(x=X)
    np.testing.assert_array_equal(doubled, X * 2)
    np.testing.assert_allclose(total, [X.sum()])
    with pytest.raises(GraphError, match="key 'x' is missing"):
        net.eval()


# -- dtypes ------------------------------------------------------------------------------------


def test_dtypes_are_known_where_something_says_them():
    net = sym.FullyConnected(DATA, num_hidden=3, name="fc")
    both = net + sym.Variable("y")
    assert both.infer_type_partial() == ([None] * 4, [None], [])
    assert both.infer_type_partial(y="float64") == (["float64"] * 4, ["float64"], [])
    cast = sym.Cast(sym.Variable("a"), dtype="float16") + sym.zeros((2,), dtype="float16")
    assert cast.infer_type_partial() == ([None], ["float16"], [])
    assert cast.infer_type() == (["float32"], ["float16"], [])


@pytest.mark.parametrize("dtype", ["float64", np.float64, np.dtype("float64"), 1, "1"])
def test_a_variable_keeps_mxnets_number_of_its_dtype(dtype):
    data = sym.Variable("data", dtype=dtype)
    assert data.attr("__dtype__") == "1"
    assert data.infer_type()[0] == ["float64"]
    assert sym.load_json(data.tojson()).infer_type()[0] == ["float64"]


def test_variables_are_dense():
    assert sym.Variable("data", stype="default").list_attr() == {}
    with pytest.raises(ValueError, match="stype='csr', but only 'default' is supported"):
        sym.Variable("data", stype="csr")


def test_a_dtype_that_is_none():
    with pytest.raises(GraphError, match="variable 'data': no dtype '9'; known: 'bool', 'float16'"):
        sym.Variable("data", dtype=9)


def test_rates_and_groups_are_keywords_of_operators():
    """MXNet turns them into attributes, which the operator's parameters take over."""
    net = sym.FullyConnected(DATA, num_hidden=2, lr_mult=0.5, wd_mult=2, ctx_group="a", name="fc")
    own = {"__lr_mult__": "0.5", "__wd_mult__": "2", "__ctx_group__": "a"}
    found = net.attr_dict()
    for name in ("fc", "fc_weight", "fc_bias"):
        assert {k: found[name][k] for k in own} == own
        assert found[name]["lr_mult"] == "0.5"
    assert "x" not in found
    assert sym.load_json(net.tojson()).attr_dict() == found
    assert DATA.relu(lr_mult=None).attr("lr_mult") is None
    with pytest.raises(GraphError, match="no argument 'weight_lr_mult'"):
        sym.FullyConnected(DATA, num_hidden=2, weight_lr_mult=0.5)


def test_operators_are_also_where_mxnet_keeps_those_that_begin_with_a_line():
    net = sg.symbol._internal._plus_scalar(DATA, scalar=2)
    np.testing.assert_array_equal(run(net, x=X)[0], X + 2)
