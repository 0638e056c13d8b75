"""Simplifications: equal calls are computed once, and calls that change nothing not at all."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find
from symgraph.core.tags import lookup
from symgraph.core.types import Value
from symgraph.passes.merge import SUM, KeepApart

# The value that equals a node's only output, if any.
Replacement = Callable[[Node, Graph], Value | None]


def share(graph: Graph, home: KeepApart) -> Graph:
    """Compute equal calls on equal inputs once (common subexpressions).

    Outputs of the graph keep their nodes; random operators and those with states stay.
    """
    first: dict[Hashable, Value] = {}

    def meaning(node: Node, graph: Graph) -> Value | None:
        op = find(node.op)
        if op.random or op.aux:
            return None
        forward = node.origin is None
        key = node.op, node.inputs, tuple(sorted(node.attrs.items())), home(node), forward
        same = first.setdefault(key, Value(node.name))
        return None if same.node == node.name else same

    return _replaced(graph, meaning)


def fold(graph: Graph) -> Graph:
    """Remove calls that change nothing: times 1, plus 0, plus an array of zeros.

    A call that the user put into a group of its own stays, as a stop on the way of its input.
    """
    return _replaced(graph, _neutral)


def _neutral(node: Node, graph: Graph) -> Value | None:
    identity = find(node.op).identity
    if identity is not None and identity(node.attrs):
        same: list[Value] = [node.inputs[0]]
    elif node.op == SUM:
        zero = [_is_zeros(graph[v.node]) for v in node.inputs]
        same = [node.inputs[1 - zero.index(True)]] if any(zero) else []
    else:
        return None
    if not same or graph.type_of(same[0]) != node.types[0]:
        return None
    group = lookup(node.tags, "ctx_group")
    return same[0] if group in (None, lookup(graph[same[0].node].tags, "ctx_group")) else None


def _is_zeros(node: Node) -> bool:
    return not node.is_variable and find(node.op).zeros


def _replaced(graph: Graph, meaning: Replacement) -> Graph:
    """Return the graph without nodes that equal another value and what only they needed."""
    asked = {v.node for v in graph.outputs}
    stands: dict[str, str] = {}  # a node that is left out -> one whose outputs are the same
    values: dict[Value, Value] = {}
    kept: list[Node] = []
    for node in graph:
        if not node.is_variable:
            if stands:
                inputs = tuple([values.get(v, v) for v in node.inputs])
                origin = stands.get(node.origin, node.origin) if node.origin else None
                if (inputs, origin) != (node.inputs, node.origin):
                    node = node.reading(inputs, origin)
            same = None if node.name in asked else meaning(node, graph)
            if same is not None:
                stands[node.name] = same.node
                for index in range(len(node.types)):
                    values[Value(node.name, index)] = Value(same.node, same.index + index)
                continue
        kept.append(node)
    if not stands:
        return graph
    return Graph.of(drop_unread(kept, graph), graph.outputs)


def drop_unread(nodes: list[Node], graph: Graph) -> list[Node]:
    """Return nodes less the calls that lost their last reader since they were this graph."""
    before = {v.node for n in graph for v in n.inputs} | {v.node for v in graph.outputs}
    read = {v.node for v in graph.outputs}
    needed: list[Node] = []
    for node in reversed(nodes):
        if node.is_variable or node.name in read or node.name not in before:
            read.update(v.node for v in node.inputs)
            if node.origin is not None:
                read.add(node.origin)
            needed.append(node)
    return needed[::-1]
