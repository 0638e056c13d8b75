"""Collectives of threads: each rank copies its blocks out of the arrays that the others give.

If those lie on a GPU, its stream waits for the work that makes them, and no thread does. Arrays
that are lent are read where they are.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import ref

import numpy as np
import numpy.typing as npt

from partitioner.base.collectives import CollectiveLayout, Group
from runtime.backends.device.arrays import Mark, after, copy, mark
from runtime.transports.base import CollectiveTicket, Lent, joined_by
from symgraph.core.errors import RunError

Bytes = npt.NDArray[Any]


class Started:
    """A collective that some of its ranks have started.

    Attributes:
        out: By rank, what it gives and the mark of the work that makes it.
        read: By rank, once it has copied its blocks, the mark of the end of that copy.
    """

    def __init__(self, blocks: CollectiveLayout) -> None:
        self.blocks = blocks
        self.out: dict[int, tuple[Any, Mark | None]] = {}
        self.read: dict[int, Mark | None] = {}

    def complete(self) -> bool:
        """Return whether all ranks have started it."""
        return len(self.out) == len(self.blocks.ranks)


class Meetings:
    """The collectives of a run that not all of their ranks have started yet."""

    def __init__(self) -> None:
        self._open: dict[tuple[Group, int], Started] = {}
        self._lock = threading.Lock()

    def start(
        self, rank: int, number: int, blocks: CollectiveLayout, out: Any, made: Mark | None
    ) -> Started:
        """Take part in a group's collective of this number; made: the mark of what makes `out`."""
        at = blocks.group, number
        with self._lock:
            started = self._open.setdefault(at, Started(blocks))
            started.out[rank] = out, made
            if started.complete():
                del self._open[at]
        if started.blocks != blocks:
            raise RunError(
                f"rank {rank} starts the {joined_by(blocks)}, where others start another one of "
                f"kind {started.blocks.kind} or with other sizes"
            )
        return started


class End(Protocol):
    """The part of a rank's endpoint that its collectives use."""

    rank: int

    def wait_until(self, ready: Callable[[], object], awaited: str, peer: int) -> None:
        """Return once `ready()` is true; `peer` makes it true."""
        ...

    def ring(self, rank: int) -> None:
        """Let a rank check again what it waits for."""
        ...


class ThreadCollectives:
    """See `Collectives`."""

    def __init__(self, end: End, meetings: Meetings) -> None:
        self._end = ref(end)  # which has these collectives
        self._meetings = meetings
        self._numbers: dict[Group, int] = defaultdict(int)

    def join(self, groups: Sequence[Group], cards: Collection[int] = ()) -> None:
        """See `Collectives.join`; nothing to prepare."""

    def module(self, ranks: Sequence[int]) -> Any:
        """See `Collectives.module`."""
        return None

    def start(self, blocks: CollectiveLayout, out: Bytes, into: Bytes) -> CollectiveTicket:
        """See `Collectives.start`."""
        return _Copied(*self._start(blocks, out, mark(out)), into)

    def lend(self, blocks: CollectiveLayout, arrays: Mapping[str, Bytes]) -> Lent:
        """See `Collectives.lend`."""
        return _Lent(*self._start(blocks, arrays, None))

    def _start(self, blocks: CollectiveLayout, out: Any, made: Mark | None) -> tuple[Started, End]:
        end = self._end()
        assert end is not None, "a run has its endpoints until it is over"
        number = self._numbers[blocks.group]
        self._numbers[blocks.group] += 1
        started = self._meetings.start(end.rank, number, blocks, out, made)
        for rank in blocks.ranks:
            if rank != end.rank:
                end.ring(rank)
        return started, end


class _Joined:
    """A collective in progress, for one of its ranks."""

    def __init__(self, started: Started, end: End) -> None:
        self._started, self._end = started, end

    def done(self) -> bool:
        return self._started.complete()

    def wait(self) -> None:
        blocks, out = self._started.blocks, self._started.out
        for rank in blocks.ranks:
            self._end.wait_until(partial(out.__contains__, rank), joined_by(blocks), rank)


class _Lent(_Joined):
    """The ticket of arrays that are lent."""

    def of(self, rank: int) -> Mapping[str, Bytes]:
        arrays: Mapping[str, Bytes] = self._started.out[rank][0]
        return arrays


class _Copied(_Joined):
    """The ticket of a collective whose blocks are copied."""

    def __init__(self, started: Started, end: End, into: Bytes) -> None:
        super().__init__(started, end)
        self._into = into
        self._copied = False

    def done(self) -> bool:
        if not super().done():
            return False
        if not self._copied:
            self._copy()
            self._copied = True
        return True

    def wait(self) -> None:
        if not self._copied:
            super().wait()
            self.done()

    def _readers(self) -> list[int]:
        """List the ranks that copy what this rank has given."""
        blocks = self._started.blocks
        row = blocks.sizes[blocks.ranks.index(self._end.rank)]
        return [rank for rank, size in zip(blocks.ranks, row, strict=True) if size]

    def wait_for_return(self) -> None:
        read, blocks = self._started.read, joined_by(self._started.blocks)
        for reader in self._readers():
            self._end.wait_until(partial(read.__contains__, reader), f"{blocks} to be read", reader)
        self.returned()

    def returned(self) -> bool:
        read, readers = self._started.read, self._readers()
        if not all(reader in read for reader in readers):
            return False
        out, _ = self._started.out[self._end.rank]
        for reader in readers:
            if not isinstance(out, np.ndarray):  # the host's has been read when the copy is called
                after(read[reader], out)
        return True

    def _copy(self) -> None:
        blocks = self._started.blocks
        me, at = blocks.ranks.index(self._end.rank), 0
        for i, size in enumerate(blocks.column(me)):
            if not size:
                continue
            first = blocks.to(i, me)
            out, made = self._started.out[blocks.ranks[i]]
            after(made, self._into)
            copy(self._into[at : at + size], out[first : first + size])
            at += size
        self._started.read[self._end.rank] = mark(self._into)
        for rank, size in zip(blocks.ranks, blocks.column(me), strict=True):
            if size and rank != self._end.rank:
                self._end.ring(rank)
