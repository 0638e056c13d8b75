"""Winograd's convolution: kernels of 3x3 with 4/9 of the multiplications.

Of every tile of 4x4 elements the kernel's two-dimensional correlation has 2x2 elements. In another
basis it is 16 products instead of 36 (Lavin and Gray, arXiv:1509.09308, F(2x2, 3x3)):

    y = A^T [(G w G^T) * (B^T x B)] A

A product for each of the 16, of all filters by all channels with all tiles, is a product of
matrices, which BLAS does. What is here are the changes of basis: samples lie innermost, a vector
of them at a time, and copies bring them there. The gradient of the weight is the same formula read
backwards; that of the data is the convolution with the weight turned round.

Compiled code that knows the basis is all in this file, for numba's cache; see micro.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from runtime.native.base import jit
from runtime.native.micro import VECTOR, Vectors, integers, intrinsic
from symgraph.types import Array

POINTS = 16  # of a tile of 4x4
Row = list[Any]


def to_input(v: Vectors, x: Row) -> Row:
    """B^T x."""
    b = v.builder
    return [b.fsub(x[0], x[2]), b.fadd(x[1], x[2]), b.fsub(x[2], x[1]), b.fsub(x[1], x[3])]


def to_output(v: Vectors, m: Row) -> Row:
    """A^T m."""
    b = v.builder
    return [b.fadd(b.fadd(m[0], m[1]), m[2]), b.fsub(b.fsub(m[1], m[2]), m[3])]


def from_output(v: Vectors, g: Row) -> Row:
    """A g."""
    b = v.builder
    return [g[0], b.fadd(g[0], g[1]), b.fsub(g[0], g[1]), b.fsub(v.zero, g[1])]


def changes_basis(rule: Callable[[Vectors, Row], Row], size: int) -> Any:
    """The instruction that applies a rule to the rows and columns of a tile of vectors."""

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
    """Samples that go together."""
    return VECTOR // int(dtype.itemsize)


# -- copies --------------------------------------------------------------------------------------


@jit
def bring(x: Array, start: int, channel: int, top: int, left: int, lines: Array) -> None:
    """Lines (rows, columns, samples) of one channel from (top, left) on, zeros where x ends."""
    rows, columns, samples = lines.shape
    height, width = x.shape[2], x.shape[3]
    begin, end = max(0, -left), min(columns, width - left)
    for n in range(samples):
        if start + n >= x.shape[0]:
            lines[:, :, n] = 0
            continue
        image = x[start + n, channel]
        for i in range(rows):
            if top + i < 0 or top + i >= height:
                for j in range(columns):
                    lines[i, j, n] = 0
                continue
            line = image[top + i]
            for j in range(begin):
                lines[i, j, n] = 0
            for j in range(begin, end):
                lines[i, j, n] = line[left + j]
            for j in range(end, columns):
                lines[i, j, n] = 0


@jit
def take(lines: Array, more: Any, start: int, channel: int, top: int, y: Array) -> None:
    """Put lines of one channel, plus a number, where they belong in y, if they do."""
    rows, columns = min(lines.shape[0], y.shape[2] - top), min(lines.shape[1], y.shape[3])
    for n in range(min(lines.shape[2], y.shape[0] - start)):
        image = y[start + n, channel]
        for i in range(rows):
            line = image[top + i]
            for j in range(columns):
                line[j] = lines[i, j, n] + more


# -- changes of basis ----------------------------------------------------------------------------


@jit
def spread_input(x: Array, start: int, top: int, left: int, lines: Array, planes: Array) -> None:
    """planes (16, channels, tile rows, tile columns, samples) of data (n, channels, h, w)."""
    plane, row, column = planes.strides[0], lines.strides[0], lines.strides[1]
    steps = (row, column, 4 * plane, plane)
    for c in range(planes.shape[1]):
        bring(x, start, c, top, left, lines)
        source, target = lines.ctypes.data, planes[0, c].ctypes.data
        for t in range(planes.shape[2]):
            for u in range(planes.shape[3]):
                at = source + 2 * (t * row + u * column)
                for n in range(0, column, VECTOR):
                    input_tile(lines, at + n, target + n, steps)
                target += column


@jit
def spread_gradient(g: Array, start: int, top: int, lines: Array, planes: Array) -> None:
    """planes (16, filters, tile rows, tile columns, samples) of the output's gradient."""
    plane, row, column = planes.strides[0], lines.strides[0], lines.strides[1]
    steps = (row, column, 4 * plane, plane)
    for f in range(planes.shape[1]):
        bring(g, start, f, top, 0, lines)
        source, target = lines.ctypes.data, planes[0, f].ctypes.data
        for t in range(planes.shape[2]):
            for u in range(planes.shape[3]):
                at = source + 2 * (t * row + u * column)
                for n in range(0, column, VECTOR):
                    gradient_tile(lines, at + n, target + n, steps)
                target += column


@jit
def gather_output(planes: Array, bias: Array, start: int, top: int, lines: Array, y: Array) -> None:
    """The output of planes (16, filters, tile rows, tile columns, samples), plus the bias."""
    plane, row, column = planes.strides[0], lines.strides[0], lines.strides[1]
    steps = (4 * plane, plane, row, column)
    for f in range(planes.shape[1]):
        source, target = planes[0, f].ctypes.data, lines.ctypes.data
        for t in range(planes.shape[2]):
            for u in range(planes.shape[3]):
                at = target + 2 * (t * row + u * column)
                for n in range(0, column, VECTOR):
                    output_tile(lines, source + n, at + n, steps)
                source += column
        take(lines, bias[f], start, f, top, y)
