"""Costs of messages: what links carry, and how long collectives and sums of gradients take on them.

A collective takes what the algorithms of MPI libraries take on links of one speed: p ranks,
s = ceil(log2 p) rounds of a tree, latency a, and b(n) the time of n bytes on a link. Of two
algorithms the faster one counts (Thakur, Rabenseifner, Gropp: Optimization of Collective
Communication Operations in MPICH, 2005):

    bcast            tree s (a + b(n)), or scattered and passed around a ring:
                     (s + p - 1) a + 2 (p - 1) / p b(n)
    scatter, gather  tree s a + b(all that the root sends or receives)
    allgather        recursive doubling s a + b(all that a rank receives), or passed around a ring
                     (p - 1) (a + b(the largest block of a rank))
    alltoall         pairwise (p - 1) a + b(all that a rank sends or receives), or Bruck's tree
                     s (a + b(half of that))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import inf, isfinite
from numbers import Rational

from partitioner.base.collectives import CollectiveLayout
from partitioner.base.types import BodyKey, Partition
from partitioner.cutting.replicas import Bucket, buckets
from symgraph.core.errors import ScheduleError

Number = int | float | Fraction


@dataclass(frozen=True)
class Link:
    """The link that carries the messages of a channel.

    A message begins when it is posted and the link is free, occupies the link for bytes /
    bandwidth, and arrives one latency after that.
    """

    #: Seconds.
    latency: Number = 0
    #: Bytes per second.
    bandwidth: Number = inf
    #: Channels whose links have the same name share one link; a link without a name is not shared.
    name: str = ""
    #: The receiver carries the message, as between threads: the message arrives when it is posted,
    #: and copying it takes the receiver's time.
    by_receiver: bool = False


Links = Callable[[int, int], Link]  # of a source and a target rank


def as_fraction(value: Number, name: str) -> Fraction:
    """Return a cost as an exact fraction.

    Raises:
        ScheduleError: The cost is negative or not finite; the message gives its name.
    """
    if value < 0 or not (isinstance(value, Rational) or isfinite(value)):
        raise ScheduleError(f"the cost of {name} is {value}; it must be finite and not negative")
    return Fraction(value) if isinstance(value, Rational) else Fraction(float(value))


def quotient(size: int, rate: Number, name: str) -> Fraction:
    """Return the seconds that `size` bytes take at `rate` bytes per second.

    Raises:
        ScheduleError: The rate is not more than 0; the message gives its name.
    """
    if not rate > 0:
        raise ScheduleError(f"{name} is {rate} bytes a second; it must be more than 0")
    return Fraction(0) if rate == inf else size / as_fraction(rate, name)


def collective_seconds(layout: CollectiveLayout, link: Links) -> Fraction:
    """Return the seconds from the last rank's start of a collective to its end on all ranks.

    All links are taken to be as slow as the slowest between two of the ranks.
    """
    links = [link(a, b) for a in layout.ranks for b in layout.ranks if a != b]
    latency = max(as_fraction(x.latency, "latency") for x in links)
    transfer = partial(quotient, rate=min(x.bandwidth for x in links), name="bandwidth")
    p = len(layout.ranks)
    rounds = (p - 1).bit_length()
    sent = [sum(row) for row in layout.sizes]
    received = [sum(column) for column in zip(*layout.sizes, strict=True)]
    most = max(*sent, *received)
    if layout.kind == "bcast":
        message = transfer(max(map(max, layout.sizes)))
        ring = (rounds + p - 1) * latency + Fraction(2 * (p - 1), p) * message
        return min(rounds * (latency + message), ring)
    if layout.kind == "allgather":
        largest = transfer(max(map(max, layout.sizes)))
        return min(rounds * latency + transfer(max(received)), (p - 1) * (latency + largest))
    if layout.kind == "alltoall":
        pairwise = (p - 1) * latency + transfer(most)
        return min(pairwise, rounds * (latency + transfer(most) / 2))
    return rounds * latency + transfer(most)


def replica_sum_seconds(
    partition: Partition, link: Links, *, spread: bool = True
) -> list[tuple[frozenset[BodyKey], Fraction]]:
    """Return, per bucket of replicas' gradients, the bodies that complete it and its seconds.

    spread: whether all copies get the whole sums.
    """
    return [
        (bucket.bodies, _bucket_seconds(bucket, link, bucket.collectives[: 1 + spread]))
        for bucket in buckets(partition)
    ]


def replica_weight_seconds(partition: Partition, link: Links) -> Fraction:
    """Return the seconds in which the weights of all buckets are spread, one after the other."""
    spreads = [_bucket_seconds(b, link, b.collectives[1:]) for b in buckets(partition)]
    return sum(spreads, Fraction(0))


def _bucket_seconds(bucket: Bucket, link: Links, layouts: Iterable[CollectiveLayout]) -> Fraction:
    """Return the seconds of some of a bucket's collectives; none on a single rank."""
    several = len(bucket.ranks) > 1
    seconds = [collective_seconds(layout, link) for layout in layouts if several]
    return sum(seconds, Fraction(0))
