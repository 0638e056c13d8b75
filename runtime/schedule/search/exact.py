"""Lower bounds of a schedule's length, and branch and bound: small problems solved exactly.

All of this is about a relaxed problem (problem.relaxed), in which no order takes longer than in the
real one: messages do not wait for each other, and receives and frees take no time of a rank. It is
the real one if instructions have no overhead, copies take no time and messages are so short that
none has to wait for another.

The search goes through active schedules (Giffler and Thompson 1960): of the run that can end first
and those of its rank that can begin before that, one comes next. Any other schedule leaves the rank
idle while a run would fit in, and is not shorter for that. Where memory is limited that may be why
a rank is idle; then all orders are gone through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.schedule.search.exact_walk import (
    ENDED,
    FOUND,
    Tree,
    heads,
    rank_bound,
    search,
    tails,
)
from runtime.schedule.search.list_scheduler_walk import clocks
from runtime.schedule.search.problem import NEVER, NONE, Memory, Problem, relaxed, unlimited

Array = npt.NDArray[Any]

POOL_SIZE, BUCKETS = 1 << 22, 1 << 15  # int64s for remembered states, and lists of these
MAX_WRONG_LEAVES = 20  # orders longer than hoped for, before only the bound is searched for
MAX_BOUND_JOBS = 1000  # of a rank; the sharper bound takes too long for more


def solve(
    p: Problem,
    below: int,
    judge: Callable[[Array], int],
    *,
    nodes: int,
    memory: Memory | None = None,
) -> int | None:
    """Find the shortest of all orders that take less than `below` ticks.

    Args:
        judge: Called with orders that are shorter than the best one so far in the relaxed problem,
            the last time with the best of all; returns their length in the real one, NEVER if they
            are not allowed.
        nodes: The most nodes to visit.
        memory: What orders surely hold; with it, only orders that keep to its limits are visited.

    Returns:
        A lower bound of the ticks of all orders (below `below`); None if the search was cut off.
    """
    easy = relaxed(p)
    tail, tree = tails(easy), _tree(easy, memory is not None)
    rooms, waits = memory or unlimited(p), memory is not None
    least, lower, wrong = below, NEVER, 0
    while True:
        wanted = min(least, lower) if wrong > MAX_WRONG_LEAVES else least
        status = search(easy, tail, rooms, waits, wanted - p.overhead, nodes, tree)
        if status != FOUND:
            return min(least, lower) if status == ENDED else None
        hoped = int(tree.at.clock.max()) + p.overhead
        length = judge(tree.order.copy())
        least = min(least, length)
        if length > hoped:
            lower, wrong = min(lower, hoped), wrong + 1


def lower_bound(p: Problem) -> int:
    """Return a lower bound of the length of all orders."""
    easy = relaxed(p)
    fresh, tail = clocks(easy), tails(easy)
    head = np.zeros_like(tail)
    heads(easy, fresh, head, head)
    bounds = [int((head + easy.run[:, None] + tail).max(initial=0))]
    there = head[p.src, 0] + easy.run[p.src] + easy.latency - p.copy
    after = easy.run[:, None] + tail
    for rank in range(p.ranks):
        bodies = p.bodies[p.bodies_first[rank] : p.bodies_first[rank + 1]]
        if not len(bodies):
            continue
        # From the first message or run on, the rank has to do all its work, apart from waiting.
        comes = np.flatnonzero(p.rank[p.dst] == rank)
        alone = head[bodies[np.diff(p.in_first)[bodies] == 0]]
        first = min(int(there[comes].min(initial=NEVER)), int(alone.min(initial=NEVER)))
        sends = int(np.diff(p.out_first)[bodies].sum())
        work = int(p.run[bodies].sum() + p.copy[comes].sum()) + (len(bodies) + sends) * p.overhead
        bounds.append(first + p.mbs * work + int(tail[bodies].min()))
        if len(bodies) * p.mbs <= MAX_BOUND_JOBS:
            bounds.append(rank_bound(easy, fresh, head, tail, rank))
    for link in np.unique(p.link):
        edges = np.flatnonzero(p.link == link)
        begin = there[edges] - p.latency[edges] - p.transfer[edges]
        rest = p.latency[edges] + p.copy[edges] + after[p.dst[edges]].min(axis=1)
        work = p.mbs * int(p.transfer[edges].sum())
        bounds.append(int(begin.min()) + work + int(rest.min()))
    return max(bounds) + p.overhead


def _tree(p: Problem, waits: bool) -> Tree:
    total, most = len(p.run) * p.mbs, int(np.diff(p.bodies_first).max(initial=0))
    depth = 2 + total * (1 + most if waits else 1)
    count = np.array([NONE, 0, 0], np.int64)

    def zeros(*shape: int) -> Array:
        return np.zeros(shape, np.int64)

    return Tree(
        count,
        clocks(p),
        zeros(len(p.run), p.mbs),
        zeros(len(p.run), p.mbs),
        zeros(p.ranks),
        zeros(total),
        zeros(depth),
        zeros(depth),
        zeros(depth, most + 1),
        zeros(depth),
        np.zeros((depth if waits else 1, len(p.run)), np.bool_),
        np.full(BUCKETS, NONE, np.int64),
        np.empty(POOL_SIZE, np.int64),
    )
