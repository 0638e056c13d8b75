"""Weights: what a piece of a chain costs, element by element, as arrays that a sweep can walk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from partitioner.solve.down_sets import rows
from partitioner.solve.elements import Elements, Net
from symgraph.core.types import Array

MAX_GROUP = 4  # the most free elements in a group; all their sets are tried


@dataclass(frozen=True)
class Weights:
    """The costs of a piece, with the cheapest set of free elements set aside; see relaxation.py."""

    times: Array  #: seconds: [kinds, elements]
    memory: Array  #: bytes of each element
    counts: tuple[int, ...]  #: devices of each kind
    limits: Array  #: bytes that a device of each kind may hold
    prices: Array  #: the price of a second on each kind; see prices.py
    nets: tuple[Net, ...]  #: the values that several elements make or read
    groups: tuple[int, ...]  #: the group of free elements that is in each net; -1: none
    masks: tuple[int, ...]  #: which members of that group are in the net, as a bit set
    free: Array  #: seconds of each set of each group: [kinds, groups, sets]


def weights(core: Elements) -> Weights:
    """Collect the costs of a problem's elements, none of them set aside."""
    return Weights(
        core.times,
        core.memory,
        tuple(kind.count for kind in core.kinds),
        core.limits,
        core.prices,
        core.nets,
        (-1,) * len(core.nets),
        (0,) * len(core.nets),
        np.zeros((len(core.kinds), 0, 1 << MAX_GROUP)),
    )


class Nets(NamedTuple):
    """Nets for the kernel: those of each element as compressed rows, then columns by net."""

    starts: Array
    values: Array
    costs: Array  #: seconds: [kinds, nets]
    sizes: Array  #: members, free ones included
    groups: Array  #: see Weights
    taken: Array  #: members of each net in each set of its group: [nets, sets]
    choice: Array  #: what each set costs the piece of the walk: [kinds, groups, sets]
    bare: Array  #: the same without the time of its members
    inside: Array  #: elements of each net in that piece


def nets_of(w: Weights) -> Nets:
    """Lay out the nets for one sweep."""
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
    """Count the free members of each net in each set: [nets, sets]."""
    counts = [[(mask & s).bit_count() for s in range(1 << MAX_GROUP)] for mask in w.masks]
    return np.array(counts, dtype=np.int32).reshape(-1, 1 << MAX_GROUP)


def _opened(w: Weights, costs: Array, sizes: Array, taken: Array) -> Array:
    """Return what each set of free members pays without any element: [kinds, groups, sets]."""
    paid = np.zeros(w.free.shape)
    for e, g in enumerate(w.groups):
        if g >= 0:
            paid[:, g] += costs[:, e, None] * ((taken[e] > 0) & (taken[e] < sizes[e]))
    return paid
