"""one_hot and where, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import DTypeError, MicroBatchError, ShapeError
from symgraph.core.params import Site
from symgraph.core.reference import evaluate
from symgraph.core.registry import find
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

RNG = np.random.default_rng(12)


def normal(*shape):
    return RNG.standard_normal(shape)


def ids(high, *shape, dtype="int64"):
    return RNG.integers(0, high, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_one_hot(dtype):
    got = run_op(
        "one_hot",
        np.array([[1.0, 0.0], [3.0, -1.0]]),
        depth=3,
        on_value=5,
        off_value=2,
        dtype=dtype,
    )
    assert got.dtype == dtype
    assert got.tolist() == [[[2, 5, 2], [5, 2, 2]], [[2, 2, 2], [2, 2, 2]]]


def test_one_hot_shapes_and_layout():
    op, site = find("one_hot"), Site("one_hot", "op", {"depth": 4})
    assert op.shape(site, [None], [(2, 3, 4)]) == ([(2, 3)], [(2, 3, 4)])
    with pytest.raises(ShapeError, match=r"output of shape \(2, 3, 4\)"):
        op.shape(site, [(3, 3)], [(2, 3, 4)])
    data = ids(4, 2, 6)
    assert check_layout("one_hot", [data], [Split(1, 3)], 2, (1, 1), depth=4) == [Split(1, 3)]


def test_no_gradient_flows_into_indices():
    """Float ids are data: their gradient is zero, not an error."""
    both = gradients(op_graph("one_hot", [normal(3)], depth=2), ["x0"])
    assert both.heads == {}
    np.testing.assert_array_equal(evaluate(both.graph, {"x0": np.ones(3)})[1], np.zeros(3))


@pytest.mark.parametrize("dtype", ["bool", "int32", "float64"])
def test_where(dtype):
    x, y = normal(3, 4), normal(3, 4)
    condition = ids(2, 3, 4, dtype=dtype)
    got = run_op("where", condition, x, y)
    np.testing.assert_array_equal(got, np.where(condition.astype(bool), x, y))
    row = np.array([0, 1, 0], dtype)
    got = run_op("where", row, x, y)
    np.testing.assert_array_equal(got, [y[0], x[1], y[2]])
    for one, wanted in ((1, x), (0, y)):
        np.testing.assert_array_equal(run_op("where", np.array([one], dtype), x, y), wanted)


def test_where_gradients_do_not_let_nan_through():
    check_op("where", ids(2, 3, 4), normal(3, 4), normal(3, 4))
    check_op("where", ids(2, 3), normal(3, 4), normal(3, 4))
    arrays = [np.array([1, 0]), normal(2), normal(2)]
    both = gradients(op_graph("where", arrays), ["x1"])
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    grad = evaluate(both.graph, {**feeds, both.heads[0]: np.array([2.0, np.nan])})[1]
    np.testing.assert_array_equal(grad, [2.0, 0.0])


def test_where_shapes_and_dtypes():
    with pytest.raises(ShapeError, match=r"condition of shape \(4,\) does not fit \(3,\)"):
        run_op("where", ids(2, 4), normal(3, 4), normal(3, 4))
    with pytest.raises(ShapeError, match="shapes of inputs differ"):
        run_op("where", ids(2, 3, 4), normal(3, 4), normal(4, 3))
    with pytest.raises(DTypeError, match="where 'op': inputs have dtypes float64 and float32"):
        run_op("where", ids(2, 3), normal(3), normal(3).astype("float32"))


def test_where_layouts():
    x, y = normal(4, 6), normal(4, 6)
    for condition, at in ((ids(2, 4, 6), Split(0)), (ids(2, 4), Split(0))):
        found = check_layout("where", [condition, x, y], [at, Split(0), Split(0)], 4, (3, 1))
        assert found == [Split(0)]
    condition = ids(2, 4, 6)
    found = check_layout("where", [condition, x, y], [WHOLE, PARTIAL, PARTIAL], 2, (1, 1))
    assert found == [PARTIAL]
    one = np.array([0])  # for all rows
    assert check_layout("where", [one, x, y], [WHOLE, *[Split(0)] * 2], 4, (3, 1)) == [Split(0)]
    with pytest.raises(MicroBatchError, match="nonlinear function to a sum"):
        check_layout("where", [condition, x, y], [Split(0), PARTIAL, PARTIAL], 4, (2, 2))
    with pytest.raises(MicroBatchError, match="whose batch lies differently"):
        check_layout("where", [condition[:, 0], x, y], [Split(0), Split(1), Split(1)], 1, (1,))
