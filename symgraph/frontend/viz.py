"""Pictures of symbols: a table of layers, and a drawing of the graph (MXNet's `mx.viz`)."""

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
    """Print a table of operators and the number of parameters (`mx.viz.print_summary`).

    A parameter counts once, in the row of the first operator that reads it. In an unrolled network
    MXNet counts it for every time step.

    Args:
        symbol: the network.
        shape: shapes of inputs by name; these inputs are not parameters. Without it, shapes and
            parameters that cannot be inferred are left out.
        line_length: characters per line.
        positions: ends of the columns, in characters or as shares of line_length.
    """
    print(summary(symbol, shape, line_length, positions), end="")


def summary(
    symbol: Symbol,
    shape: Mapping[str, Shape] | None = None,
    line_length: int = 120,
    positions: Sequence[float] = (0.44, 0.64, 0.74, 1.0),
) -> str:
    """Return the text that `print_summary` prints."""
    ends = [int(p * line_length) if positions[-1] <= 1 else int(p) for p in positions]
    nodes = walk(symbol.entries)
    shapes = _shapes(symbol, shape)
    input_names = set(shape or ())
    counted: set[str] = set()
    unknown = 0
    total = 0
    lines = ["_" * line_length, _row(COLUMNS, ends), "=" * line_length]
    for node in nodes:
        inputs = [e.node for e in node.inputs]
        parameters = 0
        for variable in inputs:
            if variable.op is None and _is_parameter(variable, input_names, counted):
                counted.add(variable.name)
                unknown += variable.name not in shapes
                parameters += math.prod(shapes.get(variable.name, (0,)))
        total += parameters
        if node.op is None and node.name not in input_names:
            continue
        kind = "null" if node.op is None else node.op.name
        previous = [n.name for n in inputs if n.op or n.name in input_names]
        size = "x".join(str(n) for n in shapes.get(node.outputs[0], ())[1:])
        lines.append(
            _row((f"{node.name}({kind})", size, parameters, previous[0] if previous else ""), ends)
        )
        lines += [_row(("", "", "", name), ends) for name in previous[1:]]
        lines.append("_" * line_length)
    lines[-1] = "=" * line_length
    hint = f" and {unknown} inputs of unknown shape: pass shape" if unknown else ""
    return "\n".join([*lines, f"Total params: {total}{hint}", "_" * line_length]) + "\n"


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
    """Draw the network with one box per operator (`mx.viz.plot_network`).

    Colors show kinds of operators. With group2ctx or a plan they show devices, and thick arrows
    show messages between devices.

    Args:
        symbol: the network.
        title: title, and default file name.
        save_format: format that `render` writes: dot, svg, or any that the program `dot` writes.
        shape: shapes of inputs by name, to write sizes on the arrows.
        dtype: dtypes of inputs by name.
        node_attrs: Graphviz attributes of all boxes.
        hide_weights: whether parameters are left out.
        group2ctx: devices by ctx_group; requires shape.
        plan: a plan of the runtime, instead of group2ctx.

    Returns:
        A picture with its DOT text as `source`, and methods `svg()` and `render(filename)`.
    """
    return load("network_picture").picture(
        symbol, title, save_format, shape, dtype, node_attrs or {}, hide_weights, group2ctx, plan
    )


def _shapes(symbol: Symbol, shape: Mapping[str, Shape] | None) -> dict[str, Shape]:
    """Return the known shapes of all outputs of all nodes, by name."""
    internals = symbol.get_internals()
    names = internals.list_outputs()
    known = symbol.list_inputs()
    for name in shape or ():
        if name not in known:
            raise GraphError(f"shape: no input {name!r}; known: {', '.join(known)}")
    output_shapes = (
        internals.infer_shape(**shape)[1] if shape else internals.infer_shape_partial()[1]
    )
    return {name: s for name, s in zip(names, output_shapes, strict=True) if s and 0 not in s}


def _is_parameter(variable: SymNode, input_names: set[str], counted: set[str]) -> bool:
    """Whether a variable is a parameter that is not counted yet; labels and data are none."""
    name = variable.name
    return name not in input_names and name not in counted and not name.endswith("label")


def _row(fields: Sequence[object], ends: Sequence[int]) -> str:
    """Format fields in columns; cut off what does not fit."""
    line = ""
    for field, end in zip(fields, ends, strict=True):
        line = f"{line}{field}"[:end].ljust(end)
    return line
