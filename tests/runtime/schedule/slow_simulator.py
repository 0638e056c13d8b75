"""A slow simulator, and random cases to hold the fast one against.

It shares nothing with `runtime.schedule.replay`: it is a plain discrete-event simulation in
fractions, which looks at all ranks before each event and does the earliest. Of events at one time,
sends over links that several ranks share come last, in the order of ranks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from partitioner.base.types import BodyKey, CommEdge
from runtime.schedule.instructions import (
    REPLICAS,
    WEIGHTS,
    Collective,
    Free,
    Instruction,
    Recv,
    Run,
    Send,
    Update,
)
from symgraph.core.types import TensorType
from tests.runtime.schedule.programs import Sketch, random_topology

Programs = list[list[Instruction]]
Times = list[list[tuple[Fraction, Fraction]]]


@dataclass
class Message:
    """One on its channel: when it arrives, when it was taken."""

    tag: int
    mb: int
    arrival: Fraction
    taken: Fraction | None = None


class SlowSimulator:
    """All ranks of a step. costs: anything with the fields of runtime.schedule.replay's Costs."""

    def __init__(
        self, programs: Programs, topology: Sketch, costs: Any, capacity: int | None = None
    ) -> None:
        self.programs, self.topology, self.costs = programs, topology, costs
        self.capacity = capacity
        self.times: Times = [[] for _ in programs]
        self.channels: dict[tuple[int, int], list[Message]] = {}
        self.link_free: dict[Any, tuple[Fraction, int]] = {}  # until when it has whose message
        self.contended = 0  # messages that waited for another rank's
        self.crossing = [e for e in topology.edges if topology.crosses(e)]
        channels = {self.ends(e.tag) for e in self.crossing}
        names = [self.link(c).name for c in channels]
        senders = {name: {c[0] for c in channels if self.link(c).name == name} for name in names}
        self.shared = {name for name, ranks in senders.items() if name and len(ranks) > 1}

    def run(self) -> Times:
        """Start and end of every instruction; RuntimeError if some rank waits for ever."""
        while True:
            ranks = range(len(self.programs))
            whens = {rank: self.when(rank) for rank in ranks}
            able = [rank for rank in ranks if whens[rank] is not None]
            if not able:
                break
            self.do(min(able, key=lambda r: (whens[r], self.sends_over_shared_link(r), r)))
        if any(len(t) < len(p) for t, p in zip(self.times, self.programs, strict=True)):
            raise RuntimeError("stuck")
        return self.times

    def next(self, rank: int) -> Instruction | None:
        done = len(self.times[rank])
        return self.programs[rank][done] if done < len(self.programs[rank]) else None

    def begin(self, rank: int) -> Fraction:
        done = self.times[rank]
        return (done[-1][1] if done else Fraction(0)) + Fraction(self.costs.overhead)

    def when(self, rank: int) -> Fraction | None:
        """When the next instruction does what others can see, or None if that is not known."""
        now, begin = self.next(rank), self.begin(rank)
        if now is None:
            return None
        if isinstance(now, Recv):
            queue = self.channels.get(self.ends(now.tag), [])
            head = next((m for m in queue if m.taken is None), None)
            if head is None or (head.tag, head.mb) != (now.tag, now.mb):
                return None
            link = self.link(self.ends(now.tag))
            carried = self.divided(now.tag, link.bandwidth) if link.by_receiver else 0
            return max(begin, head.arrival) + self.divided(now.tag, self.costs.copy) + carried
        if isinstance(now, Free):
            edges = [e for e in self.crossing if e.src == now.key]
            times = [self.delivered(e, now.mb) for e in edges]
            return None if None in times else max([begin, *times])
        if isinstance(now, Collective):
            others = range(len(self.programs))
            if not all(isinstance(self.next(r), Collective) for r in others):
                return None
            takes = {REPLICAS: 0, WEIGHTS: self.costs.weights}.get(now.tag, self.costs.meeting)
            return max(self.begin(r) for r in others) + Fraction(takes)
        return begin

    def do(self, rank: int) -> None:
        now, begin, end = self.next(rank), self.begin(rank), self.when(rank)
        if isinstance(now, Run):
            end += Fraction(self.costs.run(now.key))
        elif isinstance(now, Update):
            end += Fraction(self.costs.update(now.stage))
        elif isinstance(now, Recv):
            next(m for m in self.channels[self.ends(now.tag)] if m.taken is None).taken = end
        elif isinstance(now, Send):
            self.post(now, begin)
        elif isinstance(now, Collective):
            begins = [self.begin(r) for r in range(len(self.programs))]
            for r, start in enumerate(begins):
                self.times[r].append((start, end))
            return
        self.times[rank].append((begin, end))

    def post(self, now: Send, begin: Fraction) -> None:
        ends = self.ends(now.tag)
        link = self.link(ends)
        carrier = link.name or ends
        free, owner = self.link_free.get(carrier, (begin, ends[0]))
        self.contended += free > begin and owner != ends[0]
        carried = 0 if link.by_receiver else self.divided(now.tag, link.bandwidth)
        sent = max(begin, free) + carried
        self.link_free[carrier] = sent, ends[0]
        queue = self.channels.setdefault(ends, [])
        arrival = sent + self.latency(link, self.topology.edges[now.tag].type.nbytes)
        queue.append(Message(now.tag, now.mb, max([arrival, *(m.arrival for m in queue)])))

    def latency(self, link: Any, size: int) -> Fraction:
        """By the definition: between two measured messages, seconds are linear in the size."""
        if not link.messages:
            return Fraction(link.latency)
        rate = 0 if link.bandwidth == inf else 1 / Fraction(link.bandwidth)
        rest = [(n, Fraction(seconds) - n * rate) for n, seconds in link.messages]
        for (a, first), (b, last) in pairwise([(-1, rest[0][1]), *rest, (1 << 99, rest[-1][1])]):
            if a <= size <= b:
                return max(Fraction(0), first + (last - first) * Fraction(size - a, b - a))
        raise AssertionError(size)

    def delivered(self, edge: CommEdge, mb: int) -> Fraction | None:
        queue = self.channels.get(self.ends(edge.tag), [])
        place = next((i for i, m in enumerate(queue) if (m.tag, m.mb) == (edge.tag, mb)), None)
        if place is None:
            return None
        if self.capacity is None or place < self.capacity:
            return Fraction(0)
        return queue[place - self.capacity].taken

    def ends(self, tag: int) -> tuple[int, int]:
        edge = self.topology.edges[tag]
        rank_of = self.topology.rank_of
        return rank_of[edge.src.stage], rank_of[edge.dst.stage]

    def link(self, ends: tuple[int, int]) -> Any:
        return self.costs.links.get(ends, self.costs.link)

    def sends_over_shared_link(self, rank: int) -> bool:
        now = self.next(rank)
        if not isinstance(now, Send):
            return False
        return self.link(self.ends(now.tag)).name in self.shared

    def divided(self, tag: int, rate: Any) -> Fraction:
        size = self.topology.edges[tag].type.nbytes
        return Fraction(0) if rate == inf else Fraction(size) / Fraction(rate)


# -- random cases ---------------------------------------------------------------------------------


class RandomCase(NamedTuple):
    """capacity: at which the programs can end."""

    topology: Sketch
    programs: Programs
    mbs: int
    capacity: int | None


def random_case(rng: random.Random) -> RandomCase:
    """A random topology with messages of 0 to 8 bytes, and valid programs for it."""
    topology = random_topology(rng)
    edges = tuple(replace(e, type=TensorType((rng.randint(0, 8),), "int8")) for e in topology.edges)
    topology = replace(topology, edges=edges)
    mbs, capacity = rng.randint(1, 4), rng.choice([None, 0, 1, 2])
    return RandomCase(topology, random_programs(topology, mbs, capacity, rng), mbs, capacity)


def random_programs(
    topology: Sketch, mbs: int, capacity: int | None, rng: random.Random
) -> Programs:
    """Programs that can end: what their ranks do is drawn one by one, each when it can be done."""
    drawing = _Drawing(topology, mbs, capacity)
    meetings = rng.randint(0, 2)
    while ready := drawing.ready():
        if meetings and rng.random() < 0.02:
            drawing.everywhere(Collective(rng.randint(0, 2)))
            meetings -= 1
        drawing.do(*rng.choice(ready))
    for stage, rank in enumerate(topology.rank_of):
        if rng.random() < 0.5:
            drawing.programs[rank].append(Update(stage))
    return drawing.programs


class _Drawing:
    """Programs so far, and what each rank could do next."""

    def __init__(self, topology: Sketch, mbs: int, capacity: int | None) -> None:
        self.topology, self.capacity = topology, capacity
        self.programs: Programs = [[] for _ in range(topology.ranks)]
        self.runs = {(key, mb) for key in topology.bodies for mb in range(mbs)}
        self.sends: set[tuple[CommEdge, int]] = set()  # to be posted
        self.frees: set[tuple[BodyKey, int]] = set()
        self.posted: dict[tuple[int, int], list[tuple[CommEdge, int]]] = {}
        self.taken: dict[tuple[int, int], int] = {}
        self.here = {  # (edge, mb) that need no message, or have been received
            (e.tag, mb) for e in topology.edges for mb in range(mbs) if not topology.crosses(e)
        }

    def ready(self) -> list[tuple[int, Instruction]]:
        rank_of = self.topology.rank_of
        found: list[tuple[int, Instruction]] = []
        for key, mb in sorted(self.runs):
            if self._can_run(key, mb):
                found.append((rank_of[key.stage], Run(key.stage, key.phase, mb, key.segment)))
        for edge, mb in sorted(self.sends, key=lambda s: (s[0].tag, s[1])):
            found.append((rank_of[edge.src.stage], Send(edge.tag, mb)))
        for ends, queue in self.posted.items():
            if self.taken[ends] < len(queue):
                edge, mb = queue[self.taken[ends]]
                found.append((ends[1], Recv(edge.tag, mb)))
        for key, mb in sorted(self.frees):
            if self._delivered(key, mb):
                found.append((rank_of[key.stage], Free(key.stage, key.phase, mb, key.segment)))
        return found

    def do(self, rank: int, now: Instruction) -> None:
        self.programs[rank].append(now)
        if isinstance(now, Run):
            self.runs.remove((now.key, now.mb))
            self.frees.add((now.key, now.mb))
            self.sends |= {(e, now.mb) for e in self._outgoing(now.key)}
        elif isinstance(now, Send):
            edge = self.topology.edges[now.tag]
            self.sends.remove((edge, now.mb))
            self.posted.setdefault(self._ends(edge), []).append((edge, now.mb))
            self.taken.setdefault(self._ends(edge), 0)
        elif isinstance(now, Recv):
            self.taken[self._ends(self.topology.edges[now.tag])] += 1
            self.here.add((now.tag, now.mb))
        elif isinstance(now, Free):
            self.frees.remove((now.key, now.mb))

    def everywhere(self, now: Instruction) -> None:
        for program in self.programs:
            program.append(now)

    def _can_run(self, key: BodyKey, mb: int) -> bool:
        incoming = [e for e in self.topology.edges if e.dst == key]
        return all((e.tag, mb) in self.here for e in incoming) and not any(
            (need, mb) in self.runs for need in self.topology.needs(key)
        )

    def _delivered(self, key: BodyKey, mb: int) -> bool:
        if any((e, mb) in self.sends for e in self._outgoing(key)):
            return False
        if self.capacity is None:
            return True
        return all(
            self.posted[self._ends(e)].index((e, mb)) < self.taken[self._ends(e)] + self.capacity
            for e in self._outgoing(key)
        )

    def _outgoing(self, key: BodyKey) -> list[CommEdge]:
        return [e for e in self.topology.edges if e.src == key and self.topology.crosses(e)]

    def _ends(self, edge: CommEdge) -> tuple[int, int]:
        rank_of = self.topology.rank_of
        return rank_of[edge.src.stage], rank_of[edge.dst.stage]


def random_amounts(
    topology: Sketch, rng: random.Random, number: Callable[[], Any], link: Callable[..., Any]
) -> dict[str, Any]:
    """Arguments of Costs. number: makes a random duration or rate, 0 too. link: makes a Link.

    A third of the links have a table of messages, in which larger ones may take less.
    """

    def rate() -> Any:
        return rng.choice([inf, 1 + number(), Fraction(1, 2), 1])

    def some_link() -> Any:
        sizes = sorted(rng.sample(range(10), rng.choice([0, 0, 1, 3])))
        messages = tuple((size, number()) for size in sizes)
        name = rng.choice(["", "bus", "bus", "cable"])
        return link(number(), rate(), name, messages, rng.random() < 0.3)

    seconds = {key: number() for key in topology.bodies}
    updates = [number() for _ in topology.rank_of]
    ranks: Sequence[int] = range(topology.ranks)
    pairs: Iterable[tuple[int, int]] = [(a, b) for a in ranks for b in ranks if a != b]
    links: Mapping[tuple[int, int], Any] = {p: some_link() for p in pairs if rng.random() < 0.7}
    return {
        "run": seconds.__getitem__,
        "link": some_link(),
        "links": links,
        "overhead": rng.choice([0, number()]),
        "meeting": rng.choice([0, number()]),
        "weights": rng.choice([0, number()]),
        "copy": rate(),
        "update": updates.__getitem__,
    }
