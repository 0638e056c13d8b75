"""The memory of bodies in outline: compiled loops over the values of a network."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.compiled import compiled, inner
from runtime.schedule.search.problem import Problem

Array = npt.NDArray[Any]

FIXED, FED, MADE, GRADIENT = range(4)  # kinds of roots
MOST_SETS = 4  # stages of a rank of which all sets may recompute


class Roots(NamedTuple):
    """Values that lie in memory of their own, in run order; int64."""

    nbytes: Array
    #: FIXED: the array of a parameter, FED: data, MADE by a forward call, or a GRADIENT.
    kind: Array
    #: The item that makes it, and its node's place in the graph.
    item: Array
    place: Array
    #: The root whose memory its node may write over; -1: none.
    over: Array
    #: Rows by root: the readers' items, places, and the roots that forward readers make, or -1.
    starts: Array
    reader: Array
    read_at: Array
    making: Array


class Bodies(NamedTuple):
    """The bodies of a placement; int64."""

    #: By item.
    of_item: Array
    #: By body: its stage, its phase (0: forward, 1: backward, 2: the second one) and its place
    #: among bodies that make and read values.
    stage: Array
    phase: Array
    turn: Array
    #: By stage: its rank, its backward body and its second one; -1: none.
    rank: Array
    back: Array
    weight: Array


@compiled(nogil=True)
def body_bytes(roots: Roots, bodies: Bodies, again: bool, places: int, copy: Array) -> Array:
    """Estimate the bytes of bodies: [top, kept, sending] of BodyMemory, by body.

    Args:
        again: whether all stages run their forward nodes again.
        places: the number of nodes.
        copy: written: the body that makes a root again; -1: none.
    """
    count, stages = len(roots.nbytes), len(bodies.rank)
    rows = np.zeros((3, len(bodies.stage)), np.int64)
    copy[:] = -1
    if again:
        _find_copies(roots, bodies, copy)
    pieces = np.zeros((4, 2 * count), np.int64)  # of scratch: body, begin, end, bytes
    piece_of = np.full(count, -1, np.int64)
    used = 0
    last = np.full(stages, -1, np.int64)  # the last body of each stage that reads a message
    for j in range(count):
        n, own = roots.nbytes[j], bodies.of_item[roots.item[j]]
        last[:] = -1
        far, end, sent, copy_far, copy_end = _read(roots, bodies, j, copy, places, last)
        for s in range(stages):
            if last[s] >= 0:
                rows[1, last[s]] -= n
        if roots.kind[j] != FIXED and far == own and not sent:
            over = piece_of[roots.over[j]] if roots.over[j] >= 0 else -1
            if over >= 0 and pieces[0, over] == own and pieces[2, over] == roots.place[j]:
                pieces[2, over] -= 1
            piece_of[j] = used
            used = _add_piece(pieces, used, own, roots.place[j], end, n)
        elif roots.kind[j] != FIXED:
            _keep(rows, own, far, n)
            if sent and far == own:
                rows[2, own] += n
        if copy[j] >= 0 and copy_far == copy[j]:
            used = _add_piece(pieces, used, copy_far, roots.place[j] - places, copy_end, n)
        elif copy[j] >= 0:
            _keep(rows, copy[j], copy_far, n)
    rows[0] += _scratch(pieces[:, :used], len(bodies.stage), places)
    return rows


@inner()
def _add_piece(pieces: Array, used: int, body: int, begin: int, end: int, nbytes: int) -> int:
    """Add a piece of scratch; return how many there are."""
    pieces[0, used], pieces[1, used], pieces[2, used], pieces[3, used] = body, begin, end, nbytes
    return used + 1


@inner()
def _keep(rows: Array, first: int, last: int, nbytes: int) -> None:
    """Hold bytes from one body to another."""
    rows[0, first] += nbytes
    rows[1, first] += nbytes
    rows[1, last] -= nbytes


@inner()
def _read(
    roots: Roots, bodies: Bodies, j: int, copy: Array, places: int, last: Array
) -> tuple[int, int, bool, int, int]:
    """Find out who reads a root.

    Args:
        last: by stage; written: the last body there that reads a message with it.

    Returns:
        the last body of its rank that reads it, the last place where it is read there, whether it
        is sent, and the last body and place that read the copy of it that is made again.
    """
    stage = bodies.stage[bodies.of_item[roots.item[j]]]
    far, end, sent = bodies.of_item[roots.item[j]], roots.place[j], False
    copy_far, copy_end = copy[j], roots.place[j] - places
    for at in range(roots.starts[j], roots.starts[j + 1]):
        k = roots.making[at]
        for turn in range(2):
            b, place = bodies.of_item[roots.reader[at]], roots.read_at[at]
            if turn == 1:
                if k < 0 or copy[k] < 0:
                    break
                b = copy[k]
                place -= places  # before all others
            s = bodies.stage[b]
            if copy[j] >= 0 and s == stage and bodies.phase[b] > 0:
                if bodies.turn[b] > bodies.turn[copy_far]:
                    copy_far = b
                copy_end = max(copy_end, place)
            elif bodies.rank[s] == bodies.rank[stage]:
                if bodies.turn[b] > bodies.turn[far]:
                    far = b
                end = max(end, place)
            else:
                sent = True
                if last[s] < 0 or bodies.turn[b] > bodies.turn[last[s]]:
                    last[s] = b
    return far, end, sent, copy_far, copy_end


@inner()
def _find_copies(roots: Roots, bodies: Bodies, copy: Array) -> None:
    """Find the values that backward phases make again, and the bodies that do."""
    for j in range(len(copy) - 1, -1, -1):
        if roots.kind[j] != MADE:
            continue
        stage = bodies.stage[bodies.of_item[roots.item[j]]]
        wanted, later = False, True
        for at in range(roots.starts[j], roots.starts[j + 1]):
            b, k = bodies.of_item[roots.reader[at]], roots.making[at]
            if bodies.stage[b] != stage:
                continue
            if bodies.phase[b] > 0:
                wanted, later = True, later and bodies.phase[b] == 2
            elif k >= 0 and copy[k] >= 0:
                wanted, later = True, later and bodies.phase[copy[k]] == 2
        if wanted:
            copy[j] = bodies.weight[stage] if later or bodies.back[stage] < 0 else -1
            if copy[j] < 0:
                copy[j] = bodies.back[stage]


@inner()
def _scratch(pieces: Array, count: int, places: int) -> Array:
    """Return the most that the pieces of each body take at once."""
    after, before = np.full(2 * places + 2, -1, np.int64), np.full(2 * places + 2, -1, np.int64)
    next_end, next_begin = np.empty(pieces.shape[1], np.int64), np.empty(pieces.shape[1], np.int64)
    for i in range(pieces.shape[1]):
        begin = places + pieces[1, i]
        end = max(begin, places + pieces[2, i] + 1)
        next_begin[i], before[begin] = before[begin], i
        next_end[i], after[end] = after[end], i
    held, most = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for place in range(2 * places + 2):
        i = after[place]
        while i >= 0:
            held[pieces[0, i]] -= pieces[3, i]
            i = next_end[i]
        i = before[place]
        while i >= 0:
            held[pieces[0, i]] += pieces[3, i]
            most[pieces[0, i]] = max(most[pieces[0, i]], held[pieces[0, i]])
            i = next_begin[i]
    return most


class Bytes(NamedTuple):
    """What bodies hold, as in BodyMemory; by body, int64."""

    top: Array
    kept: Array
    sending: Array
    sums: Array


class Traffic(NamedTuple):
    """When the messages of an order come, and when they are known to have arrived."""

    #: [edge, micro-batch]: the run of the receiving rank before which it is received.
    taken: Array
    #: [body, micro-batch]: the run of its rank before which what it sent is freed.
    freed: Array


@compiled(nogil=True)
def traffic_of(p: Problem, order: Array) -> Traffic:
    """Find when messages are received and freed, as runtime.schedule.lowering places both.

    Args:
        order: the bodies that all ranks run.
    """
    bodies, edges = len(p.run), len(p.src)
    at = np.zeros((bodies, p.mbs), np.int64)
    ends = np.zeros(len(p.bodies_first) - 1, np.int64)
    done = np.zeros(bodies, np.int64)
    for rank in range(len(ends)):
        first, last = p.bodies_first[rank] * p.mbs, p.bodies_first[rank + 1] * p.mbs
        ends[rank] = last - first
        for i in range(first, last):
            at[order[i], done[order[i]]] = i - first
            done[order[i]] += 1
    taken, freed = np.zeros((edges, p.mbs), np.int64), np.zeros((bodies, p.mbs), np.int64)
    for e in range(edges):  # messages of a channel come in the order in which they are sent
        for mb in range(p.mbs):
            taken[e, mb] = at[p.dst[e], mb]
    for e in range(edges):
        a, b = p.rank[p.src[e]], p.rank[p.dst[e]]
        for mb in range(p.mbs):
            sent, least = at[p.src[e], mb], at[p.dst[e], mb]
            for other in range(edges):
                if p.rank[p.src[other]] == a and p.rank[p.dst[other]] == b:
                    for m in range(p.mbs):
                        if at[p.src[other], m] >= sent:
                            least = min(least, at[p.dst[other], m])
            taken[e, mb] = least
    for e in range(edges):
        a, b = p.rank[p.src[e]], p.rank[p.dst[e]]
        for mb in range(p.mbs):
            place = ends[a]
            for other in range(edges):
                if p.rank[p.src[other]] == b and p.rank[p.dst[other]] == a:
                    for m in range(p.mbs):
                        if at[p.src[other], m] >= taken[e, mb]:
                            place = min(place, taken[other, m])
            freed[p.src[e], mb] = max(freed[p.src[e], mb], place, at[p.src[e], mb] + 1)
    return Traffic(taken, freed)


@inner()
def held_by(
    p: Problem, rank: int, runs: Array, rows: Bytes, traffic: Traffic, nbytes: Array, waiting: Array
) -> int:
    """Return the most that a rank holds beside what stays.

    Args:
        runs: the bodies that it runs, in order.
        nbytes: of the messages of each edge.
        waiting: waiting[n]: the partial sums after n micro-batches.
    """
    change = np.zeros(len(runs) + 2, np.int64)  # of messages, before each run
    drop = np.zeros(len(runs) + 2, np.int64)
    for e in range(len(p.dst)):
        if p.rank[p.dst[e]] == rank:
            for mb in range(p.mbs):
                change[traffic.taken[e, mb]] += nbytes[e]
    done = np.zeros(len(p.run), np.int64)
    held = most = 0
    for i in range(len(runs)):
        body = runs[i]
        mb = done[body]
        done[body] += 1
        held += change[i]
        most = max(most, held)
        held -= drop[i]
        more = rows.sums[body] * (waiting[mb + 1] - waiting[mb])
        beside = more if more > 0 and p.mbs > 1 else 0
        most = max(most, held + beside + rows.top[body])
        held += more + rows.kept[body] + rows.sending[body]
        most = max(most, held)
        drop[min(traffic.freed[body, mb], len(runs))] += rows.sending[body]
    return most


@compiled(nogil=True)
def recomputing(
    p: Problem,
    rank: int,
    order: Array,
    whole: Bytes,
    again: Bytes,
    traffic: Traffic,
    nbytes: Array,
    waiting: Array,
    stage_of: Array,
    forward: Array,
    room: int,
) -> tuple[Array, int]:
    """Choose the stages of a rank that run their forward nodes again to keep within its room.

    Args:
        order: the bodies that all ranks run.
        whole, again: what bodies hold if none recomputes, and if all do.
        nbytes, waiting: see held_by.
        stage_of: the stage of each body.
        forward: the weight of each stage; the chosen ones have the least.
        room: bytes; if no set keeps to it, the one that holds the least is chosen.

    Returns:
        by stage whether it recomputes, and the bytes that the rank holds.
    """
    runs = order[p.bodies_first[rank] * p.mbs : p.bodies_first[rank + 1] * p.mbs]
    own = np.zeros(len(forward), np.bool_)
    for body in p.bodies[p.bodies_first[rank] : p.bodies_first[rank + 1]]:
        own[stage_of[body]] = True
    stages = np.flatnonzero(own)
    best, least, weight = np.zeros(len(forward), np.bool_), -1, 0.0
    every = 1 << len(stages) if len(stages) <= MOST_SETS else len(stages) + 1
    mixed = Bytes(whole.top.copy(), whole.kept.copy(), whole.sending.copy(), whole.sums)
    for number in range(every):
        chosen, takes = np.zeros(len(forward), np.bool_), 0.0
        for i in range(len(stages)):
            if (number >> i & 1) if len(stages) <= MOST_SETS else i < number:
                chosen[stages[i]] = True
                takes += forward[stages[i]]
        if 0 <= least <= room and takes >= weight:
            continue
        for body in range(len(stage_of)):
            rows = again if chosen[stage_of[body]] else whole
            mixed.top[body], mixed.kept[body] = rows.top[body], rows.kept[body]
            mixed.sending[body] = rows.sending[body]
        held = held_by(p, rank, runs, mixed, traffic, nbytes, waiting)
        if least < 0 or held <= room or held < least:
            best, least, weight = chosen, held, takes
    return best, least
