"""The memory plan: bytes that bodies hold and leave, from the cut alone.

A body holds values in its micro-batch's frame by the rules of `lifetimes`. Which frames a rank
holds at once is the schedule's doing: `runtime.replay.memory_profile` walks the programs with
these figures and finds the worst moment of every rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from partitioner.cut import run_order
from partitioner.lifetimes import is_view, lifetimes, made_by
from partitioner.types import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Body,
    BodyKey,
    CommEdge,
    Partition,
)
from symgraph.types import Value

NOTHING: Mapping[str, Value] = MappingProxyType({})
TURN = {FORWARD: 0, BACKWARD: 1, INPUT: 1, WEIGHT: 2}  # phases by when they come


@dataclass(frozen=True)
class BodyMemory:
    """Bytes of one micro-batch's run of a body.

    top: the most that is held beyond what the rank holds when the run starts; the messages that
    it received are held already. kept: by how much the bytes held have changed when it has run
    and its messages are delivered; negative if it drops more than it leaves. sending: what is
    held besides that until its messages are delivered. sums: the gradients that it completes,
    which wait as partial sums over micro-batches.
    """

    top: int
    kept: int
    sending: int = 0
    sums: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """bodies: see BodyMemory. parameters, optimizer: bytes of each rank that stay for the run.

    The data that is fed is the caller's.
    """

    bodies: Mapping[BodyKey, BodyMemory]
    parameters: tuple[int, ...]
    optimizer: tuple[int, ...]


def plan_memory(
    partition: Partition,
    *,
    grads: Mapping[str, Value] = NOTHING,
    slots: int = 0,
    parameters: Collection[str] = (),
) -> MemoryPlan:
    """The memory of every body and rank.

    grads: parameter -> the value of its gradient, with `slots` optimizer arrays each.
    parameters: variables that stay for the whole run.
    """
    graph, place = partition.graph, partition.placement
    held, learnt = [0] * partition.ranks, [0] * partition.ranks
    for node in graph.variables:
        if node.origin is None:
            rank = place.rank_of[place.stage_of[node.name]]
            held[rank] += node.types[0].nbytes if node.name in parameters else 0
            learnt[rank] += node.types[0].nbytes * slots if node.name in grads else 0
    memory = _Memory(partition)
    asked = set(grads.values())
    bodies = {
        key: BodyMemory(
            memory.top(body), memory.kept[key], memory.sending[key],
            sum(graph.type_of(v).nbytes for v in body.results if v in asked),
        )
        for key, body in partition.bodies.items()
    }  # fmt: skip
    return MemoryPlan(MappingProxyType(bodies), tuple(held), tuple(learnt))


def kept_bytes(partition: Partition) -> tuple[int, ...]:
    """Bytes that each stage's forward phase leaves for its backward phase, a micro-batch."""
    memory = _Memory(partition)
    totals = [0] * partition.placement.stages
    for (stage, owner), death in memory.deaths.items():
        if death.phase != FORWARD and memory.births[stage, owner].phase == FORWARD:
            totals[stage] += memory.size(owner)
    return tuple(totals)


class _Memory:
    """Whose memory the values of every stage are, and how long it is held.

    births, deaths: (stage, owner) -> the body that makes or first reads it, and the one that
    drops the last value in its memory. kept, sending: see BodyMemory.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.owner: dict[tuple[int, Value], Value | None] = {}  # None: not ours
        self.births: dict[tuple[int, Value], BodyKey] = {}
        self.deaths: dict[tuple[int, Value], BodyKey] = {}
        self.last: dict[tuple[int, Value], BodyKey] = {}  # the body that drops a value
        self.kept: Counter[BodyKey] = Counter()
        self.sending: Counter[BodyKey] = Counter()
        self.came: dict[tuple[int, Value], CommEdge] = {}  # what other stages made
        self.sent = {k: lifetimes(b, partition).sent for k, b in partition.bodies.items()}
        self.edges = {(e.dst.stage, e.value): e for e in partition.edges}
        ends = {k.stage: k for k in sorted(partition.bodies, key=run_order)}
        for body in sorted(partition.bodies.values(), key=_rises):
            self._own(body, ends[body.key.stage])
        for (stage, value), key in self.last.items():
            whose = self.owner[stage, value]
            if whose is not None:
                before = self.deaths.get((stage, whose), key)
                self.deaths[stage, whose] = max(before, key, key=run_order)
        for stage, whose in self.deaths:
            self._account(stage, whose)

    def size(self, owner: Value | None) -> int:
        return 0 if owner is None else self.partition.graph.type_of(owner).nbytes

    def _own(self, body: Body, end: BodyKey) -> None:
        """Parameters and fed data have no memory here; views have that of what they look at."""
        stage, keeps = body.key.stage, set(body.keeps)
        for node in body.graph:
            for value in made_by(node):
                outside = body.imports.get(node.name, value)
                if node.name in body.imports:
                    whose = self._imported(stage, outside)
                elif node.is_variable:
                    whose = None
                elif is_view(node, body.graph):
                    source = node.inputs[0]
                    whose = self.owner[stage, body.imports.get(source.node, source)]
                else:
                    whose = value
                self.owner[stage, outside] = whose
                if whose is not None:
                    self.births.setdefault((stage, whose), body.key)
                self.last[stage, outside] = end if outside in keeps else body.key

    def _imported(self, stage: int, value: Value) -> Value | None:
        """An earlier body of the stage had it, another stage of the rank hands it over, or it is
        a message's."""
        if (stage, value) in self.owner:
            return self.owner[stage, value]
        edge = self.edges[stage, value]
        crosses = self.partition.crosses(edge)
        whose = value if crosses else self.owner[edge.src.stage, value]
        if whose is not None:
            self.came[stage, whose] = edge
        return whose

    def _account(self, stage: int, owner: Value) -> None:
        """Add one owner's bytes where it comes, and take them away where it goes."""
        size, birth, death = self.size(owner), self.births[stage, owner], self.deaths[stage, owner]
        edge = self.came.get((stage, owner))
        if any(self.owner[stage, v] == owner for v in self.sent[death]):
            self.sending[death] += size
        if edge is None:
            self.kept[birth] += size
            self.kept[death] -= size
        elif self.partition.crosses(edge):
            self.kept[death] -= size  # held since it was received
        elif not self._outlives(edge, owner, death):
            self.kept[edge.src] += size
            self.kept[death] -= size

    def _outlives(self, edge: CommEdge, owner: Value, death: BodyKey) -> bool:
        """Whether the stage that hands the memory over holds it longer anyway."""
        source = self.deaths[edge.src.stage, owner]
        return source != edge.src and TURN[source.phase] >= TURN[death.phase]

    def top(self, body: Body) -> int:
        """The most that is held while a body runs, beyond what it found."""
        stage, live, top = body.key.stage, 0, 0
        held = Counter(self.owner[stage, v] for v in body.imports.values())
        calls = [n for n in body.graph if not n.is_variable]
        for node, drops in zip(calls, lifetimes(body, self.partition).drops, strict=True):
            for value in made_by(node):
                owner = self.owner[stage, value]
                live += 0 if held[owner] else self.size(owner)
                held[owner] += 1
            top = max(top, live)
            for value in drops:
                owner = self.owner[stage, value]
                held[owner] -= 1
                live -= 0 if held[owner] else self.size(owner)
        return top


def _rises(body: Body) -> tuple[int, int, tuple[int, int, int]]:
    """Sorts bodies so that makers come before readers."""
    stage = body.key.stage
    turn = TURN[body.key.phase]
    return turn, -stage if turn else stage, run_order(body.key)
