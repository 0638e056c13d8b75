"""Rearranged axes: Reshape, reshape_like, Flatten, transpose, SwapAxis, expand_dims, squeeze."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import BatchRule, Layout, Layouts, Split, refuse_mixing, reshaped
from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import (
    Call,
    Env,
    ShapeRule,
    Shapes,
    complete,
    no_flops,
    register,
    same_memory,
)
from symgraph.core.shapes import axes_of, unify
from symgraph.core.types import Array, Shape, Types

TRIAL = 1_000_003  # a prime that no real axis has as a factor


def one_axis(site: Site, axis: int, rank: int) -> int:
    """Return a single axis, non-negative; one out of range raises ShapeError."""
    return axes_of(site, axis, rank)[0]


def by_size(one: Shape, other: Shape) -> Shape:
    """Fill in the only unknown dimension of `one` if `other` determines the number of elements."""
    if 0 in other or one.count(0) != 1:
        return one
    missing, rest = divmod(math.prod(other), math.prod(d for d in one if d))
    return one if rest else tuple(d or missing for d in one)


# -- Reshape -----------------------------------------------------------------------------------


def codes_of(site: Site) -> Shape:
    """Return the codes of `shape`, or those equal to MXNet 0.x's target_shape and keep_highest."""
    codes: Shape | None = site.attrs["shape"]
    if codes is not None:
        return codes
    target = tuple(d or -1 for d in site.attrs["target_shape"])
    if not target:
        site.fail("needs the parameter 'shape'")
    return (0, *target[1:]) if site.attrs["keep_highest"] else target


Links = list[tuple[int, int]]  # (axis of the data, axis of the output) that are the same


def grouped(site: Site, codes: Shape) -> list[Shape]:
    """Return one entry per code, from the right with `reverse`; -4 with its two numbers."""
    groups: list[Shape] = []
    rest = reversed(codes) if site.attrs["reverse"] else iter(codes)
    for code in rest:
        halves = (next(rest, 0), next(rest, 0)) if code == -4 else ()
        if code < -4 or halves == (-1, -1) or any(h == 0 or h < -1 for h in halves):
            site.fail(f"shape={codes} is not valid; codes are 0, -1, -2, -3 and (-4, a, b)")
        groups.append((code, *halves))
    if [g[0] for g in groups].count(-1) > 1:
        site.fail(f"shape={codes} leaves more than one dimension (-1) to be inferred")
    return groups


def walk(site: Site, data: Shape, groups: Sequence[Shape]) -> tuple[Shape, Links]:
    """Return the output that the codes describe, 0 where unknown, and the axes that are kept."""
    dims: list[int] = []
    links: Links = []
    at = 0
    for code, *halves in groups:
        used = {-3: 2, -2: max(0, len(data) - at)}.get(code, 1)
        dims_read = data[at : at + used]
        if len(dims_read) < used and code in (0, -3, -4):
            site.fail(f"shape={codes_of(site)} needs more axes than data of shape {data} has")
        if code in (0, -2):
            links += [(at + i, len(dims) + i) for i in range(used)]
            dims += dims_read
        elif code == -4:
            dims += halved(site, dims_read[0], *halves)
        else:
            dims.append(math.prod(dims_read) if code == -3 else max(code, 0))
        at += used
    return tuple(dims), links


def halved(site: Site, whole: int, left: int, right: int) -> Shape:
    """Return an axis of length `whole` (0: unknown) cut in two; one of the halves may be -1."""
    known = left if right == -1 else right
    if whole and left == -1:
        left = whole // known
    if whole and right == -1:
        right = whole // known
    if whole and left * right != whole:
        site.fail(f"shape={codes_of(site)} cuts an axis of length {whole} in {left} x {right}")
    return max(left, 0), max(right, 0)


def new_shape(site: Site, data: Shape) -> tuple[Shape, Links]:
    """Return Reshape's output for partly known data, 0 where unknown, and the axes it keeps."""
    groups = grouped(site, codes_of(site))
    if site.attrs["reverse"]:
        dims, links = walk(site, data[::-1], groups)
        dims = dims[::-1]
        links = [(len(data) - 1 - i, len(dims) - 1 - j) for i, j in links]
    else:
        dims, links = walk(site, data, groups)
    if complete(data):
        dims = by_size(dims, data)
        if 0 in dims or math.prod(dims) != math.prod(data):
            site.fail(
                f"cannot reshape {data} ({math.prod(data)} elements) to shape={codes_of(site)}"
            )
    return dims, links


def reshape_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, out = ins[0], outs[0]
    if data is None:
        groups = grouped(site, codes_of(site))
        if any(g[0] == -2 for g in groups):
            return ins, outs
        dims = tuple(max(d, 0) for g in groups for d in (g[1:] or g))
        dims = dims[::-1] if site.attrs["reverse"] else dims
        return ins, [unify(site, dims, out, "output shapes")]
    dims, links = new_shape(site, data)
    out = unify(site, dims, out, "output shapes")
    assert out is not None
    kept = {i: out[j] for i, j in links}
    data = by_size(tuple(d or kept.get(i, 0) for i, d in enumerate(data)), out)
    return [data], [by_size(out, data)]


def reshape_layout(
    site: Site, layout: Layout, old: Shape, rule: Callable[[Shape], Shape]
) -> Layout:
    """Return the layout after a reshape.

    Shapes of one sample do not show where the batch axis goes, so those of many samples are tried.
    """
    if not isinstance(layout, Split):
        return layout
    axis = layout.axis
    many = (*old[:axis], layout.outer * TRIAL * layout.inner, *old[axis + 1 :])
    try:
        new = rule(many)
    except ShapeError:  # the number of samples stands in the parameters
        return reshaped(site, layout, old, rule(old))
    try:
        return reshaped(site, layout, many, new)
    except MicroBatchError:
        refuse_mixing(site, f"reshapes {old} to {rule(old)} across the batch")


def reshape_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    return [reshape_layout(site, ins[0], in_types[0].shape, lambda x: new_shape(site, x)[0])]


register(
    name="Reshape",
    inputs=("data",),
    shape=reshape_shape,
    compute=lambda env, a, x: x.reshape(new_shape(Site("Reshape", "", a), x.shape)[0]),
    grad=lambda c: (apply("Reshape", c.gy, shape=c.x[0].shape),),
    flops=no_flops,
    batch=reshape_batch,
    params={
        "shape": params.optional(params.integers()),
        "reverse": params.boolean(False),
        "target_shape": params.integers(()),
        "keep_highest": params.boolean(False),
    },
    aliases=("reshape",),
    view=same_memory,
    doc="The same elements in another shape. In `shape`, 0 keeps a dimension, -1 is inferred, -2 "
    "keeps all remaining ones, -3 merges two, and (-4, a, b) splits one into a x b (one may "
    "be -1); reverse=True matches dimensions from the right, and has -4 behind a, b. target_shape "
    "is MXNet 0.x's form: 0 is inferred, and keep_highest keeps the first dimension. MXNet "
    "Reshape.",
)


def like_range(site: Site, side: str, rank: int) -> tuple[int, int]:
    """Return the axes [begin, end) of one side; ShapeError if they are not in their order."""
    begin, end = site.attrs[f"{side}_begin"] or 0, site.attrs[f"{side}_end"]
    first = begin + rank if begin < 0 else begin
    last = rank if end is None else end + rank if end < 0 else end
    if not 0 <= first <= last <= rank:
        site.fail(f"{side}_begin={begin}, {side}_end={end} are no axes of {rank} dimensions")
    return first, last


def like_shape(site: Site, lhs: Shape, rhs: Shape) -> Shape:
    """Return lhs's shape with some dimensions replaced by some of rhs's."""
    begin, end = like_range(site, "lhs", len(lhs))
    first, last = like_range(site, "rhs", len(rhs))
    out = (*lhs[:begin], *rhs[first:last], *lhs[end:])
    if complete(lhs) and complete(rhs) and math.prod(out) != math.prod(lhs):
        site.fail(f"cannot reshape {lhs} to {out}, which {rhs} asks for")
    return out


def reshape_like_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    lhs, rhs = ins
    if lhs is None or rhs is None:
        return ins, outs
    return ins, [unify(site, like_shape(site, lhs, rhs), outs[0], "output shapes")]


def reshape_like_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Derive the layout: the batch stays, or leads the axes that are replaced on both sides."""
    data, like = ins
    begin, end = like_range(site, "lhs", len(in_types[0].shape))
    first, last = like_range(site, "rhs", len(in_types[1].shape))
    inside = isinstance(data, Split) and begin <= data.axis < end
    if isinstance(like, Split) and first <= like.axis < last and not inside:
        refuse_mixing(site, "takes the number of samples as a length")
    if not isinstance(data, Split) or data.axis < begin:
        return [data]
    if data.axis >= end:
        return [Split(data.axis - end + begin + last - first, data.outer, data.inner)]
    led = isinstance(like, Split) and (like.axis, like.outer) == (first, 1)
    if not led or (data.axis, data.outer) != (begin, 1):
        refuse_mixing(site, f"has values whose batch lies differently ({data} and {like})")
    assert isinstance(like, Split)
    return [Split(begin, 1, like.inner)]


register(
    name="reshape_like",
    inputs=("lhs", "rhs"),
    shape=reshape_like_shape,
    compute=lambda env, a, x, like: x.reshape(
        like_shape(Site("reshape_like", "", a), x.shape, like.shape)
    ),
    grad=lambda c: (apply("Reshape", c.gy, shape=c.x[0].shape), None),
    flops=no_flops,
    dtype=lambda site, ins: ([ins[0] or "float32", ins[1] or "float32"], [ins[0] or "float32"]),
    batch=reshape_like_batch,
    params={
        f"{side}_{place}": params.optional(params.integer())
        for side in ("lhs", "rhs")
        for place in ("begin", "end")
    },
    view=same_memory,
    doc="The elements of lhs in the shape of rhs; or its axes [lhs_begin, lhs_end) in the lengths "
    "of rhs's axes [rhs_begin, rhs_end). MXNet reshape_like.",
)


def flat(data: Shape) -> Shape:
    return (data[0], math.prod(data[1:]))


def flatten_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = ins[0]
    if data is None:
        return ins, [unify(site, (0, 0), outs[0], "output shapes")]
    if not data:
        site.fail("needs at least one axis")
    out = unify(site, flat(data), outs[0], "output shapes")
    assert out is not None
    data = by_size((data[0] or out[0], *data[1:]), out)
    return [data], [out]


def flatten_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    return [reshape_layout(site, ins[0], in_types[0].shape, flat)]


register(
    name="Flatten",
    inputs=("data",),
    shape=flatten_shape,
    compute=lambda env, a, x: x.reshape(flat(x.shape)),
    grad=lambda c: (apply("Reshape", c.gy, shape=c.x[0].shape),),
    flops=no_flops,
    batch=flatten_batch,
    aliases=("flatten",),
    view=same_memory,
    doc="All axes but the first merged into one. MXNet Flatten.",
)


# -- permutations ------------------------------------------------------------------------------


OrderRule = Callable[[Site, int], Shape]  # for each output axis, the data's axis


def transpose_order(site: Site, rank: int) -> Shape:
    axes: Shape = site.attrs["axes"]
    order = tuple(a % rank if -rank <= a < rank else -1 for a in axes) or tuple(range(rank))[::-1]
    if sorted(order) != list(range(rank)):
        site.fail(f"axes={axes} is not a permutation of {rank} axes")
    return order


def swap_order(site: Site, rank: int) -> Shape:
    first = one_axis(site, site.attrs["dim1"], rank)
    second = one_axis(site, site.attrs["dim2"], rank)
    order = list(range(rank))
    order[first], order[second] = second, first
    return tuple(order)


def permute_shape(order_of: OrderRule) -> ShapeRule:
    def rule(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
        data, out = ins[0], outs[0]
        if data is None and out is None:
            return ins, outs
        data = (0,) * len(out or ()) if data is None else data
        order = order_of(site, len(data))
        out = unify(site, tuple(data[a] for a in order), out, "output shapes")
        assert out is not None
        return [tuple(out[order.index(a)] for a in range(len(data)))], [out]

    return rule


def permute_batch(order_of: OrderRule) -> BatchRule:
    def rule(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
        layout = ins[0]
        if not isinstance(layout, Split):
            return [layout]
        order = order_of(site, len(in_types[0].shape))
        return [Split(order.index(layout.axis), layout.outer, layout.inner)]

    return rule


def transpose_grad(c: Call) -> Sequence[Ref]:
    order = transpose_order(Site("transpose", "", c.attrs), len(c.x[0].shape))
    back = tuple(order.index(a) for a in range(len(order)))
    return (apply("transpose", c.gy, axes=back),)


register(
    name="transpose",
    inputs=("data",),
    shape=permute_shape(transpose_order),
    compute=lambda env, a, x: x.transpose(a["axes"] or None),
    grad=transpose_grad,
    flops=no_flops,
    batch=permute_batch(transpose_order),
    params={"axes": params.integers(())},
    doc="The axes in the order `axes`; reversed for (). MXNet transpose.",
)

register(
    name="SwapAxis",
    inputs=("data",),
    shape=permute_shape(swap_order),
    compute=lambda env, a, x: env.xp.swapaxes(x, a["dim1"], a["dim2"]),
    grad=lambda c: (apply("SwapAxis", c.gy, **c.attrs),),
    flops=no_flops,
    batch=permute_batch(swap_order),
    params={"dim1": params.integer(0), "dim2": params.integer(0)},
    aliases=("swapaxes",),
    doc="The data with two axes exchanged. MXNet SwapAxis.",
)


# -- axes of length 1 --------------------------------------------------------------------------


def inserted(layout: Layout, axis: int) -> Layout:
    """Return the layout after a new axis is inserted at `axis`."""
    if not isinstance(layout, Split):
        return layout
    return Split(layout.axis + (layout.axis >= axis), layout.outer, layout.inner)


def expand_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, out = ins[0], outs[0]
    if data is None:
        if not out:
            return ins, outs
        data = (0,) * (len(out) - 1)
    axis = one_axis(site, site.attrs["axis"], len(data) + 1)
    out = unify(site, (*data[:axis], 1, *data[axis:]), out, "output shapes")
    assert out is not None
    return [(*out[:axis], *out[axis + 1 :])], [out]


def expand_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    return [inserted(ins[0], one_axis(site, site.attrs["axis"], len(outs[0].shape)))]


register(
    name="expand_dims",
    inputs=("data",),
    shape=expand_shape,
    compute=lambda env, a, x: env.xp.expand_dims(x, a["axis"]),
    grad=lambda c: (apply("Reshape", c.gy, shape=c.x[0].shape),),
    flops=no_flops,
    batch=expand_batch,
    params={"axis": params.integer()},
    view=same_memory,
    doc="A new axis of length 1 at `axis`, counted in the output. MXNet expand_dims.",
)


def squeezed(site: Site, data: Shape) -> tuple[int, ...]:
    """Return the axes to remove: those named, or all of length 1."""
    if not site.attrs["axis"]:
        return tuple(a for a, d in enumerate(data) if d == 1)
    axes = axes_of(site, site.attrs["axis"], len(data))
    for a in axes:
        if data[a] > 1:
            site.fail(f"axis {a} of shape {data} has length {data[a]}, not 1")
    return axes


def squeeze_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = ins[0]
    if data is None or (not site.attrs["axis"] and 0 in data):
        return ins, outs
    axes = squeezed(site, data)
    left = tuple(d for a, d in enumerate(data) if a not in axes)
    out = unify(site, left or (1,), outs[0], "output shapes")
    assert out is not None
    kept = iter(out)
    return [tuple(1 if a in axes else next(kept) for a in range(len(data)))], [out]


def squeeze_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    layout = ins[0]
    if not isinstance(layout, Split):
        return [layout]
    axes = squeezed(site, in_types[0].shape)
    if layout.axis in axes:
        refuse_mixing(site, "drops the batch axis of a single sample (say which axis to squeeze)")
    return [Split(layout.axis - sum(a < layout.axis for a in axes), layout.outer, layout.inner)]


def squeeze(env: Env, a: Attrs, x: Array) -> Any:
    axes = squeezed(Site("squeeze", "", a), x.shape)
    return x.reshape(tuple(d for i, d in enumerate(x.shape) if i not in axes) or (1,))


register(
    name="squeeze",
    inputs=("data",),
    shape=squeeze_shape,
    compute=squeeze,
    grad=lambda c: (apply("Reshape", c.gy, shape=c.x[0].shape),),
    flops=no_flops,
    batch=squeeze_batch,
    params={"axis": params.optional(params.integers())},
    view=same_memory,
    doc="The data without axes of length 1: those in `axis`, or all; a scalar becomes (1,). MXNet "
    "squeeze.",
)
