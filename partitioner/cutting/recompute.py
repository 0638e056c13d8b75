"""Recomputation: the backward phase runs a stage's forward nodes again, to keep less in memory.

What a stage keeps from its forward for its backward phase is then only what comes from elsewhere:
the messages it received, fed data, and states at the borders of time segments (gradient
checkpointing, Chen et al. 2016, with a stage or segment as the unit). The nodes that run again are
copies that serve the originals (`origin`), so the cut places them like gradient nodes. They give
the same bits: random operators are keyed by their stream and the sample, not by when they run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from partitioner.base.node_bodies import assign_bodies
from partitioner.base.segments import time_segments
from partitioner.base.types import AGAIN, BodyKey, Placement
from symgraph.core.graph import Graph, Node
from symgraph.passes.precision import is_parameter_cast

Place = tuple[int, int]  # stage and time segment


def recompute(
    graph: Graph,
    placement: Placement,
    stages: Collection[int],
    *,
    time_segment: int | None = None,
) -> Graph:
    """Let gradient nodes of these stages read copies of forward nodes, which run again.

    A copy is read by gradient nodes and copies of its own stage and time segment; everything else
    that they read is kept. Outputs and all values are the same. Parameters in another dtype are
    cast again in all stages: they would be kept once more for each micro-batch under way.

    Args:
        graph: a graph with gradients.
        placement: the stage of every forward node.
        stages: the stages that recompute.
        time_segment: time steps per segment; None: the graph is not cut along time.
    """
    casts = {node.name for node in graph if is_parameter_cast(graph, node.name)}
    if not stages and not casts:
        return graph
    body_of = assign_bodies(graph, placement, time_segments(graph, time_segment))
    bodies = _again(graph, body_of, stages)
    _cast_again(graph, body_of, casts, bodies)
    copies: dict[tuple[str, Place], str] = {}
    for place, names in bodies.items():
        for name in names:
            at_home = place == _place(body_of[name])
            stem = f"{name}_again" if at_home else f"{name}_again{place[1]}"
            copies[name, place] = _fresh(stem, graph)

    def reading_copies(node: Node, place: Place) -> Node:
        inputs = (v._replace(node=copies.get((v.node, place), v.node)) for v in node.inputs)
        return node.reading(tuple(inputs), node.origin)

    nodes: list[Node] = []
    for node in graph:
        place = _place(body_of[node.name])
        if node.origin is not None and any((v.node, place) in copies for v in node.inputs):
            for original in bodies.pop(place, ()):
                tags = MappingProxyType({**graph[original].tags, AGAIN: "1"})
                copy = reading_copies(graph[original], place)
                served = original if _place(body_of[original]) == place else node.origin
                name = copies[original, place]
                nodes.append(replace(copy, name=name, origin=served, tags=tags))
            node = reading_copies(node, place)
        nodes.append(node)
    return Graph.of(nodes, graph.outputs)


def _place(key: BodyKey) -> Place:
    return key.stage, key.segment


def _again(
    graph: Graph, body_of: Mapping[str, BodyKey], stages: Collection[int]
) -> dict[Place, list[str]]:
    """List the forward nodes to run again, in run order: gradient nodes' inputs, and so on."""
    wanted: set[str] = set()
    again: dict[Place, list[str]] = {}
    for node in reversed(list(graph)):
        place = _place(body_of[node.name])
        if place[0] not in stages or (node.origin is None and node.name not in wanted):
            continue
        if node.origin is None:
            again.setdefault(place, []).append(node.name)
        for value in node.inputs:
            source = graph[value.node]
            call = source.origin is None and not source.is_variable
            if call and _place(body_of[source.name]) == place:
                wanted.add(source.name)
    return {place: names[::-1] for place, names in again.items()}


def _cast_again(
    graph: Graph,
    body_of: Mapping[str, BodyKey],
    casts: Collection[str],
    bodies: dict[Place, list[str]],
) -> None:
    """Add parameters' casts to the nodes that run again, in each segment that reads them."""
    again = {name for names in bodies.values() for name in names}
    for node in graph:
        place = _place(body_of[node.name])
        for value in node.inputs if node.origin is not None or node.name in again else ():
            mine = value.node in casts and body_of[value.node].stage == place[0]
            if mine and value.node not in bodies.setdefault(place, []):
                bodies[place].insert(0, value.node)


def _fresh(name: str, graph: Graph) -> str:
    while name in graph.nodes:
        name += "_"
    return name
