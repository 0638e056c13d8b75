"""Copies of parameters: where they live, and what the sums of their gradients send and hold.

A gradient of n copies is cut into n pieces. Copy i's rank gets piece i of all copies, adds them up
in the order of the copies, and gives the sum to all: each rank sends 2 (n - 1) / n of the gradient,
which no algorithm does with less (Patarasuk and Yuan, 2009), and the bits do not depend on n's
placement. Gradients that are complete at the same time go together, in buckets of limited size, so
that messages are large and the first ones go while later gradients are made.

Where the optimizer's arrays are sharded (ZeRO-1: Rajbhandari et al., 2020), copy i's rank keeps
those of piece i only, updates piece i of the weights, and gives the weights to all in place of the
sums, in collectives of the same sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeVar

from partitioner.base.collectives import CollectiveLayout, Group
from partitioner.base.types import BodyKey, Partition
from symgraph.core.types import TensorType
from symgraph.passes.replicate import copies_of

BUCKET_BYTES = 8 << 20  # of gradients that are summed together; a larger one goes alone
UNDER_WAY = 2  # the most buckets that a rank has begun and not finished
GIVE, SPREAD = "give", "spread"  # the lanes of a bucket's alltoall and allgather
T = TypeVar("T")


class Copies(NamedTuple):
    """The copies of one parameter, in order."""

    parameter: str
    names: tuple[str, ...]  #: the variable of each copy
    ranks: tuple[int, ...]  #: the rank of each copy
    nbytes: int  #: of one copy
    size: int  #: elements of one copy

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.nbytes // max(1, self.size)

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """The first and last + 1 element of each copy's piece."""
        count = len(self.names)
        return list(pairwise([self.size * i // count for i in range(count + 1)]))

    @property
    def own_pieces(self) -> dict[str, slice]:
        """The piece of each copy, by its variable."""
        return {n: slice(*piece) for n, piece in zip(self.names, self.pieces, strict=True)}


class Bucket(NamedTuple):
    """Gradients that are summed together."""

    copies: tuple[Copies, ...]
    bodies: frozenset[BodyKey]  #: those that complete the gradients of all copies

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have copies, in rising order."""
        return tuple(sorted({rank for copies in self.copies for rank in copies.ranks}))

    def pieces(self, rank: int) -> Iterator[tuple[Copies, str, slice]]:
        """Yield what a rank adds up: elements of parameters, with the copy whose piece it is."""
        for copies in self.copies:
            pieces = copies.own_pieces.items()
            for (name, piece), at in zip(pieces, copies.ranks, strict=True):
                if at == rank:
                    yield copies, name, piece

    def given(self, source: int, target: int) -> int:
        """Count the bytes of the target's pieces in all copies of the source."""
        return sum(
            copies.ranks.count(source) * (at.stop - at.start) * copies.itemsize
            for copies, _, at in self.pieces(target)
        )

    def summed(self, rank: int) -> int:
        """Count the bytes of the sums that a rank makes."""
        return sum((at.stop - at.start) * copies.itemsize for copies, _, at in self.pieces(rank))

    def buffer_sizes(self, rank: int) -> tuple[int, int, int, int]:
        """Count the bytes that a rank needs besides the gradients.

        Returns:
            The bytes of the pieces that it gives, of those that it gets, of its sums, and of the
            sums of all. Weights that are spread take the places of the sums.
        """
        others = [r for r in self.ranks if r != rank]
        return (
            sum(self.given(rank, r) for r in others),
            sum(self.given(r, rank) for r in others),
            self.summed(rank),
            sum(map(self.summed, self.ranks)),
        )

    def is_lent(self, partition: Partition, *, shared_memory: bool) -> bool:
        """Tell whether its ranks read each other's gradients where they are: all on CPUs do."""
        kinds = {partition.placement.devices[rank].kind for rank in self.ranks}
        return shared_memory and kinds == {"cpu"}

    @property
    def collectives(self) -> tuple[CollectiveLayout, CollectiveLayout]:
        """The alltoall of the pieces and the allgather of sums or weights, for several ranks."""
        pieces = [[self.given(a, b) if a != b else 0 for b in self.ranks] for a in self.ranks]
        sums = [[self.summed(a) if a != b else 0 for b in self.ranks] for a in self.ranks]
        return (
            CollectiveLayout("alltoall", self.ranks, tuple(map(tuple, pieces)), GIVE),
            CollectiveLayout("allgather", self.ranks, tuple(map(tuple, sums)), SPREAD),
        )


def all_copies(partition: Partition) -> list[Copies]:
    """List the parameters of a partition that have copies."""
    graph, place = partition.graph, partition.placement
    every = []
    for parameter, names in copies_of(graph).items():
        (type_,) = graph[names[0]].types
        ranks = tuple([place.rank_of[place.stage_of[n]] for n in names])
        every.append(Copies(parameter, names, ranks, type_.nbytes, type_.size))
    return every


def filled(items: Iterable[T], nbytes: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Yield runs of items whose bytes together are at most `limit` (a larger one is alone)."""
    run: list[T] = []
    held = 0
    for item in items:
        if run and held + nbytes(item) > limit:
            yield run
            run, held = [], 0
        run.append(item)
        held += nbytes(item)
    if run:
        yield run


def buckets(partition: Partition) -> tuple[Bucket, ...]:
    """List the sums of copies' gradients, in the order in which all ranks make them.

    Parameters of the same stages share buckets; those of later stages come first, since their
    gradients do. The elements of a bucket have one size, so that each piece begins at a multiple
    of it, as GPUs require.
    """
    every = all_copies(partition)
    if not every:
        return ()
    graph, stage_of = partition.graph, partition.placement.stage_of
    makers = {graph[v.node].origin: key for key, b in partition.bodies.items() for v in b.results}
    together: dict[tuple[tuple[int, ...], int], list[Copies]] = {}
    for copies in every:
        if copies.names[0] in makers:  # else its gradient is not asked for
            stages = tuple([stage_of[n] for n in copies.names])
            together.setdefault((stages, copies.itemsize), []).append(copies)
    return tuple(
        [
            Bucket(tuple(bucket), frozenset(makers[n] for c in bucket for n in c.names))
            for stages, size in sorted(together, key=lambda s: (-max(s[0]), s))
            for bucket in filled(together[stages, size], lambda c: c.nbytes, BUCKET_BYTES)
        ]
    )


def own_pieces(partition: Partition) -> dict[str, slice]:
    """Map the variable of each copy to the elements of its own piece."""
    return {n: p for copies in all_copies(partition) for n, p in copies.own_pieces.items()}


def shared_copies(partition: Partition, *, shared_memory: bool = False) -> dict[str, str]:
    """Map the variable of each copy whose array is that of the first copy to the first one's.

    Where every copy updates its own piece only, ranks on CPUs that share memory need one array.

    shared_memory: whether all ranks are threads of one process.
    """
    return {
        name: copies.names[0]
        for bucket in buckets(partition)
        if bucket.is_lent(partition, shared_memory=shared_memory)
        for copies in bucket.copies
        for name in copies.names
    }


def piece_bytes(type_: TensorType, piece: slice | None) -> int:
    """Count the bytes of some elements of an array; None: of all."""
    return (
        type_.nbytes if piece is None else type_.nbytes // type_.size * (piece.stop - piece.start)
    )


def collective_groups(partition: Partition) -> list[Group]:
    """List the groups that all ranks must have joined before gradients are summed."""
    shared = [bucket for bucket in buckets(partition) if len(bucket.ranks) > 1]
    return sorted({layout.group for bucket in shared for layout in bucket.collectives})


def scratch_bytes(partition: Partition, *, shared_memory: bool = False) -> list[int]:
    """Count the bytes that each rank needs to sum gradients: buffers that fit all its buckets.

    shared_memory: whether ranks on CPUs add up gradients where they are, without buffers.
    """
    every = [b for b in buckets(partition) if not b.is_lent(partition, shared_memory=shared_memory)]
    needs = [
        [b.buffer_sizes(rank) for b in every if rank in b.ranks] for rank in range(partition.ranks)
    ]
    return [UNDER_WAY * sum(map(max, zip(*sizes, strict=True))) for sizes in needs]
