"""Exchanging: one rank's part in the exchanges of a step (see runtime.schedule.exchanges)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from partitioner.base.collectives import Group
from partitioner.base.types import CommEdge, Topology
from runtime.backends.device.arrays import copy
from runtime.schedule.exchanges import Exchange, exchanges, in_order
from runtime.schedule.program import Schedule
from runtime.transports.base import Collectives, CollectiveTicket
from symgraph.core.types import Array

NOTHING: Array = np.empty(0, np.uint8)


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
