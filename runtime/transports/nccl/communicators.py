"""Wires: NCCL's communicators of a rank, each with a stream of its own.

A wire has one direction between two ranks, or the collectives of a group. What NCCL is asked to do
on it waits for what the caller's stream has done before, and is done in order; no wire waits for
another one. A message that nobody receives would keep its card busy for ever, and everybody who
waits for the card: so a failure, of whatever rank, aborts all wires at once.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partitioner.base.collectives import CollectiveLayout, Group
from runtime.backends.device.arrays import Mark, address, loaded
from runtime.transports.base import GRACE_SECONDS, joined_by
from runtime.transports.mpi.waiter import Waiter
from symgraph.core.errors import ConfigError, RunError
from symgraph.core.types import Array

__all__: list[str] = []

MESSAGES = "messages"  # the lane of wires between two ranks, from the first to the second
Call = Callable[[Any, int], None]  # of a communicator, on a stream


def load_nccl() -> Any:
    """CuPy's module; ConfigError, saying what is missing, without it."""
    try:
        nccl = importlib.import_module("cupy.cuda.nccl")
    except ImportError as error:
        raise ConfigError(
            f"the package cupy cannot be imported ({error}): pip install 'symgraph[gpu]'"
        ) from None
    if not nccl.available:
        raise ConfigError(
            "CuPy finds no NCCL: pip install nvidia-nccl-cu12, or use transport 'mpi', which goes "
            "by way of the host"
        )
    return nccl


class NcclChannel:
    """One communicator, and the stream of its work."""

    def __init__(self, wires: NcclCommunicators, comm: Any, me: int) -> None:
        """me: this rank's place in it."""
        self._wires, self._nccl, self.comm, self._me = wires, wires.nccl, comm, me
        self._cuda = loaded().cuda
        self.stream = self._cuda.Stream(non_blocking=True)

    def send(self, array: Array, awaited: str) -> Mark:
        """Give an array's bytes to the wire's other end; the mark of their having gone."""
        byte = self._nccl.NCCL_UINT8
        return self._do(
            lambda comm, stream: comm.send(address(array), array.nbytes, byte, 1, stream), awaited
        )

    def recv(self, out: Array, awaited: str) -> Mark:
        """Get the bytes that the other end gives; the mark of their having come."""
        byte = self._nccl.NCCL_UINT8
        return self._do(
            lambda comm, stream: comm.recv(address(out), out.nbytes, byte, 0, stream), awaited
        )

    def move(self, blocks: CollectiveLayout, out: Array, into: Array) -> Mark:
        """This rank's part of a collective; the mark of its end."""
        sizes = {blocks.given(i) for i in range(len(blocks.ranks))}
        call = self._broadcast if blocks.kind == "bcast" else self._exchange
        if blocks.kind == "allgather" and len(sizes) == 1:
            call = self._allgather
        return self._do(call(blocks, out, into), joined_by(blocks))

    def sum(self, array: Array, total: Array) -> Mark:
        """NCCL's sum of all ranks' arrays, in an order of its choosing; the mark of its end."""
        nccl = self._nccl
        dtype = getattr(nccl, f"NCCL_{str(array.dtype).upper()}")
        given, into, size = address(array), address(total), array.size
        return self._do(
            lambda comm, stream: comm.allReduce(given, into, size, dtype, nccl.NCCL_SUM, stream),
            "the sum over all ranks",
        )

    def _do(self, call: Call, awaited: str) -> Mark:
        """Call NCCL, which does not wait for anything here; the mark of the call's work."""
        wires, cuda, stream = self._wires, self._cuda, self.stream
        stream.wait_event(cuda.get_current_stream().record(cuda.Event(disable_timing=True)))
        try:
            with wires.lock:  # no call into communicators that are being aborted
                if wires.aborted:
                    wires.waiter.check(awaited)
                call(self.comm, stream.ptr)
        except self._nccl.NcclError as error:
            time.sleep(GRACE_SECONDS / 3)  # a peer's death may show here first
            wires.waiter.check(awaited)
            raise RunError(f"rank {wires.waiter.rank}, in {awaited}: NCCL says {error}") from error
        mark: Mark = stream.record(cuda.Event(disable_timing=True))
        return mark

    def _broadcast(self, blocks: CollectiveLayout, out: Array, into: Array) -> Call:
        root = next(i for i in range(len(blocks.ranks)) if blocks.given(i))
        here, size = address(out if self._me == root else into), blocks.given(root)
        byte = self._nccl.NCCL_UINT8
        return lambda comm, stream: comm.broadcast(here, here, size, byte, root, stream)

    def _allgather(self, blocks: CollectiveLayout, out: Array, into: Array) -> Call:
        given, got, size = address(out), address(into), blocks.given(self._me)
        byte = self._nccl.NCCL_UINT8
        return lambda comm, stream: comm.allGather(given, got, size, byte, stream)

    def _exchange(self, blocks: CollectiveLayout, out: Array, into: Array) -> Call:
        """Messages between all pairs, at once; in an allgather to itself too."""
        me, places = self._me, range(len(blocks.ranks))
        row, column = list(blocks.sizes[me]), blocks.column(me)
        if blocks.shared:
            row[me] = column[me]
        first = [address(out) + blocks.to(me, j) for j in places]
        starts = address(into) + np.cumsum([0, *column[:-1]])
        byte = self._nccl.NCCL_UINT8

        def exchange(comm: Any, stream: int) -> None:
            self._nccl.groupStart()
            try:
                for j in places:
                    if row[j]:
                        comm.send(first[j], row[j], byte, j, stream)
                    if column[j]:
                        comm.recv(int(starts[j]), column[j], byte, j, stream)
            finally:
                self._nccl.groupEnd()

        return exchange


class NcclCommunicators:
    """All wires of a rank. lock: of whoever calls NCCL. aborted: after a failure."""

    def __init__(self, nccl: Any, rank: int, on_card: Sequence[bool], waiter: Waiter) -> None:
        """rank: this one. on_card: whether a rank has a card, by rank."""
        self.nccl, self.waiter = nccl, waiter
        self._rank = rank
        self.lock = threading.Lock()
        self.aborted = False
        self._on_card = tuple(on_card)
        self._wires: dict[Group, NcclChannel | None] = {}  # None: not this rank's, or not of cards

    def join(self, ranks: Sequence[int]) -> bool:
        """Whether wires can be between these ranks."""
        return all(self._on_card[rank] for rank in ranks)

    def of(self, group: Group) -> NcclChannel | None:
        """The wire of a group, or of a channel; None if values go another way."""
        return self._wires.get(group)

    def open(self, groups: Sequence[Group], exchange: Callable[[Any], list[Any]]) -> None:
        """Make those that there are not yet; all ranks call it with equal ones.

        exchange: see `Transport.exchange`; with it all ranks come, so that NCCL, which waits for
        them without an end, need not. Each wire is used once, since NCCL connects ranks when they
        first speak, and waits for the other one then.
        """
        new = sorted({group for group in groups if group not in self._wires})
        if not new:
            return
        rank, nccl = self._rank, self.nccl
        wanted = [n for n, (_, ranks) in enumerate(new) if self.join(ranks) and len(ranks) > 1]
        mine = [[n, [*nccl.get_unique_id()]] for n in wanted if new[n][1][0] == rank]
        ids = dict(pair for pairs in exchange(mine) for pair in pairs)
        self._wires |= dict.fromkeys(new)
        made: list[tuple[NcclChannel, Group]] = []
        for n in wanted:
            ranks = new[n][1]
            if rank in ranks:
                me = ranks.index(rank)
                comm = nccl.NcclCommunicator(len(ranks), _unique(ids[n]), me)
                made.append((NcclChannel(self, comm, me), new[n]))
                self._wires[new[n]] = made[-1][0]
        exchange(None)  # work on one card would keep another from making the rest
        for wire, group in made:
            _use(wire, group)
        exchange(None)

    def error(self) -> str:
        """What has gone wrong in work that was called before: NCCL says it to those who ask only.

        Empty for nothing, or if somebody calls NCCL just now.
        """
        if not self.lock.acquire(blocking=False):
            return ""
        try:
            for wire in filter(None, () if self.aborted else [*self._wires.values()]):
                wire.comm.check_async_error()
        except (self.nccl.NcclError, KeyError) as error:  # CuPy 13 has no text for a remote error
            return f"NCCL says {error}"
        finally:
            self.lock.release()
        return ""

    def abort(self) -> None:
        """End whatever waits on a wire; of no more use afterwards."""
        held = self.lock.acquire(timeout=GRACE_SECONDS / 3)  # else NCCL waits, which this ends
        if not self.aborted:
            self.aborted = True
            for wire in filter(None, self._wires.values()):
                wire.comm.abort()
        if held:
            self.lock.release()

    def close(self) -> None:
        """Let go of them all, when every rank does."""
        if not self.aborted:
            for wire in filter(None, self._wires.values()):
                wire.comm.destroy()
        self._wires.clear()


def _unique(numbers: Sequence[int]) -> bytes | tuple[int, ...]:
    """An identity as CuPy wants it: before version 14 as a tuple of chars."""
    version = int(loaded().__version__.partition(".")[0])
    return bytes(numbers) if version >= 14 else tuple(numbers)


def _use(wire: NcclChannel, group: Group) -> None:
    """Move a byte in every way in which the wire will be used."""
    lane, ranks = group
    count = len(ranks)
    first = ((0, *[1] * (count - 1)), *[(0,) * count] * (count - 1))  # from the first to all
    pairs = tuple([tuple([int(i != j) for j in range(count)]) for i in range(count)])
    tables = {"bcast": first, "alltoall": pairs, "allgather": pairs}
    if lane == MESSAGES:
        tables = {"scatter": first}
    room = loaded().empty(2 * count, np.uint8)
    for kind, sizes in tables.items():
        wire.move(CollectiveLayout(kind, ranks, sizes), room[:count], room[count:])
    wire.stream.synchronize()
