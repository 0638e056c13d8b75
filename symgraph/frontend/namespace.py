"""Operators as functions on symbols, and namespaces of those whose names begin alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, _ParameterKind
from types import ModuleType
from typing import Any

from symgraph.core.errors import nearest
from symgraph.core.params import REQUIRED, Param, literal
from symgraph.core.registry import ALIASES, OPS, OpDef, find
from symgraph.frontend.operator_calls import call
from symgraph.frontend.symbol import Symbol

POSITIONAL_OR_KEYWORD, KEYWORD_ONLY = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
VAR_POSITIONAL, VAR_KEYWORD = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
HINTS = {name: f"_{name}" for name in ("zeros", "ones", "arange")}  # stems of MXNet's names


def operator(name: str, shown: str | None = None) -> Callable[..., Symbol]:
    """Return the function that calls an operator, with its parameters in the docstring.

    Args:
        name: the operator's name or alias.
        shown: the function's name; by default that of the operator.
    """
    op = find(name)

    def operator(
        *args: Any, name: str | None = None, attr: Mapping[str, str] | None = None, **kwargs: Any
    ) -> Symbol:
        return Symbol(call(op.name, hint, args, kwargs, name, attr))

    hint = shown or HINTS.get(name, name)
    parameters = [
        f"    {key}: {p.kind}" + ("" if p.default is REQUIRED else f" = {p.default!r}")
        for key, p in op.params.items()
    ]
    operator.__name__ = operator.__qualname__ = shown or name
    operator.__doc__ = "\n".join(
        [
            op.doc,
            "",
            "Inputs: " + ("any number" if _takes_any(op) else ", ".join(input_names(op))),
            *(["Parameters:", *parameters] if parameters else []),
        ]
    )
    operator.__signature__ = signature(op)  # type: ignore[attr-defined]
    return operator


def input_names(op: OpDef) -> list[str]:
    """Return the names of all inputs that an operator may have, whatever its parameters are."""
    if isinstance(op.inputs, tuple):
        return [*op.inputs]
    if _takes_any(op):
        return []
    base = {k: 1 if p.default is REQUIRED else p.default for k, p in op.params.items()}
    tries = [base, *({**base, k: value} for k, p in op.params.items() for value in _values(p))]
    return [*dict.fromkeys(name for attrs in tries for name in op.inputs(attrs))]


def _takes_any(op: OpDef) -> bool:
    """Tell whether a call says how many inputs there are, or what they are called."""
    return bool(op.variadic) or any(p.gathers for p in op.params.values())


def _values(param: Param) -> Sequence[Any]:
    """Return the values of a parameter that has only a few."""
    if param.type == "bool":
        return (False, True)
    choices = re.match(r"Literal\[(.*?)\]", param.type)
    return tuple(literal(f"({choices[1]},)")) if choices else ()


def signature(op: OpDef) -> Signature:
    """Return the signature of an operator's function.

    Inputs come first; a missing one becomes a variable. Parameters follow, by name only if one of
    them has no default.
    """
    params = {key: p for key, p in op.params.items() if key != op.variadic and not p.gathers}
    rest = any(p.gathers for p in op.params.values())
    args = [_optional(name, "Symbol") for name in input_names(op)]
    needed = [p.default is REQUIRED for p in params.values()]
    kind = KEYWORD_ONLY if needed != sorted(needed, reverse=True) else POSITIONAL_OR_KEYWORD
    if _takes_any(op):
        args = [Parameter("args", VAR_POSITIONAL, annotation="Symbol | Sequence[Symbol]")]
    if args and (any(needed) or _takes_any(op)):
        kind = KEYWORD_ONLY
    for key, param in params.items():
        default = Parameter.empty if param.default is REQUIRED else param.default
        args.append(Parameter(key, kind, default=default, annotation=param.type))
    args.append(_optional("name", "str", KEYWORD_ONLY))
    args.append(_optional("attr", "Mapping[str, str]", KEYWORD_ONLY))
    if len(input_names(op)) > 1:  # parameters may be among them
        args += [_optional(key, "float", KEYWORD_ONLY) for key in ("lr_mult", "wd_mult")]
    if rest:
        args.append(Parameter("kwargs", VAR_KEYWORD, annotation="Any"))
    return Signature(args, return_annotation="Symbol")


def _optional(name: str, of: str, kind: _ParameterKind = POSITIONAL_OR_KEYWORD) -> Parameter:
    return Parameter(name, kind, default=None, annotation=f"{of} | None")


class Namespace(ModuleType):
    """The operators whose names begin with a prefix, and functions beside them.

    `sym.linalg.gemm` is the operator `_linalg_gemm`.
    """

    def __init__(self, path: str, prefix: str, **functions: Callable[..., Any]) -> None:
        super().__init__(path)
        self._prefix = prefix
        vars(self).update(functions)

    @property
    def _names(self) -> list[str]:
        names = (n for n in (*OPS, *ALIASES) if n.startswith(self._prefix))
        return [n.removeprefix(self._prefix) for n in names]

    def __getattr__(self, name: str) -> Callable[..., Symbol]:
        if name not in self._names:
            known = [*self._names, *(n for n in vars(self) if not n.startswith("_"))]
            raise AttributeError(f"{self.__name__} has no {name!r}; {nearest(name, known)}")
        function = operator(f"{self._prefix}{name}", name)
        vars(self)[name] = function
        return function

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self._names})
