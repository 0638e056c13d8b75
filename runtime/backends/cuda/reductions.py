"""Sums and means over neighbouring axes."""

from __future__ import annotations

import math
from collections.abc import Collection

from runtime.backends.cuda.base import floating, kernel, launch
from runtime.backends.cuda.lines import Lines, run
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Shape
from symgraph.ops.reduce import axes_in


def together(shape: Shape, axes: Collection[int]) -> Lines | None:
    """Return the lines along these axes; None if the axes are not neighbours."""
    long = [axis for axis, length in enumerate(shape) if length > 1]
    places = [place for place, axis in enumerate(long) if axis in axes]
    if not places:
        return Lines(math.prod(shape), 1, 1)
    first, end = places[0], places[-1] + 1
    if end - first > len(places):
        return None
    sizes = [shape[axis] for axis in long]
    return Lines(*(math.prod(part) for part in (sizes[:first], sizes[first:end], sizes[end:])))


def summed(call: KernelCall, axes: Collection[int], divisor: float = 1.0) -> BoundCall | None:
    """Bind the sum over axes, divided by `divisor`."""
    (x,), (out,) = call.ins, call.outs
    layout = together(x.shape, axes)
    if layout is None or not floating(x, out):
        return None
    compiled = run("sum_lines", x)
    return launch(compiled, *layout.along, x, out, *layout.sizes, float(divisor))


@kernel("sum")
def sum_(call: KernelCall) -> BoundCall | None:
    return summed(call, axes_in(call.attrs, call.ins[0].ndim))


@kernel("mean")
def mean(call: KernelCall) -> BoundCall | None:
    x, a = call.ins[0], call.attrs
    axes = axes_in(a, x.ndim)
    return summed(call, axes, a["count"] or math.prod(x.shape[i] for i in axes))


@kernel("_sum_to")
def sum_to(call: KernelCall) -> BoundCall | None:
    x, shape = call.ins[0], call.attrs["shape"]
    lead = x.ndim - len(shape)
    kept = [axis for axis, length in enumerate(shape, lead) if length == x.shape[axis]]
    return summed(call, [axis for axis in range(x.ndim) if axis not in kept])
