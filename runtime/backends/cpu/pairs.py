"""Products of bfloat16 operands with float32 sums, from operands packed in pairs.

Two neighbouring terms of a sum lie in 32 bits, which is how the instruction that multiplies
bfloat16 (`vdpbf16ps`) and AMX tiles read them. The right operand B (inner, units) is cut into
panels of two vectors' columns:

    for each panel             B  a b c d     with two columns in a panel:
      for each pair of rows       e f g h
        for each column           i j k l     ae bf  ik jl | cg dh  kn lo
          the two numbers         m n o p

The left operand is packed too, in tiles of ROWS rows, for every call. Where a processor multiplies
float32 faster than pairs, as Intel's do that lack AMX, numbers are widened in registers instead.
Both ways add the same exact products in the same order, the odd term of a pair first, so that their
bits are equal, except that `vdpbf16ps` reads and makes zeros below float32's normal numbers.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from runtime.backends.cpu.micro import (
    FEATURES,
    PANEL,
    PREFETCH_PANEL,
    ROWS,
    VECTOR,
    Vectors,
    first_line,
    integers,
    settle,
    tile_shapes,
)
from runtime.backends.cpu.rounding import (
    FLOATS,
    LANES,
    SHORTS,
    WORDS,
    load_low,
    load_shorts,
    masked,
    narrow,
    rounded,
    shorts_below,
    store_shorts,
    words,
)
from runtime.backends.device.compile import I32, I64, intrinsic, jit, jit_inner
from symgraph.core.types import Array

WIDTH = PANEL // 4  # columns of a panel
DEPTH = 512  # pairs in a block of sums: the left operand's tiles of one stay in the L2 cache
CHUNK = 1 << 18  # numbers of the left operand that are packed together
STRIP = 32  # rows of float32 that are rounded together: a multiple of a panel's columns
TRIES = 5
HIGH = 0xFFFF0000
SHORT, ROUNDED, EXACT = range(3)  # a product: in bfloat16, rounded to it in float32, as it is
# Packed pairs: as they are; their odd and their even terms, one after the other, in float32; or as
# they are and past the caches, where a vector is a whole line.
AS_PAIRS, APART, STREAMED = range(3)
PAST_CACHES = STREAMED if VECTOR == 64 else AS_PAIRS


class BFloat(ir.Type):  # type: ignore[misc]  # llvmlite has no such type
    """LLVM's bfloat, which appears only in the name of a vector that is cast from integers."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def has_pair_products() -> bool:
    """Tell whether this CPU has the instruction that multiplies pairs of bfloat16."""
    return {"+avx512f", "+avx512bf16"} <= FEATURES


# -- packing -------------------------------------------------------------------------------------


def store_words(v: Vectors, vector: Any, target: Any, how: Any) -> None:
    """Store pairs; see AS_PAIRS."""
    b = v.builder

    def store(what: Any, where: Any) -> None:
        b.store(what, b.inttoptr(where, WORDS.as_pointer()), align=4)

    apart, past = (b.icmp_signed("==", how, I64(form)) for form in (APART, STREAMED))
    with b.if_else(apart) as (both, together):
        with both:
            store(b.and_(vector, words(HIGH)), target)
            store(b.shl(vector, words(16)), v.at(target, 4 * ROWS))
        with together, b.if_else(past) as (streamed, plain):
            with streamed:
                v.stream(b.bitcast(vector, v.type), target)
            with plain:
                store(vector, target)


@intrinsic  # type: ignore[untyped-decorator]
def pack_along(
    typing: Any, start: Any, step: Any, to: Any, gap: Any, rows: Any, depth: Any, how: Any
) -> Any:
    """Pack pairs that lie along rows `step` bytes apart: a vector's rows and as many pairs.

    The vectors of pairs go to `to` and every `gap` bytes after it; missing numbers are zeros.
    """

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, FLOATS)
        start, step, to, gap, rows, depth, how = args
        sources = [v.at(start, i, step) for i in range(LANES)]
        both = ir.VectorType(ir.IntType(16), 2 * LANES)
        inside = shorts_below(b, depth)
        nothing = ir.Constant(inside.type, [0] * 2 * LANES)
        whole = b.and_(
            b.icmp_signed(">=", rows, I64(LANES)), b.icmp_signed(">=", depth, I64(2 * LANES))
        )
        with b.if_else(whole) as (full, part):
            with full:
                loaded = [b.load(b.inttoptr(s, WORDS.as_pointer()), align=2) for s in sources]
                first = v.transposed(loaded)
                done = b.block
            with part:
                loaded = []
                for i, source in enumerate(sources):
                    mask = b.select(b.icmp_signed(">", rows, I64(i)), inside, nothing)
                    loaded.append(b.bitcast(masked(b, source, mask, both, 2), WORDS))
                second = v.transposed(loaded)
                partly = b.block
        for i, (x, y) in enumerate(zip(first, second, strict=True)):
            vector = b.phi(WORDS)
            vector.add_incoming(x, done)
            vector.add_incoming(y, partly)
            first[i] = vector
        for i, vector in enumerate(first):
            with b.if_then(b.icmp_signed(">", depth, I64(2 * i))):
                store_words(v, vector, v.at(to, i, gap), how)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate


@intrinsic  # type: ignore[untyped-decorator]
def pack_across(
    typing: Any, start: Any, step: Any, to: Any, columns: Any, depth: Any, how: Any
) -> Any:
    """Pack a vector of pairs that lie across two rows `step` bytes apart; 1 row if depth is 1."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, FLOATS)
        start, step, to, columns, depth, how = args
        both, next_row = b.icmp_signed(">", depth, I64(1)), b.add(start, step)

        def store(even: Any, odd: Any) -> None:
            store_words(v, b.or_(even, b.shl(odd, words(16))), to, how)

        with b.if_else(b.and_(both, b.icmp_signed(">=", columns, I64(LANES)))) as (full, part):
            with full:
                rows = [b.inttoptr(row, SHORTS.as_pointer()) for row in (start, next_row)]
                store(*[b.zext(b.load(row, align=2), WORDS) for row in rows])
            with part:
                mask = v.below(columns)
                more = b.and_(mask, v.splat(both))
                store(load_shorts(v, start, mask), load_shorts(v, next_row, more))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


def pairs_shape(inner: int, units: int) -> tuple[int]:
    """Return the shape of the buffer of uint32 for an operand (inner, units)."""
    panels = -(-units // WIDTH)
    return (panels * ((inner + 1) // 2) * WIDTH + 16,)


@jit
def pack_panels(
    source: Array, packed: Array, transposed: bool, first: int, inner: int, how: int
) -> None:
    """Pack rows of B, or of B^T, as uint16, that begin at row `first`, even, of the whole.

    how: AS_PAIRS or STREAMED.
    """
    start, step = source.ctypes.data, source.shape[1] * 2
    target, pairs = first_line(packed), (inner + 1) // 2
    if transposed:
        for half in range(0, (source.shape[0] + LANES - 1) // LANES):
            row = half * LANES
            place = (first + row) // WIDTH * pairs * PANEL + (first + row) % WIDTH * 4
            for p in range(0, pairs, LANES):
                at = start + row * step + 4 * p
                to = target + place + p * PANEL
                left = source.shape[0] - row
                pack_along(at, step, to, PANEL, left, inner - 2 * p, how)
    else:
        units = source.shape[1]
        for panel in range((units + WIDTH - 1) // WIDTH):
            for k in range(0, source.shape[0], 2):
                to = target + (panel * pairs + (first + k) // 2) * PANEL
                for half in range(2):
                    column = panel * WIDTH + half * LANES
                    at = start + k * step + 2 * column
                    depth = inner - first - k
                    pack_across(at, step, to + half * VECTOR, units - column, depth, how)


@jit
def pack_rounded(weight: Array, as_is: Array, turned: Array, strip: Array) -> None:
    """Round a weight of float32, as uint32, to bfloat16 and pack it, transposed, or both.

    Args:
        weight: The weight.
        as_is: Its packed form, or empty.
        turned: That of the transpose, or empty.
        strip: Room for STRIP rows.
    """
    rows, columns = weight.shape
    for first in range(0, rows, STRIP):
        part = weight[first : first + STRIP]
        some = strip[: part.size]
        narrow(part.reshape(-1), some)
        low = some.reshape(part.shape)
        if as_is.size:
            pack_panels(low, as_is, False, first, rows, PAST_CACHES)
        if turned.size:
            pack_panels(low, turned, True, first, columns, PAST_CACHES)
    settle()


# -- products ------------------------------------------------------------------------------------


def sums(v: Vectors, rows: int, across: int, ends: Any, pairwise: bool) -> list[list[Any]]:
    """Generate the loop of a tile (rows, across vectors), whose sums stay in registers."""
    b = v.builder
    a, panel, depth, _ = ends
    before, loop, done = b.block, b.append_basic_block(), b.append_basic_block()
    b.branch(loop)
    b.position_at_end(loop)
    k = b.phi(I64)
    tile = old = [[b.phi(v.type) for _ in range(across)] for _ in range(rows)]
    at = v.at(panel, k, PANEL)
    right = [
        b.load(b.inttoptr(v.at(at, n, VECTOR), WORDS.as_pointer()), align=4) for n in range(across)
    ]
    for line in range(0, across * VECTOR, 64):
        v.fetch(v.at(at, PREFETCH_PANEL + line))
    left = v.at(a, k, ROWS * (4 if pairwise else 8))
    for term in range(1 if pairwise else 2):
        if pairwise:
            by = right
        else:
            by = [b.shl(x, words(16)) if term else b.and_(x, words(HIGH)) for x in right]
            by = [b.bitcast(x, v.type) for x in by]
        new = []
        for row, line_ in enumerate(tile):
            where = v.at(left, term * ROWS + row, 4)
            if pairwise:
                x = v.splat(b.load(v.pointer(where, I32), align=4))
                new.append([dot_pairs(v, z, x, y) for y, z in zip(by, line_, strict=True)])
            else:
                x = v.splat(b.load(v.pointer(where, v.element), align=4))
                new.append([v.fma(x, y, z) for y, z in zip(by, line_, strict=True)])
        tile = new
    after = b.add(k, I64(1))
    k.add_incoming(I64(0), before)
    k.add_incoming(after, loop)
    for row_, then in zip(old, tile, strict=True):
        for phi, vector in zip(row_, then, strict=True):
            phi.add_incoming(v.zero, before)
            phi.add_incoming(vector, loop)
    b.cbranch(b.icmp_signed("<", after, depth), loop, done)
    b.position_at_end(done)
    return tile


def dot_pairs(v: Vectors, total: Any, x: Any, y: Any) -> Any:
    kind = ir.VectorType(BFloat(), 2 * LANES)
    pair = [v.builder.bitcast(z, kind) for z in (x, y)]
    return v.call("x86.avx512bf16.dpbf16ps.512", v.type, total, *pair)


def keep(v: Vectors, tile: list[list[Any]], block: Any, more: Any) -> None:
    """Write a tile's sums to a block or, if it has sums, add them to these."""
    for row, vectors in enumerate(tile):
        for n, vector in enumerate(vectors):
            at = v.at(block, row * PANEL + n * VECTOR)
            total = v.builder.fadd(vector, v.load_some(at, more))
            v.builder.store(total, v.pointer(at), align=4)


def finish(v: Vectors, rows: Any, block: Any, ends: Any, form: Any) -> None:
    """Write a block's sums, plus a row if it has an address, to out.

    There is one loop for the tiles of all shapes: to compile one for each took seconds.
    """
    b = v.builder
    full, exact = (b.icmp_signed("!=", form, I64(other)) for other in (SHORT, ROUNDED))
    bias, out, step, columns = ends
    biased = b.icmp_signed("!=", bias, I64(0))
    bias = b.select(biased, bias, block)  # an address that exists, even for a load of nothing
    masks = [v.below(b.sub(columns, I64(n * v.lanes))) for n in range(2)]
    extra = [
        load_low(v, v.at(bias, n, VECTOR // 2), b.and_(mask, v.splat(biased)))
        for n, mask in enumerate(masks)
    ]
    with cgutils.for_range(b, rows, intp=I64) as loop:
        to = v.at(out, loop.index, step)
        for n, (mask, more) in enumerate(zip(masks, extra, strict=True)):
            total = b.fadd(v.load(v.at(v.at(block, loop.index, PANEL), n, VECTOR)), more)
            low = rounded(v, total)
            with b.if_else(full) as (wide, short):
                with wide:
                    number = b.bitcast(b.shl(low, words(16)), v.type)
                    v.store_some(b.select(exact, total, number), v.at(to, n, VECTOR), mask)
                with short:
                    store_shorts(v, low, v.at(to, n, VECTOR // 2), mask)


def tile_product(pairwise: bool) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def multiply_tile(typing: Any, rows: Any, ends: Any, block: Any, more: Any, form: Any) -> Any:
        """Multiply a tile of the left operand with one block of a panel.

        Args:
            typing: numba's typing context.
            rows: 1 to ROWS.
            ends: The addresses of the tile and the panel; pairs; columns.
            block: The address of the sums, ROWS rows of a panel.
            more: Whether it has those of the blocks before; the addresses of a bias (0: none) and
                of the output (0: none yet); the bytes from row to row of the output.
            form: What the output is: SHORT, ROUNDED or EXACT.
        """

        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            v = Vectors(context, b, FLOATS)
            ends = [b.extract_value(args[1], i) for i in range(4)]
            has_sums, *more = [b.extract_value(args[3], i) for i in range(4)]
            add = v.splat(b.icmp_signed("!=", has_sums, I64(0)))
            for height, across in tile_shapes(v, args[0], ends[-1]):
                keep(v, sums(v, height, across, ends, pairwise), args[2], add)
            with b.if_then(b.icmp_signed("!=", more[1], I64(0))):
                finish(v, args[0], args[2], [*more, ends[-1]], args[4])
            return context.get_dummy_value()

        four = integers(types.int64, 4)
        return types.void(types.int64, four, types.int64, four, types.int64), generate

    return multiply_tile


multiply_wide_tile = tile_product(False)
# Where there is no such instruction, LLVM takes no code with it, and `multiply` widens always.
multiply_pair_tile = tile_product(True) if has_pair_products() else multiply_wide_tile


@jit
def chunk_rows(rows: int, inner: int) -> int:
    """Return how many of a left operand's rows are packed together: tiles of ROWS rows.

    Chunks are of almost equal height.
    """
    tiles = (rows + ROWS - 1) // ROWS
    most = max(1, CHUNK // (ROWS * min(inner, 2 * DEPTH)))
    chunks = (tiles + most - 1) // most
    return (tiles + chunks - 1) // chunks * ROWS


def room_size(rows: int, inner: int, units: int) -> int:
    """Return the bytes that `multiply` needs as room."""
    height: int = chunk_rows(rows, inner)
    pairs = (inner + 1) // 2
    columns = -(-units // WIDTH) * WIDTH if pairs > DEPTH else WIDTH
    return 4 * height * (2 * min(pairs, DEPTH) + columns + LANES)


@jit_inner
def pack_left(
    a: Array, transposed: bool, ends: Any, done: int, depth: int, room: int, wide: bool
) -> None:
    """Pack rows of a (rows, inner), or of a^T's columns, in tiles at the address `room`.

    Tiles have ROWS rows or, to be of almost equal height, fewer. They lie a vector apart, because
    the stores of a row of few reach past it.

    Args:
        a: The left operand.
        transposed: Whether it is transposed.
        ends: The first row, and that after the last.
        done, depth: The first pair, and how many.
        room: The address of the first tile.
        wide: Whether to widen.
    """
    first, end = ends
    inner = (a.shape[0] if transposed else a.shape[1]) - 2 * done
    gap, step, how = ROWS * (8 if wide else 4), a.shape[1] * 2, APART if wide else AS_PAIRS
    tiles = (end - first + ROWS - 1) // ROWS
    if transposed:
        for p in range(depth):
            at = a.ctypes.data + 2 * (done + p) * step
            row = first
            for t in range(tiles):
                rows = (end - row) // (tiles - t)
                to = room + t * (depth * gap + VECTOR) + p * gap
                pack_across(at + 2 * row, step, to, a.shape[1] - row, inner - 2 * p, how)
                row += rows
    else:
        row = first
        for t in range(tiles):
            rows = (end - row) // (tiles - t)
            at = a.ctypes.data + row * step + 4 * done
            for p in range(0, depth, LANES):
                to = room + t * (depth * gap + VECTOR) + p * gap
                left = min(inner - 2 * p, 2 * (depth - p))
                pack_along(at + 4 * p, step, to, gap, rows, left, how)
            row += rows


@jit
def multiply(
    packed: Array, a: Array, transposed: bool, bias: Array, out: Array, how: Any, part: Any
) -> None:
    """Compute rows of out = a times a packed operand, plus a row.

    Args:
        packed: The packed operand (inner, units), as uint32.
        a: The left operand (rows, inner), or its transpose, as uint16.
        transposed: Whether it is the transpose.
        bias: (units,), or empty, as uint16.
        out: (rows, units) or, in float32, (rows, 2 units): as uint16, as it is compiled once then.
        how: Whether to multiply in float32, and the form of the output; see SHORT.
        part: The first row, that after the last, how many are packed together, and the address of
            room for them; see `room_size`.
    """
    (wide, form), (begin, stop, height, room) = how, part
    units, size = (out.shape[1], 2) if form == SHORT else (out.shape[1] // 2, 4)
    inner = a.shape[0] if transposed else a.shape[1]
    pairs = (inner + 1) // 2
    panels = (units + WIDTH - 1) // WIDTH
    gap, start = ROWS * (8 if wide else 4), first_line(packed)
    keeps = int(pairs > DEPTH)  # else all tiles have one block, one after the other
    blocks = room + (height // ROWS) * (gap * min(pairs, DEPTH) + VECTOR)
    for first in range(begin, stop, height):
        end = min(stop, first + height)
        tiles = (end - first + ROWS - 1) // ROWS
        for done in range(0, pairs, DEPTH):
            depth = min(DEPTH, pairs - done)
            last = done + depth == pairs
            pack_left(a, transposed, (first, end), done, depth, room, wide)
            for panel in range(panels):
                column = panel * WIDTH
                at = start + (panel * pairs + done) * PANEL
                extra = bias.ctypes.data + 2 * column if last and bias.size else 0
                row = first
                for t in range(tiles):
                    tile_rows = (end - row) // (tiles - t)
                    tile = room + t * (depth * gap + VECTOR)
                    ends = tile, at, depth, min(WIDTH, units - column)
                    y = out.ctypes.data + (row * units + column) * size if last else 0
                    more = (done, extra, y, size * units)
                    block = blocks + keeps * (t * panels + panel) * ROWS * PANEL
                    if wide:
                        multiply_wide_tile(tile_rows, ends, block, more, form)
                    else:
                        multiply_pair_tile(tile_rows, ends, block, more, form)
                    row += tile_rows


@cache
def pairs_are_slower() -> bool:
    """Measure whether this CPU multiplies float32 faster than pairs; the bits are the same."""
    if not has_pair_products():
        return True
    rows, side = 4 * ROWS, 256
    x, out = np.ones((rows, side), np.uint16), np.empty((rows, side), np.uint16)
    packed, empty = np.ones(pairs_shape(side, side), np.uint32), x[:0, 0]
    room = np.empty(room_size(rows, side, side), np.uint8)

    def seconds(wide: bool) -> float:
        start = time.perf_counter()
        multiply(packed, x, False, empty, out, (wide, SHORT), (0, rows, rows, room.ctypes.data))
        return time.perf_counter() - start

    times = [(seconds(True), seconds(False)) for _ in range(TRIES)]
    return min(a for a, _ in times) < min(b for _, b in times)
