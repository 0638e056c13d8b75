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

from partitioner.solve.problem import Kind, Problem
from symgraph.core.connected import connected
from symgraph.core.types import Array

Arcs = frozenset[tuple[int, int]]
Net = tuple[tuple[float, ...], tuple[int, ...]]  # cost on each kind, elements


@dataclass(frozen=True)
class Elements:
    """Sets of nodes that are placed as one, numbered by the first node of each."""

    problem: Problem
    #: Node -> element.
    of: Array
    #: [kinds, elements], for the kinds that there are devices of; inf: it cannot run there, or is
    #: too large for one device's memory.
    times: Array
    #: Bytes of each element.
    memory: Array
    #: Whether an element has no forward nodes, so that no order binds it.
    free: Array
    #: The values that two elements or more make or read.
    nets: tuple[Net, ...]
    #: (earlier, later): a DAG where the placement is contiguous, none where it is not.
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
        prices: Array = self.problem.prices[_used_kinds(self.problem)]
        return prices

    @cached_property
    def kind_of(self) -> Array:
        """The number of each device's kind: a row of `times`."""
        return np.repeat(np.arange(len(self.kinds)), [kind.count for kind in self.kinds])

    @cached_property
    def nets_of(self) -> list[list[int]]:
        """The nets that each element is in."""
        held: list[list[int]] = [[] for _ in range(len(self))]
        for e, (_, members) in enumerate(self.nets):
            for v in members:
                held[v].append(e)
        return held

    @cached_property
    def limits(self) -> Array:
        """The memory limit of each kind, a hair less where sizes are not whole numbers, so that no
        rounding passes it."""
        integral = bool((self.problem.memory == np.floor(self.problem.memory)).all())
        return np.array([k.memory_limit * (1.0 if integral else 1 - 1e-12) for k in self.kinds])

    def assignment(self, devices: Array) -> Array:
        """Turn element -> device into node -> device."""
        nodes: Array = devices[self.of]
        return nodes

    def devices(self, nodes: Array) -> Array:
        """Turn node -> device into element -> device, by the first node of each element."""
        devices = np.zeros(len(self), dtype=np.int64)
        devices[self.of[::-1]] = nodes[::-1]
        return devices


def _used_kinds(problem: Problem) -> list[int]:
    """Number the kinds that there are devices of."""
    return [g for g, kind in enumerate(problem.kinds) if kind.count]


def _classes(n: int, pairs: Iterable[tuple[int, int]], *, strong: bool = False) -> Array:
    """Find the (strongly) connected classes of 0 .. n-1, numbered by their first members."""
    labels = connected(n, pairs, strong=strong)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    numbered: Array = rank[inverse]
    return numbered


def elements(problem: Problem, *, contiguous: bool) -> Elements:
    """Make one element of each colour class; if contiguous, with all between its members."""
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
    """Make elements of classes of nodes; `more` are arcs between them besides the values'."""
    arcs: set[tuple[int, int]] = set()
    if contiguous:
        arcs = _forward_arcs(problem, of) | set(more)
        cycles = _classes(int(of.max()) + 1, arcs, strong=True)
        of = cycles[of]
        arcs = {(int(cycles[a]), int(cycles[b])) for a, b in arcs if cycles[a] != cycles[b]}
    count = int(of.max()) + 1
    size = np.bincount(of, problem.memory, count)
    used = _used_kinds(problem)
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
    """Collect the values that several elements make or read; those of the same elements as one."""
    nets: dict[tuple[int, ...], list[float]] = {}
    for i, t in enumerate(problem.transfers):
        held = {int(of[t.source]), *(int(of[v]) for v in t.targets)}
        costs = [problem.moves[g][i] for g in kinds]
        if len(held) > 1 and any(costs):
            total = nets.setdefault(tuple(sorted(held)), [0.0] * len(kinds))
            for row, cost in enumerate(costs):
                total[row] += cost
    return tuple((tuple(costs), held) for held, costs in sorted(nets.items()))


def joined(core: Elements, pairs: Iterable[tuple[int, int]]) -> Elements:
    """Join each pair of elements into one."""
    merged = _classes(len(core), pairs)
    more = {(int(merged[a]), int(merged[b])) for a, b in core.arcs if merged[a] != merged[b]}
    return _build(core.problem, merged[core.of], frozenset(more), core.contiguous)


def ordered(core: Elements, more: Arcs) -> Elements:
    """Add arcs; cycles become one element."""
    return _build(core.problem, core.of, core.arcs | more, True)


def mirrored(core: Elements) -> Elements:
    """Bind free elements to an order: that of the forward pass, seen in the mirror.

    A backward value that goes to or comes from a free element becomes an arc the other way round,
    as in Tarnawski et al. Not all placements obey it, but the good ones mostly do.
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
