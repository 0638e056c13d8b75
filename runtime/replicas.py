"""The sum of replicas' gradients, once a step: the collective C1 of a training schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partitioner.replicas import Copies, all_copies
from partitioner.types import Partition
from runtime.replay import Link
from runtime.transports.base import Transport
from symgraph.types import Array

if TYPE_CHECKING:
    from runtime.worker import Worker


def reduction_seconds(partition: Partition, link: Link) -> float:
    """What the collective is expected to take when all ranks have come to it."""
    seconds = 0.0
    for copies in all_copies(partition):
        devices = len(set(copies.ranks))
        if devices > 1:
            piece = copies.nbytes / len(copies.names)
            rounds = 2 * (devices - 1)
            seconds += rounds * (float(link.latency) + piece / float(link.bandwidth))
    return seconds


class ReplicaSum:
    """Makes all copies' gradients their sum, in place; the same bits on every rank."""

    def __init__(self, worker: Worker) -> None:
        """worker: any of the rank; all have the same copies."""
        partition, rank = worker.plan.partition, worker.rank
        grads = worker.plan.grads
        self._copies = [c for c in all_copies(partition) if c.names[0] in grads]
        self._first_tag = len(partition.edges)
        scratch = max((c.scratch(rank) for c in self._copies), default=0)
        self._scratch = np.empty(scratch, np.uint8)

    def run(self, worker: Worker) -> None:
        """Sum the gradients of all parameters that have copies; every rank takes part."""
        for number, copies in enumerate(self._copies):
            if worker.rank in copies.ranks:
                self._sum(worker, copies, self._first_tag + number)

    def _sum(self, worker: Worker, copies: Copies, tag: int) -> None:
        rank = worker.rank
        transport = worker.transport
        transport.waiting_for(
            f"C1 (step {worker.step_count}): the gradients of {copies.parameter!r}'s copies"
        )
        own = {
            i: worker.gradient(name).reshape(-1)
            for i, (name, at) in enumerate(zip(copies.names, copies.ranks, strict=True))
            if at == rank
        }
        pieces = [(*ends, at) for ends, at in zip(copies.pieces, copies.ranks, strict=True)]
        tickets = [
            transport.send(array[begin:end], at, tag)
            for begin, end, at in pieces if at != rank
            for array in own.values()
        ]  # fmt: skip
        for begin, end, at in pieces:
            if at == rank:
                total = self._total(transport, copies, own, begin, end, tag)
                for array in own.values():
                    array[begin:end] = total
        for ticket in tickets:
            ticket.wait()
        first = next(iter(own.values()))
        tickets = [
            transport.send(first[begin:end], there, tag)
            for begin, end, at in pieces if at == rank
            for there in copies.ranks if there != rank
        ]  # fmt: skip
        for begin, end, at in pieces:
            if at != rank:
                for array in own.values():
                    transport.recv(array[begin:end], at, tag)
        for ticket in tickets:
            ticket.wait()

    def _total(
        self, transport: Transport, copies: Copies, own: dict[int, Array], begin: int, end: int,
        tag: int,
    ) -> Array:  # fmt: skip
        """The sum of one piece, in the order of the copies."""
        like = next(iter(own.values()))
        half = (end - begin) * like.itemsize
        total = self._scratch[:half].view(like.dtype)
        term = self._scratch[half : 2 * half].view(like.dtype)
        for i, at in enumerate(copies.ranks):
            into = total if i == 0 else term
            if i in own:
                into = own[i][begin:end]
                if i == 0:
                    total[...] = into
            else:
                transport.recv(into, at, tag)
            if i:
                total += into
        return total
