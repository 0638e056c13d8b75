"""Symbols as text: MXNet 1.x's JSON layout, and a readable listing."""

from __future__ import annotations

import json
from typing import Any

from symgraph.core.errors import GraphError, nearest
from symgraph.core.params import MAX_PARTS, Attrs, parse_params
from symgraph.core.reading import reading
from symgraph.core.registry import ALIASES, OPS, OpDef, find
from symgraph.core.tags import canonical, hide, inherited
from symgraph.frontend.symnode import Entry, Outputs, SymNode, require_unique_variables, walk

VERSION = ["int", 10901]  # the MXNet release whose layout this is
OLD_KEYS = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage")


def attr_strings(node: SymNode) -> dict[str, str]:
    """Return a node's non-default parameters and its attributes, all as strings."""
    changed: dict[str, str] = {}
    if node.op is not None:
        for key, param in node.op.params.items():
            value = node.params[key]
            if value != param.default:
                changed |= dict(value) if param.gathers else {key: str(value)}
    return changed | dict(node.attrs)


def dumps(symbol: Outputs) -> str:
    """Write a symbol as JSON; equal symbols give equal text."""
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
    """Read the outputs of a symbol from JSON written by this module or by MXNet 0.8 or later.

    Raises GraphError for anything else. The message names the node and, if it is the cause, its
    unknown operator or parameter.
    """
    with reading("", "symbol in JSON", GraphError):
        layout = json.loads(text)
        rows, heads = layout["nodes"], layout["heads"]
        if layout.get("attrs", {}).get("mxnet_version", ["int", 800])[1] < 905:
            _read_old_axes(rows)
        extra_attrs = _attributes_by_input(rows)
        nodes: list[SymNode] = []
        outputs_left = MAX_PARTS + len(text)
        for i, row in enumerate(rows):
            inputs = [_entry(nodes, row["name"], *entry) for entry in row["inputs"]]
            nodes.append(_node(row, inputs, extra_attrs.get(i, {})))
            outputs_left -= len(nodes[-1].outputs)
            if outputs_left < 0:
                raise GraphError(f"the nodes up to {row['name']!r} have too many outputs")
        entries = [_entry(nodes, "heads", *entry) for entry in heads]
        if not entries:
            raise GraphError("it has no heads")
        require_unique_variables(walk(entries))
    return entries


def _entry(nodes: list[SymNode], reader: str, number: int, port: int = 0, *_: int) -> Entry:
    """Look up an output of an earlier node; GraphError if there is none."""
    if type(number) is not int or not 0 <= number < len(nodes):
        raise GraphError(
            f"{reader!r} reads node {number!r}, but {len(nodes)} nodes come before it: not a "
            "symbol in JSON, whose nodes are in order"
        )
    node = nodes[number]
    if type(port) is not int or not 0 <= port < len(node.outputs):
        raise GraphError(
            f"{reader!r} reads output {port!r} of {node.name!r}, which has {len(node.outputs)}"
        )
    return Entry(node, port)


def _node(row: dict[str, Any], inputs: list[Entry], extra_attrs: dict[str, str]) -> SymNode:
    """Make the node of a row; extra_attrs are attributes that another row states for it."""
    name = row["name"]
    if not isinstance(name, str):
        raise GraphError(f"a node's name must be a string, not {name!r}")
    if row["op"] == "null":
        return SymNode(name, None, canonical({**_own_strings(row), **extra_attrs}))
    op, params, attrs = _operator(row)
    if op.variadic and params[op.variadic] != len(inputs):
        raise GraphError(
            f"{op.name} {name!r}: {op.variadic}={params[op.variadic]}, but it has "
            f"{len(inputs)} inputs"
        )
    names = op.input_names(params)
    if len(inputs) > len(names):
        raise GraphError(
            f"{op.name} {name!r} takes {len(names)} inputs, but {len(inputs)} are given"
        )
    for arg in names[len(inputs) :]:  # MXNet 0.x leaves auxiliary states out
        inputs = [*inputs, Entry(SymNode(f"{name}_{arg}", None, inherited(attrs)))]
    return SymNode(name, op, attrs, params, tuple(inputs))


def _operator(row: dict[str, Any]) -> tuple[OpDef, Attrs, dict[str, str]]:
    """Return the operator of a row with its parsed parameters and its attributes."""
    name = row["name"]
    if row["op"] not in OPS and row["op"] not in ALIASES:
        known = nearest(row["op"], [*OPS, *ALIASES])
        raise GraphError(f"node {name!r} is a {row['op']!r}, which is not supported; {known}")
    op = find(row["op"])
    strings = _own_strings(row)
    texts = {k: v for k, v in strings.items() if k in op.params or not hide(k).startswith("__")}
    params = parse_params(op.name, name, op.params, texts)
    return op, params, canonical({k: v for k, v in strings.items() if k not in texts})


def _strings(row: dict[str, Any]) -> dict[str, str]:
    """Collect parameters and attributes, which MXNet 0.x wrote as `param` and `attr`."""
    return {**row.get("param", {}), **row.get("attr", {}), **row.get("attrs", {})}


def _read_old_axes(rows: list[dict[str, Any]]) -> None:
    """Leave out an axis of -1 of argmax, which was all axes before MXNet 0.9.5."""
    for row in rows:
        if row["op"] in ("argmax", "argmin"):
            for table in (row.get(key, {}) for key in ("param", "attr", "attrs")):
                if table.get("axis") == "-1":
                    del table["axis"]


def _own_strings(row: dict[str, Any]) -> dict[str, str]:
    """Collect the strings of a row, except attributes of its inputs."""
    by_input = _input_keys(row)
    return {k: v for k, v in _strings(row).items() if k not in by_input}


def _input_keys(row: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Split keys such as `weight_lr_mult`, MXNet 0.x's attribute of the input `weight`."""
    if "attrs" in row:
        return {}
    return {
        key: (key.removesuffix(f"_{hidden}"), hidden)
        for key in _strings(row)
        for hidden in OLD_KEYS
        if key.endswith(f"_{hidden}")
    }


def _attributes_by_input(rows: list[dict[str, Any]]) -> dict[int, dict[str, str]]:
    """Map node numbers to the attributes that the rows which read these nodes state for them."""
    extra_attrs: dict[int, dict[str, str]] = {}
    for row in rows:
        input_keys = _input_keys(row)
        if not input_keys or row["op"] == "null":
            continue
        op, params, _ = _operator(row)
        names = op.input_names(params)
        for key, (arg, hidden) in input_keys.items():
            if arg in names:
                node = row["inputs"][names.index(arg)][0]
                extra_attrs.setdefault(node, {})[hidden] = _strings(row)[key]
    return extra_attrs


def listing(symbol: Outputs) -> str:
    """Describe a symbol with one line per node, in run order."""
    lines = [f"outputs: {', '.join(symbol.list_outputs())}"]
    for node in walk(symbol.entries):
        strings = {k.strip("_"): v for k, v in attr_strings(node).items()}
        attrs = ", ".join(f"{k}={v}" for k, v in strings.items())
        if node.op is None:
            lines.append(f"variable {node.name}" + (f"  [{attrs}]" if attrs else ""))
        else:
            inputs = ", ".join(e.node.outputs[e.port] for e in node.inputs)
            lines.append(
                f"{node.op.name} {node.name}({inputs})" + (f"  [{attrs}]" if attrs else "")
            )
    return "\n".join(lines)
