"""Convolution as matrix products of blocks that stay in cache.

A block is some samples, or some rows of one large sample, laid out with the samples innermost:

    data (n, C, H, W)  ->  (C, padded H, padded W, n)  ->  columns (C * kernel, windows * n)

The columns are copied in runs of whole rows of all samples, fast even where images are tiny, and
one product with the weight (filters, C * kernel) is large enough for full speed. A block's
result is copied to its place in the output while it is in cache. The gradient of the data is, with
stride 1, a convolution of few filters' gradients with the weight turned round, and else the sum
of the columns' gradients. Sums are made in float32 at least.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from runtime.backends.cpu.choice import matmul
from symgraph.core.types import Array, Shape, wide
from symgraph.ops.windows import Windows

BLOCK_BYTES = 1 << 20  # of columns: about what one core's cache holds
MIN_COLUMNS = 512  # a product with fewer is slower than one whose columns leave the cache
MIN_POINTS = 64  # a product of each sample with fewer is slower than one of several samples
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


class Padded:
    """The samples of one block after another, (C, *padded, n), with zeros around them."""

    def __init__(self, x: Array, windows: Windows) -> None:
        self.x, self.windows = x, windows
        self.array: Array = np.zeros(0, wide(x.dtype))
        self._start = -1

    def of(self, block: Block) -> Array:
        if block.start != self._start:
            self._start = block.start
            part = self.x[block.start : block.stop]
            shape = (part.shape[1], *self.windows.padded(part.shape[2:]), len(part))
            if self.array.shape != shape:
                self.array = np.zeros(shape, self.array.dtype)
            inside = self.windows.inside(part.shape[2:])
            self.array[in_all(inside)] = np.moveaxis(part, 0, -1)
        return self.array


class Columns:
    """The inputs of each window of a block, (C, *kernel, *windows, n), in reused memory."""

    def __init__(self, dtype: Any, windows: Windows) -> None:
        self.windows = windows
        self.memory: Array = np.empty(0, dtype)

    def like(self, padded: Array, counts: Shape) -> Array:
        """Return uninitialised columns of `counts` windows along each axis."""
        shape = (len(padded), *self.windows.kernel, *counts, padded.shape[-1])
        size = math.prod(shape)
        if size > self.memory.size:
            self.memory = np.empty(size, self.memory.dtype)
        return self.memory[:size].reshape(shape)

    def of(self, padded: Array, counts: Shape, block: Block) -> Array:
        if self.windows.is_point:
            return padded[:, block.top : block.end]
        columns = self.like(padded, counts)
        for offset in self.windows.offsets():
            read = self.windows.at(offset, counts, block.top)
            columns[in_all(offset)] = padded[in_all(read)]
        return columns


def part_of(x: Array, block: Block) -> Array:
    """Return a block's part of an array (n, C, *windows)."""
    return x[block.start : block.stop, :, block.top : block.end]


def gathered(x: Array, groups: int, dtype: Any) -> Array:
    """Lay out (n, C, *windows) as the rows (groups, C / groups, windows * n) of a product."""
    if len(x) == 1:
        return x.astype(dtype, copy=False).reshape(groups, x.shape[1] // groups, -1)
    rows: Array = np.empty((*x.shape[1:], len(x)), dtype)
    rows[...] = np.moveaxis(x, 0, -1)
    return rows.reshape(groups, x.shape[1] // groups, -1)


def grouped(weight: Array, groups: int) -> Array:
    """Reshape (filters, C / groups, *kernel) to (groups, filters / groups, C / groups * kernel)."""
    rows = weight.reshape(groups, len(weight) // groups, -1)
    return rows.astype(wide(rows.dtype), copy=False)


def convolve(x: Array, weight: Array, bias: Array | None, windows: Windows, groups: int) -> Array:
    """Convolve (n, C, *spatial) by (filters, C / groups, *kernel) to (n, filters, *windows)."""
    counts = windows.counts(x.shape[2:])
    rows = grouped(weight, groups)
    dtype, shape = rows.dtype, (len(x), len(weight), *counts)
    if bias is not None:
        bias = bias.astype(dtype, copy=False).reshape(*rows.shape[:2], 1)
    if windows.is_point and math.prod(counts) >= MIN_POINTS:
        y = matmul(rows, x.astype(dtype, copy=False).reshape(len(x), groups, rows.shape[2], -1))
        if bias is not None:
            y += bias
        return y.reshape(shape).astype(x.dtype, copy=False)
    y = np.empty(shape, x.dtype)
    padded, columns = Padded(x, windows), Columns(dtype, windows)
    for block in blocks(len(x), counts, groups * rows.shape[2], dtype.itemsize):
        block_counts = (block.end - block.top, *counts[1:])
        read = columns.of(padded.of(block), block_counts, block)
        products = matmul(rows, read.reshape(groups, rows.shape[2], -1))
        if bias is not None:
            products += bias
        output = products.reshape(len(weight), *block_counts, -1)
        part_of(y, block)[...] = np.moveaxis(output, -1, 0)
    return y


def weight_gradient(g: Array, x: Array, windows: Windows, groups: int) -> Array:
    """Compute the gradient of the weight from (n, filters, *windows) gradients and the data."""
    depth = x.shape[1] // groups * math.prod(windows.kernel)
    dtype = np.dtype(wide(x.dtype))
    total: Array = np.zeros((groups, g.shape[1] // groups, depth), dtype)
    padded, columns = Padded(x, windows), Columns(dtype, windows)
    for block in blocks(len(x), g.shape[2:], groups * depth, dtype.itemsize):
        part = part_of(g, block)
        read = columns.of(padded.of(block), part.shape[2:], block)
        turned = read.reshape(groups, depth, -1).swapaxes(1, 2)
        total += matmul(gathered(part, groups, dtype), turned)
    shape = (g.shape[1], x.shape[1] // groups, *windows.kernel)
    return total.reshape(shape).astype(x.dtype, copy=False)


def data_gradient(
    g: Array, weight: Array, bias: Array | None, windows: Windows, groups: int, shape: Shape
) -> Array:
    """Compute the gradient of data of this shape from (n, filters, *windows) gradients.

    A bias is added to it: a Deconvolution is such a gradient.
    """
    y = _data_gradient(g, weight, windows, groups, shape)
    if bias is not None:
        y += bias.reshape(-1, *[1] * (y.ndim - 2))
    return y


def _data_gradient(g: Array, weight: Array, windows: Windows, groups: int, shape: Shape) -> Array:
    around = tuple(e - 1 - p for e, p in zip(windows.extent, windows.pad, strict=True))
    few = len(weight) <= MAX_FILTER_RATIO * shape[1]
    if few and set(windows.stride) == {1} and min(around) >= 0:
        turned = weight.reshape(groups, len(weight) // groups, *weight.shape[1:]).swapaxes(1, 2)
        axes = tuple(range(3, turned.ndim))
        turned = np.flip(turned, axes).reshape(shape[1], -1, *windows.kernel)
        return convolve(g, turned, None, windows._replace(pad=around), groups)
    return scattered(g, weight, windows, groups, shape)


def scattered(g: Array, weight: Array, windows: Windows, groups: int, shape: Shape) -> Array:
    """Compute `data_gradient` for any stride by adding up the gradients of the columns."""
    turned = grouped(weight, groups).swapaxes(1, 2)
    y: Array = np.empty(shape, g.dtype)
    columns = Columns(turned.dtype, windows)
    inside, padded = windows.inside(shape[2:]), windows.padded(shape[2:])
    total: Array = np.empty(0)
    for block in blocks(len(g), g.shape[2:], groups * turned.shape[1], turned.dtype.itemsize):
        part = part_of(g, block)
        if block.top == 0:
            total = np.zeros((shape[1], *padded, len(part)), turned.dtype)
        products = columns.like(total, part.shape[2:])
        rows = gathered(part, groups, turned.dtype)
        matmul(turned, rows, out=products.reshape(groups, turned.shape[1], -1))
        for offset in windows.offsets():
            read = windows.at(offset, part.shape[2:], block.top)
            total[in_all(read)] += products[in_all(offset)]
        if block.end == g.shape[2]:
            y[block.start : block.stop] = np.moveaxis(total[in_all(inside)], -1, 0)
    return y
