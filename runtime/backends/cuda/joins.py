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
from runtime.backends.device.arrays import address
from symgraph.core.graph import Graph, Node
from symgraph.core.types import Array, Value

SUMS = ("elemwise_add", "broadcast_add")
Found = Mapping[str, Sequence[Array]]


class Joins(NamedTuple):
    """How nodes' calls differ from what the graph says."""

    #: Nodes whose calls others do.
    done: frozenset[str] = frozenset()
    #: Of a node: its inputs, and those that its kernel has in addition.
    inputs: Mapping[str, tuple[Value, ...]] = MappingProxyType({})


NO_JOINS = Joins()


def joins(graph: Graph, found: Found, results: Sequence[Value]) -> Joins:
    """Find the calls of a body that can be left to those of its LSTM steps.

    Args:
        graph: The body's graph.
        found: The arrays of its nodes.
        results: What is read outside.
    """
    readers = Counter(value for node in graph for value in node.inputs)
    once = {value for value, count in readers.items() if count == 1} - {*results, *graph.outputs}
    order = {node.name: at for at, node in enumerate(graph)}
    nodes, done = [*graph], set[str]()
    inputs: dict[str, tuple[Value, ...]] = {}
    for node in nodes:
        if node.op == "_lstm_gates" and node.inputs[1] in once:
            made = graph[node.inputs[1].node]
            if made.op == "FullyConnected" and len(made.inputs) == 3:
                bias = made.inputs[2]
                parts = [found[v.node][v.index] for v in (*made.inputs, *node.inputs[:2])]
                if graph[bias.node].is_variable and floating(*parts) and parts[0].size:
                    inputs[made.name] = made.inputs[:2]
                    inputs[node.name] = (*node.inputs, bias)
        elif node.op == "_lstm_gates_grad" and node.attrs["has_dh"] and node.inputs[0] in once:
            made = graph[node.inputs[0].node]
            parts = [found[v.node][v.index] for v in (*made.inputs, Value(node.name, 0))]
            if made.op in SUMS and _alike(made, graph) and floating(*parts):
                between = [
                    n for n in nodes[order[made.name] + 1 : order[node.name]] if not n.is_variable
                ]
                if _stay(made.inputs, between, node, graph, found):
                    done.add(made.name)
                    inputs[node.name] = (made.inputs[0], *node.inputs[1:], made.inputs[1])
    return Joins(frozenset(done), inputs)


def _alike(node: Node, graph: Graph) -> bool:
    return {*graph.types_of(node.inputs)} == {*node.types}


def _stay(
    values: Sequence[Value], between: Sequence[Node], last: Node, graph: Graph, found: Found
) -> bool:
    """Tell whether values lie where they did until the last node, which may take their places."""
    kept = [found[v.node][v.index] for v in values]
    written = [a for n in between if not is_free(n, graph) for a in found[n.name]]
    return not any(_overlap(a, b) for a in kept for b in written) and not any(
        _overlap(a, b) and not _one_place(a, b) for a in kept for b in found[last.name]
    )


def _overlap(a: Array, b: Array) -> bool:
    return address(a) < address(b) + b.nbytes and address(b) < address(a) + a.nbytes


def _one_place(a: Array, b: Array) -> bool:
    return address(a) == address(b) and (a.shape, a.dtype) == (b.shape, b.dtype)
