"""Calls of products of bfloat16: the memory that they use, and the threads that share them."""

from __future__ import annotations

from typing import Any

import numpy as np

from runtime.backends.cpu.helpers import HELPERS, cut_evenly, part_count
from runtime.backends.cpu.micro import ROWS
from runtime.backends.cpu.pairs import (
    ROUNDED,
    SHORT,
    STRIP,
    WIDTH,
    chunk_rows,
    multiply,
    pack_panels,
    pack_rounded,
    pairs_are_slower,
    pairs_shape,
    room_size,
)
from runtime.backends.cpu.rounding import as_words
from runtime.backends.cpu.scratch import SCRATCH, whole_lines
from runtime.backends.device.table import BoundCall
from symgraph.core.types import Array, Shape

WORD = np.dtype(np.uint32)
# For each thread, as `multiply` takes them: the first row, that after the last, how many are packed
# together; and how far its room lies from the product's.
Parts = list[tuple[int, int, int, int]]


def pack_pairs(weight: Array, packed: Array, transposed: bool) -> None:
    """Pack a weight (inner, units), or transposed (units, inner), of float32 or bfloat16."""
    bits = as_words(weight)
    if weight.itemsize == 2:
        pack_panels(bits, packed, transposed, 0, weight.shape[1 if transposed else 0])
    else:
        (strip,) = SCRATCH.arrays(np.dtype(np.uint16), (STRIP * weight.shape[1],))
        pack_rounded(bits, packed, transposed, strip)


def product(
    x: Array, turned: bool, y: Array, y_turned: bool, out: Array, bias: Array | None, packed: Any
) -> BoundCall:
    """Bind out = x y + bias.

    Args:
        x: The left operand, transposed if `turned`.
        turned: See x.
        y: The right operand, transposed if `y_turned`.
        y_turned: See y.
        out: The product.
        bias: A row, or None.
        packed: The right operand packed, or None to pack it in every call.
    """
    inner, units = y.shape[::-1] if y_turned else y.shape
    shorts, form = as_words(out).view(np.uint16), SHORT if out.itemsize == 2 else ROUNDED
    row = shorts.reshape(-1)[:0] if bias is None else as_words(bias)
    factors = as_words(x), turned, row, shorts, (pairs_are_slower(), form)
    size, parts = room_size(len(out), inner, units), row_parts(len(out), inner, units)
    if packed is not None:
        return BoundCall(_multiply, (packed, size, parts, factors))
    panels = [
        (as_words(y[first:end]), y_turned, first, inner)
        for first, end in cut_evenly(len(y), len(parts), WIDTH)
    ]
    return BoundCall(_pack_and_multiply, (panels, pairs_shape(inner, units), size, parts, factors))


def row_parts(rows: int, inner: int, units: int) -> Parts:
    """Return the parts of a product that threads compute."""
    height: int = chunk_rows(rows, inner)
    tiles = height // ROWS
    parts = min(tiles, part_count(rows, inner, units))
    each = tiles // parts * ROWS
    step = room_size(rows, inner, units) // tiles * (each // ROWS)
    ranges = cut_evenly(rows, parts, ROWS)
    return [(first, end, each, i * step) for i, (first, end) in enumerate(ranges)]


def _multiply(packed: Array, size: int, parts: Parts, factors: Any) -> None:
    _multiply_parts(packed, SCRATCH.reserve(size), parts, factors)


def _pack_and_multiply(panels: Any, shape: Shape, size: int, parts: Parts, factors: Any) -> None:
    packed, room = SCRATCH.arrays(WORD, shape, (size // WORD.itemsize,))
    HELPERS.share(pack_panels, [(rows, packed, *how) for rows, *how in panels])
    _multiply_parts(packed, room.ctypes.data, parts, factors)


def _multiply_parts(packed: Array, room: int, parts: Parts, factors: Any) -> None:
    each = [(packed, *factors, (*rows, room + at)) for *rows, at in parts]
    HELPERS.share(multiply, each)


def product_scratch(rows: int, inner: int, units: int, packed: bool) -> int:
    """Return the bytes of `SCRATCH` that a product uses, and the packing of its operand."""
    room = room_size(rows, inner, units)
    if packed:
        return max(room, 2 * STRIP * max(inner, units)) + 64
    return sum(whole_lines(WORD, [pairs_shape(inner, units), (room // WORD.itemsize,)])) + 64
