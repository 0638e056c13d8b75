"""Faults: ids out of range, which a kernel can note but not raise.

A kernel leaves such an id in a number of its own on the GPU and makes NaN of it; nobody waits for
that. `Faults.check`, called when a step is over, raises what the operator's own computation would.
"""

from __future__ import annotations

from typing import Any

from runtime.backends.cuda.base import module
from runtime.backends.device import arrays
from runtime.backends.device.table import CallContext
from symgraph.core.types import Array

ROOM = 256  # kinds of ids of one rank: of each what they are and how many there may be


class DeferredErrors:
    """What the kernels of one rank have noted: for each kind of ids one out of range, or 0."""

    def __init__(self) -> None:
        self._wrong: Any = module().zeros(ROOM, "float64")
        self._kinds: list[tuple[str, int]] = []

    def place(self, what: str, count: int) -> Array:
        """Where kernels leave an id outside 0..count-1; 0, which is within, means none."""
        kind = what, count
        if kind not in self._kinds:
            assert len(self._kinds) < ROOM
            self._kinds.append(kind)
        at = self._kinds.index(kind)
        found: Array = self._wrong[at : at + 1]
        return found

    def check(self) -> None:
        """Wait for the work so far; IndexError names an id that was out of range, once."""
        noted = arrays.on_host(self._wrong)
        for (what, count), wrong in zip(self._kinds, noted, strict=False):
            if wrong != 0:
                self._wrong.fill(0)
                raise IndexError(f"{what} {wrong:g} is outside 0..{count - 1}")


def place(clock: CallContext, what: str, count: int) -> Array:
    """`Faults.place` of the rank that has this clock."""
    if clock.faults is None:
        clock.faults = DeferredErrors()
    return clock.faults.place(what, count)
