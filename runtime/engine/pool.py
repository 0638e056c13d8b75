"""The pool: memory that several workers of a rank use in turn."""

from __future__ import annotations

from collections.abc import Callable

from runtime.backends.device.arrays import HOST, Device
from symgraph.core.types import Array


class Pool:
    """The memory that several users have one after the other: as much as the largest of them needs.

    Nothing in it lasts from one user's turn to another's. When it has to grow, all who hold views
    of the old memory are told to drop them first, so that old and new never exist together.
    """

    def __init__(self) -> None:
        self.memory = HOST.bytes(0)
        self._drops: list[Callable[[], None]] = []

    def take(self, nbytes: int, drop: Callable[[], None], device: Device) -> Array:
        """Return at least that many bytes.

        Args:
            nbytes: How much is needed.
            drop: Called when the memory is replaced: must drop all views of it.
            device: Where the memory lies.
        """
        if nbytes > self.memory.nbytes:
            for other in self._drops:
                other()
            self._drops = []
            self.memory = HOST.bytes(0)
            self.memory = device.bytes(nbytes)
        if drop not in self._drops:
            self._drops.append(drop)
        return self.memory
