"""The cut: a placed graph becomes one body for each stage, phase and segment, joined by edges.

Each value that another stage reads is sent there once, however many nodes read it; a value that a
later body of a stage reads is kept by that stage. Edges are found from the values, never from stage
numbers, so skip connections and several stages on one rank need nothing special. Tags number the
edges in the order of their producers, the same on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from partitioner.base.aliasing import is_view
from partitioner.base.exchanges import find_exchanges
from partitioner.base.node_bodies import SUM, assign_bodies
from partitioner.base.segments import time_segments
from partitioner.base.types import (
    AGAIN,
    FORWARD,
    INPUT,
    PHASES,
    WEIGHT,
    Body,
    BodyKey,
    CommEdge,
    Partition,
    Placement,
)
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import COPY, VARIABLE
from symgraph.core.types import Value

Readers = dict[Value, dict[BodyKey, None]]  # value -> the other bodies that read it, in order


def cut(
    graph: Graph, placement: Placement, *, split: bool = False, time_segment: int | None = None
) -> Partition:
    """Cut a graph, with or without gradients, into bodies.

    Args:
        graph: the graph.
        placement: the stage, rank and device of every forward node.
        split: whether to cut the backward phase into gradients of inputs (I) and parameters (W).
        time_segment: time steps per segment; None: do not cut along time.

    Raises:
        PlacementError: for nodes that are not placed.
        GraphError: for time steps that are not whole numbers.
    """
    body_of = assign_bodies(graph, placement, time_segments(graph, time_segment), split=split)
    readers = _readers(graph, body_of)
    exchanges = find_exchanges(graph, {n: placement.rank_of[k.stage] for n, k in body_of.items()})
    taking = {copy: name for name, ends in exchanges.items() for copy in ends.taking}
    edges = _edges(graph, body_of, readers, taking)
    keys = sorted({*body_of.values(), *(e.dst for e in edges)}, key=body_order)
    nodes: dict[BodyKey, list[Node]] = {key: [] for key in keys}
    for node in graph:
        nodes[body_of[node.name]].append(node)
    sent = {e.value for e in edges}
    lasts = _lasts(body_of, readers, edges)
    bodies = {k: _body(k, nodes[k], graph, body_of, lasts, sent) for k in keys}
    return Partition(graph, placement, MappingProxyType(bodies), tuple(edges))


def body_order(key: BodyKey) -> tuple[int, int, int]:
    """Sort a stage's bodies in an order in which they can run."""
    place = PHASES.index(key.phase)
    return key.stage, place, key.segment if key.phase == FORWARD else -key.segment


def runs_before(a: BodyKey, b: BodyKey) -> bool:
    """Tell whether body a precedes b in every schedule; both are of one stage."""
    if a.phase == b.phase or FORWARD in (a.phase, b.phase):
        return body_order(a) < body_order(b)
    return (a.phase, b.phase) == (INPUT, WEIGHT) and a.segment >= b.segment


def _readers(graph: Graph, body_of: Mapping[str, BodyKey]) -> Readers:
    readers: Readers = {}
    for node in graph:
        for value in node.inputs:
            if body_of[value.node] != body_of[node.name]:
                readers.setdefault(value, {})[body_of[node.name]] = None
    return readers


def _edges(
    graph: Graph, body_of: Mapping[str, BodyKey], readers: Readers, taking: Mapping[str, str]
) -> list[CommEdge]:
    """List all edges; `taking` maps copies of the forward phase to the exchanges that feed them."""
    edges: list[CommEdge] = []
    copied = {(graph[n].inputs[0], body_of[n].stage): name for n, name in taking.items()}
    returned: dict[str, str] = {}  # a gradient node -> the exchange that its outputs go back by
    for node in graph:
        src, back = body_of[node.name], _returned(node, returned, taking)
        if back:
            returned[node.name] = back
        for index, type_ in enumerate(node.types):
            value = Value(node.name, index)
            by_stage: dict[int, list[BodyKey]] = {}
            for key in readers.get(value, ()):
                by_stage.setdefault(key.stage, []).append(key)
            for stage in sorted(by_stage):
                if stage != src.stage:
                    first, name = _first(by_stage[stage]), back or copied.get((value, stage), "")
                    edges.append(CommEdge(len(edges), value, type_, src, first, name))
    return edges


def _returned(node: Node, returned: Mapping[str, str], taking: Mapping[str, str]) -> str:
    """Name the exchange by which the outputs of a gradient node go back; "": none.

    A sum goes as its terms do, which are in `returned`.
    """
    if node.origin is None or AGAIN in node.tags:
        return ""
    if node.op == SUM:
        return next((returned[v.node] for v in node.inputs if v.node in returned), "")
    return f"{taking[node.origin]} back" if node.op == COPY and node.origin in taking else ""


def _first(readers: Iterable[BodyKey]) -> BodyKey:
    """Choose the body that takes a message for these readers of one stage: no later than any."""
    first = min(readers, key=body_order)
    if first.phase == INPUT:
        latest = max(k.segment for k in readers)  # a W of a later segment may run before first
        return first._replace(segment=latest)
    return first


def _lasts(
    body_of: Mapping[str, BodyKey], readers: Readers, edges: Iterable[CommEdge]
) -> dict[tuple[int, Value], BodyKey | None]:
    """Find the last body that reads each value: (stage, value) -> body; None: it depends.

    Only values that several bodies of a stage touch are listed. Where the schedule decides which
    body is last, every body keeps the value.
    """
    touching: dict[tuple[int, Value], list[BodyKey]] = {}
    for value, keys in readers.items():
        for key in (body_of[value.node], *keys):
            touching.setdefault((key.stage, value), []).append(key)
    for edge in edges:
        touching[edge.dst.stage, edge.value].append(edge.dst)
    lasts: dict[tuple[int, Value], BodyKey | None] = {}
    for at, bodies in touching.items():
        last = max(bodies, key=body_order)
        known = all(k == last or runs_before(k, last) for k in bodies)
        lasts[at] = last if known else None
    return lasts


def _views_early(nodes: list[Node], graph: Graph) -> list[Node]:
    """Put views, which cost nothing, right behind what they view, so that it is read earlier."""
    names = {node.name for node in nodes}
    behind: dict[str, list[Node]] = {}
    for node in nodes:
        viewed = node.inputs[0].node if len(node.inputs) == 1 and is_view(node, graph) else ""
        behind.setdefault(viewed if viewed in names else "", []).append(node)
    ordered: list[Node] = []
    waiting = behind.get("", [])[::-1]
    while waiting:
        ordered.append(waiting.pop())
        waiting += behind.get(ordered[-1].name, [])[::-1]
    return ordered


def _body(
    key: BodyKey,
    nodes: list[Node],
    graph: Graph,
    body_of: Mapping[str, BodyKey],
    lasts: Mapping[tuple[int, Value], BodyKey | None],
    sent: set[Value],
) -> Body:
    imports: dict[str, Value] = {}
    inside: list[Node] = []
    for node in _views_early(nodes, graph):
        for value in node.inputs:
            if body_of[value.node] != key and str(value) not in imports:
                imports[str(value)] = value
                inside.append(Node(str(value), VARIABLE, types=(graph.type_of(value),)))
        inputs = tuple([v if body_of[v.node] == key else Value(str(v)) for v in node.inputs])
        if node.origin is not None or inputs != node.inputs:
            node = node.reading(inputs, None)
        inside.append(node)
    values = [Value(n.name, i) for n in nodes for i in range(len(n.types))]
    kept = tuple([v for v in (*imports.values(), *values) if lasts.get((key.stage, v), key) != key])
    asked = dict.fromkeys(graph.outputs)
    results = tuple([v for v in asked if body_of[v.node] == key])
    outside = {*kept, *sent, *asked}
    body = Graph.of(inside, [v for v in values if v in outside])
    return Body(key, body, MappingProxyType(imports), kept, results)
