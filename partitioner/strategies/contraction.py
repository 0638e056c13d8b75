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

from symgraph.core.connected import connected
from symgraph.core.orders import closures, neighbours, topological
from symgraph.core.types import Array

FEW_CLASSES = 40  # no need to join light ones
MANY_CLASSES = 1000  # too many to look for ancestors, and to place
GOOD_ROUND = 0.9  # the share of classes left by a round that is worth another one
LIGHT_SHARES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # of what one device has to do


class Flow(NamedTuple):
    """The values that flow between nodes: columns with one row for each reader of each value."""

    source: Array  #: the node that makes the value
    target: Array  #: the node that reads it
    value: Array  #: the number of the value
    nbytes: Array


@dataclass(frozen=True)
class Classes:
    """Nodes in classes.

    Classes of two colours are never joined, nor one that has a colour to one that has none.
    """

    of: Array  #: node -> class
    flow: Flow
    seconds: Array  #: of each node, as a share of what one device has to do
    memory: Array  #: of each node, as a share of what one device may hold
    colours: Array  #: of each node; -1: none

    @property
    def count(self) -> int:
        return int(self.of.max()) + 1

    def sums(self, figures: Array) -> Array:
        """Add up the nodes' figures over each class."""
        added: Array = np.bincount(self.of, figures, self.count)
        return added

    def largest(self, figures: Array, least: float) -> Array:
        """Return the largest of the nodes' figures in each class, and at least `least`."""
        largest = np.full(self.count, least)
        np.maximum.at(largest, self.of, figures)
        return largest

    def arcs(self) -> Array:
        """List the pairs of classes that values go between, in order: [pairs, 2]."""
        ends = np.stack([self.of[self.flow.source], self.of[self.flow.target]], axis=1)
        pairs: Array = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)
        return pairs


def acyclic(classes: Classes) -> Classes:
    """Make one class of every cycle, and number the classes in topological order.

    Of the classes that may come next, the one with the first node comes.
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
    while classes.count > MANY_CLASSES:
        joined = _absorbed(classes, wholes, LIGHT_SHARES[-1])
        if joined.count > GOOD_ROUND * classes.count:
            classes = _intervals(joined) if joined.count > MANY_CLASSES else joined
            break
        classes = joined
    for share in LIGHT_SHARES:
        least = (
            1.0 if share == LIGHT_SHARES[-1] else GOOD_ROUND
        )  # a long tail is left to the next share
        before = 2.0 * classes.count
        while FEW_CLASSES < classes.count < least * before:
            before = classes.count
            classes = _absorbed(classes, wholes, share)
    return classes


def _wholes(classes: Classes) -> tuple[Array, Array]:
    """Return seconds and memory of the class that each node is in from the start."""
    return classes.sums(classes.seconds)[classes.of], classes.sums(classes.memory)[classes.of]


def _absorbed(classes: Classes, wholes: tuple[Array, Array], share: float) -> Classes:
    """Join light classes to their last predecessors, then to their first successors."""
    return _absorb(_absorb(classes, wholes, share, up=True), wholes, share, up=False)


def _absorb(classes: Classes, wholes: tuple[Array, Array], share: float, *, up: bool) -> Classes:
    """Join classes to their last predecessor (up) or first successor.

    They are joined only where that cannot make a larger value cross devices, and where everything
    in a class besides the heaviest class of the start stays light.
    """
    homes = _homes(classes, up)
    narrow = _bytes(classes, out=False) >= _bytes(classes, out=True)
    figures = [classes.sums(classes.seconds), classes.sums(classes.memory)]
    total = [f.tolist() for f in figures]
    heaviest = [classes.largest(whole, 0.0).tolist() for whole in wholes]
    colour = classes.largest(classes.colours, -1)
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
    """Find the last predecessor of each class, or its first successor; -1: there is none.

    Classes are numbered in topological order, so it can only be the one with the largest, or
    smallest, number.
    """
    near = neighbours(classes.count, classes.arcs().tolist())[0 if up else 1]
    if classes.count > MANY_CLASSES:
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
    """Count the bytes of the values that leave each class, or enter it; each value once."""
    flow = classes.flow
    source, target = classes.of[flow.source], classes.of[flow.target]
    crosses = source != target
    pairs = np.stack([(source if out else target)[crosses], flow.value[crosses]], axis=1)
    at, first = np.unique(pairs, axis=0, return_index=True)
    counts: Array = np.bincount(at[:, 0], flow.nbytes[crosses][first], classes.count)
    return counts


def _intervals(classes: Classes) -> Classes:
    """Join intervals of the topological order of about equal time; colours stay alone."""
    seconds = classes.sums(classes.seconds)
    steps = seconds / max(float(seconds.sum()), 1e-300) + 1 / classes.count
    cell = np.floor(np.cumsum(steps) * (MANY_CLASSES / 2) * (1 - 1e-9))
    colour = classes.largest(classes.colours, -1)
    starts = np.diff(cell, prepend=-1) != 0
    alone = colour >= 0
    starts |= alone | np.roll(alone, 1)
    return acyclic(replace(classes, of=(np.cumsum(starts) - 1)[classes.of]))
