"""Merging over time: many small products of an unrolled network become a few large ones.

    y0 = x0 W^T                                     Y = [x0 x1 x2] W^T
    y1 = x1 W^T          ->                         y0 y1 y2 = slices of Y
    y2 = x2 W^T
    G = ((g2^T x2 + g1^T x1) + g0^T x0)    ->       G = [g0 g1 g2]^T [x0 x1 x2]

Products of time steps with one weight are merged if none of them needs the result of another: the
projections of a layer's inputs qualify, those of its own state do not. A sum of products, such as
a weight's gradient, becomes one product of all time steps. Joining and slicing over time cost
nothing where values are laid side by side (`partitioner.memory.memory_layout`). Which operators
can be merged stands in their registration: `OpDef.rowwise` and `OpDef.row_sums`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import is_not
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from symgraph.core.build import typed_node
from symgraph.core.connected import connected
from symgraph.core.graph import Graph, Node
from symgraph.core.orders import neighbours, topological
from symgraph.core.registry import Positions, find
from symgraph.core.tags import lookup
from symgraph.core.types import Value

SUM = "elemwise_add"
MERGED_FROM = "__stands_for__"  # the tag of a merged forward node: the name of one of its parts

KeepApart = Callable[[Node], Hashable]  # nodes with different values are not merged


def merge_products(graph: Graph, home: KeepApart) -> Graph:
    """Merge the products of different time steps with one weight, then slice the result apart.

    Values keep their names. Nodes without a time step stay as they are, and nodes that `home` keeps
    apart are not merged with each other.
    """
    groups = _groups(graph, home)
    if not groups:
        return graph
    merger = _Merger(graph)
    for item in _order(graph, groups):
        if isinstance(item, int):
            merger.merge(groups[item])
        else:
            merger.nodes[item] = graph[item]
    return Graph.of(merger.nodes.values(), graph.outputs)


def sum_products(graph: Graph, home: KeepApart) -> Graph:
    """Turn sums of products of time steps into one product each; values keep their names."""
    readers: dict[str, int] = {}
    for node in graph:
        for value in node.inputs:
            readers[value.node] = readers.get(value.node, 0) + 1
    for value in graph.outputs:
        readers[value.node] = readers.get(value.node, 0) + 2
    inner = {
        v.node
        for n in graph
        if n.op == SUM
        for v in n.inputs
        if graph[v.node].op == SUM and readers[v.node] == 1
    }
    merger = _Merger(graph)
    for node in graph:
        if node.op == SUM and node.name not in inner:
            merger.sum(node, _terms(graph, node, inner), home)
        elif node.name not in inner:
            merger.nodes[node.name] = node
    return _pruned(graph, merger.nodes)


def home_of(node: Node) -> str:
    """Return the forward node of the user's network by which a node is placed."""
    return node.origin or node.tags.get(MERGED_FROM) or node.name


# -- what can be merged --------------------------------------------------------------------------


def _step(graph: Graph, node: Node) -> int | None:
    """Return the time step of a node, or of the node that it serves."""
    text = lookup((graph[node.origin] if node.origin else node).tags, "time_step")
    return None if text is None or not text.isdecimal() else int(text)


def _groups(graph: Graph, home: KeepApart) -> list[list[Node]]:
    """Return the nodes that can be merged, in the order of their time steps."""
    by_kind: dict[Hashable, list[tuple[int, int, Node]]] = {}
    for at, node in enumerate(graph):
        joined = _rowwise(node)
        step = _step(graph, node) if joined else None
        if step is not None:
            shared = tuple([v for i, v in enumerate(node.inputs) if i not in joined])
            parts = [graph.type_of(node.inputs[i]) for i in joined]
            rest = tuple([(t.shape[1:], t.dtype) for t in (*parts, *node.types)])
            if _has_rows(graph, node):
                key = node.op, shared, _attrs(node), rest, home(node)
                by_kind.setdefault(key, []).append((step, at, node))
    groups = [[n for _, _, n in sorted(g, key=lambda x: x[:2])] for g in by_kind.values()]
    return _independent(graph, [group for group in groups if len(group) > 1])


def _rowwise(node: Node) -> Positions:
    return () if node.is_variable else find(node.op).rowwise_inputs(node.attrs)


def _summed(node: Node) -> Positions:
    return () if node.is_variable else find(node.op).summed_inputs(node.attrs)


def _has_rows(graph: Graph, node: Node) -> bool:
    """Tell whether outputs and joined inputs have rows; each id of an input of ids is a row."""
    op = find(node.op)
    names = op.input_names(node.attrs)
    read = [graph.type_of(node.inputs[i]) for i in _rowwise(node) if names[i] not in op.ids]
    return all(len(t.shape) > 1 for t in (*read, *node.types))


def _attrs(node: Node) -> Hashable:
    return tuple(sorted((k, v) for k, v in node.attrs.items() if k != "shape"))


def _independent(graph: Graph, groups: list[list[Node]]) -> list[list[Node]]:
    """Return the groups none of whose nodes needs another's result, directly or through groups."""
    if not groups:
        return groups
    number = {name: i for i, name in enumerate(graph.nodes)}
    for offset, group in enumerate(groups):
        for node in group:
            number[node.name] = len(graph) + offset
    edges = [(number[v.node], number[n.name]) for n in graph for v in n.inputs]
    label = connected(len(graph) + len(groups), edges, strong=True)
    cyclic = np.bincount(label) > 1
    looped = {a for a, b in edges if a == b and a >= len(graph)}
    return [
        group
        for i, group in enumerate(groups, len(graph))
        if not cyclic[label[i]] and i not in looped
    ]


def _order(graph: Graph, groups: Sequence[Sequence[Node]]) -> list[str | int]:
    """Return nodes by name and groups by number, in run order and otherwise as in the graph."""
    group_of = {node.name: i for i, group in enumerate(groups) for node in group}
    items = dict.fromkeys(group_of.get(node.name, node.name) for node in graph)
    number = {item: i for i, item in enumerate(items)}
    arcs = {
        (number[group_of.get(name, name)], number[group_of.get(node.name, node.name)])
        for node in graph
        for name in (*[v.node for v in node.inputs], *([node.origin] if node.origin else []))
    }
    near = neighbours(len(items), ((a, b) for a, b in arcs if a != b))
    order = topological(*near, lambda item, step: item)
    assert len(order) == len(items)
    names = [*items]
    return [names[i] for i in order]


# -- sums ----------------------------------------------------------------------------------------


class _Term(NamedTuple):
    step: int
    at: int
    node: Node


def _terms(graph: Graph, node: Node, inner: Iterable[str]) -> list[Value]:
    """Return the values that a tree of sums adds up, in its order."""
    terms: list[Value] = []
    stack = [*reversed(node.inputs)]
    while stack:
        value = stack.pop()
        if value.node in inner:
            stack += reversed(graph[value.node].inputs)
        else:
            terms.append(value)
    return terms


# -- making nodes --------------------------------------------------------------------------------


class _Merger:
    """The new graph's nodes, as they are added."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: dict[str, Node] = {}

    def merge(self, group: Sequence[Node]) -> None:
        """Add one node for all of a group, and a slice of its output for each."""
        first = group[0]
        stem = self._fresh(f"{first.name}_x{len(group)}")
        inputs = tuple(
            [
                self._joined(first, f"{stem}_in{i}", [n.inputs[i] for n in group])
                if i in _rowwise(first)
                else v
                for i, v in enumerate(first.inputs)
            ]
        )
        rows = [n.types[0].shape[0] for n in group]
        attrs = dict(first.attrs)
        if "shape" in attrs:
            attrs["shape"] = (sum(rows), *attrs["shape"][1:])
        whole = self._add(first, stem, first.op, inputs, attrs)
        begin = 0
        for node, count in zip(group, rows, strict=True):
            part = {"axis": 0, "begin": begin, "end": begin + count}
            self._add(node, node.name, "slice_axis", (whole,), part, node.tags)
            begin += count

    def sum(self, node: Node, terms: Sequence[Value], home: KeepApart) -> None:
        """Add a sum of these terms under the node's name, with products of time steps merged.

        A product stays where its parts were, which may not be where the sum is.
        """
        kinds: dict[Hashable, list[_Term]] = {}
        for at, value in enumerate(terms):
            maker = self.graph[value.node]
            key: Hashable = at
            step = _step(self.graph, maker)
            if _summed(maker) and step is not None:
                key = maker.op, _attrs(maker), _rest(self.graph, maker), home(maker)
            kinds.setdefault(key, []).append(_Term(step or 0, at, maker))
        if all(len(equal) == 1 for equal in kinds.values()):
            self._keep(node, terms)
            return
        parts: list[Value] = []
        for equal in kinds.values():
            if len(equal) == 1:
                parts.append(terms[equal[0].at])
                continue
            makers = [term.node for term in sorted(equal, key=lambda t: t[:2])]
            name = node.name if len(kinds) == 1 else self._fresh(f"{node.name}_part")
            inputs = tuple(
                [
                    self._joined(
                        makers[0], self._fresh(f"{name}_in{i}"), [m.inputs[i] for m in makers]
                    )
                    for i in _summed(makers[0])
                ]
            )
            parts.append(self._add(makers[0], name, makers[0].op, inputs, makers[0].attrs))
        total = parts[0]
        for more in parts[1:]:
            last = more is parts[-1]
            name = node.name if last else self._fresh(f"{node.name}_sum")
            total = self._add(node, name, SUM, (total, more), {})

    def _keep(self, node: Node, terms: Sequence[Value]) -> None:
        """Add the sum unchanged."""
        stack = [node]
        sums = [node]
        known = set(terms)
        while stack:
            for value in stack.pop().inputs:
                if value not in known and value.node not in self.nodes:
                    stack.append(self.graph[value.node])
                    sums.append(self.graph[value.node])
        for part in reversed(sums):
            self.nodes[part.name] = part

    def _joined(self, like: Node, name: str, values: Sequence[Value]) -> Value:
        return self._add(like, name, "Concat", tuple(values), {"dim": 0})

    def _add(
        self,
        like: Node,
        name: str,
        op: str,
        inputs: tuple[Value, ...],
        given: Mapping[str, Any],
        tags: Mapping[str, str] | None = None,
    ) -> Value:
        """Add a node that is placed where `like` is."""
        if tags is None:
            mark = {} if like.origin else {MERGED_FROM: home_of(like)}
            tags = MappingProxyType({**like.tags, **mark})
        types = [self.nodes[v.node].types[v.index] for v in inputs]
        self.nodes[name] = typed_node(name, op, inputs, types, given, tags, like.origin)
        return Value(name)

    def _fresh(self, stem: str) -> str:
        name, count = stem, 1
        while name in self.nodes or name in self.graph.nodes:
            name, count = f"{stem}_{count}", count + 1
        return name


def _rest(graph: Graph, node: Node) -> Hashable:
    return tuple([(t.shape[1:], t.dtype) for t in graph.types_of(node.inputs)])


def _pruned(graph: Graph, nodes: Mapping[str, Node]) -> Graph:
    """Return the nodes without products that are part of larger ones now; all others stay."""
    new = len(nodes) != len(graph) or any(map(is_not, nodes.values(), graph))
    needed = {v.node for v in graph.outputs}
    kept: list[Node] = []
    for node in reversed([*nodes.values()]):
        spare = bool(_summed(node)) and node.name not in needed
        if not spare:
            needed.update(v.node for v in node.inputs)
            kept.append(node)
    if not new and len(kept) == len(graph):
        return graph
    return Graph.of(reversed(kept), graph.outputs)
