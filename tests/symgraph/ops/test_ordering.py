"""sort, argsort and topk, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import DTypeError, MicroBatchError, ShapeError
from symgraph.frontend import sym
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import WHOLE, Split, check_layout

RNG = np.random.default_rng(22)
X = RNG.standard_normal((3, 4, 2))
TIES = np.array([[1, 3, 3, 2, 3], [0, 0, 1, 1, 0]])


def along(x, axis):
    return (x.reshape(-1), 0) if axis is None else (x, axis)


@pytest.mark.parametrize("ascend", [True, False])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_sort(axis, ascend):
    x, at = along(X, axis)
    want = np.sort(x, at)
    attrs = {"axis": axis, "is_ascend": ascend}
    got = run_op("sort", X, **attrs)
    np.testing.assert_array_equal(got, want if ascend else np.flip(want, at))
    order = run_op("argsort", X, **attrs)
    assert order.dtype == "float32"
    np.testing.assert_array_equal(np.take_along_axis(x, order.astype(int), at), got)
    check_op("sort", X, **attrs)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16", "float64"])
def test_equal_elements_keep_their_order(dtype):
    x = TIES.astype(dtype)
    got = run_op("argsort", x, is_ascend=False, dtype="int32")
    assert got.dtype == "int32"
    np.testing.assert_array_equal(got, [[1, 2, 4, 3, 0], [2, 3, 0, 1, 4]])
    np.testing.assert_array_equal(run_op("argsort", x), np.argsort(TIES, kind="stable"))
    np.testing.assert_array_equal(run_op("topk", x, k=2), [[1, 2], [2, 3]])
    assert run_op("sort", x).dtype == dtype


@pytest.mark.parametrize("ascend", [True, False])
@pytest.mark.parametrize(("axis", "k"), [(None, 5), (0, 2), (-2, 3), (-1, 0)])
def test_topk(axis, k, ascend):
    x, at = along(X, axis)
    order = np.argsort(x if ascend else -x, at)
    chosen = np.take(order, range(k or x.shape[at]), at)
    attrs = {"axis": axis, "k": k, "is_ascend": ascend}
    values, indices = run_op("topk", X, ret_typ="both", **attrs)
    np.testing.assert_array_equal(values, np.take_along_axis(x, chosen, at))
    np.testing.assert_array_equal(indices, chosen)
    np.testing.assert_array_equal(run_op("topk", X, **attrs), indices)
    np.testing.assert_array_equal(run_op("topk", X, ret_typ="value", **attrs), values)
    mask = np.zeros_like(x)
    np.put_along_axis(mask, chosen, 1, at)
    np.testing.assert_array_equal(run_op("topk", X, ret_typ="mask", **attrs), mask.reshape(X.shape))
    for kind in ("value", "both"):
        check_op("topk", X, ret_typ=kind, **attrs)


def test_what_is_asked_for_must_be_there():
    with pytest.raises(ShapeError, match="topk 'op': k=5 is more than the 4 elements along axis 1"):
        op_graph("topk", [X], axis=1, k=5)
    with pytest.raises(ShapeError, match="sort 'op': axis 3 is out of range"):
        op_graph("sort", [X], axis=3)
    with pytest.raises(DTypeError, match="works on numbers, not bool"):
        op_graph("sort", [X > 0])


@pytest.mark.parametrize(("dtype", "most"), [("uint8", 256), ("float16", 2049)])
def test_indices_must_fit_their_dtype(dtype, most):
    op_graph("argsort", [np.zeros(most)], dtype=dtype)
    for op in ("argsort", "topk"):
        with pytest.raises(ShapeError, match=f"dtype={dtype} cannot hold all indices"):
            op_graph(op, [np.zeros(most + 1)], dtype=dtype)


def test_symbols_may_say_axis_none():
    """None was taken for the default, which is the last axis."""
    x = sym.Variable("x")
    for op in (sym.sort, sym.argsort, sym.topk):
        axes = {"axis=None": op(x, axis=None), "": op(x)}
        ranks = {key: len(made.infer_shape(x=(3, 4))[1][0]) for key, made in axes.items()}
        assert ranks == {"axis=None": 1, "": 2}
    copy = sym.load_json(sym.argsort(x, axis=None).tojson())
    assert copy.infer_shape(x=(3, 4))[1] == [(12,)]


@pytest.mark.parametrize("op", ["sort", "argsort", "topk"])
def test_layouts(op):
    assert check_layout(op, [X], [Split(1)], 4, (1, 3), axis=0) == [Split(1)]
    assert check_layout(op, [X], [Split(0)], 3, (1, 2)) == [Split(0)]
    assert check_layout(op, [X], [WHOLE], 3, (1, 2), axis=None) == [WHOLE]
    with pytest.raises(MicroBatchError, match="works along axis 1, where the batch lies"):
        check_layout(op, [X], [Split(1)], 4, (2, 2), axis=1)
    with pytest.raises(MicroBatchError, match="orders the elements of all samples"):
        check_layout(op, [X], [Split(1)], 4, (2, 2), axis=None)
