"""Short calls that an LSTM's kernels do as well: the biases, and the sum of two gradients.

A time step is so little work for a GPU that each launch counts. The results have the same bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from partitioner.base.aliasing import is_view
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
    search = _Search(graph, found, results)
    late = search.late_biases()
    alone = {late[gates, 0].name for gates, at in late if not at and (gates, 1) not in late}
    done = set[str]()
    inputs: dict[str, tuple[Value, ...]] = {}
    for node in search.nodes:
        if node.op == "_lstm_gates":
            products = [late[node.name, at] for at in (1, 0) if (node.name, at) in late]
            for made in products:
                if made.name not in alone:  # the kernel adds h2h's bias, or both
                    inputs[made.name] = made.inputs[:2]
                    inputs[node.name] = (*inputs.get(node.name, node.inputs), made.inputs[2])
        elif node.op == "_lstm_gates_grad" and node.attrs["has_dh"]:
            made = graph[node.inputs[0].node]
            if search.is_late_sum(made, node):
                done.add(made.name)
                inputs[node.name] = (made.inputs[0], *node.inputs[1:], made.inputs[1])
    return Joins(frozenset(done), inputs)


class _Search:
    """The body that is searched, and who reads what in it."""

    def __init__(self, graph: Graph, found: Found, results: Sequence[Value]) -> None:
        self.graph, self.found, self.nodes = graph, found, [*graph]
        self.kept = {*results, *graph.outputs}
        self.order = {node.name: at for at, node in enumerate(self.nodes)}
        self.readers: dict[Value, list[tuple[Node, int]]] = defaultdict(list)
        for node in self.nodes:
            for place, value in enumerate(node.inputs):
                self.readers[value].append((node, place))

    def arrays_of(self, values: Iterable[Value]) -> list[Array]:
        return [self.found[v.node][v.index] for v in values]

    def late_biases(self) -> dict[tuple[str, int], Node]:
        """Return the products whose biases gates can add, which alone read them.

        They are given by gates and input.
        """
        found: dict[tuple[str, int], Node] = {}
        for made in self.nodes:
            if made.op != "FullyConnected" or len(made.inputs) < 3:
                continue
            ends = [] if Value(made.name) in self.kept else [*self._readers_of_rows(made)]
            is_parameter = self.graph[made.inputs[2].node].is_variable  # it is there all the time
            if is_parameter and all(node.op == "_lstm_gates" and at < 2 for node, at in ends):
                others = [v for node, _ in ends for v in node.inputs[:2]]
                parts = self.arrays_of((*made.inputs, *others))
                if floating(*parts) and parts[0].size:
                    found |= {(node.name, at): made for node, at in ends}
        return found

    def _readers_of_rows(self, product: Node) -> Iterator[tuple[Node, int]]:
        """Yield who reads a product, or some rows of it that are a view."""
        for node, place in self.readers[Value(product.name)]:
            rows, width = Value(node.name), product.types[0].shape[1:]
            by_rows = node.op == "slice_axis" and node.types[0].shape[1:] == width
            if by_rows and is_view(node, self.graph) and rows not in self.kept:
                yield from self.readers[rows]
            else:
                yield node, place

    def is_late_sum(self, made: Node, gates: Node) -> bool:
        """Tell whether a gradient of the output can be added up by the gates, its only reader."""
        value = gates.inputs[0]
        if made.op not in SUMS or len(self.readers[value]) > 1 or value in self.kept:
            return False
        if {*self.graph.types_of(made.inputs)} != {*made.types}:
            return False
        terms, (of_gates, *_) = self.arrays_of(made.inputs), self.found[gates.name]
        between = self.nodes[self.order[made.name] + 1 : self.order[gates.name]]
        calls = [n for n in between if not (n.is_variable or is_free(n, self.graph))]
        return floating(*terms, of_gates) and _stay(terms, calls, gates, self.found)


def _stay(arrays: Sequence[Array], calls: Sequence[Node], last: Node, found: Found) -> bool:
    """Tell whether arrays keep their values until the last call, which may take their places."""
    written = [b for node in calls for b in found[node.name]]
    return not any(overlap(a, b) for a in arrays for b in written) and not any(
        overlap(a, b) and not _alike(a, b) for a in arrays for b in found[last.name]
    )


def _alike(a: Array, b: Array) -> bool:
    return one_place(a, b) and (a.shape, a.dtype) == (b.shape, b.dtype)
