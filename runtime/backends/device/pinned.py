"""Rooms: pinned memory of the host, from and to which GPUs copy without a detour.

CUDA takes what is not pinned only when all that a stream has to do is done, and makes the host
wait for that. So what is fed to a GPU, or staged for it, goes through rooms, and the host goes on.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from runtime.backends.device.arrays import Mark, copy, mark, pinned
from symgraph.core.types import Array, Shape

LITTLE = 64 << 10  # bytes, which CUDA takes from anywhere without waiting


class PinnedBuffers:
    """One rank's, by shape and dtype, each used again when what was copied from it is there."""

    def __init__(self) -> None:
        self._free: dict[tuple[Shape, str], list[tuple[Mark | None, Array]]] = defaultdict(list)

    def take(self, like: Array) -> Array:
        """One that nobody uses."""
        free = self._free[like.shape, like.dtype.name]
        for at, (last, room) in enumerate(free):
            if last is None or last.done:
                del free[at]
                return room
        return pinned(like.shape, like.dtype)

    def back(self, room: Array, last: Mark | None = None) -> None:
        """It may be used again when there is that mark."""
        self._free[room.shape, room.dtype.name].append((last, room))

    def feed(self, target: Array, value: Array) -> None:
        """Copy a value from wherever; one of the host may change as soon as this returns."""
        by_room = isinstance(value, np.ndarray) and not isinstance(target, np.ndarray)
        if not by_room or target.nbytes <= LITTLE:
            copy(target, value)
            return
        room = self.take(target)
        room[...] = value
        copy(target, room)
        self.back(room, mark(target))
