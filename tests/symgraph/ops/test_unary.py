"""Functions of one value, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from symgraph.core.errors import DTypeError, GraphError, MicroBatchError
from symgraph.core.params import Site
from symgraph.core.reference import evaluate
from symgraph.core.registry import ALIASES, OPS, find
from symgraph.ops import unary
from symgraph.ops.unary import UNARY
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

FUNCTIONS = {
    "negative": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "reciprocal": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "cbrt": np.cbrt,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "erf": np.vectorize(math.erf),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "arcsin": np.arcsin,
    "arccos": np.arccos,
    "arctan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "arcsinh": np.arcsinh,
    "arccosh": np.arccosh,
    "arctanh": np.arctanh,
    "degrees": np.degrees,
    "radians": np.radians,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "identity": lambda x: x,
    "BlockGrad": lambda x: x,
}
NUMBERS = np.array([-2.5, -1.7, -1.5, -0.5, -0.2, 0.0, 0.5, 0.7, 1.5, 2.5])
STEPS = {  # of NUMBERS
    "floor": np.floor(NUMBERS),
    "ceil": np.ceil(NUMBERS),
    "trunc": np.trunc(NUMBERS),
    "fix": np.trunc(NUMBERS),
    "round": [-3, -2, -2, -1, 0, 0, 1, 1, 2, 3],
    "rint": [-3, -2, -2, -1, 0, 0, 0, 1, 1, 2],
    "logical_not": NUMBERS == 0,
}
DOMAINS = {  # of those that are not checked on both sides of 0
    **dict.fromkeys(("log", "log2", "log10", "log1p", "sqrt", "rsqrt"), (0.3, 2.0)),
    **dict.fromkeys(("arcsin", "arccos", "arctanh"), (0.1, 0.8)),
    "arccosh": (1.1, 1.5),
    "tan": (0.2, 1.4),
}
NO_GRADIENT = {"sign", "BlockGrad"}
ACTIVATIONS = {
    **{name: FUNCTIONS[name] for name in ("relu", "sigmoid", "tanh", "softsign")},
    "softrelu": lambda x: np.log1p(np.exp(x)),
}
INNER = {"_tanh_grad", "_sigmoid_grad", "_relu_grad"}
LINEAR = {"negative", "identity", "BlockGrad", "degrees", "radians"}


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def data_for(name, rng, *shape):
    """Away from kinks and poles, and inside the function's domain."""
    x = rng.uniform(*DOMAINS.get(name, (0.3, 2.0)), shape)
    return x if name in DOMAINS else x * rng.choice([-1.0, 1.0], shape)


def test_every_operator_of_the_tables_is_checked_here():
    assert {*UNARY, "identity", "BlockGrad"} - {"logical_not"} == set(FUNCTIONS)
    assert {*unary.STEPS, "logical_not"} == set(STEPS)
    assert set(unary.GRADIENTS) == INNER


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name, dtype, rng):
    x = data_for(name, rng, 3, 4).astype(dtype)
    got = run_op(name, x)
    assert got.dtype == dtype
    rtol = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(got, FUNCTIONS[name](x.astype("float64")), rtol=rtol)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", STEPS)
def test_steps(name, dtype):
    got = run_op(name, NUMBERS.astype(dtype))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, STEPS[name])
    assert OPS[name].grad is None
    whole = np.array([-3, 0, 2], "int32")
    want = whole == 0 if name == "logical_not" else whole
    np.testing.assert_array_equal(run_op(name, whole), want)


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - NO_GRADIENT))
def test_gradients(name, rng):
    check_op(name, data_for(name, rng, 3, 2))


@pytest.mark.parametrize("name", sorted(NO_GRADIENT))
def test_functions_through_which_no_gradient_flows(name):
    both = gradients(op_graph(name, [np.ones(2)]), ["x0"])
    feeds = {"x0": np.array([1.0, -2.0]), **{h: np.ones(2) for h in both.heads.values()}}
    np.testing.assert_array_equal(evaluate(both.graph, feeds)[1], [0.0, 0.0])


@pytest.mark.parametrize("name", sorted(INNER))
def test_inner_gradients_are_differentiable(name, rng):
    check_op(name, rng.standard_normal((3, 2)), rng.uniform(0.2, 0.8, (3, 2)))


@pytest.mark.parametrize("name", ["relu", "abs"])
def test_gradient_at_the_kink_is_zero(name):
    both = gradients(op_graph(name, [np.zeros(1)]), ["x0"])
    assert evaluate(both.graph, {"x0": np.zeros(1), both.heads[0]: np.ones(1)})[1] == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sigmoid_is_exact_in_both_tails(dtype):
    """exp(-x) overflows at x = -1000, and 1 - sigmoid(-x) loses everything at x = -50."""
    x = np.array([-1000.0, -50.0, 0.0, 50.0, 1000.0], dtype)
    got = run_op("sigmoid", x)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, [0.0, 1.928749847963918e-22, 0.5, 1.0, 1.0], rtol=1e-6)


def test_softrelu_does_not_overflow():
    got = run_op("Activation", np.array([-1000.0, 0.0, 1000.0]), act_type="softrelu")
    np.testing.assert_allclose(got, [0.0, np.log(2.0), 1000.0])


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation(kind, rng):
    x = data_for("", rng, 3, 4)
    np.testing.assert_allclose(run_op("Activation", x, act_type=kind), ACTIVATIONS[kind](x))
    assert run_op("Activation", x.astype("float32"), act_type=kind).dtype == "float32"
    check_op("Activation", x, act_type=kind)
    check_layout("Activation", [rng.random((5, 2))], [Split(0)], 5, (3, 2), act_type=kind)


def test_activation_names_the_known_types():
    with pytest.raises(GraphError, match=r"act_type='gelu' is not a valid one of 'relu', 'sig"):
        run_op("Activation", np.ones(2), act_type="gelu")


def test_clip(rng):
    x = np.array([-3.0, -1.0, 0.5, 2.0, 4.0])
    np.testing.assert_array_equal(run_op("clip", x, a_min=-1, a_max=2), [-1, -1, 0.5, 2, 2])
    check_op("clip", rng.uniform(-3, 3, (4, 5)), a_min=-1.0, a_max=2.0)
    both = gradients(op_graph("clip", [x], a_min=-1, a_max=2), ["x0"])
    _, grad = evaluate(both.graph, {"x0": x, both.heads[0]: np.ones(5)})
    np.testing.assert_array_equal(grad, [0, 1, 1, 1, 0])  # borders included, as MXNet


def test_clip_keeps_integers():
    got = run_op("clip", np.array([1, 5, 9], "int32"), a_min=2, a_max=6)
    assert got.dtype == "int32"
    np.testing.assert_array_equal(got, [2, 5, 6])
    with pytest.raises(DTypeError, match=r"clip 'op': a_max=6.5 is not a valid int32"):
        run_op("clip", np.array([1], "int32"), a_min=2, a_max=6.5)
    with pytest.raises(GraphError, match="parameter 'a_max'"):
        run_op("clip", np.ones(2), a_min=0)


def test_hard_sigmoid():
    x = np.array([-4.0, -2.0, 0.3, 1.7, 2.9])
    np.testing.assert_allclose(run_op("hard_sigmoid", x), [0, 0.1, 0.56, 0.84, 1])
    np.testing.assert_allclose(run_op("hard_sigmoid", x, alpha=0.5, beta=0), [0, 0, 0.15, 0.85, 1])
    check_op("hard_sigmoid", x)
    assert run_op("hard_sigmoid", x.astype("float16")).dtype == "float16"


@pytest.mark.parametrize("scalar", [1.0, 2.0])
def test_smooth_l1(scalar):
    x = np.array([-3.0, -0.6, -0.1, 0.2, 0.9, 4.0])
    inside = abs(x) < 1 / scalar**2
    want = np.where(inside, (scalar * x) ** 2 / 2, abs(x) - 0.5 / scalar**2)
    np.testing.assert_allclose(run_op("smooth_l1", x, scalar=scalar), want)
    check_op("smooth_l1", x, scalar=scalar)


def test_cast():
    x = np.array([[1.75, -2.5]])
    for dtype in ("float16", "float32", "int32", "bool"):
        got = run_op("Cast", x, dtype=dtype)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, x.astype(dtype))
    check_op("Cast", x, dtype="float64")
    with pytest.raises(GraphError, match="dtype='complex64' is not a valid dtype, one of"):
        run_op("Cast", x, dtype="complex64")


def test_cast_takes_the_gradient_back():
    x = np.array([0.1, 0.2])
    both = gradients(op_graph("Cast", [x], dtype="float32"), ["x0"])
    head = np.array([0.1, 3.0], "float32")
    _, grad = evaluate(both.graph, {"x0": x, both.heads[0]: head})
    assert grad.dtype == "float64"
    np.testing.assert_array_equal(grad, head.astype("float64"))


def test_no_gradient_flows_through_integers():
    """A gradient that is cast to an integer would be cut off to whole numbers."""
    both = gradients(op_graph("Cast", [np.ones(2)], dtype="int32"), ["x0"])
    assert not both.heads
    np.testing.assert_array_equal(evaluate(both.graph, {"x0": np.ones(2)})[1], [0.0, 0.0])


def test_the_input_of_a_cast_may_have_any_dtype():
    site = Site("Cast", "op", {"dtype": "float16"})
    assert find("Cast").dtype(site, [None]) == ([None], ["float16"])
    assert find("Cast").dtype(site, ["int32"]) == (["int32"], ["float16"])


@pytest.mark.parametrize("name", ["exp", "sigmoid", "sqrt", "Activation"])
def test_functions_that_leave_the_integers_refuse_them(name):
    attrs = {"act_type": "tanh"} if name == "Activation" else {}
    with pytest.raises(DTypeError, match=f"{name} 'op': works on floats, not int32; add a Cast"):
        run_op(name, np.ones(2, "int32"), **attrs)


@pytest.mark.parametrize("name", ["negative", "abs", "sign", "square", "relu"])
def test_functions_of_integers_keep_them(name):
    x = np.array([-2, 0, 3], "int32")
    got = run_op(name, x)
    assert got.dtype == "int32"
    np.testing.assert_array_equal(got, FUNCTIONS[name](x))
    with pytest.raises(DTypeError, match="not bool"):
        run_op(name, np.ones(2, bool))


@pytest.mark.parametrize("name", [*FUNCTIONS, "clip", "Cast", "Activation"])
def test_shapes_are_inferred_both_ways(name):
    site = Site(name, "op", {"a_min": 0.0, "a_max": 1.0, "dtype": "int32", "act_type": "relu"})
    assert find(name).shape(site, [None], [(2, 3)]) == ([(2, 3)], [(2, 3)])
    assert find(name).shape(site, [(2, 0)], [(0, 3)]) == ([(2, 3)], [(2, 3)])


@pytest.mark.parametrize(
    ("alias", "name"),
    [("_copy", "identity"), ("stop_gradient", "BlockGrad"), ("cast", "Cast")],
)
def test_mxnet_names(alias, name):
    assert ALIASES[alias] == name


# -- layouts -----------------------------------------------------------------------------------


EVERY = [*FUNCTIONS, *STEPS, "hard_sigmoid", "smooth_l1"]


@pytest.mark.parametrize("name", EVERY)
def test_samples_stay_where_they_are(name, rng):
    merged = Split(0, outer=3, inner=2)
    x = data_for(name, rng, 3 * 5 * 2, 4)
    assert check_layout(name, [x], [merged], 5, (2, 2, 1)) == [merged]
    assert check_layout(name, [x], [WHOLE], 5, (2, 3)) == [WHOLE]


@pytest.mark.parametrize("name", EVERY)
def test_only_linear_functions_take_sums_over_the_batch(name, rng):
    x = [data_for(name, rng, 3, 4)]
    if name in LINEAR:
        assert check_layout(name, x, [PARTIAL], 5, (3, 2)) == [PARTIAL]
    else:
        with pytest.raises(MicroBatchError, match=f"{name} 'op' applies a nonlinear function"):
            check_layout(name, x, [PARTIAL], 5, (3, 2))


@pytest.mark.parametrize("name", sorted(INNER))
def test_layouts_of_inner_gradients(name, rng):
    grad, out = rng.standard_normal((2, 4, 3))
    assert check_layout(name, [grad, out], [Split(0)] * 2, 4, (3, 1)) == [Split(0)]
    assert check_layout(name, [grad, out], [PARTIAL, WHOLE], 4, (3, 1)) == [PARTIAL]


def test_layouts_of_cast_and_clip(rng):
    x = [rng.standard_normal((4, 3))]
    assert check_layout("Cast", x, [PARTIAL], 4, (3, 1), dtype="float64") == [PARTIAL]
    assert check_layout("Cast", x, [Split(0)], 4, (3, 1), dtype="int32") == [Split(0)]
    assert check_layout("clip", x, [Split(1)], 3, (2, 1), a_min=0, a_max=1) == [Split(1)]
    for name, attrs in (("Cast", {"dtype": "int32"}), ("clip", {"a_min": 0, "a_max": 1})):
        with pytest.raises(MicroBatchError, match="nonlinear"):
            check_layout(name, x, [PARTIAL], 4, (3, 1), **attrs)


# -- special functions -------------------------------------------------------------------------

SPECIAL = {"gamma": special.gamma, "gammaln": special.gammaln, "erfinv": special.erfinv}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name, dtype, rng):
    x = rng.uniform(0.1, 0.9, (3, 4)).astype(dtype)
    got = run_op(name, x)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, SPECIAL[name](x.astype("float64")), rtol=2e-3)
    check_op(name, rng.uniform(0.1, 0.9, (3, 4)), second=name == "erfinv")
    assert check_layout(name, [x], [Split(0)], 3, (1, 2)) == [Split(0)]
    if name != "erfinv":
        check_op(name, -x.astype("float64"), second=False)
