"""Products of many matrices at once: batch_dot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import (
    PARTIAL,
    WHOLE,
    Layout,
    Layouts,
    Split,
    bilinear,
    refuse_mixing,
)
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import LOW, Call, Env, Partial, Shapes, register
from symgraph.core.shapes import unify
from symgraph.core.types import Array, Shape, Types
from symgraph.ops.elementwise import floats


def turned(shape: Shape, transposed: bool) -> Shape:
    """Return the shape, with its last two axes exchanged if `transposed`."""
    return (*shape[:-2], shape[-1], shape[-2]) if transposed else shape


def batch_dot_shape(site: Site, ins: Shapes, outs: Shapes, least: int = 3) -> tuple[Shapes, Shapes]:
    """(..., n, k) and (..., k, m) to (..., n, m); each shape completes the others.

    `least` is the smallest number of axes.
    """
    rank = next((len(s) for s in (*ins, *outs) if s is not None), None)
    if rank is None:
        return ins, outs
    flags = site.attrs["transpose_a"], site.attrs["transpose_b"]
    x, y, out = (s or (0,) * rank for s in (*ins, *outs))
    if rank < least or not len(x) == len(y) == len(out):
        site.fail(f"takes two values of {least} axes or more, as many in both, not {x} and {y}")
    x, y = turned(x, flags[0]), turned(y, flags[1])
    lead: Partial = x[:-2]
    for other in (y[:-2], out[:-2]):
        lead = unify(site, lead, other, "the axes before the matrices")
    assert lead is not None
    (inner,) = unify(site, x[-1:], y[-2:-1], "inner sizes") or (0,)
    (rows,) = unify(site, x[-2:-1], out[-2:-1], "rows") or (0,)
    (columns,) = unify(site, y[-1:], out[-1:], "columns") or (0,)
    return (
        [turned((*lead, rows, inner), flags[0]), turned((*lead, inner, columns), flags[1])],
        [(*lead, rows, columns)],
    )


def batch_dot(env: Env, a: Attrs, x: Array, y: Array) -> Any:
    x = x.swapaxes(-1, -2) if a["transpose_a"] else x
    y = y.swapaxes(-1, -2) if a["transpose_b"] else y
    return env.xp.matmul(x, y)


def batch_dot_grad(c: Call) -> Sequence[Ref]:
    (x, y), g = c.x, c.gy
    ta, tb = c.attrs["transpose_a"], c.attrs["transpose_b"]
    gx = (
        apply("batch_dot", y, g, transpose_a=tb, transpose_b=True)
        if ta
        else apply("batch_dot", g, y, transpose_b=not tb)
    )
    gy = (
        apply("batch_dot", g, x, transpose_a=True, transpose_b=ta)
        if tb
        else apply("batch_dot", x, g, transpose_a=not ta)
    )
    return gx, gy


def batch_dot_flops(attrs: Attrs, ins: Types, outs: Types) -> int:
    return 2 * outs[0].size * ins[0].shape[-2 if attrs["transpose_a"] else -1]


def plain_axis(layout: Layout, rank: int, transposed: bool) -> int | None:
    """Return the batch axis after the last two axes are put in order; None if there is none."""
    if not isinstance(layout, Split):
        return None
    at = layout.axis
    return 2 * rank - 3 - at if transposed and at >= rank - 2 else at


def batch_dot_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Linear in each input; refuses products of different samples."""
    x, y = ins
    rank = len(in_types[0].shape)
    x_axis = plain_axis(x, rank, site.attrs["transpose_a"])
    y_axis = plain_axis(y, rank, site.attrs["transpose_b"])
    if x_axis is None and y_axis is None:
        return bilinear(site, ins, [outs[0]] * 2, outs)
    if PARTIAL in ins:
        refuse_mixing(site, "multiplies a sum over the batch with samples")
    if isinstance(x, Split) and isinstance(y, Split):
        if (x.outer, x.inner) == (y.outer, y.inner):
            if x_axis == y_axis and x.axis < rank - 2:
                return [x]
            if (x_axis, y_axis) == (rank - 1, rank - 2):
                return [PARTIAL]
        refuse_mixing(site, "multiplies samples with one another")
    split, axis, free = (x, x_axis, rank - 2) if y is WHOLE else (y, y_axis, rank - 1)
    assert isinstance(split, Split)
    if axis != free:
        refuse_mixing(site, "multiplies samples with values that do not depend on them, one by one")
    return [Split(free, split.outer, split.inner)]


register(
    name="batch_dot",
    inputs=("lhs", "rhs"),
    shape=batch_dot_shape,
    compute=batch_dot,
    grad=batch_dot_grad,
    flops=batch_dot_flops,
    dtype=floats,
    batch=batch_dot_batch,
    params={
        "transpose_a": params.boolean(False),
        "transpose_b": params.boolean(False),
        "forward_stype": params.ignored(),
    },
    precision=LOW,
    doc="Products of the matrices in the last two axes: (..., n, k) times (..., k, m) is (..., n, "
    "m). transpose_a and transpose_b exchange those axes of an input first. MXNet batch_dot.",
)
