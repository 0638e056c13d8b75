"""The graph builder: adds typed nodes one call at a time, as gradient rules and passes do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from symgraph.core.graph import Graph, Node
from symgraph.core.params import parse_params
from symgraph.core.registry import VARIABLE, Site, find, infer
from symgraph.core.types import TensorType, Value


class Builder:
    """A graph under construction; names it gives are deterministic and unique."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes: dict[str, Node] = {n.name: n for n in nodes}
        self._counts: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """`stem0`, `stem1`, ... whichever is free next."""
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
        """A handle on a value; nodes applied to it serve `origin`."""
        return Ref(self, value, origin)

    def call(
        self, op: str, inputs: tuple[Value, ...], given: dict[str, Any], name: str, origin: str
    ) -> Node:
        """Add one gradient node that serves `origin`."""
        opdef = find(op)
        site = Site(op, name, parse_params(op, name, opdef.params, given))
        ins = [self.nodes[v.node].types[v.index] for v in inputs]
        types = infer(opdef, site, ins)
        return self.add(Node(name, op, inputs, site.attrs, types, origin))

    def replace(self, name: str, **attrs: Any) -> None:
        """Change some attributes of a node that is there."""
        old = self.nodes[name]
        changed = MappingProxyType({**old.attrs, **attrs})
        self.nodes[name] = Node(
            old.name, old.op, old.inputs, changed, old.types, old.origin, old.tags
        )

    def graph(self, outputs: Iterable[Value]) -> Graph:
        return Graph.of(self.nodes.values(), outputs)


@dataclass(frozen=True, slots=True)
class Ref:
    """A value in a builder, with arithmetic, for gradient rules."""

    builder: Builder
    value: Value
    origin: str | None = None

    @property
    def type(self) -> TensorType:
        return self.builder.nodes[self.value.node].types[self.value.index]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    def __add__(self, other: Ref | float) -> Ref:
        return _arith("elemwise_add", "_plus_scalar", self, other)

    def __sub__(self, other: Ref | float) -> Ref:
        return _arith("elemwise_sub", "_minus_scalar", self, other)

    def __mul__(self, other: Ref | float) -> Ref:
        return _arith("elemwise_mul", "_mul_scalar", self, other)

    def __truediv__(self, other: Ref | float) -> Ref:
        return _arith("elemwise_div", "_div_scalar", self, other)

    def __rsub__(self, other: float) -> Ref:
        return apply("_rminus_scalar", self, scalar=other)

    def __neg__(self) -> Ref:
        return self * -1.0


def _arith(op: str, scalar_op: str, left: Ref, right: Ref | float) -> Ref:
    if isinstance(right, Ref):
        return apply(op, left, right)
    return apply(scalar_op, left, scalar=float(right))


def apply_all(op: str, *refs: Ref, **attrs: Any) -> tuple[Ref, ...]:
    """Add a node that serves the refs' origin; handles on all its outputs."""
    builder = refs[0].builder
    origin = next(r.origin for r in refs if r.origin is not None)
    name = builder.fresh(f"{origin}_grad")
    node = builder.call(op, tuple(r.value for r in refs), attrs, name, origin)
    return tuple(Ref(builder, Value(name, i), origin) for i in range(len(node.types)))


def apply(op: str, *refs: Ref, **attrs: Any) -> Ref:
    """`apply_all` for operators with one output that matters."""
    return apply_all(op, *refs, **attrs)[0]


def forward_node(
    name: str,
    op: str,
    inputs: tuple[Value, ...],
    in_types: Sequence[TensorType],
    tags: Mapping[str, str],
    given: Mapping[str, Any],
) -> Node:
    """A typed forward node, for rewrites of forward graphs."""
    opdef = find(op)
    counted = {opdef.variadic: len(inputs)} if opdef.variadic else {}
    site = Site(op, name, parse_params(op, name, opdef.params, {**given, **counted}))
    return Node(name, op, inputs, site.attrs, infer(opdef, site, in_types), None, tags)
