"""A topology, its costs and its memory in numbers, for the list scheduler and for branch and bound.

All micro-batches are alike, so every body takes them in order, and an order lists bodies only: the
third time that a rank runs a body, it is micro-batch 2. That loses nothing. Take any schedule, and
for each body give the times of its runs, as they rise, to micro-batches 0, 1, ... If each run of b
begins at least x after that of a for the same micro-batch, it still does when both are sorted; so
what a run needs is there as before, and no rank or link does anything at another time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.types import FORWARD, PHASES, WEIGHT, BodyKey, Topology
from partitioner.memory.memory_plan import MemoryPlan
from runtime.schedule.instructions import RUN, Run
from runtime.schedule.lowering.lower_walk import number_runs
from runtime.schedule.message_costs import as_fraction, quotient
from runtime.schedule.program import Columns, Program
from runtime.schedule.replay.facts import Facts, Lists
from runtime.schedule.replay.simulation import Costs
from symgraph.core.orders import topological

Array = npt.NDArray[Any]

NEVER = 1 << 62  # ticks, or bytes, that are never reached
NONE = -1
MAX_TICKS = 1 << 60  # of all work, one after the other


class Problem(NamedTuple):
    """A scheduling problem; times are in ticks, arrays are int64.

    Bodies are numbered so that those a body needs have lower numbers; edges are those between
    ranks.
    """

    mbs: int
    #: Ticks of each receive, run and send, and of one free per run.
    overhead: int
    #: By body: its rank, and its ticks.
    rank: Array
    run: Array
    #: Rank r's bodies, rising, are bodies[bodies_first[r] : bodies_first[r + 1]]; its part of an
    #: order is `mbs` times as long.
    bodies_first: Array
    bodies: Array
    #: By body, in such lists: the bodies of the same rank that run before it.
    before_first: Array
    before: Array
    #: By body, in such lists: the edges to it, and those from it.
    in_first: Array
    incoming: Array
    out_first: Array
    outgoing: Array
    #: By edge: the bodies at its ends, the number of its link, and its ticks.
    src: Array
    dst: Array
    link: Array
    transfer: Array
    latency: Array
    copy: Array

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.bodies_first) - 1


class Memory(NamedTuple):
    """Bytes that orders hold; int64."""

    #: By rank: the limit, without what stays for the whole step; NEVER: no limit.
    room: Array
    #: By body: the most that it and its messages need until it has run, beyond what was held
    #: before.
    during: Array
    #: By body: the change of what is held.
    after: Array
    #: By body: a partial sum of the gradients that it completes.
    sums: Array
    #: waiting[n]: the number of partial sums after n micro-batches.
    waiting: Array


@dataclass(frozen=True)
class Numbered:
    """A problem and the keys of its bodies."""

    facts: Facts
    keys: tuple[BodyKey, ...]
    problem: Problem
    #: Seconds of a tick.
    unit: Fraction

    def order(self, lists: Sequence[Program | Iterable[Run]]) -> Array | None:
        """Return the order of compute lists, or None if they do not run everything."""
        p, facts = self.problem, self.facts
        number = {key: i for i, key in enumerate(self.keys)}
        numbers = np.array([number[key] for key in facts.keys], np.int64)
        rank_of = np.array(facts.rank_of, np.int32)
        parts = []
        for rank, program in enumerate(map(Program.of, lists)):
            out = np.empty(2 * len(program), np.int32)
            count, _ = number_runs(rank, program.columns, facts.body_at, rank_of, p.mbs, out)
            parts.append(numbers[out[:count] // p.mbs])
        order = np.concatenate(parts)
        every = np.bincount(order, minlength=len(self.keys)) == p.mbs
        return order if every.all() else None

    def programs(self, order: Array) -> list[Program]:
        """Return the compute lists of an order."""
        p = self.problem
        rows = [(RUN + PHASES.index(k.phase), k.stage, k.segment) for k in self.keys]
        code, at, segment = np.array(rows, np.int32).T
        parts = []
        for first, last in zip(
            p.bodies_first[:-1] * p.mbs, p.bodies_first[1:] * p.mbs, strict=True
        ):
            runs = order[first:last]
            mb = np.empty(len(runs), np.int32)
            for body in np.unique(runs):
                mb[runs == body] = np.arange(p.mbs)
            parts.append(Program(Columns(code[runs].astype(np.uint8), at[runs], mb, segment[runs])))
        return parts


def number(topology: Topology, mbs: int, costs: Costs, unit: Fraction) -> Numbered:
    """Number a topology's bodies; `unit` is the tick of its timelines.

    If the sum of all times does not fit, times are rounded down to a coarser tick.
    """
    facts = Facts.of(topology)
    bodies = _in_order(facts)
    number = {body: i for i, body in enumerate(bodies)}
    cut = [e.tag for e in facts.edges if facts.edge_channel[e.tag] >= 0]
    edge = {tag: i for i, tag in enumerate(cut)}
    rank = [int(facts.body_rank[b]) for b in bodies]
    bodies_of = Lists.of([i for i, at in enumerate(rank) if at == r] for r in range(facts.ranks))
    before = Lists.of(sorted(number[a] for a in facts.before[b]) for b in bodies)
    incoming = Lists.of([edge[tag] for tag in facts.incoming[b]] for b in bodies)
    outgoing = Lists.of([edge[tag] for tag in facts.outgoing[b]] for b in bodies)
    times, links = _seconds(facts, [facts.keys[b] for b in bodies], cut, costs)
    ticks = [[round(x / unit) for x in row] for row in times]
    coarse = 1 + mbs * sum(map(sum, ticks)) // MAX_TICKS
    (overhead,), run, transfer, latency, copy = ([x // coarse for x in row] for row in ticks)
    arrays = (
        rank,
        run,
        bodies_of.start,
        bodies_of.items,
        before.start,
        before.items,
        incoming.start,
        incoming.items,
        outgoing.start,
        outgoing.items,
        [number[int(facts.edge_src[t])] for t in cut],
        [number[int(facts.edge_dst[t])] for t in cut],
        links,
        transfer,
        latency,
        copy,
    )
    problem = Problem(mbs, overhead, *(np.array(a, np.int64) for a in arrays))
    return Numbered(facts, tuple(facts.keys[b] for b in bodies), problem, unit * coarse)


def _in_order(facts: Facts) -> list[int]:
    """Return the bodies after those they need, each W as early as possible to save memory."""
    makers = [
        {*facts.before[b], *(int(facts.edge_src[tag]) for tag in facts.incoming[b])}
        for b in range(len(facts.keys))
    ]
    users: list[list[int]] = [[] for _ in makers]
    for body, needs in enumerate(makers):
        for maker in sorted(needs):
            users[maker].append(body)
    return topological(makers, users, lambda b, step: _turn(facts.keys[b], b))


def _turn(key: BodyKey, body: int) -> tuple[bool, bool, int, int, int]:
    forward = key.phase == FORWARD
    sign = 1 if forward else -1
    return key.phase != WEIGHT, not forward, sign * key.stage, sign * key.segment, body


def _seconds(
    facts: Facts, keys: list[BodyKey], cut: list[int], costs: Costs
) -> tuple[list[list[Fraction]], list[int]]:
    """Return overhead, runs, transfers, latencies and copies, and each edge's link number."""
    numbers: dict[str | int, int] = {}
    number, transfer, latency, copy = [], [], [], []
    for tag in cut:
        channel = int(facts.edge_channel[tag])
        ends = int(facts.channel_src[channel]), int(facts.channel_dst[channel])
        link = costs.links.get(ends, costs.link)
        size = facts.edges[tag].type.nbytes
        number.append(numbers.setdefault(link.name or channel, len(numbers)))
        transfer.append(quotient(size, link.bandwidth, "bandwidth"))
        latency.append(link.latency_of(size))
        copy.append(quotient(size, costs.copy, "copy"))
    run = [as_fraction(costs.run(key), f"run of {key}") for key in keys]
    return [[as_fraction(costs.overhead, "overhead")], run, transfer, latency, copy], number


def relaxed(p: Problem) -> Problem:
    """Return the problem without overheads, copies and contention.

    No order takes longer in it than in the real one, if one overhead is added to its length. Runs
    last until their first send is posted, and latencies from there to where the waiting run can
    begin.
    """
    sends = np.diff(p.out_first)
    run = p.run + (1 + np.minimum(sends, 1)) * p.overhead
    turn = np.empty(len(p.src), np.int64)  # of an edge among its body's sends
    turn[p.outgoing] = np.arange(len(p.outgoing)) - np.repeat(p.out_first[:-1], sends)
    latency = turn * p.overhead + p.transfer + p.latency + p.copy
    none = np.zeros(len(p.src), np.int64)
    return p._replace(
        overhead=0, run=run, link=np.arange(len(p.src)), transfer=none, latency=latency, copy=none
    )


def unlimited(p: Problem) -> Memory:
    """Return the memory of a problem without a limit."""
    none = np.zeros(len(p.run), np.int64)
    return Memory(np.full(p.ranks, NEVER), none, none, none, np.zeros(p.mbs + 1, np.int64))


def memory_of(numbered: Numbered, plan: MemoryPlan, limit: Array) -> Memory:
    """Return what orders hold at least; only their programs say when messages are delivered.

    limit: bytes of each rank.
    """
    p, facts = numbered.problem, numbered.facts
    number = {key: i for i, key in enumerate(facts.keys)}
    received = np.array(
        [sum(facts.edges[t].type.nbytes for t in facts.incoming[number[k]]) for k in numbered.keys],
        np.int64,
    )
    bodies = [plan.bodies[key] for key in numbered.keys]
    rows = [(b.top, b.kept, b.kept + b.sending, b.sums) for b in bodies]
    top, kept, sent, sums = np.array(rows, np.int64).T.copy()
    waiting = np.array([partial_sums(n, p.mbs) for n in range(p.mbs + 1)], np.int64)
    static = np.array(plan.static, np.int64)
    return Memory(limit - static, received + np.maximum(top, sent), received + kept, sums, waiting)


def partial_sums(terms: int, count: int) -> int:
    """Return the fewest partial sums in which TreeSum(count) can hold this many terms.

    Each has 2**n terms, except for at most one, which has the last terms: those that are left over
    when all are taken 2**n at a time.
    """
    rests = {0, *(count % (1 << n) for n in range(count.bit_length() + 1))}
    return min((rest > 0) + (terms - rest).bit_count() for rest in rests if rest <= terms)
