"""Attribute scopes: attributes (strings by key) for every symbol of a `with` block.

`symgraph.core.tags` defines the two spellings of a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from symgraph.core.tags import canonical


class AttrScope:
    """Give attributes to every symbol made inside a `with` block (`mx.AttrScope`).

        with sg.AttrScope(ctx_group="a"):
            hidden = sg.sym.FullyConnected(data, num_hidden=100)

    An inner scope overrides an outer one, and attributes of the symbol itself override both.
    A scope applies only to the thread or task that entered it. Values must be strings; anything
    else raises GraphError.
    """

    def __init__(self, **attrs: str) -> None:
        self._attrs = canonical(attrs)

    @staticmethod
    def current() -> AttrScope:
        """Return all open scopes combined into one; an empty scope if none is open."""
        return _open.get()[-1] if _open.get() else AttrScope()

    def get(self, attr: Mapping[str, str] | None) -> dict[str, str]:
        """Return the attributes of a symbol made in this scope with these attributes of its own."""
        return {**self._attrs, **canonical(attr or {})}

    def __enter__(self) -> AttrScope:
        inside = AttrScope(**AttrScope.current().get(self._attrs))
        _open.set((*_open.get(), inside))
        return inside

    def __exit__(self, *exc: object) -> None:
        _open.set(_open.get()[:-1])


_open: ContextVar[tuple[AttrScope, ...]] = ContextVar("open_attr_scopes", default=())
