"""SequenceMask, SequenceLast and SequenceReverse, against loops over the samples."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import GraphError, MicroBatchError, ShapeError
from symgraph.core.registry import OPS
from symgraph.frontend import sym
from symgraph.frontend.infer import infer_shapes
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

RNG = np.random.default_rng(5)
T, B = 4, 3
LENGTHS = np.array([2, 4, 1])
TIMES = {"use_sequence_length": True}
DATA = {0: RNG.standard_normal((T, B, 2)), 1: RNG.standard_normal((B, T, 2))}
OPERATORS = ("SequenceMask", "SequenceLast", "SequenceReverse")


def by_loop(op, x, lengths, axis, value=0.0):
    """Sample after sample, with time first."""
    x = np.moveaxis(x, axis, 0)
    out = x.copy()
    for b, n in enumerate(lengths):
        if op == "SequenceMask":
            out[n:, b] = value
        else:
            out[:n, b] = x[:n, b][::-1]
    if op == "SequenceLast":  # the last step comes first when reversed
        return out[0]
    return np.moveaxis(out, 0, axis)


def test_every_operator_of_the_file_is_checked_here():
    here = {op.name for op in OPS.values() if op.compute.__module__.endswith(".sequence")}
    assert here == {*OPERATORS, "_sequence_last_grad"}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_values_and_gradients(op, axis, dtype):
    x, lengths = DATA[axis], LENGTHS.astype(dtype)
    got = run_op(op, x, lengths, axis=axis, **TIMES)
    np.testing.assert_array_equal(got, by_loop(op, x, LENGTHS, axis))
    check_op(op, x, LENGTHS, axis=axis, **TIMES)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", OPERATORS)
def test_without_lengths_every_sequence_is_as_long_as_the_axis(op, axis):
    x = DATA[axis]
    whole = by_loop(op, x, [T] * B, axis)
    np.testing.assert_array_equal(run_op(op, x, axis=axis), whole)
    check_op(op, x, axis=axis)


def test_the_mask_may_be_any_number():
    got = run_op("SequenceMask", DATA[1], LENGTHS, axis=1, value=-1.5, **TIMES)
    np.testing.assert_array_equal(got, by_loop("SequenceMask", DATA[1], LENGTHS, 1, -1.5))
    check_op("SequenceMask", DATA[0], LENGTHS, value=2.0, **TIMES)


def test_lengths_of_zero():
    none = np.array([0, 2, 0])
    assert not run_op("SequenceMask", DATA[0], none, **TIMES)[:, 0].any()
    np.testing.assert_array_equal(
        run_op("SequenceReverse", DATA[0], none, **TIMES),
        by_loop("SequenceReverse", DATA[0], none, 0),
    )
    with pytest.raises(IndexError, match=r"sequence length 0 is outside 1\.\.4"):
        run_op("SequenceLast", DATA[0], none, **TIMES)
    for op in ("SequenceLast", "SequenceReverse"):
        with pytest.raises(IndexError, match=r"sequence length 5 is outside 0\.\.4"):
            run_op(op, DATA[0], np.array([1, 5, 2]), **TIMES)


def test_names_shapes_and_dtypes():
    last = sym.SequenceLast(sym.Variable("x"), axis=1, name="last", **TIMES)
    assert last.list_arguments() == ["x", "last_sequence_length"]
    assert last.infer_shape(x=(5, 7, 2)) == ([(5, 7, 2), (5,)], [(5, 2)], [])
    assert last.infer_type(x="float64", last_sequence_length="int32")[1] == ["float64"]
    assert sym.SequenceMask(sym.Variable("x")).list_arguments() == ["x"]


@pytest.mark.parametrize(("op", "out"), [("SequenceMask", (0, 3, 2)), ("SequenceLast", (3, 2))])
def test_shapes_are_found_from_the_output_and_the_lengths(op, out):
    symbol = getattr(sym, op)(sym.Variable("x"), sym.Variable("n"), name="s", **TIMES)
    found = infer_shapes(symbol + sym.Variable("y"), {"y": out}).variables
    assert (found["x"], found["n"]) == ((0, 3, 2), (3,))
    found = infer_shapes(symbol, {"x": (7, 0, 2), "n": (3,)})
    assert found.variables["x"] == (7, 3, 2)


def test_mistakes():
    with pytest.raises(
        ShapeError,
        match=r"SequenceMask 'op': sequence_length of shape \(4,\) does "
        r"not fit \(3,\) \(data of shape \(4, 3, 2\)\)",
    ):
        op_graph("SequenceMask", [DATA[0], np.ones(4)], **TIMES)
    with pytest.raises(ShapeError, match=r"data of shape \(3,\) has no time and batch axes"):
        op_graph("SequenceLast", [np.ones(3)])
    with pytest.raises(GraphError, match="axis=2 is not a valid time axis, 0 or 1"):
        op_graph("SequenceReverse", [DATA[0]], axis=2)


@pytest.mark.parametrize("op", OPERATORS)
def test_micro_batches(op):
    for axis in (0, 1):
        layout = Split(1 - axis)
        inputs, given = [DATA[axis], LENGTHS], [layout, Split(0)]
        found = check_layout(op, inputs, given, B, (2, 1), axis=axis, **TIMES)
        assert found == [Split(0) if op == "SequenceLast" else layout]
        found = check_layout(op, [DATA[axis]], [PARTIAL], 2, (1, 1), axis=axis)
        assert found == [PARTIAL]
        behind = check_layout(op, inputs, [Split(2), WHOLE], 2, (1, 1), axis=axis, **TIMES)
        assert behind == [Split(1 if op == "SequenceLast" else 2)]
        with pytest.raises(MicroBatchError, match=f"works along axis {axis}, where the batch"):
            check_layout(op, [DATA[axis]], [Split(axis)], T, (2, 2), axis=axis)
        with pytest.raises(MicroBatchError, match="data and lengths whose batch lies differently"):
            check_layout(op, inputs, [layout, WHOLE], B, (2, 1), axis=axis, **TIMES)


def test_a_masked_sum_over_the_batch():
    inputs, given = [DATA[0], LENGTHS], [PARTIAL, WHOLE]
    assert check_layout("SequenceMask", inputs, given, 2, (1, 1), **TIMES) == [PARTIAL]
    with pytest.raises(MicroBatchError, match="puts a constant into a sum over the batch"):
        check_layout("SequenceMask", inputs, given, 2, (1, 1), value=1.0, **TIMES)
