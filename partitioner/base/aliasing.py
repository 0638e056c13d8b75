"""Aliasing: which operators' outputs lie in the memory of their inputs, or may.

View      the output is the input's memory, or a piece of it: nothing is computed
Join      the output is its inputs side by side; where they can be laid so, nothing is computed
In place  the output may be written over an input that nobody reads any more

An operator's registration says which it is: fields `view`, `join` and `in_place` of OpDef.
"""

from __future__ import annotations

from collections.abc import Sequence

from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find
from symgraph.core.types import Value


def made_by(node: Node) -> list[Value]:
    """List all outputs of a node."""
    return [Value(node.name, i) for i in range(len(node.types))]


def view_offsets(node: Node, graph: Graph) -> Sequence[int] | None:
    """Where in the first input's memory the node's outputs lie, in bytes; None if they do not."""
    rule = None if node.is_variable else find(node.op).view
    return None if rule is None else rule(node.attrs, graph.types_of(node.inputs), node.types)


def is_view(node: Node, graph: Graph) -> bool:
    """Tell whether the node's outputs share the memory of its first input."""
    return view_offsets(node, graph) is not None


def is_join(node: Node) -> bool:
    """Tell whether the node's output is its inputs one after the other."""
    axis = None if node.is_variable else find(node.op).join
    return axis is not None and node.types[0].before(node.attrs[axis]) == 1
