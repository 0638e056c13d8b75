"""Packing: offsets in one piece of memory for arrays that are needed at different times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.compiled import compiled, overwrite

ALIGN = 64  # bytes: offsets are multiples of it
MAX_ROUNDS, MAX_PAIRS = 100, 40_000_000  # of improvement; pairs of needs looked at in all
Ints = npt.NDArray[Any]


class Need(NamedTuple):
    """Bytes that are held from moment `first` to moment `last`, both included."""

    first: int
    last: int
    nbytes: int


def to_cache_lines(nbytes: int) -> int:
    """Round a number of bytes up to whole cache lines."""
    return -(-nbytes // ALIGN) * ALIGN


def pack(needs: Sequence[Need]) -> tuple[list[int], int]:
    """Find an offset for each need so that none overlaps another held at the same time.

    Each is put at the lowest free offset, in the best of some orders: the largest first (Pisarchyk
    and Lee 2020), the most bytes for the longest time first, by their first moment, or backwards by
    their last. Where that takes more than is ever held at once, the needs at the top are moved
    forward in the order, again and again.

    Returns:
        The offsets, and the bytes that all needs take together.
    """
    if not needs:
        return [], 0
    first, last, nbytes = np.array(needs, np.int64).T.copy()
    size = -(-nbytes // ALIGN) * ALIGN
    best, least, held = np.zeros(len(needs), np.int64), -1, most_held(first, last, size)
    orders = (
        (first, -size),
        (first, -size * (last - first + 1)),
        (-size, -last, first),
        (first, -last),
    )
    for keys in orders:
        if least != held:
            offsets, order = np.zeros(len(needs), np.int64), np.lexsort(keys)
            total = int(_place(first, last, size, order, offsets, np.zeros_like(offsets)))
            if least < 0 or total < least:
                best, least = offsets, total
    rounds = min(MAX_ROUNDS, MAX_PAIRS // len(needs) ** 2)
    least = int(_improve(first, last, size, np.lexsort(orders[-1]), held, rounds, best, least))
    return best.tolist(), least


def most_held(first: Ints, last: Ints, size: Ints) -> int:
    """Return the most bytes that are needed at once: no packing takes fewer."""
    change = np.zeros(int(last.max()) + 2, np.int64)
    np.add.at(change, first, size)
    np.add.at(change, last + 1, -size)
    return int(np.cumsum(change).max())


@compiled(nogil=True)
def _place(first: Ints, last: Ints, size: Ints, order: Ints, offsets: Ints, placed: Ints) -> int:
    """Fill in the offsets; `placed` holds the needs that have one, sorted by offset."""
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


@compiled(nogil=True)
def _improve(
    first: Ints,
    last: Ints,
    size: Ints,
    order: Ints,
    held: int,
    rounds: int,
    best: Ints,
    least: int,
) -> int:
    """Improve by squeaky wheel optimization (Joslin and Clements 1999).

    Place in an order, move the needs that reach into the last quarter of the excess halfway to the
    front, place again. Fills in the best offsets and returns the bytes of all.
    """
    offsets, placed = np.zeros_like(size), np.zeros_like(size)
    for _ in range(rounds):
        if least <= held:
            break
        total = _place(first, last, size, order, offsets, placed)
        if total < least:
            least = total
            overwrite(best, offsets)
        high = total - (total - held) // 4
        for place in range(len(order)):
            item = order[place]
            if offsets[item] + size[item] >= high:
                for k in range(place, place // 2, -1):
                    order[k] = order[k - 1]
                order[place // 2] = item
    return least
