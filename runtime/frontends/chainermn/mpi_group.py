"""Groups over MPI: its own collectives, on raw memory, with bounded waits.

A collective begins with a meeting: all ranks come, and say which call they make and how much they
bring. So ranks that make different calls get an error, each the same, before anything is moved,
and who is missing is known. MPI itself would hang, or mix up the contents. Small sums need no more
than the meeting, where the terms are brought along.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from runtime.frontends.chainermn.group import (
    Group,
    call_text,
    require_same_calls,
    summed_as,
    wrong_message,
)
from runtime.frontends.chainermn.messages import EAGER, Bytes, Message, begun
from runtime.transports.mpi.cluster import MpiContext
from runtime.transports.mpi.endpoint import gather_ragged
from symgraph.core.types import Array

BROUGHT = 1 << 10  # bytes


class MpiGroup(Group):
    """The ranks of an MPI communicator."""

    def __init__(self, line: MpiContext) -> None:
        self._line = line
        self._mpi, self._comm, self.waiter = line.mpi, line.comm, line.waiter
        self._byte, self._any_tag = line.mpi.BYTE, line.mpi.ANY_TAG
        self._until = self.waiter.until
        self.rank, self.size = line.comm.rank, line.comm.size
        self._status = line.mpi.Status()
        self._splits = 0  # so far
        # What is told at a meeting: the call, a number a rank, and what is brought along.
        width = 1 + self.size
        self._mine = np.zeros(width + BROUGHT // 8, np.int64)
        self._all_ranks = np.empty((self.size, self._mine.size), np.int64)
        self._codes, self._numbers = self._all_ranks[:, 0], self._all_ranks[:, 1:width]
        self._views: dict[np.dtype[Any], tuple[Array, Array]] = {}

    def send(self, message: Message, dst: int, tag: int) -> None:
        self._advance()
        first, rest = message.parts()
        request = self._comm.Isend([first, self._byte], dst, tag)
        if not request.Test():
            self._line.sent.append((request, first))
        requests = [self._comm.Isend([part, self._byte], dst, tag) for part in rest]
        for request, part in zip(requests, rest, strict=True):
            if not request.Test():
                awaited = f"rank {dst} to take a message with tag {tag}"
                needs = (self._line.ranks[dst],)
                self._until(request.Test, awaited, needs, moving=part.nbytes)

    def recv(self, src: int, tag: int, out: Array | None = None) -> Message:
        message, rest = begun(self._take(src, tag), out)
        for part in rest:
            self._take(src, tag, part)
        return message

    def bcast(self, message: Message | None, root: int) -> Message:
        first, rest = message.parts() if message is not None else (np.empty(0, np.uint8), [])
        self._meet(_call("bcast", root), [first.size])
        if message is None:
            first = np.empty(int(self._numbers[root, 0]), np.uint8)
        self._all(self._comm.Ibcast(first, root), "bcast")
        if message is None:
            message, rest = begun(first)
        for part in rest:
            self._all(self._comm.Ibcast([part, self._byte], root), "bcast", part.nbytes)
        return message

    def gather(self, message: Message, root: int) -> list[Message] | None:
        mine, here = message.packed(), self.rank == root
        self._meet(_call("gather", root), [mine.size])
        sizes = self._numbers[:, 0].tolist()
        joined = np.empty(sum(sizes) if here else 0, np.uint8)
        into = [joined, sizes] if here else None
        self._all(self._comm.Igatherv(mine, into, root), "gather", joined.size)
        return _split(joined, sizes) if here else None

    def allgather(self, message: Message) -> list[Message]:
        mine = message.packed()
        self._meet(_call("allgather"), [mine.size])
        sizes = self._numbers[:, 0].tolist()
        request, parts = gather_ragged(self._comm, mine, sizes)
        self._all(request, "allgather", sum(sizes))
        return [begun(part)[0] for part in parts]

    def scatter(self, messages: Sequence[Message] | None, root: int) -> Message:
        parts = [m.packed() for m in messages or ()]
        self._meet(_call("scatter", root), [p.size for p in parts])
        sizes = self._numbers[root].tolist()
        mine = np.empty(sizes[self.rank], np.uint8)
        given = [np.concatenate(parts), sizes] if self.rank == root else None
        self._all(self._comm.Iscatterv(given, mine, root), "scatter", sum(sizes))
        return begun(mine)[0]

    def alltoall(self, messages: Sequence[Message]) -> list[Message]:
        parts = [m.packed() for m in messages]
        given = [p.size for p in parts]
        self._meet(_call("alltoall"), given)
        sizes = self._numbers[:, self.rank].tolist()
        joined = np.empty(sum(sizes), np.uint8)
        outgoing = [np.concatenate(parts), given]
        request = self._comm.Ialltoallv(outgoing, [joined, sizes])
        self._all(request, "alltoall", joined.size)
        return _split(joined, sizes)

    def allreduce(self, array: Array, out: Array) -> None:
        given = array.astype(summed_as(array.dtype), copy=False)
        total = out if out.dtype == given.dtype else np.empty(given.shape, given.dtype)
        call = _call("allreduce", None, given.dtype, given.shape)
        if given.nbytes <= BROUGHT:
            mine, terms = self._brought(given.dtype)
            mine[: given.size] = given.reshape(-1)
            self._meet(call)
            first, *rest = terms[:, : given.size]
            flat = total.reshape(-1)
            flat[...] = first
            for term in rest:
                np.add(flat, term, out=flat)
            if total is not out:
                out[...] = total
            return
        term = self._mpi.IN_PLACE if total is given else given
        self._meet(call)
        if given.nbytes <= EAGER:
            self._all(self._comm.Iallreduce(term, total), "allreduce")
        else:  # MPI's call that cannot be watched is faster, and safe once all ranks have come
            self._comm.Allreduce(term, total)
        if total is not out:
            out[...] = total

    def reduce(self, array: Array, root: int) -> None:
        wide = array.astype(summed_as(array.dtype), copy=False)
        here = self.rank == root
        given, into = (self._mpi.IN_PLACE, wide) if here else (wide, None)
        self._meet(_call("reduce", root, wide.dtype, wide.shape))
        self._all(self._comm.Ireduce(given, into, root=root), "reduce", wide.nbytes)
        if here and wide is not array:
            array[...] = wide

    def reduce_scatter(self, array: Array) -> Array:
        wide = array.astype(summed_as(array.dtype), copy=False)
        part = np.empty(wide.size // self.size, wide.dtype)
        self._meet(_call("reduce_scatter", None, wide.dtype, wide.shape))
        request = self._comm.Ireduce_scatter_block(wide, part)
        self._all(request, "reduce_scatter", wide.nbytes)
        return part.astype(array.dtype, copy=False)

    def split(self, color: int, key: int) -> MpiGroup:
        self._meet(_call("split"))  # MPI's split itself cannot be watched
        comm = self._comm.Split(color, key)
        old, ranks = self._comm.Get_group(), self._line.ranks
        places = self._mpi.Group.Translate_ranks(comm.Get_group(), None, old)
        self._splits += 1
        name = f"{self._line.name}.{self._splits}.{color}"
        return MpiGroup(
            self._line._replace(comm=comm, ranks=tuple([ranks[p] for p in places]), name=name)
        )

    def meet(self, text: str) -> None:
        """All ranks come, with the same text; RunError if theirs differ."""
        self._meet((zlib.crc32(text.encode()), text))

    def _advance(self) -> None:
        """Let go of what is sent. MPICH's Improbe does not go on with messages that are not."""
        sent = self._line.sent
        while sent and sent[0][0].Test():
            sent.popleft()

    def _brought(self, dtype: np.dtype[Any]) -> tuple[Array, Array]:
        """What this rank brings to a meeting, and what all have brought to the last one."""
        if dtype not in self._views:
            mine, all_ = self._mine[1 + self.size :], self._all_ranks[:, 1 + self.size :]
            self._views[dtype] = mine.view(dtype), all_.view(dtype)
        return self._views[dtype]

    def _meet(self, call: tuple[int, str], numbers: Sequence[int] = ()) -> None:
        """All ranks come to make this call.

        numbers: at most one a rank; those of all are in `_numbers` until the next meeting.
        """
        code, text = call
        line, mine, all_ = self._line, self._mine, self._all_ranks
        mine[0] = code
        if numbers:
            mine[1 : 1 + len(numbers)] = numbers
        number = line.waiter.meet(line.name)
        request = self._comm.Iallgather(mine, all_)
        if not request.Test():
            awaited = f"{text} with all ranks"
            self._until(request.Test, awaited, line.ranks, meeting=(line.name, number))
        if self._codes.tolist().count(code) != self.size:
            require_same_calls(self._exchange(text))

    def _exchange(self, text: str) -> list[str]:
        """Every rank's text, on all ranks."""
        mine, sizes = np.frombuffer(text.encode(), np.uint8), np.empty(self.size, np.int64)
        self._all(self._comm.Iallgather(np.array([mine.size]), sizes), "a complaint")
        request, parts = gather_ragged(self._comm, mine, sizes.tolist())
        self._all(request, "a complaint")
        return [part.tobytes().decode() for part in parts]

    def _all(self, request: Any, verb: str, moving: int = 0) -> None:
        """Wait for what all ranks have come to."""
        if not request.Test():
            self._until(request.Test, f"{verb} with all ranks", moving=moving)

    def _take(self, src: int, tag: int, out: Bytes | None = None) -> Bytes:
        comm, status, any_tag = self._comm, self._status, self._any_tag

        def arrived() -> Any:
            self._advance()
            return comm.Improbe(src, any_tag, status)

        found = arrived()
        if not found:
            awaited = f"a message with tag {tag} of rank {src}"
            found = self._until(arrived, awaited, (self._line.ranks[src],))
        if status.tag != tag:
            raise wrong_message(self.rank, src, status.tag, tag)
        size = status.Get_count(self._byte)
        into: Bytes = np.empty(size, np.uint8) if out is None else out
        request = found.Irecv([into, self._byte])
        if not request.Test():
            self._until(request.Test, f"the rest of a message of rank {src}", moving=size)
        return into


@lru_cache(1024)
def _call(
    verb: str, root: int | None = None, dtype: Any = None, shape: tuple[int, ...] = ()
) -> tuple[int, str]:
    """A number for a call, by which ranks compare theirs, and its text."""
    text = call_text(verb, root, dtype, shape)
    return zlib.crc32(text.encode()), text


def _split(joined: Bytes, sizes: Sequence[int]) -> list[Message]:
    return [begun(part)[0] for part in np.split(joined, np.cumsum(sizes)[:-1])]
