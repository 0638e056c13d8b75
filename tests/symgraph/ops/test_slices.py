"""Parts of a value at fixed positions: slice_axis, slice and their gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest

from symgraph.core.errors import GraphError, MicroBatchError, ShapeError
from symgraph.core.params import Site
from symgraph.core.registry import OPS, find
from symgraph.passes.testing import check_op, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

EVERY = {"slice_axis", "_pad_axis", "slice", "_slice_grad", "slice_like"}


@pytest.fixture
def rng():
    return np.random.default_rng(4)


def numbers(*shape):
    return np.arange(float(math.prod(shape))).reshape(shape)


def rule(name, data, out, **attrs):
    ins, outs = find(name).shape(Site(name, "op", attrs), [data], [out])
    return ins[0], outs[0]


def test_every_operator_of_the_file_is_checked_here():
    here = {op.name for op in OPS.values() if op.compute.__module__.endswith(".slices")}
    assert here == EVERY
    assert all(OPS[name].flops({}, [], []) == 0 for name in EVERY)


@pytest.mark.parametrize(
    ("axis", "begin", "end"),
    [(0, 1, 3), (1, 0, None), (1, -2, None), (-1, 1, -1), (-2, -4, -1), (0, 0, 4)],
)
def test_slice_axis(axis, begin, end):
    x = numbers(4, 5, 3)
    part = [slice(None)] * 3
    part[axis] = slice(begin, end)
    got = run_op("slice_axis", x, axis=axis, begin=begin, end=end)
    np.testing.assert_array_equal(got, x[tuple(part)])
    check_op("slice_axis", x, axis=axis, begin=begin, end=end)


def test_slice_axis_parameters():
    assert run_op("slice_axis", numbers(4), axis="0", begin="1", end="None").shape == (3,)
    with pytest.raises(GraphError, match="parameter 'begin'"):
        run_op("slice_axis", numbers(4), axis=0, end=2)


@pytest.mark.parametrize(("begin", "end"), [(0, 6), (2, 2), (3, 1), (-6, None), (5, None), (0, -5)])
def test_slice_axis_outside_the_axis(begin, end):
    with pytest.raises(
        ShapeError, match=rf"slice_axis 'op': begin={begin}, end={end} .* length 5$"
    ):
        run_op("slice_axis", numbers(2, 5), axis=1, begin=begin, end=end)


@pytest.mark.parametrize(
    ("data", "out", "part", "data_then", "out_then"),
    [
        ((0, 5), (3, 0), (1, 4), (3, 5), (3, 3)),
        ((3, 0), None, (1, 4), (3, 0), (3, 3)),
        ((3, 0), None, (-4, -1), (3, 0), (3, 3)),
        ((3, 0), None, (1, None), (3, 0), (3, 0)),
        (None, (3, 0), (1, 4), (3, 0), (3, 3)),
        (None, None, (1, 4), None, None),
    ],
)
def test_slice_axis_infers_the_other_axes_both_ways(data, out, part, data_then, out_then):
    got = rule("slice_axis", data, out, axis=1, begin=part[0], end=part[1])
    assert got == (data_then, out_then)


def test_pad_axis():
    x = numbers(2, 3) + 1
    got = run_op("_pad_axis", x, axis=-1, begin=1, size=5)
    np.testing.assert_array_equal(got, [[0, 1, 2, 3, 0], [0, 4, 5, 6, 0]])
    check_op("_pad_axis", x, axis=-1, begin=1, size=5)
    check_op("_pad_axis", x, axis=0, begin=0, size=2)
    with pytest.raises(ShapeError, match="_pad_axis 'op': 3 elements do not fit at 3 of 5"):
        run_op("_pad_axis", x, axis=1, begin=3, size=5)
    assert rule("_pad_axis", None, None, axis=0, begin=0, size=2) == (None, None)


SLICES = [
    ((1,), (3,), ()),
    ((0, 1), (2, -1), ()),
    ((None, -3), (None, None), ()),
    ((None, None, 0), (None, None, 1), (None, 2, 1)),
    ((3, None), (0, None), (-1, -2)),
    ((1,), (100,), (2,)),
    ((-100,), (2,), (1,)),
]


@pytest.mark.parametrize(("begin", "end", "step"), SLICES)
def test_slice(begin, end, step):
    x = numbers(4, 5, 3)
    parts = zip(begin, end, step or (None,) * len(begin), strict=True)
    got = run_op("slice", x, begin=begin, end=end, step=step)
    np.testing.assert_array_equal(got, x[tuple(slice(*p) for p in parts)])
    check_op("slice", x, begin=begin, end=end, step=step)


def test_slice_reads_mxnet_strings():
    got = run_op("slice", numbers(4, 5), begin="(None, 1)", end="(2, None)", step="(1, 2)")
    assert got.shape == (2, 2)
    assert run_op("slice", numbers(4), begin=1, end=None).shape == (3,)
    with pytest.raises(GraphError, match=r"begin='x' is not a valid tuple of ints or None"):
        run_op("slice", numbers(4), begin="x", end=(1,))


@pytest.mark.parametrize(
    ("begin", "end", "step", "why"),
    [
        ((3,), (1,), (), "selects nothing of an axis of length 4"),
        ((9,), (None,), (), "selects nothing"),
        ((0, 0), (1,), (), "have different lengths or a step of 0"),
        ((0,), (1,), (1, 1), "have different lengths"),
        ((0,), (1,), (0,), "a step of 0"),
        ((0, 0, 0), (1, 1, 1), (), r"slices 3 axes of data of shape \(4, 5\)"),
    ],
)
def test_slice_mistakes(begin, end, step, why):
    with pytest.raises(ShapeError, match=f"slice 'op': .*{why}"):
        run_op("slice", numbers(4, 5), begin=begin, end=end, step=step)


def test_slice_infers_the_axes_behind_both_ways():
    attrs = {"begin": (1,), "end": (3,), "step": ()}
    assert rule("slice", (4, 0), (0, 5), **attrs) == ((4, 5), (2, 5))
    assert rule("slice", (0, 5), None, **attrs) == ((0, 5), (0, 5))
    assert rule("slice", None, (2, 5), **attrs) == (None, (2, 5))


@pytest.mark.parametrize(("begin", "end", "step"), SLICES)
def test_slice_grad(begin, end, step):
    attrs = {"begin": begin, "end": end, "step": step}
    taken = run_op("slice", numbers(4, 5, 3) + 1, **attrs)
    got = run_op("_slice_grad", taken, shape=(4, 5, 3), **attrs)
    assert got.sum() == taken.sum()
    np.testing.assert_array_equal(run_op("slice", got, **attrs), taken)
    check_op("_slice_grad", taken, shape=(4, 5, 3), **attrs)
    with pytest.raises(ShapeError, match=r"_slice_grad 'op': data of shape \(9, 9, 9\)"):
        run_op("_slice_grad", np.ones((9, 9, 9)), shape=(4, 5, 3), **attrs)


# -- layouts -----------------------------------------------------------------------------------


def test_slices_of_other_axes_keep_the_samples(rng):
    x = [rng.standard_normal((3, 4, 6))]
    run = dict(arrays=x, layouts=[Split(1)], batch=4, parts=(2, 1, 1))
    for axis in (0, 2, -1):
        got = check_layout("slice_axis", **run, axis=axis, begin=1, end=3)
        assert got == [Split(1)]
    assert check_layout("slice", **run, begin=(1,), end=(2,)) == [Split(1)]
    both = {"begin": (1, None, 5), "end": (None, None, 2), "step": (None, 1, -1)}
    assert check_layout("slice", **run, **both) == [Split(1)]
    assert check_layout("_pad_axis", **run, axis=0, begin=2, size=6) == [Split(1)]
    into = {"begin": (0, None, 1), "end": (3, None, 7), "shape": lambda b: (5, b, 8)}
    assert check_layout("_slice_grad", **run, **into) == [Split(1)]


@pytest.mark.parametrize("layout", [WHOLE, PARTIAL])
def test_values_without_a_batch_axis(layout, rng):
    run = dict(arrays=[rng.standard_normal((3, 4))], layouts=[layout], batch=4, parts=(3, 1))
    assert check_layout("slice_axis", **run, axis=0, begin=1, end=None) == [layout]
    assert check_layout("slice", **run, begin=(1, 1), end=(2, 3)) == [layout]
    assert check_layout("_pad_axis", **run, axis=1, begin=1, size=6) == [layout]
    into = {"begin": (0,), "end": (3,), "shape": (5, 4)}
    assert check_layout("_slice_grad", **run, **into) == [layout]


def test_the_whole_batch_axis_may_be_named(rng):
    run = dict(arrays=[rng.standard_normal((4, 3))], layouts=[Split(0)], batch=4, parts=(3, 1))
    assert check_layout("slice_axis", **run, axis=0, begin=0, end=None) == [Split(0)]
    assert check_layout("slice", **run, begin=(0, 1), end=(None, 3)) == [Split(0)]


@pytest.mark.parametrize("layout", [Split(0), Split(0, outer=3)])
def test_fixed_positions_of_the_batch_axis_are_refused(layout):
    """Rows 0..2 of every micro-batch are other samples, or other time steps, than 0..2 of all."""
    x = [np.ones((6, 2))]
    for name, attrs in (
        ("slice_axis", {"axis": 0, "begin": 0, "end": 2}),
        ("slice_axis", {"axis": -2, "begin": 2, "end": None}),
        ("slice", {"begin": (0, None), "end": (2, None)}),
        ("slice", {"begin": (None,), "end": (None,), "step": (-1,)}),
    ):
        with pytest.raises(MicroBatchError, match=f"{name} 'op' takes fixed positions"):
            check_layout(name, x, [layout], 6 // layout.outer, [6 // layout.outer], **attrs)
    with pytest.raises(MicroBatchError, match="_pad_axis 'op' pads the batch axis"):
        check_layout("_pad_axis", x, [Split(0)], 6, [6], axis=0, begin=0, size=8)


# -- slice_like --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("like", "axes", "part"),
    [
        ((2, 5, 1), (), np.s_[:2, :, :1]),
        ((9, 2), (1,), np.s_[:, :2]),
        ((2, 9, 2), (0, -1), np.s_[:2, :, :2]),
    ],
)
def test_slice_like(like, axes, part, rng):
    x = rng.standard_normal((4, 5, 3))
    np.testing.assert_array_equal(run_op("slice_like", x, numbers(*like), axes=axes), x[part])
    check_op("slice_like", x, numbers(*like), axes=axes)
    got = run_op("slice_like", x, numbers(*like).astype("int32"), axes=axes)
    assert got.dtype == "float64"


@pytest.mark.parametrize(
    ("like", "axes", "message"),
    [
        ((2, 5), (), r"shapes \(4, 5, 3\) and \(2, 5\) have other numbers of axes; give axes="),
        ((2, 6, 3), (), r"is shorter than shape_like \(2, 6, 3\) along axis 1"),
        ((2, 5), (2,), "axis 2 is out of range for 2 dimensions"),
    ],
)
def test_slice_like_of_what_does_not_fit(like, axes, message):
    with pytest.raises(ShapeError, match=message):
        run_op("slice_like", numbers(4, 5, 3), numbers(*like), axes=axes)


def test_slice_like_layouts():
    x, like = numbers(4, 5), numbers(4, 2)
    both = [Split(0), Split(0)]
    assert check_layout("slice_like", [x, like], both, 4, (1, 3)) == [Split(0)]
    assert check_layout("slice_like", [x, like], [PARTIAL, WHOLE], 4, (1, 3)) == [PARTIAL]
    for layouts, message in (
        ([Split(0), WHOLE], "cuts axis 0, where the batch lies"),
        ([WHOLE, Split(0)], "cuts axis 0 to the number of samples"),
    ):
        with pytest.raises(MicroBatchError, match=message):
            check_layout("slice_like", [x, like], layouts, 4, (1, 3))
    cut = {"axes": (1,)}
    assert check_layout("slice_like", [x, like], [Split(0), WHOLE], 4, (1, 3), **cut) == [Split(0)]
