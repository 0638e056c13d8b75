"""Repeated and reversed elements: tile, repeat, reverse, broadcast_like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import (
    PARTIAL,
    WHOLE,
    Layouts,
    Split,
    named_axis,
    not_along,
    refuse_mixing,
)
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, Env, Shapes, no_flops, register, same_dtype
from symgraph.core.shapes import axes_of, axis_shape, unify
from symgraph.core.types import Array, Shape, Types
from symgraph.ops.broadcasts import check_fit, padded, repeated_batch, spread

# -- tile --------------------------------------------------------------------------------------


def tiling(reps: Shape, data: Shape) -> tuple[Shape, Shape]:
    """Return repetitions and lengths, one of each per axis of the output."""
    rank = max(len(reps), len(data))
    return padded(reps, rank), padded(data, rank)


def tile_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, reps = ins[0], site.attrs["reps"]
    if min(reps, default=1) < 1:
        site.fail(f"reps={reps} must be 1 or more")
    if data is None:
        return ins, outs
    counts, lengths = tiling(reps, data)
    tiled = tuple(r * d for r, d in zip(counts, lengths, strict=True))
    out = unify(site, tiled, outs[0], "output shapes")
    assert out is not None
    known = [n // r for n, r in zip(out, counts, strict=True)][len(out) - len(data) :]
    return [tuple(d or k for d, k in zip(data, known, strict=True))], [out]


def tile_grad(c: Call) -> Sequence[Ref]:
    counts, lengths = tiling(c.attrs["reps"], c.x[0].shape)
    pairs = tuple(n for pair in zip(counts, lengths, strict=True) for n in pair)
    parts = apply("Reshape", c.gy, shape=pairs)
    total = apply("sum", parts, axis=tuple(range(0, len(pairs), 2)))
    return (apply("Reshape", total, shape=c.x[0].shape),)


def tile_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    layout = ins[0]
    if not isinstance(layout, Split):
        return [layout]
    counts, lengths = tiling(site.attrs["reps"], in_types[0].shape)
    axis = layout.axis + len(lengths) - len(in_types[0].shape)
    if counts[axis] > 1:
        refuse_mixing(site, f"works along axis {layout.axis}, where the batch lies")
    return [Split(axis, layout.outer, layout.inner)]


register(
    name="tile",
    inputs=("data",),
    shape=tile_shape,
    compute=lambda env, a, x: env.xp.tile(x, a["reps"]),
    grad=tile_grad,
    flops=no_flops,
    batch=tile_batch,
    params={"reps": params.integers()},
    doc="Data repeated as a whole, reps[i] times along axis i; reps and axes align from the "
    "right. MXNet tile.",
)


# -- repeat ------------------------------------------------------------------------------------


def repeat_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, times, axis = ins[0], site.attrs["repeats"], site.attrs["axis"]
    if times < 1:
        site.fail(f"repeats={times} must be 1 or more")
    if data is None:
        return ins, outs
    if axis is None:
        return ins, [unify(site, (times * math.prod(data),), outs[0], "output shapes")]
    (at,) = axes_of(site, axis, len(data))
    out = unify(site, (*data[:at], times * data[at], *data[at + 1 :]), outs[0], "output shapes")
    assert out is not None
    return [(*out[:at], out[at] // times, *out[at + 1 :])], [out]


def repeat_grad(c: Call) -> Sequence[Ref]:
    shape, axis = c.x[0].shape, c.attrs["axis"]
    after = 1 if axis is None else math.prod(shape[axis % len(shape) + 1 :])
    parts = apply("Reshape", c.gy, shape=(-1, c.attrs["repeats"], after))
    return (apply("Reshape", apply("sum", parts, axis=1), shape=shape),)


def repeated_axes(a: Attrs, rank: int) -> Sequence[int]:
    return range(rank) if a["axis"] is None else named_axis(a, rank)


register(
    name="repeat",
    inputs=("data",),
    shape=repeat_shape,
    compute=lambda env, a, x: env.xp.repeat(x, a["repeats"], axis=a["axis"]),
    grad=repeat_grad,
    flops=no_flops,
    batch=not_along(repeated_axes),
    params={"repeats": params.integer(), "axis": params.optional(params.integer())},
    doc="Each element repeated `repeats` times along an axis; axis=None flattens the data first. "
    "MXNet repeat.",
)


# -- reverse -----------------------------------------------------------------------------------


register(
    name="reverse",
    inputs=("data",),
    shape=axis_shape,
    compute=lambda env, a, x: env.xp.flip(x, a["axis"]),
    grad=lambda c: (apply("reverse", c.gy, axis=c.attrs["axis"]),),
    flops=no_flops,
    batch=not_along(lambda a, rank: [axis % rank for axis in a["axis"] or range(rank)]),
    params={"axis": params.integers()},
    aliases=("flip",),
    doc="The elements in reverse order along the axes. MXNet reverse, flip.",
)


# -- broadcast_like ----------------------------------------------------------------------------


def like_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, like = ins[0], unify(site, ins[1], outs[0], "shapes of rhs and output")
    if data is not None and like is not None:
        check_fit(site, data, like)
    return [data, like], [like]


def like(env: Env, a: Attrs, x: Array, other: Array) -> Any:
    return spread(env.xp, x, other.shape)


def like_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """The batch lies as in the data; a value without samples lies as rhs does."""
    data, other = ins
    if isinstance(data, Split):
        return repeated_batch(site, [data], in_types[:1], outs)
    if isinstance(other, Split) and data is PARTIAL:
        refuse_mixing(site, "repeats a sum over the batch for each sample")
    return [other if data is WHOLE and isinstance(other, Split) else data]


register(
    name="broadcast_like",
    inputs=("lhs", "rhs"),
    shape=like_shape,
    compute=like,
    grad=lambda c: (apply("_sum_to", c.gy, shape=c.x[0].shape), None),
    flops=no_flops,
    dtype=lambda site, ins: ([same_dtype(site, ins[:1])[1][0], ins[1]], [ins[0] or "float32"]),
    batch=like_batch,
    params={"lhs_axes": params.only(None), "rhs_axes": params.only(None)},
    doc="lhs repeated along its axes of length 1 to the shape of rhs. MXNet broadcast_like.",
)
