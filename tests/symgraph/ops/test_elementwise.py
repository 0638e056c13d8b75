"""Arithmetic and comparison, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.build import Builder
from symgraph.core.errors import DTypeError, GraphError, MicroBatchError, ShapeError
from symgraph.core.graph import Graph, Node
from symgraph.core.params import Site
from symgraph.core.reference import evaluate
from symgraph.core.registry import ALIASES, OPS, VARIABLE, find, infer
from symgraph.core.types import TensorType, Value
from symgraph.ops import elementwise
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

ARITHMETIC = {
    "elemwise_add": np.add,
    "elemwise_sub": np.subtract,
    "elemwise_mul": np.multiply,
    "elemwise_div": np.divide,
    "_power": np.power,
    "_maximum": np.maximum,
    "_minimum": np.minimum,
    "_mod": np.mod,
    "_hypot": np.hypot,
}
COMPARISONS = {
    "_equal": np.equal,
    "_not_equal": np.not_equal,
    "_greater": np.greater,
    "_greater_equal": np.greater_equal,
    "_lesser": np.less,
    "_lesser_equal": np.less_equal,
}
LOGIC = {
    "_logical_and": np.logical_and,
    "_logical_or": np.logical_or,
    "_logical_xor": np.logical_xor,
}
YES_OR_NO = {**COMPARISONS, **LOGIC}
SCALAR = {
    "_plus_scalar": lambda x, s: x + s,
    "_minus_scalar": lambda x, s: x - s,
    "_rminus_scalar": lambda x, s: s - x,
    "_mul_scalar": lambda x, s: x * s,
    "_div_scalar": lambda x, s: x / s,
    "_rdiv_scalar": lambda x, s: s / x,
    "_power_scalar": lambda x, s: x**s,
    "_rpower_scalar": lambda x, s: s**x,
    "_maximum_scalar": np.maximum,
    "_minimum_scalar": np.minimum,
    "_mod_scalar": np.mod,
    "_rmod_scalar": lambda x, s: np.mod(s, x),
    "_hypot_scalar": np.hypot,
}
SCALAR_COMPARISONS = {f"{name}_scalar": f for name, f in YES_OR_NO.items()}


def broadcast_name(name):
    return "broadcast_" + name.removeprefix("elemwise_").removeprefix("_")


BROADCAST = {broadcast_name(name) for name in (*ARITHMETIC, *YES_OR_NO)}
EVERY = {"add_n", *ARITHMETIC, *YES_OR_NO, *BROADCAST, *SCALAR, *SCALAR_COMPARISONS}


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def positive(rng, *shape):
    return rng.uniform(0.5, 2.0, shape)


def test_every_operator_of_the_file_is_checked_here():
    scalars = {f"_{key}_scalar" for key in elementwise.SCALAR}
    assert {*elementwise.SAME.values(), *elementwise.BROADCAST.values(), *scalars, "add_n"} == EVERY


@pytest.mark.parametrize("name", [*YES_OR_NO, *SCALAR_COMPARISONS])
def test_comparisons_have_no_gradient(name):
    assert OPS[name].grad is None
    if name in YES_OR_NO:
        assert OPS[broadcast_name(name)].grad is None


# -- values and gradients ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_values(name, dtype, rng):
    x, y = positive(rng, 3, 4).astype(dtype), positive(rng, 3, 4).astype(dtype)
    got = run_op(name, x, y)
    np.testing.assert_array_equal(got, ARITHMETIC[name](x, y))
    assert got.dtype == dtype
    row = y[:1]
    np.testing.assert_array_equal(run_op(broadcast_name(name), x, row), ARITHMETIC[name](x, row))


@pytest.mark.parametrize("name", ["elemwise_add", "elemwise_sub", "elemwise_mul", "_maximum"])
def test_arithmetic_on_integers_keeps_the_dtype(name):
    x, y = np.array([5, 7], "int32"), np.array([3, 9], "int32")
    got = run_op(name, x, y)
    assert got.dtype == "int32"
    np.testing.assert_array_equal(got, ARITHMETIC[name](x, y))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_remainders_of_whole_numbers_have_the_divisors_sign(dtype):
    x, y = np.array([[5, -5, 5, -5], [3, 3, -3, -3]], dtype)
    for got, want in (
        (run_op("_mod", x, y), [2, 1, -1, -2]),
        (run_op("broadcast_mod", x, y[:1]), [2, 1, 2, 1]),
        (run_op("_mod_scalar", x, scalar=-3), [-1, -2, -1, -2]),
        (run_op("_rmod_scalar", y, scalar=7), [1, 1, -2, -2]),
    ):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("name", YES_OR_NO)
def test_comparisons_give_the_inputs_dtype(name, dtype):
    x = np.array([[0, 1, 1], [0, 0, 1]], dtype)
    y = np.array([[0, 0, 1], [1, 0, 1]], dtype)
    for op, right in ((name, y), (broadcast_name(name), y[:1])):
        got = run_op(op, x, right)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, YES_OR_NO[name](x, right).astype(dtype))


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_gradients(name, rng):
    check_op(name, positive(rng, 3, 2), positive(rng, 3, 2))


@pytest.mark.parametrize(
    ("left", "right"), [((3, 2), (3, 2)), ((3, 2), (1, 2)), ((3, 1), (1, 2)), ((2,), (4, 3, 2))]
)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_broadcast_gradients(name, left, right, rng):
    check_op(broadcast_name(name), positive(rng, *left), positive(rng, *right))


@pytest.mark.parametrize("name", ["_maximum", "_minimum"])
def test_ties_give_their_gradient_to_the_left(name):
    graph = op_graph(name, [np.ones(1), np.ones(1)])
    both = gradients(graph, ["x0", "x1"])
    feeds = {"x0": np.ones(1), "x1": np.ones(1), both.heads[0]: np.ones(1)}
    _, *grads = evaluate(both.graph, feeds)
    assert [float(g[0]) for g in grads] == [1, 0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", SCALAR)
def test_scalar_values(name, dtype, rng):
    x = positive(rng, 3, 4).astype(dtype)
    got = run_op(name, x, scalar=1.25)
    assert got.dtype == dtype
    want = SCALAR[name](x, x.dtype.type(1.25))
    np.testing.assert_allclose(got, want, rtol=1e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("scalar", [1.0, 0.5])
@pytest.mark.parametrize("name", SCALAR_COMPARISONS)
def test_scalar_comparisons(name, scalar):
    for dtype in ("float32", "int32"):
        x = np.array([0, 1, 2], dtype)
        got = run_op(name, x, scalar=scalar)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, SCALAR_COMPARISONS[name](x, scalar))


@pytest.mark.parametrize("scalar", [1.25, 2.0, 1.0, 0.75])
@pytest.mark.parametrize("name", SCALAR)
def test_scalar_gradients(name, scalar, rng):
    check_op(name, positive(rng, 3, 2), scalar=scalar)


@pytest.mark.parametrize("name", ["_power_scalar", "_rpower_scalar"])
def test_a_power_that_is_constant_has_no_gradient(name):
    """x ** 0 once had the gradient 0 * x ** -1, which is not a number at x = 0."""
    graph = op_graph(name, [np.zeros(2)], scalar=0.0)
    both = gradients(graph, ["x0"])
    feeds = {"x0": np.array([0.0, 3.0]), both.heads.get(0, "unused"): np.ones(2)}
    np.testing.assert_array_equal(evaluate(both.graph, feeds)[1], [0.0, 0.0])


def test_powers_of_negative_bases():
    np.testing.assert_allclose(run_op("_rpower_scalar", np.array([2.0, 3.0]), scalar=-2.0), [4, -8])
    check_op("_power_scalar", np.array([-1.5, 2.0]), scalar=3.0)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_add_n(count, rng):
    arrays = [rng.standard_normal((2, 3)) for _ in range(count)]
    kept = [a.copy() for a in arrays]
    np.testing.assert_allclose(run_op("add_n", *arrays, num_args=count), sum(kept), rtol=1e-15)
    for array, before in zip(arrays, kept, strict=True):
        np.testing.assert_array_equal(array, before)
    check_op("add_n", *arrays, num_args=count)
    assert find("ElementWiseSum").input_names({"num_args": 3}) == ("arg0", "arg1", "arg2")
    assert run_op("add_n", *[np.array(2.0)] * count, num_args=count) == 2.0 * count


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("_plus", "elemwise_add"),
        ("_add", "elemwise_add"),
        ("_Plus", "elemwise_add"),
        ("_minus", "elemwise_sub"),
        ("_Mul", "elemwise_mul"),
        ("_div", "elemwise_div"),
        ("_Power", "_power"),
        ("_Not_Equal", "_not_equal"),
        ("broadcast_plus", "broadcast_add"),
        ("broadcast_minus", "broadcast_sub"),
        ("_RDivScalar", "_rdiv_scalar"),
        ("_PlusScalar", "_plus_scalar"),
        ("_LesserEqualScalar", "_lesser_equal_scalar"),
    ],
)
def test_mxnet_names(alias, name):
    assert ALIASES[alias] == name


# -- shapes and dtypes -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["elemwise_add", "_maximum", "_equal"])
def test_equal_shapes_are_asked_for(name):
    with pytest.raises(ShapeError, match=rf"{name} 'op': shapes .* \(2, 3\) and \(2, 1\)"):
        run_op(name, np.ones((2, 3)), np.ones((2, 1)))


def test_broadcast_shapes_are_checked():
    with pytest.raises(ShapeError, match=r"broadcast_mul 'op': shapes \(2, 3\) and \(2, 2\) do"):
        run_op("broadcast_mul", np.ones((2, 3)), np.ones((2, 2)))


def rule(name, ins, outs, **attrs):
    return find(name).shape(Site(name, "op", attrs), ins, outs)


def test_equal_shapes_are_inferred_both_ways():
    for name in ("elemwise_sub", "_greater"):
        assert rule(name, [(4, 0), None], [(0, 5)]) == ([(4, 5)] * 2, [(4, 5)])
        assert rule(name, [None, None], [None]) == ([None] * 2, [None])
    assert rule("_plus_scalar", [None], [(2, 3)], scalar=1.0) == ([(2, 3)], [(2, 3)])
    assert rule("add_n", [None, (2, 0), None], [(0, 3)], num_args=3)[0] == [(2, 3)] * 3


def test_broadcasts_are_inferred_forward():
    assert rule("broadcast_add", [(4, 0), (1, 5)], [None])[1] == [(4, 5)]
    assert rule("broadcast_add", [(4, 0), (1, 1)], [None])[1] == [(4, 0)]
    assert rule("broadcast_add", [(4, 1), None], [(4, 5)]) == ([(4, 1), None], [(4, 5)])


@pytest.mark.parametrize("name", ["elemwise_add", "broadcast_sub", "add_n"])
def test_dtypes_must_agree(name):
    attrs = {"num_args": 2} if name == "add_n" else {}
    with pytest.raises(DTypeError, match=f"{name} 'op': .*float32 and float64; add a Cast"):
        run_op(name, np.ones(2, "float32"), np.ones(2), **attrs)


def test_arithmetic_refuses_bool():
    with pytest.raises(DTypeError, match="_plus_scalar 'op': works on numbers, not bool"):
        run_op("_plus_scalar", np.ones(2, bool), scalar=1.0)


@pytest.mark.parametrize("name", ["elemwise_div", "broadcast_power"])
def test_functions_that_leave_the_integers_refuse_them(name):
    with pytest.raises(DTypeError, match=f"{name} 'op': works on floats, not int32; add a Cast"):
        run_op(name, np.ones(2, "int32"), np.ones(2, "int32"))


def test_scalars_for_integers_are_whole():
    assert run_op("_mul_scalar", np.array([2], "int32"), scalar=3.0).dtype == "int32"
    with pytest.raises(
        DTypeError, match=r"_mul_scalar 'op': scalar=1.5 is not a valid int32; add a Cast"
    ):
        run_op("_mul_scalar", np.array([2], "int32"), scalar=1.5)


def test_the_scalar_is_asked_for_and_parsed():
    with pytest.raises(GraphError, match="parameter 'scalar'"):
        run_op("_plus_scalar", np.ones(2))
    np.testing.assert_array_equal(run_op("_plus_scalar", np.ones(2), scalar="2"), [3.0, 3.0])


def test_flops_count_the_output():
    types = [TensorType((4, 1)), TensorType((1, 5))]
    op = find("broadcast_add")
    outs = infer(op, Site("broadcast_add", "op", {}), types)
    assert op.flops({}, types, outs) == 20
    three = [TensorType((2, 3))] * 3
    assert find("add_n").flops({"num_args": 3}, three, three[:1]) == 12


# -- layouts -----------------------------------------------------------------------------------

SAMPLES = Split(1)  # of (3, 5, 2)


@pytest.mark.parametrize("name", sorted(EVERY - {"add_n"}))
def test_samples_stay_where_they_are(name, rng):
    arrays = [positive(rng, 3, 5, 2) for _ in find(name).inputs]
    attrs = {"scalar": 1.25} if name.endswith("_scalar") else {}
    layouts = [SAMPLES] * len(arrays)
    assert check_layout(name, arrays, layouts, 5, (2, 2, 1), **attrs) == [SAMPLES]


@pytest.mark.parametrize("shape", [(3, 1, 2), (1, 2), (2,), (1,)])
@pytest.mark.parametrize("name", [broadcast_name(n) for n in (*ARITHMETIC, "_equal")])
def test_samples_meet_a_constant_of_lower_rank(name, shape, rng):
    arrays = [positive(rng, 3, 5, 2), positive(rng, *shape)]
    assert check_layout(name, arrays, [SAMPLES, WHOLE], 5, (3, 2)) == [SAMPLES]
    assert check_layout(name, arrays[::-1], [WHOLE, SAMPLES], 5, (3, 1, 1)) == [SAMPLES]


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        ("broadcast_add", [PARTIAL, PARTIAL]),
        ("broadcast_sub", [PARTIAL, PARTIAL]),
        ("broadcast_mul", [PARTIAL, WHOLE]),
        ("broadcast_mul", [WHOLE, PARTIAL]),
        ("elemwise_mul", [WHOLE, PARTIAL]),
        ("broadcast_div", [PARTIAL, WHOLE]),
        ("add_n", [PARTIAL, PARTIAL]),
        ("_mul_scalar", [PARTIAL]),
        ("_div_scalar", [PARTIAL]),
    ],
)
def test_sums_over_the_batch_stay_sums(name, layouts, rng):
    attrs = {"scalar": 3.0} if name.endswith("scalar") else {}
    attrs = {"num_args": 2} if name == "add_n" else attrs
    arrays = [positive(rng, 3, 2) for _ in layouts]
    assert check_layout(name, arrays, layouts, 4, (2, 1, 1), **attrs) == [PARTIAL]


@pytest.mark.parametrize(
    ("name", "layouts", "why"),
    [
        ("elemwise_add", [PARTIAL, WHOLE], "adds a constant to a sum over the batch"),
        ("elemwise_add", [PARTIAL, Split(0)], "joins values whose batch lies differently"),
        ("elemwise_add", [Split(1), Split(0)], "joins values whose batch lies differently"),
        ("elemwise_mul", [PARTIAL, PARTIAL], "multiplies sums"),
        ("elemwise_mul", [PARTIAL, Split(0)], "multiplies sums"),
        ("elemwise_mul", [Split(0), PARTIAL], "multiplies sums"),
        ("elemwise_div", [WHOLE, PARTIAL], "divides by a sum"),
        ("_power", [PARTIAL, WHOLE], "nonlinear"),
        ("_maximum", [PARTIAL, PARTIAL], "nonlinear"),
        ("_equal", [PARTIAL, WHOLE], "nonlinear"),
        ("_plus_scalar", [PARTIAL], "adds a constant"),
        ("_rminus_scalar", [PARTIAL], "adds a constant"),
        ("_rdiv_scalar", [PARTIAL], "nonlinear"),
    ],
)
def test_mixed_samples_are_refused(name, layouts, why):
    attrs = {"scalar": 1.0} if name.endswith("scalar") else {}
    arrays = [np.ones((2, 2)) for _ in layouts]
    with pytest.raises(MicroBatchError, match=f"{name} 'op' .*{why}.*micro_batches: 1"):
        check_layout(name, arrays, layouts, 2, (1, 1), **attrs)


def test_one_sample_is_not_repeated_along_a_constant():
    """A micro-batch of one sample (1, H) broadcasts against (4, H); the whole batch does not."""
    with pytest.raises(MicroBatchError, match="does not keep the length of the batch"):
        check_layout("broadcast_add", [np.ones((1, 3)), np.ones((4, 3))], [Split(0), WHOLE], 1, [1])


# -- graphs ------------------------------------------------------------------------------------


def small_graph(names, calls, output):
    """Variables of one element and calls (name, op, inputs, attrs)."""
    builder = Builder([Node(n, VARIABLE, types=(TensorType((4, 5), "float64"),)) for n in names])
    for name, op, inputs, attrs in calls:
        builder.call(op, tuple(Value(i) for i in inputs), attrs, name, names[0])
    nodes = [Node(n.name, n.op, n.inputs, n.attrs, n.types) for n in builder.nodes.values()]
    return Graph.of(nodes, [Value(output)])


def test_chain_of_additions_and_a_product():
    """Case G1: (data1 + data2) * 3 + data3 for 1, 2 and 3 is 12; gradients 3, 3, 1."""
    calls = [
        ("sum12", "elemwise_add", ("data1", "data2"), {}),
        ("tripled", "_mul_scalar", ("sum12",), {"scalar": 3}),
        ("out", "elemwise_add", ("tripled", "data3"), {}),
    ]
    graph = small_graph(["data1", "data2", "data3"], calls, "out")
    both = gradients(graph, ["data1", "data2", "data3"])
    feeds = {f"data{i}": np.full((4, 5), float(i)) for i in (1, 2, 3)}
    out, *grads = evaluate(both.graph, {**feeds, both.heads[0]: np.ones((4, 5))})
    np.testing.assert_array_equal(out, np.full((4, 5), 12.0))
    for grad, want in zip(grads, (3, 3, 1), strict=True):
        np.testing.assert_array_equal(grad, np.full((4, 5), float(want)))


@pytest.mark.parametrize("n", range(1, 13))
@pytest.mark.parametrize("chained", [True, False])
def test_many_branches_from_one_value(n, chained):
    """Case G10: x = 1 and y = sum of i * x for i = 1..n has the gradient n (n + 1) / 2."""
    calls = [(f"branch{i}", "_mul_scalar", ("x",), {"scalar": i}) for i in range(1, n + 1)]
    branches = [f"branch{i}" for i in range(1, n + 1)]
    if chained:
        total = branches[0]
        for i, branch in enumerate(branches[1:]):
            calls.append((f"sum{i}", "elemwise_add", (total, branch), {}))
            total = f"sum{i}"
    else:
        calls.append(("sum", "add_n", tuple(branches), {"num_args": n}))
        total = "sum"
    both = gradients(small_graph(["x"], calls, total), ["x"])
    ones = np.ones((4, 5))
    out, grad = evaluate(both.graph, {"x": ones, both.heads[0]: ones})
    np.testing.assert_array_equal(out, ones * n * (n + 1) / 2)
    np.testing.assert_array_equal(grad, ones * n * (n + 1) / 2)


def test_gradient_of_a_comparison_is_zero():
    calls = [
        ("mask", "_greater_scalar", ("x",), {"scalar": 0.5}),
        ("out", "elemwise_mul", ("mask", "x"), {}),
    ]
    both = gradients(small_graph(["x"], calls, "out"), ["x"])
    x = np.linspace(0.0, 1.0, 20).reshape(4, 5)
    _, grad = evaluate(both.graph, {"x": x, both.heads[0]: np.ones((4, 5))})
    np.testing.assert_array_equal(grad, x > 0.5)


@pytest.mark.parametrize("name", ["_hypot", "broadcast_hypot", "_hypot_scalar"])
def test_the_gradient_of_hypot_at_zero_is_zero(name):
    """It was 0 / 0: hypot(relu(x), relu(-x) * 0) at x = -1 sent NaN through the mask behind it.

    PyTorch gives 0; beside (0, 0) every bit is as without the exception.
    """
    x, y = np.array([0.0, 3.0, -1e-300]), np.array([0.0, -4.0, 0.0])
    arrays, attrs = ([x], {"scalar": 0.0}) if name == "_hypot_scalar" else ([x, y], {})
    names = [f"x{i}" for i in range(len(arrays))]
    both = gradients(op_graph(name, arrays, **attrs), names)
    feeds = dict(zip(names, arrays, strict=True))
    _, *found = evaluate(both.graph, {**feeds, both.heads[0]: np.ones(3)})
    wanted = [[0.0, 1.0, -1.0]] if attrs else [[0.0, 0.6, -1.0], [0.0, -0.8, 0.0]]
    np.testing.assert_array_equal(found, wanted)
