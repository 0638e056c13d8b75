"""Shape and dtype inference on symbols, in both directions, with parts unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from typing import Any

from symgraph.core.errors import DTypeError, GraphError, ShapeError, nearest
from symgraph.core.params import Site, literal
from symgraph.core.registry import Partial, complete
from symgraph.core.types import DTYPES, Shape, dtype_name
from symgraph.frontend.symnode import Outputs, SymNode, require_unique_variables, walk

Key = tuple[int, int]  # id of a SymNode, output


@dataclass(frozen=True)
class Inferred:
    """What is known of every value and of every variable by name."""

    nodes: list[SymNode]
    values: dict[Key, Any]
    variables: dict[str, Any]

    def require_complete(self) -> None:
        """Raise ShapeError that names the arguments whose shapes are not known."""
        missing = [n for n, s in self.variables.items() if not complete(s)]
        if missing:
            shown = ", ".join(f"{n}{self.variables[n] or ''}" for n in missing[:10])
            more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
            raise ShapeError(
                f"cannot infer the shapes of {shown}{more}; give them, or more input shapes"
            )
        for node in self.nodes:
            for port, name in enumerate(node.outputs):
                if not complete(self.values.get((id(node), port))):
                    raise ShapeError(f"cannot infer the shape of {name!r}")


def infer_shapes(symbol: Outputs, given: Mapping[str, Any]) -> Inferred:
    """Everything about shapes that follows from the given ones; contradictions raise ShapeError.

    given: variable name -> shape tuple with 0 for unknown. Names that are no input raise
    GraphError with near misses; values that are no shapes raise TypeError.
    """
    nodes = _nodes(symbol, given)
    values: dict[Key, Any] = {}
    for node in nodes:
        if node.op is None:
            values[id(node), 0] = _hinted_shape(node, given)
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


def _hinted_shape(node: SymNode, given: Mapping[str, Any]) -> Partial:
    shape = given.get(node.name)
    if shape is None:
        shape = literal(node.attrs.get("__shape__"))
    return None if shape is None else shape_of(node.name, shape)


def shape_of(name: str, raw: Any) -> Shape:
    """The shape of a variable, with 0 for unknown; TypeError if it is none."""
    try:
        shape = tuple(index(d) for d in raw)
    except TypeError:
        shape = (-1,)
    if any(d < 0 for d in shape):
        raise TypeError(
            f"arguments need to be shapes (tuple), but {name!r} is {raw!r} ({type(raw).__name__}); "
            "dimensions are whole numbers, 0 for one that is not known"
        )
    return shape


def _infer_node(node: SymNode, values: dict[Key, Any], settled: set[int]) -> bool:
    """Apply one node's rule; whether anything new is known.

    Nodes whose shapes were all known, and have now been checked, are added to `settled`.
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
            values[key] = tuple(new)
            changed = True
    return changed


def infer_dtypes(symbol: Outputs, given: Mapping[str, Any], *, partial: bool = False) -> Inferred:
    """The dtype of every value; float32 where nothing says otherwise. Raises DTypeError.

    partial: None where nothing says otherwise.

    Rules go from inputs to outputs. In between, dtypes that are known of outputs alone are taken
    back to the inputs: a state that meets the data's projection has the data's dtype.
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
    for node in nodes:
        if node.op is None and values[id(node), 0] is None and not partial:
            values[id(node), 0] = "float32"
    return _by_name(nodes, values)


def _input_dtypes(node: SymNode, values: dict[Key, Any]) -> list[str | None]:
    return [values.get((id(e.node), e.port)) for e in node.inputs]


def _forward_dtypes(node: SymNode, values: dict[Key, Any], ins: Sequence[str | None]) -> None:
    assert node.op is not None
    found, outs = node.op.dtype(Site(node.op.name, node.name, node.params), ins)
    for entry, dtype in zip(node.inputs, found, strict=True):
        if dtype is not None:
            values[id(entry.node), entry.port] = dtype
    count = len(node.op.output_names(node.params))
    outs = list(outs) * count if len(outs) == 1 else outs
    values.update({(id(node), i): d for i, d in enumerate(outs)})


def _backward_dtypes(node: SymNode, values: dict[Key, Any]) -> None:
    """Inputs of which nothing is known get the dtype of an output, if that is what gives it."""
    assert node.op is not None
    count = len(node.op.output_names(node.params))
    known = [values[id(node), i] for i in range(count) if values.get((id(node), i)) is not None]
    ins = _input_dtypes(node, values)
    if not known or not ins or any(d is not None for d in ins):
        return
    site = Site(node.op.name, node.name, node.params)
    if node.op.dtype(site, ins)[1][0] == known[0]:  # the default, or a dtype of the operator's own
        return
    with suppress(DTypeError):
        if node.op.dtype(site, known[:1] * len(ins))[1][0] == known[0]:
            _forward_dtypes(node, values, known[:1] * len(ins))


def dtype_of(name: str, raw: Any) -> str:
    """The dtype of a variable by its name, numpy type or MXNet's number; GraphError if none."""
    try:
        return dtype_name(raw)
    except KeyError as error:
        text = error.args[0]
        known = nearest(text, DTYPES)
        raise GraphError(f"variable {name!r}: no dtype {text!r}; {known}") from None
