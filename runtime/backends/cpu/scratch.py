"""A thread's memory for temporaries of its calls, which use it one after another."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from partitioner.memory.packing import to_cache_lines
from symgraph.core.types import Array, Shape


class Scratch(threading.local):
    """Memory of the calling thread, as large as its largest call has needed."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._address = 0

    def reserve(self, nbytes: int) -> int:
        """Return the address of that many bytes, a multiple of 64."""
        if nbytes + 64 > self._memory.nbytes:
            self._memory = np.empty(0, np.uint8)
            self._memory = np.empty(nbytes + 64, np.uint8)
            self._address = self._memory.ctypes.data
        return self._address + -self._address % 64

    def arrays(self, dtype: Any, *shapes: Shape) -> list[Array]:
        """Return uninitialised arrays side by side, each aligned to 64 bytes."""
        sizes, arrays = whole_lines(dtype, shapes), []
        at = self.reserve(sum(sizes)) - self._address
        for shape, size in zip(shapes, sizes, strict=True):
            arrays.append(np.ndarray(shape, dtype, self._memory, at))
            at += size
        return arrays

    @property
    def held(self) -> int:
        """Bytes of this thread's memory."""
        return self._memory.nbytes


def whole_lines(dtype: Any, shapes: Sequence[Shape]) -> list[int]:
    """Return the bytes of each array, rounded up to whole cache lines."""
    return [to_cache_lines(math.prod(shape) * dtype.itemsize) for shape in shapes]


SCRATCH = Scratch()
WIDE = Scratch()  # for numbers of 16 bits in float32, beside what a kernel on them uses
