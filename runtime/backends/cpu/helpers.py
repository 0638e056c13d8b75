"""Helpers: threads that take parts of a large product, as those of a BLAS library do.

Our own kernels compute on the calling thread. Where a device may use several (`limit_blas`), a
product of bfloat16 of many operations is cut by rows, which does not change its bits. Products of
float32 are not: the threads of OpenBLAS, which makes others of the same step, wait for the next one
with a core each, and sharing cores with them made steps 6 to 12 % longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from runtime.backends.device.processor import product_threads

WORTH = 3e7  # operations of a part: it takes several times as long as to wake a thread


class Helpers(threading.local):
    """The helpers of the calling thread."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._count = 0

    def share(self, function: Callable[..., Any], parts: Sequence[tuple[Any, ...]]) -> None:
        """Call a function with the arguments of each part, all at the same time."""
        more = parts[1:]
        if len(more) > self._count:
            self._count = len(more)
            self._pool = ThreadPoolExecutor(self._count, "helper")
        waits = [self._pool.submit(function, *part) for part in more] if self._pool else []
        function(*parts[0])
        for wait in waits:
            wait.result()


HELPERS = Helpers()


def part_count(rows: int, inner: int, units: int) -> int:
    """Return how many threads a product (rows, inner) x (inner, units) is worth, as allowed now."""
    return max(1, min(product_threads(), int(2.0 * rows * inner * units / WORTH)))


def cut_evenly(count: int, parts: int, multiple: int) -> list[tuple[int, int]]:
    """Divide 0 to count into `parts` ranges (first, end), or fewer, that begin at multiples."""
    pieces = -(-count // multiple)
    each = -(-pieces // parts) * multiple
    return [(first, min(count, first + each)) for first in range(0, count, each)]
