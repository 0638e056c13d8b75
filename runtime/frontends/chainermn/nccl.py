"""The communicator `pure_nccl`: sums, broadcasts and gathers arrays on GPUs by NCCL.

A call begins with a meeting of all ranks, whose wait is bounded like all waits; then each rank's
stream does its part. Sums are NCCL's own, in NCCL's order. Arrays of the host, objects, and
messages between two ranks go as with the other communicators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partitioner.base.collectives import CollectiveLayout
from runtime.backends.device.arrays import after, loaded
from runtime.frontends.chainermn.communicator import Communicator
from runtime.frontends.chainermn.group import Group, call_text
from runtime.frontends.chainermn.means import BUCKET_BYTES, MEANS, mean
from runtime.frontends.chainermn.mpi_group import MpiGroup
from runtime.transports.nccl.cluster import card_name, require_cards
from runtime.transports.nccl.communicators import NcclChannel, NcclCommunicators, load_nccl
from symgraph.core.errors import ConfigError, DTypeError, RunError
from symgraph.core.types import Array

__all__: list[str] = []

LANE = "pure_nccl"


class NcclCommunicator(Communicator):
    """A rank's view of ranks with one GPU each: the GPU that is current at its first array."""

    def __init__(self, group: Group, node: str) -> None:
        """ConfigError for a group of threads."""
        if not isinstance(group, MpiGroup):
            raise ConfigError("it joins processes that mpiexec started, and no threads")
        super().__init__(LANE, group, node)
        self._mpi = group
        self._channel: NcclChannel | None = None

    def split(self, color: int, key: int) -> NcclCommunicator:
        """See Communicator."""
        self._check_split(color, key)
        return NcclCommunicator(self._mpi.split(color, key), self._node)

    def allreduce(self, data: Any, out: Array | None = None) -> Any:
        """See Communicator; if `data` is on a GPU, `out` has to be, and so is the sum."""
        if not _on_card(data):
            return super().allreduce(data, out)
        total = loaded().empty_like(data) if out is None else out
        if not _on_card(total) or (total.dtype, total.shape) != (data.dtype, data.shape):
            raise RunError(
                f"allreduce: the array is a GPU's {data.dtype}{data.shape}, but `out` is not"
            )
        self._meet("allreduce", data)
        self._sum(data, total)
        return total

    def bcast(self, data: Any = None, root: int = 0) -> Any:
        """See Communicator; every rank gets an array on a GPU if the root's is."""
        self._check_rank("bcast from", root)
        mine = (str(data.dtype), data.shape) if self.rank == root and _on_card(data) else None
        given = self.bcast_obj(mine, root)
        if given is None:
            return super().bcast(data, root)
        dtype, shape = given
        if self.rank != root:
            data = loaded().empty(shape, dtype)
        self._meet("bcast", data)
        self._broadcast(data, root)
        return data

    def allgather(self, data: Any) -> tuple[Any, ...]:
        """See Communicator; arrays on GPUs have the same type on all ranks."""
        if not _on_card(data):
            return super().allgather(data)
        self._meet("allgather", data)
        mine = loaded().ascontiguousarray(data)
        rows = loaded().empty((self.size, *data.shape), data.dtype)
        if mine.nbytes:
            size = mine.nbytes
            table = [[size if i != j else 0 for j in range(self.size)] for i in range(self.size)]
            self._move("allgather", table, mine, rows)
        return tuple(rows)

    def bcast_data(self, params: Mapping[str, Array]) -> None:
        """See Communicator."""
        cards = {name: array for name, array in params.items() if _on_card(array)}
        super().bcast_data({name: a for name, a in params.items() if name not in cards})
        self.require_same("bcast_data", {n: (a.shape, str(a.dtype)) for n, a in cards.items()})
        for name in sorted(cards):
            self._broadcast(cards[name], 0)

    def _mean(self, arrays: Sequence[Array]) -> None:
        on_cards = [array for array in arrays if _on_card(array)]
        mean(self._groups(), [a for a in arrays if not _on_card(a)], *MEANS["flat"])
        mean(self._groups(), on_cards, lambda _, vector: self._sum(vector, vector), BUCKET_BYTES)

    def _type(self, array: Array) -> tuple[Any, ...]:
        return (*super()._type(array), "of a GPU" if _on_card(array) else "of the host")

    def _meet(self, verb: str, array: Array) -> None:
        """Let all ranks come with an array of this type."""
        self._mpi.meet(call_text(f"{verb} of GPUs", None, array.dtype, array.shape))

    def _sum(self, array: Array, total: Array) -> None:
        """Add up by NCCL, after all ranks have met."""
        if array.dtype.kind == "b":
            raise DTypeError("a sum over ranks: bool has no sum; cast it to int32")
        if array.size and self.size > 1:
            given, into = loaded().ascontiguousarray(array), loaded().empty_like(total, order="C")
            after(self._connection().sum(given, into), into)
            total[...] = into
        else:
            total[...] = array

    def _broadcast(self, array: Array, root: int) -> None:
        """Give all ranks the root's values, after all have met."""
        values = loaded().ascontiguousarray(array)
        if values.nbytes:
            table = [[0] * self.size for _ in range(self.size)]
            table[root] = [values.nbytes if rank != root else 0 for rank in range(self.size)]
            self._move("bcast", table, values, values)
        if values is not array and self.rank != root:
            array[...] = values.reshape(array.shape)

    def _move(self, kind: str, table: list[list[int]], out: Array, into: Array) -> None:
        if self.size > 1:
            blocks = CollectiveLayout(kind, tuple(range(self.size)), tuple(map(tuple, table)), LANE)
            after(self._connection().move(blocks, out, into), into)
        elif into is not out:
            into[...] = out

    def _connection(self) -> NcclChannel:
        """Return the channel of all ranks, made when needed: they have chosen GPUs by then."""
        if self._channel is None:
            nodes = self.allgather_obj((self._node, card_name(), ""))
            require_cards(f"communicator {LANE!r}", ["its card"] * self.size, nodes)
            communicators = NcclCommunicators(
                load_nccl(), self.rank, [True] * self.size, self._mpi.waiter
            )
            self._mpi.waiter.alarm(communicators.abort)
            self._mpi.waiter.watch(communicators.error)
            group = LANE, tuple(range(self.size))
            communicators.open([group], self.allgather_obj)
            self._channel = communicators.of(group)
            assert self._channel is not None
        return self._channel


def _on_card(data: Any) -> bool:
    return hasattr(data, "__cuda_array_interface__")
