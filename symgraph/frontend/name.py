"""Names of symbols: the user's, or the operator's name with a number (MXNet's `mx.name`).

Numbers are counted by a manager, not by the process: two builds under new managers get the same
names, so ranks and buckets agree on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextvars import ContextVar


class Names:
    """The names of a graph, each of them given once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)
        self._counts: dict[str, int] = {}

    def take(self, name: str) -> str:
        """Return the name, or the first free one of `<name>_1`, `<name>_2`, ..."""
        unique, count = name, self._counts.get(name, 0)
        while unique in self.taken:
            count += 1
            unique = f"{name}_{count}"
        self._counts[name] = count
        self.taken.add(unique)
        return unique


class NameManager:
    """Name the symbols of a `with` block `fullyconnected0`, `fullyconnected1`, ...

    As `mx.name.NameManager`. Each thread starts with a manager of its own.
    """

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()

    @staticmethod
    def current() -> NameManager:
        """Return the innermost open manager, or this thread's own."""
        if not _open.get():
            _open.set((NameManager(),))
        return _open.get()[-1]

    def get(self, name: str | None, hint: str) -> str:
        """Return the name if there is one, else the lower-case hint with its next number."""
        if name:
            return name
        hint = hint.lower()
        self._used[hint] += 1
        return f"{hint}{self._used[hint] - 1}"

    def __enter__(self) -> NameManager:
        _open.set((*_open.get(), self))
        return self

    def __exit__(self, *exc: object) -> None:
        _open.set(_open.get()[:-1])


class Prefix(NameManager):
    """A manager that puts a prefix before every name (`mx.name.Prefix`)."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        return self._prefix + super().get(name, hint)


_open: ContextVar[tuple[NameManager, ...]] = ContextVar("open_name_managers", default=())
