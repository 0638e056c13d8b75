"""One MPI process's endpoint: non-blocking messages on raw memory, and its collectives.

Arrays travel as bytes (MPI has no float16, and no array is pickled); those on GPUs directly or by
way of the host (`staging.py`). Every wait is bounded (`waiter.py`). A receiver takes the head of
its channel, whatever its tag, and checks tag and size: channels are queues, as on every transport,
and a message that does not fit is an error, never a truncation or a hang. Large messages are
matched first (`Improbe`), which separates waiting for a rank from moving bytes: the latter is never
a stall, and must not be slowed down by sleeping.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.backends.parcels import Parcel
from runtime.transports.base import (
    CARRIED,
    Failure,
    Ticket,
    check_recv,
    check_reduced,
    check_send,
    message_from,
    require_same_calls,
    require_same_lengths,
    taken_by,
    type_text,
    wrong_tag,
    wrong_type,
)
from runtime.transports.mpi.collectives import Groups, MpiCollectives
from runtime.transports.mpi.lifeline import Lifeline
from runtime.transports.mpi.meeting import Meeting, gather_bytes
from runtime.transports.mpi.staging import Staging
from runtime.transports.mpi.waiter import Waiter
from symgraph.core.errors import RunError

__all__: list[str] = []

EAGER_BYTES = 1 << 13  # MPI delivers such a message at once
VERBS = ("allreduce", "exchange")
MEETING_NAME = "endpoint"


class _Sent:
    """The ticket of a message that has left already."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass


SENT = _Sent()


class Tickets:
    """The ticket of several messages."""

    def __init__(self, tickets: Sequence[Ticket]) -> None:
        self._tickets = tickets

    def done(self) -> bool:
        return all([ticket.done() for ticket in self._tickets])

    def wait(self) -> None:
        for ticket in self._tickets:
            ticket.wait()


class Sending:
    """The ticket of a message under way."""

    __slots__ = ("_awaited", "_end", "_request", "buffer", "nbytes")

    def __init__(
        self, request: Any, end: MpiTransport, awaited: tuple[int, int], nbytes: int, buffer: Any
    ) -> None:
        """awaited: receiver and tag. buffer: the staging buffer of a value on a GPU, or None."""
        self._request, self._end, self._awaited = request, end, awaited
        self.nbytes, self.buffer = nbytes, buffer

    def done(self) -> bool:
        return bool(self._request.Test())

    def over(self) -> bool:
        """Return whether MPI is done with it."""
        return bool(self._request.Test())

    def wait(self) -> None:
        if not self._request.Test():
            dst, tag = self._awaited
            self._end.until(self._request.Test, taken_by(dst, tag), (dst,), moving=self.nbytes)


class MpiTransport:
    """One process's endpoint."""

    def __init__(
        self,
        mpi: Any,
        comm: Any,
        waiter: Waiter,
        lifeline: Lifeline,
        groups: Groups,
        staging: Staging,
    ) -> None:
        """groups: communicators of groups of ranks."""
        self.rank, self.size, self.timeout = comm.rank, comm.size, waiter.timeout
        self._mpi, self._comm, self._waiter, self._lifeline = mpi, comm, waiter, lifeline
        self._byte, self._any_tag = mpi.BYTE, mpi.ANY_TAG
        self._tags: int = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB) + 1
        self._status = mpi.Status()
        self._peers = frozenset(range(self.size)) - {self.rank}
        self._staging = staging
        self._sending: deque[Sending] = deque()  # keeps the buffers of messages under way
        self._closed = False
        self.until = partial(waiter.until, run=lifeline.status.runs)
        everyone, run = range(self.size), lifeline.status.runs
        self._meeting = Meeting(comm, waiter, MEETING_NAME, everyone, 2, run)
        self.collectives = MpiCollectives(comm, waiter, lifeline.status.runs, groups, staging)

    def open(self, channels: Sequence[tuple[int, int]]) -> None:
        """See `Transport.open`; nothing to do."""

    def send(self, array: npt.NDArray[Any], dst: int, tag: int) -> Ticket:
        """See `Transport.send`."""
        if self._closed or dst not in self._peers or array.dtype not in CARRIED:
            self._check_open("send")
            check_send(array, self.rank, dst, self.size)
        buffer = None
        if not isinstance(array, np.ndarray):
            array = buffer = self._staging.outgoing(array)
        elif not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        request = self._comm.Isend([array, self._byte], dst, tag % self._tags)
        if self._sending:
            self._advance()
        if request.Test():
            self._staging.sent(buffer)
            return SENT
        ticket = Sending(request, self, (dst, tag), array.nbytes, buffer)
        self._sending.append(ticket)
        return ticket

    def recv(self, out: npt.NDArray[Any], src: int, tag: int) -> None:
        """See `Transport.recv`; a wrong type is noticed only if its size differs."""
        on_host = isinstance(out, np.ndarray)
        if self._closed or src not in self._peers or not (on_host and out.flags.carray):
            self._check_open("recv")
            check_recv(out, self.rank, src, self.size)
        if on_host:
            self._recv(out, src, tag)
        else:
            buffer = self._staging.incoming(out)
            self._recv(buffer, src, tag)
            self._staging.received(buffer, out)

    def send_all(self, parcel: Parcel, dst: int, tags: Sequence[int]) -> Ticket:
        """See `Transport.send_all`; the messages go one by one."""
        pairs = zip(parcel.arrays, tags, strict=True)
        tickets = [self.send(array, dst, tag) for array, tag in pairs]
        return tickets[0] if len(tickets) == 1 else Tickets(tickets)

    def recv_all(self, parcel: Parcel, src: int, tags: Sequence[int]) -> None:
        """See `Transport.recv_all`."""
        for array, tag in zip(parcel.arrays, tags, strict=True):
            self.recv(array, src, tag)

    def _recv(self, out: npt.NDArray[Any], src: int, tag: int) -> None:
        if out.nbytes > EAGER_BYTES:
            self._recv_large(out, src, tag)
            return
        status = self._status
        try:
            request = self._comm.Irecv([out, self._byte], src, self._any_tag)
            if not request.Test(status):
                test = partial(request.Test, status)
                self.until(test, message_from(src, tag), (src,), moving=self._moving())
        except self._mpi.Exception as error:  # no other comes through: see Waiter.until
            raise self._wrong_size(out, src, tag, f"more than {out.nbytes} bytes") from error
        self._check_head(out, src, tag)

    def allreduce(self, array: npt.NDArray[np.float64]) -> None:
        """See `Transport.allreduce`; gathers and adds, because MPI's own order is not fixed."""
        self._check_open("allreduce")
        check_reduced(array, self.rank)
        require_same_lengths(self._meet("allreduce", array.size))
        rows = np.empty((self.size, array.size))
        request = self._comm.Iallgather(np.ascontiguousarray(array), rows)
        self.until(request.Test, "allreduce with all ranks")
        array[:] = rows[0]
        for row in rows[1:]:
            array += row

    def exchange(self, obj: Any) -> list[Any]:
        """See `Transport.exchange`."""
        self._check_open("exchange")
        mine = json.dumps(obj).encode()
        sizes = self._meet("exchange", len(mine))
        parts = gather_bytes(self._comm, self.until, mine, "exchange with all ranks", sizes)
        return [json.loads(part) for part in parts]

    def waiting_for(self, what: str) -> None:
        """See `Transport.waiting_for`."""
        self._waiter.what = what

    def abort(self, failure: Failure) -> None:
        """See `Transport.abort`."""
        self._lifeline.abort(failure)

    def close(self) -> None:
        """See `Transport.close`; waits for messages in transit, unless the run has failed."""
        self._closed = True
        while self._sending and self._lifeline.failure is None:
            self._sending[0].wait()
            self._staging.sent(self._sending.popleft().buffer)
        if self._lifeline.failure is None:
            self.collectives.finish()

    def _recv_large(self, out: npt.NDArray[Any], src: int, tag: int) -> None:
        message = self._head(src, tag)
        self._check_head(out, src, tag)
        self._take(message, out, src, tag)

    def _head(self, src: int, tag: int) -> Any:
        """Wait for the next message of a channel and match it; `_status` describes it."""

        def arrived() -> Any:
            self._advance()
            return self._comm.Improbe(src, self._any_tag, self._status)

        awaited = message_from(src, tag)
        return arrived() or self.until(arrived, awaited, (src,), moving=self._moving())

    def _take(self, message: Any, out: npt.NDArray[Any], src: int, tag: int) -> None:
        """Receive a matched message."""
        request = message.Irecv([out, self._byte])
        if not request.Test():
            self.until(request.Test, message_from(src, tag), moving=out.nbytes)

    def _check_head(self, out: npt.NDArray[Any], src: int, tag: int) -> None:
        """Raise RunError unless `_status` describes the expected message."""
        self._check_tag(src, tag)
        size = self._status.Get_count(self._byte)
        if size != out.nbytes:
            raise self._wrong_size(out, src, tag, f"{size} bytes")

    def _check_tag(self, src: int, tag: int) -> None:
        if self._status.tag != tag % self._tags:
            raise wrong_tag(src, self.rank, self._status.tag, tag)

    def _wrong_size(self, out: npt.NDArray[Any], src: int, tag: int, message: str) -> RunError:
        wanted = f"{type_text(out)}, {out.nbytes} bytes"
        return wrong_type(src, self.rank, tag, message, wanted)

    def _meet(self, verb: str, size: int) -> list[int]:
        """Let all ranks say what they call; return the sizes of what they bring."""
        meeting = self._meeting
        meeting.row[:] = VERBS.index(verb), size
        meeting.hold(verb)
        verbs, sizes = meeting.rows.T.tolist()
        require_same_calls([VERBS[code] for code in verbs])
        return list(sizes)

    def _advance(self) -> None:
        """Drop messages that have been sent; MPICH's Improbe makes no progress on others."""
        while self._sending and self._sending[0].over():
            self._staging.sent(self._sending.popleft().buffer)
        self.collectives.advance()

    def _moving(self) -> int:
        """Count the bytes of messages in transit, which may need this rank to make progress."""
        return sum([ticket.nbytes for ticket in self._sending])

    def _check_open(self, verb: str) -> None:
        if self._closed:
            raise RunError(f"{verb}: rank {self.rank}'s endpoint is closed; it serves one run only")
