"""Shape and dtype inference on symbols, forward and backward, from partial knowledge."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from typing import Any

from symgraph.core.errors import DTypeError, GraphError, ShapeError, nearest
from symgraph.core.params import LARGEST, Site, literal
from symgraph.core.registry import Partial, complete
from symgraph.core.types import DTYPES, Shape, dtype_name, is_float
from symgraph.frontend.symnode import Outputs, SymNode, require_unique_variables, walk

MAX_AXES = 64  # of numpy's arrays
Key = tuple[int, int]  # id of a SymNode, output


@dataclass(frozen=True)
class Inferred:
    """The inferred shapes or dtypes of a symbol."""

    #: All nodes, inputs first.
    nodes: list[SymNode]
    #: The shape or dtype of every output of every node.
    values: dict[Key, Any]
    #: The shape or dtype of every variable, by name; None if unknown.
    variables: dict[str, Any]

    def require_complete(self) -> None:
        """Raise ShapeError that names the arguments whose shapes are unknown."""
        missing = [n for n, s in self.variables.items() if not complete(s)]
        if missing:
            names = ", ".join(f"{n}{self.variables[n] or ''}" for n in missing[:10])
            more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
            raise ShapeError(
                f"cannot infer the shapes of {names}{more}; give them, or more input shapes"
            )
        for node in self.nodes:
            for port, name in enumerate(node.outputs):
                if not complete(self.values.get((id(node), port))):
                    raise ShapeError(f"cannot infer the shape of {name!r}")


def infer_shapes(symbol: Outputs, given: Mapping[str, Any]) -> Inferred:
    """Infer all shapes that follow from the given ones.

    Args:
        symbol: the network.
        given: shapes by variable name, with 0 for unknown dimensions.

    Raises:
        ShapeError: if shapes contradict each other.
        GraphError: if a name is not an input, or two variables have one name.
        TypeError: if a given value is not a shape.
    """
    nodes = _nodes(symbol, given)
    values: dict[Key, Any] = {}
    for node in nodes:
        if node.op is None:
            values[id(node), 0] = hinted_shape(node, given)
    calls = [n for n in nodes if n.op is not None]
    settled: set[int] = set()
    changed = True
    while changed:
        changed = False
        for sweep in (calls, reversed(calls)):
            for node in sweep:
                if id(node) not in settled and _infer_node(node, values, settled):
                    changed = True
    return _by_name(nodes, values)


def _nodes(symbol: Outputs, given: Mapping[str, Any]) -> list[SymNode]:
    nodes = walk(symbol.entries)
    known = dict.fromkeys(n.name for n in nodes if n.op is None)
    require_unique_variables(nodes)
    for key in given:
        if key not in known:
            raise GraphError(f"keyword argument name {key!r} not found; {nearest(key, known)}")
    return nodes


def _by_name(nodes: list[SymNode], values: dict[Key, Any]) -> Inferred:
    variables = {n.name: values.get((id(n), 0)) for n in nodes if n.op is None}
    return Inferred(nodes, values, variables)


def hinted_shape(node: SymNode, given: Mapping[str, Any]) -> Partial:
    """Return the given shape of a variable, or that of its attribute __shape__; None if unknown."""
    shape = given.get(node.name)
    if shape is not None:
        return shape_of(node.name, shape)
    text = node.attrs.get("__shape__")
    if text is None:
        return None
    try:
        return shape_of(node.name, literal(text))
    except TypeError:
        raise GraphError(
            f"variable {node.name!r}: its attribute __shape__ is {text!r}, not a shape"
        ) from None


def shape_of(name: str, raw: Any) -> Shape:
    """Return the shape of a variable as a tuple, with 0 for unknown; TypeError if it is not one."""
    try:
        shape = tuple(index(d) for d in raw)
    except TypeError:
        shape = (-1,)
    if any(not 0 <= d <= LARGEST for d in shape):
        raise TypeError(
            f"arguments need to be shapes (tuple), but {name!r} is {raw!r} ({type(raw).__name__}); "
            "dimensions are whole numbers, 0 for one that is not known"
        )
    return shape


def _infer_node(node: SymNode, values: dict[Key, Any], settled: set[int]) -> bool:
    """Apply the shape rule of one node; return whether it revealed anything.

    A node whose shapes were all known has been checked by its rule and is added to `settled`.
    """
    assert node.op is not None
    outputs = len(node.op.output_names(node.params))
    in_keys = [(id(e.node), e.port) for e in node.inputs]
    out_keys = [(id(node), i) for i in range(outputs)]
    before = [values.get(k) for k in (*in_keys, *out_keys)]
    if all(complete(s) for s in before):
        settled.add(id(node))
    site = Site(node.op.name, node.name, node.params)
    ins, outs = node.op.shape(site, before[: len(in_keys)], before[len(in_keys) :])
    changed = False
    for key, old, new in zip((*in_keys, *out_keys), before, (*ins, *outs), strict=True):
        if new is not None and new != old:
            if len(new) > MAX_AXES or 8 * math.prod(new) > LARGEST:
                site.fail(f"no memory holds an array of shape {tuple(new)}")
            values[key] = tuple(new)
            changed = True
    return changed


def infer_dtypes(symbol: Outputs, given: Mapping[str, Any], *, partial: bool = False) -> Inferred:
    """Infer the dtype of every value; float32 (with `partial`: None) if nothing determines it.

    Rules lead from inputs to outputs. A sweep in between takes dtypes that are known for outputs
    only back to the inputs: a recurrent state that is added to the data's projection has the data's
    dtype. Raises DTypeError for contradictions and GraphError for unknown names.
    """
    nodes = _nodes(symbol, given)
    values: dict[Key, Any] = {}
    for node in nodes:
        if node.op is None:
            hint = given.get(node.name, node.attrs.get("__dtype__"))
            values[id(node), 0] = None if hint is None else dtype_of(node.name, hint)
    calls = [n for n in nodes if n.op is not None]
    for node in calls:
        if any(d is not None for d in _input_dtypes(node, values)):
            _forward_dtypes(node, values, _input_dtypes(node, values))
    for node in reversed(calls):
        _backward_dtypes(node, values)
    for node in calls:
        ins = _input_dtypes(node, values)
        if not partial or not ins or any(d is not None for d in ins):
            _forward_dtypes(node, values, ins)
        else:
            values.update(_fixed_dtypes(node))
    for node in nodes:
        if node.op is None and values[id(node), 0] is None and not partial:
            values[id(node), 0] = "float32"
    return _by_name(nodes, values)


def undifferentiable(symbol: Outputs) -> set[str]:
    """Return the variables whose attribute __dtype__ says that no gradient flows to them."""
    hints = {n.name: n.attrs.get("__dtype__") for n in walk(symbol.entries) if n.op is None}
    return {n for n, hint in hints.items() if hint is not None and not is_float(dtype_of(n, hint))}


def _input_dtypes(node: SymNode, values: dict[Key, Any]) -> list[str | None]:
    return [values.get((id(e.node), e.port)) for e in node.inputs]


def _forward_dtypes(node: SymNode, values: dict[Key, Any], ins: Sequence[str | None]) -> None:
    assert node.op is not None
    input_dtypes, outs = node.op.dtype(Site(node.op.name, node.name, node.params), ins)
    for entry, dtype in zip(node.inputs, input_dtypes, strict=True):
        if dtype is not None:
            values[id(entry.node), entry.port] = dtype
    count = len(node.op.output_names(node.params))
    outs = list(outs) * count if len(outs) == 1 else outs
    values.update({(id(node), i): d for i, d in enumerate(outs)})


def _fixed_dtypes(node: SymNode) -> dict[Key, str]:
    """Return the dtypes of outputs that do not depend on the inputs', such as those of a Cast."""
    assert node.op is not None
    site, count = Site(node.op.name, node.name, node.params), len(node.inputs)
    rows = []
    for dtype in ("float32", "float64"):
        with suppress(DTypeError):
            rows.append(node.op.dtype(site, [dtype] * count)[1])
    if len(rows) < 2:
        return {}
    return {(id(node), i): a for i, (a, b) in enumerate(zip(*rows, strict=True)) if a == b and a}


def _backward_dtypes(node: SymNode, values: dict[Key, Any]) -> None:
    """Give inputs of unknown dtype the dtype of an output, if that input dtype explains it."""
    assert node.op is not None
    count = len(node.op.output_names(node.params))
    known = [values[id(node), i] for i in range(count) if values.get((id(node), i)) is not None]
    ins = _input_dtypes(node, values)
    if not known or not ins or any(d is not None for d in ins):
        return
    site = Site(node.op.name, node.name, node.params)
    if (
        node.op.dtype(site, ins)[1][0] == known[0]
    ):  # the rule's default, or a dtype that the operator fixes
        return
    with suppress(DTypeError):
        if node.op.dtype(site, known[:1] * len(ins))[1][0] == known[0]:
            _forward_dtypes(node, values, known[:1] * len(ins))


def dtype_of(name: str, raw: Any) -> str:
    """Return the name of a dtype, from a name, numpy type or MXNet number; else GraphError."""
    try:
        return dtype_name(raw)
    except KeyError as error:
        text = error.args[0]
        known = nearest(text, DTYPES)
        raise GraphError(f"variable {name!r}: no dtype {text!r}; {known}") from None
