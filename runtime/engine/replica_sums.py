"""The sums of replicas' gradients: started while backward runs, finished by the collective C1.

A bucket takes two collectives: every rank sends the others their pieces (alltoall), adds up its
own, and sends the sums to all (allgather). The first starts when this rank has computed all its
gradients in the bucket; progress is checked at the end of every later run, and at C1. All ranks
process the buckets in one order, in each of the two collectives, so no rank waits while it has
other work to do.

Where the optimizer's arrays are sharded, the sums of a rank's own pieces are all that its update
needs, so they stay where they are. After the update the collective C2 spreads the weights.

Threads lend each other their gradients and weights instead: each one adds up its pieces where they
are, into its own gradients, and copies the other sums from there. That moves less than half as many
bytes, and takes no buffers. Where each copy updates its own piece only, all copies of a weight are
one array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from partitioner.base.collectives import CollectiveLayout
from partitioner.base.types import Partition
from partitioner.cutting.replicas import UNDER_WAY, Bucket, Copies, buckets
from runtime.backends.device.arrays import copy, on_host
from runtime.transports.base import Collectives, CollectiveTicket, Lent, Ticket
from symgraph.core.types import Array

# Returns the gradient or the weight of a variable of this rank.
ArrayOf = Callable[[str], Array]

BLOCK = 1 << 15  # numbers that are summed at a time: a sum of many terms stays in a core's cache


class Loan:
    """The collective that other ranks may still read a buffer for."""

    def __init__(self) -> None:
        self.ticket: CollectiveTicket | None = None

    def returned(self) -> bool:
        """Return whether nobody reads the buffer any more."""
        if self.ticket is not None and self.ticket.returned():
            self.ticket = None
        return self.ticket is None

    def take_back(self) -> None:
        """Wait until nobody reads the buffer any more."""
        if self.ticket is not None:
            self.ticket.wait_for_return()
            self.ticket = None


class Buffers(NamedTuple):
    """Memory that buckets use in turn: bytes of outgoing and incoming pieces, sums, all sums."""

    out: Array
    into: Array
    sums: Array
    all: Array
    #: The loans of `out` and of `sums`.
    out_loan: Loan
    sums_loan: Loan

    @classmethod
    def empty(cls, xp: Any, sizes: Sequence[int]) -> Buffers:
        """Reserve memory of these bytes in an array module."""
        out, into, sums, all_ = (xp.empty(size, np.uint8) for size in sizes)
        return cls(out, into, sums, all_, Loan(), Loan())

    def of(self, sizes: Sequence[int]) -> Buffers:
        """Return the beginnings, of these bytes, of the same memory."""
        out, into, sums, all_ = sizes
        return Buffers(
            self.out[:out],
            self.into[:into],
            self.sums[:sums],
            self.all[:all_],
            self.out_loan,
            self.sums_loan,
        )


class RankBucket(ABC):
    """One rank's part in the sums of a bucket."""

    def __init__(self, bucket: Bucket, rank: int) -> None:
        self.bucket, self.rank = bucket, rank
        self._others = [r for r in bucket.ranks if r != rank]
        self._alltoall, self._allgather = bucket.collectives
        self.waits = 0  # variables whose gradients this step has not computed yet
        self.ticket: Ticket | None = None

    def done(self) -> bool:
        """Tell whether the collective that was started last has ended."""
        return self.ticket is None or self.ticket.done()

    @abstractmethod
    def can_give(self) -> bool:
        """Tell whether this rank has memory for what it gives."""

    def can_add(self) -> bool:
        """Tell whether this rank has all pieces, and memory for their sums."""
        return self.done()

    @abstractmethod
    def wait_to_give(self) -> None:
        """Wait for what `can_give` asks for."""

    def wait_to_add(self) -> None:
        """Wait for what `can_add` asks for."""
        if self.ticket is not None:
            self.ticket.wait()

    @property
    def names(self) -> list[str]:
        """The variables of this rank in the bucket."""
        return [n for copies in self.bucket.copies for n in self._local(copies)]

    @abstractmethod
    def give(self, gradients: ArrayOf, collectives: Collectives) -> None:
        """Start to send the other ranks their pieces."""

    @abstractmethod
    def add(self, gradients: ArrayOf) -> None:
        """Add up this rank's pieces in the order of the copies."""

    @abstractmethod
    def keep(self, gradients: ArrayOf) -> None:
        """Store the sums of this rank's own pieces in the gradients of their copies."""

    @abstractmethod
    def spread(self, gradients: ArrayOf, collectives: Collectives) -> None:
        """Start to send this rank's sums to all."""

    @abstractmethod
    def spread_weights(self, weights: ArrayOf, collectives: Collectives) -> None:
        """Start to send this rank's own pieces of the weights to all."""

    @abstractmethod
    def take(self, arrays: ArrayOf) -> None:
        """Copy what all ranks have spread into the gradients, or weights, of all copies here."""

    def _local(self, copies: Copies) -> list[str]:
        return [n for n, r in zip(copies.names, copies.ranks, strict=True) if r == self.rank]


class LentBucket(RankBucket):
    """A bucket whose ranks read each other's gradients and weights where they are.

    No rank writes what another one reads: its own pieces are its alone until all have their sums,
    and the next step changes gradients and weights after all ranks have exchanged their norms.
    """

    ticket: Lent | None

    def __init__(self, bucket: Bucket, rank: int) -> None:
        super().__init__(bucket, rank)
        self._own: Mapping[str, Array] = {}  # each variable's array, as one row

    def _start(self, layout: CollectiveLayout, arrays: ArrayOf, collectives: Collectives) -> None:
        assert collectives.lend is not None
        self._own = {name: arrays(name).reshape(-1) for name in self.names}
        self.ticket = collectives.lend(layout, self._own) if self._others else None

    def _of(self, rank: int) -> Mapping[str, Array]:
        return self._own if self.ticket is None else self.ticket.of(rank)

    def can_give(self) -> bool:
        return True

    def wait_to_give(self) -> None:
        pass  # it can

    def give(self, gradients: ArrayOf, collectives: Collectives) -> None:
        self._start(self._alltoall, gradients, collectives)

    def add(self, gradients: ArrayOf) -> None:
        for copies, name, at in self.bucket.pieces(self.rank):
            sources = zip(copies.names, copies.ranks, strict=True)
            add_up([self._of(source)[n][at] for n, source in sources], self._own[name][at])

    def keep(self, gradients: ArrayOf) -> None:
        pass  # they are added up there

    def spread(self, gradients: ArrayOf, collectives: Collectives) -> None:
        self._start(self._allgather, gradients, collectives)

    def spread_weights(self, weights: ArrayOf, collectives: Collectives) -> None:
        self._start(self._allgather, weights, collectives)

    def take(self, arrays: ArrayOf) -> None:
        for owner in self.bucket.ranks:
            for copies, name, at in self.bucket.pieces(owner):
                for mine in self._local(copies):
                    into, source = self._own[mine][at], self._of(owner)[name][at]
                    if not np.may_share_memory(into, source):
                        copy(into, source)


def add_up(terms: Sequence[Array], total: Array) -> None:
    """Add up arrays of numbers in their order; the total may be one of them."""
    *first, last = terms
    if not first:
        copy(total, last)
        return
    for begin in range(0, total.size, BLOCK):
        block = slice(begin, begin + BLOCK)
        so_far = reduce(np.add, [term[block] for term in first])
        np.add(so_far, last[block], out=total[block])


class PackedBucket(RankBucket):
    """A bucket whose ranks send each other what they give."""

    #: The memory that it uses.
    buffers: Buffers
    ticket: CollectiveTicket | None

    def __init__(self, bucket: Bucket, rank: int) -> None:
        super().__init__(bucket, rank)
        self.sizes = bucket.buffer_sizes(rank)

    def can_give(self) -> bool:
        return self.buffers.out_loan.returned()

    def can_add(self) -> bool:
        return self.done() and self.buffers.sums_loan.returned()

    def wait_to_give(self) -> None:
        self.buffers.out_loan.take_back()

    def wait_to_add(self) -> None:
        super().wait_to_add()
        self.buffers.sums_loan.take_back()

    def give(self, gradients: ArrayOf, collectives: Collectives) -> None:
        start = 0
        out, into = self.buffers.out, self.buffers.into
        for peer in self._others:
            for copies, _, at in self.bucket.pieces(peer):
                for name in self._local(copies):
                    start = _append(out, start, gradients(name).reshape(-1)[at])
        self.ticket = None
        if self._others:
            self.ticket = collectives.start(self._alltoall, out, into)
            self.buffers.out_loan.ticket = self.ticket

    def add(self, gradients: ArrayOf) -> None:
        received = [self.bucket.given(r, self.rank) for r in self._others]
        places = dict(zip(self._others, accumulate(received, initial=0), strict=False))
        start = 0
        for copies, _, at in self.bucket.pieces(self.rank):
            local = {
                name: _beside(gradients(name).reshape(-1)[at], self.buffers.sums)
                for name in self._local(copies)
            }
            like = next(iter(local.values()))
            total = self.buffers.sums[start : start + like.nbytes].view(like.dtype)
            start += like.nbytes
            for i, (name, source) in enumerate(zip(copies.names, copies.ranks, strict=True)):
                if source == self.rank:
                    term = local[name]
                else:
                    term = self.buffers.into[places[source] :][: like.nbytes].view(like.dtype)
                    places[source] += like.nbytes
                if i == 0:
                    total[...] = term
                else:
                    total += term

    def keep(self, gradients: ArrayOf) -> None:
        start = 0
        for _, name, at in self.bucket.pieces(self.rank):
            into = gradients(name).reshape(-1)[at]
            copy(into, self.buffers.sums[start : start + into.nbytes].view(into.dtype))
            start += into.nbytes

    def spread_weights(self, weights: ArrayOf, collectives: Collectives) -> None:
        self.buffers.sums_loan.take_back()
        start = 0
        for _, name, at in self.bucket.pieces(self.rank):
            start = _append(self.buffers.sums, start, weights(name).reshape(-1)[at])
        self.spread(weights, collectives)

    def spread(self, gradients: ArrayOf, collectives: Collectives) -> None:
        self.ticket = None
        if self._others:
            buffers = self.buffers
            self.ticket = collectives.start(self._allgather, buffers.sums, buffers.all)
            buffers.sums_loan.ticket = self.ticket
        else:
            self.buffers.all[:] = self.buffers.sums

    def take(self, arrays: ArrayOf) -> None:
        start = 0
        for owner in self.bucket.ranks:
            for copies, _, at in self.bucket.pieces(owner):
                for name in self._local(copies):
                    into = arrays(name).reshape(-1)[at]
                    copy(into, self.buffers.all[start : start + into.nbytes].view(into.dtype))
                start += (at.stop - at.start) * copies.itemsize


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
    starts only when this rank has all that it wants of the bucket that used its buffers before, and
    the others have read theirs.
    """

    def __init__(
        self,
        partition: Partition,
        rank: int,
        collectives: Collectives,
        device_module: Any,
        *,
        spread: bool = True,
    ) -> None:
        """Reserve the buffers that are needed.

        Args:
            partition: The cut graph.
            rank: The rank.
            collectives: Those of the rank's transport.
            device_module: The array module of the rank's device.
            spread: Whether all copies get the whole sums, and not just their own pieces.
        """
        self._buckets: list[RankBucket] = []
        self._spreads = spread
        packed: dict[Any, list[PackedBucket]] = {}  # by the array module
        for bucket in (b for b in buckets(partition) if rank in b.ranks):
            if bucket.is_lent(partition, shared_memory=collectives.lend is not None):
                self._buckets.append(LentBucket(bucket, rank))
                continue
            module = collectives.module(bucket.ranks) or device_module
            packed.setdefault(module, []).append(PackedBucket(bucket, rank))
            self._buckets.append(packed[module][-1])
        self.held = 0  # bytes
        for xp, some in packed.items():
            sizes = [max(column) for column in zip(*(b.sizes for b in some), strict=True)]
            shared = [Buffers.empty(xp, sizes) for _ in range(UNDER_WAY)]
            self.held += UNDER_WAY * sum(sizes)
            for number, each in enumerate(some):
                each.buffers = shared[number % UNDER_WAY].of(each.sizes)
        self._bucket_of = {name: bucket for bucket in self._buckets for name in bucket.names}
        self.reset()

    def reset(self) -> None:
        """Prepare for the next step."""
        self._given = self._summed = self._taken = 0  # buckets
        for bucket in self._buckets:
            bucket.waits = len(bucket.names)

    def complete(self, names: Iterable[str], gradients: ArrayOf, collectives: Collectives) -> None:
        """Note that these gradients are complete, and do what can be done without waiting."""
        for name in names:
            self._bucket_of[name].waits -= 1
        while self._advance(gradients, collectives):
            pass

    def finish(self, gradients: ArrayOf, collectives: Collectives) -> None:
        """Finish all sums: afterwards the gradients of all copies, or their own pieces, are it."""
        for bucket in self._buckets:
            bucket.waits = 0
        while self._taken < len(self._buckets):
            if not self._advance(gradients, collectives):
                self._wait()
        self.reset()

    def _wait(self) -> None:
        """Wait for what the next step with the buckets needs."""
        if self._taken == self._given:
            self._buckets[self._given].wait_to_give()
        elif self._summed < self._given:
            self._buckets[self._summed].wait_to_add()
        elif (ticket := self._buckets[self._taken].ticket) is not None:
            ticket.wait()

    def spread_weights(self, weights: ArrayOf, collectives: Collectives) -> None:
        """Give all copies the weights that each rank has updated in its own pieces."""
        all_ = self._buckets
        for number in range(len(all_) + UNDER_WAY - 1):
            if number < len(all_):
                all_[number].spread_weights(weights, collectives)
            if number >= UNDER_WAY - 1:
                bucket = all_[number - UNDER_WAY + 1]
                if bucket.ticket is not None:
                    bucket.ticket.wait()
                bucket.take(weights)

    def _advance(self, gradients: ArrayOf, collectives: Collectives) -> bool:
        """Take one step with the buckets; False if none is possible without waiting."""
        all_, limit = self._buckets, self._taken + UNDER_WAY
        if self._taken < self._summed and (not self._spreads or all_[self._taken].done()):
            if self._spreads:
                all_[self._taken].take(gradients)
            self._taken += 1
        elif self._summed < self._given and all_[self._summed].can_add():
            bucket = all_[self._summed]
            bucket.add(gradients)
            if self._spreads:
                bucket.spread(gradients, collectives)
            else:
                bucket.keep(gradients)
            self._summed += 1
        elif (
            self._given < min(len(all_), limit)
            and not all_[self._given].waits
            and all_[self._given].can_give()
        ):
            all_[self._given].give(gradients, collectives)
            self._given += 1
        else:
            return False
        return True
