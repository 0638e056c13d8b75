"""Rounding to bfloat16 and back: the vector instructions, and casts of whole arrays.

The bits are those of ml_dtypes: to nearest, ties to even; NaNs keep their sign only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from runtime.backends.cpu.micro import VECTOR, Vectors
from runtime.backends.device.compile import I32, I64, VOID, call_llvm, intrinsic, jit
from symgraph.core.types import BFLOAT16, Array

LANES = VECTOR // 4
QUIET = 0x7FC0
WORDS = ir.VectorType(I32, LANES)
SHORTS = ir.VectorType(ir.IntType(16), LANES)
FLOATS = types.Array(types.float32, 1, "C")


def words(numbers: int) -> Any:
    return ir.Constant(WORDS, [numbers] * LANES)


def masked(b: Any, address: Any, mask: Any, kind: Any, size: int) -> Any:
    """Load a vector of integers with zeros where the mask is false."""
    bits = kind.element.width
    name = f"masked.load.v{kind.count}i{bits}.p0"
    zero = ir.Constant(kind, [0] * kind.count)
    return call_llvm(b, name, kind, b.inttoptr(address, kind.as_pointer()), I32(size), mask, zero)


def shorts_below(b: Any, count: Any) -> Any:
    """Return the mask of 2 LANES 16-bit lanes whose index is less than a 64-bit integer."""
    row = ir.VectorType(ir.IntType(16), 2 * LANES)
    lanes, empty = ir.Constant(row, list(range(2 * LANES))), ir.Constant(row, ir.Undefined)
    most = b.select(b.icmp_signed("<", count, I64(2 * LANES)), count, I64(2 * LANES))
    first = b.insert_element(empty, b.trunc(most, row.element), I32(0))
    every = ir.Constant(ir.VectorType(I32, 2 * LANES), [0] * 2 * LANES)
    return b.icmp_signed("<", lanes, b.shuffle_vector(first, empty, every))


def rounded(v: Vectors, vector: Any) -> Any:
    """Round float32 to the nearest bfloat16, ties to even: integers of 32 bits, the upper zeros."""
    b = v.builder
    bits = b.bitcast(vector, WORDS)
    high = b.lshr(bits, words(16))
    near = b.lshr(b.add(b.add(bits, words(0x7FFF)), b.and_(high, words(1))), words(16))
    nan = b.or_(b.and_(high, words(0x8000)), words(QUIET))
    return b.select(b.fcmp_unordered("uno", vector, vector), nan, near)


def load_shorts(v: Vectors, address: Any, mask: Any) -> Any:
    """Load 16-bit integers, with zeros where the mask is false, as 32-bit ones."""
    return v.builder.zext(masked(v.builder, address, mask, SHORTS, 2), WORDS)


def store_shorts(v: Vectors, vector: Any, address: Any, mask: Any) -> None:
    """Store the lower halves of 32-bit integers where the mask is true."""
    to = v.builder.inttoptr(address, SHORTS.as_pointer())
    args = v.builder.trunc(vector, SHORTS), to, I32(2), mask
    call_llvm(v.builder, f"masked.store.v{LANES}i16.p0", VOID, *args)


def load_low(v: Vectors, address: Any, mask: Any = None) -> Any:
    """Load a vector's numbers of bfloat16, with zeros where there is a mask that is false."""
    b = v.builder
    if mask is None:
        found = b.zext(b.load(b.inttoptr(address, SHORTS.as_pointer()), align=2), WORDS)
    else:
        found = load_shorts(v, address, mask)
    return b.bitcast(b.shl(found, words(16)), v.type)


def store_low(v: Vectors, vector: Any, address: Any, mask: Any = None) -> None:
    """Round a vector to bfloat16 and store it, where there is a mask, where that is true."""
    b, low = v.builder, rounded(v, vector)
    if mask is None:
        b.store(b.trunc(low, SHORTS), b.inttoptr(address, SHORTS.as_pointer()), align=2)
    else:
        store_shorts(v, low, address, mask)


def caster(narrows: bool) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def cast_vector(typing: Any, source: Any, target: Any, count: Any) -> Any:
        """Cast at most a vector's numbers from one address to another."""

        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            v = Vectors(context, b, FLOATS)
            source, target, count = args
            with b.if_else(b.icmp_signed(">=", count, I64(LANES))) as (full, part):
                with full:
                    if narrows:
                        store_low(v, v.load(source), target)
                    else:
                        b.store(load_low(v, source), v.pointer(target), align=4)
                with part:
                    mask = v.below(count)
                    if narrows:
                        store_low(v, v.load_some(source, mask), target, mask)
                    else:
                        v.store_some(load_low(v, source, mask), target, mask)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return cast_vector


narrow_vector, widen_vector = caster(True), caster(False)


@intrinsic  # type: ignore[untyped-decorator]
def number_of(typing: Any, stored: Any) -> Any:
    """Return a number of an array, in float32 if it is a bfloat16, as uint16."""
    low = stored == types.uint16

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if not low:
            return args[0]
        return b.bitcast(b.shl(b.zext(args[0], I32), I32(16)), ir.FloatType())

    return (types.float32 if low else stored)(stored), generate


@intrinsic  # type: ignore[untyped-decorator]
def stored_in(typing: Any, out: Any, number: Any) -> Any:
    """Return a number as an array stores it: if that is of uint16, rounded to bfloat16."""
    low = out.dtype == types.uint16

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if not low:
            return args[1]
        single = b.fptrunc(args[1], ir.FloatType()) if number == types.float64 else args[1]
        bits = b.bitcast(single, I32)
        high = b.lshr(bits, I32(16))
        near = b.lshr(b.add(b.add(bits, I32(0x7FFF)), b.and_(high, I32(1))), I32(16))
        nan = b.or_(b.and_(high, I32(0x8000)), I32(QUIET))
        word = b.select(b.fcmp_unordered("uno", single, single), nan, near)
        return b.trunc(word, ir.IntType(16))

    return (types.uint16 if low else number)(out, number), generate


@jit
def widen(low: Array, wide: Array) -> None:
    """Copy bfloat16, as uint16, to float32, as uint32; both flat."""
    source, target = low.ctypes.data, wide.ctypes.data
    for j in range(0, low.size, LANES):
        widen_vector(source + 2 * j, target + 4 * j, low.size - j)


@jit
def cast_all(casts: Array) -> None:
    """Widen (positive) or narrow many arrays: rows of the source, the target and the size."""
    for i in range(len(casts)):
        source, target, size = casts[i]
        if size > 0:
            for j in range(0, size, LANES):
                widen_vector(source + 2 * j, target + 4 * j, size - j)
        else:
            for j in range(0, -size, LANES):
                narrow_vector(source + 4 * j, target + 2 * j, -size - j)


@jit
def narrow(wide: Array, low: Array) -> None:
    """Round float32, as uint32, to bfloat16, as uint16; both flat."""
    source, target = wide.ctypes.data, low.ctypes.data
    for j in range(0, low.size, LANES):
        narrow_vector(source + 4 * j, target + 2 * j, low.size - j)


def as_stored(array: Array) -> Array:
    """View bfloat16 as uint16, as compiled loops take it; return others as they are."""
    return as_words(array) if array.dtype.name == BFLOAT16 else array


def as_words(array: Array) -> Array:
    """View float32 or bfloat16 as unsigned integers."""
    return array.view(np.uint32 if array.itemsize == 4 else np.uint16)
