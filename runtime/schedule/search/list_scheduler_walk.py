"""Kernels of the list scheduler, which time, build and improve orders of runs; see problem.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.compiled import compiled, inner, largest, overwrite
from runtime.schedule.search.problem import NEVER, NONE, Memory, Problem

Array = npt.NDArray[Any]


class Clocks(NamedTuple):
    """The progress of a walk."""

    #: By body: its runs so far.
    done: Array
    #: [edge, micro-batch]: when the message arrives; NEVER if it is not sent.
    arrive: Array
    #: By link: until when it is busy.
    busy: Array
    #: By rank.
    clock: Array


@compiled(nogil=True)
def clocks(p: Problem) -> Clocks:
    """Return the clocks before the first run."""
    return Clocks(
        np.zeros(len(p.run), np.int64),
        np.full((len(p.src), p.mbs), NEVER),
        np.zeros(len(p.src), np.int64),
        np.zeros(len(p.bodies_first) - 1, np.int64),
    )


@inner()
def begin_of(p: Problem, c: Clocks, body: int, now: int) -> tuple[int, int]:
    """Return when a rank that is free at `now` can begin the body's next run, and why then.

    The reason is the last edge that the run waits for, or NONE. The time is NEVER if the source of
    that edge, or (NONE) another body of the same rank, must run first.
    """
    mb, why = c.done[body], NONE
    for i in range(p.before_first[body], p.before_first[body + 1]):
        if c.done[p.before[i]] <= mb:
            return NEVER, NONE
    for i in range(p.in_first[body], p.in_first[body + 1]):
        edge = p.incoming[i]
        there = c.arrive[edge, mb]
        if there == NEVER:
            return NEVER, edge
        now += p.overhead
        if there > now:
            now, why = there, edge
        now += p.copy[edge]
    return now, why


@inner()
def do_run(p: Problem, c: Clocks, body: int, begin: int) -> None:
    """Run a body for its next micro-batch and send what it makes."""
    mb, now = c.done[body], begin + p.overhead + p.run[body]
    for i in range(p.out_first[body], p.out_first[body + 1]):
        edge = p.outgoing[i]
        now += p.overhead
        sent = max(now, c.busy[p.link[edge]]) + p.transfer[edge]
        c.busy[p.link[edge]] = sent
        c.arrive[edge, mb] = sent + p.latency[edge]
    c.clock[p.rank[body]] = now + p.overhead
    c.done[body] = mb + 1


@compiled(nogil=True)
def replay(p: Problem, order: Array, start: Array, cause: Array) -> int:
    """Return the length of an order; NEVER if it cannot end.

    Writes `start` [body, micro-batch] and, likewise, `cause`: the last edge that the run waited
    for, or NONE.
    """
    c = clocks(p)
    ranks = len(c.clock)
    at = p.bodies_first[:-1] * p.mbs
    wants = np.full(ranks, NONE)
    ready = np.arange(ranks)
    count, left = ranks, len(order)
    while count:
        count -= 1
        rank = ready[count]
        end = p.bodies_first[rank + 1] * p.mbs
        while at[rank] < end:
            body = order[at[rank]]
            begin, why = begin_of(p, c, body, c.clock[rank])
            if begin == NEVER:
                wants[rank] = why
                break
            mb = c.done[body]
            start[body, mb], cause[body, mb] = begin, why
            do_run(p, c, body, begin)
            at[rank] += 1
            left -= 1
            for i in range(p.out_first[body], p.out_first[body + 1]):
                to = p.rank[p.dst[p.outgoing[i]]]
                if wants[to] == p.outgoing[i]:
                    wants[to] = NONE
                    ready[count] = to
                    count += 1
    return NEVER if left else largest(c.clock)


# -- building ------------------------------------------------------------------------------------


@compiled(nogil=True)
def build(p: Problem, priority: Array, patience: float, memory: Memory) -> Array:
    """Return an order in which, of what can run soon, the run of the highest priority comes next.

    The rank whose next run can end first is served first. Candidates are those of its runs that
    can begin by then; with a patience below 1, only those in the first part of the time until then.

    Args:
        priority: [body, micro-batch].
    """
    c = clocks(p)
    ranks = len(c.clock)
    order = np.empty(len(p.run) * p.mbs, np.int64)
    at, held = p.bodies_first[:-1] * p.mbs, np.zeros(ranks, np.int64)
    begins = np.full(len(p.run), NEVER)
    first, ends = np.full(ranks, NEVER), np.full(ranks, NEVER)
    stale = np.ones(ranks, np.bool_)
    for _ in range(len(order)):
        for rank in range(ranks):
            if stale[rank]:
                first[rank], ends[rank] = _survey(p, c, memory, rank, held[rank], begins)
                stale[rank] = False
        rank = int(np.argmin(ends))
        assert ends[rank] < NEVER
        last = first[rank] + np.int64(patience * (ends[rank] - first[rank]))
        best = NONE
        for body in p.bodies[p.bodies_first[rank] : p.bodies_first[rank + 1]]:
            if begins[body] <= last and (
                best == NONE or priority[body, c.done[body]] > priority[best, c.done[best]]
            ):
                best = body
        held[rank] += change_of(memory, best, c.done[best])
        do_run(p, c, best, begins[best])
        order[at[rank]] = best
        at[rank] += 1
        stale[rank] = True
        for i in range(p.out_first[best], p.out_first[best + 1]):
            stale[p.rank[p.dst[p.outgoing[i]]]] = True
    return order


@inner()
def _survey(
    p: Problem, c: Clocks, memory: Memory, rank: int, held: int, begins: Array
) -> tuple[int, int]:
    """Write when the next runs of a rank's bodies can begin; return the first begin and end."""
    first, end = NEVER, NEVER
    for body in p.bodies[p.bodies_first[rank] : p.bodies_first[rank + 1]]:
        begins[body] = NEVER
        if c.done[body] < p.mbs:
            begin, _ = begin_of(p, c, body, c.clock[rank])
            if begin < NEVER and _fits(p, c, memory, body, held):
                begins[body] = begin
                first, end = min(first, begin), min(end, begin + p.run[body])
    return first, end


@inner()
def _fits(p: Problem, c: Clocks, memory: Memory, body: int, held: int) -> bool:
    """Whether the rank has room to run this and then to end all that it has begun, oldest first.

    So the ranks never stop before the end. Of the oldest micro-batch that is not done, take the
    body of the lowest number: all that it needs has run. If its rank has begun the micro-batch,
    there was room for this body when the rank's last run was admitted; if not, the rank holds
    nothing, as it begins micro-batches in order. Room for one after the other is enough.
    """
    rank, new = p.rank[body], c.done[body]
    room = memory.room[rank]
    if room == NEVER:
        return True
    if held + memory.during[body] > room:
        return False
    held += change_of(memory, body, new)
    mine = p.bodies[p.bodies_first[rank] : p.bodies_first[rank + 1]]
    oldest, newest = new, new
    for other in mine:
        oldest, newest = min(oldest, c.done[other]), max(newest, c.done[other] - 1)
    for mb in range(oldest, newest + 1):
        for other in mine:
            if c.done[other] <= mb and not (other == body and mb == new):
                if held + memory.during[other] > room:
                    return False
                held += change_of(memory, other, mb)
    return True


@inner()
def change_of(memory: Memory, body: int, mb: int) -> int:
    """Return by how much a run changes what is held."""
    more = memory.waiting[mb + 1] - memory.waiting[mb]
    return memory.after[body] + memory.sums[body] * more  # type: ignore[no-any-return]


@compiled(nogil=True)
def peak(memory: Memory, runs: Array, done: Array) -> int:
    """Return the most that a rank holds with these runs. done: by body, zeros to write on."""
    held = most = 0
    for body in runs:
        most = max(most, held + memory.during[body])
        held += change_of(memory, body, done[body])
        done[body] += 1
    return max(most, held)


# -- improving -----------------------------------------------------------------------------------


@compiled(nogil=True)
def improve(p: Problem, memory: Memory, order: Array, tries: int, target: int) -> int:
    """Shorten an order in place by a tabu search, and return its length.

    A step moves one run to the begin or the end of its block, that is runs of one rank that follow
    each other on the critical path: only then can the path get shorter. The best move is made even
    if it lengthens the schedule, unless it leads to an earlier order. No rank holds more than its
    room, or than it did at first.

    Args:
        tries: The number of moves to evaluate.
        target: A length that is good enough.
    """
    start = np.zeros((len(p.run), p.mbs), np.int64)
    cause = np.zeros((len(p.run), p.mbs), np.int64)
    room = memory.room.copy()
    for rank in range(len(room)):
        runs = order[p.bodies_first[rank] * p.mbs : p.bodies_first[rank + 1] * p.mbs]
        if room[rank] < NEVER:
            room[rank] = max(room[rank], peak(memory, runs, np.zeros(len(p.run), np.int64)))
    kept = Memory(room, memory.during, memory.after, memory.sums, memory.waiting)
    current = order.copy()
    length: int = replay(p, current, start, cause)
    seen = np.zeros(tries + 1, np.uint64)
    left, steps = tries, 0
    while left > 0 and length > target:
        replay(p, current, start, cause)
        seen[steps] = digest_of(current)
        steps += 1
        path = _path(p, current, start, cause)
        used, came, to, new = _best_move(p, kept, current, path, seen[:steps], left)
        left -= used
        if came == NONE:
            break
        _move(current, came, to)
        if new < length:
            length = new
            overwrite(order, current)
    return length


@inner()
def _path(p: Problem, order: Array, start: Array, cause: Array) -> Array:
    """Return the places in the order of the critical path's runs, from the last to the first."""
    place, mb_at = np.empty(start.shape, np.int64), np.empty(len(order), np.int64)
    done = np.zeros(len(p.run), np.int64)
    at, latest = 0, NONE
    for i in range(len(order)):
        body = order[i]
        mb_at[i] = done[body]
        place[body, done[body]] = i
        sends = p.out_first[body + 1] - p.out_first[body]
        end = start[body, done[body]] + (2 + sends) * p.overhead + p.run[body]
        done[body] += 1
        if end > latest:
            at, latest = i, end
    path = np.empty(len(order), np.int64)
    for count in range(len(order)):
        path[count] = at
        body, mb = order[at], mb_at[at]
        edge = cause[body, mb]
        if edge != NONE:
            at = place[p.src[edge], mb]
        elif at > p.bodies_first[p.rank[body]] * p.mbs:
            at -= 1
        else:
            return path[: count + 1]
    return path


@inner()
def _best_move(
    p: Problem, memory: Memory, order: Array, path: Array, seen: Array, left: int
) -> tuple[int, int, int, int]:
    """Return the number of moves evaluated, and of the best its source, target and length."""
    start = np.empty((len(p.run), p.mbs), np.int64)
    cause = np.empty((len(p.run), p.mbs), np.int64)
    used, best = 0, (NONE, NONE, NEVER, NEVER)
    high = 0  # of the block, on the path; so is low
    while high < len(path):
        low = high
        rank = p.rank[order[path[high]]]
        while low + 1 < len(path) and p.rank[order[path[low + 1]]] == rank:
            low += 1
        for came in range(path[low], path[high] + 1):
            for to in (path[low], path[high]):
                step = 1 if to > came else -1
                if to == came or order[came + step] == order[came]:
                    continue
                if used == left:
                    return used, best[0], best[1], best[2]
                used += 1
                _move(order, came, to)
                if _has_room(p, memory, order, rank):
                    length = replay(p, order, start, cause)
                    score = start.sum() if length < NEVER else NEVER
                    if (length, score) < best[2:] and not (seen == digest_of(order)).any():
                        best = came, to, length, score
                _move(order, to, came)
        high = low + 1
    return used, best[0], best[1], best[2]


@inner()
def _has_room(p: Problem, memory: Memory, order: Array, rank: int) -> bool:
    if memory.room[rank] == NEVER:
        return True
    runs = order[p.bodies_first[rank] * p.mbs : p.bodies_first[rank + 1] * p.mbs]
    return bool(peak(memory, runs, np.zeros(len(p.run), np.int64)) <= memory.room[rank])


@inner()
def _move(order: Array, came: int, to: int) -> None:
    body, step = order[came], 1 if to > came else -1
    for i in range(came, to, step):
        order[i] = order[i + step]
    order[to] = body


@inner()
def digest_of(order: Array) -> np.uint64:
    """Return a hash of an order; two orders collide with a chance of one in 2**64."""
    digest = np.uint64(0)
    for body in order:
        digest = (digest ^ np.uint64(body)) * np.uint64(0x9E3779B97F4A7C15)
        digest ^= digest >> np.uint64(29)
    return digest
