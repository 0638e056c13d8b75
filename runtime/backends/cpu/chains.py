"""Chains of element-wise calls, run block after block instead of one call after another.

    a = x * 2          block 0: a, b, c         the result of one call is still in the cache
    b = a + y          block 1: a, b, c         when the next one reads it
    c = tanh(b)        ...

The same functions compute on parts of the same arrays, so all bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from runtime.backends.device.table import BoundCall
from symgraph.core.types import Array

BLOCK = 1 << 14  # elements whose operands stay in the cache
Call = tuple[Callable[..., Any], tuple[Any, ...]]


def in_blocks(calls: tuple[Call, ...]) -> None:
    """Run calls on parts of arrays."""
    for function, args in calls:
        function(*args)


def blocked(calls: Sequence[BoundCall]) -> BoundCall:
    """Join element-wise calls on contiguous arrays of one size into one call."""
    size = max(x.size for x in calls[0].args)
    flat = [(c.function, [x if x.ndim == 0 else x.reshape(-1) for x in c.args]) for c in calls]
    parts = [
        (function, tuple([x if x.ndim == 0 else x[at : at + BLOCK] for x in args]))
        for at in range(0, size, BLOCK)
        for function, args in flat
    ]
    return BoundCall(in_blocks, (tuple(parts),))


class Chain:
    """Consecutive calls that may run block by block; the last argument of each is its output."""

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        self._functions = frozenset(functions)
        self.calls: list[BoundCall] = []

    def takes(self, call: BoundCall) -> bool:
        """Add a call if it can run with those before; return whether it was added."""
        if call.function not in self._functions or not _flat(call.args):
            return False
        if self.calls and call.args[-1].size != self.calls[0].args[-1].size:
            return False
        if not all(_apart(call, other) for other in (*self.calls, call)):
            return False
        self.calls.append(call)
        return True

    def bound(self) -> BoundCall:
        """Return all calls as one."""
        return self.calls[0] if len(self.calls) == 1 else blocked(self.calls)


def _flat(args: Sequence[Array]) -> bool:
    """Tell whether all are contiguous arrays of the output's size, or scalars, and large enough."""
    size = args[-1].size
    return size >= 2 * BLOCK and all(
        x.ndim == 0 or (x.size == size and x.flags.c_contiguous) for x in args
    )


def _apart(one: BoundCall, other: BoundCall) -> bool:
    """Tell whether each call's output is disjoint from the other's arrays, or equal to one."""
    pairs = [(one.args[-1], x) for x in other.args] + [(other.args[-1], x) for x in one.args]
    return all(_same_or_apart(out, x) for out, x in pairs)


def _same_or_apart(x: Array, y: Array) -> bool:
    if x.ctypes.data == y.ctypes.data and x.nbytes == y.nbytes:
        return True
    first, second = sorted([(x.ctypes.data, x.nbytes), (y.ctypes.data, y.nbytes)])
    return first[0] + first[1] <= second[0]
