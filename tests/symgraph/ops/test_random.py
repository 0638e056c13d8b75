"""Dropout: its rate, its gradient, and masks that do not depend on how the batch is cut."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import DTypeError, GraphError, MicroBatchError, ShapeError
from symgraph.core.params import Site
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env, find
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.ops.random import counters
from symgraph.passes.batching import micro_batch
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import check_grads, check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, put_together, shares

RNG = np.random.default_rng(10)
TRAIN = Env(train=True)


def mask_of(shape, env=TRAIN, dtype="float64", **attrs):
    return run_op("Dropout", np.ones(shape, dtype), env=env, **attrs)


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_dropout_drops_a_share_p_and_scales_the_rest(p):
    mask = mask_of((100, 200), p=p)
    assert set(np.unique(mask)) <= {0.0, 1 / (1 - p) if p < 1 else 0.0}
    assert (mask == 0).mean() == pytest.approx(p, abs=0.02)  # 6 standard deviations or more
    x = RNG.standard_normal((100, 200))
    np.testing.assert_array_equal(run_op("Dropout", x, env=TRAIN, p=p), x * mask)


def test_dropout_outside_training():
    x = RNG.standard_normal((3, 4))
    np.testing.assert_array_equal(run_op("Dropout", x, p=0.9), x)
    always = run_op("Dropout", x, p=0.9, mode="always")
    np.testing.assert_array_equal(always, x * mask_of((3, 4), p=0.9))
    feeds = {"x0": x}
    check_grads(op_graph("Dropout", [x]), feeds)


def test_dropout_gradients():
    x = RNG.standard_normal((3, 4))
    check_op("Dropout", x, mode="always", p=0.4)
    check_op("Dropout", x, mode="always", axes=(1,))
    check_grads(op_graph("Dropout", [x]), {"x0": x}, env=Env(train=True, seed=3, step=9))


def test_the_gradient_goes_where_the_value_went():
    graph = op_graph("Dropout", [np.ones((5, 6))])
    both = gradients(graph, ["x0"])
    feeds = {"x0": np.ones((5, 6)), both.heads[0]: np.ones((5, 6))}
    out, grad = evaluate(both.graph, feeds, TRAIN)
    np.testing.assert_array_equal(out, grad)


def test_masks_depend_on_seed_step_and_stream_alone():
    """N4: and so not on the placement, or on who computes what first."""
    base = mask_of((8, 50), stream="a")
    np.testing.assert_array_equal(mask_of((8, 50), stream="a"), base)
    np.testing.assert_array_equal(mask_of((8, 50), stream="a", dtype="float32"), base)
    others = [
        mask_of((8, 50), stream="b"),
        mask_of((8, 50), TRAIN._replace(seed=1), stream="a"),
        mask_of((8, 50), TRAIN._replace(step=1), stream="a"),
    ]
    for other in others:
        assert 0.3 < (other != base).mean() < 0.7


LAYOUTS = [
    (Split(0), (6, 5, 4), 6),
    (Split(1), (5, 6, 4), 6),
    (Split(2), (5, 4, 6), 6),
    (Split(0, outer=5), (30, 4), 6),
    (Split(0, outer=5, inner=2), (60, 4), 6),
    (Split(1, outer=2, inner=3), (3, 36, 2), 6),
    (Split(0, inner=4), (24,), 6),
]


@pytest.mark.parametrize(("layout", "shape", "batch"), LAYOUTS)
@pytest.mark.parametrize("sizes", [(3, 3), (4, 2), (1, 2, 3), (1,) * 6])
def test_micro_batches_draw_their_part_of_the_whole_mask(layout, shape, batch, sizes):
    where = {"axis": layout.axis, "outer": layout.outer, "inner": layout.inner, "stream": "d"}
    env = Env(train=True, seed=5, step=2)
    whole = mask_of(shape, env, **where)
    pieces = shares(np.ones(shape), layout, sizes)
    starts = np.cumsum([0, *sizes]).tolist()
    masks = [
        mask_of(piece.shape, env._replace(sample=start), **where)
        for piece, start in zip(pieces, starts, strict=False)
    ]
    np.testing.assert_array_equal(put_together(masks, layout), whole)
    assert 0.2 < (whole == 0).mean() < 0.8


@pytest.mark.parametrize(("layout", "shape", "batch"), LAYOUTS)
def test_every_element_has_a_number_of_its_own(layout, shape, batch):
    """Sample after sample, so that sample 3 of 6 has the fourth sixth of the numbers."""
    where = {"axis": layout.axis, "outer": layout.outer, "inner": layout.inner, "first": 0}
    numbers = counters(Env(), where, shape)
    assert sorted(numbers.ravel()) == list(range(numbers.size))
    (third,) = shares(numbers, layout, (3, 1, 2))[1:2]
    each = numbers.size // batch
    assert sorted(third.ravel()) == list(range(3 * each, 4 * each))


def test_a_time_major_sample_has_the_mask_of_its_batch_major_twin():
    """Merging (T, B, H) to (T*B, H) is another layout of the same samples."""
    three = mask_of((5, 6, 4), axis=1)
    two = mask_of((30, 4), axis=0, outer=5)
    np.testing.assert_array_equal(three.reshape(30, 4), two)
    assert mask_of((6, 4), axis=0).tolist() == mask_of((6, 4)).tolist()


@pytest.mark.parametrize("sizes", [(6,), (3, 3), (1, 2, 3)])
def test_lowering_and_micro_batching_say_which_numbers_are_whose(sizes):
    """Through symbols, with time-major data that is merged and a node name as stream."""
    data = sym.Variable("x")
    first = sym.Dropout(data, name="first")
    merged = sym.Reshape(first, shape=(-1, 4))
    group = sym.Group([merged, sym.Dropout(merged, name="second")])
    outs, start = [], 0
    for size in sizes:
        graph = lower(group, {"x": (5, size, 4)}, {"x": "float64"})
        ready = micro_batch(graph, {"x": 1}, size, 6)
        assert ready.graph["second"].attrs["outer"] == 5
        feeds = {"x": np.ones((5, size, 4))}
        outs.append(evaluate(ready.graph, feeds, TRAIN._replace(sample=start)))
        start += size
    got = [put_together([o[i] for o in outs], Split(0, 5)) for i in (0, 1)]
    first, second = (mask_of((30, 4), axis=0, outer=5, stream=n) for n in ("first", "second"))
    np.testing.assert_array_equal(got, [first, first * second])
    assert (first != second).any()


def test_one_draw_for_all_elements_along_axes():
    x = RNG.standard_normal((5, 6, 4))
    out = run_op("Dropout", x, env=TRAIN, axes=(0,))
    np.testing.assert_array_equal(out, x * mask_of((6, 4)))
    whole = mask_of((5, 6, 4), axes=(0,), axis=1)
    halves = [mask_of((5, 3, 4), TRAIN._replace(sample=s), axes=(0,), axis=1) for s in (0, 3)]
    np.testing.assert_array_equal(np.concatenate(halves, 1), whole)


def test_dropout_layouts_and_errors():
    op = find("Dropout")
    graph = op_graph("Dropout", [np.ones((5, 6))], axes=(0,))
    types = graph.types_of(graph["op"].inputs), graph["op"].types
    site = graph["op"].site
    assert op.batch(site, [Split(1)], *types) == [Split(1), Split(1)]
    assert op.batch(site, [WHOLE], *types) == [WHOLE, WHOLE]
    with pytest.raises(MicroBatchError, match="one mask for all of axis 0, where the batch lies"):
        op.batch(site, [Split(0)], *types)
    with pytest.raises(MicroBatchError, match="nonlinear function to a sum"):
        op.batch(site, [PARTIAL], *types)
    with pytest.raises(GraphError, match=r"Dropout 'op': p=1\.5 is not a valid float from 0 to 1"):
        mask_of((2, 2), p=1.5)
    with pytest.raises(ShapeError, match="axis 2 is out of range for 2 dimensions"):
        mask_of((2, 2), axes=2)
    with pytest.raises(DTypeError, match="works on floats, not int32"):
        mask_of((2, 2), dtype="int32")


def test_shapes_are_inferred_both_ways():
    op = find("Dropout")
    site = Site("Dropout", "d", {"axes": ()})
    assert op.shape(site, [None], [(2, 3), None]) == ([(2, 3)], [(2, 3), (2, 3)])
