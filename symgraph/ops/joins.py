"""Cutting and joining: SliceChannel, `_cut`, Concat, stack."""

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
    merge,
    named_axis,
    not_along,
    refuse_mixing,
)
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply, apply_all
from symgraph.core.registry import Call, Env, Names, Offsets, Partial, Shapes, no_flops, register
from symgraph.core.shapes import unify
from symgraph.core.types import Array, Shape, Types
from symgraph.ops.elementwise import arg_names
from symgraph.ops.movement import inserted, one_axis


def unify_all(site: Site, shapes: Shapes, what: str) -> Partial:
    """Return what is known of one shape that all of these describe."""
    common: Partial = None
    for shape in shapes:
        common = unify(site, common, shape, what)
    return common


def resized(shape: Shape, axis: int, length: int) -> Shape:
    return (*shape[:axis], length, *shape[axis + 1 :])


# -- SliceChannel ------------------------------------------------------------------------------


def part_names(attrs: Attrs) -> Names:
    return tuple(f"output{i}" for i in range(attrs["num_outputs"]))


def part_shape(site: Site, data: Shape, axis: int) -> Shape:
    """Return the shape of one part of partly known data."""
    count, length = site.attrs["num_outputs"], data[axis]
    if count < 1 or length % count:
        site.fail(f"axis {axis} of shape {data} cannot be cut into {count} equal parts")
    if not site.attrs["squeeze_axis"]:
        return resized(data, axis, length // count)
    if length not in (0, count):
        site.fail(
            f"squeeze_axis needs parts of length 1, but axis {axis} of shape {data} is cut "
            f"into {count} parts"
        )
    return (*data[:axis], *data[axis + 1 :])


def split_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    count, squeeze = site.attrs["num_outputs"], site.attrs["squeeze_axis"]
    data, part = ins[0], unify_all(site, outs, "shapes of outputs")
    if data is None and part is None:
        return ins, outs
    data = (0,) * (len(part or ()) + squeeze) if data is None else data
    axis = one_axis(site, site.attrs["axis"], len(data))
    part = unify(site, part_shape(site, data, axis), part, "output shapes")
    assert part is not None
    if squeeze:
        return [(*part[:axis], count, *part[axis:])], [part] * count
    return [resized(part, axis, part[axis] * count)], [part] * count


def split(env: Env, a: Attrs, x: Array) -> tuple[Array, ...]:
    pieces = env.xp.split(x, a["num_outputs"], a["axis"])
    if a["squeeze_axis"]:
        pieces = [piece.squeeze(a["axis"]) for piece in pieces]
    return tuple(pieces)


def part_offsets(a: Attrs, ins: Types, outs: Types) -> Offsets | None:
    if ins[0].before(a["axis"]) != 1 and ins[0] != outs[0]:
        return None
    return range(0, ins[0].nbytes, outs[0].nbytes)


def split_grad(c: Call) -> Sequence[Ref]:
    """Outputs without a gradient get zeros of the layout of one that has a gradient."""
    there = next(g for g in c.g if g is not None)
    zeros = apply("zeros_like", there) if None in c.g else there
    terms = [zeros if g is None else g for g in c.g]
    count, axis = len(terms), c.attrs["axis"]
    if c.attrs["squeeze_axis"]:
        return (apply("stack", *terms, num_args=count, axis=axis),)
    return (apply("Concat", *terms, num_args=count, dim=axis),)


def split_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Along the batch axis, each part must hold whole blocks of (batch, inner)."""
    layout, rank = ins[0], len(in_types[0].shape)
    if not isinstance(layout, Split):
        return [layout] * len(outs)
    axis, count = site.attrs["axis"] % rank, site.attrs["num_outputs"]
    if axis == layout.axis:
        if layout.outer % count or site.attrs["squeeze_axis"]:
            refuse_mixing(site, "cuts the batch axis")
        return [Split(axis, layout.outer // count, layout.inner)] * count
    shift = site.attrs["squeeze_axis"] and axis < layout.axis
    return [Split(layout.axis - shift, layout.outer, layout.inner)] * count


register(
    name="SliceChannel",
    inputs=("data",),
    outputs=part_names,
    shape=split_shape,
    compute=split,
    grad=split_grad,
    flops=no_flops,
    batch=split_batch,
    params={
        "num_outputs": params.count(most=params.MAX_PARTS),
        "axis": params.integer(1),
        "squeeze_axis": params.boolean(False),
    },
    aliases=("split",),
    view=part_offsets,
    doc="Data cut into num_outputs equal parts along an axis; squeeze_axis removes the axis if "
    "the parts have length 1. MXNet SliceChannel.",
)


# -- _cut --------------------------------------------------------------------------------------


def cut_names(attrs: Attrs) -> Names:
    return tuple(f"output{i}" for i in range(len(attrs["sizes"])))


def cut_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """All dimensions except the length along the axis follow in both directions."""
    sizes = site.attrs["sizes"]
    known = next((s for s in (*ins, *outs) if s is not None), None)
    if not sizes or min(sizes) < 1:
        site.fail(f"sizes={sizes} are not all positive")
    if known is None:
        return ins, outs
    axis = one_axis(site, site.attrs["axis"], len(known))
    data = unify(site, ins[0], resized((0,) * len(known), axis, sum(sizes)), "data and sizes")
    for size, out in zip(sizes, outs, strict=True):
        part = unify(site, out, resized((0,) * len(known), axis, size), "output shapes")
        assert part is not None
        data = unify(site, data, resized(part, axis, sum(sizes)), "output shapes")
    assert data is not None
    return [data], [resized(data, axis, size) for size in sizes]


def cut_grad(c: Call) -> Sequence[Ref]:
    terms = [apply("zeros_like", y) if g is None else g for g, y in zip(c.g, c.y, strict=True)]
    return (apply("Concat", *terms, num_args=len(terms), dim=c.attrs["axis"]),)


register(
    name="_cut",
    inputs=("data",),
    outputs=cut_names,
    shape=cut_shape,
    compute=lambda env, a, x: tuple(
        env.xp.split(x, [sum(a["sizes"][:i]) for i in range(1, len(a["sizes"]))], a["axis"])
    ),
    grad=cut_grad,
    flops=no_flops,
    batch=not_along(named_axis, why="cuts the batch axis"),
    params={"sizes": params.integers(), "axis": params.integer(0)},
    doc="Data cut along an axis into parts of these sizes, which add up to its length; the "
    "transpose of Concat.",
)


# -- Concat ------------------------------------------------------------------------------------


def concat_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """One unknown length along the axis follows from the output's."""
    ranks = {len(s) for s in (*ins, *outs) if s is not None}
    if not ranks:
        return ins, outs
    if len(ranks) > 1:
        site.fail(f"cannot join shapes of different ranks: {list(ins)}")
    rank = ranks.pop()
    axis = one_axis(site, site.attrs["dim"], rank)
    shapes = [(0,) * rank if s is None else s for s in (*ins, *outs)]
    known = [{s[i] for s in shapes} - {0} for i in range(rank)]
    if any(len(dims) > 1 for i, dims in enumerate(known) if i != axis):
        site.fail(f"cannot join shapes {list(ins)} along axis {axis}: other axes differ")
    common = tuple(max(dims, default=0) for dims in known)
    lengths, total = [s[axis] for s in shapes[:-1]], shapes[-1][axis]
    if 0 not in lengths:
        if total not in (0, sum(lengths)):
            site.fail(f"lengths {lengths} along axis {axis} do not add up to {total}")
        total = sum(lengths)
    elif total and lengths.count(0) == 1:
        left = total - sum(lengths)
        if left <= 0:
            site.fail(f"lengths {lengths} along axis {axis} leave nothing of {total}")
        lengths[lengths.index(0)] = left
    return [resized(common, axis, n) for n in lengths], [resized(common, axis, total)]


def concat_grad(c: Call) -> Sequence[Ref]:
    axis = c.attrs["dim"]
    lengths = [x.shape[axis] for x in c.x]
    if len(set(lengths)) == 1:
        return apply_all("SliceChannel", c.gy, num_outputs=len(lengths), axis=axis)
    return cut_off(c)


def cut_off(c: Call) -> Sequence[Ref]:
    """Return the gradients of a join, one slice per input."""
    axis = c.attrs["dim"]
    lengths = [x.shape[axis] for x in c.x]
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    return [
        apply("slice_axis", c.gy, axis=axis, begin=end - length, end=end)
        for length, end in zip(lengths, ends, strict=True)
    ]


def joined(site: Site, ins: Layouts, in_types: Types, shape: Shape) -> Layout:
    """Return the common layout of values that are put side by side."""
    if PARTIAL in ins and WHOLE in ins:
        refuse_mixing(site, "joins constants with sums over the batch")
    return merge(site, ins, in_types, shape)


def concat_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Along the batch axis, blocks of (batch, inner) follow one another; their numbers add up."""
    axis = site.attrs["dim"] % len(outs[0].shape)
    splits = [layout for layout in ins if isinstance(layout, Split)]
    if not any(layout.axis == axis for layout in splits):
        return [joined(site, ins, in_types, outs[0].shape)]
    inner = {(layout.axis, layout.inner) for layout in splits}
    if len(splits) < len(ins) or len(inner) > 1:
        refuse_mixing(site, "joins samples with other values along the batch axis")
    return [Split(axis, sum(layout.outer for layout in splits), splits[0].inner)]


CONCAT = register(
    name="Concat",
    inputs=arg_names,
    shape=concat_shape,
    compute=lambda env, a, *xs: env.xp.concatenate(xs, a["dim"]),
    grad=concat_grad,
    flops=no_flops,
    batch=concat_batch,
    params={"num_args": params.count(most=params.MAX_PARTS), "dim": params.integer(1)},
    variadic="num_args",
    aliases=("concat",),
    join="dim",
    doc="Values joined along axis `dim`; all other axes have equal lengths. MXNet Concat.",
)

register(
    name="_join_shares",
    inputs=CONCAT.inputs,
    shape=CONCAT.shape,
    compute=CONCAT.compute,
    grad=cut_off,
    flops=no_flops,
    batch=CONCAT.batch,
    params=CONCAT.params,
    variadic=CONCAT.variadic,
    join=CONCAT.join,
    doc="Concat of the samples of replicas. Its gradient has the same nodes for equal and unequal "
    "shares, as micro-batches of all sizes need.",
)


# -- stack -------------------------------------------------------------------------------------


def stack_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    item, out = unify_all(site, ins, "shapes of inputs"), outs[0]
    if item is None and not out:
        return ins, outs
    rank = len(out) if out else len(item or ()) + 1
    axis = one_axis(site, site.attrs["axis"], rank)
    item = (0,) * (rank - 1) if item is None else item
    out = unify(site, (*item[:axis], len(ins), *item[axis:]), out, "output shapes")
    assert out is not None
    return [(*out[:axis], *out[axis + 1 :])] * len(ins), [out]


def stack_grad(c: Call) -> Any:
    parts = {"num_outputs": len(c.x), "axis": c.attrs["axis"], "squeeze_axis": True}
    return apply_all("SliceChannel", c.gy, **parts)


def stack_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    axis = site.attrs["axis"] % len(outs[0].shape)
    return [inserted(joined(site, ins, in_types, in_types[0].shape), axis)]


register(
    name="stack",
    inputs=arg_names,
    shape=stack_shape,
    compute=lambda env, a, *xs: env.xp.stack(xs, a["axis"]),
    grad=stack_grad,
    flops=no_flops,
    batch=stack_batch,
    params={"num_args": params.count(most=params.MAX_PARTS), "axis": params.integer(0)},
    variadic="num_args",
    join="axis",
    doc="Values of one shape joined along a new axis. MXNet stack.",
)
