"""The sums of replicas' gradients: begun while backward runs, ended by the collective C1.

A bucket goes two ways: every rank gives the others their pieces (alltoall), adds up its own, and
gives the sums to all (allgather). It begins when this rank has made all its gradients in it, and is
looked after at the end of every later run, and at C1. All ranks take the buckets in one order, the
two ways apart, so nobody waits before it has nothing else to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from partitioner.base.types import FORWARD, Partition
from partitioner.cutting.replicas import UNDER_WAY, Bucket, Copies, buckets
from runtime.backends.device.arrays import copy, on_host
from runtime.schedule.instructions import Run
from runtime.schedule.program import Program
from runtime.transports.base import Collectives, Ticket
from symgraph.core.types import Array
from symgraph.passes.replicate import copies_of

if TYPE_CHECKING:
    from runtime.planning.step import StepBatches

Gradients = Callable[[str], Array]  # of a variable of this rank


class _Side:
    """One rank's side of a bucket."""

    def __init__(self, bucket: Bucket, rank: int) -> None:
        self.bucket, self.rank = bucket, rank
        self._others = [r for r in bucket.ranks if r != rank]
        self._give, self._spread = bucket.collectives
        self.sizes = bucket.rooms(rank)
        self.waits = 0  # variables whose gradients this step has not made
        self.ticket: Ticket | None = None

    def done(self) -> bool:
        """Whether what was started last has ended."""
        return self.ticket is None or self.ticket.done()

    @property
    def names(self) -> list[str]:
        """The variables of this rank in it."""
        return [n for copies in self.bucket.copies for n in self._own(copies)]

    def use(self, rooms: Sequence[Array]) -> None:
        """Take memory for the four."""
        self._out, self._into, self._sums, self._all = (
            room[:size] for room, size in zip(rooms, self.sizes, strict=True)
        )

    def give(self, gradients: Gradients, collectives: Collectives) -> None:
        """Begin: hand the others their pieces."""
        start = 0
        for peer in self._others:
            for copies, at in self.bucket.pieces(peer):
                for name in self._own(copies):
                    start = _put(self._out, start, gradients(name).reshape(-1)[at])
        if self._others:
            self.ticket = collectives.start(self._give, self._out, self._into)

    def spread(self, gradients: Gradients, collectives: Collectives) -> None:
        """Go on: add up the pieces of this rank in the order of the copies, hand out the sums."""
        came = [self.bucket.given(r, self.rank) for r in self._others]
        places = dict(zip(self._others, accumulate(came, initial=0), strict=False))
        start = 0
        for copies, at in self.bucket.pieces(self.rank):
            own = self._own(copies)
            mine = {n: _beside(gradients(n).reshape(-1)[at], self._sums) for n in own}
            like = next(iter(mine.values()))
            total = self._sums[start : start + like.nbytes].view(like.dtype)
            start += like.nbytes
            for i, (name, source) in enumerate(zip(copies.names, copies.ranks, strict=True)):
                if source == self.rank:
                    term = mine[name]
                else:
                    term = self._into[places[source] :][: like.nbytes].view(like.dtype)
                    places[source] += like.nbytes
                if i == 0:
                    total[...] = term
                else:
                    total += term
        if self._others:
            self.ticket = collectives.start(self._spread, self._sums, self._all)
        else:
            self._all[:] = self._sums

    def take(self, gradients: Gradients) -> None:
        """End: let all copies of this rank have the sums."""
        start = 0
        for owner in self.bucket.ranks:
            for copies, at in self.bucket.pieces(owner):
                for name in self._own(copies):
                    into = gradients(name).reshape(-1)[at]
                    copy(into, self._all[start : start + into.nbytes].view(into.dtype))
                start += (at.stop - at.start) * copies.itemsize

    def _own(self, copies: Copies) -> list[str]:
        return [n for n, r in zip(copies.names, copies.ranks, strict=True) if r == self.rank]


def _put(into: Array, start: int, piece: Array) -> int:
    """Where the next piece begins."""
    copy(into[start : start + piece.nbytes].view(piece.dtype), piece)
    return start + piece.nbytes


def _beside(array: Array, other: Array) -> Array:
    """The values on the host, if the other array is there."""
    return on_host(array) if isinstance(other, np.ndarray) else array


def last_runs(parts: StepBatches, program: Program) -> dict[int, list[str]]:
    """Where in a rank's program gradients of copies become complete: place -> their variables."""
    copied = {n for names in copies_of(parts.plans[0].network.first).values() for n in names}
    last: dict[str, int] = {}
    for place, instruction in enumerate(program if copied else ()):
        if isinstance(instruction, Run) and instruction.phase != FORWARD:
            kind = parts.kinds[instruction.mb]
            made = set(parts.partitions[kind].bodies[instruction.key].results)
            grads = parts.plans[kind.part].grads
            last |= {n: place for n in copied & grads.keys() if grads[n] in made}
    found: dict[int, list[str]] = {}
    for name, place in last.items():
        found.setdefault(place, []).append(name)
    return found


def with_sums(
    parts: StepBatches,
    program: Program,
    calls: Sequence[Callable[[], None]],
    made: Callable[[Sequence[str]], None],
) -> list[Callable[[], None]]:
    """The calls of a program, where runs tell which gradients of copies they have completed.

    From the first that completes some, all runs tell, if only that they were here.
    """
    names, found = last_runs(parts, program), list(calls)
    for place in range(min(names, default=len(found)), len(found)):
        if isinstance(program[place], Run):
            found[place] = partial(_run_and_tell, calls[place], made, names.get(place, []))
    return found


def _run_and_tell(
    run: Callable[[], None], made: Callable[[Sequence[str]], None], names: Sequence[str]
) -> None:
    run()
    made(names)


class ReplicaSums:
    """One rank's buckets, step after step.

    A bucket's memory is used by the next but one: only when this rank has all sums of the former,
    so that all ranks have all that they need of what this rank gave.
    """

    def __init__(self, partition: Partition, rank: int, collectives: Collectives, own: Any) -> None:
        """own: the array module of the rank's device."""
        found = [b for b in buckets(partition) if rank in b.ranks]
        self._sides = [_Side(bucket, rank) for bucket in found]
        modules = [collectives.module(bucket.ranks) or own for bucket in found]
        self.held = 0  # bytes
        for xp in dict.fromkeys(modules):
            numbers = [number for number, of in enumerate(modules) if of is xp]
            every = zip(*(self._sides[number].sizes for number in numbers), strict=True)
            sizes = [max(column) for column in every]
            rooms = [[xp.empty(n, np.uint8) for n in sizes] for _ in range(UNDER_WAY)]
            self.held += UNDER_WAY * sum(sizes)
            for number in numbers:
                self._sides[number].use(rooms[number % UNDER_WAY])
        self._side_of = {name: side for side in self._sides for name in side.names}
        self.reset()

    def reset(self) -> None:
        """Make ready for the next step."""
        self._given = self._spread = self._taken = 0  # buckets
        for side in self._sides:
            side.waits = len(side.names)

    def made(self, names: Iterable[str], gradients: Gradients, collectives: Collectives) -> None:
        """These gradients are complete: begin what can begin, go on with what has come."""
        for name in names:
            self._side_of[name].waits -= 1
        while self._advance(gradients, collectives):
            pass

    def finish(self, gradients: Gradients, collectives: Collectives) -> None:
        """End all sums; their gradients are complete."""
        for side in self._sides:
            side.waits = 0
        while self._taken < len(self._sides):
            if not self._advance(gradients, collectives):
                side = self._sides[self._spread if self._spread < self._given else self._taken]
                assert side.ticket is not None
                side.ticket.wait()
        self.reset()

    def _advance(self, gradients: Gradients, collectives: Collectives) -> bool:
        """Take one step with the buckets, if one can be taken without waiting."""
        sides, room = self._sides, self._taken + UNDER_WAY
        if self._taken < self._spread and sides[self._taken].done():
            sides[self._taken].take(gradients)
            self._taken += 1
        elif self._spread < self._given and sides[self._spread].done():
            sides[self._spread].spread(gradients, collectives)
            self._spread += 1
        elif self._given < min(len(sides), room) and not sides[self._given].waits:
            sides[self._given].give(gradients, collectives)
            self._given += 1
        else:
            return False
        return True
