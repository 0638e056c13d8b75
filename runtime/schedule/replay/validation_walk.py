"""Kernels of the check: walks over all instructions of all ranks, each linear in their number.

Every violation is a row (rule, rank, step, other); rule OK means that there is none. What `other`
is depends on the rule. `runtime.schedule.replay.validation` puts rows into words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from runtime.schedule.instructions import COLLECTIVE, FREE, RECV, SEND
from runtime.schedule.program import Columns

Ints = npt.NDArray[Any]
Row = tuple[int, int, int, int]

# Rules. `other` is: of TWICE the earlier step, of a run's BODY the body it needs, of RECEIVE and
# of FREE_UNSENT the edge, of FREE_ORDER the body to be freed before, of FIFO the index of the
# receive on its channel.
(
    OK,
    NO_STAGE,
    NO_EDGE,
    NO_BODY,
    NO_MICRO_BATCH,
    WRONG_RANK,
    WITHIN_RANK,
    TWICE,
    BODY,
    RECEIVE,
    SEND_EARLY,
    SEND_LATE,
    FREE_EARLY,
    FREE_UNSENT,
    FREE_ORDER,
    FIFO,
) = range(16)
UNBOUNDED = -1  # the capacity of channels that deliver at once


class Net(NamedTuple):
    """Of `Facts`, what the kernels walk; lists are CSR."""

    rank_of: Ints
    body_at: Ints
    body_stage: Ints
    before_start: Ints
    before: Ints
    in_start: Ints
    incoming: Ints
    out_start: Ints
    outgoing: Ints
    edge_src: Ints
    channel: Ints
    source: Ints
    target: Ints
    exchange: Ints


class Steps(NamedTuple):
    """Where in its program everything stands, or -1.

    run, free: by body * mbs + micro-batch. send, recv: by tag * mbs + micro-batch. update: by
    stage.
    """

    run: Ints
    free: Ints
    send: Ints
    recv: Ints
    update: Ints


class Tape(NamedTuple):
    """All programs one after the other.

    start: rank -> its first instruction, one more at the end. code: as in a program. item: the
    number of what is done: an index into the array of Steps, or a collective's tag.
    """

    start: Ints
    code: Ints
    item: Ints


class State(NamedTuple):
    """How far the programs have come.

    at: rank -> place on the tape. posted, taken: messages of a channel. waits_for: rank -> the
    channel whose messages it waits for, or -1. wanted: how many of them must be posted, or taken
    if it is a free that waits. unposted: exchange * mbs + micro-batch -> its messages that are not
    posted; who waits for that to be 0 waits for -2 - exchange * mbs - micro-batch.
    """

    at: Ints
    posted: Ints
    taken: Ints
    waits_for: Ints
    wanted: Ints
    unposted: Ints


# Kernels take arrays out of their tuples before they loop, because it counts references: done in
# the loop, it takes ten times as long as all the rest.


@njit(cache=True, nogil=True)
def read(rank: int, program: Columns, net: Net, mbs: int, steps: Steps, tape: Tape) -> Row:
    """Put a program on the tape; the first instruction that is not of this rank, or there twice."""
    codes, ats, batches, segments = program
    rank_of, body_at, channels, sources, targets = (
        net.rank_of,
        net.body_at,
        net.channel,
        net.source,
        net.target,
    )
    run, free, send, recv, update = steps
    start, tape_code, tape_item = tape
    for step in range(len(codes)):
        code, at, mb = codes[step], ats[step], batches[step]
        item, earlier = at, -1
        if code < SEND:
            rule, item = _number_body(rank, code, at, mb, segments[step], rank_of, body_at, mbs)
            if rule == OK and code < FREE:
                earlier = _stamp(run, item, step)
            elif rule == OK:
                earlier = _stamp(free, item, step)
        elif code == SEND:
            rule, item = _number_message(rank, at, mb, channels, sources, mbs)
            if rule == OK:
                earlier = _stamp(send, item, step)
        elif code == RECV:
            rule, item = _number_message(rank, at, mb, channels, targets, mbs)
            if rule == OK:
                earlier = _stamp(recv, item, step)
        elif code == COLLECTIVE:
            rule = OK
        else:
            rule = _misplaced(rank, at, rank_of)
            if rule == OK:
                earlier = _stamp(update, item, step)
        if rule != OK:
            return rule, rank, step, 0
        if earlier >= 0:
            return TWICE, rank, step, earlier
        tape_code[start[rank] + step], tape_item[start[rank] + step] = code, item
    return OK, rank, 0, 0


@njit(cache=True, nogil=True)
def _stamp(table: Ints, item: int, step: int) -> int:
    """Put down the step; the one that was there, or -1."""
    earlier: int = table[item]
    table[item] = step
    return earlier


@njit(cache=True, nogil=True)
def _misplaced(rank: int, stage: int, rank_of: Ints) -> int:
    if not 0 <= stage < len(rank_of):
        return NO_STAGE
    return OK if rank_of[stage] == rank else WRONG_RANK


@njit(cache=True, nogil=True)
def _number_body(
    rank: int, code: int, stage: int, mb: int, segment: int, rank_of: Ints, body_at: Ints, mbs: int
) -> tuple[int, int]:
    rule = _misplaced(rank, stage, rank_of)
    if rule != OK:
        return rule, 0
    if not 0 <= segment < body_at.shape[2]:
        return NO_BODY, 0
    body = body_at[code % FREE, stage, segment]
    if body < 0:
        return NO_BODY, 0
    return OK if 0 <= mb < mbs else NO_MICRO_BATCH, body * mbs + mb


@njit(cache=True, nogil=True)
def _number_message(
    rank: int, tag: int, mb: int, channels: Ints, ends: Ints, mbs: int
) -> tuple[int, int]:
    if not 0 <= tag < len(channels):
        return NO_EDGE, 0
    if channels[tag] < 0:
        return WITHIN_RANK, 0
    if ends[channels[tag]] != rank:
        return WRONG_RANK, 0
    return OK if 0 <= mb < mbs else NO_MICRO_BATCH, tag * mbs + mb


@njit(cache=True, nogil=True)
def order(tape: Tape, net: Net, mbs: int, steps: Steps) -> Row:
    """The first instruction that comes before one of its rank that it needs.

    Every instruction that there must be is there.
    """
    start, codes, items = tape
    run, free, send, recv, _ = steps
    body_stage, edge_src = net.body_stage, net.edge_src
    before_start, before = net.before_start, net.before
    in_start, incoming, out_start, outgoing = (
        net.in_start,
        net.incoming,
        net.out_start,
        net.outgoing,
    )
    latest = np.full(len(net.rank_of) * mbs, -1, np.int32)  # of stage and micro-batch: its last run
    for rank in range(len(start) - 1):
        for step in range(start[rank + 1] - start[rank]):
            code, item = codes[start[rank] + step], items[start[rank] + step]
            if code > SEND:
                continue
            of, mb = item // mbs, item % mbs
            if code < FREE:
                other = _later(run, before_start, before, of, mb, mbs, step)
                if other >= 0:
                    return BODY, rank, step, other
                other = _later(recv, in_start, incoming, of, mb, mbs, step)
                if other >= 0:
                    return RECEIVE, rank, step, other
                of_stage = body_stage[of] * mbs + mb
                previous = latest[of_stage]
                if previous >= 0 and free[previous] > free[item]:
                    return FREE_ORDER, rank, free[item], previous // mbs
                latest[of_stage] = item
            elif code < SEND:
                if run[item] > step:
                    return FREE_EARLY, rank, step, of
                other = _later(send, out_start, outgoing, of, mb, mbs, step)
                if other >= 0:
                    return FREE_UNSENT, rank, step, other
            elif run[edge_src[of] * mbs + mb] > step:
                return SEND_EARLY, rank, step, edge_src[of]
            else:
                source = edge_src[of] * mbs + mb
                now = latest[body_stage[edge_src[of]] * mbs + mb]
                if now != source:
                    return SEND_LATE, rank, step, now // mbs
    return OK, 0, 0, 0


@njit(cache=True, nogil=True)
def _later(table: Ints, start: Ints, needs: Ints, of: int, mb: int, mbs: int, step: int) -> int:
    """What of a body's needs (a list of Net) comes after this step; -1 if nothing."""
    for at in range(start[of], start[of + 1]):
        need: int = needs[at]
        if table[need * mbs + mb] > step:
            return need
    return -1


@njit(cache=True, nogil=True)
def fifo(tape: Tape, net: Net, mbs: int, sent: Ints) -> Row:
    """The first receive of another message than is next on its channel.

    sent: written; tag * mbs + micro-batch -> the index of the message on its channel.
    """
    start, codes, items = tape
    channels = net.channel
    count = np.zeros(len(net.source), np.int32)
    for place in range(len(codes)):
        if codes[place] == SEND:
            channel = channels[items[place] // mbs]
            sent[items[place]] = count[channel]
            count[channel] += 1
    count[:] = 0
    for rank in range(len(start) - 1):
        for place in range(start[rank], start[rank + 1]):
            if codes[place] == RECV:
                channel = channels[items[place] // mbs]
                if sent[items[place]] != count[channel]:
                    return FIFO, rank, place - start[rank], count[channel]
                count[channel] += 1
    return OK, 0, 0, 0


@njit(cache=True, nogil=True)
def walk(tape: Tape, net: Net, mbs: int, sent: Ints, capacity: int, state: State) -> None:
    """Go on with every program until all are at their ends or none can go on.

    What is done is never undone and never keeps another rank from going on, so the ranks may go
    on in any order: where they stop is always the same.
    """
    start, codes, items = tape
    at, posted, taken, waits_for, wanted, unposted = state
    channels, sources, targets = net.channel, net.source, net.target
    out_start, outgoing, exchange = net.out_start, net.outgoing, net.exchange
    count = ranks = len(start) - 1
    ready = np.arange(ranks)[::-1].copy()  # a stack; every rank is on it at most once
    gathered = 0  # ranks that stand at their next collective
    while count:
        count -= 1
        rank = ready[count]
        waits_for[rank] = -1
        while at[rank] < start[rank + 1]:
            code, item = codes[at[rank]], items[at[rank]]
            if code == COLLECTIVE:
                gathered += 1
                if gathered < ranks:
                    break
                gathered = 0
                count = _let_on(rank, at, ready)
                continue
            if code == SEND:
                count = _post(
                    item,
                    mbs,
                    channels,
                    targets,
                    exchange,
                    posted,
                    unposted,
                    waits_for,
                    wanted,
                    ready,
                    count,
                )
            elif code == RECV:
                channel = channels[item // mbs]
                joined = exchange[channel] * mbs + item % mbs
                if joined >= 0 and unposted[joined]:
                    waits_for[rank] = -2 - joined
                    break
                if taken[channel] == posted[channel]:
                    waits_for[rank], wanted[rank] = channel, posted[channel] + 1
                    break
                taken[channel] += 1
                count = _wake(
                    sources[channel], channel, taken[channel], waits_for, wanted, ready, count
                )
            elif FREE <= code < SEND and capacity != UNBOUNDED:
                tag = _undelivered(
                    item, mbs, out_start, outgoing, channels, exchange, sent, taken, capacity
                )
                if tag >= 0:
                    needed = sent[tag * mbs + item % mbs] - capacity + 1
                    waits_for[rank], wanted[rank] = channels[tag], needed
                    break
            at[rank] += 1


@njit(cache=True, nogil=True)
def _post(
    item: int,
    mbs: int,
    channels: Ints,
    targets: Ints,
    exchange: Ints,
    posted: Ints,
    unposted: Ints,
    waits_for: Ints,
    wanted: Ints,
    ready: Ints,
    count: int,
) -> int:
    """Post a message; how many ranks are ready then."""
    channel = channels[item // mbs]
    posted[channel] += 1
    if exchange[channel] < 0:
        return _wake(targets[channel], channel, posted[channel], waits_for, wanted, ready, count)
    joined = exchange[channel] * mbs + item % mbs
    unposted[joined] -= 1
    for rank in range(len(waits_for) if unposted[joined] == 0 else 0):
        if waits_for[rank] == -2 - joined:
            waits_for[rank] = -1
            ready[count] = rank
            count += 1
    return count


@njit(cache=True, nogil=True)
def _wake(
    rank: int, channel: int, number: int, waits_for: Ints, wanted: Ints, ready: Ints, count: int
) -> int:
    """Make a rank ready that waits for just this number on the channel; how many are ready."""
    if waits_for[rank] == channel and wanted[rank] == number:
        ready[count] = rank
        count += 1
    return count


@njit(cache=True, nogil=True)
def _let_on(last: int, at: Ints, ready: Ints) -> int:
    """All ranks are at a collective, the last one has the turn: the others are ready again."""
    at += 1
    count = 0
    for rank in range(len(at)):
        if rank != last:
            ready[count] = rank
            count += 1
    return count


@njit(cache=True, nogil=True)
def _undelivered(
    item: int,
    mbs: int,
    out_start: Ints,
    outgoing: Ints,
    channels: Ints,
    exchange: Ints,
    sent: Ints,
    taken: Ints,
    capacity: int,
) -> int:
    """The first edge from a body whose message is not received or buffered; -1 if all are."""
    body, mb = item // mbs, item % mbs
    for place in range(out_start[body], out_start[body + 1]):
        tag: int = outgoing[place]
        if exchange[channels[tag]] >= 0:
            continue
        if sent[tag * mbs + mb] >= taken[channels[tag]] + capacity:
            return tag
    return -1
