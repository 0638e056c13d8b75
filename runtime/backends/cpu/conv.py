"""Convolutions: of 3x3 with stride 1 by Winograd's products, all others by `conv_blocks`.

Winograd's products are faster if there are enough channels. The work is done in units, some tile
rows of some samples each, so that a unit's transformed data is still in the cache when it is
multiplied. With bfloat16, transforms are computed in float32, rounded, and multiplied as bfloat16
with sums in float32: the error is that of two to three roundings of the output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from runtime.backends.cpu import conv_blocks
from runtime.backends.cpu.choice import low_matmul, low_rooms, matmul
from runtime.backends.cpu.flat import floating
from runtime.backends.cpu.low import FLOAT32
from runtime.backends.cpu.low import is_low as is_low_array
from runtime.backends.cpu.micro import available
from runtime.backends.cpu.rounding import as_words, narrow, widen
from runtime.backends.cpu.scratch import SCRATCH, whole_lines
from runtime.backends.cpu.table import KERNELS, kernel
from runtime.backends.cpu.winograd import (
    POINTS,
    gather_output,
    lanes,
    spread_gradient,
    spread_input,
)
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import BFLOAT16, Array, Shape
from symgraph.ops.conv import widened
from symgraph.ops.windows import windows_of

MIN_CHANNELS = 16  # of the data and of the output
LOW_CHANNELS = 32  # with fewer, products of bfloat16 are no faster
MIN_SAMPLES = 8  # samples are processed in whole vectors
MIN_TILES = 32  # of all samples; with fewer, transforming the weight costs too much
COLUMNS = range(128, 1025)  # of a unit's products: BLAS gains nothing from more
UNIT_BYTES = 1 << 23  # of a unit's transformed data, within COLUMNS: the size of the cache
BASIS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])  # G


class Unit(NamedTuple):
    """Tile rows [top, end) of samples [start, start + samples)."""

    start: int
    samples: int
    top: int
    end: int


def units(batch: int, tiles: Shape, width: int, columns: int) -> Iterator[Unit]:
    """Yield units in order, of about `columns` columns each.

    Args:
        batch: The number of samples.
        tiles: Rows and columns of tiles in an image.
        width: The number of samples of a unit is a multiple of it.
        columns: The columns of a unit's products: one for each tile of each sample.
    """
    rows, across = tiles
    most = -(-batch // width) * width
    samples = min(most, max(width, columns // (rows * across) // width * width))
    each = max(1, min(rows, columns // (across * samples)))
    for start in range(0, batch, samples):
        for top in range(0, rows, each):
            yield Unit(start, samples, top, min(top + each, rows))


def widened_type(y: Array, low: bool) -> Any:
    """Return the dtype that transforms are computed in."""
    return FLOAT32 if low else y.dtype


class Layer(NamedTuple):
    """The units of a call."""

    units: tuple[Unit, ...]
    across: int  # tiles in a row
    largest: int  # columns of the largest unit
    low: bool  # whether products are of bfloat16

    @classmethod
    def of(cls, channels: int, y: Array, low: bool) -> Layer:
        """Cut a call into units.

        Args:
            channels: The channels of all arrays together.
            y: The array whose elements the tiles cover.
            low: Whether products are of bfloat16.
        """
        tiles, dtype = (-(-y.shape[2] // 2), -(-y.shape[3] // 2)), widened_type(y, low)
        room = UNIT_BYTES // (POINTS * dtype.itemsize * channels)
        columns = max(COLUMNS[0], min(COLUMNS[-1], room))
        parts = tuple(units(len(y), tiles, lanes(dtype), columns))
        most = max(u.samples * (u.end - u.top) for u in parts) * tiles[1]
        return cls(parts, tiles[1], most, low)


def workspace_shapes(
    copies: int, weight: Shape, channels: int, filters: int, layer: Layer
) -> list[Shape]:
    """Return the shapes of a call's workspace.

    These are transformed weights, planes of both sides, lines and, with bfloat16, the weight in
    float32 and what its products use.

    Args:
        copies: The number of transformed weights: 2 for their gradient.
        weight: The shape of the weight.
        channels: The channels of the data.
        filters: The channels of the output.
        layer: The units of the call.
    """
    spread = [(POINTS * depth * layer.largest,) for depth in (channels, filters, 1)]
    rooms: list[Shape] = []
    if layer.low:
        sizes = {u.samples * (u.end - u.top) * layer.across for u in layer.units}
        of_units = [
            low_rooms(filters, *((size, channels) if copies > 1 else (channels, size)))
            for size in sizes
        ]
        rooms = [weight, *[max(shapes) for shapes in zip(*of_units, strict=True)]]
    return [*[(POINTS, *weight[:2])] * copies, *spread, *rooms]


def planes_of(memory: Array, depth: int, unit: Unit, columns: int) -> Array:
    """View the beginning of memory as (16, depth, tile rows, tile columns, samples)."""
    shape = (POINTS, depth, unit.end - unit.top, columns, unit.samples)
    return memory.reshape(-1)[: math.prod(shape)].reshape(shape)


def lines_of(memory: Array, unit: Unit, columns: int, more: int) -> Array:
    """View memory as (rows, columns, samples): two per tile and `more`, at most 4 per tile."""
    shape = (2 * (unit.end - unit.top) + more, 2 * columns + more, unit.samples)
    return memory[: math.prod(shape)].reshape(shape)


def as_rows(planes: Array) -> Array:
    return planes.reshape(*planes.shape[:2], -1)


def basis_of(dtype: Any) -> Array:
    """Return the matrix (16, 9) from a flattened kernel to its 16 points."""
    return np.kron(BASIS, BASIS).astype(dtype)


def in_float32(low: Array, wide: Array) -> Array:
    """Copy bfloat16, as uint16, to float32."""
    widen(low.reshape(-1), as_words(wide.reshape(-1)))
    return wide


def narrowed(wide: Array) -> Array:
    """Round float32 to bfloat16, as uint16, in the front of its own memory."""
    flat = wide.reshape(-1)
    low = flat.view(np.uint16)[: flat.size]
    narrow(as_words(flat), low)
    return low.reshape(wide.shape)


def convolve(
    x: Array, weight: Array, bias: Array, pad: Shape, turned: bool, low: bool, y: Array
) -> None:
    """Compute y (n, filters, ...) from x (n, channels, ...).

    Args:
        x: The data.
        weight: The weight.
        bias: A number for each filter.
        pad: The padding along both axes.
        turned: Whether to use the weight rotated by 180 degrees, from its filters to its
            channels, as the gradient of the data needs it.
        low: Whether data, weight and output are of bfloat16, as uint16, as the bias is.
        y: The output.
    """
    filters, channels = y.shape[1], x.shape[1]
    layer = Layer.of(filters + channels, y, low)
    basis, read, output, memory, *rooms = SCRATCH.arrays(
        widened_type(y, low), *workspace_shapes(1, weight.shape, channels, filters, layer)
    )
    if low:
        whole, *rooms = rooms
        weight, bias = in_float32(weight, whole), in_float32(bias, np.empty(len(bias), FLOAT32))
    to_points = basis_of(basis.dtype)[:, ::-1] if turned else basis_of(basis.dtype)
    matmul(to_points, weight.reshape(-1, 9).T, out=basis.reshape(POINTS, -1))
    if low:
        basis = narrowed(basis)
    for unit in layer.units:
        planes = planes_of(read, channels, unit, layer.across)
        lines = lines_of(memory, unit, layer.across, 2)
        spread_input(x, unit.start, 2 * unit.top - pad[0], -pad[1], lines, planes)
        products = planes_of(output, filters, unit, layer.across)
        if low:
            low_matmul(basis, turned, narrowed(as_rows(planes)), False, as_rows(products), rooms)
        else:
            rows = basis.swapaxes(1, 2) if turned else basis
            matmul(rows, as_rows(planes), out=as_rows(products))
        lines = lines_of(memory, unit, layer.across, 0)
        gather_output(products, bias, unit.start, 2 * unit.top, lines, y)


def weight_gradient(g: Array, x: Array, pad: Shape, low: bool, out: Array) -> None:
    """Compute the gradient of the weight from g (n, filters, ...) and x (n, channels, ...)."""
    filters, channels = g.shape[1], x.shape[1]
    layer = Layer.of(filters + channels, g, low)
    total, part, read, gradient, memory, *rooms = SCRATCH.arrays(
        widened_type(g, low), *workspace_shapes(2, out.shape, channels, filters, layer)
    )
    whole, *rooms = rooms if low else [out]
    into = total
    for unit in layer.units:
        planes = planes_of(read, channels, unit, layer.across)
        lines = lines_of(memory, unit, layer.across, 2)
        spread_input(x, unit.start, 2 * unit.top - pad[0], -pad[1], lines, planes)
        grads = planes_of(gradient, filters, unit, layer.across)
        lines = lines_of(memory, unit, layer.across, 0)
        spread_gradient(g, unit.start, 2 * unit.top, lines, grads)
        rows, columns = as_rows(grads), as_rows(planes)
        if low:
            low_matmul(narrowed(rows), False, narrowed(columns), True, into, rooms)
        else:
            matmul(rows, columns.swapaxes(1, 2), out=into)
        if into is part:
            total += part
        into = part
    matmul(total.reshape(POINTS, -1).T, basis_of(total.dtype), out=whole.reshape(-1, 9))
    if low:
        narrow(as_words(whole.reshape(-1)), out.reshape(-1))


def suits(call: KernelCall, x: Array, weight: Array, y: Array) -> bool:
    """Tell whether Winograd's products are faster for this convolution or gradient."""
    plain = windows_of(call.attrs)._replace(pad=(0, 0)) == ((3, 3), (1, 1), (1, 1), (0, 0))
    if not plain or max(windows_of(call.attrs).pad) > 2 or call.attrs["num_group"] > 1:
        return False
    tiles, depth = len(y) * math.prod(-(-n // 2) for n in y.shape[2:]), min(weight.shape[:2])
    enough = len(y) >= MIN_SAMPLES and tiles >= MIN_TILES and depth >= MIN_CHANNELS
    return enough and (floating(x, weight, y) or (is_low(call) and depth >= LOW_CHANNELS))


def is_low(call: KernelCall) -> bool:
    """Tell whether all arrays are of bfloat16, and there are products of it."""
    return {a.dtype.name for a in (*call.ins, *call.outs)} == {BFLOAT16} and available()


def bound(call: KernelCall, function: Any, *args: Any) -> BoundCall:
    """Bind one of the functions above, whose last argument but one is whether arrays are low."""
    low = is_low(call)
    given = [as_words(a) if low and isinstance(a, np.ndarray) else a for a in args]
    return BoundCall(function, (*given[:-1], low, given[-1]))


def in_blocks(function: Any, *args: Any) -> BoundCall | None:
    """Bind a function of `conv_blocks`; None for floats of 16 bits, which come as float32."""
    return None if is_low_array(args[-1]) else BoundCall(function, args)


@kernel("Convolution")
def convolution(call: KernelCall) -> BoundCall | None:
    (x, weight, *bias), (y,) = call.ins, call.outs
    windows, groups = windows_of(call.attrs), call.attrs["num_group"]
    if not suits(call, x, weight, y):
        shift = bias[0] if bias else None
        return in_blocks(conv_blocks.convolve, x, weight, shift, windows, groups, y)
    shift = bias[0] if bias else zeros(y)
    return bound(call, convolve, x, weight, shift, windows.pad, False, y)


@kernel("_conv_grad_data")
def grad_data(call: KernelCall) -> BoundCall | None:
    (g, weight), (out,) = call.ins, call.outs
    windows, groups = windows_of(call.attrs), call.attrs["num_group"]
    if not suits(call, out, weight, g):
        return in_blocks(conv_blocks.data_gradient, g, weight, None, windows, groups, out)
    pad = tuple(2 - p for p in windows.pad)
    return bound(call, convolve, g, weight, zeros(out), pad, True, out)


@kernel("_conv_grad_weight")
def grad_weight(call: KernelCall) -> BoundCall | None:
    (g, x), (out,) = call.ins, call.outs
    windows, groups = windows_of(call.attrs), call.attrs["num_group"]
    if not suits(call, x, out, g):
        return in_blocks(conv_blocks.weight_gradient, g, x, windows, groups, out)
    return bound(call, weight_gradient, g, x, windows.pad, out)


@kernel("Deconvolution")
def deconvolution(call: KernelCall) -> BoundCall | None:
    (x, weight, *bias), (y,) = call.ins, call.outs
    windows, _ = widened(call.attrs, x.shape)
    shift, groups = bias[0] if bias else None, call.attrs["num_group"]
    return in_blocks(conv_blocks.data_gradient, x, weight, shift, windows, groups, y)


def scratch_bytes(op: str, call: KernelCall) -> int:
    """Return the bytes of `SCRATCH` that a call of a convolution operator uses."""
    made = KERNELS[op](call)
    if made is None or made.function not in (convolve, weight_gradient):
        return 0
    (first, second, *_), (out,) = call.ins, call.outs
    if op == "_conv_grad_weight":
        copies, sides, weight, tiled = 2, (second, first), out, first
    else:
        copies, sides, weight, tiled = 1, (first, out), second, out
    channels, filters = (side.shape[1] for side in sides)
    layer = Layer.of(filters + channels, tiled, is_low(call))
    shapes = workspace_shapes(copies, weight.shape, channels, filters, layer)
    return sum(whole_lines(widened_type(out, layer.low), shapes)) + 64


def zeros(y: Array) -> Array:
    """Return a bias of zeros."""
    return np.zeros(y.shape[1], y.dtype)
