"""Convolutions: of 3x3 with stride 1 by Winograd's products, all others by `conv_blocks`.

Winograd's products pay where there are channels enough. Work goes unit after unit, some tile rows
of some samples, so that what a unit spreads out is still in the cache when it is multiplied.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from partitioner.memory.packing import to_cache_lines
from runtime.backends.cpu import conv_blocks
from runtime.backends.cpu.flat import by_numpy, floating
from runtime.backends.cpu.table import KERNELS, kernel
from runtime.backends.cpu.winograd import (
    POINTS,
    gather_output,
    lanes,
    spread_gradient,
    spread_input,
)
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Array, Shape
from symgraph.ops.conv import widened
from symgraph.ops.windows import windows_of

CHANNELS = 16  # the least on both sides
SAMPLES = 8  # the least: they go in whole vectors
TILES = 32  # of all samples, the least for which to change the basis of a weight
COLUMNS = range(128, 1025)  # of a unit's products: enough for BLAS, and no more than help it
SPREAD = 1 << 23  # bytes of a unit that is spread out, within these: what the cache holds
BASIS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])  # G


class Unit(NamedTuple):
    """Tile rows [top, end) of samples [start, start + samples)."""

    start: int
    samples: int
    top: int
    end: int


def units(batch: int, tiles: Shape, width: int, columns: int) -> Iterator[Unit]:
    """Units in order, of about so many columns, which are tiles of a sample.

    tiles: rows and columns in an image. width: samples go in multiples of it.
    """
    rows, across = tiles
    most = -(-batch // width) * width
    samples = min(most, max(width, columns // (rows * across) // width * width))
    each = max(1, min(rows, columns // (across * samples)))
    for start in range(0, batch, samples):
        for top in range(0, rows, each):
            yield Unit(start, samples, top, min(top + each, rows))


class Scratch(threading.local):
    """Memory of a thread for what a call needs while it runs; calls have it one after another."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def arrays(self, dtype: Any, *shapes: Shape) -> list[Array]:
        """Uninitialised arrays side by side, each from a multiple of 64 bytes on."""
        sizes = whole_lines(dtype, shapes)
        if sum(sizes) + 64 > self._memory.nbytes:
            self._memory = np.empty(0, np.uint8)
            self._memory = np.empty(sum(sizes) + 64, np.uint8)
        at, found = -self._memory.ctypes.data % 64, []
        for shape, size in zip(shapes, sizes, strict=True):
            found.append(np.ndarray(shape, dtype, self._memory, at))
            at += size
        return found

    @property
    def held(self) -> int:
        """Bytes of this thread's."""
        return self._memory.nbytes


def whole_lines(dtype: Any, shapes: Sequence[Shape]) -> list[int]:
    """Bytes of arrays, each in whole cache lines."""
    return [to_cache_lines(math.prod(shape) * dtype.itemsize) for shape in shapes]


SCRATCH = Scratch()


class Layer(NamedTuple):
    """How a call goes. across: tiles in a row. largest: columns of the largest unit."""

    units: tuple[Unit, ...]
    across: int
    largest: int

    @classmethod
    def of(cls, channels: int, y: Array) -> Layer:
        """channels: of all arrays together. y: the one whose elements are in the tiles."""
        tiles = -(-y.shape[2] // 2), -(-y.shape[3] // 2)
        room = SPREAD // (POINTS * y.itemsize * channels)
        columns = max(COLUMNS[0], min(COLUMNS[-1], room))
        found = tuple(units(len(y), tiles, lanes(y.dtype), columns))
        return cls(found, tiles[1], max(u.samples * (u.end - u.top) for u in found) * tiles[1])


def rooms(copies: int, weight: Shape, channels: int, filters: int, layer: Layer) -> list[Shape]:
    """What a call needs: weights in the other basis, what is spread out of both sides, and lines.

    copies: how many of such weights.
    """
    spread = [(POINTS * depth * layer.largest,) for depth in (channels, filters, 1)]
    return [*[(POINTS, *weight[:2])] * copies, *spread]


def planes_of(memory: Array, depth: int, unit: Unit, columns: int) -> Array:
    """(16, depth, tile rows, tile columns, samples) at the beginning of memory."""
    shape = (POINTS, depth, unit.end - unit.top, columns, unit.samples)
    return memory.reshape(-1)[: math.prod(shape)].reshape(shape)


def lines_of(memory: Array, unit: Unit, columns: int, more: int) -> Array:
    """(rows, columns, samples), two a tile and so many more: at most 4 by 4 for each tile."""
    shape = (2 * (unit.end - unit.top) + more, 2 * columns + more, unit.samples)
    return memory[: math.prod(shape)].reshape(shape)


def as_rows(planes: Array) -> Array:
    return planes.reshape(*planes.shape[:2], -1)


def basis_of(dtype: Any) -> Array:
    """(16, 9): of a kernel, as one vector, its 16 points."""
    return np.kron(BASIS, BASIS).astype(dtype)


def convolve(x: Array, weight: Array, bias: Array, pad: Shape, turned: bool, y: Array) -> None:
    """y (n, filters, ...) of x (n, channels, ...).

    turned: by the weight turned round, from its filters to its channels, as the gradient of the
    data wants it.
    """
    filters, channels = y.shape[1], x.shape[1]
    layer = Layer.of(filters + channels, y)
    basis, read, made, memory = SCRATCH.arrays(
        x.dtype, *rooms(1, weight.shape, channels, filters, layer)
    )
    to_points = basis_of(x.dtype)[:, ::-1] if turned else basis_of(x.dtype)
    np.matmul(to_points, weight.reshape(-1, 9).T, out=basis.reshape(POINTS, -1))
    rows = basis.swapaxes(1, 2) if turned else basis
    for unit in layer.units:
        planes = planes_of(read, channels, unit, layer.across)
        lines = lines_of(memory, unit, layer.across, 2)
        spread_input(x, unit.start, 2 * unit.top - pad[0], -pad[1], lines, planes)
        products = planes_of(made, filters, unit, layer.across)
        np.matmul(rows, as_rows(planes), out=as_rows(products))
        lines = lines_of(memory, unit, layer.across, 0)
        gather_output(products, bias, unit.start, 2 * unit.top, lines, y)


def weight_gradient(g: Array, x: Array, pad: Shape, out: Array) -> None:
    """The gradient of the weight from g (n, filters, ...) and x (n, channels, ...)."""
    filters, channels = g.shape[1], x.shape[1]
    layer = Layer.of(filters + channels, g)
    total, part, read, given, memory = SCRATCH.arrays(
        x.dtype, *rooms(2, out.shape, channels, filters, layer)
    )
    into = total
    for unit in layer.units:
        planes = planes_of(read, channels, unit, layer.across)
        lines = lines_of(memory, unit, layer.across, 2)
        spread_input(x, unit.start, 2 * unit.top - pad[0], -pad[1], lines, planes)
        grads = planes_of(given, filters, unit, layer.across)
        lines = lines_of(memory, unit, layer.across, 0)
        spread_gradient(g, unit.start, 2 * unit.top, lines, grads)
        np.matmul(as_rows(grads), as_rows(planes).swapaxes(1, 2), out=into)
        if into is part:
            total += part
        into = part
    np.matmul(total.reshape(POINTS, -1).T, basis_of(x.dtype), out=out.reshape(-1, 9))


def suits(call: KernelCall, x: Array, weight: Array, y: Array) -> bool:
    """Whether a convolution from x (or to it) to y (or from it) goes faster this way."""
    plain = windows_of(call.attrs)._replace(pad=(0, 0)) == ((3, 3), (1, 1), (1, 1), (0, 0))
    if not plain or max(windows_of(call.attrs).pad) > 2 or call.attrs["num_group"] > 1:
        return False
    tiles = len(y) * math.prod(-(-n // 2) for n in y.shape[2:])
    enough = len(y) >= SAMPLES and tiles >= TILES and min(weight.shape[:2]) >= CHANNELS
    return enough and floating(x, weight, y)


@kernel("Convolution")
def convolution(call: KernelCall) -> BoundCall:
    (x, weight, *bias), (y,) = call.ins, call.outs
    windows, groups = windows_of(call.attrs), call.attrs["num_group"]
    if not suits(call, x, weight, y):
        given = bias[0] if bias else None
        return by_numpy(conv_blocks.convolve, x, weight, given, windows, groups, out=y)
    pad = windows.pad
    return BoundCall(convolve, (x, weight, bias[0] if bias else zeros(y), pad, False, y))


@kernel("_conv_grad_data")
def grad_data(call: KernelCall) -> BoundCall:
    (g, weight), (out,) = call.ins, call.outs
    windows, groups = windows_of(call.attrs), call.attrs["num_group"]
    if not suits(call, out, weight, g):
        given = g, weight, None, windows, groups, out.shape
        return by_numpy(conv_blocks.data_gradient, *given, out=out)
    pad = tuple(2 - p for p in windows.pad)
    return BoundCall(convolve, (g, weight, zeros(out), pad, True, out))


@kernel("_conv_grad_weight")
def grad_weight(call: KernelCall) -> BoundCall:
    (g, x), (out,) = call.ins, call.outs
    windows, groups = windows_of(call.attrs), call.attrs["num_group"]
    if not suits(call, x, out, g):
        return by_numpy(conv_blocks.weight_gradient, g, x, windows, groups, out=out)
    return BoundCall(weight_gradient, (g, x, windows.pad, out))


@kernel("Deconvolution")
def deconvolution(call: KernelCall) -> BoundCall:
    (x, weight, *bias), (y,) = call.ins, call.outs
    windows, _ = widened(call.attrs, x.shape)
    given = x, weight, bias[0] if bias else None, windows, call.attrs["num_group"], y.shape
    return by_numpy(conv_blocks.data_gradient, *given, out=y)


def scratch_bytes(op: str, call: KernelCall) -> int:
    """What a call of one of these operators takes of `SCRATCH`."""
    bound = KERNELS[op](call)
    if bound is None or bound.function not in (convolve, weight_gradient):
        return 0
    (first, second, *_), (out,) = call.ins, call.outs
    if op == "_conv_grad_weight":
        copies, sides, weight, tiled = 2, (second, first), out, first
    else:
        copies, sides, weight, tiled = 1, (first, out), second, out
    channels, filters = (side.shape[1] for side in sides)
    layer = Layer.of(filters + channels, tiled)
    return sum(whole_lines(out.dtype, rooms(copies, weight.shape, channels, filters, layer))) + 64


def zeros(y: Array) -> Array:
    """No bias."""
    return np.zeros(y.shape[1], y.dtype)
