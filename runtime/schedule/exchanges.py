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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from partitioner.base.collectives import CollectiveLayout
from partitioner.base.types import CommEdge
from runtime.schedule.instructions import RECV, SEND
from runtime.schedule.program import Program, Schedule

Message = tuple[int, int]  # tag, micro-batch


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
