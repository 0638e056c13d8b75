"""Exchanges: the messages of one collective of the graph, sent as one call of MPI's.

A schedule says for each message where its sender has made it and where its receiver needs it. The
messages of an exchange (see `CommEdge.exchange`) travel together: a rank starts the collective when
it has made all its parts, and waits for it where it needs the first part of another rank.
Collectives match by the order in which ranks start them, as MPI's do, so all ranks of an exchange
start theirs in one common order: that in which a run of the schedule completes them. Starting in
that order adds no waiting: in a run that does not hang, a rank has made its parts of the earlier
exchanges before it needs a later one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partitioner.base.collectives import CollectiveLayout
from partitioner.base.types import CommEdge
from runtime.schedule.instructions import RECV, SEND
from runtime.schedule.program import Program, Schedule

Message = tuple[int, int]  # tag, micro-batch


@dataclass(frozen=True)
class Exchange:
    """The collective of one name and micro-batch."""

    name: str
    mb: int
    #: (source rank, destination rank) -> the edges between them.
    messages: Mapping[tuple[int, int], Sequence[CommEdge]]

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that take part."""
        return tuple(sorted({rank for ends in self.messages for rank in ends}))

    @cached_property
    def kind(self) -> str:
        """The MPI collective that it is."""
        sources = {source for source, _ in self.messages}
        same = all(self._gives_all_the_same(source) for source in sources)
        if len(sources) == 1:
            return "bcast" if same else "scatter"
        if len({target for _, target in self.messages}) == 1:
            return "gather"
        return "allgather" if same else "alltoall"

    def _gives_all_the_same(self, source: int) -> bool:
        others = [rank for rank in self.ranks if rank != source]
        rows = [[e.value for e in self.messages.get((source, r), ())] for r in others]
        return all(values == rows[0] for values in rows)

    @cached_property
    def layout(self) -> CollectiveLayout:
        """The bytes that each of its ranks sends to each other one."""
        size = {ends: sum(e.type.nbytes for e in es) for ends, es in self.messages.items()}
        table = [[size.get((a, b), 0) for b in self.ranks] for a in self.ranks]
        return CollectiveLayout(self.kind, self.ranks, tuple(map(tuple, table)))


def exchanges(edges: Iterable[CommEdge], rank_of: Sequence[int], mb: int = 0) -> Iterator[Exchange]:
    """Yield the exchanges of a micro-batch of a topology with these edges and ranks of stages."""
    named: dict[str, dict[tuple[int, int], list[CommEdge]]] = {}
    for edge in edges:
        if edge.exchange:
            ends = rank_of[edge.src.stage], rank_of[edge.dst.stage]
            if ends[0] != ends[1]:
                named.setdefault(edge.exchange, {}).setdefault(ends, []).append(edge)
    for name, messages in named.items():
        yield Exchange(name, mb, messages)


def in_order(schedules: Sequence[Schedule], exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Return the exchanges in an order in which all ranks can start them.

    It is that in which a run completes them: a rank runs until it needs a message that is not sent,
    or an exchange with such a message.

    Args:
        schedules: Those of one step, one after the other; `check` has accepted them.
    """
    exchange_of = {
        (edge.tag, exchange.mb): number
        for number, exchange in enumerate(exchanges)
        for edges in exchange.messages.values()
        for edge in edges
    }
    if not exchange_of:
        return []
    unsent: dict[Message | int, int] = dict(Counter(exchange_of.values()))  # of others, 1
    order: list[Exchange] = []
    ranks = range(len(schedules[0].programs))
    queues = [deque(_messages([s.programs[rank] for s in schedules])) for rank in ranks]
    moved = True
    while moved:
        moved = False
        for queue in queues:
            while queue:
                code, message = queue[0]
                unit = exchange_of.get(message, message)
                if code == SEND:
                    unsent[unit] = unsent.get(unit, 1) - 1
                    if isinstance(unit, int) and not unsent[unit]:
                        order.append(exchanges[unit])
                elif unsent.get(unit, 1):
                    break
                queue.popleft()
                moved = True
    assert not any(queues), "the schedule hangs"
    return order


def _messages(programs: Iterable[Program]) -> Iterator[tuple[int, Message]]:
    """Yield what a rank sends and receives, in order."""
    for program in programs:
        code, at, mb, _ = program.columns
        places = np.flatnonzero((code == SEND) | (code == RECV))
        for columns in zip(*(c[places].tolist() for c in (code, at, mb)), strict=True):
            yield columns[0], columns[1:]
