"""Short calls that an LSTM's kernels do as well: the bias of h2h, and the sum of two gradients.

A time step is so little work for a GPU that each launch counts. The results have the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from partitioner.costs.cost import is_free
from runtime.backends.cuda.base import floating
from runtime.backends.device.arrays import one_place, overlap
from symgraph.core.graph import Graph, Node
from symgraph.core.types import Array, Value

SUMS = ("elemwise_add", "broadcast_add")
Found = Mapping[str, Sequence[Array]]


class Joins(NamedTuple):
    """Which nodes have no call of their own, and which calls have other inputs than their nodes."""

    #: Nodes without a call.
    done: frozenset[str] = frozenset()
    #: Of a node: the inputs of its call.
    inputs: Mapping[str, tuple[Value, ...]] = MappingProxyType({})


NO_JOINS = Joins()


def joins(graph: Graph, found: Found, results: Sequence[Value]) -> Joins:
    """Find the calls of a body that can be left to those of its LSTM steps.

    Args:
        graph: The body's graph.
        found: The arrays of its nodes.
        results: What is read outside.
    """
    nodes, done = [*graph], set[str]()
    inputs: dict[str, tuple[Value, ...]] = {}
    readers = Counter(value for node in nodes for value in node.inputs)
    once = {value for value, count in readers.items() if count == 1} - {*results, *graph.outputs}
    order = {node.name: at for at, node in enumerate(nodes)}

    def arrays_of(values: Sequence[Value]) -> list[Array]:
        return [found[v.node][v.index] for v in values]

    def has_late_bias(made: Node, gates: Node) -> bool:
        """Tell whether a product's bias can be added by the gates, its only reader."""
        if made.op != "FullyConnected" or len(made.inputs) < 3:
            return False
        parts = arrays_of((*made.inputs, *gates.inputs[:2]))
        is_parameter = graph[made.inputs[2].node].is_variable  # it lies there all the time
        return is_parameter and floating(*parts) and parts[0].size > 0

    def is_late_sum(made: Node, gates: Node) -> bool:
        """Tell whether a gradient of the output can be added up by the gates, its only reader."""
        if made.op not in SUMS or {*graph.types_of(made.inputs)} != {*made.types}:
            return False
        terms, (of_gates, *_) = arrays_of(made.inputs), found[gates.name]
        between = nodes[order[made.name] + 1 : order[gates.name]]
        calls = [n for n in between if not (n.is_variable or is_free(n, graph))]
        return floating(*terms, of_gates) and _stay(terms, calls, gates, found)

    for node in nodes:
        if node.op == "_lstm_gates" and node.inputs[1] in once:
            made = graph[node.inputs[1].node]
            if has_late_bias(made, node):
                inputs[made.name] = made.inputs[:2]
                inputs[node.name] = (*node.inputs, made.inputs[2])
        elif node.op == "_lstm_gates_grad" and node.attrs["has_dh"] and node.inputs[0] in once:
            made = graph[node.inputs[0].node]
            if is_late_sum(made, node):
                done.add(made.name)
                inputs[node.name] = (made.inputs[0], *node.inputs[1:], made.inputs[1])
    return Joins(frozenset(done), inputs)


def _stay(arrays: Sequence[Array], calls: Sequence[Node], last: Node, found: Found) -> bool:
    """Tell whether arrays keep their values until the last call, which may take their places."""
    written = [b for node in calls for b in found[node.name]]
    return not any(overlap(a, b) for a in arrays for b in written) and not any(
        overlap(a, b) and not _alike(a, b) for a in arrays for b in found[last.name]
    )


def _alike(a: Array, b: Array) -> bool:
    return one_place(a, b) and (a.shape, a.dtype) == (b.shape, b.dtype)
