"""Attributes of symbols: strings by key, given one by one or for a whole `with` block.

`symgraph.core.tags` has the keys' two spellings.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from symgraph.core.tags import canonical


class AttrScope:
    """Gives its attributes to every symbol made inside its `with` block (`mx.AttrScope`).

    An inner scope overrides an outer one, and attributes given to the symbol itself override
    both. Scopes belong to the thread or task that entered them. Values are strings, else
    GraphError.
    """

    def __init__(self, **attrs: str) -> None:
        self._attrs = canonical(attrs)

    @staticmethod
    def current() -> AttrScope:
        """All scopes now open, as one; an empty scope outside of any."""
        return _open.get()[-1] if _open.get() else AttrScope()

    def get(self, attr: Mapping[str, str] | None) -> dict[str, str]:
        """The attributes of a symbol made in this scope with these explicit ones."""
        return {**self._attrs, **canonical(attr or {})}

    def __enter__(self) -> AttrScope:
        inside = AttrScope(**AttrScope.current().get(self._attrs))
        _open.set((*_open.get(), inside))
        return inside

    def __exit__(self, *exc: object) -> None:
        _open.set(_open.get()[:-1])


_open: ContextVar[tuple[AttrScope, ...]] = ContextVar("open_attr_scopes", default=())
