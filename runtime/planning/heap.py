"""The heap: no garbage collections while objects are made, and freed memory for the system.

Planning and binding make no cycles, but a great many objects. To look through all of them again and
again takes a third of the time that a long network's plan takes.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable garbage collection inside the block, then restore it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def trim_heap() -> None:
    """Return freed memory to the system, where the C library can: a search leaves much of it."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
