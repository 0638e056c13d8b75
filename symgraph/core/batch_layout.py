"""Batch layouts: where the batch axis is in each value, and what a micro-batch's value means.

Micro-batches change nothing but rounding, or the graph is rejected. To tell, every value of a graph
has one of these layouts:

    Split(axis, outer, inner)   samples lie along `axis`, whose length is outer * batch * inner:
                                (T, B, H) is Split(1); merged to (T*B, H) it is Split(0, outer=T);
                                the whole batch's value is the micro-batches' values concatenated
    PARTIAL                     a sum over samples: the whole batch's value is the sum of theirs
    WHOLE                       does not depend on the samples: parameters and what follows

Every operator has a rule that derives its outputs' layouts from its inputs'. The rules here serve
most operators; they raise MicroBatchError by `refuse_mixing`. A zero-sized axis is never the
batch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from symgraph.core.errors import MicroBatchError
from symgraph.core.params import Attrs, Site
from symgraph.core.types import Shape, Types


@dataclass(frozen=True)
class Split:
    """The batch lies along `axis`: its length is outer * batch * inner, in this nesting."""

    axis: int
    outer: int = 1
    inner: int = 1


class Unsplit(Enum):
    """The two layouts without a batch axis."""

    WHOLE = "whole"
    PARTIAL = "partial"


WHOLE, PARTIAL = Unsplit.WHOLE, Unsplit.PARTIAL
Layout = Split | Unsplit
Layouts = Sequence[Layout]
BatchRule = Callable[[Site, Layouts, Types, Types], Layouts]


def refuse_mixing(site: Site, why: str) -> NoReturn:
    raise MicroBatchError(
        f"{site.op} {site.name!r} {why}, so micro-batches or replicas would change its result; "
        "use micro_batches: 1 and no replicas for this network"
    )


def merge(site: Site, ins: Layouts, in_types: Types, out: Shape) -> Layout:
    """Return the common layout of inputs that broadcast to `out`."""
    common: Layout = WHOLE
    for layout, type_ in zip(ins, in_types, strict=True):
        if layout is WHOLE:
            continue
        if isinstance(layout, Split):  # axes align from the right when ranks differ
            axis = layout.axis + len(out) - len(type_.shape)
            if axis < 0 or type_.shape[layout.axis] != out[axis]:
                refuse_mixing(site, "does not keep the length of the batch axis")
            layout = Split(axis, layout.outer, layout.inner)
        if common is not WHOLE and common != layout:
            message = f"joins values whose batch lies differently ({common} and {layout})"
            refuse_mixing(site, message)
        common = layout
    return common


def elementwise(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Derive the layout of any function of one element of each input, with broadcasting."""
    if PARTIAL in ins:
        refuse_mixing(site, "applies a nonlinear function to a sum over the batch")
    return [merge(site, ins, in_types, out.shape) for out in outs]


def linear(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Derive the layout of a sum of the inputs, each times a constant."""
    if PARTIAL in ins and WHOLE in ins:
        refuse_mixing(site, "adds a constant to a sum over the batch")
    return [merge(site, ins, in_types, out.shape) for out in outs]


def bilinear(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Derive the layout of a product; a sum over the batch may be times what is independent."""
    if PARTIAL in ins:
        if any(isinstance(layout, Split) for layout in ins) or list(ins).count(PARTIAL) > 1:
            refuse_mixing(site, "multiplies sums over the batch")
        return [PARTIAL] * len(outs)
    return elementwise(site, ins, in_types, outs)


def quotient(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Derive the layout of x / y, which is linear in x."""
    if ins[1] is PARTIAL:
        refuse_mixing(site, "divides by a sum over the batch")
    return bilinear(site, ins, in_types, outs)


def reduced(axes: Sequence[int], keepdims: bool, layout: Layout, rank: int) -> Layout:
    """Return the layout after a sum over `axes` (0 or more)."""
    if not isinstance(layout, Split):
        return layout
    if layout.axis in axes:
        return PARTIAL
    before = 0 if keepdims else sum(a < layout.axis for a in axes)
    return Split(layout.axis - before, layout.outer, layout.inner)


def reshaped(site: Site, layout: Layout, old: Shape, new: Shape) -> Layout:
    """Return the layout after elements are read in the same order under another shape."""
    if not isinstance(layout, Split):
        return layout
    before = math.prod(old[: layout.axis]) * layout.outer
    after = math.prod(old[layout.axis + 1 :]) * layout.inner
    batch = math.prod(old) // max(1, before * after)
    prefix = 1
    for axis, length in enumerate(new):
        outer, rest = divmod(before, prefix)
        if not rest and outer and length % (outer * batch) == 0:
            inner = length // (outer * batch)
            if inner * math.prod(new[axis + 1 :]) == after and inner:
                return Split(axis, outer, inner)
        prefix *= length
    refuse_mixing(site, f"reshapes {old} to {new} across the batch")


def kept(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Derive the layout of a linear function of the first input that leaves its axes in place."""
    return [ins[0]] * len(outs)


AxesOf = Callable[[Attrs, int], Container[int]]  # (parameters, rank) -> axes, 0 or more


def not_along(
    axes_of: AxesOf,
    rule: BatchRule = kept,
    why: str = "works along axis {axis}, where the batch lies",
) -> BatchRule:
    """Extend `rule` to an operation along axes of its first input where no batch may lie."""

    def checked(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
        first = ins[0]
        if isinstance(first, Split) and first.axis in axes_of(site.attrs, len(in_types[0].shape)):
            refuse_mixing(site, why.format(axis=first.axis))
        return rule(site, ins, in_types, outs)

    return checked


def named_axis(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """Return the axis that the parameter `axis` names, for `not_along`; none if it is None."""
    axis = attrs["axis"]
    return () if axis is None else (axis % rank,)


def spatial_axes(attrs: Attrs, rank: int) -> range:
    """Return the axes of (batch, channel, *spatial) data behind the channels."""
    return range(2, rank)


axiswise = not_along(named_axis, elementwise)
