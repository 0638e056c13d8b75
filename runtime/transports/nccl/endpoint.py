"""The endpoint of a rank with a GPU: values on GPUs go by NCCL, everything else by MPI.

A message from GPU to GPU has two parts. A small MPI message carries its tag and type; the wait for
it is bounded like all waits. The values themselves are left to the GPUs, whose streams wait for
them: the sender's from `send` on, the receiver's once the first part has arrived and fits. So no
thread waits for a GPU, and no GPU for a message that is never sent or received.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.backends.device.arrays import Mark, after, loaded
from runtime.transports.base import (
    Ticket,
    check_recv,
    check_send,
    message_from,
    taken_by,
    type_text,
    wrong_type,
)
from runtime.transports.mpi.collectives import Groups
from runtime.transports.mpi.endpoint import MpiTransport, Sending
from runtime.transports.mpi.lifeline import Lifeline
from runtime.transports.mpi.staging import Staging
from runtime.transports.mpi.waiter import Waiter
from runtime.transports.nccl.collectives import NcclCollectives
from runtime.transports.nccl.communicators import MESSAGES, NcclCommunicators
from symgraph.core.errors import RunError

__all__: list[str] = []


class _Passing(Sending):
    """The ticket of values in transit between GPUs.

    It is done when the receiver has arrived; from then on the sender's stream waits for it.
    """

    __slots__ = ("_array", "_gone")

    def __init__(
        self,
        request: Any,
        end: MpiTransport,
        awaited: tuple[int, int],
        array: Any,
        gone: Mark | None,
    ) -> None:
        """gone: the mark of the end of the transfer; None: the array is empty."""
        super().__init__(request, end, awaited, array.nbytes, None)
        self._array, self._gone = array, gone

    def done(self) -> bool:
        if not super().done():
            return False
        after(self._gone, self._array)
        return True

    def over(self) -> bool:
        return super().over() and (self._gone is None or self._gone.done)

    def wait(self) -> None:
        super().wait()
        after(self._gone, self._array)


class NcclTransport(MpiTransport):
    """One process's endpoint."""

    def __init__(
        self,
        mpi: Any,
        comm: Any,
        waiter: Waiter,
        lifeline: Lifeline,
        groups: Groups,
        staging: Staging,
        communicators: NcclCommunicators,
    ) -> None:
        super().__init__(mpi, comm, waiter, lifeline, groups, staging)
        self._communicators = communicators
        self.collectives: NcclCollectives = NcclCollectives(
            comm, waiter, lifeline.status.runs, groups, staging, communicators, self.exchange
        )

    def open(self, channels: Sequence[tuple[int, int]]) -> None:
        """See `Transport.open`; from then on only values on GPUs go between two GPUs."""
        self._check_open("open")
        self._communicators.open([(MESSAGES, channel) for channel in channels], self.exchange)

    def send(self, array: npt.NDArray[Any], dst: int, tag: int) -> Ticket:
        """See `Transport.send`."""
        channel = self._communicators.of((MESSAGES, (self.rank, dst)))
        if channel is None:
            return super().send(array, dst, tag)
        self._check_open("send")
        check_send(array, self.rank, dst, self.size)
        _require_card(array, f"send {self.rank} -> {dst}")
        if not array.flags.c_contiguous:
            array = loaded().ascontiguousarray(array)
        head = np.frombuffer(type_text(array).encode(), np.uint8)
        request = self._comm.Issend([head, self._byte], dst, tag % self._tags)
        gone = channel.send(array, taken_by(dst, tag)) if array.nbytes else None
        if self._sending:
            self._advance()
        ticket = _Passing(request, self, (dst, tag), array, gone)
        self._sending.append(ticket)
        return ticket

    def recv(self, out: npt.NDArray[Any], src: int, tag: int) -> None:
        """See `Transport.recv`; later work on this thread's stream waits for the values."""
        channel = self._communicators.of((MESSAGES, (src, self.rank)))
        if channel is None:
            super().recv(out, src, tag)
            return
        self._check_open("recv")
        check_recv(out, self.rank, src, self.size)
        _require_card(out, f"recv {src} -> {self.rank}")
        message = self._head(src, tag)
        self._check_tag(src, tag)
        head = np.empty(self._status.Get_count(self._byte), np.uint8)
        self._take(message, head, src, tag)
        sent, wanted = head.tobytes().decode(), type_text(out)
        if sent != wanted:
            raise wrong_type(src, self.rank, tag, sent, wanted)
        if out.nbytes:
            after(channel.recv(out, message_from(src, tag)), out)

    def settle(self) -> None:
        """Wait until all messages of this rank have been sent; PeerFailed if the run has failed.

        A failure ends the GPUs' waits, so received values may never have arrived.
        """
        while self._sending:
            ticket = self._sending.popleft()
            ticket.wait()
            self.until(ticket.over, "the values that it has sent", moving=ticket.nbytes)
            self._staging.sent(ticket.buffer)
        self.collectives.finish()
        self._waiter.check("the end")


def _require_card(array: npt.NDArray[Any], verb: str) -> None:
    if isinstance(array, np.ndarray):
        raise RunError(
            f"{verb}: both ranks have cards, but the array is the host's; put it on the card"
        )
