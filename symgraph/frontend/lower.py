"""Lowering: from a symbol to a typed graph, the first arrow of the flow."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from symgraph.core.graph import Graph, Node
from symgraph.core.params import Site, parse_params
from symgraph.core.registry import VARIABLE, find, infer
from symgraph.core.tags import canonical
from symgraph.core.types import Shape, TensorType, Value
from symgraph.frontend.infer import infer_dtypes, infer_shapes
from symgraph.frontend.symnode import Outputs, SymNode


def lower(
    symbol: Outputs, shapes: Mapping[str, Any], dtypes: Mapping[str, Any] | None = None
) -> Graph:
    """The symbol as a graph whose every type is known; its outputs in the symbol's order.

    shapes and dtypes: of variables; the others are inferred. Node names are the symbol's; when
    two operators share one, the later is called `<name>_1`, `<name>_2`, ... Raises ShapeError,
    DTypeError or GraphError.
    """
    found = infer_shapes(symbol, shapes)
    found.require_complete()
    kinds = infer_dtypes(symbol, dtypes or {})
    nodes: dict[str, Node] = {}
    named: dict[int, str] = {}
    taken = set(found.variables)
    for sym_node in found.nodes:
        if sym_node.op is None:
            name = sym_node.name
            type_ = TensorType(found.variables[name], kinds.variables[name])
            tags = MappingProxyType(canonical(sym_node.attrs))
            nodes[name] = Node(name, VARIABLE, types=(type_,), tags=tags)
        else:
            name = _free(sym_node.name, taken)
            _lower_call(sym_node, name, found.values[id(sym_node), 0], named, nodes, taken)
        named[id(sym_node)] = name
    return Graph.of(nodes.values(), [Value(named[id(e.node)], e.port) for e in symbol.entries])


def _free(name: str, taken: set[str]) -> str:
    """The name, or the first of `<name>_1`, ... that is not taken; it is taken from now on."""
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
    named: dict[int, str],
    nodes: dict[str, Node],
    taken: set[str],
) -> None:
    op = sym_node.op
    assert op is not None
    attrs = dict(sym_node.params)
    if not sym_node.inputs and 0 in attrs.get("shape", ()):
        attrs.update(_settled(Site(op.name, name, attrs), shape))
    if op.random:
        attrs["stream"] = name
    tags = MappingProxyType(canonical(sym_node.attrs))
    inputs = [Value(named[id(e.node)], e.port) for e in sym_node.inputs]
    by_name = dict(zip(sym_node.input_names, inputs, strict=True))
    for arg, helper, given, reads in op.hidden(attrs) if op.hidden else ():
        read = tuple(by_name[r] for r in reads)
        helper_name = _free(f"{name}_{arg}", taken)
        inputs.append(_add(helper_name, helper, given, read, tags, nodes))
    _add(name, op.name, attrs, tuple(inputs), tags, nodes)


def _settled(site: Site, shape: Shape) -> dict[str, Any]:
    """The parameters of a value without inputs whose `shape` holds a 0: the batch's axis."""
    wanted = site.attrs["shape"]
    if wanted.count(0) > 1:
        site.fail(
            f"shape={wanted} has several unknown dimensions, but only the batch's may be left out; "
            "use zeros_like or ones_like of a value of that shape, or a cell's begin_state"
        )
    return {"shape": shape, "axis": wanted.index(0)}


def _add(
    name: str,
    op_name: str,
    given: Mapping[str, Any],
    inputs: tuple[Value, ...],
    tags: Mapping[str, str],
    nodes: dict[str, Node],
) -> Value:
    op = find(op_name)
    site = Site(op.name, name, parse_params(op.name, name, op.params, given))
    types = infer(op, site, [nodes[v.node].types[v.index] for v in inputs])
    nodes[name] = Node(name, op.name, inputs, site.attrs, types, None, tags)
    return Value(name)
