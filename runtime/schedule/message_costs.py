"""Costs of messages: what links carry, and how long collectives and sums of gradients take on them.

A network has several regimes: small messages go at once, larger ones take the trips of TCP's window
and of a protocol's questions and answers, the largest the bandwidth. So a link may have a table of
measured messages, between whose sizes seconds are linear.

A collective takes what the algorithms of MPI libraries take on links of one speed: p ranks,
s = ceil(log2 p) rounds of a tree, latency a (of a message of that size), and b(n) the time of n
bytes on a link. Of two
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

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import inf, isfinite
from numbers import Rational
from operator import itemgetter

from partitioner.base.collectives import CollectiveLayout
from partitioner.base.types import BodyKey, Partition
from partitioner.cutting.replicas import Bucket, buckets
from symgraph.core.errors import ScheduleError

Number = int | float | Fraction

ROW_BYTES = 16  # what each rank says before a collective; see runtime.transports.mpi.meeting


@dataclass(frozen=True)
class Link:
    """The link that carries the messages of a channel.

    A message begins when it is posted and the link is free, occupies the link for bytes /
    bandwidth, and arrives one latency after that, but not before those posted earlier.
    """

    #: Seconds.
    latency: Number = 0
    #: Bytes per second.
    bandwidth: Number = inf
    #: Channels whose links have the same name share one link; a link without a name is not shared.
    name: str = ""
    #: Bytes of measured messages, rising, and the seconds of each: from the post to the arrival.
    #: Without them all messages have one latency.
    messages: tuple[tuple[int, Number], ...] = ()
    #: The receiver carries the message, as between threads: the message arrives when it is posted,
    #: and copying it takes the receiver's time.
    by_receiver: bool = False

    def latency_of(self, size: int) -> Fraction:
        """Return the seconds of a message of `size` bytes beyond what it occupies the link."""
        if not self.messages:
            return as_fraction(self.latency, "latency")
        at = bisect_left(self.messages, size, key=itemgetter(0))
        ends = self.messages[max(at - 1, 0)], self.messages[min(at, len(self.messages) - 1)]
        first, last = (as_fraction(x, "a message") - self._carrying(n) for n, x in ends)
        (a, _), (b, _) = ends
        share = Fraction(size - a, b - a) if b > a else 0
        return max(first + share * (last - first), Fraction(0))

    def seconds_of(self, size: int) -> Fraction:
        """Return the seconds of a message of `size` bytes on an idle link."""
        return self.latency_of(size) + self._carrying(size)

    def _carrying(self, size: int) -> Fraction:
        return quotient(size, self.bandwidth, "bandwidth")


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
    pairs = (link(a, b) for a in layout.ranks for b in layout.ranks if a != b)
    links = {id(x): x for x in pairs}.values()  # of many pairs, few differ: do not hash them all

    def latency(size: int) -> Fraction:
        return max(x.latency_of(size) for x in links)

    transfer = partial(quotient, rate=min(x.bandwidth for x in links), name="bandwidth")
    p = len(layout.ranks)
    rounds = (p - 1).bit_length()
    sent = [sum(row) for row in layout.sizes]
    received = [sum(column) for column in zip(*layout.sizes, strict=True)]
    most = max(*sent, *received)
    if layout.kind == "bcast":
        size = max(map(max, layout.sizes))
        ring = (rounds + p - 1) * latency(size // p) + Fraction(2 * (p - 1), p) * transfer(size)
        return min(rounds * (latency(size) + transfer(size)), ring)
    if layout.kind == "allgather":
        size = max(map(max, layout.sizes))
        ring = (p - 1) * (latency(size) + transfer(size))
        return min(rounds * latency(max(received) // p) + transfer(max(received)), ring)
    if layout.kind == "alltoall":
        pairwise = (p - 1) * latency(most // p) + transfer(most)
        return min(pairwise, rounds * (latency(most // 2) + transfer(most) / 2))
    return rounds * latency(most // p) + transfer(most)


def meeting_seconds(ranks: Sequence[int], nbytes: int, link: Links) -> Fraction:
    """Return the seconds in which all ranks say what they call and exchange `nbytes` bytes each."""
    seconds = Fraction(0)
    for size in (ROW_BYTES, nbytes) if len(ranks) > 1 else ():
        blocks = tuple((size,) * len(ranks) for _ in ranks)
        layout = CollectiveLayout("allgather", tuple(ranks), blocks)
        seconds += collective_seconds(layout, link)
    return seconds


def replica_sum_seconds(
    partition: Partition, link: Links, *, spread: bool = True, shared_memory: bool = False
) -> list[tuple[frozenset[BodyKey], Fraction]]:
    """Return, per bucket of replicas' gradients, the bodies that complete it and its seconds.

    Args:
        partition: the cut graph.
        link: the links.
        spread: whether all copies get the whole sums.
        shared_memory: whether ranks on CPUs read gradients where they are, so that nothing is sent.
    """

    def seconds(bucket: Bucket) -> Fraction:
        lent = bucket.is_lent(partition, shared_memory=shared_memory)
        return _bucket_seconds(bucket, link, () if lent else bucket.collectives[: 1 + spread])

    return [(bucket.bodies, seconds(bucket)) for bucket in buckets(partition)]


def replica_weight_seconds(
    partition: Partition, link: Links, *, shared_memory: bool = False
) -> Fraction:
    """Return the seconds in which the weights of all buckets are spread, one after the other.

    shared_memory: see `replica_sum_seconds`.
    """
    every = buckets(partition)
    sent = [b for b in every if not b.is_lent(partition, shared_memory=shared_memory)]
    return sum([_bucket_seconds(b, link, b.collectives[1:]) for b in sent], Fraction(0))


def _bucket_seconds(bucket: Bucket, link: Links, layouts: Iterable[CollectiveLayout]) -> Fraction:
    """Return the seconds of some of a bucket's collectives; none on a single rank."""
    several = len(bucket.ranks) > 1
    seconds = [collective_seconds(layout, link) for layout in layouts if several]
    return sum(seconds, Fraction(0))
