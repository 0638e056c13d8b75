"""Costs of collectives: what the algorithms of MPI libraries take on links of one speed.

p ranks, s = ceil(log2 p) rounds of a tree, latency a, and b(n) the time of n bytes on a link; of
two algorithms the faster counts (Thakur, Rabenseifner, Gropp: Optimization of Collective
Communication Operations in MPICH, 2005):

    bcast            tree s (a + b(n)), or scattered and passed round a ring:
                     (s + p - 1) a + 2 (p - 1) / p b(n)
    scatter, gather  tree s a + b(all that the root gives or gets)
    allgather        recursive doubling s a + b(all that a rank gets), or passed round a ring
                     (p - 1) (a + b(the most that a rank gives))
    alltoall         pairwise (p - 1) a + b(all that a rank gives or gets), or Bruck's tree
                     s (a + b(half of that))
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial

from partitioner.base.collectives import CollectiveLayout
from runtime.schedule.links import Link, as_fraction, quotient

Links = Callable[[int, int], Link]  # of a source and a target rank


def collective_seconds(blocks: CollectiveLayout, link: Links) -> Fraction:
    """Seconds from when the last rank has started it to when all have what they get.

    All links are taken to be as slow as the slowest between two of the ranks.
    """
    links = [link(a, b) for a in blocks.ranks for b in blocks.ranks if a != b]
    latency = max(as_fraction(x.latency, "latency") for x in links)
    transfer = partial(quotient, rate=min(x.bandwidth for x in links), name="bandwidth")
    p = len(blocks.ranks)
    rounds = (p - 1).bit_length()
    given = [sum(row) for row in blocks.sizes]
    gotten = [sum(column) for column in zip(*blocks.sizes, strict=True)]
    most = max(*given, *gotten)
    if blocks.kind == "bcast":
        whole = transfer(max(map(max, blocks.sizes)))
        ring = (rounds + p - 1) * latency + Fraction(2 * (p - 1), p) * whole
        return min(rounds * (latency + whole), ring)
    if blocks.kind == "allgather":
        largest = transfer(max(map(max, blocks.sizes)))
        return min(rounds * latency + transfer(max(gotten)), (p - 1) * (latency + largest))
    if blocks.kind == "alltoall":
        pairwise = (p - 1) * latency + transfer(most)
        return min(pairwise, rounds * (latency + transfer(most) / 2))
    return rounds * latency + transfer(most)
