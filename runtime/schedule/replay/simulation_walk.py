"""The simulator's walk: compiled loops over the instructions of all ranks.

A rank goes on until it must wait, and is put back on the list of ready ranks by whoever ends its
wait. No order among ranks is needed for that: what a rank does depends on messages, not on who is
looked at first. Only a link that several ranks send over makes the order of posts matter; a send
on such a link is held until every rank is held, waits or is done, and then the earliest one is
posted: whatever comes later follows from it, so it is not earlier.

A thousand ranks are visited in turn, a few instructions each; what one visit touches is kept small
and side by side, so that all of it stays in the cache.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from runtime.schedule.instructions import COLLECTIVE, FREE, RECV, REPLICAS, SEND
from runtime.schedule.program import Columns

Array = npt.NDArray[Any]

WAIT, JOINED = -1, -2
LIMIT = 1 << 62  # no clock goes beyond it; one instruction's ticks are fewer than STEP
STEP = 1 << 58
DONE, STUCK, TOO_LONG = 0, 1, 2  # how a walk ends
KIND, NAME = 4, 28  # bits of a word, see Work; the micro-batch has those above
KINDS, NAMES = (1 << KIND) - 1, (1 << NAME) - 1

RANK = np.dtype(
    [
        ("step", np.int64),
        ("last", np.int64),
        ("clock", np.int64),
        ("wants", np.int64),
        ("frees", np.int64),
    ]
)
EDGE = np.dtype([("channel", np.int64), ("transfer", np.int64), ("copy", np.int64)])
CHANNEL = np.dtype(
    [
        ("src", np.int32),
        ("dst", np.int32),
        ("link", np.int32),
        ("shared", np.int32),
        ("posted", np.int32),
        ("taken", np.int32),
        ("exchange", np.int64),
        ("first", np.int64),
        ("latency", np.int64),
    ]
)
JOIN = np.dtype([("unposted", np.int64), ("time", np.int64), ("takes", np.int64)])
MESSAGE = np.dtype([("word", np.int64), ("time", np.int64)])


class Work(NamedTuple):
    """What the walk reads and writes; all times are int64 ticks.

    words: the instructions of all ranks, int64: from the low end the code in KIND bits, the body,
    tag, collective or stage in NAME bits, the micro-batch. end: of each instruction. run: of each
    body. overhead: of an instruction. update: of each stage. meet: of the sums of replicas'
    gradients, the i-th of which begins after the last runs of
    sum_bodies[sum_first[i] : sum_first[i + 1]]. ran: body -> the end of its last run so far.

    ranks: the step to do and the one behind the last, places in `words`; the clock; wants: the
    channel that it waits to receive from, or JOINED - n for the n-th of `joins`, frees: the message
    that it waits to see taken, or WAIT.
    edges, by tag: the channel; time on the link and time of copying. channels: the link, whether
    several ranks send over it; how many messages are posted and taken; the exchange that it is for,
    or -1; where they begin among all.
    messages: the word without KIND; when it arrives and, once taken, when it was taken. busy: until
    when each link is. ready: a stack of ranks. tally: ranks ready, ranks at the collective, when
    the last of them came.

    place[tag, mb]: a message's number on its channel. Empty if all are delivered when posted, else
    a channel buffers `capacity` messages. out_first, out_tags: body -> its edges to other ranks.

    joins[exchange * mbs + mb]: messages that are not posted; when the last one was or, once all
    are, when all have arrived; what that takes.
    """

    words: Array
    end: Array
    run: Array
    overhead: int
    update: Array
    meet: Array
    ranks: Array
    edges: Array
    channels: Array
    messages: Array
    busy: Array
    ready: Array
    tally: Array
    place: Array
    capacity: int
    out_first: Array
    out_tags: Array
    joins: Array
    mbs: int
    sum_first: Array
    sum_bodies: Array
    ran: Array


@njit(cache=True, nogil=True)
def pack(
    columns: Columns,
    rank: int,
    body_at: Array,
    body_rank: Array,
    rank_of: Array,
    channel: Array,
    channel_src: Array,
    channel_dst: Array,
    words: Array,
    sends: Array,
) -> int:
    """Write a rank's words and count the sends of each channel.

    Returns the place of the first instruction that names what there is not, or that belongs to
    another rank; -1 if there is none. Micro-batches are less than the number of instructions.
    """
    code, at, mb, segment = columns
    phases, stages, segments = body_at.shape
    for i in range(len(code)):
        kind, name = np.int64(code[i]), np.int64(at[i])
        if name < 0 or mb[i] < 0 or mb[i] >= len(code):
            return i
        if kind < SEND:
            if name >= stages or segment[i] < 0 or segment[i] >= segments:
                return i
            name = np.int64(body_at[kind % phases, name, segment[i]])
            if name < 0 or body_rank[name] != rank:
                return i
        elif kind <= RECV:
            if name >= len(channel) or channel[name] < 0:
                return i
            ends = channel_src if kind == SEND else channel_dst
            if ends[channel[name]] != rank:
                return i
            if kind == SEND:
                sends[channel[name]] += 1
        elif kind != COLLECTIVE and (name >= stages or rank_of[name] != rank):
            return i
        words[i] = kind | name << KIND | np.int64(mb[i]) << (KIND + NAME)
    return -1


@njit(cache=True, nogil=True)
def walk(work: Work) -> int:
    """Do all that can be done; DONE, STUCK (ranks.step tells where) or TOO_LONG for these ticks."""
    # Local names: numba counts references at each look-up in a tuple, ten times the work itself.
    (
        words,
        end,
        run,
        overhead,
        update,
        meet,
        ranks,
        edges,
        channels,
        messages,
        busy,
        ready,
        tally,
        place,
        capacity,
        out_first,
        out_tags,
        joins,
        mbs,
        sum_first,
        sum_bodies,
        ran,
    ) = work
    ready[:], tally[0] = np.arange(len(ranks))[::-1], len(ranks)
    held = [(0, 0)]  # (time, rank) of sends on shared links, a heap
    held.pop()
    while tally[0] or held:
        turn = tally[0] == 0  # of a held send
        if turn:
            rank = heappop(held)[1]
        else:
            tally[0] -= 1
            rank = int(ready[tally[0]])
        me = ranks[rank]
        step, clock = me.step, me.clock
        while step < me.last:
            word = words[step]
            kind, name = word & KINDS, word >> KIND & NAMES
            now = done = clock + overhead
            if kind < FREE:
                ran[name] = done = now + run[name]
            elif kind < SEND:
                tags = out_tags[out_first[name] : out_first[name + 1]]
                done = _free(word, now, tags, me, edges, channels, messages, place, capacity)
            elif kind == SEND:
                if not turn and channels[edges[name].channel].shared:
                    heappush(held, (now, rank))
                    break
                turn = False
                done = _send(
                    word,
                    now,
                    mbs,
                    ranks,
                    edges,
                    channels,
                    messages,
                    busy,
                    place,
                    joins,
                    ready,
                    tally,
                )
            elif kind == RECV:
                done = _recv(
                    word, now, mbs, me, ranks, edges, channels, messages, joins, ready, tally
                )
            elif kind == COLLECTIVE:
                least = _summed(meet, sum_first, sum_bodies, ran) if name == REPLICAS else 0
                done = _meet(rank, now, least, ranks, end, ready, tally)
            else:
                done += update[name]
            if done == WAIT:
                break
            if done > LIMIT:
                return TOO_LONG
            end[step] = clock = done
            step += 1
        me.step, me.clock = step, clock
    return DONE if (ranks["step"] == ranks["last"]).all() else STUCK


@njit(cache=True, nogil=True)
def _wake(rank: int, ready: Array, tally: Array) -> None:
    ready[tally[0]] = rank
    tally[0] += 1


@njit(cache=True, nogil=True)
def _send(
    word: int,
    now: int,
    mbs: int,
    ranks: Array,
    edges: Array,
    channels: Array,
    messages: Array,
    busy: Array,
    place: Array,
    joins: Array,
    ready: Array,
    tally: Array,
) -> int:
    """Post a message; when that is done, or later than LIMIT if it arrives too late."""
    tag = word >> KIND & NAMES
    edge = edges[tag]
    channel = channels[edge.channel]
    message = messages[channel.first + channel.posted]
    message.word = word >> KIND
    channel.posted += 1
    if channel.exchange >= 0:
        number = channel.exchange * mbs + (word >> (KIND + NAME))
        return now if _join(now, number, ranks, joins, ready, tally) <= LIMIT else LIMIT + 1
    sent = max(now, busy[channel.link]) + edge.transfer
    busy[channel.link] = sent
    message.time = sent + channel.latency
    if place.size:
        place[tag, word >> (KIND + NAME)] = channel.posted - 1
    receiver = ranks[channel.dst]
    if receiver.wants == edge.channel:
        receiver.wants = WAIT
        _wake(channel.dst, ready, tally)
    return now if message.time <= LIMIT else LIMIT + 1


@njit(cache=True, nogil=True)
def _join(now: int, number: int, ranks: Array, joins: Array, ready: Array, tally: Array) -> int:
    """Post a message of an exchange; when that one ends, as far as is known."""
    join = joins[number]
    join.unposted -= 1
    join.time = max(join.time, now)
    if join.unposted:
        return int(join.time)
    join.time += join.takes
    for rank in range(len(ranks)):
        if ranks[rank].wants == JOINED - number:
            ranks[rank].wants = WAIT
            _wake(rank, ready, tally)
    return int(join.time)


@njit(cache=True, nogil=True)
def _recv(
    word: int,
    now: int,
    mbs: int,
    me: Any,
    ranks: Array,
    edges: Array,
    channels: Array,
    messages: Array,
    joins: Array,
    ready: Array,
    tally: Array,
) -> int:
    """When the message is taken, or WAIT."""
    edge = edges[word >> KIND & NAMES]
    channel = channels[edge.channel]
    joined = channel.exchange * mbs + (word >> (KIND + NAME))
    if joined >= 0 and joins[joined].unposted:
        me.wants = JOINED - joined
        return WAIT
    if channel.taken == channel.posted:
        me.wants = edge.channel
        return WAIT
    number = channel.first + channel.taken
    message = messages[number]
    if message.word != word >> KIND:
        return WAIT
    arrives = message.time if joined < 0 else joins[joined].time
    done = max(now, arrives) + edge.copy
    message.time = done
    channel.taken += 1
    sender = ranks[channel.src]
    if sender.frees == number:
        sender.frees = WAIT
        _wake(channel.src, ready, tally)
    return int(done)


@njit(cache=True, nogil=True)
def _free(
    word: int,
    now: int,
    tags: Array,
    me: Any,
    edges: Array,
    channels: Array,
    messages: Array,
    place: Array,
    capacity: int,
) -> int:
    """When the last of a body's messages is delivered, or WAIT; at once if all are when posted.

    Of a channel that buffers n messages, one is delivered when the one n before it is taken.
    """
    if not place.size:
        return now
    for tag in tags:
        channel = channels[edges[tag].channel]
        if channel.exchange >= 0:
            continue
        number = place[tag, word >> (KIND + NAME)]
        before = number - capacity
        if number < 0:
            return WAIT
        if before >= channel.taken:
            me.frees = channel.first + before
            return WAIT
        if before >= 0:
            now = max(now, messages[channel.first + before].time)
    return now


@njit(cache=True, nogil=True)
def _summed(meet: Array, sum_first: Array, sum_bodies: Array, ran: Array) -> int:
    """When the last sum ends, if all runs have been done."""
    end = 0
    for number in range(len(meet)):
        for at in range(sum_first[number], sum_first[number + 1]):
            end = max(end, ran[sum_bodies[at]])
        end += meet[number]
    return end


@njit(cache=True, nogil=True)
def _meet(
    rank: int, now: int, least: int, ranks: Array, end: Array, ready: Array, tally: Array
) -> int:
    """When the collective ends, or WAIT; the rank that comes last sends the others on.

    least: when it ends at the earliest.
    """
    tally[1] += 1
    tally[2] = max(tally[2], now)
    if tally[1] < len(ranks):
        return WAIT
    done = max(tally[2], least)
    tally[1] = tally[2] = 0
    for other in range(len(ranks)):
        if other != rank:
            them = ranks[other]
            end[them.step] = them.clock = done
            them.step += 1
            _wake(other, ready, tally)
    return int(done)
