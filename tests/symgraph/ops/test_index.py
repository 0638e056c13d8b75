"""Embedding, take and pick, against numpy indexing."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.core.params import Site
from symgraph.core.reference import evaluate
from symgraph.core.registry import find
from symgraph.frontend.infer import infer_dtypes, infer_shapes
from symgraph.frontend.sym import Embedding, Variable, pick
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

RNG = np.random.default_rng(8)
WIDE = {"input_dim": 5, "output_dim": 3}


def normal(*shape):
    return RNG.standard_normal(shape)


def ids(high, *shape, dtype="int64", low=0):
    return RNG.integers(low, high, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float32", "float64", "bool"])
def test_embedding_takes_rows_by_ids_of_any_dtype(dtype):
    data, weight = ids(2 if dtype == "bool" else 5, 4, 2, dtype=dtype), normal(5, 3)
    got = run_op("Embedding", data, weight, **WIDE)
    np.testing.assert_array_equal(got, weight[data.astype(int)])


def test_embedding_gradients():
    check_op("Embedding", ids(5, 4, 2), normal(5, 3), **WIDE)


def embedding_weight_grad(data, head, rows):
    weight = np.zeros((rows, head.shape[-1]), head.dtype)
    graph = op_graph("Embedding", [data, weight], input_dim=rows, output_dim=head.shape[-1])
    both = gradients(graph, ["x1"])
    return evaluate(both.graph, {"x0": data, "x1": weight, both.heads[0]: head})[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_embedding_gradient_adds_equal_ids_with_the_same_bits_each_time(dtype):
    data = np.minimum(RNG.zipf(1.3, 300) - 1, 49)
    head = normal(300, 7).astype(dtype)
    want = np.zeros((50, 7))
    for row, one in zip(data, head, strict=True):
        want[row] += one
    got = embedding_weight_grad(data, head, 50)
    np.testing.assert_allclose(got, want, rtol=1e-5 if dtype == "float32" else 1e-12, atol=1e-6)
    for offset in (1, 2, 3):  # elsewhere in memory
        moved = np.empty(head.size + offset, dtype)[offset:].reshape(head.shape)
        moved[:] = head
        np.testing.assert_array_equal(embedding_weight_grad(data, moved, 50), got)


def test_embedding_gradient_adds_equal_ids_in_the_order_they_come():
    data, head = ids(150, 900), normal(900, 3)
    got = embedding_weight_grad(data, head, 150)
    for row in np.unique(data):
        want = np.add.reduceat(head[data == row], [0], axis=0)[0]
        np.testing.assert_array_equal(got[row], want)


def test_embedding_gradient_of_every_number_of_equal_ids():
    for count in (1, 2, 9):
        grad = embedding_weight_grad(np.full((count, 1), 3), np.ones((count, 1, 2)), 5)
        np.testing.assert_array_equal(grad, np.eye(5)[3][:, None] * [[count, count]])


@pytest.mark.parametrize(
    ("data", "wrong"), [([0, 5], "5"), ([-1, 2], "-1"), ([0.0, np.nan], "nan"), ([9.0, 1], "9.0")]
)
def test_embedding_names_an_id_out_of_range(data, wrong):
    with pytest.raises(IndexError, match=rf"id {wrong} is outside 0\.\.4"):
        run_op("Embedding", np.array(data), normal(5, 3), **WIDE)


def test_embedding_infers_weight_and_data():
    symbol = Embedding(Variable("x"), name="embed", **WIDE)
    assert infer_shapes(symbol, {"x": (7, 2)}).variables["embed_weight"] == (5, 3)
    op, site = find("Embedding"), Site("Embedding", "embed", dict(WIDE))
    assert op.shape(site, [None, None], [(7, 2, 3)]) == ([(7, 2), (5, 3)], [(7, 2, 3)])
    with pytest.raises(ShapeError, match=r"weight of shape \(3, 5\) does not fit \(5, 3\)"):
        run_op("Embedding", ids(5, 2), normal(3, 5), **WIDE)


def test_embedding_dtypes():
    """Ids keep their dtype; one that is not known is the weight's (MXNet)."""
    symbol = Embedding(Variable("x"), name="e", **WIDE)
    assert infer_dtypes(symbol, {}).variables == {"x": "float32", "e_weight": "float32"}
    found = infer_dtypes(symbol, {"e_weight": "float64"}).variables
    assert found == {"x": "float64", "e_weight": "float64"}
    found = infer_dtypes(symbol, {"x": "int32"}).variables
    assert found == {"x": "int32", "e_weight": "float32"}
    symbol = Embedding(Variable("x"), name="e", dtype="float16", **WIDE)
    assert infer_dtypes(symbol, {"x": "int32"}).variables["e_weight"] == "float16"


def test_embedding_layouts():
    data, weight = ids(5, 6, 2), normal(5, 3)
    for layout, batch, parts in ((Split(0), 6, (4, 2)), (Split(0, 2), 3, (1, 2))):
        found = check_layout("Embedding", [data, weight], [layout, WHOLE], batch, parts, **WIDE)
        assert found == [layout]
    with pytest.raises(MicroBatchError, match="looks up a sum over the batch"):
        check_layout("Embedding", [data, weight], [PARTIAL, WHOLE], 2, (1, 1), **WIDE)
    with pytest.raises(MicroBatchError, match="weights that depend on the samples"):
        check_layout("Embedding", [data, weight], [Split(0), PARTIAL], 6, (3, 3), **WIDE)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(4,), (2, 3)])
@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_take(axis, shape, mode):
    x, index = normal(3, 4, 5), ids(8, *shape, low=-3)
    got = run_op("take", x, index, axis=axis, mode=mode)
    np.testing.assert_array_equal(got, np.take(x, index, axis, mode=mode))
    check_op("take", x, index, axis=axis, mode=mode)


def test_take_by_default_clips_along_axis_0():
    x = normal(3, 2)
    got = run_op("take", x, np.array([-1.0, 1.9, 7.0], "float32"))
    np.testing.assert_array_equal(got, x[[0, 1, 2]])
    with pytest.raises(IndexError, match=r"id 7 is outside 0\.\.2"):
        run_op("take", x, np.array([0, 7]), mode="raise")


def test_take_names_a_wrong_axis():
    with pytest.raises(ShapeError, match="take 'op': axis 2 is out of range"):
        run_op("take", normal(3, 2), ids(2, 2), axis=2)


def test_take_layouts():
    x, index = normal(4, 3, 6), ids(3, 4, 2)
    halves = (4, (2, 2))
    assert check_layout("take", [x, index], [WHOLE, Split(0)], *halves, axis=1) == [Split(1)]
    assert check_layout("take", [x, index], [Split(0), WHOLE], *halves, axis=1) == [Split(0)]
    found = check_layout("take", [x, index], [Split(2, 3), WHOLE], 2, (1, 1), axis=1)
    assert found == [Split(3, 3)]
    assert check_layout("take", [x, index], [PARTIAL, WHOLE], *halves, axis=1) == [PARTIAL]
    for layouts, message in (
        ([Split(1), WHOLE], "takes along axis 1"),
        ([Split(0), Split(0)], "values that depend on the samples"),
        ([PARTIAL, Split(0)], "values that depend on the samples"),
        ([WHOLE, PARTIAL], "looks up a sum"),
    ):
        with pytest.raises(MicroBatchError, match=message):
            check_layout("take", [x, index], layouts, 1, (1,), axis=1)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("index_keeps", [False, True])
def test_pick(axis, keepdims, index_keeps):
    x = normal(3, 4, 5)
    index = ids(7, *np.delete(x.shape, axis), low=-2)
    kept = np.expand_dims(index, axis)
    want = np.take_along_axis(x, kept.clip(0, x.shape[axis] - 1), axis)
    given = kept if index_keeps else index
    got = run_op("pick", x, given, axis=axis, keepdims=keepdims)
    np.testing.assert_array_equal(got, want if keepdims else want.squeeze(axis))
    check_op("pick", x, given, axis=axis, keepdims=keepdims)


def test_pick_wraps_and_takes_float_indices():
    x = normal(3, 4)
    got = run_op("pick", x, np.array([-1.0, 4.0, 2.0]), mode="wrap")
    np.testing.assert_array_equal(got, x[range(3), [3, 0, 2]])


def test_pick_of_a_vector():
    np.testing.assert_array_equal(run_op("pick", np.array([5.0, 6.0]), np.array([1])), [6.0])
    check_op("pick", normal(4), np.array([2]))


def test_pick_infers_the_index():
    symbol = pick(Variable("x"), Variable("i"), axis=1)
    assert infer_shapes(symbol, {"x": (3, 4, 5)}).variables["i"] == (3, 5)
    assert infer_dtypes(symbol, {"x": "float64"}).variables["i"] == "float64"
    with pytest.raises(ShapeError, match=r"pick 'op': index of shape \(4,\) does not fit \(3,\)"):
        run_op("pick", normal(3, 4), ids(4, 4))


def test_pick_layouts():
    x, index = normal(4, 3, 6), ids(3, 4, 6)
    assert check_layout("pick", [x, index], [Split(0)] * 2, 4, (3, 1), axis=1) == [Split(0)]
    found = check_layout("pick", [x, index], [Split(2, 2), Split(1, 2)], 3, (2, 1), axis=1)
    assert found == [Split(1, 2)]
    found = check_layout(
        "pick", [x, index[:, None]], [Split(2)] * 2, 6, (4, 2), axis=1, keepdims=True
    )
    assert found == [Split(2)]
    assert check_layout("pick", [x, index], [PARTIAL, WHOLE], 2, (1, 1), axis=1) == [PARTIAL]
    for layouts, message in (
        ([Split(1), Split(0)], "picks along axis 1"),
        ([Split(0), Split(1)], "whose batch lies differently"),
        ([Split(0), WHOLE], "of which one alone depends on the samples"),
        ([PARTIAL, Split(0)], "of which one alone depends on the samples"),
    ):
        with pytest.raises(MicroBatchError, match=message):
            check_layout("pick", [x, index], layouts, 1, (1,), axis=1)


def test_batch_take_picks_one_element_of_each_row():
    x, index = normal(4, 3), np.array([0, 5, -1, 2], "int32")
    np.testing.assert_array_equal(run_op("batch_take", x, index), x[range(4), [0, 2, 0, 2]])
    check_op("batch_take", x, index)
    assert check_layout("batch_take", [x, index], [Split(0)] * 2, 4, (1, 3)) == [Split(0)]
    with pytest.raises(ShapeError, match=r"batch_take 'op': index of shape \(2,\) does not fit"):
        run_op("batch_take", x, index[:2])
