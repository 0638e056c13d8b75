"""The memory plan: bytes each stage holds at its worst moment, from the cut and the schedule.

A body holds values in its micro-batch's frame by the rules of `lifetimes`. What a schedule adds
is how many other micro-batches a stage holds something of when it starts a run: `InFlight`, which
`runtime.replay.in_flight` reads off the programs and a planner may as well make up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from partitioner.lifetimes import is_view, lifetimes, made_by
from partitioner.types import BACKWARD, FORWARD, Body, BodyKey, Partition
from symgraph.types import Value


class InFlight(NamedTuple):
    """What a stage holds, in micro-batches, when it starts a run of `phase`.

    waiting: forward run done, backward run not, which for a backward run is true of itself.
    sending, returning: forward and backward runs whose messages are not known to be delivered.
    sums: partial sums of each gradient.
    """

    phase: str
    waiting: int
    sending: int = 0
    returning: int = 0
    sums: int = 0


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one stage at its worst moment.

    gradients: their partial sums. kept: what the forward phase leaves for the backward phase, a
    micro-batch; in_flight of them are held, the running one included. transient: what the running
    body holds beyond that, and messages under way. The data that is fed is the caller's.
    """

    parameters: int
    gradients: int
    optimizer: int
    kept: int
    in_flight: int
    transient: int

    @property
    def peak(self) -> int:
        """Bytes at the worst moment."""
        static = self.parameters + self.gradients + self.optimizer
        return static + self.kept * self.in_flight + self.transient


def plan_memory(
    partition: Partition,
    in_flight: Mapping[int, Collection[InFlight]],
    *,
    trained: Collection[str] = (),
    slots: int = 0,
    parameters: Collection[str] = (),
) -> tuple[StageMemory, ...]:
    """The memory of every stage.

    in_flight: stage -> the moments at which it starts a run. parameters: variables that stay for
    the whole run; trained: those with gradients and `slots` optimizer arrays each.
    """
    stages = range(partition.placement.stages)
    return tuple(
        _stage(partition, stage, in_flight.get(stage, ()), trained, slots, parameters)
        for stage in stages
    )


def _stage(
    partition: Partition,
    stage: int,
    moments: Collection[InFlight],
    trained: Collection[str],
    slots: int,
    parameters: Collection[str],
) -> StageMemory:
    stage_of = partition.placement.stage_of
    own = [n for n in partition.graph.variables if n.origin is None and stage_of[n.name] == stage]
    held = sum(n.types[0].nbytes for n in own if n.name in parameters)
    learnt = sum(n.types[0].nbytes for n in own if n.name in trained)
    memory = _Memory(partition, stage)
    kept, top, sent = memory.kept, memory.top, memory.sent
    worst, count, sums = 0, 0, 0
    for at in moments:
        others = at.waiting - (at.phase == BACKWARD)
        total = (
            top[at.phase] + others * kept + at.sums * learnt
            + at.sending * sent[FORWARD] + at.returning * sent[BACKWARD]
        )  # fmt: skip
        if total > worst:
            worst, count, sums = total, others + 1, at.sums * learnt
    return StageMemory(held, sums, learnt * slots, kept, count, worst - sums - kept * count)


def kept_bytes(partition: Partition, stage: int) -> int:
    """Bytes that a stage's forward phase leaves for its backward phase, a micro-batch."""
    return _Memory(partition, stage).kept


class _Memory:
    """Bytes of one micro-batch in a stage's frame.

    kept: between the phases. top: by phase, the most while its body runs. sent: by phase, what
    only undelivered messages hold afterwards.
    """

    def __init__(self, partition: Partition, stage: int) -> None:
        self.partition = partition
        self.owner: dict[Value, Value | None] = {}  # value -> whose memory it is; None: not ours
        self.kept = 0
        self.top = {FORWARD: 0, BACKWARD: 0}
        self.sent = {FORWARD: 0, BACKWARD: 0}
        bodies = [partition.bodies.get(BodyKey(stage, phase)) for phase in (FORWARD, BACKWARD)]
        for body in bodies:
            if body is not None:
                self._own(body)
                kept = self._bytes(body.keeps)
                sent = lifetimes(body, partition).sent
                self.top[body.key.phase] = self._top(body)
                self.sent[body.key.phase] = self._bytes((*body.keeps, *sent)) - kept
                self.kept += kept

    def _own(self, body: Body) -> None:
        """Parameters and fed data have no memory here, imports that no phase before this had do."""
        for node in body.graph:
            for value in made_by(node):
                outside = body.imports.get(node.name, value)
                if not node.is_variable and is_view(node, body.graph):
                    source = node.inputs[0]
                    self.owner[value] = self.owner[body.imports.get(source.node, source)]
                elif node.name in body.imports:
                    self.owner.setdefault(outside, outside)
                else:
                    self.owner[value] = None if node.is_variable else value

    def _bytes(self, values: Iterable[Value]) -> int:
        """Bytes of values, memory that several share counted once."""
        owners = {self.owner[v] for v in values}
        return sum(self._size(owner) for owner in owners)

    def _size(self, owner: Value | None) -> int:
        return 0 if owner is None else self.partition.graph.type_of(owner).nbytes

    def _top(self, body: Body) -> int:
        held = Counter(self.owner[v] for v in body.imports.values())
        live = top = sum(map(self._size, held))
        calls = [n for n in body.graph if not n.is_variable]
        for node, drops in zip(calls, lifetimes(body, self.partition).drops, strict=True):
            for value in made_by(node):
                owner = self.owner[value]
                live += 0 if held[owner] else self._size(owner)
                held[owner] += 1
            top = max(top, live)
            for value in drops:
                owner = self.owner[value]
                held[owner] -= 1
                live -= 0 if held[owner] else self._size(owner)
        return top
