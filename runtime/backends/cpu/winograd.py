"""Winograd's convolution: kernels of 3x3 with 4/9 of the multiplications.

The kernel's correlation with a tile of 4x4 elements has 2x2 elements. In another basis it is 16
products instead of 36 (Lavin and Gray, arXiv:1509.09308, F(2x2, 3x3)):

    y = A^T [(G w G^T) * (B^T x B)] A

A product for each of the 16, of all filters by all channels with all tiles, is a product of
matrices, which BLAS does. This file changes the basis of vectors of samples; copies lay out the
samples innermost first, and cast those of bfloat16. The gradient of the weight is the transpose of
the same formula; that of the data is the convolution with the weight rotated by 180 degrees.

Compiled code that knows the basis is all in this file, for numba's cache; see micro.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import types

from runtime.backends.cpu.micro import VECTOR, Vectors, integers
from runtime.backends.cpu.rounding import load_low, store_low
from runtime.backends.device.compile import I64, intrinsic, jit, jit_inner
from symgraph.core.types import Array

POINTS = 16  # of a tile of 4x4
Row = list[Any]


def to_input(v: Vectors, x: Row) -> Row:
    """Generate B^T x."""
    b = v.builder
    return [b.fsub(x[0], x[2]), b.fadd(x[1], x[2]), b.fsub(x[2], x[1]), b.fsub(x[1], x[3])]


def to_output(v: Vectors, m: Row) -> Row:
    """Generate A^T m."""
    b = v.builder
    return [b.fadd(b.fadd(m[0], m[1]), m[2]), b.fsub(b.fsub(m[1], m[2]), m[3])]


def from_output(v: Vectors, g: Row) -> Row:
    """Generate A g."""
    b = v.builder
    return [g[0], b.fadd(g[0], g[1]), b.fsub(g[0], g[1]), b.fsub(v.zero, g[1])]


def changes_basis(rule: Callable[[Vectors, Row], Row], size: int) -> Any:
    """Return the instruction that applies a rule to the rows and columns of a tile of vectors."""

    def change(typing: Any, like: Any, source: Any, target: Any, steps: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = Vectors(context, builder, like)
            steps = [builder.extract_value(args[3], i) for i in range(4)]
            tile = [
                [v.load(v.at(v.at(args[1], i, steps[0]), j, steps[1])) for j in range(size)]
                for i in range(size)
            ]
            columns = [rule(v, list(column)) for column in zip(*tile, strict=True)]
            rows = [rule(v, list(row)) for row in zip(*columns, strict=True)]
            for i, row in enumerate(rows):
                for j, vector in enumerate(row):
                    at = v.at(v.at(args[2], i, steps[2]), j, steps[3])
                    builder.store(vector, v.pointer(at), align=v.size)
            return context.get_dummy_value()

        return types.void(like, types.int64, types.int64, integers(types.int64, 4)), generate

    return intrinsic(change)


# (like, address of the source's first vector, of the target's, steps in bytes from row to row and
# from column to column in both)
input_tile: Any = changes_basis(to_input, 4)
output_tile: Any = changes_basis(to_output, 4)
gradient_tile: Any = changes_basis(from_output, 2)


def lanes(dtype: Any) -> int:
    """Return the number of samples in a vector."""
    return VECTOR // int(dtype.itemsize)


# -- copies --------------------------------------------------------------------------------------


@intrinsic  # type: ignore[untyped-decorator]
def bring_square(
    typing: Any,
    like: Any,
    x: Any,
    source: Any,
    step: Any,
    target: Any,
    places: Any,
    rows: Any,
    columns: Any,
) -> Any:
    """Transpose the first vector of rows `step` bytes apart: a vector for each of its elements.

    Args:
        typing: numba's typing context.
        like: An array of the vectors' type.
        x: An array of the rows' type, that one or bfloat16 as uint16.
        source: The address of the first row.
        step: The bytes from row to row.
        target: The address to which `places` are relative.
        places: The address of the vectors' distances from the target in bytes.
        rows: The number of rows that exist.
        columns: The number of elements of each row.
    """

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v, low = Vectors(context, b, like), x.dtype == types.uint16
        source, step, target, places, rows, columns = args[2:]
        sources = [v.at(source, i, step) for i in range(v.lanes)]
        load = partial(load_low, v) if low else v.load
        load_some = partial(load_low, v) if low else v.load_some
        targets = [b.add(target, place) for place in distances(v, places)]
        with b.if_else(is_whole(v, rows, columns)) as (whole, part):
            with whole:
                for to, vector in zip(targets, v.transposed(list(map(load, sources))), strict=True):
                    b.store(vector, v.pointer(to), align=v.size)
            with part:
                there = v.below(columns)
                masks = [b.and_(there, inside(v, i, rows)) for i in range(v.lanes)]
                some = [load_some(*pair) for pair in zip(sources, masks, strict=True)]
                for i, (to, vector) in enumerate(zip(targets, v.transposed(some), strict=True)):
                    v.store_some(vector, to, inside(v, i, columns))
        return context.get_dummy_value()

    return types.void(like, x, *[types.int64] * 6), generate


@intrinsic  # type: ignore[untyped-decorator]
def take_square(
    typing: Any,
    like: Any,
    y: Any,
    source: Any,
    places: Any,
    target: Any,
    step: Any,
    more: Any,
    rows: Any,
    columns: Any,
) -> Any:
    """Do the reverse of `bring_square`, to rows of y's type, and add a number."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v, low = Vectors(context, b, like), y.dtype == types.uint16
        source, places, target, step, more, rows, columns = args[2:]
        store_some = partial(store_low, v) if low else v.store_some
        number = v.splat(more)
        sources = [b.add(source, place) for place in distances(v, places)]
        targets = [v.at(target, i, step) for i in range(v.lanes)]
        with b.if_else(is_whole(v, rows, columns)) as (whole, part):
            with whole:
                for to, vector in zip(
                    targets, v.transposed(list(map(v.load, sources))), strict=True
                ):
                    total = b.fadd(vector, number)
                    if low:
                        store_low(v, total, to)
                    else:
                        b.store(total, v.pointer(to), align=v.size)
            with part:
                some = [v.load_some(x, inside(v, i, columns)) for i, x in enumerate(sources)]
                for i, (to, vector) in enumerate(zip(targets, v.transposed(some), strict=True)):
                    mask = b.and_(v.below(columns), inside(v, i, rows))
                    store_some(b.fadd(vector, number), to, mask)
        return context.get_dummy_value()

    integer = types.int64
    return types.void(like, y, *[integer] * 4, like.dtype, integer, integer), generate


def distances(v: Vectors, places: Any) -> list[Any]:
    b = v.builder
    return [b.load(v.pointer(v.at(places, i, 8), I64)) for i in range(v.lanes)]


def is_whole(v: Vectors, rows: Any, columns: Any) -> Any:
    b = v.builder
    least = b.select(b.icmp_signed("<", rows, columns), rows, columns)
    return b.icmp_signed(">=", least, I64(v.lanes))


def inside(v: Vectors, index: int, count: Any) -> Any:
    """Return a mask whose lanes are all true if an index is less than a count."""
    return v.splat(v.builder.icmp_signed(">", count, I64(index)))


@jit_inner
def places_of(lines: Array, row: int, left: int, width: int, count: int) -> Array:
    """Return the offsets in bytes within lines of an image's elements from (row, left) on."""
    places = np.zeros(count + VECTOR, np.int64)
    for e in range(count):
        places[e] = (row + e // width) * lines.strides[0] + (left + e % width) * lines.strides[1]
    return places


@jit_inner
def bring(x: Array, start: int, channel: int, top: int, places: Array, lines: Array) -> None:
    """Copy one channel from row `top` on to the places of lines (rows, columns, samples)."""
    size, count, step = lines.itemsize, len(places) - VECTOR, x.itemsize
    for n in range(0, min(lines.shape[2], x.shape[0] - start), VECTOR // size):
        source, target = x[start + n, channel, top].ctypes.data, lines.ctypes.data + n * size
        for e in range(0, count, VECTOR // size):
            at = places.ctypes.data + 8 * e
            rows = x.shape[0] - start - n
            bring_square(lines, x, source + e * step, x.strides[0], target, at, rows, count - e)


@jit_inner
def take(
    lines: Array, more: Any, start: int, channel: int, top: int, places: Array, y: Array
) -> None:
    """Put lines of one channel, plus a number, into y from row `top` on."""
    size, count, step = lines.itemsize, len(places) - VECTOR, y.itemsize
    for n in range(0, min(lines.shape[2], y.shape[0] - start), VECTOR // size):
        source, target = lines.ctypes.data + n * size, y[start + n, channel, top].ctypes.data
        for e in range(0, count, VECTOR // size):
            at, rows, to = places.ctypes.data + 8 * e, y.shape[0] - start - n, target + e * step
            take_square(lines, y, source, at, to, y.strides[0], more, rows, count - e)


# -- changes of basis ----------------------------------------------------------------------------


@jit
def spread_input(x: Array, start: int, top: int, left: int, lines: Array, planes: Array) -> None:
    """Transform data (n, channels, h, w) to (16, channels, tile rows, tile columns, samples).

    Here and below, images may be of bfloat16, as uint16, beside lines and planes of float32.
    """
    plane, row, column = planes.strides[0], lines.strides[0], lines.strides[1]
    steps = (row, column, 4 * plane, plane)
    first, end = max(0, top), min(x.shape[2], top + lines.shape[0])
    places = places_of(lines, first - top, -left, x.shape[3], (end - first) * x.shape[3])
    lines[:] = 0
    for c in range(planes.shape[1]):
        bring(x, start, c, first, places, lines)
        source, target = lines.ctypes.data, planes[0, c].ctypes.data
        for t in range(planes.shape[2]):
            for u in range(planes.shape[3]):
                at = source + 2 * (t * row + u * column)
                for n in range(0, column, VECTOR):
                    input_tile(lines, at + n, target + n, steps)
                target += column


@jit
def spread_gradient(g: Array, start: int, top: int, lines: Array, planes: Array) -> None:
    """Transform the output's gradient to (16, filters, tile rows, tile columns, samples)."""
    plane, row, column = planes.strides[0], lines.strides[0], lines.strides[1]
    steps = (row, column, 4 * plane, plane)
    end = min(g.shape[2], top + lines.shape[0])
    places = places_of(lines, 0, 0, g.shape[3], (end - top) * g.shape[3])
    lines[:] = 0
    for f in range(planes.shape[1]):
        bring(g, start, f, top, places, lines)
        source, target = lines.ctypes.data, planes[0, f].ctypes.data
        for t in range(planes.shape[2]):
            for u in range(planes.shape[3]):
                at = source + 2 * (t * row + u * column)
                for n in range(0, column, VECTOR):
                    gradient_tile(lines, at + n, target + n, steps)
                target += column


@jit
def gather_output(planes: Array, bias: Array, start: int, top: int, lines: Array, y: Array) -> None:
    """Transform (16, filters, tile rows, tile columns, samples) to the output, plus the bias."""
    plane, row, column = planes.strides[0], lines.strides[0], lines.strides[1]
    steps = (4 * plane, plane, row, column)
    end = min(y.shape[2], top + lines.shape[0])
    places = places_of(lines, 0, 0, y.shape[3], (end - top) * y.shape[3])
    for f in range(planes.shape[1]):
        source, target = planes[0, f].ctypes.data, lines.ctypes.data
        for t in range(planes.shape[2]):
            for u in range(planes.shape[3]):
                at = target + 2 * (t * row + u * column)
                for n in range(0, column, VECTOR):
                    output_tile(lines, source + n, at + n, steps)
                source += column
        take(lines, bias[f], start, f, top, places, y)
