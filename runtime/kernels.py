"""Compiled bodies: a body's nodes as a flat list of steps over numbered slots.

A stage's values of one micro-batch live in one list of slots (a frame) that its phases share, so
that what is kept needs no copy. A step knows its function, its slots and which slots nobody reads
after it; running a body looks nothing up by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from partitioner.lifetimes import lifetimes, made_by, read_by
from partitioner.types import AGAIN, Body, BodyKey, Partition
from runtime.meter import Meter
from symgraph.graph import Node
from symgraph.ops.registry import Env, find
from symgraph.types import Value

Frame = list[Any]


class NodeFailed(Exception):
    """A node's computation raised; carries the node's name for the rank's error."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node


class Step(NamedTuple):
    """One node: outs = compute(env, attrs, *ins), then drop."""

    name: str
    compute: Callable[..., Any]
    attrs: Mapping[str, Any]
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    drop: tuple[int, ...]


class Handover(NamedTuple):
    """A value that another stage of the same rank reads: put into its frame after the run."""

    slot: int
    stage: int
    to: int


@dataclass(frozen=True)
class Compiled:
    """A body ready to run.

    slots: value -> slot, the same for all bodies of a stage. fed: the body's variables that are
    no imports, set before it runs. handovers: values for other stages of this rank. results:
    outputs of the whole graph. aux: auxiliary states and the slots of their next values. spent:
    slots that nobody needs once results and states are taken. free: slots that nobody needs once
    this body's sends are delivered.
    """

    key: BodyKey
    steps: tuple[Step, ...]
    slots: Mapping[Value, int]
    fed: tuple[tuple[str, int], ...]
    handovers: tuple[Handover, ...]
    results: tuple[tuple[Value, int], ...]
    aux: tuple[tuple[str, int], ...]
    spent: tuple[int, ...]
    free: tuple[int, ...]

    def run(self, frame: Frame, env: Env, meter: Meter | None = None) -> None:
        """Fill the frame with this body's values. Raises NodeFailed from the node's own error."""
        asarray, value_in = env.xp.asarray, frame.__getitem__
        name = ""
        try:
            for name, compute, attrs, ins, outs, drop in self.steps:  # noqa: B007
                result = compute(env, attrs, *map(value_in, ins))
                if isinstance(result, tuple):
                    for slot, array in zip(outs, result, strict=True):
                        frame[slot] = asarray(array, order="C")
                else:
                    frame[outs[0]] = asarray(result, order="C")
                if meter is not None:
                    meter.made([frame[i] for i in outs], [frame[i] for i in drop])
                for slot in drop:
                    frame[slot] = None
        except Exception as error:
            raise NodeFailed(name) from error


def compile_rank(partition: Partition, rank: int) -> dict[BodyKey, Compiled]:
    """All bodies of a rank's stages."""
    stages = [s for s, r in enumerate(partition.placement.rank_of) if r == rank]
    bodies = {s: [b for k, b in partition.bodies.items() if k.stage == s] for s in stages}
    slots = {s: _number(bodies[s]) for s in stages}
    return {
        body.key: _compile(body, partition, slots) for stage in stages for body in bodies[stage]
    }


def _number(bodies: Sequence[Body]) -> dict[Value, int]:
    """One slot for every value that a stage's bodies make or read."""
    slots: dict[Value, int] = {}
    for body in bodies:
        for node in body.graph:
            for index in range(len(node.types)):
                value = body.imports.get(node.name, Value(node.name, index))
                slots.setdefault(value, len(slots))
    return slots


def _compile(
    body: Body, partition: Partition, all_slots: Mapping[int, Mapping[Value, int]]
) -> Compiled:
    slots = all_slots[body.key.stage]
    calls = [n for n in body.graph if not n.is_variable]
    variables = [n.name for n in body.graph.variables if n.name not in body.imports]
    handovers = tuple(
        Handover(slots[e.value], e.dst.stage, all_slots[e.dst.stage][e.value])
        for e in partition.outgoing[body.key]
        if not partition.crosses(e)
    )
    aux = tuple((name, slots[value]) for node in calls for name, value in _aux(body, node))
    life = lifetimes(body, partition)
    return Compiled(
        body.key,
        tuple(_step(n, body, slots, drop) for n, drop in zip(calls, life.drops, strict=True)),
        slots,
        tuple((name, slots[Value(name)]) for name in variables),
        handovers,
        tuple((v, slots[v]) for v in body.results),
        aux,
        tuple(slots[v] for v in life.spent),
        tuple(slots[v] for v in life.sent),
    )


def _aux(body: Body, node: Node) -> list[tuple[str, Value]]:
    """Auxiliary states of a call and the values they take after a training run."""
    if AGAIN in node.tags:
        return []
    op = find(node.op)
    states = node.inputs[len(node.inputs) - len(op.aux) :]
    names = [body.imports.get(v.node, v).node for v in states]
    return [(n, Value(node.name, i)) for n, i in zip(names, op.aux_outputs, strict=True)]


def _step(node: Node, body: Body, slots: Mapping[Value, int], drop: Sequence[Value]) -> Step:
    ins = tuple([slots[v] for v in read_by(node, body)])
    outs = tuple([slots[v] for v in made_by(node)])
    return Step(
        node.name, find(node.op).compute, node.attrs, ins, outs, tuple([slots[v] for v in drop])
    )
