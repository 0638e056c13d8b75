"""Exchanges: the messages of one collective of the graph as one call of MPI's.

A schedule says for each message where its sender has made it and where its receiver needs it. The
messages of an exchange (see `CommEdge.exchange`) go together: a rank starts the collective when it
has made all its parts, and waits for it where it needs the first of the others'. Collectives match
by the order in which ranks start them, as MPI's do, so all ranks of an exchange start theirs in one
order, found beforehand: that in which a run of the schedule completes them. A rank has made its
parts of all earlier ones before it needs a later one, else the run had stood; so nobody waits for
longer because a start waits for its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from partitioner.base.collectives import CollectiveLayout, Group
from partitioner.base.types import CommEdge, Topology
from runtime.backends.device.arrays import copy
from runtime.schedule.instructions import RECV, SEND
from runtime.schedule.program import Program, Schedule
from runtime.transports.base import Collectives, CollectiveTicket
from symgraph.core.types import Array

Message = tuple[int, int]  # tag, micro-batch
NOTHING: Array = np.empty(0, np.uint8)


@dataclass(frozen=True)
class Exchange:
    """The collective of one name and micro-batch. messages: (source, destination) -> its edges."""

    name: str
    mb: int
    messages: Mapping[tuple[int, int], Sequence[CommEdge]]

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Who takes part."""
        return tuple(sorted({rank for ends in self.messages for rank in ends}))

    @cached_property
    def kind(self) -> str:
        """Which of MPI's collectives it is."""
        sources = {source for source, _ in self.messages}
        same = all(self._gives_all_the_same(source) for source in sources)
        if len(sources) == 1:
            return "bcast" if same else "scatter"
        if len({target for _, target in self.messages}) == 1:
            return "gather"
        return "allgather" if same else "alltoall"

    def _gives_all_the_same(self, source: int) -> bool:
        others = [rank for rank in self.ranks if rank != source]
        given = [[e.value for e in self.messages.get((source, r), ())] for r in others]
        return all(values == given[0] for values in given)

    @cached_property
    def blocks(self) -> CollectiveLayout:
        """What goes from each of its ranks to each, in bytes."""
        size = {ends: sum(e.type.nbytes for e in es) for ends, es in self.messages.items()}
        table = [[size.get((a, b), 0) for b in self.ranks] for a in self.ranks]
        return CollectiveLayout(self.kind, self.ranks, tuple(map(tuple, table)))


def exchanges(edges: Iterable[CommEdge], rank_of: Sequence[int], mb: int = 0) -> Iterator[Exchange]:
    """The exchanges of a micro-batch of a topology with these edges and ranks of stages."""
    named: dict[str, dict[tuple[int, int], list[CommEdge]]] = {}
    for edge in edges:
        if edge.exchange:
            ends = rank_of[edge.src.stage], rank_of[edge.dst.stage]
            if ends[0] != ends[1]:
                named.setdefault(edge.exchange, {}).setdefault(ends, []).append(edge)
    for name, messages in named.items():
        yield Exchange(name, mb, messages)


def in_order(schedules: Sequence[Schedule], found: Iterable[Exchange]) -> list[Exchange]:
    """The exchanges in an order in which all ranks can start them.

    schedules: of one step, one after the other; `check` has accepted them.
    """
    part_of = {(e.tag, x.mb): x for x in found for edges in x.messages.values() for e in edges}
    if not part_of:
        return []
    unsent = {id(x): sum(map(len, x.messages.values())) for x in part_of.values()}
    sent: set[Message] = set()
    order: list[Exchange] = []
    steps = [
        _messages([s.programs[rank] for s in schedules])
        for rank in range(len(schedules[0].programs))
    ]
    at, moved = [0] * len(steps), True
    while moved:
        moved = False
        for rank, own in enumerate(steps):
            while at[rank] < len(own):
                code, message = own[at[rank]]
                exchange = part_of.get(message)
                if code == SEND:
                    sent.add(message)
                    if exchange is not None:
                        unsent[id(exchange)] -= 1
                        order += [] if unsent[id(exchange)] else [exchange]
                elif unsent[id(exchange)] if exchange is not None else message not in sent:
                    break
                at[rank] += 1
                moved = True
    assert all(i == len(own) for i, own in zip(at, steps, strict=True)), "the schedule stands"
    return order


def _messages(programs: Iterable[Program]) -> list[tuple[int, Message]]:
    """What a rank sends and receives, in order."""
    found: list[tuple[int, Message]] = []
    for program in programs:
        code, at, mb, _ = program.columns
        here = (code == SEND) | (code == RECV)
        rows = zip(code[here].tolist(), at[here].tolist(), mb[here].tolist(), strict=True)
        found += [(what, (tag, number)) for what, tag, number in rows]
    return found


class _Side:
    """One rank's side of an exchange.

    gives, takes: tag -> where in `out` and `into` its message lies. For the step under way: out,
    into: the bytes that go and come. missing: parts that are not given yet. left: parts that are
    not taken yet. ticket: of what is started and not all taken yet.
    """

    def __init__(self, exchange: Exchange, rank: int, own: Any) -> None:
        """own: the array module of the rank's device."""
        self.exchange, self._own = exchange, own
        self.blocks = blocks = exchange.blocks
        self._me = me = blocks.ranks.index(rank)
        column = blocks.column(me)
        self.gives: dict[int, slice] = {}
        self.takes: dict[int, slice] = {}
        for other, peer in enumerate(blocks.ranks):
            _place(self.gives, exchange.messages.get((rank, peer), ()), blocks.to(me, other))
            _place(self.takes, exchange.messages.get((peer, rank), ()), sum(column[:other]))
        self.reset()

    def reset(self) -> None:
        """Make ready for a step."""
        self.out = self.into = NOTHING
        self.missing, self.left = len(self.gives), len(self.takes)
        self.ticket: CollectiveTicket | None = None

    def give(self, tag: int, array: Array, collectives: Collectives) -> None:
        if not self.out.size:
            xp = collectives.module(self.blocks.ranks) or self._own
            self.out = xp.empty(self.blocks.given(self._me), np.uint8)
        copy(self.out[self.gives[tag]], array.reshape(-1).view(np.uint8))
        self.missing -= 1

    def start(self, collectives: Collectives) -> tuple[CollectiveTicket, Array]:
        """What is under way, and what this rank gave for it."""
        xp, given = collectives.module(self.blocks.ranks) or self._own, self.out
        self.into = xp.empty(sum(self.blocks.column(self._me)), np.uint8)
        ticket = collectives.start(self.blocks, given, self.into)
        self.ticket = ticket if self.takes else None
        self.out = NOTHING
        return ticket, given

    def take(self, tag: int, array: Array) -> None:
        assert self.ticket is not None
        self.ticket.wait()
        copy(array.reshape(-1).view(np.uint8), self.into[self.takes[tag]])
        self.left -= 1
        if not self.left:
            self.into, self.ticket = NOTHING, None


def _place(places: dict[int, slice], edges: Iterable[CommEdge], start: int) -> None:
    for edge in edges:
        places[edge.tag] = slice(start, start + edge.type.nbytes)
        start += edge.type.nbytes


class Exchanging:
    """One rank's exchanges, step after step."""

    collectives: Collectives  # of the run under way, which has joined `groups`

    def __init__(
        self, rank: int, schedules: Sequence[Schedule], partitions: Sequence[Topology], own: Any
    ) -> None:
        """schedules: of one step, one after the other. partitions: of each micro-batch.

        own: the array module of the rank's device.
        """
        found = [
            x for mb, cut in enumerate(partitions) for x in exchanges(cut.edges, cut.rank_of, mb)
        ]
        order = in_order(schedules, found)
        mine = [_Side(x, rank, own) for x in order if rank in x.ranks]
        self.groups: list[Group] = sorted({x.blocks.group for x in order})
        self._side = {(tag, s.exchange.mb): s for s in mine for tag in (*s.gives, *s.takes)}
        self._queues = {g: [s for s in mine if s.blocks.group == g] for g in self.groups}
        self._next: dict[Group, int] = {}
        self._lent: list[
            tuple[CollectiveTicket, Array]
        ] = []  # what others may still read, not to be reused

    def reset(self) -> None:
        """Make ready for a step."""
        for queue in self._queues.values():
            for side in queue:
                side.reset()
        self._next = dict.fromkeys(self._queues, 0)

    def give(self, tag: int, mb: int, array: Array) -> None:
        """What is sent; copied at once. The exchange starts with this rank's last part of it."""
        side = self._side[tag, mb]
        side.give(tag, array, self.collectives)
        if not side.missing:
            self._start(side.blocks.group)

    def take(self, tag: int, mb: int, array: Array) -> None:
        """What is received; the first part of an exchange waits for all of it."""
        side = self._side[tag, mb]
        if side.ticket is None:
            self._start(side.blocks.group, side)
        side.take(tag, array)

    def _start(self, group: Group, wanted: _Side | None = None) -> None:
        """Start those whose turn it is: up to the wanted one, or the last with all parts given."""
        queue, first = self._queues[group], self._next[group]
        ready = first
        for index in range(first, len(queue)):
            side = queue[index]
            if side.missing:
                break
            if side.gives or side is wanted:
                ready = index + 1
            if side is wanted:
                break
        self._lent = [lent for lent in self._lent if not lent[0].returned()]
        self._lent += [side.start(self.collectives) for side in queue[first:ready]]
        self._next[group] = ready
