"""Elements: the parts of a problem that are never split, and what joins them.

A contiguous placement gives each device a difference of two down-sets of the forward part. So
a colour class goes to one device with all that lies on paths between its members, and whatever
cannot be cut below a bound goes together too. What is left, the elements, is often a tenth of
the nodes.

A value becomes a *net*: the set of elements that make or read it. A device pays for a net when
it holds some of its elements and not all, whichever way the value goes; how much depends on the
kind of device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partitioner.solve.problem import Array, Kind, Problem
from symgraph.core.connected import connected

Arcs = frozenset[tuple[int, int]]
Net = tuple[tuple[float, ...], tuple[int, ...]]  # cost on each kind, elements


@dataclass(frozen=True)
class Elements:
    """What is placed as one. Numbered by the first node of each.

    of: node -> element. times: [kinds, elements] of the kinds that there are devices of; inf
    where too large for one's memory as well. free: elements without forward nodes, which no order
    binds. nets: of two elements or more. arcs: (earlier, later); a DAG where the placement is
    contiguous, none where it is not.
    """

    problem: Problem
    of: Array
    times: Array
    memory: Array
    free: Array
    nets: tuple[Net, ...]
    arcs: Arcs
    contiguous: bool

    def __len__(self) -> int:
        return len(self.memory)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that there are devices of: the rows of `times`."""
        return tuple(k for k in self.problem.kinds if k.count)

    @property
    def prices(self) -> Array:
        """The price of a second on each kind."""
        used = [g for g, kind in enumerate(self.problem.kinds) if kind.count]
        found: Array = self.problem.prices[used]
        return found

    @cached_property
    def limits(self) -> Array:
        """Each kind's memory limit; a hair less where sizes are not whole, so that no rounding
        passes it."""
        whole = bool((self.problem.memory == np.floor(self.problem.memory)).all())
        return np.array([k.memory_limit * (1.0 if whole else 1 - 1e-12) for k in self.kinds])

    def assignment(self, devices: Array) -> Array:
        """element -> device as node -> device."""
        found: Array = devices[self.of]
        return found


def _numbered(labels: Array) -> Array:
    """The same classes, numbered by their first member."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    numbered: Array = rank[inverse]
    return numbered


def _classes(n: int, pairs: Iterable[tuple[int, int]], *, strong: bool = False) -> Array:
    """Classes of 0 .. n-1 under the (strong) connections."""
    return _numbered(connected(n, pairs, strong=strong))


def elements(problem: Problem, *, contiguous: bool) -> Elements:
    """Colour classes as one element each; contiguous: with all between their members."""
    first: dict[int, int] = {}
    pairs = [
        (first.setdefault(colour, v), v) for v, colour in enumerate(problem.colours) if colour >= 0
    ]
    return _build(problem, _classes(len(problem.names), pairs), frozenset(), contiguous)


def _forward_arcs(problem: Problem, of: Array) -> set[tuple[int, int]]:
    return {
        (int(of[t.source]), int(of[v]))
        for t in problem.transfers
        if not problem.backward[t.source]
        for v in t.targets
        if not problem.backward[v] and of[t.source] != of[v]
    }


def _build(problem: Problem, of: Array, more: Arcs, contiguous: bool) -> Elements:
    """Elements of given classes of nodes. more: arcs between the classes besides the values'."""
    arcs: set[tuple[int, int]] = set()
    if contiguous:
        arcs = _forward_arcs(problem, of) | set(more)
        cycles = _classes(int(of.max()) + 1, arcs, strong=True)
        of = cycles[of]
        arcs = {(int(cycles[a]), int(cycles[b])) for a, b in arcs if cycles[a] != cycles[b]}
    count = int(of.max()) + 1
    size = np.bincount(of, problem.memory, count)
    used = [g for g, kind in enumerate(problem.kinds) if kind.count]
    times = np.zeros((len(used), count))
    for row, g in zip(times, used, strict=True):
        row[:] = np.bincount(of, problem.kinds[g].times, count)
        row[size > problem.kinds[g].memory_limit] = math.inf
    free = np.ones(count, dtype=bool)
    free[of[~np.array(problem.backward)]] = False
    return Elements(
        problem, of, times, size, free, _nets(problem, of, used), frozenset(arcs), contiguous
    )


def _nets(problem: Problem, of: Array, kinds: list[int]) -> tuple[Net, ...]:
    """The values that two elements or more make or read; those of the same elements as one."""
    found: dict[tuple[int, ...], list[float]] = {}
    for i, t in enumerate(problem.transfers):
        held = {int(of[t.source]), *(int(of[v]) for v in t.targets)}
        costs = [problem.moves[g][i] for g in kinds]
        if len(held) > 1 and any(costs):
            total = found.setdefault(tuple(sorted(held)), [0.0] * len(kinds))
            for row, cost in enumerate(costs):
                total[row] += cost
    return tuple((tuple(costs), held) for held, costs in sorted(found.items()))


def joined(core: Elements, pairs: Iterable[tuple[int, int]]) -> Elements:
    """The same with each pair of elements in one."""
    merged = _classes(len(core), pairs)
    more = {(int(merged[a]), int(merged[b])) for a, b in core.arcs if merged[a] != merged[b]}
    return _build(core.problem, merged[core.of], frozenset(more), core.contiguous)


def ordered(core: Elements, more: Arcs) -> Elements:
    """The same with more arcs; cycles become one element."""
    return _build(core.problem, core.of, core.arcs | more, True)


def mirrored(core: Elements) -> Elements:
    """Free elements bound to an order: that of the forward pass, seen in the mirror.

    A backward value that goes to or comes from a free element is an arc the other way round.
    (Tarnawski et al. do the same.) Not all placements obey it, but the good ones mostly do.
    """
    problem, of = core.problem, core.of
    more = set()
    for t in problem.transfers:
        for v in t.targets:
            a, b = int(of[t.source]), int(of[v])
            if a != b and (core.free[a] or core.free[b]):
                both = problem.backward[t.source] and problem.backward[v]
                more.add((b, a) if both else (a, b))
    return ordered(core, frozenset(more))
