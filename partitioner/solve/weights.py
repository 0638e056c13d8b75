"""Weights: what a piece of a chain costs, element by element, as arrays that a sweep can walk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from partitioner.solve.down_sets import rows
from partitioner.solve.elements import Elements, Net
from partitioner.solve.problem import Array

MOST = 4  # free elements in a group: all sets of them are tried


@dataclass(frozen=True)
class Weights:
    """What a piece costs.

    times: [kinds, elements]. counts, limits: of each kind. prices: see prices.py.
    groups, masks, free: of free elements set aside (see relax.py). Net e has the members masks[e]
    of group groups[e] besides its elements (-1 and 0: none); free[k, g, s] is the time of the
    members s of group g on kind k. A piece takes along what costs it least.
    """

    times: Array
    memory: Array
    counts: tuple[int, ...]
    limits: Array
    prices: Array
    nets: tuple[Net, ...]
    groups: tuple[int, ...]
    masks: tuple[int, ...]
    free: Array


def weights(core: Elements) -> Weights:
    """The costs of a problem's own elements."""
    return Weights(
        core.times,
        core.memory,
        tuple(kind.count for kind in core.kinds),
        core.limits,
        core.prices,
        core.nets,
        (-1,) * len(core.nets),
        (0,) * len(core.nets),
        np.zeros((len(core.kinds), 0, 1 << MOST)),
    )


class Nets(NamedTuple):
    """Nets for the kernel: those of each element as compressed rows, then columns by net.

    costs: [kinds, nets]. groups, taken: see Weights; taken[e, s] counts the members of net e in
    the set s of its group. choice: what each set of each group costs the piece of the walk: [kinds,
    groups, sets]; bare: without its own time. inside: elements of each net in that piece.
    """

    starts: Array
    values: Array
    costs: Array
    sizes: Array
    groups: Array
    taken: Array
    choice: Array
    bare: Array
    inside: Array


def nets_of(w: Weights) -> Nets:
    """The nets of these weights, for one sweep."""
    held: list[list[int]] = [[] for _ in w.memory]
    for e, (_, members) in enumerate(w.nets):
        for v in members:
            held[v].append(e)
    sizes = np.array([len(m) for _, m in w.nets], dtype=np.int32)
    sizes += np.array([mask.bit_count() for mask in w.masks], dtype=np.int32)
    costs = np.array([c for c, _ in w.nets], dtype=np.float64).reshape(-1, len(w.counts)).T.copy()
    taken = _taken(w)
    opened = _opened(w, costs, sizes, taken)
    return Nets(
        *rows(held),
        costs,
        sizes,
        np.array(w.groups, dtype=np.int32),
        taken,
        w.free + opened,
        opened,
        np.zeros(len(sizes), dtype=np.int32),
    )


def _taken(w: Weights) -> Array:
    """How many free members of each net are in each set: [nets, sets]."""
    counts = [[(mask & s).bit_count() for s in range(1 << MOST)] for mask in w.masks]
    return np.array(counts, dtype=np.int32).reshape(-1, 1 << MOST)


def _opened(w: Weights, costs: Array, sizes: Array, taken: Array) -> Array:
    """What each set of free members pays without any element: [kinds, groups, sets]."""
    paid = np.zeros(w.free.shape)
    for e, g in enumerate(w.groups):
        if g >= 0:
            paid[:, g] += costs[:, e, None] * ((taken[e] > 0) & (taken[e] < sizes[e]))
    return paid
