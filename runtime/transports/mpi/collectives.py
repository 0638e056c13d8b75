"""MPI's non-blocking collectives as tickets; all ranks of a group start them in one order.

Where ranks have GPUs and MPI takes their memory, the same blocks go as messages between all pairs:
Open MPI takes memory of GPUs in messages, but not in non-blocking collectives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from partitioner.base.collectives import CollectiveLayout, Group
from runtime.transports.base import CollectiveTicket, joined_by
from runtime.transports.mpi.staging import Staging, settle
from runtime.transports.mpi.waiter import Waiter

Comm = Any  # mpi4py's Intracomm: only cluster.py imports that package
Groups = dict[Group, Comm]  # None: this rank is not in it
Bytes = npt.NDArray[Any]


class Joined:
    """The ticket of a collective in progress."""

    __slots__ = ("_blocks", "_buffers", "_meeting", "_of", "_request")

    def __init__(
        self, request: Any, of: MpiCollectives, blocks: CollectiveLayout, buffers: Sequence[Bytes]
    ) -> None:
        """buffers: kept alive until the collective is over."""
        self._request, self._of, self._blocks, self._buffers = request, of, blocks, buffers
        self._meeting = of.meet(blocks.group)

    def done(self) -> bool:
        return self.over()

    def returned(self) -> bool:
        return self.over()

    def wait_for_return(self) -> None:
        self.wait()

    def over(self) -> bool:
        """Return whether MPI is done with it."""
        return bool(self._request.Test())

    def wait(self) -> None:
        if not self._request.Test():
            moving = sum(buffer.nbytes for buffer in self._buffers)
            awaited, needs = joined_by(self._blocks), self._blocks.ranks
            self._of.wait(self._request, awaited, needs, self._meeting, moving)


class MpiCollectives:
    """See `Collectives`."""

    lend = None  # each process has its own memory

    def __init__(
        self, comm: Comm, waiter: Waiter, run: int, groups: Groups, staging: Staging
    ) -> None:
        """groups: existing communicators, shared by all endpoints of a rank. run: see `Wait`."""
        self._comm, self._waiter, self._run, self._groups = comm, waiter, run, groups
        self._staging = staging
        self._cards: frozenset[int] = frozenset()  # ranks with GPUs whose memory MPI takes
        self._under_way: deque[Joined] = deque()

    def join(self, groups: Sequence[Group], cards: Collection[int] = ()) -> None:
        """See `Collectives.join`; a communicator for each group, made once."""
        if cards and self._agreed(self._comm.rank in cards):
            self._cards = frozenset(cards)
        new = [group for group in groups if group not in self._groups]
        if new:
            # MPI makes communicators in a blocking call without a limit: so all ranks meet first.
            everyone = tuple(range(self._comm.size))
            meeting = self.meet(("join", everyone))
            self.wait(self._comm.Ibarrier(), "all ranks to join", everyone, meeting)
        for group in sorted(new):
            members = self._comm.Get_group().Incl(group[1])
            is_member = self._comm.rank in group[1]
            self._groups[group] = self._comm.Create_group(members) if is_member else None

    def _agreed(self, has_card: bool) -> bool:
        """Return whether MPI takes the memory of GPUs on all ranks; they ask each other once."""
        staging = self._staging
        if staging.agreed is None:
            everyone = tuple(range(self._comm.size))
            meeting, said = self.meet(("cards", everyone)), np.empty(len(everyone), np.uint8)
            own = np.array([staging.aware or not has_card], np.uint8)
            self.wait(self._comm.Iallgather(own, said), "all ranks to join", everyone, meeting)
            staging.agreed = bool(said.all())
        return staging.agreed

    def module(self, ranks: Sequence[int]) -> Any:
        """See `Collectives.module`; numpy unless MPI takes the memory of GPUs."""
        return np if self._cards.isdisjoint(ranks) else None

    def start(self, blocks: CollectiveLayout, out: Bytes, into: Bytes) -> CollectiveTicket:
        """See `Collectives.start`."""
        comm = self._groups[blocks.group]
        assert comm is not None
        start = start_collective if self._cards.isdisjoint(blocks.ranks) else _by_messages
        ticket = Joined(start(comm, blocks, out, into), self, blocks, (out, into))
        self._under_way.append(ticket)
        return ticket

    def meet(self, group: Group) -> tuple[str, int]:
        """Count this rank's arrival at a group's next collective."""
        name = f"collective {group}"
        return name, self._waiter.meet(name)

    def wait(
        self,
        request: Any,
        awaited: str,
        needs: Sequence[int],
        meeting: tuple[str, int],
        moving: int = 0,
    ) -> None:
        """Wait for a collective at which this rank has arrived."""
        until = self._waiter.until
        until(request.Test, awaited, needs, moving=moving, run=self._run, meeting=meeting)

    def advance(self) -> None:
        """Drop collectives that are over."""
        while self._under_way and self._under_way[0].over():
            self._under_way.popleft()

    def finish(self) -> None:
        """Wait for all collectives in progress."""
        while self._under_way:
            self._under_way[0].wait()
            self._under_way.popleft()


def start_collective(comm: Comm, blocks: CollectiveLayout, out: Bytes, into: Bytes) -> Any:
    """Start MPI's own collective of these blocks; return its request."""
    me = comm.rank
    got = [into, blocks.column(me)]
    if blocks.kind == "allgather":
        return comm.Iallgatherv(out, got)
    if blocks.kind == "alltoall":
        return comm.Ialltoallv([out, list(blocks.sizes[me])], got)
    if blocks.kind == "gather":
        root = next(j for j in range(comm.size) if any(blocks.column(j)))
        return comm.Igatherv(out, got if me == root else None, root)
    root = next(i for i in range(comm.size) if blocks.given(i))
    if blocks.kind == "scatter":
        given = [out, list(blocks.sizes[me])] if me == root else None
        return comm.Iscatterv(given, into, root)
    return comm.Ibcast(out if me == root else into, root)


class _Several:
    """Several requests as one."""

    def __init__(self, requests: Sequence[Any]) -> None:
        self._requests = requests

    def Test(self) -> bool:
        return all([request.Test() for request in self._requests])


def _by_messages(comm: Comm, blocks: CollectiveLayout, out: Bytes, into: Bytes) -> _Several:
    """Start the same as messages, one per block; a rank's own block is sent to itself."""
    for array in (out, into):
        settle(array)
    me, requests, at = comm.rank, [], 0
    for i, size in enumerate(blocks.column(me)):
        if size:
            requests.append(comm.Irecv(into[at : at + size], i))
        at += size
    own = blocks.given(me) if blocks.kind == "allgather" else 0
    for j, size in enumerate(blocks.sizes[me]):
        first, count = blocks.to(me, j), own if j == me else size
        if count:
            requests.append(comm.Isend(out[first : first + count], j))
    return _Several(requests)
