"""The pool: memory that several workers of a rank use in turn."""

from __future__ import annotations

from collections.abc import Callable

from runtime.backends.device.arrays import HOST, Device
from symgraph.core.types import Array


class Pool:
    """Memory that several users use in turn, as large as the largest of them needs.

    Its content is lost between two users' turns. Before it grows, all users drop their views of
    the old memory, so that old and new memory never exist together.
    """

    def __init__(self) -> None:
        self.memory = HOST.bytes(0)
        self._drops: list[Callable[[], None]] = []

    def take(self, nbytes: int, drop: Callable[[], None], device: Device) -> Array:
        """Return at least that many bytes.

        Args:
            nbytes: The number of bytes.
            drop: Called before the memory is replaced; it must drop all views of it.
            device: The device of the memory.
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
