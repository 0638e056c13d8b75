"""The pool: memory that several workers of a rank use in turn."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from weakref import WeakMethod

from partitioner.memory.packing import to_cache_lines
from runtime.backends.device.arrays import HOST, Device
from symgraph.core.types import Array


class Pool:
    """Memory that several users use in turn, as large as the largest of them needs.

    Its content is lost between two users' turns. Before it grows, all users drop their views of
    the old memory, so that old and new memory never exist together.
    """

    def __init__(self) -> None:
        self.memory = HOST.bytes(0)
        self._drops: list[WeakMethod[Callable[[], None]]] = []
        self._lock = Lock()

    def take(self, nbytes: int, drop: Callable[[], None], device: Device) -> Array:
        """Return at least that many bytes.

        Args:
            nbytes: The number of bytes.
            drop: A method that is called before the memory is replaced, if its object is still
                there; it must drop all views of it.
            device: The device of the memory.
        """
        with self._lock:
            if nbytes > self.memory.nbytes:
                for ref in self._drops:
                    if (other := ref()) is not None:
                        other()
                self._drops = []
                self.memory = HOST.bytes(0)
                self.memory = device.bytes(to_cache_lines(nbytes))
            self._drops = [ref for ref in self._drops if ref() not in (None, drop)]
            self._drops.append(WeakMethod(drop))
            return self.memory
