"""Kernels of branch and bound: the search and the bounds, see exact.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.compiled import compiled, inner, largest, overwrite
from runtime.schedule.search.list_scheduler_walk import (
    Clocks,
    begin_of,
    change_of,
    digest_of,
    do_run,
)
from runtime.schedule.search.problem import NEVER, NONE, Memory, Problem

Array = npt.NDArray[Any]

FOUND, ENDED, SPENT = 0, 1, 2  # why the search stops
DEPTH, NODES, USED = 0, 1, 2  # places in Tree.state


class Tree(NamedTuple):
    """The progress of the search."""

    #: The depth, NONE at first; the nodes visited; the numbers of the pool in use.
    state: Array
    #: What has been scheduled.
    at: Clocks
    #: [body, micro-batch]: the start of runs that have been scheduled, and the head of all.
    start: Array
    head: Array
    #: By rank: bytes.
    held: Array
    #: The order that was found.
    order: Array
    #: By depth: the body that is run next, or NONE - rank if that rank waits.
    picked: Array
    #: By depth: that rank's clock before.
    was: Array
    #: By depth: the candidates for `picked`; those at `left` and above have been tried.
    options: Array
    left: Array
    #: [depth, body]: whether the body may not come next on its rank (without waits, one row).
    barred: Array
    #: By digest: the first state of a list in the pool, which holds of each state the place of the
    #: next, the number of runs done of each body, and the times that matter for what follows.
    bucket: Array
    pool: Array


@compiled(nogil=True)
def search(
    p: Problem, tail: Array, memory: Memory, waits: bool, below: int, limit: int, tree: Tree
) -> int:
    """Search on for an order shorter than `below`: FOUND, ENDED if there is none, or SPENT.

    Args:
        waits: Whether ranks may wait although something could run.
        limit: The number of nodes after which the search is SPENT.
    """
    state, left = tree.state, tree.left
    if state[DEPTH] == NONE:
        state[DEPTH], left[0] = 0, _options(p, tail, memory, waits, below, tree, 0)
    depth = state[DEPTH]
    while state[NODES] < limit:
        if left[depth] == 0:
            if depth == 0:
                return ENDED
            depth -= 1
            _undo(p, memory, tree, depth)
            continue
        left[depth] -= 1
        _do(p, memory, waits, tree, depth, tree.options[depth, left[depth]])
        depth += 1
        state[NODES] += 1
        if _is_open(p, tree.at):
            left[depth] = _options(p, tail, memory, waits, below, tree, depth)
            continue
        left[depth] = 0
        if largest(tree.at.clock) < below:
            state[DEPTH] = depth
            _write_order(p, tree, depth)
            return FOUND
    return SPENT


@inner()
def _do(p: Problem, memory: Memory, waits: bool, tree: Tree, depth: int, choice: int) -> None:
    tree.picked[depth] = choice
    rank = p.rank[choice] if choice >= 0 else NONE - choice
    mine = p.bodies[p.bodies_first[rank] : p.bodies_first[rank + 1]]
    if waits:
        overwrite(tree.barred[depth + 1], tree.barred[depth])
        for body in mine:
            tree.barred[depth + 1, body] = choice < 0 and (
                tree.barred[depth, body] or _can_run(p, tree, body)
            )
    if choice >= 0:
        tree.was[depth] = tree.at.clock[rank]
        mb = tree.at.done[choice]
        begin, _ = begin_of(p, tree.at, choice, tree.at.clock[rank])
        tree.start[choice, mb] = begin
        tree.held[rank] += change_of(memory, choice, mb)
        do_run(p, tree.at, choice, begin)


@inner()
def _undo(p: Problem, memory: Memory, tree: Tree, depth: int) -> None:
    body = tree.picked[depth]
    if body < 0:
        return
    rank, mb = p.rank[body], tree.at.done[body] - 1
    tree.at.done[body] = mb
    tree.at.clock[rank] = tree.was[depth]
    tree.held[rank] -= change_of(memory, body, mb)
    for i in range(p.out_first[body], p.out_first[body + 1]):
        tree.at.arrive[p.outgoing[i], mb] = NEVER
        tree.at.busy[p.outgoing[i]] = 0


@inner()
def _is_open(p: Problem, at: Clocks) -> bool:
    """Whether there are runs to do."""
    for body in range(len(at.done)):  # noqa: SIM110  (numba has no any())
        if at.done[body] < p.mbs:
            return True
    return False


@inner()
def _can_run(p: Problem, tree: Tree, body: int) -> bool:
    return bool(tree.at.done[body] < p.mbs and begin_of(p, tree.at, body, 0)[0] < NEVER)


@inner()
def _options(
    p: Problem, tail: Array, memory: Memory, waits: bool, below: int, tree: Tree, depth: int
) -> int:
    """Write what can come next, the most urgent last; return how many, 0 to cut this node off."""
    at, head = tree.at, tree.head
    heads(p, at, tree.start, head)
    if _too_long(p, at, head, tail, below):
        return 0
    waited = depth > 0 and tree.picked[depth - 1] < 0  # which leaves the state as it was
    if not waited and _is_known(p, tree, depth):
        return 0
    first, ends = NONE, NEVER
    for body in range(len(p.run)):
        if _can_run(p, tree, body) and not (waits and tree.barred[depth, body]):
            end = head[body, at.done[body]] + p.run[body]
            if end < ends:
                first, ends = body, end
    if first == NONE:
        return 0
    row, count, rank = tree.options[depth], 0, p.rank[first]
    if waits:
        row[0], count = NONE - rank, 1
    fixed = count
    for body in p.bodies[p.bodies_first[rank] : p.bodies_first[rank + 1]]:
        if not _can_run(p, tree, body) or (waits and tree.barred[depth, body]):
            continue
        if not waits and body != first and head[body, at.done[body]] >= ends:
            continue
        if tree.held[rank] + memory.during[body] > memory.room[rank]:
            continue
        place = count
        while place > fixed and _left(p, tail, at, row[place - 1]) > _left(p, tail, at, body):
            row[place] = row[place - 1]
            place -= 1
        row[place] = body
        count += 1
    return count


@inner()
def _left(p: Problem, tail: Array, at: Clocks, body: int) -> int:
    return p.run[body] + tail[body, at.done[body]]  # type: ignore[no-any-return]


@inner()
def _too_long(p: Problem, at: Clocks, head: Array, tail: Array, below: int) -> bool:
    """Whether no order from here on is shorter than `below`."""
    for body in range(len(p.run)):
        for mb in range(at.done[body], p.mbs):
            if head[body, mb] + p.run[body] + tail[body, mb] >= below:
                return True
    for rank in range(len(at.clock)):
        if max(at.clock[rank], rank_bound(p, at, head, tail, rank)) >= below:
            return True
    return False


@inner()
def _is_known(p: Problem, tree: Tree, depth: int) -> bool:
    """Whether the same runs have been scheduled before, with nothing ending later.

    What follows can then only be as good as what followed there. States in which a rank waits are
    not remembered, because not everything can follow them.
    """
    at, pool, new = tree.at, tree.pool, tree.state[USED]
    bodies = len(p.run)
    if new + 1 + bodies + len(at.clock) + len(p.src) * p.mbs > len(pool):
        return False
    overwrite(pool[new + 1 : new + 1 + bodies], at.done)
    size = 1 + bodies
    for clock in at.clock:
        pool[new + size] = clock
        size += 1
    for edge in range(len(p.src)):
        clock = at.clock[p.rank[p.dst[edge]]]
        for mb in range(at.done[p.dst[edge]], at.done[p.src[edge]]):
            pool[new + size] = max(clock, at.arrive[edge, mb])
            size += 1
    slot = digest_of(at.done) % np.uint64(len(tree.bucket))
    other = tree.bucket[slot]
    while other != NONE:
        if _no_better(pool[new + 1 : new + size], pool[other + 1 : other + size], bodies):
            return True
        other = pool[other]
    if not largest(tree.barred[depth if len(tree.barred) > 1 else 0]):
        pool[new], tree.bucket[slot] = tree.bucket[slot], new
        tree.state[USED] = new + size
    return False


@inner()
def _no_better(mine: Array, known: Array, bodies: int) -> bool:
    """Whether the runs are the same, and none of the times is earlier."""
    for i in range(len(mine)):
        if mine[i] < known[i] or (i < bodies and mine[i] != known[i]):
            return False
    return True


@inner()
def _write_order(p: Problem, tree: Tree, depth: int) -> None:
    fill = p.bodies_first[:-1] * p.mbs
    for body in tree.picked[:depth]:
        if body >= 0:
            tree.order[fill[p.rank[body]]] = body
            fill[p.rank[body]] += 1


# -- lower bounds --------------------------------------------------------------------------------


@compiled(nogil=True)
def heads(p: Problem, c: Clocks, start: Array, head: Array) -> None:
    """Write the earliest begin of every run that is not done, and the start of those that are.

    This and the other bounds are for problems without contention and overheads, see `relaxed`.
    """
    for mb in range(p.mbs):
        for body in range(len(p.run)):
            if c.done[body] > mb:
                head[body, mb] = start[body, mb]
                continue
            begin = c.clock[p.rank[body]]
            if mb:
                begin = max(begin, head[body, mb - 1] + p.run[body])
            for i in range(p.before_first[body], p.before_first[body + 1]):
                before = p.before[i]
                begin = max(begin, head[before, mb] + p.run[before])
            for i in range(p.in_first[body], p.in_first[body + 1]):
                edge = p.incoming[i]
                source = p.src[edge]
                begin = max(begin, head[source, mb] + p.run[source] + p.latency[edge])
            head[body, mb] = begin


@compiled(nogil=True)
def tails(p: Problem) -> Array:
    """Return the least time from the end of every run to the end of all."""
    tail = np.zeros((len(p.run), p.mbs), np.int64)
    for mb in range(p.mbs - 1, -1, -1):
        for body in range(len(p.run) - 1, -1, -1):
            if mb < p.mbs - 1:
                tail[body, mb] = max(tail[body, mb], p.run[body] + tail[body, mb + 1])
            left = p.run[body] + tail[body, mb]
            for i in range(p.before_first[body], p.before_first[body + 1]):
                tail[p.before[i], mb] = max(tail[p.before[i], mb], left)
            for i in range(p.in_first[body], p.in_first[body + 1]):
                edge = p.incoming[i]
                source = p.src[edge]
                tail[source, mb] = max(tail[source, mb], p.latency[edge] + left)
    return tail


@compiled(nogil=True)
def rank_bound(p: Problem, c: Clocks, head: Array, tail: Array, rank: int) -> int:
    """Return a bound on the end of all runs: when a rank can have done its jobs."""
    mine = p.bodies[p.bodies_first[rank] : p.bodies_first[rank + 1]]
    jobs = np.empty((3, len(mine) * p.mbs), np.int64)
    count = 0
    for body in mine:
        for mb in range(c.done[body], p.mbs):
            jobs[0, count], jobs[1, count] = head[body, mb], p.run[body]
            jobs[2, count] = tail[body, mb]
            count += 1
    return int(one_machine(jobs[0, :count], jobs[1, :count], jobs[2, :count]))


@inner()
def one_machine(head: Array, length: Array, tail: Array) -> int:
    """Return the least time in which one machine can do these jobs; 0 without jobs.

    A job begins at its head or later, and its tail must pass after it. Running the job of the
    longest tail first, interrupting others, is optimal (Jackson's preemptive schedule, Carlier
    1982).
    """
    left, todo = length.copy(), len(length)
    now = end = 0
    while todo:
        best, soon = NONE, NEVER
        for job in range(len(left)):
            if left[job] < 0:
                continue
            if head[job] > now:
                soon = min(soon, head[job])
            elif best == NONE or tail[job] > tail[best]:
                best = job
        if best == NONE:
            now = soon
            continue
        step = min(left[best], soon - now)
        now += step
        left[best] -= step
        if left[best] == 0:
            left[best] = NONE
            todo -= 1
            end = max(end, now + tail[best])
    return end
