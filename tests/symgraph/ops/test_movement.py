"""Axes rearranged: Reshape, Flatten, transpose, SwapAxis, expand_dims, squeeze."""

from __future__ import annotations

import math

import numpy as np
import pytest

from symgraph.core.errors import GraphError, MicroBatchError, ShapeError
from symgraph.core.params import Site
from symgraph.core.registry import ALIASES, OPS, find
from symgraph.passes.testing import check_op, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

EVERY = {"Reshape", "Flatten", "transpose", "SwapAxis", "expand_dims", "squeeze"}


@pytest.fixture
def rng():
    return np.random.default_rng(2)


def numbers(*shape):
    return np.arange(float(math.prod(shape))).reshape(shape)


def rule(name, data, out, **attrs):
    ins, outs = find(name).shape(Site(name, "op", attrs), [data], [out])
    return ins[0], outs[0]


def test_every_operator_of_the_file_is_checked_here():
    here = {op.name for op in OPS.values() if op.compute.__module__.endswith(".movement")}
    assert here == EVERY | {"reshape_like"}
    assert [ALIASES[a] for a in ("reshape", "flatten", "swapaxes")] == [
        "Reshape",
        "Flatten",
        "SwapAxis",
    ]


# -- Reshape -----------------------------------------------------------------------------------

CODES = [
    # data, shape, reverse, output: the examples of MXNet's documentation first
    ((2, 3, 4), (4, 0, 2), False, (4, 3, 2)),
    ((2, 3, 4), (2, 0, 0), False, (2, 3, 4)),
    ((2, 3, 4), (6, 1, -1), False, (6, 1, 4)),
    ((2, 3, 4), (3, -1, 8), False, (3, 1, 8)),
    ((2, 3, 4), (-1,), False, (24,)),
    ((2, 3, 4), (-2,), False, (2, 3, 4)),
    ((2, 3, 4), (2, -2), False, (2, 3, 4)),
    ((2, 3, 4), (-2, 1, 1), False, (2, 3, 4, 1, 1)),
    ((2, 3, 4), (-3, 4), False, (6, 4)),
    ((2, 3, 4, 5), (-3, -3), False, (6, 20)),
    ((2, 3, 4), (0, -3), False, (2, 12)),
    ((2, 3, 4), (-3, -2), False, (6, 4)),
    ((2, 3, 4), (-4, 1, 2, -2), False, (1, 2, 3, 4)),
    ((2, 3, 4), (2, -4, -1, 3, -2), False, (2, 1, 3, 4)),
    ((10, 5, 4), (-1, 0), False, (40, 5)),
    ((10, 5, 4), (-1, 0), True, (50, 4)),
    ((3, 4), (0, -1, 2, -4), True, (3, 2, 2)),
    ((2, 3, 4), (-3, 0), True, (6, 4)),
    ((6, 4), (2, 3, -4, 0), True, (2, 3, 4)),
    ((2, 3), (0, 0, -2), False, (2, 3)),
    ((1, 1), (), False, ()),
    ((), (1, -1), False, (1, 1)),
]


@pytest.mark.parametrize(("data", "shape", "reverse", "out"), CODES)
def test_reshape_codes(data, shape, reverse, out):
    x = numbers(*data)
    got = run_op("Reshape", x, shape=shape, reverse=reverse)
    np.testing.assert_array_equal(got, x.reshape(out))
    check_op("Reshape", x, shape=shape, reverse=reverse)


def test_reshape_reads_mxnet_strings():
    assert run_op("Reshape", numbers(4, 3), shape="(-1, 2)", reverse="False").shape == (6, 2)
    assert run_op("Reshape", numbers(4, 3), shape=-1).shape == (12,)
    with pytest.raises(GraphError, match="parameter 'shape'"):
        run_op("Reshape", numbers(2))


@pytest.mark.parametrize(
    ("data", "shape", "why"),
    [
        ((4, 5), (3, 7), r"cannot reshape \(4, 5\) \(20 elements\) to shape=\(3, 7\)"),
        ((4, 5), (3, -1), r"cannot reshape \(4, 5\)"),
        ((4, 5), (0, -1, 0), r"needs more axes than data of shape \(4, 5\) has"),
        ((4, 5), (20, -3), "needs more axes"),
        ((4, 5), (0, 0, -4, 1, -1), "needs more axes"),
        ((4, 5), (-1, -1), r"more than one dimension \(-1\)"),
        ((4, 5), (-5, 4), "is not valid; codes are"),
        ((4, 5), (-4, 2), "is not valid; codes are"),
        ((4, 5), (-4, -1, -1, 0), "is not valid; codes are"),
        ((4, 5), (-4, 3, -1, 0), "cuts an axis of length 4 in 3 x 1"),
        ((4, 5), (-4, 3, 2, 0), "cuts an axis of length 4 in 3 x 2"),
    ],
)
def test_reshape_mistakes(data, shape, why):
    with pytest.raises(ShapeError, match=f"Reshape 'op': .*{why}"):
        run_op("Reshape", numbers(*data), shape=shape)


@pytest.mark.parametrize(
    ("shape", "data", "out", "data_then", "out_then"),
    [
        ((0, -1), (0, 3, 4), None, (0, 3, 4), (0, 0)),
        ((0, -1), (0, 3, 4), (5, 0), (5, 3, 4), (5, 12)),
        ((-3, 0), (5, 0, 4), (10, 0), (5, 2, 4), (10, 4)),
        ((-3, 0), (5, 0, 0), None, (5, 0, 0), (0, 0)),
        ((-2,), (0, 3), (2, 0), (2, 3), (2, 3)),
        ((-4, 2, -1, 0), (0, 4), (2, 3, 0), (6, 4), (2, 3, 4)),
        ((-1, 6), (0, 3), (4, 6), (8, 3), (4, 6)),
        ((3, 4), None, None, None, (3, 4)),
        ((0, 4, -1), None, (2, 0, 6), None, (2, 4, 6)),
        ((-2, 4), None, None, None, None),
        ((-4, 2, -1, 3), None, None, None, (2, 0, 3)),
    ],
)
def test_reshape_infers_both_ways(shape, data, out, data_then, out_then):
    assert rule("Reshape", data, out, shape=shape, reverse=False) == (data_then, out_then)


def test_reshape_infers_from_the_right():
    assert rule("Reshape", (0, 3, 0), (0, 4), shape=(-1, 0), reverse=True) == ((0, 3, 4), (0, 4))


# -- the others --------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [(2, 3, 4), (2, 3), (5,)])
def test_flatten(data):
    x = numbers(*data)
    np.testing.assert_array_equal(run_op("Flatten", x), x.reshape(data[0], -1))
    check_op("Flatten", x)


def test_flatten_shapes():
    assert rule("Flatten", (0, 3, 4), (5, 0)) == ((5, 3, 4), (5, 12))
    assert rule("Flatten", (2, 3, 0), (0, 12)) == ((2, 3, 4), (2, 12))
    assert rule("Flatten", None, None) == (None, (0, 0))
    with pytest.raises(ShapeError, match="Flatten 'op': needs at least one axis"):
        run_op("Flatten", np.array(1.0))


@pytest.mark.parametrize("axes", [(), (0, 1, 2), (2, 0, 1), (1, 2, 0), (-1, 0, 1)])
def test_transpose(axes):
    x = numbers(2, 3, 4)
    np.testing.assert_array_equal(run_op("transpose", x, axes=axes), x.transpose(axes or None))
    check_op("transpose", x, axes=axes)


@pytest.mark.parametrize("dims", [(0, 1), (0, 2), (-1, 1), (1, 1)])
def test_swapaxis(dims):
    x = numbers(2, 3, 4)
    got = run_op("SwapAxis", x, dim1=dims[0], dim2=dims[1])
    np.testing.assert_array_equal(got, x.swapaxes(*dims))
    check_op("SwapAxis", x, dim1=dims[0], dim2=dims[1])
    np.testing.assert_array_equal(run_op("SwapAxis", x), x)


def test_permutations_are_inferred_both_ways():
    assert rule("transpose", (2, 0, 4), (0, 3, 0), axes=()) == ((2, 3, 4), (4, 3, 2))
    assert rule("transpose", None, (4, 2, 0), axes=(2, 0, 1)) == ((2, 0, 4), (4, 2, 0))
    assert rule("transpose", None, None, axes=()) == (None, None)
    assert rule("SwapAxis", None, (4, 3, 2), dim1=0, dim2=2) == ((2, 3, 4), (4, 3, 2))


@pytest.mark.parametrize("axes", [(0, 0), (0, 1, 2), (0, 2)])
def test_axes_that_are_no_permutation(axes):
    with pytest.raises(ShapeError, match=r"transpose 'op': axes=.* is not a permutation of 2 axes"):
        run_op("transpose", numbers(2, 3), axes=axes)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_expand_dims(axis):
    x = numbers(2, 3)
    np.testing.assert_array_equal(run_op("expand_dims", x, axis=axis), np.expand_dims(x, axis))
    check_op("expand_dims", x, axis=axis)


def test_expand_dims_shapes():
    assert rule("expand_dims", (2, 0), (0, 1, 3), axis=1) == ((2, 3), (2, 1, 3))
    assert rule("expand_dims", None, (2, 0, 3), axis=1) == ((2, 3), (2, 1, 3))
    assert rule("expand_dims", None, None, axis=1) == (None, None)
    with pytest.raises(ShapeError, match="expand_dims 'op': axis 3 is out of range for 3"):
        run_op("expand_dims", numbers(2, 3), axis=3)
    with pytest.raises(ShapeError, match=r"output shapes differ: \(0, 1, 0\) and \(2, 2, 3\)"):
        rule("expand_dims", None, (2, 2, 3), axis=1)


@pytest.mark.parametrize(
    ("data", "axis", "out"),
    [
        ((2, 1, 3, 1), None, (2, 3)),
        ((2, 1, 3, 1), 1, (2, 3, 1)),
        ((2, 1, 3, 1), (-1, 1), (2, 3)),
        ((1, 1), None, (1,)),
        ((1,), 0, (1,)),
    ],
)
def test_squeeze(data, axis, out):
    x = numbers(*data)
    np.testing.assert_array_equal(run_op("squeeze", x, axis=axis), x.reshape(out))
    check_op("squeeze", x, axis=axis)


def test_squeeze_shapes():
    assert rule("squeeze", (0, 0, 3), (2, 0), axis=(1,)) == ((2, 1, 3), (2, 3))
    assert rule("squeeze", (0, 1, 3), None, axis=None) == ((0, 1, 3), None)
    assert rule("squeeze", None, (2, 3), axis=(1,)) == (None, (2, 3))
    with pytest.raises(ShapeError, match=r"axis 1 of shape \(2, 3\) has length 3, not 1"):
        run_op("squeeze", numbers(2, 3), axis=1)


def test_movement_costs_no_flops():
    for name in EVERY:
        assert OPS[name].flops({}, [], []) == 0


# -- layouts -----------------------------------------------------------------------------------

T, B, H = 3, 4, 6
TIME_MAJOR = Split(1)  # (T, B, H)


@pytest.mark.parametrize("parts", [(2, 2), (2, 1, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((-3, 0), Split(0, outer=T)),
        ((-1, H), Split(0, outer=T)),
        ((0, 0, -4, 2, 3), Split(1)),
        ((0, 0, -1), Split(1)),
        ((0, -3), Split(1, inner=H)),
        ((-1,), Split(0, outer=T, inner=H)),
        ((-4, -1, 1, 0, 0), Split(2)),
        ((0, 1, -1, H), Split(2)),
    ],
)
def test_reshapes_of_time_major_data(shape, layout, parts, rng):
    """With one sample (T, 1, H) looks as if time were the batch; the codes tell them apart."""
    x = [rng.standard_normal((T, B, H))]
    assert check_layout("Reshape", x, [TIME_MAJOR], B, parts, shape=shape) == [layout]


def test_reshape_back_to_time_major(rng):
    merged = [rng.standard_normal((T * B, H))]
    layout = Split(0, outer=T)
    run = dict(op="Reshape", arrays=merged, layouts=[layout], batch=B, parts=(2, 1, 1))
    assert check_layout(**run, shape=(T, -1, H)) == [TIME_MAJOR]
    assert check_layout(**run, shape=(-4, T, -1, 0)) == [TIME_MAJOR]
    assert check_layout(**run, shape=(-1, 0), reverse=True) == [layout]


@pytest.mark.parametrize("parts", [(3, 1), (1, 1, 2)])
def test_flatten_keeps_the_samples(parts, rng):
    x = [rng.standard_normal((B, T, H))]
    assert check_layout("Flatten", x, [Split(0)], B, parts) == [Split(0)]
    x = [rng.standard_normal((T, B, H))]
    assert check_layout("Flatten", x, [TIME_MAJOR], B, parts) == [Split(1, inner=H)]


def test_reshape_that_names_the_number_of_samples(rng):
    x = [rng.standard_normal((T, B, H))]
    shape = lambda samples: (T * samples, H)  # noqa: E731
    run = dict(op="Reshape", arrays=x, layouts=[TIME_MAJOR], batch=B, parts=(2, 2))
    assert check_layout(**run, shape=shape) == [Split(0, outer=T)]


@pytest.mark.parametrize(
    ("data", "shape"), [((4, 6), (3, 8)), ((4, 6), (2, -1)), ((6, 4), (3, -1))]
)
def test_reshape_across_samples_is_refused(data, shape):
    with pytest.raises(MicroBatchError, match=r"Reshape 'op' reshapes \(\d, \d\) to .* across"):
        check_layout("Reshape", [np.ones(data)], [Split(0)], data[0], (data[0],), shape=shape)


@pytest.mark.parametrize(
    ("name", "attrs", "layout"),
    [
        ("transpose", {"axes": ()}, Split(1)),
        ("transpose", {"axes": (1, 0, 2)}, Split(0)),
        ("transpose", {"axes": (2, 0, -2)}, Split(2)),
        ("SwapAxis", {"dim1": 0, "dim2": 1}, Split(0)),
        ("SwapAxis", {"dim1": 0, "dim2": -1}, Split(1)),
        ("expand_dims", {"axis": 0}, Split(2)),
        ("expand_dims", {"axis": 1}, Split(2)),
        ("expand_dims", {"axis": 2}, Split(1)),
        ("expand_dims", {"axis": -1}, Split(1)),
    ],
)
def test_the_batch_axis_moves(name, attrs, layout, rng):
    x = [rng.standard_normal((T, B, H))]
    assert check_layout(name, x, [TIME_MAJOR], B, (2, 1, 1), **attrs) == [layout]


def test_squeeze_moves_the_batch_axis(rng):
    x = [rng.standard_normal((1, B, 1, H))]
    run = dict(op="squeeze", arrays=x, layouts=[Split(1)], batch=B)
    assert check_layout(**run, parts=(2, 1, 1), axis=0) == [Split(0)]
    assert check_layout(**run, parts=(2, 1, 1), axis=2) == [Split(1)]
    assert check_layout(**run, parts=(2, 2)) == [Split(0)]


def test_squeeze_does_not_drop_a_single_sample():
    with pytest.raises(MicroBatchError, match=r"squeeze 'op' drops the batch axis .*say which"):
        check_layout("squeeze", [np.ones((4, 3))], [Split(0)], 4, (3, 1))


@pytest.mark.parametrize("layout", [WHOLE, PARTIAL])
@pytest.mark.parametrize("name", sorted(EVERY))
def test_values_without_a_batch_axis(name, layout, rng):
    attrs = {"Reshape": {"shape": (3, -1)}, "expand_dims": {"axis": 0}}.get(name, {})
    x = [rng.standard_normal((2, 1, 3))]
    assert check_layout(name, x, [layout], 4, (3, 1), **attrs) == [layout]


# -- reshape_like ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "attrs", "want"),
    [
        ((4, 6), (3, 8), {}, (3, 8)),
        ((30, 7), (15, 2, 4), {"lhs_begin": 0, "lhs_end": 1, "rhs_end": 2}, (15, 2, 7)),
        ((3, 5), (1, 15, 4), {"lhs_end": 2, "rhs_begin": 1, "rhs_end": 2}, (15,)),
        ((30, 12), (4, 2, 2, 3), {"lhs_begin": -1, "rhs_begin": 1}, (30, 2, 2, 3)),
    ],
)
def test_reshape_like(left, right, attrs, want):
    """The examples of MXNet's documentation."""
    x = np.arange(float(np.prod(left))).reshape(left)
    got = run_op("reshape_like", x, np.zeros(right, "int32"), **attrs)
    np.testing.assert_array_equal(got, x.reshape(want))
    check_op("reshape_like", x, np.zeros(right, "int32"), **attrs)


def test_reshape_like_says_what_does_not_fit():
    with pytest.raises(ShapeError, match=r"cannot reshape \(4, 6\) to \(3, 7\), which \(3, 7\)"):
        run_op("reshape_like", np.zeros((4, 6)), np.zeros((3, 7)))
    with pytest.raises(ShapeError, match="lhs_begin=2, lhs_end=1 are no axes of 2 dimensions"):
        run_op("reshape_like", np.zeros((4, 6)), np.zeros((4, 6)), lhs_begin=2, lhs_end=1)


def test_reshape_like_layouts():
    x, like = np.arange(24.0).reshape(4, 6), np.zeros((4, 3, 2))
    run = {"op": "reshape_like", "batch": 4, "parts": (1, 3)}
    arrays = [x, like]
    assert check_layout(arrays=arrays, layouts=[Split(0), Split(0)], **run) == [Split(0)]
    behind = {"lhs_begin": 1, "rhs_begin": 1}
    for layout in (Split(0), PARTIAL):
        found = check_layout(arrays=arrays, layouts=[layout, WHOLE], **run, **behind)
        assert found == [layout]
    front = {"lhs_end": 1, "rhs_end": 2}
    arrays = [x, np.zeros((2, 2, 3))]
    halves = {"op": "reshape_like", "batch": 6, "parts": (2, 4)}
    assert check_layout(arrays=arrays, layouts=[Split(1), WHOLE], **halves, **front) == [Split(2)]
    for layouts, message in (
        ([Split(0), WHOLE], "whose batch lies differently"),
        ([WHOLE, Split(0)], "takes the number of samples as a length"),
    ):
        with pytest.raises(MicroBatchError, match=message):
            check_layout(arrays=[x, like], layouts=layouts, **run)
