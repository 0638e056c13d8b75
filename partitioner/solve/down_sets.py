"""Down-sets of a DAG: the sets of elements that hold all that comes before their members.

Each is a bit set; a step leads from one to another with one element more. They are listed by size,
so that a dynamic programme can walk them in order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from partitioner.base.compiled import compiled, inner, overwrite
from partitioner.solve.elements import Arcs
from symgraph.core.orders import neighbours, topological
from symgraph.core.types import Array

MAX_BYTES, MAX_SETS = 700_000_000, 3_000_000  # the most memory and down-sets of a family


class TooMany(Exception):
    """The family has more down-sets than the limit."""


@dataclass(frozen=True)
class Family:
    """Down-sets in order of size, the empty one first and the full one last.

    Steps are compressed rows: down-set i with the element added[k] is down-set steps[k], for k in
    starts[i] .. starts[i + 1] - 1.
    """

    bits: Array  # [down-sets, words]
    starts: Array
    steps: Array
    added: Array

    def __len__(self) -> int:
        return len(self.bits)

    def difference(self, larger: int, smaller: int) -> list[int]:
        """List the elements of one down-set that are not in a smaller one."""
        words = self.bits[larger] & ~self.bits[smaller]
        octets = words.astype("<u8").view(np.uint8)
        return [int(v) for v in np.flatnonzero(np.unpackbits(octets, bitorder="little"))]


def rows(lists: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Turn lists of integers into compressed rows: (starts, values)."""
    starts = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(x) for x in lists], out=starts[1:])
    flat = np.fromiter((v for x in lists for v in x), dtype=np.int32, count=int(starts[-1]))
    return starts, flat


def prefixes(order: Sequence[int]) -> Family:
    """Make the family of one topological order: its prefixes."""
    n = len(order)
    bits = np.zeros((n + 1, (n + 63) // 64), dtype=np.uint64)
    for i, v in enumerate(order):
        bits[i + 1] = bits[i]
        bits[i + 1, v // 64] |= np.uint64(1 << (v % 64))
    return Family(
        bits,
        np.minimum(np.arange(n + 2, dtype=np.int64), n),
        np.arange(1, n + 1, dtype=np.int32),
        np.asarray(order, dtype=np.int32),
    )


def down_sets(n: int, arcs: Arcs, limit: float = math.inf) -> Family:
    """List all down-sets of a DAG of n elements. Raises TooMany beyond the limit, or memory."""
    words = (n + 63) // 64
    most = int(min(MAX_BYTES // (8 * words + 8 * 8 + 8), MAX_SETS, limit))
    more_than = _more_than(n, frozenset(arcs))
    if more_than[0] >= most:
        raise TooMany(f"more than {most} down-sets")
    before, after = neighbours(n, sorted(arcs))
    needs, following = _bit_sets(n, before), rows(after)
    words = needs.shape[1]
    room = 1 << 12
    keys = np.random.default_rng(0).integers(1, 2**62, n).astype(np.uint64)
    while True:
        room = min(room, most + 1)
        bits = np.zeros((room, words), dtype=np.uint64)
        ready = np.zeros((room, words), dtype=np.uint64)
        edges = np.zeros((2, 8 * room), dtype=np.int32)
        edge_starts = np.zeros(room + 1, dtype=np.int64)
        table = np.full(1 << (2 * room - 1).bit_length(), -1, dtype=np.int32)
        count = _enumerate(needs, *following, keys, bits, ready, edges, edge_starts, table)
        if count >= 0:
            used = int(edge_starts[count])
            return Family(
                bits[:count].copy(),
                edge_starts[: count + 1].copy(),
                edges[0, :used].copy(),
                edges[1, :used].copy(),
            )
        if room > most:
            more_than[0] = most
            raise TooMany(f"more than {most} down-sets")
        room *= 4


@lru_cache(maxsize=64)
def _more_than(n: int, arcs: Arcs) -> list[int]:
    """Return a cell with a number that the DAG is known to have more down-sets than.

    At first these are the sets of all elements below a level with some of those on it, where an
    element is one level above the highest that comes before it.
    """
    before, after = neighbours(n, arcs)
    level = [0] * n
    for v in topological(before, after, lambda v, step: v):
        level[v] = 1 + max((level[u] for u in before[v]), default=0)
    return [sum(2**width - 1 for width in Counter(level).values())]


def _bit_sets(n: int, lists: Sequence[Sequence[int]]) -> Array:
    """Turn lists of elements into bit sets."""
    held = np.zeros((n, max(1, (n + 63) // 64)), dtype=np.uint64)
    for v, some in enumerate(lists):
        for p in some:
            held[v, p // 64] |= np.uint64(1 << (p % 64))
    return held


@compiled()
def _enumerate(  # type: ignore[no-untyped-def]  # numba infers
    needs, starts, values, keys, bits, ready, edges, edge_starts, table
):
    """Fill the family breadth first; return its length, or -1 where the arrays are too small.

    `ready` holds, for each down-set, the elements that may come next.
    """
    n, words = needs.shape
    hashes = np.zeros(bits.shape[0], dtype=np.uint64)
    for v in range(n):
        if not needs[v].any():
            ready[0, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
    table[0] = 0
    count, used, i = 1, 0, 0
    fresh = np.zeros(words, dtype=np.uint64)
    while i < count:
        edge_starts[i] = used
        for word in range(words):
            left = ready[i, word]
            while left:
                lowest = left & (~left + np.uint64(1))
                left ^= lowest
                v = (word << 6) + int(np.log2(np.float64(lowest)) + 0.5)
                overwrite(fresh, bits[i])
                fresh[word] |= lowest
                key = hashes[i] ^ keys[v]
                slot = _slot(table, hashes, bits, fresh, key)
                if table[slot] < 0:
                    if count == bits.shape[0]:
                        return -1
                    table[slot] = count
                    overwrite(bits[count], fresh)
                    hashes[count] = key
                    overwrite(ready[count], ready[i])
                    ready[count, word] ^= lowest
                    for w in values[starts[v] : starts[v + 1]]:
                        if within(needs[w], fresh):
                            ready[count, w >> 6] |= np.uint64(1) << np.uint64(w & 63)
                    count += 1
                if used == edges.shape[1]:
                    return -1
                edges[0, used] = table[slot]
                edges[1, used] = v
                used += 1
        i += 1
    edge_starts[count] = used
    return count


@compiled()
def within(smaller, larger):  # type: ignore[no-untyped-def]
    """Tell whether a bit set is part of another one."""
    for i in range(len(smaller)):  # noqa: SIM110  (numba has no all())
        if smaller[i] & ~larger[i]:
            return False
    return True


@inner()
def _slot(table, hashes, bits, fresh, key):  # type: ignore[no-untyped-def]
    """Find the slot of the hash table that has the bit set, or that is free for it."""
    mask = table.shape[0] - 1
    slot = np.int64(key) & mask
    while table[slot] >= 0:
        j = table[slot]
        if hashes[j] == key and within(bits[j], fresh) and within(fresh, bits[j]):
            break
        slot = (slot + 1) & mask
    return slot
