"""The replay: the one place that knows what must precede what.

`check` proves a schedule before it runs; `simulate` says how long it takes. Both walk the same
instruction lists with the same rules as the worker follows:

    Run    when the instructions before it are done
    Send   posts at once and never blocks
    Recv   when its message is the next undelivered one of its channel (source rank -> own rank)
    Free   when the sends of its body and micro-batch are delivered
    C      when every rank stands at it
    U      at once

With capacity None a message is delivered as soon as it is posted (buffered sends). With
capacity n a channel buffers n messages; with 0 a message is delivered when it is received
(rendezvous). A schedule that ends at capacity 0 ends at any: buffering only delivers earlier.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from partitioner import InFlight
from partitioner.types import BodyKey, CommEdge, Partition
from runtime.instructions import (
    Collective,
    Free,
    Instruction,
    Recv,
    Run,
    Schedule,
    Send,
    Update,
)  # fmt: skip
from runtime.sums import TreeSum
from runtime.timeline import Event, Timeline
from symgraph.errors import ScheduleError

Message = tuple[int, int]  # (tag, micro-batch)
Channel = tuple[int, int]  # (source rank, destination rank)


@dataclass(frozen=True)
class Costs:
    """Seconds: of a body's run, and of a message: latency + bytes / bandwidth."""

    run: Callable[[BodyKey], float]
    latency: float = 0.0
    bandwidth: float = float("inf")
    update: float = 0.0

    def message(self, edge: CommEdge) -> float:
        return self.latency + edge.type.nbytes / self.bandwidth


def check(schedule: Schedule, partition: Partition, mbs: int, *, capacity: int | None = 0) -> None:
    """Prove that the schedule is complete, ordered and cannot hang, or raise ScheduleError.

    Complete: every body runs every micro-batch once and is freed once, on its stage's rank, and
    every edge that crosses ranks is sent and received once a micro-batch. Ordered: a body runs
    after what it reads is made or received, sends come after their body, its free after them, a
    stage's forward free before its backward one, its update last. Cannot hang: a replay with
    channels of this capacity comes to the end of all programs.
    """
    if len(schedule.programs) != partition.placement.ranks:
        raise ScheduleError(
            f"{len(schedule.programs)} programs for {partition.placement.ranks} ranks"
        )
    for rank, program in enumerate(schedule.programs):
        _check_once(rank, program)
        _check_order(rank, program, partition)
    _check_complete(schedule, partition, mbs)
    _Replay(schedule, partition, capacity).run()


def simulate(
    schedule: Schedule, partition: Partition, costs: Costs, *, capacity: int | None = None
) -> Timeline:
    """The timeline of one step at these costs; sends overlap with computation."""
    return _Replay(schedule, partition, capacity, costs).run()


def in_flight(schedule: Schedule) -> dict[int, set[InFlight]]:
    """Stage -> what it holds at the start of each of its runs, for the memory plan."""
    runs = [now for program in schedule.programs for now in program if isinstance(now, Run)]
    mbs = max((run.mb for run in runs), default=-1) + 1
    trained = {run.stage for run in runs if run.phase == "B"}
    waiting: Counter[int] = Counter()
    sending: Counter[tuple[int, str]] = Counter()
    sums = {stage: TreeSum(mbs) for stage in trained}
    found: dict[int, set[InFlight]] = defaultdict(set)
    for now in (now for program in schedule.programs for now in program):
        if isinstance(now, Free):
            sending[now.stage, now.phase] -= 1
        elif isinstance(now, Run):
            stage, phase = now.stage, now.phase
            partial = len(sums[stage].arrays) if stage in sums else 0
            held = InFlight(
                phase, waiting[stage], sending[stage, "F"], sending[stage, "B"], partial
            )
            found[stage].add(held)
            sending[stage, phase] += 1
            if phase == "B":
                waiting[stage] -= 1
                sums[stage].add(np, now.mb, np.zeros(()))
            elif stage in trained:
                waiting[stage] += 1
    return dict(found)


def _fail(rank: int, step: int, program: tuple[Instruction, ...], why: str) -> None:
    raise ScheduleError(f"rank {rank}, step {step}: {program[step]} {why}")


def _check_once(rank: int, program: tuple[Instruction, ...]) -> None:
    seen: dict[Instruction, int] = {}
    for step, instruction in enumerate(program):
        if not isinstance(instruction, Collective) and instruction in seen:
            _fail(rank, step, program, f"stands at step {seen[instruction]} already")
        seen[instruction] = step


def _check_order(rank: int, program: tuple[Instruction, ...], partition: Partition) -> None:
    at = {instruction: step for step, instruction in enumerate(program)}
    by_tag = {e.tag: e for e in partition.edges}
    by_end: dict[BodyKey, list[CommEdge]] = defaultdict(list)
    for edge in partition.edges:
        by_end[edge.src].append(edge)
        by_end[edge.dst].append(edge)
    for step, now in enumerate(program):
        owner = _owner(now, partition, by_tag)
        if isinstance(owner, str):
            _fail(rank, step, program, f"names {owner}, which there is not")
        if owner not in (rank, None):
            _fail(rank, step, program, f"belongs to rank {owner}")
        edges = by_end[now.key] if isinstance(now, (Run, Free)) else []
        for needed, why in _needs(now, edges, partition, by_tag):
            if at.get(needed, step) >= step:
                _fail(rank, step, program, why)
        if isinstance(now, Update):
            for needed in program[step + 1 :]:
                if isinstance(needed, (Run, Free)) and needed.stage == now.stage:
                    _fail(rank, step, program, f"comes before {needed}")


def _owner(now: Instruction, partition: Partition, by_tag: dict[int, CommEdge]) -> int | str | None:
    """The rank whose instruction it is; what it names in vain; None if any rank may have it."""
    if isinstance(now, (Send, Recv)):
        edge = by_tag.get(now.tag)
        if edge is None:
            return f"edge {now.tag}"
        return partition.rank(edge.src if isinstance(now, Send) else edge.dst)
    if isinstance(now, Collective):
        return None
    if now.stage >= partition.placement.stages:
        return f"stage {now.stage}"
    return partition.placement.rank_of[now.stage]


def _needs(
    now: Instruction, edges: list[CommEdge], partition: Partition, by_tag: dict[int, CommEdge]
) -> list[tuple[Instruction, str]]:
    """What must precede an instruction on its own rank, and what to say if it does not.

    edges: those that begin or end at the body of a Run or Free.
    """
    needed: list[tuple[Instruction, str]] = []
    if isinstance(now, Send):
        edge = by_tag[now.tag]
        why = f"comes before {edge.src}{now.mb} makes {edge.value}"
        needed = [(Run(*edge.src, now.mb), why)]
    elif isinstance(now, Run):
        values: list[tuple[Instruction, str]] = []
        for edge in edges:
            if edge.dst == now.key:
                crosses = partition.crosses(edge)
                source = Recv(edge.tag, now.mb) if crosses else Run(*edge.src, now.mb)
                values.append((source, str(edge.value)))
        if now.phase == "B" and BodyKey(now.stage, "F") in partition.bodies:
            values.append((Run(now.stage, "F", now.mb), "what its forward run keeps"))
        needed = [(i, f"needs {what}, but {i} does not come before") for i, what in values]
    elif isinstance(now, Free):
        before: list[Instruction] = [Run(*now.key, now.mb)]
        before += [Send(e.tag, now.mb) for e in edges if e.src == now.key and partition.crosses(e)]
        if now.phase == "B" and BodyKey(now.stage, "F") in partition.bodies:
            before.append(Free(now.stage, "F", now.mb))
        needed = [(i, f"comes before {i}") for i in before]
    elif isinstance(now, Update):
        needed = [(Collective(), "comes before C")]
    return needed


def _check_complete(schedule: Schedule, partition: Partition, mbs: int) -> None:
    have = [set(p) for p in schedule.programs]
    crossing = [e for e in partition.edges if partition.crosses(e)]
    wanted: list[tuple[int, Instruction, str]] = []
    for mb in range(mbs):
        for key in partition.bodies:
            rank, name = partition.rank(key), f"body {key}"
            wanted += [(rank, Run(*key, mb), name), (rank, Free(*key, mb), name)]
        for edge in crossing:
            name = f"edge {edge.tag} ({edge})"
            wanted.append((partition.rank(edge.src), Send(edge.tag, mb), name))
            wanted.append((partition.rank(edge.dst), Recv(edge.tag, mb), name))
    for rank, instruction, what in wanted:
        if instruction not in have[rank]:
            raise ScheduleError(f"rank {rank} never does {instruction} for {what}")
    allowed: list[set[Instruction]] = [set() for _ in have]
    for rank, instruction, _ in wanted:
        allowed[rank].add(instruction)
    for rank, program in enumerate(schedule.programs):
        for step, now in enumerate(program):
            if isinstance(now, (Run, Send, Recv, Free)) and now not in allowed[rank]:
                _fail(rank, step, program, f"is not part of {mbs} micro-batches of this partition")


class _Replay:
    """Walks all programs at once; a rank that cannot go on waits for one event."""

    def __init__(
        self,
        schedule: Schedule,
        partition: Partition,
        capacity: int | None,
        costs: Costs | None = None,
    ) -> None:
        self.programs = schedule.programs
        self.partition = partition
        self.capacity = capacity
        self.costs = costs
        self.edges = {e.tag: e for e in partition.edges}
        ranks = len(self.programs)
        self.step = [0] * ranks
        self.clock = [0.0] * ranks
        self.posted: dict[Channel, list[tuple[Message, float]]] = defaultdict(list)
        self.taken: dict[Channel, int] = defaultdict(int)
        self.place: dict[tuple[Channel, Message], int] = {}
        self.arrivals: dict[int, dict[int, float]] = defaultdict(dict)  # of each collective
        self.met = [0] * ranks  # collectives done, by rank
        self.events: list[Event] = []
        self.outgoing: dict[BodyKey, list[CommEdge]] = defaultdict(list)
        for edge in partition.edges:
            if partition.crosses(edge):
                self.outgoing[edge.src].append(edge)

    def run(self) -> Timeline:
        ready = deque(range(len(self.programs)))
        while ready:
            rank = ready.popleft()
            woken = self._advance(rank)
            ready.extend(r for r in woken if r not in ready)
        if any(s < len(p) for s, p in zip(self.step, self.programs, strict=True)):
            raise ScheduleError(self._stuck())
        return Timeline(len(self.programs), tuple(self.events))

    def _advance(self, rank: int) -> list[int]:
        """Do what this rank can; the ranks that may go on because of it."""
        woken: list[int] = []
        program = self.programs[rank]
        while self.step[rank] < len(program):
            now = program[self.step[rank]]
            end = self._try(rank, now, woken)
            if end is None:
                break
            if self.costs is not None:
                self.events.append(Event(rank, now, self.clock[rank], end))
                self.clock[rank] = end
            self.step[rank] += 1
        return woken

    def _try(self, rank: int, now: Instruction, woken: list[int]) -> float | None:
        """The time at which the instruction is done, or None if it must wait."""
        clock = self.clock[rank]
        if isinstance(now, Run):
            return clock + (self.costs.run(now.key) if self.costs else 0.0)
        if isinstance(now, Send):
            edge = self.edges[now.tag]
            channel = (rank, self.partition.rank(edge.dst))
            arrival = clock + (self.costs.message(edge) if self.costs else 0.0)
            self.place[channel, (now.tag, now.mb)] = len(self.posted[channel])
            self.posted[channel].append(((now.tag, now.mb), arrival))
            woken.append(channel[1])
            return clock
        if isinstance(now, Recv):
            channel = (self.partition.rank(self.edges[now.tag].src), rank)
            at, queue = self.taken[channel], self.posted[channel]
            if at == len(queue) or queue[at][0] != (now.tag, now.mb):
                return None
            self.taken[channel] += 1
            woken.append(channel[0])
            return max(clock, queue[at][1])
        if isinstance(now, Free):
            done = [self._delivered(rank, e, now.mb) for e in self.outgoing[now.key]]
            return None if None in done else max([clock, *(d for d in done if d is not None)])
        if isinstance(now, Collective):
            return self._meet(rank, woken)
        assert isinstance(now, Update)
        return clock + (self.costs.update if self.costs else 0.0)

    def _delivered(self, rank: int, edge: CommEdge, mb: int) -> float | None:
        """When the sender may reuse the message's buffer; None if not yet."""
        channel = (rank, self.partition.rank(edge.dst))
        place = self.place[channel, (edge.tag, mb)]
        if self.capacity is None or place < self.taken[channel] + self.capacity:
            return 0.0 if self.capacity is None else self.posted[channel][place][1]
        return None

    def _meet(self, rank: int, woken: list[int]) -> float | None:
        """All ranks stand at their next collective, or this one waits."""
        here = self.arrivals[self.met[rank]]
        here[rank] = self.clock[rank]
        if len(here) < len(self.programs):
            return None
        self.met[rank] += 1
        woken += [r for r in range(len(self.programs)) if r != rank]
        return max(here.values())

    def _stuck(self) -> str:
        lines = ["no rank can go on:"]
        for rank, (step, program) in enumerate(zip(self.step, self.programs, strict=True)):
            if step == len(program):
                lines.append(f"  rank {rank}: is at its end")
                continue
            now = program[step]
            lines.append(f"  rank {rank}, step {step}: {now} waits{self._for_what(rank, now)}")
        return "\n".join(lines)

    def _for_what(self, rank: int, now: Instruction) -> str:
        if isinstance(now, Recv):
            edge = self.edges[now.tag]
            source = self.partition.rank(edge.src)
            queue, at = self.posted[source, rank], self.taken[source, rank]
            ahead = f", but S{queue[at][0][0]}.{queue[at][0][1]} is next" if at < len(queue) else ""
            return f" for S{now.tag}.{now.mb} of rank {source} ({edge.value}){ahead}"
        if isinstance(now, Free):
            late = [e for e in self.outgoing[now.key] if self._delivered(rank, e, now.mb) is None]
            return " until " + ", ".join(
                f"rank {self.partition.rank(e.dst)} takes S{e.tag}.{now.mb}" for e in late
            )
        return " for the other ranks"
