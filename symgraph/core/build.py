"""The graph builder: adds typed nodes one call at a time, as gradient rules and passes do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from symgraph.core.graph import NOTHING, Graph, Node
from symgraph.core.params import Site, parse_params
from symgraph.core.ref import Ref
from symgraph.core.registry import VARIABLE, find, infer
from symgraph.core.types import TensorType, Value


def typed_node(
    name: str,
    op_name: str,
    inputs: tuple[Value, ...],
    in_types: Sequence[TensorType],
    given: Mapping[str, Any],
    tags: Mapping[str, str] = NOTHING,
    origin: str | None = None,
) -> Node:
    """Return a node of this call, its parameters parsed and its output types inferred."""
    op = find(op_name)
    counted = {op.variadic: len(inputs)} if op.variadic else {}
    site = Site(op.name, name, parse_params(op.name, name, op.params, {**given, **counted}))
    return Node(name, op.name, inputs, site.attrs, infer(op, site, in_types), origin, tags)


class Builder:
    """A graph under construction; the names that it makes are deterministic and unique."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes: dict[str, Node] = {n.name: n for n in nodes}
        self._counts: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """Return the next free name of `stem0`, `stem1`, ..."""
        while True:
            count = self._counts.get(stem, 0)
            self._counts[stem] = count + 1
            if f"{stem}{count}" not in self.nodes:
                return f"{stem}{count}"

    def add(self, node: Node) -> Node:
        self.nodes[node.name] = node
        return node

    def variable(self, name: str, type_: TensorType, origin: str | None = None) -> Ref:
        self.add(Node(name, VARIABLE, types=(type_,), origin=origin))
        return Ref(self, Value(name), origin)

    def ref(self, value: Value, origin: str | None = None) -> Ref:
        return Ref(self, value, origin)

    def type_of(self, value: Value) -> TensorType:
        return self.nodes[value.node].types[value.index]

    def call(
        self, op: str, inputs: tuple[Value, ...], attrs: Mapping[str, Any], name: str, origin: str
    ) -> Node:
        """Add a gradient node that serves `origin`."""
        types = [self.type_of(v) for v in inputs]
        return self.add(typed_node(name, op, inputs, types, attrs, origin=origin))

    def call_for(
        self, origin: str, op: str, inputs: tuple[Value, ...], attrs: Mapping[str, Any]
    ) -> list[Value]:
        """Add a gradient node, named after the `origin` that it serves; return its outputs."""
        node = self.call(op, inputs, attrs, self.fresh(f"{origin}_grad"), origin)
        return [Value(node.name, i) for i in range(len(node.types))]

    def replace(self, name: str, **attrs: Any) -> None:
        """Change some attributes of a node of the graph."""
        old = self.nodes[name]
        changed = MappingProxyType({**old.attrs, **attrs})
        self.nodes[name] = Node(
            old.name, old.op, old.inputs, changed, old.types, old.origin, old.tags
        )

    def graph(self, outputs: Iterable[Value]) -> Graph:
        return Graph.of(self.nodes.values(), outputs)
