"""Kernels of the lowering: loops over all runs of all ranks, each linear in what it writes.

A run is a number, body * mbs + micro-batch, and so is a message, tag * mbs + micro-batch. Places
count the instructions of a rank's program before its frees are put in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.compiled import compiled, inner
from partitioner.base.types import BACKWARD, INPUT, PHASES, WEIGHT
from runtime.schedule.instructions import COLLECTIVE, FREE, RECV, RUN, SEND, UPDATE
from runtime.schedule.program import Columns

Ints = npt.NDArray[Any]

TAKEN_OVER = -2
NEVER = np.iinfo(np.int32).max  # the place of what does not happen
_B, _I, _W = PHASES.index(BACKWARD), PHASES.index(INPUT), PHASES.index(WEIGHT)


class Wires(NamedTuple):
    """The edges of `Facts` that cross ranks."""

    #: By body: the edges to it, and those from it; see Lists.
    in_start: Ints
    incoming: Ints
    out_start: Ints
    outgoing: Ints
    #: By edge.
    channel: Ints
    #: By channel: the channel in the other direction, or -1; TAKEN_OVER if senders need not know
    #: of the receipt.
    reverse: Ints


class Queues(NamedTuple):
    """The messages of all channels, in the order in which they are sent."""

    #: Channel c's messages are message[start[c] : start[c + 1]].
    start: Ints
    message: Ints
    #: By message: its index in `message`, or -1.
    place: Ints
    #: By index: the places in the sender's and in the receiver's program, or NEVER.
    sent: Ints
    taken: Ints


class Frees(NamedTuple):
    """The places of frees."""

    #: By run: the place that its free follows.
    after: Ints
    #: By place: the number of frees before it.
    ahead: Ints
    #: By rank: where its places begin in `ahead`; one more at the end.
    first: Ints


class Bodies(NamedTuple):
    """The phase, stage and segment of each body."""

    phase: Ints
    stage: Ints
    segment: Ints


@compiled(nogil=True)
def number_runs(
    rank: int, runs: Columns, body_at: Ints, rank_of: Ints, mbs: int, out: Ints
) -> tuple[int, int]:
    """Write the numbers of a rank's runs that have a body; return how many, and a bad index or -1.

    A B run of a stage that has I and W bodies instead becomes both of them.
    """
    count = 0
    for index in range(len(runs.code)):
        phase, stage, segment = runs.code[index], runs.at[index], runs.segment[index]
        if phase >= FREE or not 0 <= stage < len(rank_of) or rank_of[stage] != rank:
            return count, index
        if not 0 <= segment < body_at.shape[2]:
            continue
        body = body_at[phase, stage, segment]
        if body >= 0:
            out[count] = body * mbs + runs.mb[index]
            count += 1
        elif phase == _B:
            for half in (_I, _W):
                body = body_at[half, stage, segment]
                if body >= 0:
                    out[count] = body * mbs + runs.mb[index]
                    count += 1
    return count, -1


@compiled(nogil=True)
def queue_messages(runs: Ints, mbs: int, wires: Wires) -> Queues:
    """Return all messages of the runs of all ranks by channel, without their places."""
    start = np.zeros(len(wires.reverse) + 1, np.int32)
    for run in runs:
        body = run // mbs
        for at in range(wires.out_start[body], wires.out_start[body + 1]):
            start[wires.channel[wires.outgoing[at]] + 1] += 1
    for channel in range(len(wires.reverse)):
        start[channel + 1] += start[channel]
    message = np.empty(start[-1], np.int32)
    place = np.full(len(wires.channel) * mbs, -1, np.int32)
    fill = start.copy()
    for run in runs:
        body, mb = run // mbs, run % mbs
        for at in range(wires.out_start[body], wires.out_start[body + 1]):
            tag = wires.outgoing[at]
            index = fill[wires.channel[tag]]
            message[index] = tag * mbs + mb
            place[tag * mbs + mb] = index
            fill[wires.channel[tag]] += 1
    sent = np.full(len(message), NEVER, np.int32)
    return Queues(start, message, place, sent, sent.copy())


@compiled(nogil=True)
def place_runs(
    start: Ints, runs: Ints, mbs: int, wires: Wires, queues: Queues
) -> tuple[Ints, Ints]:
    """Return the place of every run and the length of every rank's program; write messages' places.

    A message is received where the first body wants it, after those before it on its channel.

    Args:
        start: By rank: its first run; one more at the end.
    """
    ran = np.empty(len(runs), np.int32)
    lengths = np.empty(len(start) - 1, np.int64)
    posted, received = queues.start.copy(), queues.start.copy()
    for rank in range(len(lengths)):
        place = 0
        for index in range(start[rank], start[rank + 1]):
            body, mb = runs[index] // mbs, runs[index] % mbs
            for at in range(wires.in_start[body], wires.in_start[body + 1]):
                tag = wires.incoming[at]
                channel = wires.channel[tag]
                while received[channel] <= queues.place[tag * mbs + mb]:
                    queues.taken[received[channel]] = place
                    received[channel] += 1
                    place += 1
            ran[index] = place
            place += 1
            for at in range(wires.out_start[body], wires.out_start[body + 1]):
                channel = wires.channel[wires.outgoing[at]]
                queues.sent[posted[channel]] = place
                posted[channel] += 1
                place += 1
        lengths[rank] = place
    return ran, lengths


@compiled(nogil=True)
def known_delivered(wires: Wires, queues: Queues) -> Ints:
    """Return for each message where its sender knows that it was received, or NEVER.

    That is where the sender receives the first message that the receiver sent after receiving this
    one. Messages are sent and received in one order, so one walk along both channels finds all.
    """
    known = np.full(len(queues.message), NEVER, np.int32)
    for channel in range(len(wires.reverse)):
        back = wires.reverse[channel]
        if back == TAKEN_OVER:
            known[queues.start[channel] : queues.start[channel + 1]] = 0
        if back < 0:
            continue
        reply, end = queues.start[back], queues.start[back + 1]
        for index in range(queues.start[channel], queues.start[channel + 1]):
            while reply < end and queues.sent[reply] <= queues.taken[index]:
                reply += 1
            if reply < end:
                known[index] = queues.taken[reply]
    return known


@compiled(nogil=True)
def place_frees(
    start: Ints,
    runs: Ints,
    ran: Ints,
    mbs: int,
    wires: Wires,
    queues: Queues,
    known: Ints,
    stage: Ints,
    freed: Ints,
    first: Ints,
) -> Frees:
    """Return where all frees go.

    Args:
        stage: By body.
        freed: By stage * mbs + micro-batch: the place of its last free so far, 0 at first.
        first: See Frees.
    """
    after = np.empty(len(runs), np.int32)
    ahead = np.zeros(first[-1], np.int32)
    for rank in range(len(start) - 1):
        end = first[rank + 1] - first[rank]
        for index in range(start[rank], start[rank + 1]):
            body, mb = runs[index] // mbs, runs[index] % mbs
            out = wires.outgoing[wires.out_start[body] : wires.out_start[body + 1]]
            of_stage = stage[body] * mbs + mb
            place = max(ran[index] + len(out), freed[of_stage])
            for tag in out:
                place = max(place, known[queues.place[tag * mbs + mb]])
            after[index] = freed[of_stage] = place = min(place, end - 1)
            if place + 1 < end:
                ahead[first[rank] + place + 1] += 1
        for place in range(first[rank] + 1, first[rank + 1]):
            ahead[place] += ahead[place - 1]
    return Frees(after, ahead, first)


@compiled(nogil=True)
def write_runs(
    start: Ints,
    runs: Ints,
    ran: Ints,
    mbs: int,
    frees: Frees,
    bodies: Bodies,
    base: Ints,
    out: Columns,
) -> None:
    """Write all runs and frees. base: by rank, where its program begins in `out`."""
    for rank in range(len(start) - 1):
        ahead = frees.ahead[frees.first[rank] : frees.first[rank + 1]]
        written = np.zeros(len(ahead), np.int32)
        for index in range(start[rank], start[rank + 1]):
            place = ran[index]
            to = base[rank] + place + ahead[place]
            _write(out, to, RUN, runs[index], mbs, bodies)
            place = frees.after[index]
            written[place] += 1
            to = base[rank] + place + ahead[place] + written[place]
            _write(out, to, FREE, runs[index], mbs, bodies)


@inner()
def _write(out: Columns, to: int, code: int, run: int, mbs: int, bodies: Bodies) -> None:
    body = run // mbs
    out.code[to] = code + bodies.phase[body]
    out.at[to] = bodies.stage[body]
    out.mb[to] = run % mbs
    out.segment[to] = bodies.segment[body]


@compiled(nogil=True)
def write_messages(
    queues: Queues, mbs: int, source: Ints, target: Ints, frees: Frees, base: Ints, out: Columns
) -> None:
    """Write all sends and receives. source, target: by channel, the ranks at its ends."""
    for channel in range(len(source)):
        for index in range(queues.start[channel], queues.start[channel + 1]):
            for code in (SEND, RECV):
                rank = source[channel] if code == SEND else target[channel]
                place = queues.sent[index] if code == SEND else queues.taken[index]
                if place != NEVER:
                    to = base[rank] + place + frees.ahead[frees.first[rank] + place]
                    out.code[to] = code
                    out.at[to] = queues.message[index] // mbs
                    out.mb[to] = queues.message[index] % mbs
                    out.segment[to] = 0


@compiled(nogil=True)
def write_updates(rank_of: Ints, at: Ints, before: Ints, after: Ints, out: Columns) -> None:
    """Write U of a rank's stages at the end of its program, and collectives before and after.

    at: by rank, the end of its program without them.
    """
    to = at.copy()
    for rank in range(len(at)):
        for tag in before:
            _write_tail(out, to[rank], COLLECTIVE, tag)
            to[rank] += 1
    for stage in range(len(rank_of)):
        rank = rank_of[stage]
        _write_tail(out, to[rank], UPDATE, stage)
        to[rank] += 1
    for rank in range(len(at)):
        for tag in after:
            _write_tail(out, to[rank], COLLECTIVE, tag)
            to[rank] += 1


@inner()
def _write_tail(out: Columns, to: int, code: int, at: int) -> None:
    out.code[to] = code
    out.at[to] = at
    out.mb[to] = out.segment[to] = 0
