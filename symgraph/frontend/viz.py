"""Pictures of symbols: a table of layers, and a graph (MXNet's `mx.viz`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from symgraph.core.errors import GraphError
from symgraph.core.types import Shape
from symgraph.frontend.backend import load
from symgraph.frontend.symbol import Symbol
from symgraph.frontend.symnode import SymNode, walk

COLUMNS = ("Layer (type)", "Output Shape", "Param #", "Previous Layer")


def print_summary(
    symbol: Symbol,
    shape: Mapping[str, Shape] | None = None,
    line_length: int = 120,
    positions: Sequence[float] = (0.44, 0.64, 0.74, 1.0),
) -> None:
    """Print a row for each operator, and the number of parameters (`mx.viz.print_summary`).

    shape: of inputs; they are no parameters. Without it, shapes and parameters that do not follow
    from the network are left out. A parameter counts once, in the row of the first operator that
    reads it, so in an unrolled network it is not counted for every time step (in MXNet it is).
    positions: where the columns end, in characters or as shares of line_length.
    """
    print(summary(symbol, shape, line_length, positions), end="")


def summary(
    symbol: Symbol,
    shape: Mapping[str, Shape] | None = None,
    line_length: int = 120,
    positions: Sequence[float] = (0.44, 0.64, 0.74, 1.0),
) -> str:
    """The text that `print_summary` prints."""
    ends = [int(p * line_length) if positions[-1] <= 1 else int(p) for p in positions]
    nodes = walk(symbol.entries)
    shapes = _shapes(symbol, shape)
    given = set(shape or ())
    counted: set[str] = set()
    unknown = 0
    total = 0
    lines = ["_" * line_length, _row(COLUMNS, ends), "=" * line_length]
    for node in nodes:
        inputs = [e.node for e in node.inputs]
        own = 0
        for variable in inputs:
            if variable.op is None and _is_parameter(variable, given, counted):
                counted.add(variable.name)
                unknown += variable.name not in shapes
                own += math.prod(shapes.get(variable.name, (0,)))
        total += own
        if node.op is None and node.name not in given:
            continue
        kind = "null" if node.op is None else node.op.name
        before = [n.name for n in inputs if n.op or n.name in given]
        size = "x".join(str(n) for n in shapes.get(node.outputs[0], ())[1:])
        lines.append(_row((f"{node.name}({kind})", size, own, before[0] if before else ""), ends))
        lines += [_row(("", "", "", name), ends) for name in before[1:]]
        lines.append("_" * line_length)
    lines[-1] = "=" * line_length
    more = f" and {unknown} inputs whose shapes are not known: give shape" if unknown else ""
    return "\n".join([*lines, f"Total params: {total}{more}", "_" * line_length]) + "\n"


def plot_network(
    symbol: Symbol,
    title: str = "plot",
    save_format: str = "svg",
    shape: Mapping[str, Shape] | None = None,
    dtype: Mapping[str, Any] | None = None,
    node_attrs: Mapping[str, str] | None = None,
    hide_weights: bool = True,
    group2ctx: Any = None,
    plan: Any = None,
) -> Any:
    """A picture of the network, a box an operator (`mx.viz.plot_network`).

    shape, dtype: of inputs, to write sizes on the arrows. group2ctx, or a plan: colours are devices
    then, and thick arrows are what is sent between them (group2ctx needs shape); else colours are
    kinds of operators. node_attrs: of Graphviz, for all boxes. The picture has its DOT text as
    `source`, `svg()`, and `render(filename)`, which writes save_format: dot, svg, or what the
    program dot can write. See partitioner.views.network_picture.
    """
    return load("network_picture").picture(
        symbol, title, save_format, shape, dtype, node_attrs or {}, hide_weights, group2ctx, plan
    )


def _shapes(symbol: Symbol, shape: Mapping[str, Shape] | None) -> dict[str, Shape]:
    """The shapes of all outputs of all nodes that are known, by name."""
    internals = symbol.get_internals()
    names = internals.list_outputs()
    known = symbol.list_inputs()
    for name in shape or ():
        if name not in known:
            raise GraphError(f"shape: no input {name!r}; known: {', '.join(known)}")
    found = internals.infer_shape(**shape)[1] if shape else internals.infer_shape_partial()[1]
    return {name: s for name, s in zip(names, found, strict=True) if s and 0 not in s}


def _is_parameter(variable: SymNode, given: set[str], counted: set[str]) -> bool:
    """Whether it counts here: labels, data and what was counted do not."""
    name = variable.name
    return name not in given and name not in counted and not name.endswith("label")


def _row(fields: Sequence[object], ends: Sequence[int]) -> str:
    """Fields in columns, cut where they do not fit."""
    line = ""
    for field, end in zip(fields, ends, strict=True):
        line = f"{line}{field}"[:end].ljust(end)
    return line
