"""Node bodies: the body of every node, from its stage, its phase and its time segment.

Gradient nodes belong to the stage of the node they serve, except sums: two gradients that are both
made on another stage are added up there, so that one message carries what would be two. The order
of the additions, and so every bit, is the same.

With a split backward phase, W has the gradients of variables and the nodes that serve nothing else:
they only lead, through nodes of the same origin, to sums of a variable's gradient (a parameter that
a node casts to another dtype counts as the variable). I has the rest. So a weight that is used
twice on one path (x@W@W, every unrolled network) has two W nodes and one path of I nodes, each of
them once (PyTorch counts them twice, pytorch#180952).
"""

from __future__ import annotations

from collections.abc import Mapping

from partitioner.base.segments import Segments
from partitioner.base.types import BACKWARD, FORWARD, INPUT, WEIGHT, BodyKey, Placement
from symgraph.core.errors import PlacementError
from symgraph.core.graph import Graph
from symgraph.core.types import Value
from symgraph.passes.merge import home_of
from symgraph.passes.precision import is_parameter_cast

SUM = "elemwise_add"


def assign_bodies(
    graph: Graph, placement: Placement, segments: Segments, *, split: bool = False
) -> dict[str, BodyKey]:
    """Find the body of every node. Raises PlacementError for a node without a stage."""
    weights = weight_nodes(graph) if split else frozenset()
    back = INPUT if split else BACKWARD
    body_of: dict[str, BodyKey] = {}
    for node in graph:
        stage = placement.stage_of.get(home_of(node))
        if stage is None:
            raise PlacementError(f"node {node.name!r} is not placed on any stage")
        if node.origin is not None and node.op == SUM:
            left, right = (body_of[v.node] for v in node.inputs)
            if left.stage == right.stage and FORWARD not in (left.phase, right.phase):
                stage = left.stage
        phase = FORWARD if node.origin is None else WEIGHT if node.name in weights else back
        body_of[node.name] = BodyKey(stage, phase, segments.of[node.name])
    return body_of | _variables(graph, body_of)


def weight_nodes(graph: Graph) -> frozenset[str]:
    """Find the gradient nodes that can wait: gradients of variables, and nodes only for them."""
    origins: dict[str, str] = {}  # weight node -> its origin
    users = graph.users()
    for node in reversed(list(graph)):
        if node.origin is None or node.is_variable:
            continue
        readers = [u for i in range(len(node.types)) for u in users.get(Value(node.name, i), ())]
        waits = all(
            r in origins and (origins[r] == node.origin or _is_parameter(graph, origins[r]))
            for r in readers
        )
        if graph[node.origin].is_variable or (readers and waits):
            origins[node.name] = node.origin
    return frozenset(origins)


def _is_parameter(graph: Graph, name: str) -> bool:
    return graph[name].is_variable or is_parameter_cast(graph, name)


def _variables(graph: Graph, body_of: Mapping[str, BodyKey]) -> dict[str, BodyKey]:
    """Put forward variables into the first segment that reads them."""
    first: dict[str, int] = {}
    for node in graph:
        if node.origin is None:
            for value in node.inputs:
                segment = body_of[node.name].segment
                first[value.node] = min(segment, first.get(value.node, segment))
    return {
        node.name: body_of[node.name]._replace(segment=first.get(node.name, 0))
        for node in graph.variables
        if node.origin is None
    }
