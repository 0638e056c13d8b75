"""The heap: no garbage collections while objects are made, and freed memory for the system.

Imports, planning and binding make no cycles, but a great many objects. To look through all of them
again and again takes a third of the time that a long network's plan takes.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def no_collections(*, lasting: bool = False) -> Iterator[None]:
    """Disable garbage collection inside the block, then restore it.

    Args:
        lasting: whether what is made will stay. It is old at once, unless the caller has frozen
            objects: only full collections look through it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if lasting and gc.get_freeze_count() == 0:
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        if enabled:
            gc.enable()


def trim_heap() -> None:
    """Return freed memory to the system, where the C library can: a search leaves much of it."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
