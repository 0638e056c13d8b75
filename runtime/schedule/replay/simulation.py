"""The simulator: the timeline of a schedule at given costs, exact to the tick.

Every rank does its instructions in order:

    Run         takes the body's time
    Send        posts its message and goes on; the link carries messages one after the other
    Recv        waits until the next message of its channel has arrived, then copies it in
    Free        waits until the messages of its body and micro-batch are delivered
    Recv        of an exchange: waits until all its messages are posted, and then as long as the
                collective takes (runtime.schedule.message_costs)
    Collective  waits for all ranks, then takes its time on all of them
    Update      takes its time

With capacity None a message is delivered as soon as it is posted. With capacity n, when it is taken
or among the first n of its channel (a pair of ranks) that are not taken; 0 is rendezvous.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf, lcm
from numbers import Rational
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.types import BodyKey, Topology
from runtime.schedule.exchanges import exchanges
from runtime.schedule.message_costs import Link, Number, as_fraction, collective_seconds, quotient
from runtime.schedule.program import Schedule
from runtime.schedule.replay.facts import Facts, Lists
from runtime.schedule.replay.simulation_walk import (
    CHANNEL,
    DONE,
    EDGE,
    JOIN,
    MESSAGE,
    RANK,
    STEP,
    STUCK,
    TOO_LONG,
    WAIT,
    Work,
    pack,
    walk,
)
from runtime.schedule.timeline import Timeline, Track
from symgraph.core.errors import ScheduleError

PICOSECOND = Fraction(1, 10**12)


@dataclass(frozen=True)
class Costs:
    """Seconds of everything that a schedule does.

    run: of a body. link: of each channel that `links`, by (source rank, destination rank), does not
    name. overhead: of a rank's time before each instruction. copy: bytes a second at which a rank
    copies in a message that has arrived. update: of a stage. sums: of replicas' gradients, one
    after the other: each begins when these bodies have run for the last time; C1 ends them.
    """

    run: Callable[[BodyKey], Number]
    link: Link = field(default_factory=Link)
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    overhead: Number = 0
    copy: Number = inf
    update: Callable[[int], Number] = lambda stage: 0
    sums: Sequence[tuple[Collection[BodyKey], Number]] = ()

    def link_of(self, source: int, target: int) -> Link:
        """What carries the messages from a rank to another."""
        return self.links.get((source, target), self.link)


def simulate(
    schedule: Schedule, topology: Topology, costs: Costs, *, capacity: int | None = None
) -> Timeline:
    """The timeline of one step of a schedule that `check` accepts; it begins at tick 0.

    A tick is what all costs are multiples of if they are int or Fraction, else a picosecond.
    Sends of several ranks over one link go in the order of time, of one time in that of ranks.
    ScheduleError if the schedule cannot end or the costs are negative or not finite.
    """
    facts = Facts.of(topology)
    packed = _pack(schedule, facts)
    channels = zip(facts.channel_src.tolist(), facts.channel_dst.tolist(), strict=True)
    links = [costs.link_of(*channel) for channel in channels]
    seconds = _seconds(facts, costs, links)
    number = {key: body for body, key in enumerate(facts.keys)}
    sums = Lists.of([number[key] for key in bodies] for bodies, _ in costs.sums)
    for unit in _units(seconds):
        work = _work(facts, packed, seconds, links, unit, capacity, sums)
        end = walk(work) if _fits(work) else TOO_LONG
        if end == DONE:
            return _timeline(schedule, packed, work, unit)
        if end == STUCK:
            raise _stuck(schedule, packed, work)
    raise ScheduleError(
        f"the costs are too large: the step does not fit into 2**62 ticks of {float(PICOSECOND)} s"
    )


class _Packed(NamedTuple):
    """words: see Work; rank r's begin at first[r]. sends: of each channel. mbs: micro-batches."""

    words: npt.NDArray[Any]
    first: npt.NDArray[Any]
    sends: npt.NDArray[Any]
    mbs: int


def _pack(schedule: Schedule, facts: Facts) -> _Packed:
    programs = schedule.programs
    if len(programs) != facts.ranks:
        raise ScheduleError(f"{len(programs)} programs for {facts.ranks} ranks")
    first = np.cumsum([0, *(len(p) for p in programs)])
    words = np.empty(first[-1], np.int64)
    sends = np.zeros(len(facts.channel_src), np.int64)
    rank_of = np.array(facts.rank_of, np.int32)
    for rank, program in enumerate(programs):
        bad = pack(
            program.columns,
            rank,
            facts.body_at,
            facts.body_rank,
            rank_of,
            facts.edge_channel,
            facts.channel_src,
            facts.channel_dst,
            words[first[rank] :],
            sends,
        )
        if bad >= 0:
            raise ScheduleError(
                f"rank {rank}, step {bad}: {program[bad]} names what this rank does not have; "
                "`check` the schedule first"
            )
    mbs = 1 + max((int(p.columns.mb.max(initial=-1)) for p in programs), default=-1)
    return _Packed(words, first, sends, mbs)


class _Seconds(NamedTuple):
    """All costs as fractions: of bodies, of edges by tag, of channels; see Work."""

    run: list[Fraction]
    transfer: list[Fraction]
    copy: list[Fraction]
    latency: list[Fraction]
    overhead: Fraction
    update: list[Fraction]
    meet: list[Fraction]  # sums of replicas' gradients
    join: list[Fraction]  # exchanges
    exact: bool

    def all(self) -> Iterable[Fraction]:
        """Every cost."""
        yield from (*self.run, *self.transfer, *self.copy, *self.latency)
        yield from (self.overhead, *self.update, *self.meet, *self.join)


def _seconds(facts: Facts, costs: Costs, links: list[Link]) -> _Seconds:
    runs = [costs.run(key) for key in facts.keys]
    meet = [seconds for _, seconds in costs.sums]
    updates = [costs.update(stage) for stage in range(len(facts.rank_of))]
    given = [
        *runs,
        *meet,
        *updates,
        costs.overhead,
        costs.copy,
        *(x for link in links for x in (link.latency, link.bandwidth)),
    ]
    transfer, copy = [], []
    for edge, channel in zip(facts.edges, facts.edge_channel.tolist(), strict=True):
        crosses = channel >= 0
        size = edge.type.nbytes if crosses else 0
        link = links[channel] if crosses else Link()
        carrying = quotient(size, link.bandwidth, "bandwidth")
        transfer.append(Fraction(0) if link.by_receiver else carrying)
        copy.append(quotient(size, costs.copy, "copy") + (carrying if link.by_receiver else 0))
    return _Seconds(
        [as_fraction(x, f"run of {key}") for x, key in zip(runs, facts.keys, strict=True)],
        transfer,
        copy,
        [as_fraction(link.latency, "latency") for link in links],
        as_fraction(costs.overhead, "overhead"),
        [as_fraction(x, f"update of stage {stage}") for stage, x in enumerate(updates)],
        [as_fraction(x, f"sum {number}") for number, x in enumerate(meet)],
        _joins(facts, costs),
        all(isinstance(x, Rational) or x == inf for x in given),
    )


def _joins(facts: Facts, costs: Costs) -> list[Fraction]:
    """What each exchange takes."""
    found = {x.name: x.blocks for x in exchanges(facts.edges, facts.rank_of)}
    return [collective_seconds(found[name], costs.link_of) for name in facts.exchanges]


def _units(seconds: _Seconds) -> list[Fraction]:
    """The ticks to try: the second is for costs that need more than 64 bits in the first."""
    if not seconds.exact:
        return [PICOSECOND]
    exact = Fraction(1, lcm(*{x.denominator for x in seconds.all()}))
    return [exact, PICOSECOND] if exact != PICOSECOND else [exact]


def _work(
    facts: Facts,
    packed: _Packed,
    seconds: _Seconds,
    links: list[Link],
    unit: Fraction,
    capacity: int | None,
    sums: Lists,
) -> Work:
    def ticks(values: list[Fraction]) -> npt.NDArray[Any]:
        whole = {x: min(round(x / unit), STEP) for x in set(values)}
        return np.array([whole[x] for x in values], np.int64)

    ranks, edges = np.zeros(facts.ranks, RANK), np.zeros(len(facts.edges), EDGE)
    ranks["step"], ranks["last"] = packed.first[:-1], packed.first[1:]
    ranks["wants"] = ranks["frees"] = WAIT
    edges["channel"] = facts.edge_channel
    edges["transfer"], edges["copy"] = ticks(seconds.transfer), ticks(seconds.copy)
    channels = np.zeros(len(facts.channel_src), CHANNEL)
    channels["src"], channels["dst"] = facts.channel_src, facts.channel_dst
    channels["link"], channels["shared"] = _shared(facts, links)
    channels["exchange"] = facts.channel_exchange
    joins = np.zeros(len(facts.exchanges) * packed.mbs, JOIN)
    joins["unposted"] = np.repeat(facts.exchange_sizes, packed.mbs)
    joins["takes"] = np.repeat(ticks(seconds.join), packed.mbs)
    channels["first"] = np.cumsum(packed.sends) - packed.sends
    channels["latency"] = ticks(seconds.latency)
    places = (0, 0) if capacity is None else (len(edges), packed.mbs)
    (overhead,) = ticks([seconds.overhead]).tolist()
    return Work(
        packed.words,
        np.empty(len(packed.words), np.int64),
        ticks(seconds.run),
        overhead,
        ticks(seconds.update),
        ticks(seconds.meet),
        ranks,
        edges,
        channels,
        np.empty(int(packed.sends.sum()), MESSAGE),
        np.zeros(len(links), np.int64),
        np.empty(facts.ranks, np.int64),
        np.zeros(3, np.int64),
        np.full(places, WAIT, np.int32),
        capacity or 0,
        facts.outgoing.start,
        facts.outgoing.items,
        joins,
        packed.mbs,
        sums.start,
        sums.items,
        np.zeros(len(facts.keys), np.int64),
    )


def _shared(facts: Facts, links: list[Link]) -> tuple[list[int], list[bool]]:
    """Of each channel, the first one that has the same link, and whether several ranks use it."""
    first: dict[str, int] = {}
    carriers = [first.setdefault(x.name, i) if x.name else i for i, x in enumerate(links)]
    senders: dict[int, set[int]] = {}
    plain = (facts.channel_exchange < 0).tolist()
    for carrier, src, own in zip(carriers, facts.channel_src.tolist(), plain, strict=True):
        if own:
            senders.setdefault(carrier, set()).add(src)
    return carriers, [len(senders.get(carrier, ())) > 1 for carrier in carriers]


def _fits(work: Work) -> bool:
    most = [
        work.run,
        work.edges["transfer"],
        work.edges["copy"],
        work.channels["latency"],
        work.joins["takes"],
        np.array([work.overhead]),
        work.update,
        work.meet,
    ]
    return max(int(ticks.max(initial=0)) for ticks in most) < STEP


def _timeline(schedule: Schedule, packed: _Packed, work: Work, unit: Fraction) -> Timeline:
    tracks = []
    for program, first in zip(schedule.programs, packed.first.tolist(), strict=False):
        end = work.end[first : first + len(program)]
        start = np.full(len(program), work.overhead, np.int64)
        start[1:] += end[:-1]
        tracks.append(Track(program, start, end))
    return Timeline(tuple(tracks), unit, origin=0)


def _stuck(schedule: Schedule, packed: _Packed, work: Work) -> ScheduleError:
    steps = (work.ranks["step"] - packed.first[:-1]).tolist()
    at = zip(steps, schedule.programs, strict=True)
    rank = next(rank for rank, (step, program) in enumerate(at) if step < len(program))
    return ScheduleError(
        f"the schedule cannot end: rank {rank} waits for ever at step {steps[rank]}, "
        f"{schedule.programs[rank][steps[rank]]}; `check` it first, which says where every rank "
        "stands"
    )
