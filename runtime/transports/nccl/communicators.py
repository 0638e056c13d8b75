"""NCCL's communicators of a rank: a channel is one of them with its own stream.

A channel serves one direction between two ranks, or the collectives of a group. Its work waits for
the earlier work of the caller's stream, and runs in order; no channel waits for another. A message
that nobody receives would block its GPU forever, and everyone who waits for that GPU: so a failure
of any rank aborts all channels at once.
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

MESSAGES = "messages"  # the lane of channels between two ranks, from the first to the second
Call = Callable[[Any, int], None]  # of a communicator, on a stream


def load_nccl() -> Any:
    """Import CuPy's NCCL module; ConfigError, saying what is missing, without it."""
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

    def __init__(self, owner: NcclCommunicators, comm: Any, me: int) -> None:
        """me: this rank's place in the communicator."""
        self._owner, self._nccl, self.comm, self._me = owner, owner.nccl, comm, me
        self._cuda = loaded().cuda
        self.stream = self._cuda.Stream(non_blocking=True)

    def send(self, array: Array, awaited: str) -> Mark:
        """Send an array's bytes to the other end; return the mark of its end."""
        byte = self._nccl.NCCL_UINT8
        return self._do(
            lambda comm, stream: comm.send(address(array), array.nbytes, byte, 1, stream), awaited
        )

    def recv(self, out: Array, awaited: str) -> Mark:
        """Receive the bytes that the other end sends; return the mark of its end."""
        byte = self._nccl.NCCL_UINT8
        return self._do(
            lambda comm, stream: comm.recv(address(out), out.nbytes, byte, 0, stream), awaited
        )

    def move(self, blocks: CollectiveLayout, out: Array, into: Array) -> Mark:
        """Start this rank's part of a collective; return the mark of its end."""
        sizes = {blocks.given(i) for i in range(len(blocks.ranks))}
        call = self._broadcast if blocks.kind == "bcast" else self._exchange
        if blocks.kind == "allgather" and len(sizes) == 1:
            call = self._allgather
        return self._do(call(blocks, out, into), joined_by(blocks))

    def sum(self, array: Array, total: Array) -> Mark:
        """Start NCCL's sum of all ranks' arrays, in NCCL's order; return the mark of its end."""
        nccl = self._nccl
        dtype = getattr(nccl, f"NCCL_{str(array.dtype).upper()}")
        given, into, size = address(array), address(total), array.size
        return self._do(
            lambda comm, stream: comm.allReduce(given, into, size, dtype, nccl.NCCL_SUM, stream),
            "the sum over all ranks",
        )

    def _do(self, call: Call, awaited: str) -> Mark:
        """Call NCCL, which waits for nothing here; return the mark of the end of the work."""
        owner, cuda, stream = self._owner, self._cuda, self.stream
        stream.wait_event(cuda.get_current_stream().record(cuda.Event(disable_timing=True)))
        try:
            with owner.lock:  # no call into communicators that are being aborted
                if owner.aborted:
                    owner.waiter.check(awaited)
                call(self.comm, stream.ptr)
        except self._nccl.NcclError as error:
            time.sleep(GRACE_SECONDS / 3)  # a peer's death may show here first
            owner.waiter.check(awaited)
            raise RunError(f"rank {owner.waiter.rank}, in {awaited}: NCCL says {error}") from error
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
        """Exchange messages between all pairs at once; in an allgather each rank's own, too."""
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
    """All channels of a rank.

    Attributes:
        lock: Held during calls of NCCL.
        aborted: Whether a failure has ended all channels.
    """

    def __init__(self, nccl: Any, rank: int, on_card: Sequence[bool], waiter: Waiter) -> None:
        """rank: this one. on_card: by rank, whether it has a GPU."""
        self.nccl, self.waiter = nccl, waiter
        self._rank = rank
        self.lock = threading.Lock()
        self.aborted = False
        self._on_card = tuple(on_card)
        self._channels: dict[Group, NcclChannel | None] = {}  # None: of other ranks, or not of GPUs

    def can_join(self, ranks: Sequence[int]) -> bool:
        """Return whether NCCL can join these ranks: all have GPUs."""
        return all(self._on_card[rank] for rank in ranks)

    def of(self, group: Group) -> NcclChannel | None:
        """Return the channel of a group or of two ranks; None if values go another way."""
        return self._channels.get(group)

    def open(self, groups: Sequence[Group], exchange: Callable[[Any], list[Any]]) -> None:
        """Make the channels of these groups that are missing; all ranks pass the same groups.

        exchange: see `Transport.exchange`; it lets all ranks arrive first, because NCCL waits for
        them without a limit. Each channel is used once, because NCCL connects ranks, and waits for
        the other one, at their first transfer.
        """
        new = sorted({group for group in groups if group not in self._channels})
        if not new:
            return
        rank, nccl = self._rank, self.nccl
        wanted = [n for n, (_, ranks) in enumerate(new) if self.can_join(ranks) and len(ranks) > 1]
        mine = [[n, [*nccl.get_unique_id()]] for n in wanted if new[n][1][0] == rank]
        ids = dict(pair for pairs in exchange(mine) for pair in pairs)
        self._channels |= dict.fromkeys(new)
        made: list[tuple[NcclChannel, Group]] = []
        for n in wanted:
            ranks = new[n][1]
            if rank in ranks:
                me = ranks.index(rank)
                comm = nccl.NcclCommunicator(len(ranks), _unique(ids[n]), me)
                made.append((NcclChannel(self, comm, me), new[n]))
                self._channels[new[n]] = made[-1][0]
        exchange(None)  # work on one GPU would keep another from making the rest
        for channel, group in made:
            _use(channel, group)
        exchange(None)

    def error(self) -> str:
        """Ask NCCL for an error in earlier work, which no call reports.

        Empty if there is none, or if another thread is calling NCCL just now.
        """
        if not self.lock.acquire(blocking=False):
            return ""
        try:
            for channel in filter(None, () if self.aborted else [*self._channels.values()]):
                channel.comm.check_async_error()
        except (self.nccl.NcclError, KeyError) as error:  # CuPy 13 has no text for a remote error
            return f"NCCL says {error}"
        finally:
            self.lock.release()
        return ""

    def abort(self) -> None:
        """End all waits on channels, which cannot be used afterwards."""
        held = self.lock.acquire(timeout=GRACE_SECONDS / 3)  # else NCCL waits: this ends it
        if not self.aborted:
            self.aborted = True
            for channel in filter(None, self._channels.values()):
                channel.comm.abort()
        if held:
            self.lock.release()

    def close(self) -> None:
        """Destroy all channels, when every rank does."""
        if not self.aborted:
            for channel in filter(None, self._channels.values()):
                channel.comm.destroy()
        self._channels.clear()


def _unique(numbers: Sequence[int]) -> bytes | tuple[int, ...]:
    """Return an identity in CuPy's form: before version 14, a tuple of chars."""
    version = int(loaded().__version__.partition(".")[0])
    return bytes(numbers) if version >= 14 else tuple(numbers)


def _use(channel: NcclChannel, group: Group) -> None:
    """Move a byte in every way in which the channel will be used."""
    lane, ranks = group
    count = len(ranks)
    first = ((0, *[1] * (count - 1)), *[(0,) * count] * (count - 1))  # from the first to all
    pairs = tuple([tuple([int(i != j) for j in range(count)]) for i in range(count)])
    tables = {"bcast": first, "alltoall": pairs, "allgather": pairs}
    if lane == MESSAGES:
        tables = {"scatter": first}
    room = loaded().empty(2 * count, np.uint8)
    for kind, sizes in tables.items():
        channel.move(CollectiveLayout(kind, ranks, sizes), room[:count], room[count:])
    channel.stream.synchronize()
