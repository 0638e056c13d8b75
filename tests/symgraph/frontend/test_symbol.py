"""Symbols: variables, operator calls, names, arithmetic, structure and composition."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import symgraph as sg
from symgraph.core.errors import GraphError
from symgraph.core.reference import evaluate
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager, Prefix
from tests.symgraph.running import mlp


@pytest.fixture(autouse=True)
def fresh_names():
    with NameManager():
        yield


def value(symbol: sg.Symbol, **feeds: list[float]) -> list[float]:
    arrays = {name: np.array(array, "float32") for name, array in feeds.items()}
    graph = lower(symbol, {name: array.shape for name, array in arrays.items()})
    return evaluate(graph, arrays)[0].tolist()


# -- variables and groups ----------------------------------------------------------------------


def test_variable_is_its_own_argument_and_output():
    x = sym.Variable("x")
    assert (x.name, x.list_arguments(), x.list_outputs()) == ("x", ["x"], ["x"])
    assert sym.var is sym.Variable
    assert repr(x) == "<Symbol x>"


def test_a_node_prints_itself_and_not_the_network_behind_it():
    node = mlp().entries[0].node
    assert repr(node) == "<FullyConnected fc2>"
    assert repr(node.inputs[1].node) == "<variable fc2_weight>"


def test_variable_keeps_its_hints_as_attributes():
    x = sym.Variable(
        "x", shape=(3, 0), lr_mult=0.5, wd_mult=0, dtype=np.float64, init=sg.init.One(), __a__="b"
    )
    assert x.list_attr() == {
        "__shape__": "(3, 0)",
        "__lr_mult__": "0.5",
        "lr_mult": "0.5",
        "__wd_mult__": "0",
        "wd_mult": "0",
        "__dtype__": "1",
        "__init__": '["one", {}]',
        "__a__": "b",
    }


@pytest.mark.parametrize("shape", [np.array([4]), (np.int64(4),), [4], 4])
def test_shapes_of_all_kinds(shape):
    """Those of numpy's integers became a text that was no shape."""
    assert (sym.Variable("x", shape=shape) + 1).infer_shape()[0] == [(4,)]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: sym.Variable(3), TypeError, "a variable's name must be a string, not int"),
        (lambda: sym.Variable("x", mood="so so"), ValueError, "must look like __mood__"),
        (lambda: sym.Variable("x", shape="2x3"), TypeError, "'x' is '2x3' .str.; dimensions are"),
        (lambda: sym.Variable("x", shape=(2, -1)), TypeError, "whole numbers, 0 for one that"),
        (lambda: sym.Variable("x", attr={"a": 1}), GraphError, "must be a string, not int"),
        (lambda: sym.Variable("x", init=3), TypeError, "init is an initializer or its name, not"),
        (lambda: sym.Group([sym.Variable("x"), 3]), TypeError, "Group takes symbols, not int"),
        (lambda: sym.Group([]), TypeError, "Group takes one or more symbols, not an empty list"),
    ],
)
def test_wrong_variables_and_groups(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_group_holds_all_outputs_and_is_a_sequence():
    """Case G17."""
    a, b = sym.Variable("a"), sym.FullyConnected(sym.Variable("b"), num_hidden=2, name="fc")
    group = sym.Group([a, b, a])
    assert len(group) == 3
    assert group.name is None
    assert group.list_outputs() == ["a", "fc_output", "a"]
    assert [s.list_outputs() for s in group] == [["a"], ["fc_output"], ["a"]]
    assert group[1].name == "fc"
    assert group[-1].name == "a"
    assert group[:2].list_outputs() == ["a", "fc_output"]
    assert group["fc_output"].name == "fc"


def test_wrong_indices():
    group = sym.Group([sym.Variable("alpha"), sym.Variable("beta"), sym.Variable("alpha")])
    with pytest.raises(ValueError, match="multiple outputs with name 'alpha'"):
        group["alpha"]
    with pytest.raises(
        ValueError, match="cannot find output that matches name 'btea'; did you mean 'beta'"
    ):
        group["btea"]
    with pytest.raises(IndexError, match="output 3 of a symbol with 3 outputs"):
        group[3]
    for which in (None, 1.5, (0, 1)):
        with pytest.raises(TypeError, match="outputs are selected by number, slice or name, not"):
            group[which]
    with pytest.raises(IndexError):
        group[-4]


def test_a_symbol_has_no_truth_value():
    x = sym.Variable("x")
    with pytest.raises(NotImplementedError, match="no truth value"):
        bool(x)
    with pytest.raises(NotImplementedError):
        assert x == x  # a comparison makes a symbol
    assert x in {x}  # by identity


# -- operator calls ----------------------------------------------------------------------------


def test_missing_inputs_become_variables_of_the_operators_name():
    net = sym.FullyConnected(num_hidden=3, name="fc")
    assert net.list_arguments() == ["fc_data", "fc_weight", "fc_bias"]
    assert net.list_outputs() == ["fc_output"]
    loss = sym.SoftmaxOutput(net, name="softmax")
    assert loss.list_arguments() == ["fc_data", "fc_weight", "fc_bias", "softmax_label"]
    no_bias = sym.FullyConnected(num_hidden=3, no_bias=True, name="fc")
    assert no_bias.list_arguments() == ["fc_data", "fc_weight"]


def test_inputs_by_position_by_name_and_in_lists():
    a, b = sym.Variable("a"), sym.Variable("b")
    assert sym.dot(rhs=a, lhs=b).list_arguments() == ["b", "a"]
    assert sym.FullyConnected(a, bias=b, num_hidden=1, name="f").list_arguments() == [
        "a",
        "f_weight",
        "b",
    ]
    for joined in (
        sym.Concat(a, b, dim=0),
        sym.Concat(*[a, b], num_args=2, dim=0),
        sym.Concat([a, b], dim=0),
        sym.Concat(sym.Group([a, b]), dim=0),
    ):
        assert joined.list_arguments() == ["a", "b"]


def test_auxiliary_states_are_apart():
    net = sym.BatchNorm(sym.Variable("data"), name="bn")
    assert net.list_arguments() == ["data", "bn_gamma", "bn_beta"]
    assert net.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    assert net.list_inputs() == net.list_arguments() + net.list_auxiliary_states()
    assert net.list_outputs() == ["bn_output"]


def test_several_outputs_are_numbered():
    parts = sym.SliceChannel(sym.Variable("x"), num_outputs=3, name="cut")
    assert parts.list_outputs() == ["cut_output0", "cut_output1", "cut_output2"]
    assert (parts[1] + parts[2]).get_children().list_outputs() == ["cut_output1", "cut_output2"]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda x: sym.FullyConnected(x, num_hiden=3, name="f"),
            GraphError,
            "FullyConnected 'f': no argument 'num_hiden'; did you mean 'num_hidden'",
        ),
        (
            lambda x: sym.FullyConnected(x, name="f"),
            GraphError,
            "FullyConnected 'f': parameter 'num_hidden' \\(int of 1 or more\\) is missing",
        ),
        (
            lambda x: sym.FullyConnected(x, num_hidden="many", name="f"),
            GraphError,
            "num_hidden='many' is not a valid int",
        ),
        (
            lambda x: sym.FullyConnected(x, x, x, x, num_hidden=1, name="f"),
            GraphError,
            "takes 3 inputs, but 4 are given",
        ),
        (
            lambda x: sym.FullyConnected(x, wieght=x, num_hidden=1, name="f"),
            GraphError,
            "no input 'wieght'; did you mean 'weight'",
        ),
        (
            lambda x: sym.FullyConnected(x, data=x, num_hidden=1, name="f"),
            GraphError,
            "input 'data' is given by position and by name",
        ),
        (lambda x: sym.tanh(3.0), TypeError, "inputs are symbols, not float"),
        (
            lambda x: sym.FullyConnected(np.ones(2), num_hidden=1, name="f"),
            TypeError,
            "FullyConnected 'f': inputs are symbols, not ndarray",
        ),
        (
            lambda x: sym.FullyConnected(data=np.ones(2), num_hidden=1, name="f"),
            TypeError,
            "FullyConnected 'f': input 'data' is a symbol, not ndarray",
        ),
        (
            lambda x: sym.FullyConnected(x, num_hidden=-3, name="f"),
            GraphError,
            "num_hidden=-3 is not a valid int of 1 or more",
        ),
        (
            lambda x: sym.Concat(dim=1, name="all"),
            GraphError,
            "Concat 'all' takes one or more inputs, but none is given",
        ),
        (
            lambda x: sym.tanh(sym.Group([x, x]), name="t"),
            GraphError,
            "tanh 't': input 'data' takes one output",
        ),
        (
            lambda x: sym.tanh(x, attr={"mood": "bad"}, name="t"),
            GraphError,
            "tanh 't': attribute 'mood' must look like __mood__",
        ),
        (
            lambda x: sym.FullyConnectd(x),
            AttributeError,
            "no operator 'FullyConnectd'; did you mean 'FullyConnected'",
        ),
    ],
)
def test_wrong_calls_name_operator_and_argument(make, error, words):
    with pytest.raises(error, match=words):
        make(sym.Variable("x"))


# -- names -------------------------------------------------------------------------------------


def test_names_count_per_operator_and_manager():
    x = sym.Variable("x")

    def names() -> list[str | None]:
        layers = [sym.FullyConnected(x, num_hidden=1) for _ in range(2)]
        return [*(s.name for s in layers), (x + x).name, (x + 1.0).name, sym.tanh(x).name]

    expected = ["fullyconnected0", "fullyconnected1", "_plus0", "_plusscalar0", "tanh0"]
    assert names() == expected
    with NameManager():
        assert names() == expected
    assert names()[0] == "fullyconnected2"
    with Prefix("net_"):
        assert sym.FullyConnected(x, num_hidden=1, name="fc").list_arguments() == [
            "x",
            "net_fc_weight",
            "net_fc_bias",
        ]


def test_names_and_scopes_belong_to_a_thread():
    made = []
    x = sym.Variable("x")
    sym.tanh(x)
    with sg.AttrScope(ctx_group="a"):
        thread = threading.Thread(target=lambda: made.append(sym.tanh(x)))
        thread.start()
        thread.join()
    assert made[0].name == "tanh0"
    assert made[0].attr("ctx_group") is None


# -- arithmetic --------------------------------------------------------------------------------


def test_overloads_compute_what_they_say():
    x, y = sym.Variable("x"), sym.Variable("y")
    feeds = {"x": [1.0, 2.0, 4.0], "y": [2.0, 2.0, 2.0]}
    for symbol, expected in [
        (x + y, [3, 4, 6]),
        (x - y, [-1, 0, 2]),
        (x * y, [2, 4, 8]),
        (x / y, [0.5, 1, 2]),
        (x**y, [1, 4, 16]),
        (x == y, [0, 1, 0]),
        (x != y, [1, 0, 1]),
        (x > y, [0, 0, 1]),
        (x >= y, [0, 1, 1]),
        (x < y, [1, 0, 0]),
        (x <= y, [1, 1, 0]),
    ]:
        assert value(symbol, **feeds) == expected
    for symbol, expected in [
        (x + 1, [2, 3, 5]),
        (1 + x, [2, 3, 5]),
        (x - 1, [0, 1, 3]),
        (1 - x, [0, -1, -3]),
        (x * 2, [2, 4, 8]),
        (2 * x, [2, 4, 8]),
        (np.float32(2) * x, [2, 4, 8]),
        (x / 2, [0.5, 1, 2]),
        (2 / x, [2, 1, 0.5]),
        (x**2, [1, 4, 16]),
        (2**x, [2, 4, 16]),
        (-x, [-1, -2, -4]),
        (x == 2, [0, 1, 0]),
        (x != 2, [1, 0, 1]),
        (x > 2, [0, 0, 1]),
        (x >= 2, [0, 1, 1]),
        (x < 2, [1, 0, 0]),
        (x <= 2, [1, 1, 0]),
    ]:
        assert value(symbol, x=feeds["x"]) == expected


def test_arithmetic_with_other_things_is_a_type_error():
    with pytest.raises(TypeError, match="elemwise_add str: not a symbol or number"):
        sym.Variable("x") + "y"
    with pytest.raises(TypeError, match="elemwise_mul ndarray: not a symbol or number"):
        np.ones(3) * sym.Variable("x")


# -- structure ---------------------------------------------------------------------------------


def test_internals_and_children():
    """Case G17."""
    net = mlp()
    internals = net.get_internals()
    assert internals.list_outputs() == [
        "data",
        "fc1_weight",
        "fc1_bias",
        "fc1_output",
        "relu1_output",
        "fc2_weight",
        "fc2_bias",
        "fc2_output",
    ]
    assert internals["fc1_output"].list_arguments() == ["data", "fc1_weight", "fc1_bias"]
    assert net.get_children().list_outputs() == ["relu1_output", "fc2_weight", "fc2_bias"]
    assert net.get_children()["relu1_output"].get_children().list_outputs() == ["fc1_output"]
    assert sym.Variable("x").get_children() is None


def test_arguments_are_in_depth_first_order_without_repeats():
    x, w = sym.Variable("x"), sym.Variable("w")
    first = sym.FullyConnected(x, w, num_hidden=2, name="a")
    second = sym.FullyConnected(first, w, num_hidden=2, name="b")
    assert second.list_arguments() == ["x", "w", "a_bias", "b_bias"]
    assert sym.Group([w, second]).list_arguments() == ["w", "x", "a_bias", "b_bias"]


# -- composition -------------------------------------------------------------------------------


def two_nets() -> tuple[sg.Symbol, sg.Symbol]:
    net1 = sym.FullyConnected(sym.Variable("data"), num_hidden=10, name="fc1")
    net1 = sym.FullyConnected(net1, num_hidden=100, name="fc2")
    net2 = sym.FullyConnected(num_hidden=10, name="fc3")
    net2 = sym.Activation(net2, act_type="relu", name="relu")
    return net1, sym.FullyConnected(net2, num_hidden=20, name="fc4")


COMPOSED = [
    "data",
    "fc1_weight",
    "fc1_bias",
    "fc2_weight",
    "fc2_bias",
    "fc3_weight",
    "fc3_bias",
    "fc4_weight",
    "fc4_bias",
]


def test_compose_puts_a_symbol_in_the_place_of_a_variable():
    """Case G17."""
    net1, net2 = two_nets()
    before = net2.tojson()
    composed = net2(fc3_data=net1, name="composed")
    assert composed.list_arguments() == COMPOSED
    assert composed.list_outputs() == ["composed_output"]
    assert net2(fc3_data=net1).list_outputs() == ["fc4_output"]
    assert net2(net1).list_arguments() == COMPOSED
    assert net2.tojson() == before
    group = sym.Group([composed, net1])
    assert len(group) == 2
    assert group.list_outputs() == ["composed_output", "fc2_output"]
    assert composed.infer_shape(data=(5, 7))[1] == [(5, 20)]


def test_compose_swaps_variables_that_stay():
    x, y = sym.Variable("x"), sym.Variable("y")
    swapped = (x - 2 * y)(x=y, y=x)
    assert swapped.list_arguments() == ["y", "x"]
    assert value(swapped, x=[1.0], y=[10.0]) == [8.0]
    assert sym.Variable("x")(x=y).list_arguments() == ["y"]


@pytest.mark.parametrize(
    ("compose", "error", "words"),
    [
        (
            lambda net, x: net(fc3_date=x),
            GraphError,
            "keyword argument name 'fc3_date' not found; did you mean 'fc3_data'",
        ),
        (lambda net, x: net(fc3_data=3), TypeError, "expects symbols as arguments, not int"),
        (lambda net, x: net(3), TypeError, "expects symbols as arguments, not int"),
        (lambda net, x: net(x, fc3_weight=x), TypeError, "positional or keyword"),
        (lambda net, x: net(*[x] * 6), GraphError, "6 symbols are given, but there are 5 inputs"),
        (lambda net, x: net(fc3_data=sym.Group([x, x])), GraphError, "takes one output"),
    ],
)
def test_wrong_compositions(compose, error, words):
    with pytest.raises(error, match=words):
        compose(two_nets()[1], sym.Variable("x"))
