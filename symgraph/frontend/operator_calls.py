"""Calls of operators on symbols: inputs, parameters, names, and variables for missing inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

from symgraph.core.errors import GraphError, nearest
from symgraph.core.params import Attrs, parse_params
from symgraph.core.registry import OpDef, find
from symgraph.core.tags import MXNETS, inherited
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.name import NameManager
from symgraph.frontend.symnode import Entry, Outputs, SymNode

INIT = "__init__"  # the attribute of a variable that names its initializer


def call(
    op_name: str,
    hint: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> list[Entry]:
    """Call an operator; missing inputs become variables `<name>_<input>` (MXNet).

    Args:
        op_name: the operator's name or alias.
        hint: the name's stem if there is no name.
        args: input symbols in order (None for an input that becomes a variable), then parameters in
            the operator's order. One list of symbols stands for all inputs.
        kwargs: input symbols, parameters, and attributes spelt `__key__`, by name; `ctx_group`,
            `lr_mult`, `wd_mult` and MXNet's others also as they are.
        name: the node's name; None numbers the hint.
        attr: attributes of the node.

    Returns:
        The visible outputs.

    Raises:
        GraphError, TypeError: for a wrong argument; the message names the operator and argument.
    """
    op = find(op_name)
    name = NameManager.current().get(name, hint.lower())
    plain = {k: str(v) for k, v in kwargs.items() if k in MXNETS and v is not None}
    hidden = {k: v for k, v in kwargs.items() if k.startswith("__") and k.endswith("__")}
    attrs = _attributes(op, name, {**(attr or {}), **plain, **hidden})
    kwargs = {k: v for k, v in kwargs.items() if k not in hidden and k not in MXNETS}
    if len(args) == 1 and isinstance(args[0], (list, tuple)) and op.inputs:
        args = args[0]
    args, by_order = _positional(op, name, args)
    twice = next((k for k in by_order if k in kwargs), None)
    if twice is not None:
        raise GraphError(f"{op.name} {name!r}: {twice!r} is given by position and by name")
    kwargs = {**by_order, **kwargs}
    args = [s for a in args for s in (a.each() if op.variadic and isinstance(a, Outputs) else [a])]
    inputs_by_name, params = _split(op, name, args, kwargs)
    inputs = []
    for arg in op.input_names(params):
        symbol = inputs_by_name.pop(arg, None)
        if symbol is None:
            own = {INIT: op.first_values[arg]} if arg in op.first_values else {}
            symbol = Outputs([Entry(SymNode(f"{name}_{arg}", None, inherited(attrs) | own))])
        inputs.append(symbol.one(f"{op.name} {name!r}: input {arg!r}"))
    node = SymNode(name, op, attrs, params, tuple(inputs))
    return [Entry(node, i) for i in range(len(node.outputs))]


def _positional(op: OpDef, name: str, args: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Split positional arguments into input symbols and the parameters that follow them."""
    inputs = next((i for i, a in enumerate(args) if not isinstance(a, (Outputs, NoneType))), None)
    if inputs is None or op.variadic:
        return args, {}
    count = len(op.inputs) if isinstance(op.inputs, tuple) else max(inputs, 1)
    rest = args[count:]
    if inputs < count or len(rest) > len(op.params):
        wrong = args[inputs] if inputs < count else rest[-1]
        raise TypeError(
            f"{op.name} {name!r}: inputs are symbols, not {type(wrong).__name__}; "
            "parameters follow all inputs, or are passed by name"
        )
    return args[:count], dict(zip(op.params, rest, strict=False))


def _attributes(op: OpDef, name: str, own_attrs: Mapping[str, str]) -> dict[str, str]:
    """Combine the call's attributes with the scope's; in JSON, plain keys are parameters."""
    attrs = AttrScope.current().get(own_attrs)
    for key in attrs:
        if not (key.startswith("__") and key.endswith("__")):
            raise GraphError(
                f"{op.name} {name!r}: attribute {key!r} must look like __{key}__, "
                "because plain names are the operator's parameters"
            )
    return attrs


def _split(
    op: OpDef, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Outputs], Attrs]:
    """Return input symbols by input name, and the parsed parameters."""
    for arg in args:
        if not isinstance(arg, (Outputs, NoneType)):
            raise TypeError(
                f"{op.name} {name!r}: inputs are symbols, not {type(arg).__name__}; "
                "parameters are passed by name"
            )
    inputs_by_name = {k: v for k, v in kwargs.items() if isinstance(v, Outputs)}
    takes_none = {k for k, p in op.params.items() if p.takes_none}
    values = {
        k: v
        for k, v in kwargs.items()
        if not isinstance(v, Outputs) and (v is not None or k in takes_none)
    }
    if op.variadic and op.variadic not in values:
        values[op.variadic] = len(args) + len(inputs_by_name)
        if not values[op.variadic]:
            raise GraphError(f"{op.name} {name!r} takes one or more inputs, but none is given")
    for key, value in values.items():
        if key not in op.params and not any(p.gathers for p in op.params.values()):
            inputs = _known_inputs(op)
            if key in inputs:
                raise TypeError(
                    f"{op.name} {name!r}: input {key!r} is a symbol, not {type(value).__name__}"
                )
            known = [*op.params, *inputs]
            raise GraphError(f"{op.name} {name!r}: no argument {key!r}; {nearest(key, known)}")
    params = parse_params(op.name, name, op.params, values)
    names = op.input_names(params)
    while args and args[-1] is None:
        args = args[:-1]
    if len(args) > len(names):
        raise GraphError(f"{op.name} {name!r} takes {len(names)} inputs, but {len(args)} are given")
    by_position = {k: a for k, a in zip(names, args, strict=False) if a is not None}
    for key in inputs_by_name:
        if key not in names:
            raise GraphError(f"{op.name} {name!r}: no input {key!r}; {nearest(key, names)}")
        if key in by_position:
            raise GraphError(f"{op.name} {name!r}: input {key!r} is given by position and by name")
    return by_position | inputs_by_name, params


def _known_inputs(op: OpDef) -> tuple[str, ...]:
    """Return the input names; if they depend on parameters, those of the default ones."""
    if isinstance(op.inputs, tuple):
        return op.inputs
    return () if op.variadic else op.inputs({key: p.default for key, p in op.params.items()})
