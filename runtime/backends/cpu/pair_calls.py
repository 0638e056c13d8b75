"""Calls of products of bfloat16: the memory that they use, and the threads that share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime.backends.cpu import pairs, tiles
from runtime.backends.cpu.helpers import HELPERS, cut_evenly, part_count
from runtime.backends.cpu.pairs import (
    AS_PAIRS,
    ROUNDED,
    SHORT,
    STRIP,
    WIDTH,
    pack_panels,
    pack_rounded,
    pairs_are_slower,
    pairs_shape,
)
from runtime.backends.cpu.rounding import as_words
from runtime.backends.cpu.scratch import SCRATCH, whole_lines
from runtime.backends.device.table import BoundCall
from symgraph.core.types import Array, Shape

WORD = np.dtype(np.uint32)
AMX, PACKED = "amx", "packed"  # what multiplies: `tiles`, or `pairs`
KERNELS: dict[str, Any] = {AMX: tiles, PACKED: pairs}
# For each thread, as `multiply` takes them: the first row, that after the last, how many are packed
# together; and how far its room lies from the product's.
Parts = list[tuple[int, int, int, int]]


def pack_pairs(weight: Array, forms: Mapping[bool, Array]) -> None:
    """Pack a weight (inner, units) of float32 or bfloat16.

    forms: The packed operands, by whether the weight is transposed for it: (units, inner).
    """
    bits = as_words(weight)
    if weight.itemsize == 2:
        for turned, packed in forms.items():
            pack_panels(bits, packed, turned, 0, weight.shape[1 if turned else 0], AS_PAIRS)
    else:
        (strip,) = SCRATCH.arrays(np.dtype(np.uint16), (STRIP * weight.shape[1],))
        none = np.empty(0, WORD)
        pack_rounded(bits, forms.get(False, none), forms.get(True, none), strip)


def product(
    kernel: str,
    x: Array,
    turned: bool,
    y: Array,
    y_turned: bool,
    out: Array,
    bias: Array | None,
    packed: Any,
) -> BoundCall:
    """Bind out = x y + bias.

    Args:
        kernel: One of KERNELS.
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
    assert kernel == PACKED or tiles.has_tiles()  # which asks for them
    wide = kernel == PACKED and pairs_are_slower()
    run = KERNELS[kernel].multiply, as_words(x), turned, row, shorts, (wide, form)
    size = KERNELS[kernel].room_size(len(out), inner, units)
    parts = row_parts(kernel, len(out), inner, units)
    if packed is not None:
        return BoundCall(_multiply, (packed, size, parts, run))
    panels = [
        (as_words(y[first:end]), y_turned, first, inner, AS_PAIRS)
        for first, end in cut_evenly(len(y), len(parts), WIDTH)
    ]
    return BoundCall(_pack_and_multiply, (panels, pairs_shape(inner, units), size, parts, run))


def row_parts(kernel: str, rows: int, inner: int, units: int) -> Parts:
    """Return the parts of a product that threads compute."""
    of = KERNELS[kernel]
    count = of.chunk_rows(rows, inner) // of.ROWS
    parts = min(count, part_count(rows, inner, units))
    each = count // parts * of.ROWS
    step = of.room_size(rows, inner, units) // count * (each // of.ROWS)
    ranges = cut_evenly(rows, parts, of.ROWS)
    return [(first, end, each, i * step) for i, (first, end) in enumerate(ranges)]


def _multiply(packed: Array, size: int, parts: Parts, run: Any) -> None:
    _multiply_parts(packed, SCRATCH.reserve(size), parts, run)


def _pack_and_multiply(panels: Any, shape: Shape, size: int, parts: Parts, run: Any) -> None:
    packed, room = SCRATCH.arrays(WORD, shape, (size // WORD.itemsize,))
    HELPERS.share(pack_panels, [(rows, packed, *how) for rows, *how in panels])
    _multiply_parts(packed, room.ctypes.data, parts, run)


def _multiply_parts(packed: Array, room: int, parts: Parts, run: Any) -> None:
    function, *factors = run
    HELPERS.share(function, [(packed, *factors, (*rows, room + at)) for *rows, at in parts])


def product_scratch(kernel: str, rows: int, inner: int, units: int, packed: bool) -> int:
    """Return the bytes of `SCRATCH` that a product uses, and the packing of its operand."""
    room: int = KERNELS[kernel].room_size(rows, inner, units)
    if packed:
        return max(room, 2 * STRIP * max(inner, units)) + 64
    return sum(whole_lines(WORD, [pairs_shape(inner, units), (room // WORD.itemsize,)])) + 64


def multiply_stacks(
    kernel: str,
    x: Array,
    x_turned: bool,
    y: Array,
    y_turned: bool,
    out: Array,
    rooms: Sequence[Array],
) -> None:
    """Multiply stacks of matrices, or their transposes, to float32; rooms: of `stack_rooms`."""
    assert kernel == PACKED or tiles.has_tiles()
    packed, room = (room.view(np.uint32) for room in rooms)
    shorts = as_words(out).view(np.uint16)
    how = kernel == AMX, kernel == PACKED and pairs_are_slower()
    tiles.multiply_stacks(x, x_turned, y, y_turned, shorts, packed, room, how)


def stack_rooms(kernel: str, rows: int, inner: int, units: int) -> list[Shape]:
    """Return the shapes in float32 of what `multiply_stacks` uses."""
    room = KERNELS[kernel].room_size(rows, inner, units)
    return [pairs_shape(inner, units), (room // WORD.itemsize,)]
