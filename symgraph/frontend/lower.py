"""Lowering: from a symbol to a typed graph, the first step of the flow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import Context
from types import MappingProxyType
from typing import Any

from symgraph.core.build import typed_node
from symgraph.core.graph import Graph, Node, prune
from symgraph.core.params import Site
from symgraph.core.registry import VARIABLE, OpDef, find
from symgraph.core.tags import canonical, hide
from symgraph.core.types import Shape, TensorType, Value
from symgraph.frontend.infer import Inferred, Key, infer_dtypes, infer_shapes
from symgraph.frontend.name import Names
from symgraph.frontend.symnode import Entry, Outputs, SymNode


def lower(
    symbol: Outputs, shapes: Mapping[str, Any], dtypes: Mapping[str, Any] | None = None
) -> Graph:
    """Turn a symbol into a graph in which every type is known.

    Node names and the order of outputs are the symbol's; of operators that share a name, the later
    ones are called `<name>_1`, `<name>_2`, ... A composite operator is replaced by its nodes, which
    are called `<its name>_<name>` and have its attributes.

    Args:
        symbol: the network.
        shapes: shapes of variables by name; all others are inferred.
        dtypes: dtypes of variables by name; all others are inferred.

    Raises:
        ShapeError: if shapes contradict each other or stay unknown.
        DTypeError: if dtypes contradict each other.
        GraphError: if a name is not an input, or two variables have one name.
    """
    inferred_shapes = infer_shapes(symbol, shapes)
    inferred_shapes.require_complete()
    inferred_dtypes = infer_dtypes(symbol, dtypes or {})
    lowering = _Lowering(inferred_shapes, symbol.entries)
    for node in inferred_shapes.nodes:
        if node.op is None:
            lowering.add_variable(node, inferred_dtypes.variables[node.name])
        elif node.op.expand is not None:
            lowering.add_composite(node)
        else:
            lowering.add_call(node)
    return Graph.of(lowering.nodes.values(), lowering.values_of(symbol.entries))


class _Lowering:
    """The nodes of a graph under construction, and where the symbol's outputs are among them."""

    def __init__(self, shapes: Inferred, heads: tuple[Entry, ...]) -> None:
        self.nodes: dict[str, Node] = {}
        self._shapes = shapes
        self._names = Names(shapes.variables)
        self._values: dict[Key, Value] = {}
        read = [*heads, *(e for node in shapes.nodes for e in node.inputs)]
        self._read = {(id(e.node), e.port) for e in read}

    def values_of(self, entries: Iterable[Entry]) -> tuple[Value, ...]:
        return tuple([self._values[id(e.node), e.port] for e in entries])

    def add_variable(self, node: SymNode, dtype: str) -> None:
        type_ = TensorType(self._shapes.variables[node.name], dtype)
        tags = MappingProxyType(canonical(node.attrs))
        self.nodes[node.name] = Node(node.name, VARIABLE, types=(type_,), tags=tags)
        self._values[id(node), 0] = Value(node.name)

    def add_call(self, node: SymNode) -> None:
        op = node.op
        assert op is not None
        name = self._names.take(node.name)
        attrs = dict(node.params)
        if not node.inputs and 0 in attrs.get("shape", ()):
            shape = self._shapes.values[id(node), 0]
            attrs.update(_with_batch_axis(Site(op.name, name, attrs), shape))
        if op.random:
            attrs["stream"] = name
        tags = MappingProxyType(canonical(node.attrs))
        inputs = [*self.values_of(node.inputs)]
        by_name = dict(zip(node.input_names, inputs, strict=True))
        for arg, helper, params, reads in op.hidden(attrs) if op.hidden else ():
            read = tuple(by_name[r] for r in reads)
            helper_name = self._names.take(f"{name}_{arg}")
            inputs.append(self._add(helper_name, helper, params, read, tags))
        self._add(name, op.name, attrs, tuple(inputs), tags)
        for port in range(len(node.outputs)):
            self._values[id(node), port] = Value(name, port)

    def add_composite(self, node: SymNode) -> None:
        """Add the network that the operator stands for, as far as its outputs are read."""
        op = node.op
        assert op is not None
        name = self._names.take(node.name)
        given = dict(zip(node.input_names, self.values_of(node.inputs), strict=True))
        types = {arg: self.nodes[v.node].types[v.index] for arg, v in given.items()}
        # In a context of its own, no scope that is open gives attributes or numbers of names.
        whole = Context().run(_expanded, op, Site(op.name, name, node.params), types)
        ports = [p for p in range(len(node.outputs)) if (id(node), p) in self._read]
        part = prune(whole, [whole.outputs[p] for p in ports])
        made = {Value(arg): value for arg, value in given.items()}
        outer = {k: v for k, v in canonical(node.attrs).items() if k != hide("time_step")}
        for inner in part:
            if inner.is_variable:
                continue
            inputs = tuple([made[v] for v in inner.inputs])
            values = self._stacked(inner, inputs)
            if values is None:
                inner_name = self._names.take(f"{name}_{inner.name}")
                attrs = {**inner.attrs, **({"stream": inner_name} if find(inner.op).random else {})}
                tags = MappingProxyType({**outer, **inner.tags})
                first = self._add(inner_name, inner.op, attrs, inputs, tags)
                values = [Value(first.node, i) for i in range(len(inner.types))]
            made.update({Value(inner.name, i): value for i, value in enumerate(values)})
        for port, value in zip(ports, part.outputs, strict=True):
            self._values[id(node), port] = made[value]

    def _stacked(self, split: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        """Return the values whose stack a node splits again, if it is such a node.

        So the steps of two loops, one behind the other, wait for each other and not for all.
        """
        if split.op != "SliceChannel" or not split.attrs["squeeze_axis"]:
            return None
        axis, stack = split.attrs["axis"], self.nodes[inputs[0].node]
        if stack.op != "Concat" or stack.attrs["dim"] != axis:
            return None
        parts = [self.nodes[v.node] for v in stack.inputs]
        steps = [p.inputs[0] for p in parts if p.op == "expand_dims" and p.attrs["axis"] == axis]
        return steps if len(steps) == len(parts) == len(split.types) else None

    def _add(
        self,
        name: str,
        op_name: str,
        params: Mapping[str, Any],
        inputs: tuple[Value, ...],
        tags: Mapping[str, str],
    ) -> Value:
        types = [self.nodes[v.node].types[v.index] for v in inputs]
        self.nodes[name] = typed_node(name, op_name, inputs, types, params, tags)
        return Value(name)


def _expanded(op: OpDef, site: Site, types: Mapping[str, TensorType]) -> Graph:
    """Return the graph of a composite operator, whose variables are those inputs that it reads."""
    assert op.expand is not None
    symbol = op.expand(site, list(types.values()))
    read = {name: types[name] for name in symbol.list_inputs()}
    shapes = {name: type_.shape for name, type_ in read.items()}
    return lower(symbol, shapes, {name: type_.dtype for name, type_ in read.items()})


def _with_batch_axis(site: Site, shape: Shape) -> dict[str, Any]:
    """Return the parameters of a constant whose `shape` has a 0 for the batch axis."""
    stated = site.attrs["shape"]
    if stated.count(0) > 1:
        site.fail(
            f"shape={stated} has several unknown dimensions, but only the batch may be unknown; "
            "use zeros_like or ones_like of a value of that shape, or a cell's begin_state"
        )
    return {"shape": shape, "axis": stated.index(0)}
