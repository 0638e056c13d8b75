"""The walk: compiled loops that carry out the instructions of all ranks, for check and simulate.

A rank does its instructions in order:

    Run         takes the body's time
    Send        posts its message and never blocks; the link carries messages one after the other
    Recv        waits until the next message of its channel has arrived, then copies it in; of an
                exchange: waits until all its messages are posted, and then as long as the
                collective takes (runtime.schedule.message_costs)
    Free        waits until the messages of its body and micro-batch are delivered
    Collective  waits for all ranks, then takes its time on all of them
    Update      takes its time

With capacity None a message is delivered as soon as it is posted. With capacity n it is delivered
when it is received, or when it is among the first n of its channel (a pair of ranks) that are not
received; 0 is rendezvous.

A rank runs until it must wait, and whoever ends its wait puts it back on the stack of ready ranks.
Ranks need no order for that: what a rank does depends on messages, not on who is looked at first,
and what is done never keeps another rank from running. Only a link that several ranks send over
makes the order of posts matter; a send on such a link is held until every rank is held, waits or is
done, and then the earliest one is posted: whatever comes later follows from it, so it is not
earlier.

A thousand ranks are visited in turn, a few instructions each; what one visit touches is small and
side by side, so that all of it stays in the cache.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.compiled import compiled, inner
from runtime.schedule.instructions import COLLECTIVE, FREE, RECV, REPLICAS, SEND, WEIGHTS
from runtime.schedule.replay.facts import Facts, Lists
from runtime.schedule.replay.tape import KIND, KINDS, MB, NAMES, Tape

Array = npt.NDArray[Any]

WAIT, JOINED = -1, -2
LIMIT = 1 << 62  # no clock goes beyond it; one instruction's ticks are fewer than STEP
STEP = 1 << 58
DONE, STUCK, TOO_LONG = 0, 1, 2  # how a walk ends


def _record(**fields: type) -> np.dtype[Any]:
    return np.dtype(list(fields.items()))


# The records that the walk keeps, one array of each.
# step, last: the next word and the one behind the last. wants: the channel that the rank waits to
# receive from, or JOINED - n if it waits for the n-th exchange. frees: the message whose receipt it
# waits for. Both are WAIT if it does not wait.
RANK = _record(step=np.int64, last=np.int64, clock=np.int64, wants=np.int64, frees=np.int64)
# transfer: ticks on the link. latency: from the end of that to the arrival. copy: ticks of the
# receiver.
EDGE = _record(channel=np.int64, transfer=np.int64, latency=np.int64, copy=np.int64)
# link: the first channel that has the same link; that channel's `busy` says until when the link is
# busy. shared: whether several ranks send over the link. posted, taken: the numbers of messages
# sent and received. exchange: the exchange that the channel is for, or -1. first: the place of the
# channel's first message among all. latest: when the last message arrives.
CHANNEL = _record(
    src=np.int32,
    dst=np.int32,
    link=np.int32,
    shared=np.int32,
    posted=np.int32,
    taken=np.int32,
    exchange=np.int64,
    first=np.int64,
    latest=np.int64,
    busy=np.int64,
)
# unposted: the number of messages that are not posted. time: when the last one was posted and, once
# all are, when they arrive. takes: the ticks between these times.
EXCHANGE = _record(unposted=np.int64, time=np.int64, takes=np.int64)
# word: the send's word without its kind. time: when the message arrives and, after that, when it
# was received.
MESSAGE = _record(word=np.int64, time=np.int64)


class Ticks(NamedTuple):
    """Durations in ticks; int64."""

    #: By body.
    run: Array
    #: Before every instruction.
    overhead: int
    #: Of a collective that all ranks have come to.
    meeting: int
    #: By stage.
    update: Array
    #: By edge: of the message on its link, and of copying it.
    transfer: Array
    copy: Array
    #: By edge: from the end of the transfer to the arrival.
    latency: Array
    #: By exchange.
    exchange: Array
    #: Of the sums of replicas' gradients, one after the other.
    sums: Array
    #: Of the spreading of replicas' weights; one number.
    weights: Array

    @classmethod
    def none(cls, facts: Facts) -> Ticks:
        """Return the ticks of a step in which nothing takes time."""
        edges = len(facts.edges)
        counts = (len(facts.rank_of), edges, edges, edges, len(facts.exchanges), 0)
        others = (np.zeros(count, np.int64) for count in (*counts, 1))
        return cls(np.zeros(len(facts.keys), np.int64), 0, 0, *others)


class Carriers(NamedTuple):
    """The links of channels."""

    #: By channel: the first channel that has the same link.
    link: Array
    #: By channel: whether several ranks send over its link.
    shared: Array


class Board(NamedTuple):
    """The state that ranks share."""

    #: Arrays of RANK, EDGE, CHANNEL and MESSAGE.
    ranks: Array
    edges: Array
    channels: Array
    messages: Array
    #: EXCHANGE: [exchange, micro-batch].
    exchanges: Array
    #: [edge, micro-batch]: the message's number on its channel, WAIT if it is not posted; empty if
    #: messages are delivered when they are posted.
    number: Array
    #: A stack of the ranks that can run.
    ready: Array
    #: The number of ranks on the stack, that of ranks at a collective, and when the last of these
    #: came.
    tally: Array


class State(NamedTuple):
    """The state of a walk."""

    words: Array
    #: int64: the tick at which each instruction of `words` ends.
    end: Array
    ticks: Ticks
    board: Board
    #: By body: its edges to other ranks; see Lists.
    out_first: Array
    out_tags: Array
    #: The number of messages that a channel buffers.
    capacity: int
    #: The i-th sum begins after the last runs of sum_bodies[sum_first[i] : sum_first[i + 1]].
    sum_first: Array
    sum_bodies: Array
    #: By body: the end of its last run so far.
    ran: Array


def start(
    facts: Facts,
    tape: Tape,
    capacity: int | None,
    ticks: Ticks,
    carriers: Carriers,
    sum_bodies: Lists,
) -> State:
    """Return the state before the first instruction.

    Args:
        capacity: The number of messages that a channel buffers; None: any number.
        sum_bodies: The bodies that complete each of `ticks.sums`.
    """
    ranks, edges = np.zeros(facts.ranks, RANK), np.zeros(len(facts.edges), EDGE)
    ranks["step"], ranks["last"] = tape.first[:-1], tape.first[1:]
    ranks["wants"] = ranks["frees"] = WAIT
    edges["channel"] = facts.edge_channel
    edges["transfer"], edges["copy"] = ticks.transfer, ticks.copy
    edges["latency"] = ticks.latency
    channels = np.zeros(len(facts.channel_src), CHANNEL)
    channels["src"], channels["dst"] = facts.channel_src, facts.channel_dst
    channels["link"], channels["shared"] = carriers
    channels["exchange"] = facts.channel_exchange
    channels["first"] = np.cumsum(tape.sends) - tape.sends
    exchanges = np.zeros((len(facts.exchanges), tape.mbs), EXCHANGE)
    exchanges["unposted"] = facts.exchange_sizes[:, None]
    exchanges["takes"] = ticks.exchange[:, None]
    board = Board(
        ranks,
        edges,
        channels,
        np.empty(int(tape.sends.sum()), MESSAGE),
        exchanges,
        np.full((0, 0) if capacity is None else (len(edges), tape.mbs), WAIT, np.int32),
        np.empty(facts.ranks, np.int64),
        np.zeros(3, np.int64),
    )
    return State(
        tape.words,
        np.empty(len(tape.words), np.int64),
        ticks,
        board,
        facts.outgoing.start,
        facts.outgoing.items,
        capacity or 0,
        sum_bodies.start,
        sum_bodies.items,
        np.zeros(len(facts.keys), np.int64),
    )


@compiled(nogil=True)
def walk(state: State) -> int:
    """Run until the end: DONE, STUCK (ranks.step tells where) or TOO_LONG for these ticks."""
    # Local names, as numba counts references at each look-up in a tuple: ten times the work itself.
    words, end, ticks, board, out_first, out_tags, capacity, _, _, ran = state
    run, overhead, meeting, update, _, _, _, _, _, weights = ticks
    ranks, edges, channels, _, _, _, ready, tally = board
    tally[0] = len(ranks)
    for i in range(len(ranks)):
        ready[i] = len(ranks) - 1 - i
    held = [(0, 0)]  # (time, rank) of sends on shared links, a heap
    held.pop()
    while tally[0] or held:
        turn = tally[0] == 0  # of a held send
        rank = int(heappop(held)[1] if turn else _next(ready, tally))
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
                done = _free(word, now, tags, me, capacity, board)
            elif kind == SEND:
                if not turn and channels[edges[name].channel].shared:
                    heappush(held, (now, rank))
                    break
                turn = False
                done = _send(word, now, board)
            elif kind == RECV:
                done = _recv(word, now, me, board)
            elif kind == COLLECTIVE:
                takes = weights[0] if name == WEIGHTS else 0 if name == REPLICAS else meeting
                least = _summed(state) if name == REPLICAS else 0
                done = _meet(rank, now, least, takes, end, board)
            else:
                done += update[name]
            if done == WAIT:
                break
            if done > LIMIT:
                return TOO_LONG
            end[step] = clock = done
            step += 1
        me.step, me.clock = step, clock
    for rank in range(len(ranks)):
        if ranks[rank].step != ranks[rank].last:
            return STUCK
    return DONE


@inner(forceinline=True)
def _next(ready: Array, tally: Array) -> int:
    """Take a rank that can go on."""
    tally[0] -= 1
    return int(ready[tally[0]])


@inner(forceinline=True)
def _wake(rank: int, ready: Array, tally: Array) -> None:
    ready[tally[0]] = rank
    tally[0] += 1


@inner(forceinline=True)
def _send(word: int, now: int, board: Board) -> int:
    """Post a message; return when that is done, more than LIMIT if it arrives too late."""
    ranks, edges, channels, messages, _, number, ready, tally = board
    tag, mb = word >> KIND & NAMES, word >> MB
    edge = edges[tag]
    channel = channels[edge.channel]
    message = messages[channel.first + channel.posted]
    message.word = word >> KIND
    channel.posted += 1
    if channel.exchange >= 0:
        return now if _join(now, channel.exchange, mb, board) <= LIMIT else LIMIT + 1
    link = channels[channel.link]
    link.busy = max(now, link.busy) + edge.transfer
    message.time = channel.latest = max(link.busy + edge.latency, channel.latest)
    if number.size:
        number[tag, mb] = channel.posted - 1
    receiver = ranks[channel.dst]
    if receiver.wants == edge.channel:
        receiver.wants = WAIT
        _wake(channel.dst, ready, tally)
    return now if message.time <= LIMIT else LIMIT + 1


@inner()
def _join(now: int, number: int, mb: int, board: Board) -> int:
    """Post a message of an exchange; return when the exchange ends, judging by those posted."""
    exchange = board.exchanges[number, mb]
    exchange.unposted -= 1
    exchange.time = max(exchange.time, now)
    if exchange.unposted:
        return int(exchange.time)
    exchange.time += exchange.takes
    for rank in range(len(board.ranks)):
        if board.ranks[rank].wants == JOINED - (number * board.exchanges.shape[1] + mb):
            board.ranks[rank].wants = WAIT
            _wake(rank, board.ready, board.tally)
    return int(exchange.time)


@inner(forceinline=True)
def _recv(word: int, now: int, me: Any, board: Board) -> int:
    """Return when the message is received, or WAIT."""
    ranks, edges, channels, messages, exchanges, _, ready, tally = board
    edge = edges[word >> KIND & NAMES]
    channel = channels[edge.channel]
    joined = channel.exchange >= 0
    if joined and exchanges[channel.exchange, word >> MB].unposted:
        me.wants = JOINED - (channel.exchange * exchanges.shape[1] + (word >> MB))
        return WAIT
    if channel.taken == channel.posted:
        me.wants = edge.channel
        return WAIT
    place = channel.first + channel.taken
    message = messages[place]
    if message.word != word >> KIND:
        return WAIT
    arrives = exchanges[channel.exchange, word >> MB].time if joined else message.time
    message.time = done = max(now, arrives) + edge.copy
    channel.taken += 1
    sender = ranks[channel.src]
    if sender.frees == place:
        sender.frees = WAIT
        _wake(channel.src, ready, tally)
    return int(done)


@inner(forceinline=True)
def _free(word: int, now: int, tags: Array, me: Any, capacity: int, board: Board) -> int:
    """Return when the last of a body's messages is delivered, or WAIT.

    On a channel that buffers n messages, one is delivered when the one n before it is received.
    """
    _, edges, channels, messages, _, number, _, _ = board
    if not number.size:
        return now
    for tag in tags:
        channel = channels[edges[tag].channel]
        if channel.exchange >= 0:
            continue
        before = number[tag, word >> MB] - capacity
        if number[tag, word >> MB] < 0:
            return WAIT
        if before >= channel.taken:
            me.frees = channel.first + before
            return WAIT
        if before >= 0:
            now = max(now, messages[channel.first + before].time)
    return now


@inner()
def _summed(state: State) -> int:
    """Return when the last sum ends, if all runs are done."""
    sums, first, bodies, ran = state.ticks.sums, state.sum_first, state.sum_bodies, state.ran
    end = 0
    for number in range(len(sums)):
        for at in range(first[number], first[number + 1]):
            end = max(end, ran[bodies[at]])
        end += sums[number]
    return end


@inner()
def _meet(rank: int, now: int, least: int, takes: int, end: Array, board: Board) -> int:
    """Return when the collective ends, or WAIT; the rank that comes last wakes the others.

    least: the earliest possible end. takes: the ticks from the last rank's arrival to the end.
    """
    ranks, ready, tally = board.ranks, board.ready, board.tally
    tally[1] += 1
    tally[2] = max(tally[2], now)
    if tally[1] < len(ranks):
        return WAIT
    done = max(tally[2] + takes, least)
    tally[1] = tally[2] = 0
    for other in range(len(ranks)):
        if other != rank:
            them = ranks[other]
            end[them.step] = them.clock = done
            them.step += 1
            _wake(other, ready, tally)
    return int(done)
