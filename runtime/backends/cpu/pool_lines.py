"""Pooling as a chain of one-dimensional poolings, last spatial axis first.

A maximum or sum over a window is that of its rows' maxima or sums, so a kernel of k x k takes 2 k
passes and not k * k, most of them over whole rows. The gradient goes back through the chain; that
of a maximum goes to the first of equal elements, the row first and the column in it after, which
is the order of the chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from symgraph.core.params import Attrs
from symgraph.core.types import Array, Shape
from symgraph.ops.pool import mean_or_norm, per_element, windows_over

Part = tuple[slice, ...]


class Line(NamedTuple):
    """Windows along one axis of the data, the first at -pad."""

    axis: int
    length: int
    windows: int
    kernel: int
    stride: int
    pad: int

    @property
    def span(self) -> int:
        """The length of the data together with the padding that windows cover."""
        return max(self.pad + self.length, (self.windows - 1) * self.stride + self.kernel)

    def part(self, start: int, stop: int, step: int = 1) -> Part:
        return (*[slice(None)] * self.axis, slice(start, stop, step))

    @property
    def data(self) -> Part:
        """The data within the span."""
        return self.part(self.pad, self.pad + self.length)

    def parts(self) -> Iterator[Part]:
        """Yield, for each position in a window, the elements of the span at it."""
        for start in range(self.kernel):
            last = start + (self.windows - 1) * self.stride
            yield self.part(start, last + 1, self.stride)


def spanned(x: Array, line: Line, fill: float) -> Array:
    """Pad the data with `fill`."""
    if line.span == line.length:
        return x
    shape = (*x.shape[: line.axis], line.span, *x.shape[line.axis + 1 :])
    whole: Array = np.full(shape, fill, x.dtype)
    whole[line.data] = x
    return whole


def reduced(x: Array, line: Line, ufunc: Any, reduce: Any, fill: float) -> Array:
    """Reduce each window of one axis to one element; `reduce` is `ufunc` along an axis."""
    whole = spanned(x, line, fill)
    if line.windows == 1:
        single: Array = reduce(whole[line.part(0, line.kernel)], line.axis, keepdims=True)
        return single
    first, *rest = (whole[part] for part in line.parts())
    total: Array = ufunc(first, rest[0]) if rest else first.copy()
    for other in rest[1:]:
        ufunc(total, other, out=total)
    return total


def spread(g: Array, line: Line) -> Array:
    """Compute the transpose of a sum: add up, for each element, the values of its windows."""
    shape = (*g.shape[: line.axis], line.span, *g.shape[line.axis + 1 :])
    whole: Array = np.zeros(shape, g.dtype)
    for part in line.parts():
        whole[part] += g
    return whole[line.data]


def first_hits(x: Array, y: Array, line: Line) -> Iterator[tuple[Part, Array]]:
    """Find each window's first maximum: a mask over the windows for each position."""
    free = None
    for part in line.parts():
        hit = x[part] == y
        if free is None:
            free = ~hit
        else:
            hit &= free
            free ^= hit
        yield part, hit


def sums(x: Array, lines: Sequence[Line]) -> Array:
    for line in reversed(lines):
        x = reduced(x, line, np.add, np.sum, 0.0)
    return x


def sums_gradient(g: Array, lines: Sequence[Line]) -> Array:
    for line in lines:
        g = spread(g, line)
    return g


def maxima(x: Array, lines: Sequence[Line]) -> list[Array]:
    """Return the data, then its maxima along the last axis, the last two, ..."""
    levels = [x]
    for line in reversed(lines):
        levels.append(reduced(levels[-1], line, np.maximum, np.max, -np.inf))
    return levels


def maxima_gradient(g: Array, x: Array, lines: Sequence[Line]) -> Array:
    """Add up each window's gradient at its first maximum."""
    levels = maxima(x, lines)
    for line, below, above in zip(lines, levels[-2::-1], levels[::-1], strict=False):
        whole = spanned(below, line, -np.inf)
        total = np.zeros(whole.shape, g.dtype)
        for part, hit in first_hits(whole, above, line):
            total[part] += g * hit
        g = total[line.data]
    return g


def at_maxima(h: Array, x: Array, lines: Sequence[Line]) -> Array:
    """Compute the transpose of `maxima_gradient`: pick h at each window's first maximum."""
    levels = maxima(x, lines)
    for line, below, above in zip(reversed(lines), levels, levels[1:], strict=False):
        whole, values = spanned(below, line, -np.inf), spanned(h, line, 0.0)
        total = np.zeros(above.shape, h.dtype)
        for part, hit in first_hits(whole, above, line):
            total += values[part] * hit
        h = total
    return h


def pooled(attrs: Attrs, x: Array) -> Array:
    """Compute the output of Pooling."""
    lines, kind = lines_of(attrs, x.shape), attrs["pool_type"]
    if kind == "max":
        return maxima(x, lines)[-1]
    return mean_or_norm(np, attrs, x, lambda each: sums(each, lines))


def pool_gradient(attrs: Attrs, g: Array) -> Array:
    """Compute the gradient of the data for a sum or an average."""
    return sums_gradient(per_element(np, attrs, g), lines_of(attrs, attrs["shape"]))


def lines_of(attrs: Attrs, data: Shape) -> list[Line]:
    """Return a line for each spatial axis of (batch, channel, *spatial) data."""
    windows, counts = windows_over(attrs, data)
    fields = zip(data[2:], counts, windows.kernel, windows.stride, windows.pad, strict=True)
    return [Line(axis, *each) for axis, each in enumerate(fields, 2)]
