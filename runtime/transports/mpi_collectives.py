"""MPI's own collectives as tickets: all ranks of a group start them in one order; none blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from runtime.transports.base import Blocks, Group, Ticket, joined_by

Comm = Any  # mpi4py's Intracomm: only mpi.py knows that package
Groups = dict[Group, Comm]  # None: this rank is not in it
Bytes = npt.NDArray[Any]


class Waiter(Protocol):
    """Bounded waits of one rank."""

    def until(self, attempt: Callable[[], object], awaited: str, moving: int = 0) -> object:
        """Call `attempt` until it gives something true."""
        ...


class _Joined:
    """The ticket of a collective under way."""

    __slots__ = ("_blocks", "_buffers", "_request", "_waiter")

    def __init__(
        self, request: Any, waiter: Waiter, blocks: Blocks, buffers: Sequence[Bytes]
    ) -> None:
        """buffers: what must live as long."""
        self._request, self._waiter, self._blocks, self._buffers = request, waiter, blocks, buffers

    def done(self) -> bool:
        return bool(self._request.Test())

    def wait(self) -> None:
        moving = sum(buffer.nbytes for buffer in self._buffers)
        self._waiter.until(self._request.Test, joined_by(self._blocks), moving)


class MpiCollectives:
    """See `Collectives`. groups: communicators made before, shared by all endpoints of a rank."""

    def __init__(self, comm: Comm, waiter: Waiter, groups: Groups) -> None:
        self._comm, self._waiter, self._groups = comm, waiter, groups
        self._under_way: deque[_Joined] = deque()

    def join(self, groups: Sequence[Group]) -> None:
        """See `Collectives.join`; a communicator for each group, made once."""
        new = [group for group in groups if group not in self._groups]
        if new:
            # MPI's own way to make communicators cannot be watched: so all ranks come here first.
            self._waiter.until(self._comm.Ibarrier().Test, "all ranks to join")
        for group in sorted(new):
            members = self._comm.Get_group().Incl(group[1])
            own = self._comm.rank in group[1]
            self._groups[group] = self._comm.Create_group(members) if own else None

    def start(self, blocks: Blocks, out: Bytes, into: Bytes) -> Ticket:
        """See `Collectives.start`."""
        comm = self._groups[blocks.group]
        assert comm is not None
        ticket = _Joined(_start(comm, blocks, out, into), self._waiter, blocks, (out, into))
        self._under_way.append(ticket)
        return ticket

    def advance(self) -> None:
        """Let go of those that are done."""
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft()

    def finish(self) -> None:
        """Wait for all that are under way."""
        while self._under_way:
            self._under_way[0].wait()
            self._under_way.popleft()


def _start(comm: Comm, blocks: Blocks, out: Bytes, into: Bytes) -> Any:
    """The collective of these blocks on the communicator of its ranks."""
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
