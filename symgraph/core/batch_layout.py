"""Batch layouts: where the batch axis is in each value, and what a micro-batch's value means.

Micro-batches change nothing but rounding, or the graph is refused. To know which, every value of
a graph is one of

    Split(axis, outer, inner)   samples lie along `axis`, whose length is outer * batch * inner:
                                (T, B, H) is Split(1); merged to (T*B, H) it is Split(0, outer=T);
                                the whole batch's value is put together from the micro-batches'
    PARTIAL                     a sum over samples: the whole batch's value is the sum of them
    WHOLE                       does not depend on the samples: parameters and what follows

and every operator has a rule that says how these go through it. A zero-sized axis is never the
batch's. The rules here serve most operators; they raise MicroBatchError by `refuse_mixing`.
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
        f"{site.op} {site.name!r} {why}, so micro-batches would change its result; "
        "use micro_batches: 1 for this network"
    )


def merge(site: Site, ins: Layouts, in_types: Types, out: Shape) -> Layout:
    """The common layout of inputs that broadcast to `out`."""
    found: Layout = WHOLE
    for layout, type_ in zip(ins, in_types, strict=True):
        if layout is WHOLE:
            continue
        if isinstance(layout, Split):  # axes align from the right when ranks differ
            axis = layout.axis + len(out) - len(type_.shape)
            if axis < 0 or type_.shape[layout.axis] != out[axis]:
                refuse_mixing(site, "does not keep the length of the batch axis")
            layout = Split(axis, layout.outer, layout.inner)
        if found is not WHOLE and found != layout:
            refuse_mixing(site, f"joins values whose batch lies differently ({found} and {layout})")
        found = layout
    return found


def elementwise(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Any function of one element of each input, with broadcasting."""
    if PARTIAL in ins:
        refuse_mixing(site, "applies a nonlinear function to a sum over the batch")
    return [merge(site, ins, in_types, out.shape) for out in outs]


def linear(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Sums of the inputs, each with a constant factor."""
    if PARTIAL in ins and WHOLE in ins:
        refuse_mixing(site, "adds a constant to a sum over the batch")
    return [merge(site, ins, in_types, out.shape) for out in outs]


def bilinear(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Products: a sum over the batch may be multiplied by what does not depend on it."""
    if PARTIAL in ins:
        if any(isinstance(layout, Split) for layout in ins) or list(ins).count(PARTIAL) > 1:
            refuse_mixing(site, "multiplies sums over the batch")
        return [PARTIAL] * len(outs)
    return elementwise(site, ins, in_types, outs)


def quotient(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """x / y: linear in x."""
    if ins[1] is PARTIAL:
        refuse_mixing(site, "divides by a sum over the batch")
    return bilinear(site, ins, in_types, outs)


def reduced(axes: Sequence[int], keepdims: bool, layout: Layout, rank: int) -> Layout:
    """The layout after a sum over `axes` (non-negative)."""
    if not isinstance(layout, Split):
        return layout
    if layout.axis in axes:
        return PARTIAL
    before = 0 if keepdims else sum(a < layout.axis for a in axes)
    return Split(layout.axis - before, layout.outer, layout.inner)


def reshaped(site: Site, layout: Layout, old: Shape, new: Shape) -> Layout:
    """The layout after elements are read in the same order under another shape."""
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
    """A linear function of the first input that leaves its axes where they are."""
    return [ins[0]] * len(outs)


AxesOf = Callable[[Attrs, int], Container[int]]  # (parameters, rank) -> axes, 0 or more


def not_along(
    axes_of: AxesOf,
    rule: BatchRule = kept,
    why: str = "works along axis {axis}, where the batch lies",
) -> BatchRule:
    """`rule`, for an operation along some axes of its first input: the batch may not lie there."""

    def checked(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
        first = ins[0]
        if isinstance(first, Split) and first.axis in axes_of(site.attrs, len(in_types[0].shape)):
            refuse_mixing(site, why.format(axis=first.axis))
        return rule(site, ins, in_types, outs)

    return checked


def named_axis(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """The axis that the parameter `axis` names, as `not_along` wants it; none if it is None."""
    axis = attrs["axis"]
    return () if axis is None else (axis % rank,)


def spatial_axes(attrs: Attrs, rank: int) -> range:
    """The axes of (batch, channel, *spatial) data behind the channels."""
    return range(2, rank)


axiswise = not_along(named_axis, elementwise)
