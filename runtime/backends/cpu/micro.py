"""The packed operand: products of matrices of few rows with a weight that is laid out for them.

The right operand B (inner, units) is cut into panels of two vectors' columns, and every DEPTH
rows into blocks. They lie in the order in which the product reads them:

    for each block of B's rows          B  a b c d e f      with two columns in a panel
      for each panel                       g h i j k l      and blocks of two rows:
        for each row: the columns          m n o p q r      a b g h, c d i j, e f k l, m n o p q r

A tile of the product, up to ROWS rows of one panel, stays in registers while the panel goes by.
An element is the sum over the blocks of sums in the order of B's rows: it has the same bits
whatever the other rows are and however many.

Compiled code that knows these constants is all in this file: numba's cache on disk notices a
change of the file in which a function stands, not of what the function uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core.registry import cpu_target

from runtime.backends.device.compile import (
    I8,
    I32,
    I64,
    VOID,
    call_llvm,
    intrinsic,
    jit,
    jit_inner,
    out_of_line,
)
from symgraph.core.types import Array

# The CPU features that numba compiles for; its cache is keyed by the same string.
FEATURES = frozenset(cpu_target.target_context.codegen().magic_tuple()[2].split(","))
AVX512 = "+avx512f" in FEATURES
VECTOR = 64 if AVX512 else 32  # bytes
PANEL = 2 * VECTOR  # bytes
ROWS = 12 if AVX512 else 6  # of 32 or 16 registers: two a row, two for B, one for A
DEPTH = 512  # rows of B in a block: a tile's rows of A stay in the L1 cache
CHUNK = 20 * ROWS  # rows of A that are multiplied together: they stay in the L2 cache
LINE = 64  # bytes; a packed operand begins at a multiple
PREFETCH_PANEL = 8192  # bytes of B to fetch ahead: the hardware stops at the end of a page
PREFETCH_ROW = 512  # bytes to fetch ahead in each of many rows, too many for the hardware
COPY_ROWS = 8  # rows to copy together: whole lines, and not too many pages

integers: Any = types.UniTuple


def available() -> bool:
    """Tell whether this CPU has the vector instructions that packed products need."""
    return AVX512 or {"+avx2", "+fma"} <= FEATURES


def packed_shape(inner: int, units: int) -> tuple[int]:
    """Return the shape of the buffer that `pack` fills for an operand (inner, units) of its dtype.

    The operand begins at the buffer's first multiple of 64 bytes, so do not copy the buffer.
    """
    columns = PANEL // 4
    return (-(-units // columns) * columns * inner + LINE // 4,)


class Vectors:
    """Instructions on the vectors of one element type; addresses are 64-bit integers."""

    def __init__(self, context: Any, builder: Any, array: Any) -> None:
        self.builder = builder
        self.element = context.get_value_type(array.dtype)
        self.size = array.dtype.bitwidth // 8
        self.lanes = VECTOR // self.size
        self.type = ir.VectorType(self.element, self.lanes)
        self.zero = ir.Constant(self.type, [0.0] * self.lanes)
        self.align = I32(self.size)
        self.suffix = f".v{self.lanes}f{8 * self.size}"

    def call(self, name: str, result: Any, *args: Any) -> Any:
        return call_llvm(self.builder, name, result, *args)

    def at(self, address: Any, count: Any, step: Any = 1) -> Any:
        """Return the address `count` times `step` bytes after another."""
        count, step = (I64(n) if isinstance(n, int) else n for n in (count, step))
        return self.builder.add(address, self.builder.mul(count, step))

    def pointer(self, address: Any, kind: Any = None) -> Any:
        return self.builder.inttoptr(address, (kind or self.type).as_pointer())

    def load(self, address: Any) -> Any:
        return self.builder.load(self.pointer(address), align=self.size)

    def load_some(self, address: Any, mask: Any) -> Any:
        """Load a vector with zeros where the mask is false; nothing is read there."""
        args = self.pointer(address), self.align, mask, self.zero
        return self.call(f"masked.load{self.suffix}.p0", self.type, *args)

    def store_some(self, vector: Any, address: Any, mask: Any) -> None:
        args = vector, self.pointer(address), self.align, mask
        self.call(f"masked.store{self.suffix}.p0", VOID, *args)

    def stream(self, vector: Any, address: Any) -> None:
        """Store a whole vector at a multiple of its size, past the caches: the line is not read."""
        store = self.builder.store(vector, self.pointer(address), align=VECTOR)
        store.set_metadata("nontemporal", self.builder.module.add_metadata([I32(1)]))

    def fetch(self, address: Any) -> None:
        """Prefetch a line into the L2 cache."""
        self.call("prefetch.p0", VOID, self.pointer(address, I8), I32(0), I32(2), I32(1))

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return self.call(f"fma{self.suffix}", self.type, x, y, z)

    def splat(self, scalar: Any) -> Any:
        empty = ir.Constant(ir.VectorType(scalar.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(empty, scalar, I32(0))
        every = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, empty, every)

    def below(self, count: Any) -> Any:
        """Return the mask of the lanes whose index is less than a 64-bit integer."""
        lanes = ir.Constant(ir.VectorType(I64, self.lanes), list(range(self.lanes)))
        return self.builder.icmp_signed("<", lanes, self.splat(count))

    def transposed(self, rows: list[Any]) -> list[Any]:
        """Transpose a square by swaps of blocks, from single elements up."""
        lanes, half = self.lanes, 1
        rows = list(rows)
        while half < lanes:
            upper = [lanes + j - half if j & half else j for j in range(lanes)]
            lower = [lanes + j if j & half else j + half for j in range(lanes)]
            orders = [ir.Constant(ir.VectorType(I32, lanes), order) for order in (upper, lower)]
            for i in (i for i in range(lanes) if not i & half):
                x, y = rows[i], rows[i + half]
                for n, order in zip((i, i + half), orders, strict=True):
                    rows[n] = self.builder.shuffle_vector(x, y, order)
            half *= 2
        return rows


def sums(v: Vectors, rows: int, across: int, ends: Any, steps: Any) -> list[list[Any]]:
    """Generate the loop of a tile (rows, across vectors): a times the panel, in registers."""
    b = v.builder
    a, panel, _, _, depth, _ = ends
    starts = [v.at(a, row, steps[0]) for row in range(rows)]
    before, loop, done = b.block, b.append_basic_block(), b.append_basic_block()
    b.branch(loop)
    b.position_at_end(loop)
    k = b.phi(I64)
    old = [[b.phi(v.type) for _ in range(across)] for _ in range(rows)]
    at = v.at(panel, k, steps[4])
    right = [v.load(v.at(at, n, VECTOR)) for n in range(across)]
    for line in range(0, across * VECTOR, LINE):
        v.fetch(v.at(at, PREFETCH_PANEL + line))
    new = []
    for start, row in zip(starts, old, strict=True):
        x = v.splat(b.load(v.pointer(v.at(start, k, steps[3]), v.element), align=v.size))
        new.append([v.fma(x, y, z) for y, z in zip(right, row, strict=True)])
    after = b.add(k, I64(1))
    k.add_incoming(I64(0), before)
    k.add_incoming(after, loop)
    for row, then in zip(old, new, strict=True):
        for phi, vector in zip(row, then, strict=True):
            phi.add_incoming(v.zero, before)
            phi.add_incoming(vector, loop)
    b.cbranch(b.icmp_signed("<", after, depth), loop, done)
    b.position_at_end(done)
    return new


def finish(v: Vectors, tile: list[list[Any]], ends: Any, steps: Any) -> None:
    """Write a tile's columns, plus those of `add` if it has an address."""
    b = v.builder
    _, _, add, out, _, columns = ends
    wanted = b.icmp_signed("!=", add, I64(0))
    add = b.select(wanted, add, out)  # an address that exists, even for a load of nothing
    for n in range(len(tile[0])):
        mask = v.below(b.sub(columns, I64(n * v.lanes)))
        read = b.and_(mask, v.splat(wanted))
        for row, vectors in enumerate(tile):
            more = v.load_some(v.at(v.at(add, row, steps[1]), n, VECTOR), read)
            to = v.at(v.at(out, row, steps[2]), n, VECTOR)
            v.store_some(b.fadd(vectors[n], more), to, mask)


def finish_whole(v: Vectors, tile: list[list[Any]], ends: Any, steps: Any) -> None:
    """Do as `finish`, for whole vectors: stores with a mask take many cycles on some CPUs."""
    b = v.builder
    _, _, add, out, _, _ = ends
    wanted = b.icmp_signed("!=", add, I64(0))
    add = b.select(wanted, add, out)
    for row, vectors in enumerate(tile):
        for n, vector in enumerate(vectors):
            more = v.load(v.at(v.at(add, row, steps[1]), n, VECTOR))
            to = v.at(v.at(out, row, steps[2]), n, VECTOR)
            total = b.fadd(vector, b.select(wanted, more, v.zero))
            b.store(total, v.pointer(to), align=v.size)


def tile_shapes(v: Vectors, rows: Any, columns: Any) -> Iterator[tuple[int, int]]:
    """Generate the choice of a tile's code: what is emitted for each shape runs for that shape.

    Args:
        v: The vectors.
        rows: 1 to ROWS.
        columns: At least 1; those of two vectors at most.

    Yields:
        The rows of the tile, and its vectors in a row.
    """
    b = v.builder
    end, never = b.append_basic_block(), b.append_basic_block()
    wide = b.icmp_signed(">", columns, I64(v.lanes))
    switch = b.switch(b.add(b.mul(rows, I64(2)), b.zext(wide, I64)), never)
    for height in range(1, ROWS + 1):
        for across in (1, 2):
            case = b.append_basic_block()
            switch.add_case(I64(2 * height + across - 1), case)
            b.position_at_end(case)
            yield height, across
            b.branch(end)
    b.position_at_end(never)
    b.unreachable()
    b.position_at_end(end)


def multiplies_tile(name: str, finish: Callable[..., None]) -> Any:
    """Return the instruction that multiplies a tile; `finish` generates how it is written."""

    def multiply_tile(typing: Any, like: Any, rows: Any, ends: Any, steps: Any) -> Any:
        """Compute out (rows, columns) = a (rows, depth) times one block's panel, plus add.

        Args:
            typing: numba's typing context.
            like: An array of the element type.
            rows: 1 to ROWS.
            ends: The addresses of a, the panel, add (0: none) and out; depth; columns.
            steps: The bytes from row to row in a, add and out; along a row of a; from row to row
                of the panel.
        """

        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            v = Vectors(context, b, like)
            ends = [b.extract_value(args[2], i) for i in range(6)]
            steps = [b.extract_value(args[3], i) for i in range(5)]
            for height, across in tile_shapes(v, args[1], ends[-1]):
                finish(v, sums(v, height, across, ends, steps), ends, steps)
            return context.get_dummy_value()

        tuples = integers(types.int64, 6), integers(types.int64, 5)
        return types.void(like, types.int64, *tuples), generate

    multiply_tile.__name__ = name
    return intrinsic(multiply_tile)


multiply_tile = multiplies_tile("multiply_tile", finish)
multiply_whole_tile = multiplies_tile("multiply_whole_tile", finish_whole)


@intrinsic  # type: ignore[untyped-decorator]
def pack_square(
    typing: Any, like: Any, start: Any, step: Any, target: Any, rows: Any, depth: Any
) -> Any:
    """Transpose the first vector of rows `step` bytes apart into half a panel.

    At most a square of `rows` rows with `depth` elements each is read. Missing rows leave zeros in
    a panel's row; the panel's rows past `depth` are not written.
    """

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, like)
        start, step, target, rows, depth = args[1:]
        sources = [v.at(start, i, step) for i in range(v.lanes)]
        targets = [v.at(target, i, PANEL) for i in range(v.lanes)]
        least = b.select(b.icmp_signed("<", rows, depth), rows, depth)
        with b.if_else(b.icmp_signed(">=", least, I64(v.lanes))) as (whole, part):
            with whole:
                for source in sources:
                    v.fetch(v.at(source, PREFETCH_ROW))
                vectors = v.transposed([v.load(source) for source in sources])
                for to, vector in zip(targets, vectors, strict=True):
                    v.stream(vector, to)
            with part:
                there = [v.splat(b.icmp_signed(">", rows, I64(i))) for i in range(v.lanes)]
                masks = [b.and_(v.below(depth), row) for row in there]
                some = [v.load_some(*pair) for pair in zip(sources, masks, strict=True)]
                for i, vector in enumerate(v.transposed(some)):
                    inside = v.splat(b.icmp_signed(">", depth, I64(i)))
                    v.store_some(vector, targets[i], inside)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 5), generate


@intrinsic  # type: ignore[untyped-decorator]
def pack_row(typing: Any, like: Any, start: Any, target: Any, columns: Any) -> Any:
    """Copy a panel's row: at most its width, zeros past `columns`."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, like)
        start, target, columns = args[1:]
        for n in range(2):
            mask = v.below(b.sub(columns, I64(n * v.lanes)))
            v.stream(v.load_some(v.at(start, n, VECTOR), mask), v.at(target, n, VECTOR))
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 3), generate


@intrinsic  # type: ignore[untyped-decorator]
def settle(typing: Any) -> Any:
    """Order streamed stores before later stores."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        call_llvm(b, "x86.sse.sfence", VOID)
        return context.get_dummy_value()

    return types.void(), generate


@jit_inner
def first_line(packed: Array) -> Any:
    """Return the address at which the packed operand begins."""
    return (packed.ctypes.data + LINE - 1) // LINE * LINE


@jit
def pack_as_is(weight: Array, packed: Array) -> None:
    """Pack W for a weight (inner, units)."""
    inner, units = weight.shape
    size = weight.itemsize
    width = PANEL // size
    panels = (units + width - 1) // width
    source, start = weight.ctypes.data, first_line(packed)
    for done in range(0, inner, DEPTH):
        depth = min(DEPTH, inner - done)
        for first in range(0, depth, COPY_ROWS):
            for p in range(panels):
                for k in range(first, min(depth, first + COPY_ROWS)):
                    at = source + ((done + k) * units + p * width) * size
                    to = start + (done * panels + p * depth + k) * PANEL
                    pack_row(weight, at, to, units - p * width)
    settle()


@jit
def pack_transposed(weight: Array, packed: Array) -> None:
    """Pack W^T for a weight (units, inner)."""
    units, inner = weight.shape
    size = weight.itemsize
    lanes, step = VECTOR // size, inner * size
    panels = (units + 2 * lanes - 1) // (2 * lanes)
    source, start = weight.ctypes.data, first_line(packed)
    for done in range(0, inner, DEPTH):
        depth = min(DEPTH, inner - done)
        for p in range(panels):
            for k in range(0, depth, lanes):
                for half in range(2):
                    row = (2 * p + half) * lanes
                    at = source + row * step + (done + k) * size
                    to = start + (done * panels + p * depth + k) * PANEL + half * VECTOR
                    pack_square(weight, at, step, to, units - row, depth - k)
    settle()


@jit
def multiply(packed: Array, a: Any, add: Any, out: Any, sizes: Any, steps: Any) -> None:
    """Compute out (rows, units) = a (rows, inner) times the packed operand, plus add, by address.

    Args:
        packed: The packed operand.
        a: The address of the left operand.
        add: The address of a matrix to add, or of a row if its step is 0; 0: none.
        out: The address of the output.
        sizes: Rows, inner, units.
        steps: The bytes from row to row in a, add and out.
    """
    rows, inner, units = sizes
    width = PANEL // packed.itemsize
    panels = (units + width - 1) // width
    start, along = first_line(packed), (packed.itemsize, PANEL)
    for done in range(0, inner, DEPTH):
        depth = min(DEPTH, inner - done)
        for chunk in range(0, rows, CHUNK):
            end = min(rows, chunk + CHUNK)
            tiles = (end - chunk + ROWS - 1) // ROWS
            for p in range(panels):
                panel = start + (done * panels + p * depth) * PANEL
                columns = min(width, units - p * width)
                row = chunk
                for t in range(tiles):
                    x = a + row * steps[0] + done * packed.itemsize
                    more = add + row * steps[1] + p * PANEL if add != 0 else 0
                    y = out + row * steps[2] + p * PANEL
                    height = (end - row) // (tiles - t)
                    ends = x, panel, more, y, depth, columns
                    multiply_tile(packed, height, ends, (*steps, *along))
                    row += height
        add, steps = out, (steps[0], steps[2], steps[2])


# -- operands that are not packed ----------------------------------------------------------------


@jit
def multiply_small(like: Array, ends: Any, sizes: Any, steps: Any) -> None:
    """Compute out (rows, columns) = a (rows, depth) times b (depth, columns), by address.

    It is fast if b stays in the L1 or L2 cache. All numbers are int64, so that it is compiled once.

    Args:
        like: An array of the element type.
        ends: The addresses of a, b and out.
        sizes: Rows; depth, not 0; columns, a multiple of a vector's elements; 1 to add to what out
            holds, else 0.
        steps: The bytes from row to row in a, b and out, and along a row of a.
    """
    out_of_line()
    rows, depth, columns, adds = sizes
    a, b, out = ends
    all_steps = steps[0], steps[2], steps[2], steps[3], steps[1]
    width = PANEL // like.itemsize
    tiles = (rows + ROWS - 1) // ROWS
    row = 0
    for t in range(tiles):
        height = (rows - row) // (tiles - t)
        for first in range(0, columns, width):
            at = first * like.itemsize
            x, y = a + row * steps[0], out + row * steps[2] + at
            across = min(width, columns - first)
            tile = x, b + at, y * adds, y, depth, across
            multiply_whole_tile(like, height, tile, all_steps)
        row += height


@intrinsic  # type: ignore[untyped-decorator]
def turn_square(typing: Any, like: Any, source: Any, step: Any, target: Any, to: Any) -> Any:
    """Transpose a square of whole vectors, by address, with the bytes from row to row of each."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, like)
        source, step, target, to = args[1:]
        rows = v.transposed([v.load(v.at(source, i, step)) for i in range(v.lanes)])
        for i, vector in enumerate(rows):
            b.store(vector, v.pointer(v.at(target, i, to)), align=v.size)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 4), generate


@jit
def turn(x: Array, out: Array) -> None:
    """Transpose x (rows, columns), both multiples of a vector's elements, to out."""
    rows, columns = x.shape
    size = x.itemsize
    lanes = VECTOR // size
    for i in range(0, rows, lanes):
        for j in range(0, columns, lanes):
            source = x.ctypes.data + (i * columns + j) * size
            target = out.ctypes.data + (j * rows + i) * size
            turn_square(x, source, columns * size, target, rows * size)
