"""Packing: places in one piece of memory for arrays that are needed at different times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

ALIGN = 64  # bytes; where every piece begins
Ints = npt.NDArray[Any]


class Need(NamedTuple):
    """Bytes that are held from moment `first` to moment `last`, both included."""

    first: int
    last: int
    nbytes: int


def aligned(nbytes: int) -> int:
    """The same number of bytes in whole cache lines."""
    return -(-nbytes // ALIGN) * ALIGN


def pack(needs: Sequence[Need]) -> tuple[list[int], int]:
    """An offset for each need, none overlapping one held at the same time; and the bytes of all.

    Each is put at the lowest free place, in the best of some orders: the largest first (Pisarchyk
    and Lee 2020), those first that take most room for most time, or as they come.
    """
    if not needs:
        return [], 0
    first, last, nbytes = np.array(needs, np.int64).T.copy()
    size = -(-nbytes // ALIGN) * ALIGN
    best, least = np.zeros(len(needs), np.int64), -1
    for keys in ((first, -size), (first, -size * (last - first + 1)), (-size, -last, first)):
        offsets = np.zeros(len(needs), np.int64)
        total = int(_place(first, last, size, np.lexsort(keys), offsets, np.zeros_like(offsets)))
        if least < 0 or total < least:
            best, least = offsets, total
    return best.tolist(), least


@njit(cache=True, nogil=True)
def _place(first: Ints, last: Ints, size: Ints, order: Ints, offsets: Ints, placed: Ints) -> int:
    """Fill in the offsets; placed: room for the needs that have one, kept sorted by offset."""
    total = 0
    for count in range(len(order)):
        item = order[count]
        at = 0
        for k in range(count):
            other = placed[k]
            if last[other] < first[item] or last[item] < first[other]:
                continue
            if offsets[other] >= at + size[item]:
                break
            at = max(at, offsets[other] + size[other])
        offsets[item] = at
        total = max(total, at + size[item])
        k = count
        while k > 0 and offsets[placed[k - 1]] > at:
            placed[k] = placed[k - 1]
            k -= 1
        placed[k] = item
    return total
