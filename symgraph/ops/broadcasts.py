"""Broadcasts: values repeated along axes, and the sums that are their gradients."""

from __future__ import annotations

from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import PARTIAL, Layouts, Split, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import apply
from symgraph.core.registry import Env, Shapes, if_unchanged, no_flops, register
from symgraph.core.shapes import axes_of, expect, reduced_shape, unify
from symgraph.core.types import Array, Shape, Types
from symgraph.ops.elementwise import numbers
from symgraph.ops.reduce import reduce_flops, total


def spread(xp: Any, x: Array, shape: Shape) -> Any:
    """Repeat x to `shape`; return x itself, never a read-only view, if nothing is repeated."""
    x = x.reshape(padded(x.shape, len(shape)))
    return x if x.shape == shape else xp.broadcast_to(x, shape)


def padded(data: Shape, rank: int) -> Shape:
    """Return the shape with leading axes of length 1."""
    return (1,) * (rank - len(data)) + data


def target(data: Shape, shape: Shape) -> Shape:
    """Return `shape` with its zeros replaced by the data's dimensions."""
    return tuple(s or d for d, s in zip(padded(data, len(shape)), shape, strict=True))


def check_fit(site: Site, data: Shape, shape: Shape) -> None:
    """Raise ShapeError unless `data` can be repeated to `shape`; zeros fit everything."""
    wide = padded(data, len(shape))
    if len(wide) != len(shape) or any(
        d > 1 and s and d != s for d, s in zip(wide, shape, strict=True)
    ):
        site.fail(f"cannot broadcast shape {data} to {shape}")


def broadcast_to_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    shape: Shape = site.attrs["shape"]
    data, out = ins[0], outs[0]
    if data is None:
        return ins, [unify(site, shape, out, "output shapes")]
    check_fit(site, data, shape)
    out = unify(site, target(data, shape), out, "output shapes")
    assert out is not None
    pad = len(out) - len(data)
    return [tuple(d or (0 if shape[pad + i] else out[pad + i]) for i, d in enumerate(data))], [out]


def repeated_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Align the axes from the right; the batch axis must keep its length."""
    layout = ins[0]
    if not isinstance(layout, Split):
        return [layout]
    axis = layout.axis + len(outs[0].shape) - len(in_types[0].shape)
    if in_types[0].shape[layout.axis] != outs[0].shape[axis]:
        refuse_mixing(site, "repeats along the batch axis")
    return [Split(axis, layout.outer, layout.inner)]


register(
    name="broadcast_to",
    inputs=("data",),
    shape=broadcast_to_shape,
    compute=lambda env, a, x: spread(env.xp, x, target(x.shape, a["shape"])),
    grad=lambda c: (apply("_sum_to", c.gy, shape=c.x[0].shape),),
    flops=no_flops,
    batch=repeated_batch,
    params={"shape": params.integers()},
    view=if_unchanged,
    doc="Data repeated along axes of length 1 to `shape`. A 0 in `shape` keeps that dimension; "
    "missing leading axes count as 1. MXNet broadcast_to.",
)


def sized(attrs: Attrs, data: Shape) -> Shape:
    """Return the shape with the axes `axis` set to `size`."""
    new = dict(zip((a % len(data) for a in attrs["axis"]), attrs["size"], strict=True))
    return tuple(new.get(a, d) for a, d in enumerate(data))


def broadcast_axis_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    axis, size = site.attrs["axis"], site.attrs["size"]
    if len(axis) != len(size):
        site.fail(f"axis={axis} and size={size} have different lengths")
    known = ins[0] if ins[0] is not None else outs[0]
    if known is None:
        return ins, outs
    axes = axes_of(site, axis, len(known)) if axis else ()
    ones = tuple(1 if a in axes else 0 for a in range(len(known)))
    data = expect(site, "data", ins[0], ones, "(axes that are broadcast have length 1)")
    assert data is not None
    out = unify(site, sized(site.attrs, data), outs[0], "output shapes")
    assert out is not None
    return [tuple(d or o for d, o in zip(data, out, strict=True))], [out]


register(
    name="broadcast_axis",
    inputs=("data",),
    shape=broadcast_axis_shape,
    compute=lambda env, a, x: spread(env.xp, x, sized(a, x.shape)),
    grad=lambda c: (apply("_sum_to", c.gy, shape=c.x[0].shape),),
    flops=no_flops,
    batch=repeated_batch,
    params={"axis": params.integers(()), "size": params.integers(())},
    aliases=("broadcast_axes",),
    view=if_unchanged,
    doc="Data repeated `size` times along each axis of `axis`; these axes have length 1. MXNet "
    "broadcast_axis.",
)


def broadcast_axes_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    shape = site.attrs["shape"]
    small = reduced_shape(shape, site.attrs["axes"], site.attrs["keepdims"])
    return [expect(site, "data", ins[0], small)], [unify(site, shape, outs[0], "output shapes")]


def broadcast_axes_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    layout, axes = ins[0], site.attrs["axes"]
    if not isinstance(layout, Split):
        return [layout]
    rank = len(outs[0].shape)
    kept = [a for a in range(rank) if a not in axes or site.attrs["keepdims"]]
    if not kept or kept[layout.axis] in axes:
        refuse_mixing(site, "repeats along the batch axis")
    return [Split(kept[layout.axis], layout.outer, layout.inner)]


register(
    name="_broadcast_axes",
    inputs=("data",),
    shape=broadcast_axes_shape,
    compute=lambda env, a, x: spread(
        env.xp, x.reshape(reduced_shape(a["shape"], a["axes"], True)), a["shape"]
    ),
    grad=lambda c: (apply("sum", c.gy, axis=c.attrs["axes"], keepdims=c.attrs["keepdims"]),),
    flops=no_flops,
    batch=broadcast_axes_batch,
    params={
        "axes": params.integers(),
        "shape": params.integers(),
        "keepdims": params.boolean(False),
    },
    view=if_unchanged,
    doc="A value that was reduced over `axes` (non-negative, at least one), repeated to `shape`. "
    "Gradient of sum.",
)


def sum_to_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    shape, data = site.attrs["shape"], ins[0]
    if data is not None:
        check_fit(site, shape, data)
    return ins, [unify(site, shape, outs[0], "output shapes")]


def sum_to(env: Env, a: Attrs, x: Array) -> Any:
    shape = a["shape"]
    lead = x.ndim - len(shape)
    wide = [i for i, d in enumerate(shape, lead) if d == 1 and x.shape[i] != 1]
    axes = (*range(lead), *wide)
    if not axes:
        return x
    return total(env.xp, x, {"keepdims": True}, axes).astype(x.dtype, copy=False).reshape(shape)


def sum_to_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Keep a batch axis of length 1: the sum of one sample is the sample."""
    layout, data, shape = ins[0], in_types[0].shape, outs[0].shape
    if not isinstance(layout, Split):
        return [layout]
    axis = layout.axis - (len(data) - len(shape))
    if axis < 0 or shape[axis] != data[layout.axis]:
        return [PARTIAL]
    return [Split(axis, layout.outer, layout.inner)]


register(
    name="_sum_to",
    inputs=("data",),
    shape=sum_to_shape,
    compute=sum_to,
    grad=lambda c: (apply("broadcast_to", c.gy, shape=c.x[0].shape),),
    flops=reduce_flops,
    dtype=numbers,
    batch=sum_to_batch,
    params={"shape": params.integers()},
    view=if_unchanged,
    doc="Data summed over the axes along which `shape` broadcasts to it. Gradient of broadcasts.",
)
