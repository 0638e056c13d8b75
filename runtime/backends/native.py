"""Native calls: neighbouring calls of compiled kernels as one call, which never takes the GIL.

Python passes arrays to a compiled kernel by unpacking them, which takes a microsecond or two, often
as long as the kernel itself in a small network. It also takes the GIL, for which the threads of
other ranks wait. But the arrays of a bound body never change. So they are unpacked once, to the
words that the kernel's machine code takes, and a compiled loop makes all calls of a table:

    kernel  count  words -> floats, 0 0 size item-size address shape ... strides ... (an array), 1
    kernel  count  words -> ...

Outside Windows, x86-64 passes floats in registers of their own, and every other word in turn, in
registers or in eight bytes of the stack. So one compiled call serves the kernels of all signatures
with no more words than it passes: what a kernel does not take, it does not look at. On other
processors Python makes the calls. Where a kernel fails, Python calls it again, for the error.
"""

from __future__ import annotations

import inspect
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import typeof, types
from numba.core import cgutils
from numba.core.dispatcher import Dispatcher

from runtime.backends.calls import Call, make
from runtime.backends.device.arrays import address
from runtime.backends.device.compile import I32, I64, intrinsic, jit

Ints = npt.NDArray[np.int64]
DOUBLE = ir.DoubleType()
FLOATS = 8  # arguments that are floats: more would not be in registers
SIZES = (30, 62, 126, 510)  # numbers of other words that calls pass
HAS_WORDS = platform.machine() == "x86_64" and sys.platform != "win32"
UNTIMED = np.empty(0, np.int64)
CODES: dict[Any, _Code | None] = {}
# Of numba, without its types:
TYPE_OF: Callable[[Any], Any] = typeof
TUPLE: Any = types.BaseTuple
ALLOCATE: Any = cgutils.alloca_once  # at the begin of a function, also within a loop


# -- the loop ------------------------------------------------------------------------------------


@intrinsic  # type: ignore[untyped-decorator]
def enter(typing: Any, kernel: Any, count: Any, words: Any) -> Any:
    """Call a kernel by its address and return whether it failed.

    Its arguments are the first `count` words at the address `words`, floats first.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kernel, count, words = args
        words = builder.inttoptr(words, I64.as_pointer())
        room = [builder.ptrtoint(ALLOCATE(builder, I64), I64) for _ in ("result", "error")]
        end, status = builder.append_basic_block(), ALLOCATE(builder, I32)
        switch = builder.switch(count, end)
        for known in (FLOATS + size for size in SIZES):
            block = builder.append_basic_block()
            switch.add_case(I64(known), block)
            builder.position_at_end(block)
            given = [builder.load(builder.gep(words, [I64(at)])) for at in range(known)]
            floats = [builder.bitcast(word, DOUBLE) for word in given[:FLOATS]]
            passed = [*room, *given[FLOATS:], *floats]
            kind = ir.FunctionType(I32, [value.type for value in passed])
            builder.store(builder.call(builder.inttoptr(kernel, kind.as_pointer()), passed), status)
            builder.branch(end)
        builder.position_at_end(end)
        code = builder.load(status)
        done = [builder.icmp_signed("==", code, I32(good)) for good in (0, -2)]  # "ok", "none"
        return builder.not_(builder.or_(*done))

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def nanoseconds(typing: Any, clock: Any) -> Any:
    """Return the time of a clock of C's `clock_gettime`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(I32, [I32, I64.as_pointer()])
        function = builder.module.globals.get("clock_gettime")
        function = function or ir.Function(builder.module, kind, "clock_gettime")
        now = ALLOCATE(builder, I64, 2)  # seconds, nanoseconds
        builder.call(function, [args[0], now])
        seconds, rest = (builder.load(builder.gep(now, [I32(at)])) for at in (0, 1))
        return builder.add(builder.mul(seconds, I64(10**9)), rest)

    return types.int64(types.int32), generate


@jit
def run_table(table: Ints, begins: Ints, clock: int) -> int:
    """Make the calls of a table (N, 3); return how many of them come before one that fails.

    Args:
        table: See above.
        begins: (N,) for the time at which each begins, in ns; or empty.
        clock: The clock for these times.
    """
    for at in range(len(table)):
        if len(begins):
            begins[at] = nanoseconds(np.int32(clock))
        if enter(table[at, 0], table[at, 1], table[at, 2]):
            return at
    return len(table)


@jit
def no_kernel() -> None:
    """Stand for a kernel that does nothing."""


class NativeCalls:
    """Calls by their table, as one call."""

    def __init__(self, calls: Sequence[Call], rows: Sequence[_Row]) -> None:
        """calls: they keep all arrays. rows: of each."""
        self.calls, self._rows = tuple(calls), rows  # which keep the words
        table = [(row.kernel, row.words.size, address(row.words)) for row in rows]
        self._table = np.array(table, np.int64)
        self._begins = np.empty(len(rows), np.int64)

    def __call__(self) -> None:
        self._run(UNTIMED)

    def timed(self) -> list[int]:
        """Make the calls; return when each began, in ns of `time.perf_counter_ns`."""
        self._run(self._begins)
        begins: list[int] = self._begins.tolist()
        return begins

    def _run(self, begins: Ints) -> None:
        done = run_table(self._table, begins, time.CLOCK_MONOTONIC)
        if done < len(self.calls):
            make(self.calls[done:])


def joined(steps: Sequence[Call]) -> tuple[Call, ...]:
    """Join neighbouring calls of compiled kernels into one each."""
    if not HAS_WORDS:
        return tuple(steps)
    found: list[Call] = []
    pairs = ((step, _row_of(step)) for step in steps)
    for native, group in groupby(pairs, lambda pair: pair[1] is not None):
        calls, rows = zip(*group, strict=True)
        found += [Call(calls[0].name, NativeCalls(calls, rows), ())] if native else calls
    return tuple(found)


def apart(steps: Sequence[Call]) -> Iterator[Call]:
    """Yield the calls that `joined` has joined."""
    for step in steps:
        yield from step.function.calls if isinstance(step.function, NativeCalls) else (step,)


# -- code ----------------------------------------------------------------------------------------


class _Code(NamedTuple):
    """The machine code of a kernel for arguments of some types."""

    kernel: int
    kinds: tuple[Any, ...]


class _Row(NamedTuple):
    """A row of a table."""

    kernel: int
    words: Ints


def _row_of(step: Call) -> _Row | None:
    """Return the row of a call; None: it is not compiled, or takes other arguments."""
    if not isinstance(step.function, Dispatcher):
        return None
    args = _taken(step)
    key = step.function, tuple(map(_key, args))
    if key not in CODES:
        CODES[key] = _code(step.function, tuple(map(TYPE_OF, args)))
    code = CODES[key]
    if code is None:
        return None
    floats: list[int] = []
    each = (_words(kind, arg, floats) for kind, arg in zip(code.kinds, args, strict=True))
    words = [*chain.from_iterable(each)]
    size = next((size for size in SIZES if size >= len(words)), None)
    if size is None or len(floats) > FLOATS:
        return None
    passed = np.zeros(FLOATS + size, np.int64)
    passed[: len(floats)] = floats
    passed[FLOATS : FLOATS + len(words)] = words
    return _Row(code.kernel, passed)


def _taken(step: Call) -> tuple[Any, ...]:
    """Return a call's arguments as its kernel takes them: those of `*args` are a tuple."""
    first = _begin_of_rest(step.function)
    return step.args if first is None else (*step.args[:first], step.args[first:])


@cache
def _begin_of_rest(kernel: Any) -> int | None:
    code = kernel.py_func.__code__
    return code.co_argcount if code.co_flags & inspect.CO_VARARGS else None


def _key(value: Any) -> Any:
    """Return what the type of a value depends on, sooner than numba makes the type."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.ndim, value.flags.num
    return tuple(map(_key, value)) if isinstance(value, tuple) else type(value)


def _code(kernel: Any, kinds: tuple[Any, ...]) -> _Code | None:
    if not all(map(_has_words, kinds)):
        return None
    if kinds not in kernel.overloads:
        kernel.compile(kinds)
    code = kernel.overloads[kinds]
    if code.fndesc.restype != types.none:  # there is no room for what it returns
        return None
    return _Code(code.library.get_pointer_to_function(code.fndesc.llvm_func_name), kinds)


def _has_words(kind: Any) -> bool:
    if isinstance(kind, TUPLE):
        return all(_has_words(part) for part in kind)
    if isinstance(kind, types.Float):
        return kind.bitwidth in (32, 64)
    return isinstance(kind, types.Array | types.Boolean | types.Integer)


def _words(kind: Any, value: Any, floats: list[int]) -> Iterator[int]:
    """Yield the words that a value is in numba's calling convention; add to the floats."""
    if isinstance(kind, types.Array):
        yield from (0, 0, value.size, value.itemsize, address(value))  # nobody counts references
        yield from value.shape
        yield from value.strides
    elif isinstance(kind, TUPLE):
        for at, part in enumerate(value):
            yield from _words(kind[at], part, floats)
    elif isinstance(kind, types.Float):
        bits = np.array(value, str(kind))
        floats.append(int(bits.view(f"i{bits.itemsize}")))
    else:
        yield int(value)
