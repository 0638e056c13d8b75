"""Collectives of GPUs: NCCL moves the bytes, once all ranks of a group have met through MPI.

Nothing is added up here, so sums have the same bits as on every transport. The threads wait for
MPI's meeting (`Ibarrier`); the streams of the GPUs wait for the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from partitioner.base.collectives import CollectiveLayout, Group
from runtime.backends.device.arrays import Mark, after, loaded
from runtime.transports.base import CollectiveTicket
from runtime.transports.mpi.collectives import Bytes, Groups, Joined, MpiCollectives
from runtime.transports.mpi.staging import Staging
from runtime.transports.mpi.waiter import Waiter
from runtime.transports.nccl.communicators import NcclCommunicators

__all__: list[str] = []


class _Moving(Joined):
    """The ticket of a collective in progress between GPUs."""

    __slots__ = ("_here", "_moved")

    def __init__(
        self,
        request: Any,
        of: MpiCollectives,
        blocks: CollectiveLayout,
        buffers: Sequence[Bytes],
        moved: Mark,
    ) -> None:
        """moved: the mark of the end of this rank's part."""
        super().__init__(request, of, blocks, buffers)
        self._moved = moved
        self._here = next(b for b in buffers if not isinstance(b, np.ndarray))

    def done(self) -> bool:
        if not super().done():
            return False
        after(self._moved, self._here)
        return True

    def over(self) -> bool:
        return super().over() and self._moved.done

    def wait(self) -> None:
        super().wait()
        after(self._moved, self._here)


class NcclCollectives(MpiCollectives):
    """See `Collectives`; groups with a rank on the host use MPI."""

    def __init__(
        self,
        comm: Any,
        waiter: Waiter,
        run: int,
        groups: Groups,
        staging: Staging,
        communicators: NcclCommunicators,
        exchange: Callable[[Any], list[Any]],
    ) -> None:
        """exchange: see `Transport.exchange`."""
        super().__init__(comm, waiter, run, groups, staging)
        self._communicators, self._exchange = communicators, exchange

    def join(self, groups: Sequence[Group], cards: Collection[int] = ()) -> None:
        """See `Collectives.join`."""
        super().join(groups)
        self._communicators.open(groups, self._exchange)

    def module(self, ranks: Sequence[int]) -> Any:
        """See `Collectives.module`."""
        return loaded() if self._communicators.can_join(ranks) else np

    def start(self, blocks: CollectiveLayout, out: Bytes, into: Bytes) -> CollectiveTicket:
        """See `Collectives.start`."""
        channel = self._communicators.of(blocks.group)
        if channel is None:
            return super().start(blocks, out, into)
        here = self._groups[blocks.group].Ibarrier()
        ticket = _Moving(here, self, blocks, (out, into), channel.move(blocks, out, into))
        self._under_way.append(ticket)
        return ticket

    def finish(self) -> None:
        """Wait for all collectives in progress, on the GPUs too."""
        while self._under_way:
            ticket = self._under_way.popleft()
            ticket.wait()
            self._waiter.until(ticket.over, "collectives to end on its card")
