"""Values cut into parts and joined: SliceChannel, `_cut`, Concat, stack."""

from __future__ import annotations

import math

import numpy as np
import pytest

from symgraph.core.errors import DTypeError, GraphError, MicroBatchError, ShapeError
from symgraph.core.graph import Graph
from symgraph.core.params import Site
from symgraph.core.reference import evaluate
from symgraph.core.registry import ALIASES, OPS, find
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

EVERY = {"_join_shares", "SliceChannel", "_cut", "Concat", "stack"}


@pytest.fixture
def rng():
    return np.random.default_rng(9)


def numbers(*shape):
    return np.arange(float(math.prod(shape))).reshape(shape)


def rule(name, ins, outs, **attrs):
    given, found = find(name).shape(Site(name, "op", attrs), ins, outs)
    return list(given), list(found)


def test_every_operator_of_the_file_is_checked_here():
    here = {op.name for op in OPS.values() if op.compute.__module__.endswith(".joins")}
    assert here == EVERY
    assert (ALIASES["split"], ALIASES["concat"]) == ("SliceChannel", "Concat")
    assert all(OPS[name].flops({}, [], []) == 0 for name in EVERY)


# -- SliceChannel ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "count", "squeeze"), [(1, 2, False), (0, 3, False), (-1, 5, True), (0, 3, True)]
)
def test_slice_channel(axis, count, squeeze):
    x = numbers(3, 4, 5)
    attrs = {"axis": axis, "num_outputs": count, "squeeze_axis": squeeze}
    want = np.split(x, count, axis)
    for got, part in zip(run_op("SliceChannel", x, **attrs), want, strict=True):
        np.testing.assert_array_equal(got, part.squeeze(axis) if squeeze else part)
    check_op("SliceChannel", x, **attrs)


def test_slice_channel_defaults():
    parts = run_op("SliceChannel", numbers(2, 6), num_outputs="3")
    assert [p.shape for p in parts] == [(2, 2)] * 3
    assert find("split").output_names({"num_outputs": 3}) == ("output0", "output1", "output2")
    np.testing.assert_array_equal(run_op("split", numbers(2, 6), num_outputs=1), numbers(2, 6))
    check_op("split", numbers(2, 3), num_outputs=1)


@pytest.mark.parametrize("squeeze", [False, True])
@pytest.mark.parametrize("used", [(0,), (2,), (0, 2)])
def test_parts_that_no_loss_depends_on_have_zero_gradients(used, squeeze):
    whole = op_graph("SliceChannel", [numbers(2, 3)], num_outputs=3, squeeze_axis=squeeze)
    graph = Graph.of(whole, [whole.outputs[i] for i in used])
    both = gradients(graph, ["x0"])
    heads = {
        name: np.full(graph.type_of(graph.outputs[i]).shape, i + 1.0)
        for i, name in both.heads.items()
    }
    grad = evaluate(both.graph, {"x0": numbers(2, 3), **heads})[-1]
    want = [used.index(i) + 1.0 if i in used else 0.0 for i in range(3)]
    np.testing.assert_array_equal(grad, [want, want])


@pytest.mark.parametrize(
    ("data", "attrs", "why"),
    [
        ((4, 10), {"num_outputs": 3}, r"axis 1 of shape \(4, 10\) cannot be cut into 3 equal"),
        ((4, 10), {"num_outputs": 2, "axis": 2}, "axis 2 is out of range for 2 dimensions"),
        ((4, 10), {"num_outputs": 5, "squeeze_axis": True}, "squeeze_axis needs parts of length 1"),
    ],
)
def test_slice_channel_mistakes(data, attrs, why):
    with pytest.raises(ShapeError, match=f"SliceChannel 'op': .*{why}"):
        run_op("SliceChannel", np.ones(data), **attrs)


@pytest.mark.parametrize("count", [0, -2])
def test_there_is_one_part_or_more(count):
    with pytest.raises(GraphError, match=f"num_outputs={count} is not a valid int of 1 to 100000"):
        run_op("SliceChannel", np.ones((4, 10)), num_outputs=count)


@pytest.mark.parametrize(
    ("data", "outs", "squeeze", "data_then", "out_then"),
    [
        ((0, 6), [(4, 0), None, None], False, (4, 6), (4, 2)),
        ((4, 0), [None, (0, 2), None], False, (4, 6), (4, 2)),
        (None, [None, None, (4, 2)], False, (4, 6), (4, 2)),
        (None, [(4,), None, None], True, (4, 3), (4,)),
        ((4, 0), [None] * 3, False, (4, 0), (4, 0)),
        ((0, 0), [None] * 3, True, (0, 3), (0,)),
    ],
)
def test_slice_channel_infers_both_ways(data, outs, squeeze, data_then, out_then):
    attrs = {"num_outputs": 3, "axis": 1, "squeeze_axis": squeeze}
    assert rule("SliceChannel", [data], outs, **attrs) == ([data_then], [out_then] * 3)
    assert rule("SliceChannel", [None], [None] * 3, **attrs) == ([None], [None] * 3)


# -- _cut --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("axis", "sizes"), [(0, (1, 2)), (1, (3, 1)), (-1, (2, 1, 2)), (0, (3,))])
def test_cut(axis, sizes):
    x = numbers(3, 4, 5)
    want = np.split(x, np.cumsum(sizes)[:-1], axis)
    got = run_op("_cut", x, axis=axis, sizes=sizes)
    for a, b in zip(got if len(sizes) > 1 else [got], want, strict=True):
        np.testing.assert_array_equal(a, b)
    check_op("_cut", x, axis=axis, sizes=sizes)


def test_sizes_that_no_loss_depends_on_have_zero_gradients():
    whole = op_graph("_cut", [numbers(2, 6)], sizes=(1, 2, 3), axis=1)
    both = gradients(Graph.of(whole, [whole.outputs[1]]), ["x0"])
    feeds = {"x0": numbers(2, 6), both.heads[0]: np.full((2, 2), 7.0)}
    grad = evaluate(both.graph, feeds)[-1]
    np.testing.assert_array_equal(grad, [[0, 7, 7, 0, 0, 0]] * 2)


def test_cut_shapes():
    attrs = {"sizes": (1, 3), "axis": 1}
    assert rule("_cut", [None], [None, None], **attrs) == ([None], [None, None])
    assert rule("_cut", [(2, 0)], [None, None], **attrs) == ([(2, 4)], [(2, 1), (2, 3)])
    assert rule("_cut", [None], [None, (5, 0)], **attrs) == ([(5, 4)], [(5, 1), (5, 3)])
    with pytest.raises(ShapeError, match=r"data and sizes differ: \(2, 5\) and \(0, 4\)"):
        rule("_cut", [(2, 5)], [None, None], **attrs)
    with pytest.raises(ShapeError, match=r"output shapes differ: \(2, 2\) and \(0, 1\)"):
        rule("_cut", [None], [(2, 2), None], **attrs)
    with pytest.raises(ShapeError, match=r"sizes=\(4, 0\) are not all positive"):
        rule("_cut", [(2, 4)], [None, None], sizes=(4, 0), axis=1)


def test_cut_keeps_the_batch_axis(rng):
    x = [rng.standard_normal((4, 6))]
    got = check_layout("_cut", x, [Split(0)], 4, (3, 1), sizes=(2, 4), axis=1)
    assert got == [Split(0)] * 2
    with pytest.raises(MicroBatchError, match="_cut 'op' cuts the batch axis"):
        check_layout("_cut", x, [Split(0)], 4, (4,), sizes=(1, 3), axis=0)


# -- Concat ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "dim"),
    [
        ([(2, 3), (2, 3), (2, 3)], 1),
        ([(2, 3), (2, 1), (2, 4)], 1),
        ([(2, 3), (2, 1), (2, 4)], -1),
        ([(4, 3), (1, 3)], 0),
        ([(2, 3)], 1),
    ],
)
def test_concat(shapes, dim, rng):
    arrays = [rng.standard_normal(s) for s in shapes]
    attrs = {"num_args": len(arrays), "dim": dim}
    for op in ("Concat", "_join_shares"):
        np.testing.assert_array_equal(run_op(op, *arrays, **attrs), np.concatenate(arrays, dim))
        check_op(op, *arrays, **attrs)


def test_concat_defaults():
    got = run_op("concat", numbers(2, 3), numbers(2, 1), num_args="2")
    assert got.shape == (2, 4)
    assert find("Concat").input_names({"num_args": 2}) == ("arg0", "arg1")
    assert find("Concat").variadic == find("stack").variadic == "num_args"


@pytest.mark.parametrize(
    ("ins", "out", "ins_then", "out_then"),
    [
        ([(0, 3), (4, 2)], None, [(4, 3), (4, 2)], (4, 5)),
        ([(4, 3), None], None, [(4, 3), (4, 0)], (4, 0)),
        ([(4, 3), None], (0, 8), [(4, 3), (4, 5)], (4, 8)),
        ([(0, 3), (0, 0)], (4, 8), [(4, 3), (4, 5)], (4, 8)),
        ([None, None], (4, 8), [(4, 0), (4, 0)], (4, 8)),
        ([None, None], None, [None, None], None),
    ],
)
def test_concat_infers_both_ways(ins, out, ins_then, out_then):
    attrs = {"num_args": 2, "dim": 1}
    assert rule("Concat", ins, [out], **attrs) == (ins_then, [out_then])


@pytest.mark.parametrize(
    ("ins", "out", "why"),
    [
        ([(4, 3), (5, 3)], None, r"cannot join shapes \[\(4, 3\), \(5, 3\)\] along axis 1: other"),
        ([(4, 3), (4, 3, 1)], None, r"different ranks: \[\(4, 3\), \(4, 3, 1\)\]"),
        ([(4, 3), (4, 2)], (4, 6), r"lengths \[3, 2\] along axis 1 do not add up to 6"),
        ([(4, 3), (4, 0)], (4, 3), r"lengths \[3, 0\] along axis 1 leave nothing of 3"),
        ([(4,), (4,)], None, "axis 1 is out of range for 1 dimensions"),
    ],
)
def test_concat_mistakes(ins, out, why):
    with pytest.raises(ShapeError, match=f"Concat 'op': .*{why}"):
        rule("Concat", ins, [out], num_args=2, dim=1)


def test_concat_joins_one_dtype():
    with pytest.raises(DTypeError, match="Concat 'op': inputs have dtypes float64 and float32"):
        run_op("Concat", np.ones((1, 2)), np.ones((1, 2), "float32"), num_args=2)
    joined = run_op("Concat", np.ones((1, 2), bool), np.ones((1, 1), bool), num_args=2)
    assert joined.dtype == "bool"


# -- stack -------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("count", [1, 3])
def test_stack(axis, count, rng):
    arrays = [rng.standard_normal((2, 3)) for _ in range(count)]
    attrs = {"num_args": count, "axis": axis}
    np.testing.assert_array_equal(run_op("stack", *arrays, **attrs), np.stack(arrays, axis))
    check_op("stack", *arrays, **attrs)


def test_stack_shapes():
    attrs = {"num_args": 2, "axis": 1}
    assert rule("stack", [(0, 3), None], [None], **attrs) == ([(0, 3)] * 2, [(0, 2, 3)])
    assert rule("stack", [(0, 3), None], [(4, 0, 0)], **attrs) == ([(4, 3)] * 2, [(4, 2, 3)])
    assert rule("stack", [None, None], [(4, 0, 3)], **attrs) == ([(4, 3)] * 2, [(4, 2, 3)])
    assert rule("stack", [None, None], [None], **attrs) == ([None, None], [None])
    with pytest.raises(ShapeError, match=r"stack 'op': shapes of inputs differ: \(2, 3\) and"):
        run_op("stack", numbers(2, 3), numbers(2, 2), num_args=2)
    with pytest.raises(ShapeError, match="stack 'op': axis 3 is out of range for 3 dimensions"):
        run_op("stack", numbers(2, 3), num_args=1, axis=3)


# -- layouts -----------------------------------------------------------------------------------

T, B, H = 3, 4, 6


@pytest.mark.parametrize(
    ("axis", "count", "squeeze", "layout"),
    [
        (0, T, False, Split(1)),
        (0, T, True, Split(0)),
        (2, 2, False, Split(1)),
        (-1, H, True, Split(1)),
    ],
)
def test_cut_time_major_data(axis, count, squeeze, layout, rng):
    x = [rng.standard_normal((T, B, H))]
    attrs = {"axis": axis, "num_outputs": count, "squeeze_axis": squeeze}
    got = check_layout("SliceChannel", x, [Split(1)], B, (2, 1, 1), **attrs)
    assert got == [layout] * count


def test_cut_merged_time_steps(rng):
    x = [rng.standard_normal((6 * B * 2, H))]
    run = dict(op="SliceChannel", arrays=x, layouts=[Split(0, outer=6, inner=2)], batch=B, axis=0)
    assert check_layout(**run, parts=(3, 1), num_outputs=6) == [Split(0, inner=2)] * 6
    assert check_layout(**run, parts=(2, 2), num_outputs=2) == [Split(0, outer=3, inner=2)] * 2
    for count in (4, 12):
        with pytest.raises(MicroBatchError, match="SliceChannel 'op' cuts the batch axis"):
            check_layout(**run, parts=(2, 2), num_outputs=count)


@pytest.mark.parametrize("layout", [WHOLE, PARTIAL])
def test_values_without_a_batch_axis(layout, rng):
    x = [rng.standard_normal((3, 4)) for _ in range(2)]
    run = dict(batch=4, parts=(3, 1))
    assert check_layout("split", x[:1], [layout], **run, num_outputs=2) == [layout] * 2
    assert check_layout("Concat", x, [layout] * 2, **run, num_args=2) == [layout]
    assert check_layout("stack", x, [layout] * 2, **run, num_args=2) == [layout]


def test_join_time_steps_along_the_batch_axis(rng):
    """Steps (B, H) one after the other are time-major (T * B, H), as decoders use them."""
    steps = [rng.standard_normal((B, H)) for _ in range(T)]
    run = dict(batch=B, parts=(2, 1, 1), dim=0)
    got = check_layout("Concat", steps, [Split(0)] * T, **run, num_args=T)
    assert got == [Split(0, outer=T)]
    blocks = [rng.standard_normal((n * B * 2, H)) for n in (1, 3)]
    layouts = [Split(0, outer=1, inner=2), Split(0, outer=3, inner=2)]
    got = check_layout("Concat", blocks, layouts, **run, num_args=2)
    assert got == [Split(0, outer=4, inner=2)]


def test_join_features_of_samples(rng):
    x = [rng.standard_normal((T, B, n)) for n in (2, 5)]
    run = dict(batch=B, parts=(3, 1), num_args=2)
    assert check_layout("Concat", x, [Split(1)] * 2, **run, dim=2) == [Split(1)]
    x = [rng.standard_normal((n, B, 2)) for n in (1, 3)]
    assert check_layout("Concat", x, [Split(1)] * 2, **run, dim=0) == [Split(1)]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_stack_samples(axis, rng):
    x = [rng.standard_normal((B, H)) for _ in range(2)]
    layout = Split(1) if axis == 0 else Split(0)
    got = check_layout("stack", x, [Split(0)] * 2, B, (2, 1, 1), num_args=2, axis=axis)
    assert got == [layout]


@pytest.mark.parametrize(
    ("name", "layouts", "attrs", "why"),
    [
        ("Concat", [Split(0), WHOLE], {"dim": 0}, "joins samples with other values"),
        ("Concat", [Split(0), PARTIAL], {"dim": 0}, "joins samples with other values"),
        ("Concat", [Split(0), Split(1)], {"dim": 0}, "joins samples with other values"),
        ("Concat", [Split(0), Split(0, inner=2)], {"dim": 0}, "joins samples with other values"),
        ("Concat", [WHOLE, PARTIAL], {"dim": 0}, "joins constants with sums over the batch"),
        ("Concat", [Split(0), PARTIAL], {"dim": 1}, "joins values whose batch lies differently"),
        ("stack", [Split(0), Split(1)], {}, "joins values whose batch lies differently"),
        ("stack", [WHOLE, PARTIAL], {}, "joins constants with sums over the batch"),
    ],
)
def test_joins_that_are_refused(name, layouts, attrs, why):
    x = [np.ones((4, 4))] * 2
    with pytest.raises(MicroBatchError, match=f"{name} 'op' {why}"):
        check_layout(name, x, layouts, 4, (4,), num_args=2, **attrs)
