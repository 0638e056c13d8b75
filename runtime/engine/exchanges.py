"""Exchanges: one rank's part in the collectives of a step; see runtime.schedule.exchanges."""

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


class RankExchange:
    """One rank's part in an exchange, and its progress in the current step."""

    #: Tag -> the place of an outgoing message in `out`.
    gives: dict[int, slice]
    #: Tag -> the place of an incoming message in `into`.
    takes: dict[int, slice]
    #: The bytes to send.
    out: Array
    #: The received bytes.
    into: Array
    #: The number of messages that this rank has not given yet.
    missing: int
    #: The number of messages that this rank has not taken yet.
    left: int
    #: The collective, from its start until all messages are taken.
    ticket: CollectiveTicket | None

    def __init__(self, exchange: Exchange, rank: int, device_module: Any) -> None:
        """device_module: the array module of the rank's device."""
        self.exchange, self._device_module = exchange, device_module
        self.layout = layout = exchange.layout
        self._index = index = layout.ranks.index(rank)
        column = layout.column(index)
        self.gives, self.takes = {}, {}
        for other, peer in enumerate(layout.ranks):
            _place(self.gives, exchange.messages.get((rank, peer), ()), layout.to(index, other))
            _place(self.takes, exchange.messages.get((peer, rank), ()), sum(column[:other]))
        self.reset()

    def reset(self) -> None:
        """Prepare for the next step."""
        self.out = self.into = NOTHING
        self.missing, self.left = len(self.gives), len(self.takes)
        self.ticket = None

    def give(self, tag: int, array: Array, collectives: Collectives) -> None:
        """Copy one of this rank's messages into the bytes to send."""
        if not self.out.size:
            xp = self._module(collectives)
            self.out = xp.empty(self.layout.given(self._index), np.uint8)
        copy(self.out[self.gives[tag]], array.reshape(-1).view(np.uint8))
        self.missing -= 1

    def start(self, collectives: Collectives) -> tuple[CollectiveTicket, Array]:
        """Start the collective; return it and what this rank gave for it."""
        xp, out = self._module(collectives), self.out
        self.into = xp.empty(sum(self.layout.column(self._index)), np.uint8)
        ticket = collectives.start(self.layout, out, self.into)
        self.ticket = ticket if self.takes else None
        self.out = NOTHING
        return ticket, out

    def take(self, tag: int, array: Array) -> None:
        """Wait for the collective and copy one of the received messages."""
        assert self.ticket is not None
        self.ticket.wait()
        copy(array.reshape(-1).view(np.uint8), self.into[self.takes[tag]])
        self.left -= 1
        if not self.left:
            self.into, self.ticket = NOTHING, None

    def _module(self, collectives: Collectives) -> Any:
        """Return the array module of the memory that the collective takes."""
        return collectives.module(self.layout.ranks) or self._device_module


def _place(places: dict[int, slice], edges: Iterable[CommEdge], start: int) -> None:
    for edge in edges:
        places[edge.tag] = slice(start, start + edge.type.nbytes)
        start += edge.type.nbytes


class RankExchanges:
    """The exchanges of one rank, step after step."""

    #: The collectives of the current step, which has joined `groups`.
    collectives: Collectives

    def __init__(
        self,
        rank: int,
        schedules: Sequence[Schedule],
        partitions: Sequence[Topology],
        device_module: Any,
    ) -> None:
        """Order the exchanges of a step.

        Args:
            rank: The rank.
            schedules: The schedules of the step, one after the other.
            partitions: The cut graph of each micro-batch.
            device_module: The array module of the rank's device.
        """
        order = in_order(
            schedules,
            [x for mb, cut in enumerate(partitions) for x in exchanges(cut.edges, cut.rank_of, mb)],
        )
        local = [RankExchange(x, rank, device_module) for x in order if rank in x.ranks]
        self.groups: list[Group] = sorted({x.layout.group for x in order})
        self._by_message = {(tag, x.exchange.mb): x for x in local for tag in (*x.gives, *x.takes)}
        self._queues = {g: [x for x in local if x.layout.group == g] for g in self.groups}
        self._next: dict[Group, int] = {}
        # Other ranks may still read these arrays, so they must not be reused.
        self._lent: list[tuple[CollectiveTicket, Array]] = []

    def reset(self) -> None:
        """Prepare for the next step."""
        for queue in self._queues.values():
            for exchange in queue:
                exchange.reset()
        self._next = dict.fromkeys(self._queues, 0)

    def give(self, tag: int, mb: int, array: Array) -> None:
        """Copy an outgoing message; an exchange starts with the rank's last message for it."""
        exchange = self._by_message[tag, mb]
        exchange.give(tag, array, self.collectives)
        if not exchange.missing:
            self._start(exchange.layout.group)

    def take(self, tag: int, mb: int, array: Array) -> None:
        """Wait for a message; the first one of an exchange waits for all of them."""
        exchange = self._by_message[tag, mb]
        if exchange.ticket is None:
            self._start(exchange.layout.group, exchange)
        exchange.take(tag, array)

    def _start(self, group: Group, wanted: RankExchange | None = None) -> None:
        """Start exchanges in order, up to the wanted one or the last that has all its messages."""
        queue, first = self._queues[group], self._next[group]
        ready = first
        for index in range(first, len(queue)):
            exchange = queue[index]
            if exchange.missing:
                break
            if exchange.gives or exchange is wanted:
                ready = index + 1
            if exchange is wanted:
                break
        self._lent = [lent for lent in self._lent if not lent[0].returned()]
        self._lent += [exchange.start(self.collectives) for exchange in queue[first:ready]]
        self._next[group] = ready
