"""The graph: nodes in run order, always typed, always checked, keyed by deterministic names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any

from symgraph.core.errors import GraphError, nearest
from symgraph.core.html import MOST, paragraph, table, together
from symgraph.core.params import Site
from symgraph.core.registry import VARIABLE, find, infer
from symgraph.core.types import TensorType, Value
from symgraph.core.units import count_text

NOTHING: Mapping[str, Any] = MappingProxyType({})


def nothing() -> Mapping[str, Any]:
    """Return an empty read-only mapping, the same one for all: most nodes have some."""
    return NOTHING


@dataclass(frozen=True, slots=True)
class Node:
    """One call of an operator, or a variable (op == "variable")."""

    name: str
    op: str
    inputs: tuple[Value, ...] = ()
    #: The operator's parameters.
    attrs: Mapping[str, Any] = field(default_factory=nothing)
    #: The type of each output.
    types: tuple[TensorType, ...] = ()
    #: The forward node that a gradient node serves; None for a forward node.
    origin: str | None = None
    #: User attributes under their stored keys (`__ctx_group__`, ...); see tags.lookup.
    tags: Mapping[str, str] = field(default_factory=nothing)
    # The input types for which `types` proved right: passes check a node many times.
    _checked: list[tuple[TensorType, ...]] = field(
        init=False, default_factory=list, compare=False, repr=False
    )

    def reading(self, inputs: tuple[Value, ...], origin: str | None) -> Node:
        """Return the same call of other inputs, which have the same types."""
        node = Node(self.name, self.op, inputs, self.attrs, self.types, origin, self.tags)
        object.__setattr__(node, "_checked", self._checked)  # large graphs are cut many times
        return node

    @property
    def site(self) -> Site:
        return Site(self.op, self.name, self.attrs)

    @property
    def is_variable(self) -> bool:
        return self.op == VARIABLE

    def __str__(self) -> str:
        attrs = ", ".join(f"{k}={v!r}" for k, v in sorted(self.attrs.items()))
        inputs = ", ".join(map(str, self.inputs))
        types = " ".join(map(str, self.types))
        origin = f"  <- {self.origin}" if self.origin else ""
        return f"{self.name} = {self.op}({inputs}{'; ' + attrs if attrs else ''}) : {types}{origin}"


@dataclass(frozen=True, repr=False)
class Graph:
    """Nodes in run order, and the outputs. Make one with `Graph.of`, which checks it."""

    nodes: Mapping[str, Node]
    outputs: tuple[Value, ...]
    _digest: list[str] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def of(cls, nodes: Iterable[Node], outputs: Iterable[Value]) -> Graph:
        """Check and return a graph; GraphError for duplicate names, unknown inputs, wrong types."""
        table: dict[str, Node] = {}
        for node in nodes:
            if node.name in table:
                raise GraphError(f"two nodes are named {node.name!r}")
            _check(node, table)
            table[node.name] = node
        graph = cls(MappingProxyType(table), tuple(outputs))
        for value in graph.outputs:
            _look_up(table, value, None)
        return graph

    def __repr__(self) -> str:
        variables = sum(node.is_variable for node in self)
        gradients = sum(node.origin is not None for node in self)
        calls = len(self.nodes) - variables - gradients
        return (
            f"<Graph: {count_text(variables, 'variable')}, {count_text(calls, 'operator')}, "
            f"{count_text(gradients, 'gradient node')}, {count_text(len(self.outputs), 'output')}>"
        )

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def __len__(self) -> int:
        return len(self.nodes)

    def type_of(self, value: Value) -> TensorType:
        return self.nodes[value.node].types[value.index]

    def types_of(self, values: Iterable[Value]) -> list[TensorType]:
        return [self.type_of(v) for v in values]

    @property
    def variables(self) -> list[Node]:
        """The nodes that are fed, in run order."""
        return [n for n in self if n.is_variable]

    def users(self) -> dict[Value, list[str]]:
        """Map each value that is read to the names of its readers, in run order, each once."""
        readers: dict[Value, list[str]] = {}
        for node in self:
            for value in dict.fromkeys(node.inputs):
                readers.setdefault(value, []).append(node.name)
        return readers

    @property
    def digest(self) -> str:
        """The hash of everything that ranks must agree on; equal graphs have equal digests."""
        if not self._digest:
            text = hashlib.sha256()
            for node in self:
                text.update(f"{node}|{sorted(node.tags.items())}\n".encode())
            text.update(repr(self.outputs).encode())
            self._digest.append(text.hexdigest())
        return self._digest[0]

    def _repr_html_(self) -> str:
        """Return the nodes as a table, for notebooks."""
        head = ("node", "operator", "inputs", "types")
        rows = [
            (n.name, n.op, ", ".join(map(str, n.inputs)), ", ".join(map(str, n.types)))
            for n in islice(self, MOST)
        ]
        more = [f"... {len(self.nodes) - MOST:,} more"] if len(self.nodes) > MOST else []
        return together(paragraph([repr(self)]), table([head, *rows]), paragraph(more))

    def __str__(self) -> str:
        lines = [str(n) for n in self]
        return "\n".join([*lines, "outputs: " + ", ".join(map(str, self.outputs))])


def prune(graph: Graph, outputs: Iterable[Value]) -> Graph:
    """Return the part of a graph that these outputs need, with the origins of gradient nodes."""
    outputs = list(outputs)
    needed = {v.node for v in outputs}
    for node in reversed(list(graph)):  # readers come before producers
        if node.name in needed:
            needed.update(v.node for v in node.inputs)
            if node.origin is not None:
                needed.add(node.origin)
    return Graph.of((n for n in graph if n.name in needed), outputs)


def _look_up(table: Mapping[str, Node], value: Value, reader: Node | None) -> TensorType:
    """Return the type of a value that a node, or the list of outputs, reads."""
    node = table.get(value.node)
    if node is not None and 0 <= value.index < len(node.types):
        return node.types[value.index]
    who = f"{reader.op} {reader.name!r}" if reader else "the list of outputs"
    if node is None:
        raise GraphError(f"{who} reads {value.node!r}, which no earlier node makes")
    raise GraphError(
        f"{who} reads output {value.index} of {value.node!r}, which has {len(node.types)}"
    )


def _check(node: Node, table: Mapping[str, Node]) -> None:
    if node.origin is not None and node.origin not in table:
        known = nearest(node.origin, table)
        raise GraphError(f"{node.name!r} serves {node.origin!r}, which is no node; {known}")
    if node.is_variable:
        if len(node.types) != 1 or node.inputs:
            raise GraphError(f"variable {node.name!r} has one type and no inputs")
        return
    ins = tuple([_look_up(table, v, node) for v in node.inputs])
    if node._checked == [ins]:
        return
    op = find(node.op)
    least = len(op.input_names(node.attrs))
    if len(ins) < least:
        raise GraphError(f"{node.op} {node.name!r} takes {least} inputs, not {len(ins)}")
    types = infer(op, node.site, ins)
    if types != node.types:
        raise GraphError(f"{node.op} {node.name!r} gives {types}, not {node.types}")
    node._checked[:] = [ins]
