"""The memory plan: bytes each stage holds at its worst moment, from the cut and the schedule."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from partitioner.types import Body, BodyKey, Partition
from symgraph.ops.registry import find
from symgraph.types import Value


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one stage.

    kept: what its forward phase leaves for the backward phase, a micro-batch; in_flight of them
    are held at once. transient: the most that a running body holds beyond that.
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
    in_flight: Mapping[int, int],
    micro_batches: int,
    *,
    trained: Collection[str] = (),
    slots: int = 0,
    parameters: Collection[str] = (),
) -> tuple[StageMemory, ...]:
    """The memory of every stage.

    in_flight: stage -> micro-batches whose forward run is done and backward run is not, at most.
    parameters: variables that stay for the whole run; trained: those with gradients and `slots`
    optimizer arrays each. Gradients count the partial sums over micro-batches (runtime.sums).
    """
    return tuple(
        _stage(partition, stage, in_flight.get(stage, 0), micro_batches, trained, slots, parameters)
        for stage in range(partition.placement.stages)
    )


def _stage(
    partition: Partition,
    stage: int,
    in_flight: int,
    micro_batches: int,
    trained: Collection[str],
    slots: int,
    parameters: Collection[str],
) -> StageMemory:
    graph, stage_of = partition.graph, partition.placement.stage_of
    own = [n for n in graph.variables if n.origin is None and stage_of[n.name] == stage]
    held = sum(n.types[0].nbytes for n in own if n.name in parameters)
    learnt = sum(n.types[0].nbytes for n in own if n.name in trained)
    bodies = [partition.bodies[k] for k in partition.bodies if k.stage == stage]
    forward = partition.bodies.get(BodyKey(stage, "F"))
    kept = kept_bytes(forward, partition) if forward else 0
    extra = [peak_bytes(b, partition) - (kept if b is forward else 0) for b in bodies]
    sums = (micro_batches - 1).bit_length() + 1
    return StageMemory(held, learnt * sums, learnt * slots, kept, in_flight, max([0, *extra]))


def kept_bytes(body: Body, partition: Partition) -> int:
    """Bytes that a body leaves for its stage's later phases; parameters are not counted twice."""
    return _distinct(body, [v for v in body.keeps if not partition.graph[v.node].is_variable])


def _distinct(body: Body, values: Collection[Value]) -> int:
    """Bytes of values, memory that several share (a reshape and its input) counted once."""
    inside = {str(v): name for name, v in body.imports.items()}
    roots = {_root(body, Value(inside.get(str(v), v.node), 0 if str(v) in inside else v.index))
             for v in values}  # fmt: skip
    return sum(body.graph.type_of(r).nbytes for r in roots)


def _root(body: Body, value: Value) -> Value:
    """The value whose memory this one is a view of; itself, mostly."""
    node = body.graph[value.node]
    while not node.is_variable and find(node.op).view:
        value = node.inputs[0]
        node = body.graph[value.node]
    return value


def peak_bytes(body: Body, partition: Partition) -> int:
    """The most bytes of made and received values that one run of a body holds at once."""
    graph = body.graph
    fed = {n.name for n in graph.variables if n.name not in body.imports}
    last: dict[Value, int] = {}
    for at, node in enumerate(graph):
        for value in (*node.inputs, *(Value(node.name, i) for i in range(len(node.types)))):
            last[_root(body, value)] = at
    last |= {_root(body, v): len(graph) for v in graph.outputs}
    ends: dict[int, int] = {}
    for value, at in last.items():
        ends[at] = ends.get(at, 0) + (0 if value.node in fed else graph.type_of(value).nbytes)
    live = peak = 0
    for at, node in enumerate(graph):
        made = [Value(node.name, i) for i in range(len(node.types))]
        if node.name not in fed:
            live += sum(graph.type_of(v).nbytes for v in made if _root(body, v) == v)
        peak = max(peak, live)
        live -= ends.get(at, 0)
    return peak
