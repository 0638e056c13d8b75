"""A short busy wait for another thread, without the interpreter lock and without sleeping."""

from __future__ import annotations

import platform
from typing import Any

from numba import types

from runtime.backends.device.compile import I64, VOID, call_llvm, intrinsic, jit
from symgraph.core.types import Array

SPINS = 50_000  # reads; with a pause of 40 to 140 cycles each, 0.7 to 2.5 ms
LATER = 220  # reads after the change, some 8 us: see `changed`
X86 = platform.machine() in ("x86_64", "AMD64")


@intrinsic  # type: ignore[untyped-decorator]
def look(typing: Any, address: Any) -> Any:
    """Read the 64-bit integer at an address from memory, after a pause for the other core."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if X86:
            call_llvm(b, "x86.sse2.pause", VOID)
        return b.load_atomic(b.inttoptr(args[0], I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@jit
def changed(count: Array, seen: int) -> bool:
    """Return whether count[0] (int64) changes soon.

    After a change it spins a little longer: the thread that made it still holds the interpreter
    lock for some microseconds, and queueing for that lock would be a sleep again. A message of some
    KB takes about 20 us with this, 35 without it, and 60 with sleep and bell.
    """
    address = count.ctypes.data
    for _ in range(SPINS):
        if look(address) != seen:
            for _ in range(LATER):
                look(address)
            return True
    return False
