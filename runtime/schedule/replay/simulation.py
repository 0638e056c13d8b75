"""The simulator: the timeline of a schedule at given costs, exact to the tick.

What ranks do, and what they wait for, is written down in `runtime.schedule.replay.walk`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf, lcm
from numbers import Rational
from typing import NamedTuple

import numpy as np

from partitioner.base.types import BodyKey, Topology
from runtime.schedule.exchanges import exchanges
from runtime.schedule.message_costs import Link, Number, as_fraction, collective_seconds, quotient
from runtime.schedule.program import Schedule
from runtime.schedule.replay.contention import shared_time
from runtime.schedule.replay.facts import Facts, Lists
from runtime.schedule.replay.tape import Tape
from runtime.schedule.replay.walk import (
    DONE,
    STEP,
    STUCK,
    Carriers,
    State,
    Ticks,
    start,
    walk,
)
from runtime.schedule.timeline import Timeline, Track
from symgraph.core.errors import ScheduleError

PICOSECOND = Fraction(1, 10**12)


@dataclass(frozen=True)
class Costs:
    """Seconds of everything that a schedule does."""

    #: Of a body, while all ranks of its host work.
    run: Callable[[BodyKey], Number]
    #: The link of each channel that `links` does not name.
    link: Link = field(default_factory=Link)
    #: (source rank, destination rank) -> the link of that channel.
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    #: A rank's time before each instruction.
    overhead: Number = 0
    #: Bytes per second at which a rank copies in a message that has arrived.
    copy: Number = inf
    #: Of the update of a stage.
    update: Callable[[int], Number] = lambda stage: 0
    #: Of C, the exchange of norms and figures, after the last rank has come to it.
    meeting: Number = 0
    #: The sums of replicas' gradients, one after the other: each begins when these bodies have run
    #: for the last time, and takes these seconds; C1 ends them all.
    sums: Sequence[tuple[Collection[BodyKey], Number]] = ()
    #: Of C2, which spreads the weights of replicas.
    weights: Number = 0
    #: Of a body, while no other rank of its host works; None: the same as `run`.
    alone: Callable[[BodyKey], Number] | None = None
    #: By rank: the host whose caches and memory it shares; empty: all are on one.
    hosts: Sequence[Hashable] = ()

    def link_of(self, source: int, target: int) -> Link:
        """Return the link that carries the messages from one rank to another."""
        return self.links.get((source, target), self.link)


def simulate(
    schedule: Schedule, topology: Topology, costs: Costs, *, capacity: int | None = None
) -> Timeline:
    """Return the timeline of one step of a schedule that `check` accepts; it begins at tick 0.

    A body takes less than `costs.run` while other ranks of its host wait, see `costs.alone`.

    All costs are multiples of one tick if they are int or Fraction; otherwise a tick is a
    picosecond. Sends of several ranks over one link go in the order of time; sends of one time go
    in the order of ranks.

    Args:
        capacity: The number of messages that a channel buffers; None: any number.

    Raises:
        ScheduleError: The schedule cannot end, or a cost is negative or not finite.
    """
    return Simulator(topology, costs).predict(schedule, capacity)


class Simulator:
    """The simulator of one topology at given costs, for several schedules; see `simulate`.

    Searches compare schedules by `timeline` and `makespan`, as if all ranks worked all the time:
    so a body takes the same in all of them, and what bounds say of the sum of bodies holds.
    """

    def __init__(self, topology: Topology, costs: Costs) -> None:
        self._facts = facts = Facts.of(topology)
        channels = zip(facts.channel_src.tolist(), facts.channel_dst.tolist(), strict=True)
        links = [costs.link_of(*channel) for channel in channels]
        seconds = _seconds(facts, costs, links)
        number = {key: body for body, key in enumerate(facts.keys)}
        self._sum_bodies = Lists.of([number[key] for key in bodies] for bodies, _ in costs.sums)
        self._carriers = _carriers(facts, links)
        self._costs = costs
        self._ticks = [(unit, _ticks(seconds, unit)) for unit in _units(seconds)]

    def predict(self, schedule: Schedule, capacity: int | None = None) -> Timeline:
        """Return the timeline of a schedule; see `simulate`."""
        tape, state, unit = self._walked(schedule, capacity)
        if self._costs.alone is None:
            return _timeline(schedule, tape, state, unit)
        shares = shared_time(self._facts, tape, state, self._costs.hosts)
        alone = [as_fraction(self._costs.alone(k), f"{k} alone") for k in self._facts.keys]
        together = state.ticks.run
        least = np.minimum([_rounded(x, unit) for x in alone], together)
        run = least + np.rint(shares * (together - least)).astype(np.int64)
        state = self._start(tape, capacity, state.ticks._replace(run=run))
        walk(state)
        return _timeline(schedule, tape, state, unit)

    def timeline(self, schedule: Schedule) -> Timeline:
        """Return the timeline of a schedule if all ranks worked all the time."""
        tape, state, unit = self._walked(schedule, None)
        return _timeline(schedule, tape, state, unit)

    def makespan(self, schedule: Schedule) -> float:
        """Return the seconds of a step of a schedule if all ranks worked all the time."""
        _, state, unit = self._walked(schedule, None)
        return float(int(state.end.max(initial=0)) * unit)

    def _start(self, tape: Tape, capacity: int | None, ticks: Ticks) -> State:
        return start(self._facts, tape, capacity, ticks, self._carriers, self._sum_bodies)

    def _walked(self, schedule: Schedule, capacity: int | None) -> tuple[Tape, State, Fraction]:
        tape = Tape.of(schedule, self._facts)
        for unit, ticks in self._ticks:
            if ticks is None:
                continue
            state = self._start(tape, capacity, ticks)
            end = walk(state)
            if end == DONE:
                return tape, state, unit
            if end == STUCK:
                raise _stuck(schedule, tape, state)
        raise ScheduleError(
            "the costs are too large: the step does not fit into 2**62 ticks of "
            f"{float(PICOSECOND)} s"
        )


class _Seconds(NamedTuple):
    """The costs of all that `Ticks` lists, as fractions."""

    run: list[Fraction]
    overhead: Fraction
    meeting: Fraction
    update: list[Fraction]
    transfer: list[Fraction]
    copy: list[Fraction]
    latency: list[Fraction]
    exchange: list[Fraction]
    sums: list[Fraction]
    weights: list[Fraction]
    #: Whether all costs are given as int or Fraction, and shared in no way.
    exact: bool

    @property
    def columns(self) -> list[list[Fraction]]:
        """The lists, in the order of `Ticks`; single figures are lists of one."""
        return [[row] if isinstance(row, Fraction) else row for row in self[:-1]]


def _seconds(facts: Facts, costs: Costs, links: list[Link]) -> _Seconds:
    runs = [costs.run(key) for key in facts.keys]
    sums = [seconds for _, seconds in costs.sums]
    updates = [costs.update(stage) for stage in range(len(facts.rank_of))]
    numbers = [
        *runs,
        *sums,
        *updates,
        costs.overhead,
        costs.meeting,
        costs.copy,
        costs.weights,
        *(x for link in links for x in (link.latency, link.bandwidth)),
        *(x for link in links for _, x in link.messages),
    ]
    known: dict[tuple[int, int], tuple[Fraction, Fraction, Fraction]] = {}  # by channel and size
    messages = []
    for edge, channel in zip(facts.edges, facts.edge_channel.tolist(), strict=True):
        at = channel, edge.type.nbytes if channel >= 0 else 0
        if at not in known:
            known[at] = _message(at[1], links[channel] if channel >= 0 else Link(), costs.copy)
        messages.append(known[at])
    transfer, copy, latency = ([message[i] for message in messages] for i in range(3))
    layouts = {x.name: x.layout for x in exchanges(facts.edges, facts.rank_of)}
    return _Seconds(
        [as_fraction(x, f"run of {key}") for x, key in zip(runs, facts.keys, strict=True)],
        as_fraction(costs.overhead, "overhead"),
        as_fraction(costs.meeting, "meeting"),
        [as_fraction(x, f"update of stage {stage}") for stage, x in enumerate(updates)],
        transfer,
        copy,
        latency,
        [collective_seconds(layouts[name], costs.link_of) for name in facts.exchanges],
        [as_fraction(x, f"sum {number}") for number, x in enumerate(sums)],
        [as_fraction(costs.weights, "weights")],
        costs.alone is None and all(isinstance(x, Rational) or x == inf for x in numbers),
    )


def _message(size: int, link: Link, copy: Number) -> tuple[Fraction, Fraction, Fraction]:
    """Return the seconds of a message on its link, of copying it, and until it arrives."""
    carrying = quotient(size, link.bandwidth, "bandwidth")
    transfer, copying = (Fraction(0), carrying) if link.by_receiver else (carrying, Fraction(0))
    return transfer, quotient(size, copy, "copy") + copying, link.latency_of(size)


def _units(seconds: _Seconds) -> Iterator[Fraction]:
    """Yield the ticks to try; the second is for costs that need more than 64 bits in the first."""
    if seconds.exact:
        yield Fraction(1, lcm(*{x.denominator for row in seconds.columns for x in row}))
    yield PICOSECOND


def _ticks(seconds: _Seconds, unit: Fraction) -> Ticks | None:
    """Return the costs in ticks; None if one of them is too large."""
    rows = [[_rounded(x, unit) for x in row] for row in seconds.columns]
    if max(max(row, default=0) for row in rows) >= STEP:
        return None
    run, (overhead,), (meeting,), *others = rows
    arrays = [np.array(row, np.int64) for row in (run, *others)]
    return Ticks(arrays[0], overhead, meeting, *arrays[1:])


def _rounded(seconds: Fraction, unit: Fraction) -> int:
    """Return `round(seconds / unit)`, several times as fast as with fractions."""
    above = seconds.numerator * unit.denominator
    below = seconds.denominator * unit.numerator
    whole, rest = divmod(2 * above + below, 2 * below)  # half a unit more, rounded down
    return whole - (rest == 0 and whole % 2)


def _carriers(facts: Facts, links: list[Link]) -> Carriers:
    first: dict[str, int] = {}
    carriers = [first.setdefault(x.name, i) if x.name else i for i, x in enumerate(links)]
    senders: dict[int, set[int]] = {}
    plain = (facts.channel_exchange < 0).tolist()
    for carrier, src, is_plain in zip(carriers, facts.channel_src.tolist(), plain, strict=True):
        if is_plain:
            senders.setdefault(carrier, set()).add(src)
    shared = [len(senders.get(carrier, ())) > 1 for carrier in carriers]
    return Carriers(np.array(carriers, np.int32), np.array(shared, np.int32))


def _timeline(schedule: Schedule, tape: Tape, state: State, unit: Fraction) -> Timeline:
    tracks = []
    for program, first in zip(schedule.programs, tape.first.tolist(), strict=False):
        end = state.end[first : first + len(program)]
        start = np.full(len(program), state.ticks.overhead, np.int64)
        start[1:] += end[:-1]
        tracks.append(Track(program, start, end))
    return Timeline(tuple(tracks), unit, origin=0)


def _stuck(schedule: Schedule, tape: Tape, state: State) -> ScheduleError:
    steps = (state.board.ranks["step"] - tape.first[:-1]).tolist()
    at = zip(steps, schedule.programs, strict=True)
    rank = next(rank for rank, (step, program) in enumerate(at) if step < len(program))
    return ScheduleError(
        f"the schedule cannot end: rank {rank} waits for ever at step {steps[rank]}, "
        f"{schedule.programs[rank][steps[rank]]}; `check` it first, which says where every rank "
        "stands"
    )
