"""tile, repeat, reverse and broadcast_like, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.core.registry import OPS
from symgraph.frontend.infer import infer_shapes
from symgraph.frontend.sym import Variable, broadcast_like, flip, repeat, tile
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

X = np.random.default_rng(17).standard_normal((2, 3, 4))


def test_every_operator_of_the_file_is_checked_here():
    here = {op.name for op in OPS.values() if op.compute.__module__.endswith(".copies")}
    ours = {"tile", "repeat", "reverse", "broadcast_like"}
    assert here <= ours <= set(OPS)


@pytest.mark.parametrize("reps", [(2,), (1, 3), (2, 1, 2), (3, 1, 1, 2), ()])
def test_tile(reps):
    np.testing.assert_array_equal(run_op("tile", X, reps=reps), np.tile(X, reps))
    check_op("tile", X, reps=reps)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_repeat(axis):
    got = run_op("repeat", X, repeats=3, axis=axis)
    np.testing.assert_array_equal(got, X.repeat(3, axis))
    check_op("repeat", X, repeats=3, axis=axis)


@pytest.mark.parametrize("axis", [0, -1, (0, 2)])
def test_reverse(axis):
    np.testing.assert_array_equal(run_op("reverse", X, axis=axis), np.flip(X, axis))
    check_op("reverse", X, axis=axis)


def test_broadcast_like():
    row = X[:, :1]
    got = run_op("broadcast_like", row, X.astype("float32"))
    np.testing.assert_array_equal(got, np.broadcast_to(row, X.shape))
    check_op("broadcast_like", row, X)


def test_shapes_follow_in_both_directions():
    x, y = Variable("x"), Variable("y")
    for symbol, there, here in (
        (tile(x, reps=(2, 3)), (4, 9), (2, 3)),
        (repeat(x, repeats=3, axis=1), (4, 9), (4, 3)),
        (flip(x, axis=1), (4, 9), (4, 9)),
    ):
        given = {"y": there} | ({"x": (0, 0)} if "tile" in symbol.name else {})
        if "repeat" in symbol.name:
            given["x"] = (0, 3)
        assert infer_shapes(symbol + y, given).variables["x"] == here
    symbol = broadcast_like(x, y) + Variable("z")
    assert infer_shapes(symbol, {"x": (1, 3), "z": (2, 3)}).variables["y"] == (2, 3)


@pytest.mark.parametrize(
    ("op", "arrays", "attrs", "message"),
    [
        ("tile", [X], {"reps": (0, 1)}, r"tile 'op': reps=\(0, 1\) must be 1 or more"),
        ("repeat", [X], {"repeats": 0}, "repeats=0 must be 1 or more"),
        ("repeat", [X], {"repeats": 2, "axis": 3}, "axis 3 is out of range for 3 dimensions"),
        ("reverse", [X], {"axis": 3}, "axis 3 is out of range for 3 dimensions"),
        ("broadcast_like", [X, X[:, :2]], {}, r"cannot broadcast shape \(2, 3, 4\) to \(2, 2, 4\)"),
    ],
)
def test_mistakes(op, arrays, attrs, message):
    with pytest.raises(ShapeError, match=message):
        op_graph(op, arrays, **attrs)


@pytest.mark.parametrize(
    ("op", "layout", "attrs", "out"),
    [
        ("tile", Split(1), {"reps": (2, 1, 3)}, Split(1)),
        ("tile", Split(1), {"reps": (2, 1, 1, 3)}, Split(2)),
        ("tile", PARTIAL, {"reps": (2, 2)}, PARTIAL),
        ("repeat", Split(1), {"repeats": 2, "axis": 0}, Split(1)),
        ("repeat", PARTIAL, {"repeats": 2}, PARTIAL),
        ("reverse", Split(1), {"axis": (0, 2)}, Split(1)),
        ("reverse", PARTIAL, {"axis": 0}, PARTIAL),
    ],
)
def test_micro_batches(op, layout, attrs, out):
    assert check_layout(op, [X], [layout], 3, (2, 1), **attrs) == [out]


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("tile", {"reps": (2, 1)}),
        ("repeat", {"repeats": 2, "axis": 1}),
        ("repeat", {"repeats": 2}),
        ("reverse", {"axis": -2}),
    ],
)
def test_the_batch_is_not_repeated_or_turned(op, attrs):
    with pytest.raises(MicroBatchError, match=f"{op} 'op' works along axis 1, where the"):
        check_layout(op, [X], [Split(1)], 3, (2, 1), **attrs)


def test_micro_batches_of_broadcast_like():
    def found(data, *layouts):
        return check_layout("broadcast_like", [data, X], layouts, 3, (2, 1))

    assert found(X[:1], Split(1), Split(1)) == [Split(1)]
    assert found(X[:, :1], WHOLE, Split(1)) == [Split(1)]
    assert found(X[:, :1], PARTIAL, WHOLE) == [PARTIAL]
    with pytest.raises(MicroBatchError, match="repeats a sum over the batch for each sample"):
        found(X[:, :1], PARTIAL, Split(1))
