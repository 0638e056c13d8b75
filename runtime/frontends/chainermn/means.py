"""Means of gradients over ranks, in large messages: one function per kind of communicator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from partitioner.cutting.replicas import filled
from runtime.backends.device.arrays import module_of
from runtime.frontends.chainermn.group import Group
from runtime.frontends.chainermn.messages import Message
from symgraph.core.types import Array

BUCKET_BYTES = 32 << 20  # of gradients that travel as one message


class Groups(NamedTuple):
    """The groups that a rank belongs to."""

    everyone: Group
    #: The ranks of its node.
    intra: Group
    #: The ranks that have the same place on their nodes.
    inter: Group


def naive(groups: Groups, vector: Array) -> None:
    """Sum by one allreduce over all ranks."""
    groups.everyone.allreduce(vector, vector)


def hierarchical(groups: Groups, vector: Array) -> None:
    """Sum on each node's first rank, then between those, then broadcast on each node."""
    groups.intra.reduce(vector, 0)
    first = groups.intra.rank == 0
    if first:
        groups.inter.allreduce(vector, vector)
    total = groups.intra.bcast(Message.of(vector) if first else None, 0)
    vector[...] = total.data


def two_dimensional(groups: Groups, vector: Array) -> None:
    """Sum one part per rank on each node, then between nodes, then gather on each node."""
    intra = groups.intra
    padded = np.zeros(-(-vector.size // intra.size) * intra.size, vector.dtype)
    padded[: vector.size] = vector
    part = intra.reduce_scatter(padded)
    groups.inter.allreduce(part, part)
    parts = [message.data for message in intra.allgather(Message.of(part))]
    vector[...] = np.concatenate(parts)[: vector.size]


def buckets(arrays: Sequence[Array], limit: int) -> Iterator[list[Array]]:
    """Yield arrays of one dtype with at most `limit` bytes together (a larger one alone)."""
    by_dtype: dict[np.dtype[np.generic], list[Array]] = {}
    for array in arrays:
        by_dtype.setdefault(array.dtype, []).append(array)
    for same in by_dtype.values():
        yield from filled(same, lambda array: array.nbytes, limit)


def mean(
    groups: Groups,
    arrays: Sequence[Array],
    total: Callable[[Groups, Array], None],
    limit: int,
) -> None:
    """Replace arrays, all on the host or all on one GPU, by their means over all ranks."""
    xp = module_of(arrays[0]) if arrays else np
    for bucket in buckets(arrays, limit):
        vector = xp.concatenate([array.reshape(-1) for array in bucket])
        total(groups, vector)
        vector /= groups.everyone.size
        ends = np.cumsum([array.size for array in bucket]).tolist()
        for array, part in zip(bucket, xp.split(vector, ends[:-1]), strict=True):
            array[...] = part.reshape(array.shape)


# name -> how a vector is summed, and bytes that travel as one message (0: each gradient by itself)
MEANS: Mapping[str, tuple[Callable[[Groups, Array], None], int]] = {
    "naive": (naive, 0),
    "flat": (naive, BUCKET_BYTES),
    "hierarchical": (hierarchical, BUCKET_BYTES),
    "two_dimensional": (two_dimensional, BUCKET_BYTES),
}
