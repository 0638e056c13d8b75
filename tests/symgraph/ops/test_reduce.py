"""Reductions over axes."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import DTypeError, GraphError, MicroBatchError, ShapeError
from symgraph.core.params import Site
from symgraph.core.reference import evaluate
from symgraph.core.registry import ALIASES, OPS, find, infer
from symgraph.core.types import TensorType
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout


def numpy_norm(x, axis, keepdims):
    return np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims))


REDUCTIONS = {
    "sum": np.sum,
    "prod": np.prod,
    "nansum": np.nansum,
    "nanprod": np.nanprod,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "norm": numpy_norm,
}
AXES = [None, (), 0, -1, 1, (0, 2), (-1, 0), (0, 1, 2)]


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def reduced(f, x, axis, keepdims, exclude=False):
    """MXNet's rules in numpy: () means all axes, and a full reduction gives (1,)."""
    axes = tuple(range(x.ndim)) if axis in (None, ()) else tuple(np.atleast_1d(axis) % x.ndim)
    if exclude:
        axes = tuple(a for a in range(x.ndim) if a not in axes)
    out = f(x, axis=axes, keepdims=keepdims)
    return out if np.shape(out) else np.reshape(out, (1,))


def test_every_operator_of_the_file_is_checked_here():
    here = {op.name for op in OPS.values() if op.compute.__module__.endswith(".reduce")}
    assert here == {*REDUCTIONS, "argmax", "argmin", "argmax_channel", "cumsum"}
    assert OPS["argmax"].grad is OPS["argmin"].grad is None


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_values_and_gradients(name, axis, keepdims, rng):
    x = rng.standard_normal((3, 4, 2))
    got = run_op(name, x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(got, reduced(REDUCTIONS[name], x, axis, keepdims), rtol=1e-12)
    assert got.shape == reduced(np.sum, x, axis, keepdims).shape
    check_op(name, x, axis=axis, keepdims=keepdims)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [1, (0, -1), (0, 1, 2)])
@pytest.mark.parametrize("name", sorted(set(REDUCTIONS) - {"norm"}))
def test_exclude_reduces_the_other_axes(name, axis, keepdims, rng):
    x = rng.standard_normal((3, 4, 2))
    attrs = {"axis": axis, "keepdims": keepdims, "exclude": True}
    want = reduced(REDUCTIONS[name], x, axis, keepdims, exclude=True)
    np.testing.assert_allclose(run_op(name, x, **attrs), want, rtol=1e-12)
    check_op(name, x, **attrs)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_defaults_reduce_everything(name, rng):
    x = rng.standard_normal((3, 4))
    assert run_op(name, x).shape == (1,)
    assert run_op(name, np.array(2.0)).shape == (1,)
    assert ALIASES.get(f"{name}_axis", name) == name
    check_op(name, np.array(2.0))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_dtypes_are_kept(name, rng):
    for dtype in ("float16", "float32"):
        x = rng.uniform(1, 2, (3, 20)).astype(dtype)
        got = run_op(name, x, axis=1)
        assert got.dtype == dtype
        want = reduced(REDUCTIONS[name], x.astype("float64"), 1, False)
        np.testing.assert_allclose(got, want, rtol=2e-3 if dtype == "float16" else 1e-5)


def test_float16_is_added_in_float32():
    """4096 ones added one by one in float16 would stop at 2048; 300 squared is beyond float16."""
    assert run_op("sum", np.ones(4096, "float16")) == 4096
    assert run_op("norm", np.array([300, 400], "float16")) == 500


@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_integers_are_kept(name):
    got = run_op(name, np.array([[1, 2], [5, 3]], "int32"), axis=1)
    assert got.dtype == "int32"
    np.testing.assert_array_equal(got, REDUCTIONS[name]([[1, 2], [5, 3]], axis=1))


@pytest.mark.parametrize("name", ["mean", "norm"])
def test_means_of_integers_are_refused(name):
    with pytest.raises(DTypeError, match=f"{name} 'op': works on floats, not int32; add a Cast"):
        run_op(name, np.ones(2, "int32"))


def test_norm_orders(rng):
    x = rng.standard_normal((3, 4))
    np.testing.assert_allclose(run_op("norm", x, ord=1, axis=1), np.abs(x).sum(1))
    check_op("norm", x, ord=1, axis=0)
    with pytest.raises(GraphError, match=r"ord=3 is not a valid order of a norm \(1 or 2\)"):
        run_op("norm", x, ord=3)


def test_gradient_of_the_norm_of_zeros_is_zero():
    """x / |x| is not a number there, and one zero row would spoil a whole weight."""
    for dtype in ("float16", "float32", "float64"):
        x = np.array([[0, 0], [3, 4]], dtype)
        both = gradients(op_graph("norm", [x], axis=1), ["x0"])
        _, grad = evaluate(both.graph, {"x0": x, both.heads[0]: np.array([10, 5], dtype)})
        np.testing.assert_allclose(grad, [[0, 0], [3, 4]], rtol=1e-3)


def test_every_tie_of_an_extreme_gets_the_gradient():
    x = np.array([[1.0, 5.0, 5.0]])
    both = gradients(op_graph("max", [x], axis=1), ["x0"])
    _, grad = evaluate(both.graph, {"x0": x, both.heads[0]: np.array([2.0])})
    np.testing.assert_array_equal(grad, [[0, 2, 2]])


# -- mean's count ------------------------------------------------------------------------------


def test_count_replaces_the_number_of_elements(rng):
    x = rng.standard_normal((3, 4))
    np.testing.assert_allclose(run_op("mean", x, axis=0, count=12), x.sum(0) / 12)
    check_op("mean", x, axis=0, count=12)
    check_op("mean", x, count=5, exclude=True, axis=1)


@pytest.mark.parametrize(
    ("attrs", "count"),
    [({"axis": None}, 24), ({"axis": (0, 2)}, 6), ({"axis": (1,), "exclude": True}, 6)],
)
def test_own_count(attrs, count):
    rule = find("mean").divisor
    assert rule is not None
    assert rule(attrs, [TensorType((3, 4, 2))]) == count
    assert all(find(name).divisor is None for name in REDUCTIONS if name != "mean")


# -- argmax ------------------------------------------------------------------------------------


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_argmax(axis, keepdims, rng):
    x = rng.standard_normal((3, 4, 2)).astype("float32")
    x[:, 3] = x[:, 1]  # of equal elements the first counts
    least = run_op("argmin", -x, axis=axis, keepdims=keepdims)
    got = run_op("argmax", x, axis=axis, keepdims=keepdims)
    np.testing.assert_array_equal(least, got)
    want = np.argmax(x, axis=axis, keepdims=keepdims)
    assert got.dtype == "float32"
    assert got.shape == (want.shape or (1,))
    np.testing.assert_array_equal(got, want.reshape(got.shape))


# -- shapes ------------------------------------------------------------------------------------


def rule(name, data, out, **attrs):
    attrs = {"axis": None, "keepdims": False, **attrs}
    ins, outs = find(name).shape(Site(name, "op", attrs), [data], [out])
    return ins[0], outs[0]


@pytest.mark.parametrize("name", [*REDUCTIONS, "argmax"])
def test_kept_axes_are_inferred_both_ways(name):
    assert rule(name, (0, 4, 5), (3, 0), axis=1) == ((3, 4, 5), (3, 5))
    assert rule(name, (3, 0, 0), (0, 1, 5), axis=1, keepdims=True) == ((3, 0, 5), (3, 1, 5))
    assert rule(name, None, (3, 1, 0), axis=-2, keepdims=True) == ((3, 0, 0), (3, 1, 0))
    assert rule(name, None, None) == (None, (1,))
    assert rule(name, None, None, axis=1) == (None, None)
    assert rule(name, None, None, keepdims=True) == (None, None)
    assert rule(name, (0, 4), None) == ((0, 4), (1,))


@pytest.mark.parametrize("name", [*REDUCTIONS, "argmax"])
def test_axes_are_checked(name):
    with pytest.raises(ShapeError, match=f"{name} 'op': axis 2 is out of range for 2 dimensions"):
        run_op(name, np.ones((2, 3)), axis=2)
    with pytest.raises(ShapeError, match=r"output shapes differ: \(2,\) and \(3,\)"):
        rule(name, (2, 4), (3,), axis=1)


def test_flops_count_the_input():
    data = [TensorType((3, 4))]
    attrs = {"axis": (0,), "keepdims": False}
    outs = infer(find("sum"), Site("sum", "op", attrs), data)
    assert find("sum").flops(attrs, data, outs) == 12


# -- layouts -----------------------------------------------------------------------------------

SAMPLES = Split(1)  # of (3, 5, 2)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_sums_over_the_batch_axis_are_partial(name, keepdims, rng):
    """The mean of unequal micro-batches is right only if all divide by the whole batch's count."""
    x = [rng.standard_normal((3, 5, 2))]
    for axis in (None, 1, (0, 1), (1, 2)):
        attrs = {"axis": axis, "keepdims": keepdims}
        assert check_layout(name, x, [SAMPLES], 5, (3, 1, 1), **attrs) == [PARTIAL]
    merged = Split(1, outer=2, inner=3)
    wide = [rng.standard_normal((4, 2 * 5 * 3))]
    assert check_layout(name, wide, [merged], 5, (3, 2), axis=-1) == [PARTIAL]
    excluding = {"axis": 0, "exclude": True, "keepdims": keepdims}
    assert check_layout(name, x, [SAMPLES], 5, (2, 3), **excluding) == [PARTIAL]


@pytest.mark.parametrize("name", [*REDUCTIONS, "argmax"])
def test_the_batch_axis_moves_when_others_go(name, rng):
    x = [rng.standard_normal((3, 5, 2))]
    run = dict(op=name, arrays=x, layouts=[SAMPLES], batch=5, parts=(2, 2, 1))
    assert check_layout(**run, axis=0) == [Split(0)]
    assert check_layout(**run, axis=0, keepdims=True) == [Split(1)]
    assert check_layout(**run, axis=-1) == [Split(1)]
    if name not in ("argmax", "norm"):
        assert check_layout(**run, axis=1, exclude=True) == [Split(0)]


@pytest.mark.parametrize("name", [*REDUCTIONS, "argmax"])
def test_constants_stay_constants(name, rng):
    x = [rng.standard_normal((3, 5))]
    assert check_layout(name, x, [WHOLE], 4, (3, 1), axis=1) == [WHOLE]


@pytest.mark.parametrize("name", ["max", "min", "norm", "argmax"])
def test_extremes_over_samples_are_refused(name):
    x = [np.ones((3, 5))]
    for axis in (0, None):
        with pytest.raises(MicroBatchError, match=f"{name} 'op' reduces over the batch axis"):
            check_layout(name, x, [Split(0)], 3, (2, 1), axis=axis)
    with pytest.raises(MicroBatchError, match=f"{name} 'op' applies a nonlinear function"):
        check_layout(name, x, [PARTIAL], 3, (2, 1), axis=1)


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_sums_of_sums_over_the_batch(name, rng):
    x = [rng.standard_normal((3, 5))]
    assert check_layout(name, x, [PARTIAL], 4, (3, 1)) == [PARTIAL]
    assert check_layout(name, x, [PARTIAL], 4, (2, 2), axis=0) == [PARTIAL]


# -- products, NaN, running sums ---------------------------------------------------------------


@pytest.mark.parametrize("attrs", [{"axis": 1}, {"axis": 0, "exclude": True}, {"axis": None}])
def test_gradient_of_a_product_with_zeros(attrs):
    """MXNet divides the product by each element, which makes NaN of a 0."""
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 1.0], [1.0, 2.0, 3.0]])
    check_op("prod", x, second=False, **attrs)
    check_op("prod", x[::2], second=False, **attrs)


@pytest.mark.parametrize(("name", "neutral"), [("nansum", 0.0), ("nanprod", 1.0)])
def test_what_is_not_a_number_counts_nothing(name, neutral):
    x = np.array([[2.0, np.nan, 3.0], [np.nan] * 3])
    plain = name.removeprefix("nan")
    numbers = np.nan_to_num(x, nan=neutral)
    for attrs in ({"axis": 1}, {}):
        np.testing.assert_array_equal(run_op(name, x, **attrs), run_op(plain, numbers, **attrs))
        graphs = [gradients(op_graph(op, [x], **attrs), ["x0"]) for op in (name, plain)]
        head = np.ones(2 if attrs else 1)
        ours, theirs = (
            evaluate(both.graph, {"x0": value, both.heads[0]: head})[1]
            for both, value in zip(graphs, (x, numbers), strict=True)
        )
        np.testing.assert_array_equal(ours, np.where(np.isnan(x), 0, theirs))


def test_argmax_channel_works_along_axis_1(rng):
    x = rng.standard_normal((2, 3, 4))
    np.testing.assert_array_equal(run_op("argmax_channel", x), x.argmax(axis=1))
    assert check_layout("argmax_channel", [x], [Split(2)], 4, (1, 3)) == [Split(1)]
    with pytest.raises(MicroBatchError, match="reduces over the batch axis"):
        check_layout("argmax_channel", [x], [Split(1)], 3, (1, 2))


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_cumsum(axis, rng):
    x = rng.standard_normal((3, 4, 2))
    np.testing.assert_array_equal(run_op("cumsum", x, axis=axis), np.cumsum(x, axis))
    check_op("cumsum", x, axis=axis)
    whole = run_op("cumsum", np.array([[100, 100]], "uint8"), axis=axis, dtype="int32")
    assert (whole.dtype, whole.reshape(-1)[-1]) == ("int32", 200 if axis != 0 else 100)


def test_cumsum_layouts(rng):
    x = [rng.standard_normal((3, 4))]
    assert check_layout("cumsum", x, [Split(0)], 3, (1, 2), axis=1) == [Split(0)]
    assert check_layout("cumsum", x, [PARTIAL], 3, (1, 2), axis=0) == [PARTIAL]
    with pytest.raises(MicroBatchError, match="works along axis 0, where the batch lies"):
        check_layout("cumsum", x, [Split(0)], 3, (1, 2), axis=0)
    with pytest.raises(MicroBatchError, match="adds up the elements of all samples"):
        check_layout("cumsum", x, [Split(0)], 3, (1, 2))
