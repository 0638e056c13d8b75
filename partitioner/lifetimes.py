"""Lifetimes: when a running body drops each value, and which values share their memory.

The runtime compiles bodies by these rules and the memory plan adds bytes up by them, so that
what is planned is what runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from partitioner.types import Body, Partition
from symgraph.graph import Graph, Node
from symgraph.ops.registry import find
from symgraph.types import Value

# Operators whose output is their first input's memory: always; if its type is the same; or also if
# the slice is one piece of memory. All others are taken to make new arrays.
SAME = {
    "identity", "BlockGrad", "Reshape", "Flatten", "expand_dims", "squeeze", "MakeLoss",
    "LinearRegressionOutput", "MAERegressionOutput",
}  # fmt: skip
SAME_IF_UNCHANGED = {"Cast", "broadcast_to", "broadcast_axis", "_broadcast_axes", "_sum_to"}
SLICES = {"SliceChannel", "slice_axis"}


@dataclass(frozen=True)
class Lifetimes:
    """Values of a body's stage that go, by when.

    drops: with each call, those that nobody reads after it. spent: at the end of the run, when
    results and next auxiliary states are taken. sent: when the run's messages are delivered.
    """

    drops: tuple[tuple[Value, ...], ...]
    spent: tuple[Value, ...]
    sent: tuple[Value, ...]


def lifetimes(body: Body, partition: Partition) -> Lifetimes:
    """When each value that the body makes, reads or receives goes; those it keeps do not."""
    calls = [n for n in body.graph if not n.is_variable]
    keeps = set(body.keeps)
    sent = [e.value for e in partition.outgoing[body.key] if e.value not in keeps]
    states = [Value(n.name, i) for n in calls for i in find(n.op).aux_outputs]
    stays = {*keeps, *sent, *body.results, *states}
    last = dict.fromkeys(body.imports.values(), 0)
    for at, node in enumerate(calls):
        for value in (*read_by(node, body), *made_by(node)):
            last[value] = at
    drops: list[list[Value]] = [[] for _ in calls]
    for value, at in last.items():
        if value not in stays:
            drops[at].append(value)
    spent = [v for v in dict.fromkeys((*body.results, *states)) if v not in {*keeps, *sent}]
    return Lifetimes(tuple(map(tuple, drops)), tuple(spent), tuple(dict.fromkeys(sent)))


def read_by(node: Node, body: Body) -> list[Value]:
    """The values of the whole graph that a body's node reads."""
    return [body.imports.get(v.node, v) for v in node.inputs]


def made_by(node: Node) -> list[Value]:
    """All outputs of a node."""
    return [Value(node.name, i) for i in range(len(node.types))]


def is_view(node: Node, graph: Graph) -> bool:
    """Whether the node's outputs share the memory of its first input."""
    if node.op in SAME:
        return True
    if node.op not in SAME_IF_UNCHANGED | SLICES:
        return False
    before = graph.type_of(node.inputs[0])
    if node.op in SLICES and math.prod(before.shape[: node.attrs["axis"] % len(before.shape)]) == 1:
        return True
    return before == node.types[0]
