"""Kernels of the check: walks over the tape, one rank after the other, each linear in its length.

Every violation is a row (rule, rank, step, other); rule OK means that there is none. The meaning of
`other` depends on the rule. `runtime.schedule.replay.validation` turns rows into messages.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.compiled import compiled, inner
from runtime.schedule.instructions import COLLECTIVE, FREE, RECV, SEND
from runtime.schedule.replay.facts import Facts
from runtime.schedule.replay.tape import KIND, KINDS, MB, NAMES, OK

Ints = npt.NDArray[Any]
Row = tuple[int, int, int, int]

# Rules. `other` is: of TWICE the earlier step, of a run's BODY the body it needs, of RECEIVE and of
# FREE_UNSENT the edge, of SEND_EARLY and SEND_LATE the body that must or may not come before, of
# FREE_ORDER the body to be freed before, of FIFO the index of the receive on its channel.
(
    TWICE,
    BODY,
    RECEIVE,
    SEND_EARLY,
    SEND_LATE,
    FREE_EARLY,
    FREE_UNSENT,
    FREE_ORDER,
    FIFO,
) = range(OK + 1, OK + 10)


class Needs(NamedTuple):
    """The order that `Facts` demands; see Lists."""

    body_stage: Ints
    before_first: Ints
    before: Ints
    in_first: Ints
    incoming: Ints
    out_first: Ints
    outgoing: Ints
    edge_src: Ints

    @classmethod
    def of(cls, facts: Facts) -> Needs:
        """Return those of a topology."""
        before, incoming, outgoing = facts.before, facts.incoming, facts.outgoing
        return cls(
            np.array([key.stage for key in facts.keys], np.int32),
            before.start,
            before.items,
            incoming.start,
            incoming.items,
            outgoing.start,
            outgoing.items,
            facts.edge_src,
        )


class Steps(NamedTuple):
    """The step of everything in its rank's program, or -1."""

    #: [body, micro-batch]
    run: Ints
    free: Ints
    #: [edge, micro-batch]
    send: Ints
    recv: Ints
    #: [stage, 0]
    update: Ints

    @classmethod
    def none(cls, facts: Facts, mbs: int) -> Steps:
        """Return the tables of empty programs."""
        bodies, edges, stages = len(facts.keys), len(facts.edges), len(facts.rank_of)
        sizes = [(bodies, mbs)] * 2 + [(edges, mbs)] * 2 + [(stages, 1)]
        return cls(*(np.full(size, -1, np.int32) for size in sizes))


@compiled(nogil=True)
def stamp(words: Ints, first: Ints, end: int, steps: Steps) -> Row:
    """Write the steps of all words before `end`; return the first that is there twice.

    first: by rank, its first word; one more at the end.
    """
    run, free, send, recv, update = steps
    for rank in range(len(first) - 1):
        for place in range(first[rank], min(first[rank + 1], end)):
            word, step = words[place], place - first[rank]
            kind, name, mb = word & KINDS, word >> KIND & NAMES, word >> MB
            if kind == COLLECTIVE:
                continue
            table = update
            if kind < SEND:
                table = run if kind < FREE else free
            elif kind <= RECV:
                table = send if kind == SEND else recv
            if table[name, mb] >= 0:
                return TWICE, rank, step, table[name, mb]
            table[name, mb] = step
    return OK, 0, 0, 0


@compiled(nogil=True)
def order(words: Ints, first: Ints, needs: Needs, steps: Steps) -> Row:
    """Return the first instruction that comes before one of its rank that it needs.

    No instruction is missing.
    """
    run, free, send, recv, update = steps
    body_stage, before_first, before, in_first, incoming, out_first, outgoing, edge_src = needs
    # Of stage and micro-batch: the body of the last run.
    latest = np.full((len(update), run.shape[1]), -1, np.int32)
    for rank in range(len(first) - 1):
        for step in range(first[rank + 1] - first[rank]):
            word = words[first[rank] + step]
            kind, name, mb = word & KINDS, word >> KIND & NAMES, word >> MB
            if kind < FREE:
                other = _later(run, before_first, before, name, mb, step)
                if other >= 0:
                    return BODY, rank, step, other
                other = _later(recv, in_first, incoming, name, mb, step)
                if other >= 0:
                    return RECEIVE, rank, step, other
                previous = latest[body_stage[name], mb]
                if previous >= 0 and free[previous, mb] > free[name, mb]:
                    return FREE_ORDER, rank, free[name, mb], previous
                latest[body_stage[name], mb] = name
            elif kind < SEND:
                if run[name, mb] > step:
                    return FREE_EARLY, rank, step, name
                other = _later(send, out_first, outgoing, name, mb, step)
                if other >= 0:
                    return FREE_UNSENT, rank, step, other
            elif kind == SEND:
                source = edge_src[name]
                if run[source, mb] > step:
                    return SEND_EARLY, rank, step, source
                if latest[body_stage[source], mb] != source:
                    return SEND_LATE, rank, step, latest[body_stage[source], mb]
    return OK, 0, 0, 0


@inner()
def _later(table: Ints, first: Ints, needs: Ints, of: int, mb: int, step: int) -> int:
    """Return which of a body's needs (a list of Needs) comes after this step, or -1."""
    for at in range(first[of], first[of + 1]):
        need: int = needs[at]
        if table[need, mb] > step:
            return need
    return -1


@compiled(nogil=True)
def fifo(words: Ints, first: Ints, channels: Ints, count: Ints, sent: Ints) -> Row:
    """Return the first receive of a message that is not the next one of its channel.

    Args:
        channels: By edge.
        count: By channel, 0.
        sent: Written: [edge, micro-batch], the index of the message on its channel.
    """
    for word in words:
        if word & KINDS == SEND:
            channel = channels[word >> KIND & NAMES]
            sent[word >> KIND & NAMES, word >> MB] = count[channel]
            count[channel] += 1
    count[:] = 0
    for rank in range(len(first) - 1):
        for place in range(first[rank], first[rank + 1]):
            word = words[place]
            if word & KINDS == RECV:
                channel = channels[word >> KIND & NAMES]
                if sent[word >> KIND & NAMES, word >> MB] != count[channel]:
                    return FIFO, rank, place - first[rank], count[channel]
                count[channel] += 1
    return OK, 0, 0, 0
