"""Groups over MPI: its own collectives, on raw memory, with bounded waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.chainermn.group import Group, summed_as
from runtime.chainermn.messages import CODES, EAGER, Bytes, Message, begun
from runtime.transports.mpi import Line
from symgraph.errors import RunError
from symgraph.types import DTYPES, Array


class MpiGroup(Group):
    """The ranks of an MPI communicator."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._mpi, self._comm, waiter = line
        self._until = waiter.until
        self.rank, self.size = line.comm.rank, line.comm.size
        self._status = line.mpi.Status()
        self._eager: deque[tuple[Any, Bytes]] = deque()  # requests under way, and their buffers

    def send(self, message: Message, dst: int, tag: int) -> None:
        self._advance()
        first, rest = message.parts()
        self._eager.append((self._comm.Isend([first, self._mpi.BYTE], dst, tag), first))
        requests = [self._comm.Isend([part, self._mpi.BYTE], dst, tag) for part in rest]
        for request, part in zip(requests, rest, strict=True):
            self._until(request.Test, f"rank {dst} to take a message with tag {tag}", part.size)

    def recv(self, src: int, tag: int, out: Array | None = None) -> Message:
        message, rest = begun(self._take(src, tag), out)
        for part in rest:
            self._take(src, tag, part)
        return message

    def bcast(self, message: Message | None, root: int) -> Message:
        first, rest = message.parts() if message is not None else (np.empty(0, np.uint8), [])
        size = np.array([first.size])
        self._all(self._comm.Ibcast(size, root), "bcast")
        if message is None:
            first = np.empty(int(size[0]), np.uint8)
        self._all(self._comm.Ibcast(first, root), "bcast")
        if message is None:
            message, rest = begun(first)
        for part in rest:
            self._all(self._comm.Ibcast([part, self._mpi.BYTE], root), "bcast")
        return message

    def gather(self, message: Message, root: int) -> list[Message] | None:
        mine, here = message.packed(), self.rank == root
        sizes = np.empty(self.size, np.int64)
        size = np.array([mine.size])
        self._all(self._comm.Igather(size, sizes if here else None, root), "gather")
        joined = np.empty(sizes.sum() if here else 0, np.uint8)
        into = [joined, sizes.tolist()] if here else None
        self._all(self._comm.Igatherv(mine, into, root), "gather")
        return _split(joined, sizes) if here else None

    def allgather(self, message: Message) -> list[Message]:
        mine, sizes = message.packed(), np.empty(self.size, np.int64)
        self._all(self._comm.Iallgather(np.array([mine.size]), sizes), "allgather")
        joined = np.empty(sizes.sum(), np.uint8)
        self._all(self._comm.Iallgatherv(mine, [joined, sizes.tolist()]), "allgather")
        return _split(joined, sizes)

    def scatter(self, messages: Sequence[Message] | None, root: int) -> Message:
        parts = [m.packed() for m in messages or ()]
        sizes, size = np.array([p.size for p in parts]), np.empty(1, np.int64)
        here = self.rank == root
        self._all(self._comm.Iscatter(sizes if here else None, size, root), "scatter")
        mine = np.empty(int(size[0]), np.uint8)
        given = [np.concatenate(parts), sizes.tolist()] if here else None
        self._all(self._comm.Iscatterv(given, mine, root), "scatter")
        return begun(mine)[0]

    def alltoall(self, messages: Sequence[Message]) -> list[Message]:
        parts = [m.packed() for m in messages]
        given, sizes = np.array([p.size for p in parts]), np.empty(self.size, np.int64)
        self._all(self._comm.Ialltoall(given, sizes), "alltoall")
        joined = np.empty(sizes.sum(), np.uint8)
        outgoing = [np.concatenate(parts), given.tolist()]
        self._all(self._comm.Ialltoallv(outgoing, [joined, sizes.tolist()]), "alltoall")
        return _split(joined, sizes)

    def allreduce(self, array: Array, out: Array) -> None:
        given = array.astype(summed_as(array.dtype), copy=False)
        total = out if out.dtype == given.dtype else np.empty(given.shape, given.dtype)
        term = self._mpi.IN_PLACE if total is given else given
        if given.nbytes <= EAGER:
            self._all(self._comm.Iallreduce(term, total), "allreduce")
        else:  # MPI's call that cannot be watched is faster, and safe once all ranks have come
            self._require_same(given)
            self._comm.Allreduce(term, total)
        if total is not out:
            out[...] = total

    def reduce(self, array: Array, root: int) -> None:
        wide = array.astype(summed_as(array.dtype), copy=False)
        here = self.rank == root
        given, into = (self._mpi.IN_PLACE, wide) if here else (wide, None)
        self._all(self._comm.Ireduce(given, into, root=root), "reduce")
        if here and wide is not array:
            array[...] = wide

    def reduce_scatter(self, array: Array) -> Array:
        wide = array.astype(summed_as(array.dtype), copy=False)
        part = np.empty(wide.size // self.size, wide.dtype)
        self._all(self._comm.Ireduce_scatter_block(wide, part), "reduce_scatter")
        return part.astype(array.dtype, copy=False)

    def split(self, color: int, key: int) -> MpiGroup:
        self._all(self._comm.Ibarrier(), "split")  # MPI's split itself cannot be watched
        return MpiGroup(self._line._replace(comm=self._comm.Split(color, key)))

    def _advance(self) -> None:
        """Let go of what is sent. MPICH's Improbe does not go on with messages that are not."""
        while self._eager and self._eager[0][0].Test():
            self._eager.popleft()

    def _require_same(self, array: Array) -> None:
        mine, all_ = np.array([array.size, CODES[array.dtype]]), np.empty((self.size, 2), np.int64)
        self._all(self._comm.Iallgather(mine, all_), "allreduce")
        for rank, (size, code) in enumerate(all_.tolist()):
            if (size, code) != tuple(all_[0]):
                raise RunError(
                    f"a sum over ranks: rank {rank} gives {size} elements of {DTYPES[code]}, but "
                    f"rank 0 {all_[0][0]} of {DTYPES[all_[0][1]]}"
                )

    def _all(self, request: Any, verb: str) -> None:
        self._until(request.Test, f"{verb} with all ranks")

    def _take(self, src: int, tag: int, out: Bytes | None = None) -> Bytes:
        comm, status, any_tag = self._comm, self._status, self._mpi.ANY_TAG
        awaited = f"a message with tag {tag} of rank {src}"

        def arrived() -> Any:
            self._advance()
            return comm.Improbe(src, any_tag, status)

        found = self._until(arrived, awaited)
        if status.Get_tag() != tag:
            raise RunError(
                f"rank {self.rank}: the next message of rank {src} has tag {status.Get_tag()}, but "
                f"tag {tag} is asked for; receive messages in the order they are sent"
            )
        into: Bytes = np.empty(status.Get_count(self._mpi.BYTE), np.uint8) if out is None else out
        self._until(found.Irecv([into, self._mpi.BYTE]).Test, awaited, into.size)
        return into


def _split(joined: Bytes, sizes: Any) -> list[Message]:
    return [begun(part)[0] for part in np.split(joined, np.cumsum(sizes)[:-1])]
