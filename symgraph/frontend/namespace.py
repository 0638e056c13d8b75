"""Operators as functions on symbols, and namespaces of those whose names begin alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from symgraph.core.errors import nearest
from symgraph.core.params import REQUIRED
from symgraph.core.registry import ALIASES, OPS, find
from symgraph.frontend.operator_calls import call
from symgraph.frontend.symbol import Symbol

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

    hint = HINTS.get(name, name)
    inputs = op.inputs if isinstance(op.inputs, tuple) else ("*inputs",)
    parameters = [
        f"    {key}: {p.kind}" + ("" if p.default is REQUIRED else f" = {p.default!r}")
        for key, p in op.params.items()
    ]
    operator.__name__ = operator.__qualname__ = shown or name
    operator.__doc__ = "\n".join(
        [
            op.doc,
            "",
            "Inputs: " + ", ".join(inputs),
            *(["Parameters:", *parameters] if parameters else []),
        ]
    )
    return operator


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
