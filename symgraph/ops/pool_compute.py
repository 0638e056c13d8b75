"""Pooling as a chain of one-dimensional poolings, last spatial axis first.

A maximum or sum over a window is that of its rows' maxima or sums, so a kernel of k x k takes 2 k
passes and not k * k, most of them over whole rows. The gradient goes back through the chain; that
of a maximum goes to the first of equal elements, the row first and the column in it after, which
is the order of the chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from symgraph.core.types import Array, Shape

Part = tuple[slice, ...]


class Line(NamedTuple):
    """So many windows along one axis of the data, the first at -pad."""

    axis: int
    length: int
    windows: int
    kernel: int
    stride: int
    pad: int

    @property
    def span(self) -> int:
        """The length with all that the windows cover around the data."""
        return max(self.pad + self.length, (self.windows - 1) * self.stride + self.kernel)

    def part(self, start: int, stop: int, step: int = 1) -> Part:
        return (*[slice(None)] * self.axis, slice(start, stop, step))

    @property
    def data(self) -> Part:
        """The data within the span."""
        return self.part(self.pad, self.pad + self.length)

    def parts(self) -> Iterator[Part]:
        """The elements of the span at each position in the windows."""
        for start in range(self.kernel):
            last = start + (self.windows - 1) * self.stride
            yield self.part(start, last + 1, self.stride)

    def sizes(self, padding: bool) -> list[int]:
        """How many elements each window has, with those of the padding or without."""
        low, high = (-self.pad, self.length + self.pad) if padding else (0, self.length)
        starts = [i * self.stride - self.pad for i in range(self.windows)]
        return [min(s + self.kernel, high) - max(s, low) for s in starts]


def spanned(xp: Any, x: Array, line: Line, fill: float) -> Array:
    """The data with `fill` around it."""
    if line.span == line.length:
        return x
    shape = (*x.shape[: line.axis], line.span, *x.shape[line.axis + 1 :])
    whole: Array = xp.full(shape, fill, x.dtype)
    whole[line.data] = x
    return whole


def reduced(xp: Any, x: Array, line: Line, ufunc: Any, reduce: Any, fill: float) -> Array:
    """The windows of one axis, each reduced to one element. reduce: `ufunc` along an axis."""
    whole = spanned(xp, x, line, fill)
    if line.windows == 1:
        made: Array = reduce(whole[line.part(0, line.kernel)], line.axis, keepdims=True)
        return made
    first, *rest = (whole[part] for part in line.parts())
    total: Array = ufunc(first, rest[0]) if rest else first.copy()
    for other in rest[1:]:
        ufunc(total, other, out=total)
    return total


def spread(xp: Any, g: Array, line: Line) -> Array:
    """The transpose of a sum: what each element has in all of its windows."""
    shape = (*g.shape[: line.axis], line.span, *g.shape[line.axis + 1 :])
    whole: Array = xp.zeros(shape, g.dtype)
    for part in line.parts():
        whole[part] += g
    return whole[line.data]


def first_hits(x: Array, y: Array, line: Line) -> Iterator[tuple[Part, Array]]:
    """Where in the span the first maximum of each window is: a mask for each position."""
    free = None
    for part in line.parts():
        hit = x[part] == y
        if free is None:
            free = ~hit
        else:
            hit &= free
            free ^= hit
        yield part, hit


def sums(xp: Any, x: Array, lines: Sequence[Line]) -> Array:
    for line in reversed(lines):
        x = reduced(xp, x, line, xp.add, xp.sum, 0.0)
    return x


def sums_gradient(xp: Any, g: Array, lines: Sequence[Line]) -> Array:
    for line in lines:
        g = spread(xp, g, line)
    return g


def window_sizes(xp: Any, lines: Sequence[Line], padding: bool) -> Array:
    """The number of elements of each window, to broadcast against the output."""
    total: Array = xp.ones((), "int64")
    for line in lines:
        total = total[..., None] * xp.asarray(line.sizes(padding))
    return total


def maxima(xp: Any, x: Array, lines: Sequence[Line]) -> list[Array]:
    """The data, then the maxima along the last axis, the last two, ..."""
    found = [x]
    for line in reversed(lines):
        found.append(reduced(xp, found[-1], line, xp.maximum, xp.max, -xp.inf))
    return found


def maxima_gradient(xp: Any, g: Array, x: Array, lines: Sequence[Line]) -> Array:
    """Each window's gradient at its first maximum."""
    found = maxima(xp, x, lines)
    for line, below, above in zip(lines, found[-2::-1], found[::-1], strict=False):
        whole = spanned(xp, below, line, -xp.inf)
        total = xp.zeros(whole.shape, g.dtype)
        for part, hit in first_hits(whole, above, line):
            total[part] += g * hit
        g = total[line.data]
    return g


def at_maxima(xp: Any, h: Array, x: Array, lines: Sequence[Line]) -> Array:
    """The transpose of `maxima_gradient`: what h has where each window has its first maximum."""
    found = maxima(xp, x, lines)
    for line, below, above in zip(reversed(lines), found, found[1:], strict=False):
        whole, values = spanned(xp, below, line, -xp.inf), spanned(xp, h, line, 0.0)
        total = xp.zeros(above.shape, h.dtype)
        for part, hit in first_hits(whole, above, line):
            total += values[part] * hit
        h = total
    return h


def lines_of(lengths: Shape, counts: Shape, kernel: Shape, stride: Shape, pad: Shape) -> list[Line]:
    """One line a spatial axis of (batch, channel, *spatial) data."""
    fields = zip(lengths, counts, kernel, stride, pad, strict=True)
    return [Line(axis, *each) for axis, each in enumerate(fields, 2)]
