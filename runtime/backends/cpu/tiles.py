"""Products of bfloat16 by AMX, which multiplies tiles: 16 rows of 32 terms with 16 columns of them.

The right operand is packed as `pairs` has it, in panels of two tiles' columns; the left one is
packed for every call, in tiles of equal height. A sum goes by blocks of 32 terms: the even ones of
a block are summed, and the odd ones, and both together are added to the blocks before. So the bits
are others than those of `pairs`, and they do not depend on the other rows. Numbers below float32's
normal ones are zeros.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from runtime.backends.cpu import pairs
from runtime.backends.cpu.micro import FEATURES, PANEL, VECTOR, Vectors, first_line, integers
from runtime.backends.cpu.pairs import AS_PAIRS, EXACT, SHORT, WIDTH, finish, pack_panels
from runtime.backends.cpu.rounding import (
    FLOATS,
    LANES,
    SHORTS,
    WORDS,
    load_shorts,
    masked,
    shorts_below,
    words,
)
from runtime.backends.device.compile import (
    I8,
    I32,
    I64,
    VOID,
    call_llvm,
    intrinsic,
    jit,
    jit_inner,
)
from symgraph.core.types import Array

ROWS = 16  # of a tile
TERMS = 32  # in a row of a tile of the left operand
LINE = 64  # bytes of a tile's row
TILE = ROWS * LINE
BLOCK = 8  # tiles of a panel that stay in the L1 cache while the left operand's go by
CHUNK = 1 << 19  # bytes of the left operand that are packed together: they stay in the L2 cache
ARCH_PRCTL, REQUEST, TILE_DATA = 158, 0x1023, 18  # by which a process asks Linux for tiles
LEFT, RIGHT = (4, 5), (6, 7)  # of the eight tiles; the first four are sums
KNOWN = {"+avx512f", "+amx-tile", "+amx-bf16"} <= FEATURES  # else LLVM takes no such code
I16 = ir.IntType(16)


@cache
def has_tiles() -> bool:
    """Tell whether this CPU multiplies tiles of bfloat16, and this process may."""
    if not KNOWN or sys.platform != "linux":
        return False
    found: int = ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST, TILE_DATA)
    return found == 0


# -- instructions --------------------------------------------------------------------------------


def load_tile(v: Vectors, tile: int, address: Any, step: int) -> None:
    call_llvm(v.builder, "x86.tileloadd64", VOID, I8(tile), v.pointer(address, I8), I64(step))


def store_tile(v: Vectors, tile: int, address: Any, step: int) -> None:
    call_llvm(v.builder, "x86.tilestored64", VOID, I8(tile), v.pointer(address, I8), I64(step))


@intrinsic  # type: ignore[untyped-decorator]
def begin_tiles(typing: Any, room: Any, height: Any) -> Any:
    """Give the tiles their shapes, with `height` rows of the left operand; `room`: a line."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, FLOATS)
        room, height = args
        b.store(words(0), b.inttoptr(room, WORDS.as_pointer()), align=4)
        b.store(I8(1), v.pointer(room, I8))
        for tile in range(8):
            rows = I8(ROWS) if tile in RIGHT else b.trunc(height, I8)
            b.store(I16(LINE), v.pointer(v.at(room, 16 + 2 * tile), I16), align=2)
            b.store(rows, v.pointer(v.at(room, 48 + tile), I8))
        call_llvm(b, "x86.ldtilecfg", VOID, v.pointer(room, I8))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def end_tiles(typing: Any) -> Any:
    """Give the tiles up: what they hold is saved whenever the system changes threads."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        call_llvm(b, "x86.tilerelease", VOID)
        return context.get_dummy_value()

    return types.void(), generate


def multiply_block(v: Vectors, ends: Any, high: int, across: int) -> None:
    """Generate the loop over a block's terms, for `high` times `across` tiles of sums."""
    b = v.builder
    left, apart, panel, count, tail = ends

    def step(x: Any, y: Any) -> None:
        for m in range(high):
            load_tile(v, LEFT[m], v.at(x, apart, m), LINE)
            for n in range(across):
                if m == 0:
                    load_tile(v, RIGHT[n], v.at(y, n, VECTOR), PANEL)
                tiles = [I8(tile) for tile in (2 * m + n, LEFT[m], RIGHT[n])]
                call_llvm(b, "x86.tdpbf16ps", VOID, *tiles)

    before, loop, done = b.block, b.append_basic_block(), b.append_basic_block()
    b.cbranch(b.icmp_signed(">", count, I64(0)), loop, done)
    b.position_at_end(loop)
    k = b.phi(I64)
    step(v.at(left, k, TILE), v.at(panel, k, ROWS * PANEL))
    after = b.add(k, I64(1))
    k.add_incoming(I64(0), before)
    k.add_incoming(after, loop)
    b.cbranch(b.icmp_signed("<", after, count), loop, done)
    b.position_at_end(done)
    with b.if_then(b.icmp_signed("!=", tail, I64(0))):
        step(v.at(left, count, TILE), tail)


def begin_sums(v: Vectors, places: Mapping[int, Any], some: Any) -> None:
    """Load sums from their addresses, if there are some; else they are zeros."""
    with v.builder.if_else(some) as (going_on, begun):
        with going_on:
            for tile, at in places.items():
                load_tile(v, tile, at, PANEL)
        with begun:
            for tile in places:
                call_llvm(v.builder, "x86.tilezero", VOID, I8(tile))


def fetch_output(v: Vectors, rows: Any, more: Sequence[Any]) -> None:
    """Fetch the lines to which sums will be written: to wait for them took a fifth of the time."""
    b = v.builder
    with (
        b.if_then(b.icmp_signed("!=", more[2], I64(0))),
        cgutils.for_range(b, rows, intp=I64) as row,
    ):
        for line in range(2):
            at = v.at(v.at(more[2], row.index, more[3]), line, LINE)
            v.call("prefetch.p0", VOID, v.pointer(at, I8), I32(1), I32(3), I32(1))


@intrinsic  # type: ignore[untyped-decorator]
def multiply_tiles(typing: Any, ends: Any, shape: Any, block: Any, more: Any, form: Any) -> Any:
    """Multiply the rows of one or two tiles with one block of a panel.

    Args:
        typing: numba's typing context.
        ends: The addresses of the first tile, how far the second lies after it, the panel, how many
            whole tiles of each, and the address of a last one that is filled up with zeros, or 0.
        shape: The tiles' height; whether there is a second one; rows of both; columns of the panel.
        block: The address of the sums, whose rows are those of a panel.
        more: Whether it has those of the blocks before; the addresses of a bias (0: none) and
            of the output (0: none yet); the bytes from row to row of the output.
        form: What the output is; see `pairs`.
    """

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, FLOATS)
        ends, shape, more = ([b.extract_value(args[i], n) for n in range(k)] for i, k in PLACES)
        block, form = args[2], args[4]
        height, second, rows, columns = shape
        fetch_output(v, rows, more)
        done, never = b.append_basic_block(), b.append_basic_block()
        wide = b.zext(b.icmp_signed(">", columns, I64(LANES)), I64)
        switch = b.switch(b.add(b.mul(second, I64(2)), wide), never)
        for high in (1, 2):
            for across in (1, 2):
                case = b.append_basic_block()
                switch.add_case(I64(2 * (high - 1) + across - 1), case)
                b.position_at_end(case)
                places = {
                    2 * m + n: v.at(v.at(block, height, m * PANEL), n, VECTOR)
                    for m in range(high)
                    for n in range(across)
                }
                begin_sums(v, places, b.icmp_signed("!=", more[0], I64(0)))
                multiply_block(v, ends, high, across)
                for tile, at in places.items():
                    store_tile(v, tile, at, PANEL)
                b.branch(done)
        b.position_at_end(never)
        b.unreachable()
        b.position_at_end(done)
        with b.if_then(b.icmp_signed("!=", more[2], I64(0))):
            finish(v, rows, block, [*more[1:], columns], form)
        return context.get_dummy_value()

    five, four = integers(types.int64, 5), integers(types.int64, 4)
    return types.void(five, four, types.int64, four, types.int64), generate


PLACES = ((0, 5), (1, 4), (3, 4))  # the tuples among its arguments, and their sizes


@intrinsic  # type: ignore[untyped-decorator]
def copy_terms(typing: Any, start: Any, to: Any, terms: Any) -> Any:
    """Copy the next terms of a row, TERMS at most, with zeros after them."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        start, to, terms = args
        row = ir.VectorType(I16, 2 * LANES)
        found = masked(b, start, shorts_below(b, terms), row, 2)
        b.store(found, b.inttoptr(to, row.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@intrinsic  # type: ignore[untyped-decorator]
def turn_tile(typing: Any, start: Any, step: Any, to: Any, columns: Any, terms: Any) -> Any:
    """Pack a tile whose terms lie in rows `step` bytes apart; what is missing is zeros."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, FLOATS)
        start, step, to, columns, terms = args

        def whole(i: int) -> Any:
            at = b.inttoptr(v.at(start, i, step), SHORTS.as_pointer())
            return b.zext(b.load(at, align=2), WORDS)

        def part(i: int) -> Any:
            there = v.splat(b.icmp_signed(">", terms, I64(i)))
            return load_shorts(v, v.at(start, i, step), b.and_(v.below(columns), there))

        least = b.icmp_signed(">=", columns, I64(LANES)), b.icmp_signed(">=", terms, I64(TERMS))
        with b.if_else(b.and_(*least)) as branches:
            for branch, load in zip(branches, (whole, part), strict=True):
                with branch:
                    for i in range(TERMS if load is whole else 0):
                        v.fetch(v.at(v.at(start, i, step), LINE))
                    both = [
                        b.or_(load(i), b.shl(load(i + 1), words(16))) for i in range(0, TERMS, 2)
                    ]
                    for i, vector in enumerate(v.transposed(both)):
                        to_row = b.inttoptr(v.at(to, i, LINE), WORDS.as_pointer())
                        b.store(vector, to_row, align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


# -- products ------------------------------------------------------------------------------------


@jit
def chunk_rows(rows: int, inner: int) -> int:
    """Return how many of a left operand's rows are packed together at most: whole tiles."""
    tiles = (rows + ROWS - 1) // ROWS
    most = max(2, CHUNK // ((inner + TERMS - 1) // TERMS * TILE))
    chunks = (tiles + most - 1) // most
    each = (tiles + chunks - 1) // chunks
    return (each + each % 2 if each > 1 else 1) * ROWS  # two tiles are multiplied together


def room_size(rows: int, inner: int, units: int) -> int:
    """Return the bytes that `multiply` needs as room: for each tile its terms and its sums.

    units: not used; as that of `pairs`.
    """
    tiles: int = chunk_rows(rows, inner) // ROWS
    return tiles * (-(-inner // TERMS) * TILE + 2 * ROWS * PANEL)


@jit_inner
def pack_left(a: Array, transposed: bool, ends: Any, height: int, room: int) -> None:
    """Pack rows of a (rows, inner), or of a^T's columns, in tiles at the address `room`."""
    first, end = ends
    inner = a.shape[0] if transposed else a.shape[1]
    step, blocks = a.shape[1] * 2, (inner + TERMS - 1) // TERMS
    for row in range(first, end, height):
        to = room + (row - first) // height * blocks * TILE
        for k in range(blocks):
            terms = inner - k * TERMS
            if transposed:
                at = a.ctypes.data + k * TERMS * step + row * 2
                turn_tile(at, step, to + k * TILE, end - row, terms)
            else:
                at = a.ctypes.data + row * step + k * LINE
                for i in range(height):
                    there = terms if row + i < end else 0
                    copy_terms(at + i * step, to + k * TILE + i * LINE, there)


@jit_inner
def fill_up(panel: int, rows: int, to: int) -> None:
    """Copy the last rows of a panel, fewer than a tile's, with zeros after them."""
    for i in range(ROWS):
        for half in range(2):
            at = i * PANEL + half * VECTOR
            copy_terms(panel + at, to + at, TERMS if i < rows else 0)


def _multiply(
    packed: Array, a: Array, transposed: bool, bias: Array, out: Array, how: Any, part: Any
) -> None:
    """Compute rows of out = a times a packed operand, plus a row; see `pairs.multiply`.

    Every other product takes the panels from the last to the first: of a weight larger than the L2
    cache it finds there what the one before has read last. The operand's last word, which is spare,
    holds the direction.
    """
    (_, form), (begin, stop, chunk, room) = how, part
    units, size = (out.shape[1], 2) if form == SHORT else (out.shape[1] // 2, 4)
    inner = a.shape[0] if transposed else a.shape[1]
    count, whole = (inner + TERMS - 1) // TERMS, inner // TERMS
    all_pairs, panels = (inner + 1) // 2, (units + WIDTH - 1) // WIDTH
    tiles = (stop - begin + ROWS - 1) // ROWS
    height = (stop - begin + tiles - 1) // tiles
    left, sums = room + ROWS * PANEL, room + ROWS * PANEL + chunk // ROWS * count * TILE
    begin_tiles(sums, height)
    step = chunk // ROWS * height
    for first in range(begin, stop, step):
        end = min(stop, first + step)
        pack_left(a, transposed, (first, end), height, left)
        depth = BLOCK if end - first > 2 * height else count
        back = packed[-1] & 1  # read once: other threads change it
        packed[-1] = 1 - back
        for number in range(panels):
            column = (panels - 1 - number if back else number) * WIDTH
            panel = first_line(packed) + column // WIDTH * all_pairs * PANEL
            columns = min(WIDTH, units - column)
            extra = bias.ctypes.data + 2 * column if bias.size else 0
            if whole < count:
                fill_up(panel + whole * ROWS * PANEL, all_pairs - whole * ROWS, room)
            for done in range(0, count, depth):
                last = done + depth >= count
                tail = room if last and whole < count else 0
                for row in range(first, end, 2 * height):
                    t, rows = (row - first) // height, min(end - row, 2 * height)
                    x = left + (t * count + done) * TILE
                    of = (x, count * TILE, panel + done * ROWS * PANEL, min(depth, whole - done))
                    y = out.ctypes.data + (row * units + column) * size if last else 0
                    shape = (height, int(rows > height), rows, columns)
                    more = (done, extra, y, size * units)
                    multiply_tiles((*of, tail), shape, sums + t * ROWS * PANEL, more, form)
    end_tiles()


multiply = jit(_multiply) if KNOWN else pairs.multiply


@jit
def multiply_stacks(
    x: Array,
    x_turned: bool,
    y: Array,
    y_turned: bool,
    out: Array,
    packed: Array,
    room: Array,
    how: tuple[bool, bool],
) -> None:
    """Multiply stacks of matrices, or their transposes, of bfloat16, as uint16.

    Args:
        x: The left operands, transposed if `x_turned`.
        x_turned: See x.
        y: The right operands, transposed if `y_turned`.
        y_turned: See y.
        out: The products in float32, as uint16.
        packed: Room for one right operand; see `pairs.pairs_shape`.
        room: See `room_size`.
        how: Whether to multiply tiles; else, whether in float32.
    """
    tiles, wide = how
    inner, none = x.shape[1 if x_turned else 2], x.reshape(-1)[:0]
    rows, at = out.shape[1], room.ctypes.data
    for i in range(len(x)):
        pack_panels(y[i], packed, y_turned, 0, inner, AS_PAIRS)
        if tiles:
            part = 0, rows, chunk_rows(rows, inner), at
            multiply(packed, x[i], x_turned, none, out[i], (wide, EXACT), part)
        else:
            part = 0, rows, pairs.chunk_rows(rows, inner), at
            pairs.multiply(packed, x[i], x_turned, none, out[i], (wide, EXACT), part)
