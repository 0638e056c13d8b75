"""Pinned memory of the host, which GPUs copy from and to asynchronously.

CUDA copies from pageable memory only when all earlier work of the stream is done, and makes the
host wait for that. So values that are fed to a GPU, or staged for it, go through pinned buffers.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from runtime.backends.device.arrays import Mark, copy, mark, pinned
from symgraph.core.types import Array, Shape, name_of

PAGEABLE_BYTES = 64 << 10  # up to this size CUDA copies from any memory without waiting


class PinnedBuffers:
    """Reusable pinned buffers of one rank, by shape and dtype.

    A buffer is free again when the copy out of it has finished.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[Shape, str], list[tuple[Mark | None, Array]]] = defaultdict(list)

    def acquire(self, like: Array) -> Array:
        """Return a buffer of this array's shape and dtype that nobody uses."""
        free = self._free[like.shape, name_of(like.dtype)]
        for at, (last, buffer) in enumerate(free):
            if last is None or last.done:
                del free[at]
                return buffer
        return pinned(like.shape, like.dtype)

    def release(self, buffer: Array, last: Mark | None = None) -> None:
        """Release a buffer; it is reusable once `last` has been reached."""
        self._free[buffer.shape, name_of(buffer.dtype)].append((last, buffer))

    def feed(self, target: Array, value: Array) -> None:
        """Copy a value from anywhere; one of the host may change as soon as this returns."""
        staged = isinstance(value, np.ndarray) and not isinstance(target, np.ndarray)
        if not staged or target.nbytes <= PAGEABLE_BYTES:
            copy(target, value)
            return
        buffer = self.acquire(target)
        buffer[...] = value
        copy(target, buffer)
        self.release(buffer, mark(target))
