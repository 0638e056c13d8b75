"""Groups over MPI: its own collectives, on raw memory, with bounded waits.

A collective begins with a meeting (see transports/mpi/meeting.py): ranks say which call they make
and how many bytes they bring, so wrong programs get an error where MPI would hang or mix up the
contents. Small sums need only the meeting, because the ranks bring the terms along.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from partitioner.base.collectives import CollectiveLayout
from runtime.frontends.chainermn.group import Group, call_text, summed_as
from runtime.frontends.chainermn.messages import EAGER_BYTES, Bytes, Message, begun
from runtime.transports.mpi.cluster import MpiContext
from runtime.transports.mpi.collectives import start_collective
from runtime.transports.mpi.meeting import Meeting, gather_bytes
from symgraph.core.errors import RunError
from symgraph.core.types import Array

BROUGHT_BYTES = 1 << 10  # sums of at most this size are brought along to the meeting


class MpiGroup(Group):
    """The ranks of an MPI communicator."""

    def __init__(self, context: MpiContext, whom: str = "all ranks") -> None:
        """whom: the ranks, as errors name them."""
        self._context, self._whom = context, whom
        self._mpi, self._comm, self.waiter = context.mpi, context.comm, context.waiter
        self._byte, self._any_tag = context.mpi.BYTE, context.mpi.ANY_TAG
        self._until = self.waiter.until
        self.rank, self.size, self.ranks = context.comm.rank, context.comm.size, context.ranks
        self._status = context.mpi.Status()
        self._splits = 0  # so far
        # What ranks say at a meeting: the call, a number per rank, and the terms of a small sum.
        self._meeting = Meeting(
            self._comm,
            self.waiter,
            context.name,
            self.ranks,
            1 + self.size + BROUGHT_BYTES // 8,
            whom=whom,
        )
        self._codes = self._meeting.rows[:, 0]
        self._numbers = self._meeting.rows[:, 1 : 1 + self.size]
        self._views: dict[np.dtype[Any], tuple[Array, Array]] = {}

    def send(self, message: Message, dst: int, tag: int) -> None:
        self._advance()
        first, rest = message.parts()
        request = self._comm.Isend([first, self._byte], dst, tag)
        if not request.Test():
            self._context.sent.append((request, first))
        requests = [self._comm.Isend([part, self._byte], dst, tag) for part in rest]
        for request, part in zip(requests, rest, strict=True):
            if not request.Test():
                place = self.ranks[dst]
                awaited = f"rank {place} to take a message with tag {tag}"
                self._until(request.Test, awaited, (place,), moving=part.nbytes)

    def recv(self, src: int, tag: int, out: Array | None = None) -> Message:
        message, rest = begun(self._take(src, tag), out)
        for part in rest:
            self._take(src, tag, part)
        return message

    def bcast(self, message: Message | None, root: int) -> Message:
        first, rest = message.parts() if message is not None else (np.empty(0, np.uint8), [])
        self._meet(_call("bcast", self.ranks[root]), [first.size])
        if message is None:
            first = np.empty(int(self._numbers[root, 0]), np.uint8)
        self._wait(self._comm.Ibcast(first, root), "bcast", first)
        if message is None:
            message, rest = begun(first)
        for part in rest:
            self._wait(self._comm.Ibcast([part, self._byte], root), "bcast", part)
        return message

    def _exchange(
        self,
        kind: str,
        root: int | None,
        outgoing: Mapping[int, Message],
        sources: Sequence[int],
    ) -> list[Message]:
        """See Group; ranks tell each other the sizes, then MPI's own collective moves the bytes."""
        if kind == "allgather":
            parts = [outgoing[0].packed()]
            row = [parts[0].size] * self.size
        else:
            parts = [message.packed() for message in outgoing.values()]
            sizes = {dst: part.size for dst, part in zip(outgoing, parts, strict=True)}
            row = [sizes.get(dst, 0) for dst in range(self.size)]
        self._meet(_call(kind, root if root is None else self.ranks[root]), row)
        table = tuple(map(tuple, self._numbers.tolist()))
        layout = CollectiveLayout(kind, tuple(range(self.size)), table)
        arriving = [layout.column(self.rank)[src] for src in sources]
        out, into = _joined(parts), np.empty(sum(arriving), np.uint8)
        request = start_collective(self._comm, layout, out, into)
        self._wait(request, kind, out, into)
        parts = np.split(into, np.cumsum(arriving)[:-1]) if arriving else []
        return [begun(part)[0] for part in parts]

    def allreduce(self, array: Array, out: Array) -> None:
        given = array.astype(summed_as(array.dtype), copy=False)
        if given is not out and np.may_share_memory(given, out):
            given = given.copy()  # MPI takes no buffers that overlap
        total = out if out.dtype == given.dtype else np.empty(given.shape, given.dtype)
        call = _call("allreduce", None, given.dtype, given.shape)
        if given.nbytes <= BROUGHT_BYTES:
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
        if given.nbytes <= EAGER_BYTES:
            self._wait(self._comm.Iallreduce(term, total), "allreduce", given, total)
        else:  # MPI's blocking call is faster, and safe once all ranks have come
            self._comm.Allreduce(term, total)
        if total is not out:
            out[...] = total

    def reduce(self, array: Array, root: int) -> None:
        wide = array.astype(summed_as(array.dtype), copy=False)
        here = self.rank == root
        given, into = (self._mpi.IN_PLACE, wide) if here else (wide, None)
        self._meet(_call("reduce", self.ranks[root], wide.dtype, wide.shape))
        self._wait(self._comm.Ireduce(given, into, root=root), "reduce", wide)
        if here and wide is not array:
            array[...] = wide

    def reduce_scatter(self, array: Array) -> Array:
        wide = array.astype(summed_as(array.dtype), copy=False)
        part = np.empty(wide.size // self.size, wide.dtype)
        self._meet(_call("reduce_scatter", None, wide.dtype, wide.shape))
        request = self._comm.Ireduce_scatter_block(wide, part)
        self._wait(request, "reduce_scatter", wide, part)
        return part.astype(array.dtype, copy=False)

    def split(self, color: int, key: int) -> MpiGroup:
        self._meet(_call("split"))  # MPI's split itself is a blocking call
        try:
            comm = self._comm.Split(color, key)
        except self._mpi.Exception as error:
            raise RunError(
                "split: MPI makes no more communicators; make them once, before a loop, as none is "
                "given back before the program ends"
            ) from error
        old, ranks = self._comm.Get_group(), self.ranks
        places = self._mpi.Group.Translate_ranks(comm.Get_group(), None, old)
        self._splits += 1
        name = f"{self._context.name}.{self._splits}.{color}"
        some = tuple([ranks[p] for p in places])
        parts = f"ranks {', '.join(map(str, sorted(some)))} alone"
        return MpiGroup(
            self._context._replace(comm=comm, ranks=some, name=name),
            self._whom if len(some) == self.size else parts,
        )

    def meet(self, text: str) -> None:
        """Let all ranks come with this text; RunError, on all of them, if theirs differ."""
        self._meet((zlib.crc32(text.encode()), text))

    def _advance(self) -> None:
        """Drop messages that have been sent; MPICH's Improbe makes no progress on others."""
        sent = self._context.sent
        while sent and sent[0][0].Test():
            sent.popleft()

    def _brought(self, dtype: np.dtype[Any]) -> tuple[Array, Array]:
        """Return the terms that this rank brings to a meeting, and those that all have brought."""
        if dtype not in self._views:
            row, rows = self._meeting.row[1 + self.size :], self._meeting.rows[:, 1 + self.size :]
            self._views[dtype] = row.view(dtype), rows.view(dtype)
        return self._views[dtype]

    def _meet(self, call: tuple[int, str], numbers: Sequence[int] = ()) -> None:
        """Let all ranks come and make this call; RunError, on all of them, if theirs differ.

        numbers: at most one per rank; those of all are in `_numbers` until the next meeting.
        """
        code, text = call
        meeting = self._meeting
        meeting.row[0] = code
        if numbers:
            meeting.row[1 : 1 + len(numbers)] = numbers
        meeting.hold(text)
        if self._codes.tolist().count(code) != self.size:
            texts = gather_bytes(
                self._comm, self._until, text.encode(), f"a complaint with {self._whom}"
            )
            self.require_same([t.decode() for t in texts])

    def _wait(self, request: Any, verb: str, *buffers: Array) -> None:
        """Wait for a collective of these buffers to which all ranks have come."""
        if not request.Test():
            moving = max([buffer.nbytes for buffer in buffers])
            awaited = f"{verb} with {self._whom}"
            self._until(request.Test, awaited, moving=moving, buffers=buffers)

    def _take(self, src: int, tag: int, out: Bytes | None = None) -> Bytes:
        comm, status, any_tag = self._comm, self._status, self._any_tag

        def arrived() -> Any:
            self._advance()
            return comm.Improbe(src, any_tag, status)

        found = arrived()
        if not found:
            awaited = f"a message with tag {tag} of rank {self.ranks[src]}"
            found = self._until(arrived, awaited, (self.ranks[src],))
        if status.tag != tag:
            raise self.wrong_message(src, status.tag, tag)
        size = status.Get_count(self._byte)
        into: Bytes = np.empty(size, np.uint8) if out is None else out
        request = found.Irecv([into, self._byte])
        if not request.Test():
            self._until(
                request.Test, f"the rest of a message of rank {self.ranks[src]}", moving=size
            )
        return into


@lru_cache(1024)
def _call(
    verb: str, root: int | None = None, dtype: Any = None, shape: tuple[int, ...] = ()
) -> tuple[int, str]:
    """Return a number by which ranks compare their calls, and the text of the call."""
    text = call_text(verb, root, dtype, shape)
    return zlib.crc32(text.encode()), text


def _joined(parts: Sequence[Bytes]) -> Bytes:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)
