"""The sums of replicas' gradients: started while backward runs, finished by the collective C1.

A bucket takes two collectives: every rank sends the others their pieces (alltoall), adds up its
own, and sends the sums to all (allgather). The first starts when this rank has computed all its
gradients in the bucket; progress is checked at the end of every later run, and at C1. All ranks
process the buckets in one order, in each of the two collectives, so no rank waits while it has
other work to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from partitioner.base.types import Partition
from partitioner.cutting.replicas import UNDER_WAY, Bucket, Copies, buckets
from runtime.backends.device.arrays import copy, on_host
from runtime.transports.base import Collectives, Ticket
from symgraph.core.types import Array

# Returns the gradient of a variable of this rank.
Gradients = Callable[[str], Array]


class RankBucket:
    """One rank's part in the sums of a bucket."""

    def __init__(self, bucket: Bucket, rank: int) -> None:
        self.bucket, self.rank = bucket, rank
        self._others = [r for r in bucket.ranks if r != rank]
        self._alltoall, self._allgather = bucket.collectives
        self.sizes = bucket.buffer_sizes(rank)
        self.waits = 0  # variables whose gradients this step has not computed yet
        self.ticket: Ticket | None = None

    def done(self) -> bool:
        """Tell whether the collective that was started last has ended."""
        return self.ticket is None or self.ticket.done()

    @property
    def names(self) -> list[str]:
        """The variables of this rank in the bucket."""
        return [n for copies in self.bucket.copies for n in self._local(copies)]

    def use(self, buffers: Sequence[Array]) -> None:
        """Use this memory for outgoing and incoming pieces, this rank's sums and those of all."""
        self._out, self._into, self._sums, self._all = (
            buffer[:size] for buffer, size in zip(buffers, self.sizes, strict=True)
        )

    def give(self, gradients: Gradients, collectives: Collectives) -> None:
        """Start to send the other ranks their pieces."""
        start = 0
        for peer in self._others:
            for copies, at in self.bucket.pieces(peer):
                for name in self._local(copies):
                    start = _append(self._out, start, gradients(name).reshape(-1)[at])
        if self._others:
            self.ticket = collectives.start(self._alltoall, self._out, self._into)

    def spread(self, gradients: Gradients, collectives: Collectives) -> None:
        """Add up this rank's pieces in the order of the copies; start to send the sums to all."""
        received = [self.bucket.given(r, self.rank) for r in self._others]
        places = dict(zip(self._others, accumulate(received, initial=0), strict=False))
        start = 0
        for copies, at in self.bucket.pieces(self.rank):
            local = {
                name: _beside(gradients(name).reshape(-1)[at], self._sums)
                for name in self._local(copies)
            }
            like = next(iter(local.values()))
            total = self._sums[start : start + like.nbytes].view(like.dtype)
            start += like.nbytes
            for i, (name, source) in enumerate(zip(copies.names, copies.ranks, strict=True)):
                if source == self.rank:
                    term = local[name]
                else:
                    term = self._into[places[source] :][: like.nbytes].view(like.dtype)
                    places[source] += like.nbytes
                if i == 0:
                    total[...] = term
                else:
                    total += term
        if self._others:
            self.ticket = collectives.start(self._allgather, self._sums, self._all)
        else:
            self._all[:] = self._sums

    def take(self, gradients: Gradients) -> None:
        """Copy the sums into the gradients of all copies of this rank."""
        start = 0
        for owner in self.bucket.ranks:
            for copies, at in self.bucket.pieces(owner):
                for name in self._local(copies):
                    into = gradients(name).reshape(-1)[at]
                    copy(into, self._all[start : start + into.nbytes].view(into.dtype))
                start += (at.stop - at.start) * copies.itemsize

    def _local(self, copies: Copies) -> list[str]:
        return [n for n, r in zip(copies.names, copies.ranks, strict=True) if r == self.rank]


def _append(buffer: Array, start: int, piece: Array) -> int:
    """Append a piece to a buffer of bytes; return the new offset."""
    copy(buffer[start : start + piece.nbytes].view(piece.dtype), piece)
    return start + piece.nbytes


def _beside(array: Array, other: Array) -> Array:
    """Return the array, copied to the host if the other array is there."""
    return on_host(array) if isinstance(other, np.ndarray) else array


class ReplicaSums:
    """The buckets of one rank, step after step.

    At most UNDER_WAY buckets are in progress, and that many buffers are shared in turn: a bucket
    starts only when this rank has all sums of the bucket that used its buffer before, so all ranks
    have received everything that they need from that buffer.
    """

    def __init__(
        self, partition: Partition, rank: int, collectives: Collectives, device_module: Any
    ) -> None:
        """Take the array module of the rank's device as `device_module`."""
        local = [b for b in buckets(partition) if rank in b.ranks]
        self._buckets = [RankBucket(bucket, rank) for bucket in local]
        modules = [collectives.module(bucket.ranks) or device_module for bucket in local]
        self.held = 0  # bytes
        for xp in dict.fromkeys(modules):
            numbers = [number for number, module in enumerate(modules) if module is xp]
            columns = zip(*(self._buckets[number].sizes for number in numbers), strict=True)
            sizes = [max(column) for column in columns]
            buffers = [[xp.empty(n, np.uint8) for n in sizes] for _ in range(UNDER_WAY)]
            self.held += UNDER_WAY * sum(sizes)
            for number in numbers:
                self._buckets[number].use(buffers[number % UNDER_WAY])
        self._bucket_of = {name: bucket for bucket in self._buckets for name in bucket.names}
        self.reset()

    def reset(self) -> None:
        """Prepare for the next step."""
        self._given = self._spread = self._taken = 0  # buckets
        for bucket in self._buckets:
            bucket.waits = len(bucket.names)

    def complete(
        self, names: Iterable[str], gradients: Gradients, collectives: Collectives
    ) -> None:
        """Note that these gradients are complete, and do what can be done without waiting."""
        for name in names:
            self._bucket_of[name].waits -= 1
        while self._advance(gradients, collectives):
            pass

    def finish(self, gradients: Gradients, collectives: Collectives) -> None:
        """Finish all sums: afterwards the gradients of all copies are the sums."""
        for bucket in self._buckets:
            bucket.waits = 0
        while self._taken < len(self._buckets):
            if not self._advance(gradients, collectives):
                waiting = self._spread if self._spread < self._given else self._taken
                ticket = self._buckets[waiting].ticket
                assert ticket is not None
                ticket.wait()
        self.reset()

    def _advance(self, gradients: Gradients, collectives: Collectives) -> bool:
        """Take one step with the buckets; False if none is possible without waiting."""
        all_, limit = self._buckets, self._taken + UNDER_WAY
        if self._taken < self._spread and all_[self._taken].done():
            all_[self._taken].take(gradients)
            self._taken += 1
        elif self._spread < self._given and all_[self._spread].done():
            all_[self._spread].spread(gradients, collectives)
            self._spread += 1
        elif self._given < min(len(all_), limit) and not all_[self._given].waits:
            all_[self._given].give(gradients, collectives)
            self._given += 1
        else:
            return False
        return True
