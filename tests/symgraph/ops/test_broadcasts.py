"""Values repeated along axes, and the sums that undo it."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.core.params import Site
from symgraph.core.registry import ALIASES, OPS, find
from symgraph.passes.testing import check_op, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

EVERY = {"broadcast_to", "broadcast_axis", "_broadcast_axes", "_sum_to"}


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def rule(name, data, out, **attrs):
    ins, outs = find(name).shape(Site(name, "op", attrs), [data], [out])
    return ins[0], outs[0]


def test_every_operator_of_the_file_is_checked_here():
    here = {op.name for op in OPS.values() if op.compute.__module__.endswith(".broadcasts")}
    assert here == EVERY
    assert ALIASES["broadcast_axes"] == "broadcast_axis"


@pytest.mark.parametrize(
    ("data", "shape", "out"),
    [
        ((3, 1), (3, 4), (3, 4)),
        ((3, 1), (0, 4), (3, 4)),
        ((1, 2), (5, 0), (5, 2)),
        ((2,), (4, 0, 2), (4, 1, 2)),
        ((), (2, 3), (2, 3)),
        ((3, 2), (3, 2), (3, 2)),
        ((2,), (1, 2), (1, 2)),
    ],
)
def test_broadcast_to(data, shape, out, rng):
    x = rng.standard_normal(data)
    got = run_op("broadcast_to", x, shape=shape)
    np.testing.assert_array_equal(got, np.broadcast_to(x, out))
    assert got.flags.writeable
    check_op("broadcast_to", x, shape=shape)


def test_broadcast_to_shapes():
    assert rule("broadcast_to", (0, 1), None, shape=(0, 4)) == ((0, 1), (0, 4))
    assert rule("broadcast_to", (0, 1), (3, 0), shape=(0, 4)) == ((3, 1), (3, 4))
    assert rule("broadcast_to", None, (3, 4), shape=(0, 4)) == (None, (3, 4))
    for data, shape in (((3, 2), (3, 4)), ((3, 2), (2,))):
        with pytest.raises(ShapeError, match=r"broadcast_to 'op': cannot broadcast shape \(3, 2\)"):
            run_op("broadcast_to", np.ones(data), shape=shape)


def test_broadcast_axis(rng):
    x = rng.standard_normal((1, 3, 1))
    got = run_op("broadcast_axis", x, axis=(0, -1), size=(2, 4))
    np.testing.assert_array_equal(got, np.broadcast_to(x, (2, 3, 4)))
    np.testing.assert_array_equal(run_op("broadcast_axis", x), x)
    check_op("broadcast_axis", x, axis=(0, -1), size=(2, 4))
    check_op("broadcast_axis", x, axis=2, size=5)


def test_broadcast_axis_shapes():
    attrs = {"axis": (1,), "size": (4,)}
    assert rule("broadcast_axis", (0, 0), (3, 0), **attrs) == ((3, 1), (3, 4))
    assert rule("broadcast_axis", None, (3, 4), **attrs) == ((3, 1), (3, 4))
    assert rule("broadcast_axis", None, None, **attrs) == (None, None)
    with pytest.raises(ShapeError, match=r"data of shape \(3, 2\) does not fit .*have length 1"):
        run_op("broadcast_axis", np.ones((3, 2)), axis=1, size=4)
    with pytest.raises(ShapeError, match=r"axis=\(0, 1\) and size=\(2,\) have different lengths"):
        run_op("broadcast_axis", np.ones((1, 1)), axis=(0, 1), size=2)


@pytest.mark.parametrize(
    ("data", "axes", "keepdims"),
    [((3,), (1, 2), False), ((3, 1, 1), (1, 2), True), ((1,), (0, 1, 2), False), ((3, 4), (2,), 0)],
)
def test_broadcast_axes(data, axes, keepdims, rng):
    """The gradient of sum: a reduced value back in the shape it was reduced from."""
    x, shape = rng.standard_normal(data), (3, 4, 2)
    attrs = {"axes": axes, "keepdims": keepdims, "shape": shape}
    got = run_op("_broadcast_axes", x, **attrs)
    kept = x.reshape([1 if a in axes else d for a, d in enumerate(shape)])
    np.testing.assert_array_equal(got, np.broadcast_to(kept, shape))
    check_op("_broadcast_axes", x, **attrs)
    with pytest.raises(ShapeError, match=r"_broadcast_axes 'op': data of shape \(5, 5\)"):
        run_op("_broadcast_axes", np.ones((5, 5)), **attrs)


@pytest.mark.parametrize(
    ("data", "shape"),
    [((3, 4), (1, 4)), ((3, 4), (4,)), ((2, 3, 4), (3, 1)), ((3,), ()), ((3, 4), (3, 4))],
)
def test_sum_to(data, shape, rng):
    x = rng.standard_normal(data)
    lead = x.sum(tuple(range(x.ndim - len(shape))))
    want = lead.sum(tuple(i for i, d in enumerate(shape) if d == 1), keepdims=True)
    np.testing.assert_allclose(run_op("_sum_to", x, shape=shape), want.reshape(shape), rtol=1e-14)
    check_op("_sum_to", x, shape=shape)
    assert run_op("_sum_to", x.astype("float32"), shape=shape).dtype == "float32"


def test_sum_to_shapes():
    assert rule("_sum_to", (0, 4), None, shape=(4,)) == ((0, 4), (4,))
    with pytest.raises(ShapeError, match=r"_sum_to 'op': cannot broadcast shape \(2, 4\) to"):
        run_op("_sum_to", np.ones((3, 4)), shape=(2, 4))


# -- layouts -----------------------------------------------------------------------------------


def test_samples_keep_their_axis_from_the_right(rng):
    x = [rng.standard_normal((5, 1, 2))]
    run = dict(arrays=x, layouts=[Split(0)], batch=5, parts=(2, 2, 1))
    assert check_layout("broadcast_to", **run, shape=(0, 4, 2)) == [Split(0)]
    assert check_layout("broadcast_to", **run, shape=(3, 0, 4, 2)) == [Split(1)]
    assert check_layout("broadcast_axis", **run, axis=1, size=4) == [Split(0)]
    keep = {"axes": (1,), "keepdims": True, "shape": lambda b: (b, 4, 2)}
    assert check_layout("_broadcast_axes", **run, **keep) == [Split(0)]
    flat = {"axes": (1, 3), "shape": lambda b: (b, 3, 1, 4, 2)}
    assert check_layout("_broadcast_axes", **run, **flat) == [Split(0)]
    front = {"axes": (0, 2), "shape": lambda b: (3, b, 4, 1, 2)}
    assert check_layout("_broadcast_axes", **run, **front) == [Split(1)]


@pytest.mark.parametrize("layout", [WHOLE, PARTIAL])
def test_values_without_a_batch_axis(layout, rng):
    x = [rng.standard_normal((1, 2))]
    run = dict(arrays=x, layouts=[layout], batch=4, parts=(3, 1))
    assert check_layout("broadcast_to", **run, shape=(3, 2)) == [layout]
    assert check_layout("broadcast_axis", **run, axis=0, size=3) == [layout]
    assert check_layout("_sum_to", **run, shape=(1, 1)) == [layout]
    flat = {"axes": (0,), "shape": (3, 1, 2)}
    assert check_layout("_broadcast_axes", **run, **flat) == [layout]


def test_one_sample_is_not_repeated():
    x = [np.ones((1, 2))]
    for name, attrs in (
        ("broadcast_to", {"shape": (3, 2)}),
        ("broadcast_axis", {"axis": 0, "size": 3}),
        ("_broadcast_axes", {"axes": (0,), "keepdims": True, "shape": (3, 2)}),
    ):
        with pytest.raises(MicroBatchError, match=f"{name} 'op' repeats along the batch axis"):
            check_layout(name, x, [Split(0)], 1, (1,), **attrs)


def test_sum_to_over_samples_is_partial(rng):
    x = [rng.standard_normal((3, 5, 2))]
    run = dict(op="_sum_to", arrays=x, layouts=[Split(1)], batch=5)
    assert check_layout(**run, parts=(3, 2), shape=(1, 2)) == [PARTIAL]
    assert check_layout(**run, parts=(3, 1, 1), shape=(2,)) == [PARTIAL]
    assert check_layout(**run, parts=(3, 1, 1), shape=lambda b: (b, 1)) == [Split(0)]
    assert check_layout(**run, parts=(3, 2), shape=lambda b: (3, b, 2)) == [Split(1)]
