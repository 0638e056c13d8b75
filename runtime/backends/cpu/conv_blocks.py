"""Convolution as matrix products of blocks that stay in cache.

A block is some samples, or some rows of one large sample, laid out with the samples innermost:

    data (n, C, H, W)  ->  (C, padded H, padded W, n)  ->  columns (C * kernel, windows * n)

The columns are copied in runs of whole rows of all samples, fast even where images are tiny, and
one product with the weight (filters, C * kernel) is large enough for full speed. A block's
result is copied to its place in the output while it is in cache. Where rows are long, samples stay
outermost in memory: there is a product for each, and its result needs no copy. The gradient of the
data is, with stride 1, a convolution of few filters' gradients with the weight turned round, and
else the sum of the columns' gradients. Sums are made in float32 at least.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from runtime.backends.cpu.choice import matmul
from runtime.backends.cpu.gates import copy
from runtime.backends.device.compile import jit
from symgraph.core.types import Array, Shape, wide
from symgraph.ops.windows import Windows

BLOCK_BYTES = 1 << 20  # of columns: about what one core's cache holds
MIN_COLUMNS = 512  # a product with fewer is slower than one whose columns leave the cache
MIN_POINTS = 64  # a product of each sample with fewer is slower than one of several samples
MIN_ROW = 24  # windows of a row that is copied as fast as a row of several samples
MAX_FILTER_RATIO = 4  # adding up columns takes this many times as long as copying them


class Block(NamedTuple):
    """Samples [start, stop) and, of their windows, the rows [top, end) along spatial axis 0."""

    start: int
    stop: int
    top: int
    end: int


def blocks(batch: int, counts: Shape, depth: int, itemsize: int) -> Iterator[Block]:
    """Yield blocks in order, those of one sample one after the other.

    Args:
        batch: The number of samples.
        counts: The windows along each spatial axis.
        depth: The rows of the matrix of columns.
        itemsize: The bytes of an element.
    """
    columns = max(MIN_COLUMNS, BLOCK_BYTES // (depth * itemsize))
    row = math.prod(counts[1:])
    samples = share(batch, columns // (row * counts[0]))
    rows = share(counts[0], columns // row)
    for start in range(0, batch, samples):
        for top in range(0, counts[0], rows):
            yield Block(start, min(start + samples, batch), top, min(top + rows, counts[0]))


def share(total: int, most: int) -> int:
    """Return the size of equal parts of `total`: the fewest with at most `most` (or one) each."""
    parts = -(-total // max(1, most))
    return -(-total // parts)


def in_all(place: Sequence[int | slice]) -> tuple[int | slice, ...]:
    """Extend an index of the spatial axes to all channels."""
    return slice(None), *place


def is_innermost(windows: Windows, counts: Shape) -> bool:
    """Tell whether samples are to be innermost in memory; else they are outermost."""
    short = counts[-1] < MIN_ROW and {*windows.kernel} != {1}
    return short or math.prod(counts) < MIN_POINTS


def laid_out(memory: Array, shape: Shape, innermost: bool) -> Array:
    """View memory as (C, ..., n), with the samples innermost or else outermost."""
    if innermost:
        return memory.reshape(shape)
    return np.moveaxis(memory.reshape(shape[-1], *shape[:-1]), 0, -1)


class Padded:
    """The samples of one block after another, (C, *padded, n), with zeros around them."""

    def __init__(self, x: Array, windows: Windows, innermost: bool) -> None:
        self.x, self.windows, self.innermost = x, windows, innermost
        self.array: Array = np.zeros(0, wide(x.dtype))
        self._start = -1

    def of(self, block: Block) -> Array:
        if block.start != self._start:
            self._start = block.start
            part = self.x[block.start : block.stop]
            shape = (part.shape[1], *self.windows.padded(part.shape[2:]), len(part))
            if self.array.shape != shape:
                zeros = np.zeros(math.prod(shape), self.array.dtype)
                self.array = laid_out(zeros, shape, self.innermost)
            inside = self.windows.inside(part.shape[2:])
            self.array[in_all(inside)] = np.moveaxis(part, 0, -1)
        return self.array


class Columns:
    """The inputs of each window of a block, (C, *kernel, *windows, n), in reused memory."""

    def __init__(self, dtype: Any, windows: Windows, innermost: bool) -> None:
        self.windows, self.innermost = windows, innermost
        self.memory: Array = np.empty(0, dtype)

    def like(self, padded: Array, counts: Shape) -> Array:
        """Return uninitialised columns of `counts` windows along each axis."""
        shape = (len(padded), *self.windows.kernel, *counts, padded.shape[-1])
        return laid_out(self._memory(math.prod(shape)), shape, self.innermost)

    def _memory(self, size: int) -> Array:
        if size > self.memory.size:
            self.memory = np.empty(size, self.memory.dtype)
        return self.memory[:size]

    def of(self, source: Padded, counts: Shape, block: Block) -> Array:
        """Return the columns of a block with `counts` windows along each axis."""
        windows, x = self.windows, source.x
        if windows.is_point and not self.innermost:
            return np.moveaxis(part_of(x, block), 0, -1)
        of_images = not self.innermost and x.ndim == 4 and x.flags.c_contiguous
        if of_images and windows.stride[1] == 1:
            shape = (block.stop - block.start, x.shape[1], *windows.kernel, *counts)
            columns = self._memory(math.prod(shape)).reshape(shape)
            fill_columns(x, block.start, block.top, *windows, columns)
            return np.moveaxis(columns, 0, -1)
        padded = source.of(block)
        if windows.is_point:
            return padded[:, block.top : block.end]
        columns = self.like(padded, counts)
        for offset in self.windows.offsets():
            read = self.windows.at(offset, counts, block.top)
            columns[in_all(offset)] = padded[in_all(read)]
        return columns


@jit
def fill_columns(
    x: Array,
    start: int,
    top: int,
    kernel: Shape,
    stride: Shape,
    dilate: Shape,
    pad: Shape,
    columns: Array,
) -> None:
    """Fill columns (samples, C, *kernel, rows, windows of a row), whose stride in a row is 1.

    Args:
        x: The data (n, C, height, width), without zeros around it.
        start: The first sample.
        top: The first row of windows.
        kernel, stride, dilate, pad: The windows.
        columns: What to fill.
    """
    channels, height, width = x.shape[1:]
    source, target = x.reshape(-1), columns.reshape(-1)
    rows, across, at = columns.shape[4], columns.shape[5], 0
    for n in range(start, start + len(columns)):
        for c in range(channels):
            for i in range(kernel[0]):
                for j in range(kernel[1]):
                    left = j * dilate[1] - pad[1]
                    begin = min(across, max(0, -left))
                    end = max(begin, min(across, width - left))
                    for r in range(top, top + rows):
                        line = target[at : at + across]
                        row = r * stride[0] + i * dilate[0] - pad[0]
                        if 0 <= row < height:
                            first = ((n * channels + c) * height + row) * width + left
                            line[:begin] = 0
                            copy(source[first + begin : first + end], line[begin:end])
                            line[end:] = 0
                        else:
                            line[:] = 0
                        at += across


def part_of(x: Array, block: Block) -> Array:
    """Return a block's part of an array (n, C, *windows)."""
    return x[block.start : block.stop, :, block.top : block.end]


def gathered(x: Array, groups: int, dtype: Any, innermost: bool) -> Array:
    """Lay out (n, C, *windows) as the rows of products, see `stacked`."""
    if not innermost or len(x) == 1:
        return stacked(np.moveaxis(x.astype(dtype, copy=False), 0, -1), groups, x.shape[1], False)
    rows: Array = np.empty((*x.shape[1:], len(x)), dtype)
    rows[...] = np.moveaxis(x, 0, -1)
    return stacked(rows, groups, x.shape[1], True)


def stacked(rows: Array, groups: int, depth: int, innermost: bool) -> Array:
    """View (C, ..., n) with `depth` rows as matrices that are multiplied.

    Returns:
        (1, groups, depth / groups, windows * n), or (n, groups, depth / groups, windows) where
        samples are outermost.
    """
    matrices = rows[None] if innermost else np.moveaxis(rows, -1, 0)
    return matrices.reshape(len(matrices), groups, depth // groups, -1)


def grouped(weight: Array, groups: int) -> Array:
    """Reshape (filters, C / groups, *kernel) to (groups, filters / groups, C / groups * kernel)."""
    rows = weight.reshape(groups, len(weight) // groups, -1)
    return rows.astype(wide(rows.dtype), copy=False)


def convolve(
    x: Array, weight: Array, bias: Array | None, windows: Windows, groups: int, y: Array
) -> None:
    """Convolve (n, C, *spatial) by (filters, C / groups, *kernel) to y (n, filters, *windows)."""
    counts, rows = y.shape[2:], grouped(weight, groups)
    dtype, depth = rows.dtype, groups * rows.shape[2]
    innermost = is_innermost(windows, counts)
    if bias is not None:
        bias = bias.astype(dtype, copy=False).reshape(*rows.shape[:2], 1)
    padded, columns = Padded(x, windows, innermost), Columns(dtype, windows, innermost)
    for block in blocks(len(x), counts, depth, dtype.itemsize):
        part = part_of(y, block)
        read = columns.of(padded, part.shape[2:], block)
        into = None
        if not innermost and part.flags.c_contiguous:
            into = part.reshape(len(part), *rows.shape[:2], -1)
        products = matmul(rows, stacked(read, groups, depth, innermost), into)
        if bias is not None:
            products += bias
        if innermost:
            part[...] = np.moveaxis(products.reshape(*part.shape[1:], -1), -1, 0)
        elif into is None:
            part[...] = products.reshape(part.shape)


def weight_gradient(g: Array, x: Array, windows: Windows, groups: int, out: Array) -> None:
    """Compute the gradient of the weight from (n, filters, *windows) gradients and the data."""
    depth = x.shape[1] * math.prod(windows.kernel)
    dtype = np.dtype(wide(x.dtype))
    total: Array = np.zeros((groups, g.shape[1] // groups, depth // groups), dtype)
    innermost = is_innermost(windows, g.shape[2:])
    padded, columns = Padded(x, windows, innermost), Columns(dtype, windows, innermost)
    for block in blocks(len(x), g.shape[2:], depth, dtype.itemsize):
        part = part_of(g, block)
        read = columns.of(padded, part.shape[2:], block)
        turned = stacked(read, groups, depth, innermost).swapaxes(2, 3)
        total += matmul(gathered(part, groups, dtype, innermost), turned).sum(axis=0)
    out[...] = total.reshape(out.shape)


def data_gradient(
    g: Array, weight: Array, bias: Array | None, windows: Windows, groups: int, y: Array
) -> None:
    """Compute the gradient y of the data from (n, filters, *windows) gradients.

    A bias is added to it: a Deconvolution is such a gradient.
    """
    around = tuple(e - 1 - p for e, p in zip(windows.extent, windows.pad, strict=True))
    few = len(weight) <= MAX_FILTER_RATIO * y.shape[1]
    if few and set(windows.stride) == {1} and min(around) >= 0:
        turned = weight.reshape(groups, len(weight) // groups, *weight.shape[1:]).swapaxes(1, 2)
        axes = tuple(range(3, turned.ndim))
        turned = np.flip(turned, axes).reshape(y.shape[1], -1, *windows.kernel)
        convolve(g, turned, bias, windows._replace(pad=around), groups, y)
        return
    scattered(g, weight, windows, groups, y)
    if bias is not None:
        y += bias.reshape(-1, *[1] * (y.ndim - 2))


def scattered(g: Array, weight: Array, windows: Windows, groups: int, y: Array) -> None:
    """Compute `data_gradient` for any stride by adding up the gradients of the columns."""
    turned = grouped(weight, groups).swapaxes(1, 2)
    columns = Columns(turned.dtype, windows, True)
    inside, padded = windows.inside(y.shape[2:]), windows.padded(y.shape[2:])
    total: Array = np.empty(0)
    for block in blocks(len(g), g.shape[2:], groups * turned.shape[1], turned.dtype.itemsize):
        part = part_of(g, block)
        if block.top == 0:
            total = np.zeros((y.shape[1], *padded, len(part)), turned.dtype)
        products = columns.like(total, part.shape[2:])
        (rows,) = gathered(part, groups, turned.dtype, True)
        matmul(turned, rows, out=products.reshape(groups, turned.shape[1], -1))
        for offset in windows.offsets():
            read = windows.at(offset, part.shape[2:], block.top)
            total[in_all(read)] += products[in_all(offset)]
        if block.end == g.shape[2]:
            y[block.start : block.stop] = np.moveaxis(total[in_all(inside)], -1, 0)
