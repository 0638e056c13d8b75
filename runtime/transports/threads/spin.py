"""A short wait for another thread's sign, without the interpreter and without sleep."""

from __future__ import annotations

import platform
from typing import Any

from numba import types

from runtime.backends.device.compile import I64, VOID, call_llvm, intrinsic, jit
from symgraph.core.types import Array

SPINS = 6000  # looks; with a pause of 40 to 140 cycles each, 0.1 to 0.3 ms
LATER = 220  # looks after the sign, some 8 us: see `changed`
X86 = platform.machine() in ("x86_64", "AMD64")


@intrinsic  # type: ignore[untyped-decorator]
def look(typing: Any, address: Any) -> Any:
    """The 64-bit integer at an address, read anew each time, after a pause for the other core."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if X86:
            call_llvm(b, "x86.sse2.pause", VOID)
        return b.load_atomic(b.inttoptr(args[0], I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@jit
def changed(count: Array, seen: int) -> bool:
    """Whether count[0] (int64) becomes another number soon.

    If so, it stays a little longer: who gave the sign still holds the interpreter for some
    microseconds, and to queue for that is a sleep again. With it a hand-over of some KB takes
    about 20 us here, without it 35, and 60 by sleep and bell.
    """
    address = count.ctypes.data
    for _ in range(SPINS):
        if look(address) != seen:
            for _ in range(LATER):
                look(address)
            return True
    return False
