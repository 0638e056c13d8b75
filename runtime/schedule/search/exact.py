"""Lower bounds of a schedule's length, and branch and bound: small problems solved exactly.

All of this is about a relaxed problem (auto_problem.relaxed), in which no order takes longer than
in the real one: messages do not wait for each other, and receives and frees take no time of a
rank. It is the real one if instructions have no overhead, copies take no time and messages take
so little that none has to wait for another.

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

POOL, BUCKETS = 1 << 22, 1 << 15  # numbers of the states that are remembered, and of their lists
LEAVES = 20  # orders that may turn out longer than they should before only the bound is looked for
MANY = 1000  # jobs of a rank for which the sharper bound takes too long


def solve(
    p: Problem,
    below: int,
    judge: Callable[[Array], int],
    *,
    nodes: int,
    memory: Memory | None = None,
) -> int | None:
    """Find the shortest of all orders that take less than `below` ticks.

    judge: is told of orders that are shorter than the best one so far in the relaxed problem, at
    last of the best of all; returns their length in the real one, NEVER if they may not be.
    nodes: to visit at most. memory: what orders surely hold; if given, only those that keep to
    the rooms are visited. Returns ticks that no order (below `below`) falls short of; None if
    the search was cut off.
    """
    easy = relaxed(p)
    tail, tree = tails(easy), _tree(easy, memory is not None)
    rooms, waits = memory or unlimited(p), memory is not None
    least, lower, wrong = below, NEVER, 0
    while True:
        wanted = min(least, lower) if wrong > LEAVES else least
        status = search(easy, tail, rooms, waits, wanted - p.overhead, nodes, tree)
        if status != FOUND:
            return min(least, lower) if status == ENDED else None
        hoped = int(tree.at.clock.max()) + p.overhead
        length = judge(tree.order.copy())
        least = min(least, length)
        if length > hoped:
            lower, wrong = min(lower, hoped), wrong + 1


def lower_bound(p: Problem) -> int:
    """A length that no order can fall short of."""
    easy = relaxed(p)
    fresh, tail = clocks(easy), tails(easy)
    head = np.zeros_like(tail)
    heads(easy, fresh, head, head)
    bounds = [int((head + easy.run[:, None] + tail).max(initial=0))]
    there = head[p.src, 0] + easy.run[p.src] + easy.latency - p.copy
    after = easy.run[:, None] + tail
    for rank in range(p.ranks):
        mine = p.own[p.own_first[rank] : p.own_first[rank + 1]]
        if not len(mine):
            continue
        # From the first message or run on there is all its work but for waiting.
        comes = np.flatnonzero(p.rank[p.dst] == rank)
        alone = head[mine[np.diff(p.in_first)[mine] == 0]]
        first = min(int(there[comes].min(initial=NEVER)), int(alone.min(initial=NEVER)))
        sends = int(np.diff(p.out_first)[mine].sum())
        work = int(p.run[mine].sum() + p.copy[comes].sum()) + (len(mine) + sends) * p.overhead
        bounds.append(first + p.mbs * work + int(tail[mine].min()))
        if len(mine) * p.mbs <= MANY:
            bounds.append(rank_bound(easy, fresh, head, tail, rank))
    for link in np.unique(p.link):
        mine = np.flatnonzero(p.link == link)
        begin = there[mine] - p.latency[mine] - p.transfer[mine]
        rest = p.latency[mine] + p.copy[mine] + after[p.dst[mine]].min(axis=1)
        work = p.mbs * int(p.transfer[mine].sum())
        bounds.append(int(begin.min()) + work + int(rest.min()))
    return max(bounds) + p.overhead


def _tree(p: Problem, waits: bool) -> Tree:
    total, most = len(p.run) * p.mbs, int(np.diff(p.own_first).max(initial=0))
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
        np.empty(POOL, np.int64),
    )
