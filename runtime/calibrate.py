"""A quick measurement of this machine, for predictions before the first step."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from partitioner.cost import Speed

SIZE = 512  # of the square float32 product; large enough for BLAS's full rate
CALLS = 2000  # of a small addition


def measure_speed() -> Speed:
    """The rate of matrix products and the cost of a small operation, best of a few tries."""
    a = np.ones((SIZE, SIZE), np.float32)
    out = np.empty_like(a)
    small = np.ones((16, 200), np.float32)
    product = min(_seconds(lambda: np.matmul(a, a, out=out)) for _ in range(7))
    call = min(_seconds(lambda: [small + small for _ in range(CALLS)]) for _ in range(3)) / CALLS
    return Speed(2 * SIZE**3 / product, call)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
