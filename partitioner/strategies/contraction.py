"""Contraction: nodes joined into classes whose quotient has no cycle, until few are left.

Two rules keep it acyclic. What lies on a cycle of classes becomes one class. And a light class may
join its *last* predecessor, the one that all its other predecessors come before; or, seen in the
mirror, its first successor. (Say classes are trees that grew so: a value that enters one from
outside comes from an ancestor of its root, so classes stand in a row as their roots do.)

It takes time near-linear in the nodes: the search for last predecessors among many needs all
ancestors, so while there are too many classes only sole neighbours are joined, then intervals of
one topological order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from partitioner.solve.orders import closures, neighbours, topological
from symgraph.core.connected import connected
from symgraph.core.types import Array

FEW = 40  # classes: no need to join light ones
MANY = 1000  # classes: too many to look for ancestors, and to place
WORTH = 0.9  # of the classes are left: a round that is worth another one
SHARES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # of a device's share of the time, what is called light


class Flow(NamedTuple):
    """What flows between nodes: columns with one row for each reader of each value.

    source, target: nodes. value: number of the value, nbytes: its size.
    """

    source: Array
    target: Array
    value: Array
    nbytes: Array


@dataclass(frozen=True)
class Classes:
    """of: node -> class. flow: between the nodes. seconds, memory: of each node, as shares of what
    one device has to do and may hold. colours: of each node; -1: none. Classes of two colours are
    never joined, nor one that has a colour to one that has none."""

    of: Array
    flow: Flow
    seconds: Array
    memory: Array
    colours: Array

    @property
    def count(self) -> int:
        return int(self.of.max()) + 1

    def sums(self, what: Array) -> Array:
        """A figure of the nodes, added up over each class."""
        added: Array = np.bincount(self.of, what, self.count)
        return added

    def arcs(self) -> Array:
        """Pairs of classes that values go between: [pairs, 2], in order."""
        ends = np.stack([self.of[self.flow.source], self.of[self.flow.target]], axis=1)
        found: Array = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)
        return found


def acyclic(classes: Classes) -> Classes:
    """The same with every cycle of classes in one, numbered in topological order.

    Of the classes that may come next, the one with the first node does.
    """
    cycles = connected(classes.count, classes.arcs(), strong=True)
    classes = replace(classes, of=cycles[classes.of])
    first = np.full(classes.count, len(classes.of))
    np.minimum.at(first, classes.of, np.arange(len(classes.of)))
    before, after = neighbours(classes.count, classes.arcs().tolist())
    keys = first.tolist()
    number = np.empty(classes.count, dtype=np.int64)
    number[topological(before, after, lambda c, step: keys[c])] = np.arange(classes.count)
    return replace(classes, of=number[classes.of])


def contract(classes: Classes) -> Classes:
    """Join light classes to neighbours, the lightest first, until few are left or none is light."""
    classes = acyclic(classes)
    wholes = _wholes(classes)
    while classes.count > MANY:
        joined = _absorbed(classes, wholes, SHARES[-1])
        if joined.count > WORTH * classes.count:
            classes = _intervals(joined) if joined.count > MANY else joined
            break
        classes = joined
    for share in SHARES:
        least = 1.0 if share == SHARES[-1] else WORTH  # a long tail is left to the next share
        before = 2.0 * classes.count
        while FEW < classes.count < least * before:
            before = classes.count
            classes = _absorbed(classes, wholes, share)
    return classes


def _wholes(classes: Classes) -> tuple[Array, Array]:
    """Seconds and memory of the class that each node is in: what was together from the start."""
    return classes.sums(classes.seconds)[classes.of], classes.sums(classes.memory)[classes.of]


def _absorbed(classes: Classes, wholes: tuple[Array, Array], share: float) -> Classes:
    """Light classes joined to their last predecessors, then to their first successors."""
    return _absorb(_absorb(classes, wholes, share, up=True), wholes, share, up=False)


def _absorb(classes: Classes, wholes: tuple[Array, Array], share: float, *, up: bool) -> Classes:
    """Join classes to their last predecessor (up) or first successor.

    Only where the value that is no longer cut is no smaller than the one that now may be, and
    where all that a class takes in besides the heaviest of its wholes stays light.
    """
    homes = _homes(classes, up)
    narrow = _bytes(classes, out=False) >= _bytes(classes, out=True)
    figures = [classes.sums(classes.seconds), classes.sums(classes.memory)]
    total, heaviest = [f.tolist() for f in figures], []
    for whole in wholes:
        largest = np.zeros(classes.count)
        np.maximum.at(largest, classes.of, whole)
        heaviest.append(largest.tolist())
    colour = np.full(classes.count, -1)
    np.maximum.at(colour, classes.of, classes.colours)
    root = list(range(classes.count))
    for v in range(classes.count) if up else reversed(range(classes.count)):
        if homes[v] < 0 or bool(narrow[v]) != up:
            continue
        u = root[homes[v]]
        fits = colour[v] in (-1, colour[u])
        for t, h in zip(total, heaviest, strict=True):
            fits = fits and t[u] + t[v] - max(h[u], h[v]) <= share and t[v] <= share
        if fits:
            root[v] = u
            for t, h in zip(total, heaviest, strict=True):
                t[u], h[u] = t[u] + t[v], max(h[u], h[v])
    if all(r == v for v, r in enumerate(root)):
        return classes
    _, of = np.unique(np.array(root)[classes.of], return_inverse=True)
    return acyclic(replace(classes, of=of))


def _homes(classes: Classes, up: bool) -> list[int]:
    """The last predecessor of each class, or its first successor; -1: there is none.

    Classes are numbered in topological order, so it can only be the one with the largest, or
    smallest, number.
    """
    near = neighbours(classes.count, classes.arcs().tolist())[0 if up else 1]
    if classes.count > MANY:
        return [sides[0] if len(sides) == 1 else -1 for sides in near]
    order = range(classes.count)
    reach = closures(near, order if up else reversed(order))
    homes = [-1] * classes.count
    for v, sides in enumerate(near):
        if sides:
            last = sides[-1] if up else sides[0]
            homes[v] = last if all(reach[last] >> u & 1 for u in sides) else -1
    return homes


def _bytes(classes: Classes, *, out: bool) -> Array:
    """Bytes of the values that leave each class, or that come in; each value once."""
    flow = classes.flow
    source, target = classes.of[flow.source], classes.of[flow.target]
    crosses = source != target
    pairs = np.stack([(source if out else target)[crosses], flow.value[crosses]], axis=1)
    at, first = np.unique(pairs, axis=0, return_index=True)
    found: Array = np.bincount(at[:, 0], flow.nbytes[crosses][first], classes.count)
    return found


def _intervals(classes: Classes) -> Classes:
    """Intervals of the topological order, of about equal time and number; colours stay alone."""
    seconds = classes.sums(classes.seconds)
    steps = seconds / max(float(seconds.sum()), 1e-300) + 1 / classes.count
    cell = np.floor(np.cumsum(steps) * (MANY / 2) * (1 - 1e-9))
    colour = np.full(classes.count, -1)
    np.maximum.at(colour, classes.of, classes.colours)
    starts = np.diff(cell, prepend=-1) != 0
    alone = colour >= 0
    starts |= alone | np.roll(alone, 1)
    return acyclic(replace(classes, of=(np.cumsum(starts) - 1)[classes.of]))
