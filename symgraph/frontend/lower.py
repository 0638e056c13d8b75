"""Lowering: from a symbol to a typed graph, the first step of the flow."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from symgraph.core.build import typed_node
from symgraph.core.graph import Graph, Node
from symgraph.core.params import Site
from symgraph.core.registry import VARIABLE
from symgraph.core.tags import canonical
from symgraph.core.types import Shape, TensorType, Value
from symgraph.frontend.infer import infer_dtypes, infer_shapes
from symgraph.frontend.symnode import Outputs, SymNode


def lower(
    symbol: Outputs, shapes: Mapping[str, Any], dtypes: Mapping[str, Any] | None = None
) -> Graph:
    """Turn a symbol into a graph in which every type is known.

    Node names and the order of outputs are the symbol's; of operators that share a name, the later
    ones are called `<name>_1`, `<name>_2`, ...

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
    nodes: dict[str, Node] = {}
    names: dict[int, str] = {}
    taken = set(inferred_shapes.variables)
    for sym_node in inferred_shapes.nodes:
        if sym_node.op is None:
            name = sym_node.name
            type_ = TensorType(inferred_shapes.variables[name], inferred_dtypes.variables[name])
            tags = MappingProxyType(canonical(sym_node.attrs))
            nodes[name] = Node(name, VARIABLE, types=(type_,), tags=tags)
        else:
            name = _take_name(sym_node.name, taken)
            _lower_call(
                sym_node, name, inferred_shapes.values[id(sym_node), 0], names, nodes, taken
            )
        names[id(sym_node)] = name
    return Graph.of(nodes.values(), [Value(names[id(e.node)], e.port) for e in symbol.entries])


def _take_name(name: str, taken: set[str]) -> str:
    """Take the name, or the first free one of `<name>_1`, `<name>_2`, ..."""
    unique, count = name, 0
    while unique in taken:
        count += 1
        unique = f"{name}_{count}"
    taken.add(unique)
    return unique


def _lower_call(
    sym_node: SymNode,
    name: str,
    shape: Shape,
    names: dict[int, str],
    nodes: dict[str, Node],
    taken: set[str],
) -> None:
    op = sym_node.op
    assert op is not None
    attrs = dict(sym_node.params)
    if not sym_node.inputs and 0 in attrs.get("shape", ()):
        attrs.update(_with_batch_axis(Site(op.name, name, attrs), shape))
    if op.random:
        attrs["stream"] = name
    tags = MappingProxyType(canonical(sym_node.attrs))
    inputs = [Value(names[id(e.node)], e.port) for e in sym_node.inputs]
    by_name = dict(zip(sym_node.input_names, inputs, strict=True))
    for arg, helper, params, reads in op.hidden(attrs) if op.hidden else ():
        read = tuple(by_name[r] for r in reads)
        helper_name = _take_name(f"{name}_{arg}", taken)
        inputs.append(_add(helper_name, helper, params, read, tags, nodes))
    _add(name, op.name, attrs, tuple(inputs), tags, nodes)


def _with_batch_axis(site: Site, shape: Shape) -> dict[str, Any]:
    """Return the parameters of a constant whose `shape` has a 0 for the batch axis."""
    stated = site.attrs["shape"]
    if stated.count(0) > 1:
        site.fail(
            f"shape={stated} has several unknown dimensions, but only the batch may be unknown; "
            "use zeros_like or ones_like of a value of that shape, or a cell's begin_state"
        )
    return {"shape": shape, "axis": stated.index(0)}


def _add(
    name: str,
    op_name: str,
    params: Mapping[str, Any],
    inputs: tuple[Value, ...],
    tags: Mapping[str, str],
    nodes: dict[str, Node],
) -> Value:
    types = [nodes[v.node].types[v.index] for v in inputs]
    nodes[name] = typed_node(name, op_name, inputs, types, params, tags)
    return Value(name)
