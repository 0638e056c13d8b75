"""The cut: a placed graph becomes one body for each stage and phase, joined by edges.

Each value that another stage reads is sent there once, whoever reads it how often; what a later
phase of a stage reads again is kept by that stage. Edges are found from the values, never from
stage numbers, so skip connections and several stages on one rank need nothing special. Tags
number the edges in the order of their producers, the same on every rank.

Gradient nodes belong to the stage of the node they serve. Only a sum of gradients that are both
made on another stage is added up there, so that one message carries what would be two; the order
of the additions, and so every bit, is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from partitioner.types import (
    BACKWARD,
    FORWARD,
    PHASES,
    Body,
    BodyKey,
    CommEdge,
    Partition,
    Placement,
)  # fmt: skip
from symgraph.errors import PlacementError
from symgraph.graph import Graph, Node
from symgraph.ops.registry import VARIABLE
from symgraph.types import Value

SUM = "elemwise_add"


def cut(graph: Graph, placement: Placement) -> Partition:
    """Cut a forward, or forward and backward, graph. Raises PlacementError for unplaced nodes."""
    owner = _owners(graph, placement)
    readers = _readers(graph, owner)
    edges = _edges(graph, owner, readers)
    keys = sorted(set(owner.values()), key=lambda k: (k.stage, PHASES.index(k.phase)))
    nodes: dict[BodyKey, list[Node]] = {key: [] for key in keys}
    for node in graph:
        nodes[owner[node.name]].append(node)
    sent = {e.value for e in edges}
    bodies = {k: _body(k, nodes[k], graph, owner, readers, sent) for k in keys}
    return Partition(graph, placement, MappingProxyType(bodies), tuple(edges))


def _owners(graph: Graph, placement: Placement) -> dict[str, BodyKey]:
    owner: dict[str, BodyKey] = {}
    for node in graph:
        stage = placement.stage_of.get(node.origin or node.name)
        if stage is None:
            raise PlacementError(f"node {node.name!r} is not placed on any stage")
        key = BodyKey(stage, FORWARD if node.origin is None else BACKWARD)
        if node.origin is not None and node.op == SUM:
            left, right = (owner[v.node] for v in node.inputs)
            if left == right and left.phase == BACKWARD:
                key = left
        owner[node.name] = key
    return owner


Readers = dict[Value, dict[BodyKey, None]]  # value -> the other bodies that read it, in order


def _readers(graph: Graph, owner: Mapping[str, BodyKey]) -> Readers:
    found: Readers = {}
    for node in graph:
        for value in node.inputs:
            if owner[value.node] != owner[node.name]:
                found.setdefault(value, {})[owner[node.name]] = None
    return found


def _edges(graph: Graph, owner: Mapping[str, BodyKey], readers: Readers) -> list[CommEdge]:
    edges: list[CommEdge] = []
    for node in graph:
        for index, type_ in enumerate(node.types):
            value = Value(node.name, index)
            src = owner[node.name]
            first: dict[int, str] = {}
            for key in readers.get(value, ()):
                phase = first.get(key.stage, key.phase)
                first[key.stage] = min(phase, key.phase, key=PHASES.index)
            for stage in sorted(first):
                if stage != src.stage:
                    dst = BodyKey(stage, first[stage])
                    edges.append(CommEdge(len(edges), value, type_, src, dst))
    return edges


def _body(
    key: BodyKey,
    nodes: list[Node],
    graph: Graph,
    owner: Mapping[str, BodyKey],
    readers: Readers,
    sent: set[Value],
) -> Body:
    imports: dict[str, Value] = {}
    inside: list[Node] = []
    for node in nodes:
        for value in node.inputs:
            if owner[value.node] != key and str(value) not in imports:
                imports[str(value)] = value
                inside.append(Node(str(value), VARIABLE, types=(graph.type_of(value),)))
        inputs = tuple([
            v if owner[v.node] == key else Value(str(v)) for v in node.inputs
        ])  # fmt: skip
        inside.append(Node(node.name, node.op, inputs, node.attrs, node.types, None, node.tags))
    made = [Value(n.name, i) for n in nodes for i in range(len(n.types))]
    later = PHASES[PHASES.index(key.phase) + 1 :]
    after = [BodyKey(key.stage, phase) for phase in later]
    kept = tuple(
        v for v in [*imports.values(), *made] if any(k in readers.get(v, ()) for k in after)
    )
    asked = dict.fromkeys(graph.outputs)
    results = tuple(v for v in asked if owner[v.node] == key)
    outward = [v for v in made if v in sent or v in kept or v in asked]
    body = Graph.of(inside, outward)
    return Body(key, body, MappingProxyType(imports), kept, results)
