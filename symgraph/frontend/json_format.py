"""Symbols as JSON, in MXNet 1.x's layout, and as a readable listing."""

from __future__ import annotations

import json
from typing import Any

from symgraph.core.errors import GraphError, nearest
from symgraph.core.params import parse_params
from symgraph.core.registry import ALIASES, OPS, find
from symgraph.core.tags import canonical, hide, inherited
from symgraph.frontend.symnode import Entry, Outputs, SymNode, walk

VERSION = ["int", 10901]  # the MXNet release whose layout this is
OLD_KEYS = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage")


def attr_strings(node: SymNode) -> dict[str, str]:
    """Parameters that differ from their defaults, and the user's attributes, as strings."""
    shown = {}
    if node.op is not None:
        for key, param in node.op.params.items():
            if node.params[key] != param.default:
                shown[key] = str(node.params[key])
    return shown | dict(node.attrs)


def dumps(symbol: Outputs) -> str:
    """The symbol as JSON text; equal symbols give equal text."""
    nodes = walk(symbol.entries)
    index = {id(n): i for i, n in enumerate(nodes)}
    rows: list[dict[str, Any]] = []
    for node in nodes:
        row: dict[str, Any] = {"op": node.op.name if node.op else "null", "name": node.name}
        attrs = attr_strings(node)
        if attrs:
            row["attrs"] = attrs
        row["inputs"] = [[index[id(e.node)], e.port, 0] for e in node.inputs]
        rows.append(row)
    starts = [0]
    for node in nodes:
        starts.append(starts[-1] + (len(node.op.output_names(node.params)) if node.op else 1))
    layout = {
        "nodes": rows,
        "arg_nodes": [i for i, n in enumerate(nodes) if n.op is None],
        "node_row_ptr": starts,
        "heads": [[index[id(e.node)], e.port, 0] for e in symbol.entries],
        "attrs": {"mxnet_version": VERSION},
    }
    return json.dumps(layout, indent=2)


def loads(text: str) -> list[Entry]:
    """The outputs of a symbol from its JSON text, of MXNet 0.8 or later.

    An operator, or a value of a parameter, that is not known raises GraphError naming it and its
    node.
    """
    try:
        layout = json.loads(text)
        rows, heads = layout["nodes"], layout["heads"]
        named = _named_attributes(rows)
        made: list[SymNode] = []
        for i, row in enumerate(rows):
            inputs = [_entry(made, row["name"], *entry) for entry in row["inputs"]]
            made.append(_node(row, inputs, named.get(i, {})))
        return [_entry(made, "heads", *entry) for entry in heads]
    except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
        raise GraphError(f"not a symbol in JSON: {type(error).__name__}: {error}") from error


def _entry(made: list[SymNode], reader: str, number: int, port: int = 0, *_: int) -> Entry:
    """An output of an earlier node; GraphError if there is none."""
    if not 0 <= number < len(made):
        raise GraphError(
            f"{reader!r} reads node {number}, but {len(made)} nodes come before it: not a symbol "
            "in JSON, whose nodes are in order"
        )
    node = made[number]
    if not 0 <= port < len(node.outputs):
        raise GraphError(
            f"{reader!r} reads output {port} of {node.name!r}, which has {len(node.outputs)}"
        )
    return Entry(node, port)


def _node(row: dict[str, Any], inputs: list[Entry], more: dict[str, str]) -> SymNode:
    """One node; `more` are attributes that another node has for it."""
    name = row["name"]
    named = _by_input(row)
    given = {k: v for k, v in _given(row).items() if k not in named}
    if row["op"] == "null":
        return SymNode(name, None, canonical({**given, **more}))
    if row["op"] not in OPS and row["op"] not in ALIASES:
        known = nearest(row["op"], [*OPS, *ALIASES])
        raise GraphError(f"node {name!r} is a {row['op']!r}, which is not supported; {known}")
    op = find(row["op"])
    own = {k: v for k, v in given.items() if k in op.params or not hide(k).startswith("__")}
    params = parse_params(op.name, name, op.params, own)
    attrs = canonical({k: v for k, v in given.items() if k not in own})
    names = op.input_names(params)
    if len(inputs) > len(names):
        raise GraphError(f"{op.name} {name!r} takes {len(names)} inputs, {len(inputs)} are given")
    for arg in names[len(inputs) :]:  # MXNet 0.x leaves auxiliary states out
        inputs = [*inputs, Entry(SymNode(f"{name}_{arg}", None, inherited(attrs)))]
    return SymNode(name, op, attrs, params, tuple(inputs))


def _given(row: dict[str, Any]) -> dict[str, str]:
    """Parameters and attributes, which MXNet 0.x wrote as `param` and `attr`."""
    return {**row.get("param", {}), **row.get("attr", {}), **row.get("attrs", {})}


def _by_input(row: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """`weight_lr_mult`, MXNet 0.x' way of giving the input `weight` an attribute, in two."""
    if "attrs" in row:
        return {}
    return {
        key: (key.removesuffix(f"_{hidden}"), hidden)
        for key in _given(row)
        for hidden in OLD_KEYS
        if key.endswith(f"_{hidden}")
    }


def _named_attributes(rows: list[dict[str, Any]]) -> dict[int, dict[str, str]]:
    """Number of a node -> the attributes that those it is an input of have for it by name."""
    found: dict[int, dict[str, str]] = {}
    for row in rows:
        named = _by_input(row)
        if not named or row["op"] == "null":
            continue
        names = _node(row, [], {}).input_names
        for key, (arg, hidden) in named.items():
            if arg in names:
                node = row["inputs"][names.index(arg)][0]
                found.setdefault(node, {})[hidden] = _given(row)[key]
    return found


def listing(symbol: Outputs) -> str:
    """One line a node, in run order."""
    lines = [f"outputs: {', '.join(symbol.list_outputs())}"]
    for node in walk(symbol.entries):
        shown = {k.strip("_"): v for k, v in attr_strings(node).items()}
        attrs = ", ".join(f"{k}={v}" for k, v in shown.items())
        if node.op is None:
            lines.append(f"variable {node.name}" + (f"  [{attrs}]" if attrs else ""))
        else:
            inputs = ", ".join(e.node.outputs[e.port] for e in node.inputs)
            lines.append(
                f"{node.op.name} {node.name}({inputs})" + (f"  [{attrs}]" if attrs else "")
            )
    return "\n".join(lines)
