"""Copies of parameters: where they live, and what the sum of their gradients sends and holds.

A gradient of n copies is cut into n pieces. Copy i's rank gets piece i of all copies, adds them up
in the order of the copies, and sends the sum to all: each rank sends 2 (n - 1) / n of the gradient,
which no algorithm does with less (Patarasuk and Yuan, 2009), and the bits do not depend on n's
placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from partitioner.types import Partition
from symgraph.replicate import copies_of


class Copies(NamedTuple):
    """The copies of one parameter, in order.

    names: their variables. ranks: of each. nbytes, size: of one copy.
    """

    parameter: str
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    nbytes: int
    size: int

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """Where the elements of each copy's piece begin and end."""
        count = len(self.names)
        return list(pairwise([self.size * i // count for i in range(count + 1)]))

    def scratch(self, rank: int) -> int:
        """Bytes that a rank needs to add up its pieces: a sum and a term that has come."""
        itemsize = self.nbytes // max(1, self.size)
        own = [e - b for (b, e), r in zip(self.pieces, self.ranks, strict=True) if r == rank]
        return 2 * itemsize * max(own, default=0)


def all_copies(partition: Partition) -> list[Copies]:
    """The parameters of a partition that have copies."""
    graph, place = partition.graph, partition.placement
    found = []
    for parameter, names in copies_of(graph).items():
        (type_,) = graph[names[0]].types
        ranks = tuple([place.rank_of[place.stage_of[n]] for n in names])
        found.append(Copies(parameter, names, ranks, type_.nbytes, type_.size))
    return found


def scratch_bytes(partition: Partition, grads: Mapping[str, object]) -> list[int]:
    """What each rank needs to sum the gradients of copies: the most of any parameter."""
    asked = [c for c in all_copies(partition) if c.names[0] in grads]
    return [max((c.scratch(r) for c in asked), default=0) for r in range(partition.ranks)]
