"""Passes: plain functions from a graph to a checked graph."""

from __future__ import annotations

from collections.abc import Iterable

from symgraph.core.graph import Graph
from symgraph.core.types import Value


def prune(graph: Graph, outputs: Iterable[Value]) -> Graph:
    """The part of a graph that these outputs need, origins of gradient nodes included."""
    outputs = list(outputs)
    needed = {v.node for v in outputs}
    for node in reversed(list(graph)):  # users come before makers
        if node.name in needed:
            needed.update(v.node for v in node.inputs)
            if node.origin is not None:
                needed.add(node.origin)
    return Graph.of((n for n in graph if n.name in needed), outputs)
