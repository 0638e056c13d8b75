"""Operators on shards: their pieces put together are the operators on the whole."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.core.registry import find
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

RNG = np.random.default_rng(17)
ENDS = [(0, 3), (3, 4), (4, 7)]
CLASSES = 7


def normal(*shape):
    return RNG.standard_normal(shape)


def labels(*shape, low=0):
    return RNG.integers(low, CLASSES, shape)


def pieces(x):
    return [x[..., start:stop] for start, stop in ENDS]


def place(start):
    return {"begin": start, "classes": CLASSES}


def figures_of(parts):
    rows = [run_op("_shard_row_figures", part) for part in parts]
    return run_op("_shard_join_figures", *rows, num_args=len(parts))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("dtype", "rtol"), [("float64", 1e-13), ("float32", 1e-6), ("float16", 2e-3)]
)
@pytest.mark.parametrize("shape", [(5, CLASSES), (2, 3, CLASSES)])
def test_pieces_of_softmax_output(shape, dtype, rtol):
    x, label = (10 * normal(*shape)).astype(dtype), labels(*shape[:-1])
    figures = figures_of(pieces(x))
    assert figures.shape == (2, *shape[:-1])
    assert figures.dtype == ("float64" if dtype == "float64" else "float32")
    got = [
        run_op("_shard_softmax_output", part, label, figures, **place(start))
        for part, (start, _) in zip(pieces(x), ENDS, strict=True)
    ]
    assert all(g.dtype == dtype for g in got)
    want = softmax(x.astype("float64"))
    np.testing.assert_allclose(np.concatenate(got, -1), want, rtol=rtol, atol=rtol)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_extreme_rows():
    """A shard of -inf alone, huge scores, and NaN do what they do to the whole row."""
    x = np.array(
        [
            [-np.inf, -np.inf, -np.inf, 1, 2, 3, 4],
            [1e4, 0, -1e4, 1e4, 5, 1e4 + 1, 0],
            [0, 0, 0, np.nan, 0, 0, 0],
        ]
    )
    figures = figures_of(pieces(x))
    label = np.zeros(3, int)
    got = [
        run_op("_shard_softmax_output", part, label, figures, **place(start))
        for part, (start, _) in zip(pieces(x), ENDS, strict=True)
    ]
    np.testing.assert_allclose(np.concatenate(got, -1), softmax(x), rtol=1e-12)


def test_figures_of_many_rows_are_made_in_blocks():
    x = normal(40000, 5).astype("float32")
    top, total = run_op("_shard_row_figures", x)
    np.testing.assert_array_equal(top, x.max(-1))
    np.testing.assert_allclose(total, np.exp(x - x.max(-1, keepdims=True)).sum(-1), rtol=1e-6)


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"grad_scale": 0.5},
        {"normalization": "batch"},
        {"normalization": "batch", "count": 12},
        {"smooth_alpha": 0.2},
        {"use_ignore": True, "ignore_label": 3},
        {"use_ignore": True, "ignore_label": -1, "smooth_alpha": 0.1},
    ],
)
def test_pieces_of_the_gradient_of_softmax_output(attrs):
    prob, label = softmax(normal(6, CLASSES)), labels(6)
    label[:2] = attrs.get("ignore_label", 0)
    want = run_op("_softmax_output_grad", prob, label, **attrs)
    got = [
        run_op("_softmax_output_grad", part, label, **attrs, **place(start))
        for part, (start, _) in zip(pieces(prob), ENDS, strict=True)
    ]
    np.testing.assert_allclose(np.concatenate(got, -1), want, rtol=1e-14, atol=1e-16)


def test_the_gradient_divides_by_valid_labels():
    prob, label = softmax(normal(6, CLASSES)), labels(6)
    attrs = {"normalization": "valid", "use_ignore": True, "ignore_label": int(label[0])}
    valid = np.array([4.0])
    want = run_op("_softmax_output_grad", prob, label, valid, **attrs)
    got = [
        run_op("_softmax_output_grad", part, label, valid, **attrs, **place(start))
        for part, (start, _) in zip(pieces(prob), ENDS, strict=True)
    ]
    np.testing.assert_allclose(np.concatenate(got, -1), want, rtol=1e-14)


def test_pieces_of_softmax_cross_entropy():
    x, label = normal(6, CLASSES), labels(6)
    figures = figures_of(pieces(x))
    parts = list(zip(pieces(x), ENDS, strict=True))
    losses = [run_op("_shard_cross_entropy", p, label, figures, **place(s)) for p, (s, _) in parts]
    want = run_op("softmax_cross_entropy", x, label)
    np.testing.assert_allclose(sum(losses), want, rtol=1e-13)
    grads = [run_op("_shard_residual", p, label, figures, **place(s)) for p, (s, _) in parts]
    want = softmax(x) - np.eye(CLASSES)[label]
    np.testing.assert_allclose(np.concatenate(grads, -1), want, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("use_ignore", [False, True])
def test_pieces_of_nll_stats(use_ignore):
    prob, label = softmax(normal(2, 4, CLASSES)), labels(2, 4)
    ignore = {"use_ignore": use_ignore, "ignore_label": int(label[0, 0])}
    picked = [
        run_op("_shard_pick", part, label, **ignore, **place(start))
        for part, (start, _) in zip(pieces(prob), ENDS, strict=True)
    ]
    got = run_op("_picked_nll", sum(picked), label, **ignore)
    want = run_op("nll_stats", prob, label, **ignore)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float64"])
def test_pieces_of_embedding(dtype):
    weight, ids = normal(CLASSES, 4), labels(3, 5).astype(dtype)
    shards = [weight[start:stop] for start, stop in ENDS]
    found = [
        run_op("Embedding", ids, w, input_dim=len(w), output_dim=4, **place(start))
        for w, (start, _) in zip(shards, ENDS, strict=True)
    ]
    np.testing.assert_array_equal(sum(found), weight[ids.astype(int)])
    grad = normal(3, 5, 4)
    want = run_op("_embedding_grad", ids, grad, input_dim=CLASSES)
    got = [
        run_op("_embedding_grad", ids, grad, input_dim=stop - start, **place(start))
        for start, stop in ENDS
    ]
    np.testing.assert_array_equal(np.concatenate(got), want)


def test_gradients_of_embedding_in_a_shard():
    ids = np.array([[0, 3], [2, 6]])
    check_op("Embedding", ids, normal(3, 4), input_dim=3, output_dim=4, **place(2))
    none = run_op("_embedding_grad", ids, normal(2, 2, 3), input_dim=1, **place(5))
    assert none.tolist() == [[0, 0, 0]]


def test_labels_and_ids_outside_of_all_shards():
    prob, figures = normal(2, 3), np.ones((2, 2))
    for op, ins in (
        ("_shard_pick", (prob,)),
        ("_softmax_output_grad", (prob,)),
    ):
        with pytest.raises(IndexError, match=r"label 7 is outside 0\.\.6"):
            run_op(op, *ins, np.array([0, 7]), **place(0))
    with pytest.raises(IndexError, match=r"label -1 is outside"):
        run_op("_shard_cross_entropy", prob, np.array([0, -1]), figures, **place(0))
    with pytest.raises(IndexError, match=r"id 7 is outside 0\.\.6"):
        run_op("Embedding", np.array([7]), prob, input_dim=2, output_dim=3, **place(0))


def test_shapes_that_do_not_fit():
    x = normal(4, 3)
    with pytest.raises(ShapeError, match=r"label of shape \(5,\) does not fit \(4,\)"):
        run_op("_shard_softmax_output", x, labels(5), np.ones((2, 4)), **place(0))
    with pytest.raises(ShapeError, match=r"figures of shape \(2, 5\) does not fit \(2, 4\)"):
        run_op("_shard_softmax_output", x, labels(4), np.ones((2, 5)), **place(0))
    with pytest.raises(ShapeError, match=r"label of shape \(3,\) does not fit \(4,\)"):
        run_op("_shard_pick", x, labels(3), **place(0))


def test_layouts():
    """Time-major rows (T, B, V), and merged to (T*B, V)."""
    x, label, sizes = normal(2, 3, CLASSES), labels(2, 3), (2, 1)
    rows, merged = Split(1), Split(0, outer=2)
    figures = figures_of(pieces(x))
    part = x[..., :3]
    assert check_layout("_shard_row_figures", [part], [rows], 3, sizes) == [Split(2)]
    flat = check_layout("_shard_row_figures", [part.reshape(6, 3)], [merged], 3, sizes)
    assert flat == [Split(1, outer=2)]
    two = [figures, figures]
    assert check_layout("_shard_join_figures", two, [Split(2)] * 2, 3, sizes, num_args=2) == [
        Split(2)
    ]
    ins, lay = [part, label, figures], [rows, rows, Split(2)]
    assert check_layout("_shard_softmax_output", ins, lay, 3, sizes, **place(0)) == [rows]
    assert check_layout("_shard_cross_entropy", ins, lay, 3, sizes, **place(0)) == [PARTIAL]
    assert check_layout("_shard_pick", [part, label], [rows] * 2, 3, sizes, **place(0)) == [rows]
    picked = [np.abs(part[..., 0]), label]
    assert check_layout("_picked_nll", picked, [rows] * 2, 3, sizes) == [PARTIAL] * 2
    weight = normal(3, 2)
    table = {"input_dim": 3, "output_dim": 2, **place(0)}
    found = check_layout("Embedding", [label, weight], [rows, WHOLE], 3, sizes, **table)
    assert found == [rows]
    joined = check_layout("_shard_join", pieces(x), [rows] * 3, 3, sizes, num_args=3, dim=2)
    assert joined == [rows]
    whole = check_layout("_shard_softmax_output", ins, [WHOLE] * 3, 3, sizes, **place(0))
    assert whole == [WHOLE]


def test_layouts_that_mix_samples():
    x, label = normal(3, 3), labels(3)
    ins = [x, label, np.ones((2, 3))]
    with pytest.raises(MicroBatchError, match="not samples"):
        check_layout("_shard_row_figures", [x], [Split(1)], 3, (2, 1))
    with pytest.raises(MicroBatchError, match="labels whose batch lies alike"):
        check_layout("_shard_softmax_output", ins, [Split(0), WHOLE, WHOLE], 3, (2, 1), **place(0))
    lay = [Split(0), Split(0), WHOLE]
    with pytest.raises(MicroBatchError, match="figures whose batch lies alike"):
        check_layout("_shard_cross_entropy", ins, lay, 3, (2, 1), **place(0))
    lay, valid = [Split(0), Split(0), Split(1)], {"normalization": "valid"}
    with pytest.raises(MicroBatchError, match="count of labels"):
        check_layout("_shard_softmax_output", ins, lay, 3, (2, 1), **valid, **place(0))
    with pytest.raises(MicroBatchError, match="labels whose batch lies alike"):
        check_layout("_shard_pick", [x, label], [Split(0), WHOLE], 3, (2, 1), **place(0))


def test_flops_of_the_pieces_are_those_of_the_whole():
    def flops(op, *arrays, **attrs):
        graph = op_graph(op, arrays, **attrs)
        node = graph["op"]
        return find(op).flops(node.attrs, graph.types_of(node.inputs), node.types)

    x, label, figures = normal(6, CLASSES), labels(6), np.ones((2, 6))
    rows = sum(flops("_shard_row_figures", part) for part in pieces(x))
    heads = sum(
        flops("_shard_softmax_output", part, label, figures, **place(0)) for part in pieces(x)
    )
    assert rows == heads == 3 * x.size  # subtract, exp, add; subtract, exp, divide
    assert flops("Embedding", label, x, input_dim=6, output_dim=CLASSES, **place(0)) == 0
