"""The memory meter: bytes that a rank really holds while bodies run, watched during one step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Meter:
    """Follows the arrays that a rank holds; memory that several arrays share counts once.

    ignored: arrays (parameters) that are counted elsewhere.
    """

    def __init__(self, ignored: Iterable[Any] = ()) -> None:
        self.peak = 0
        self._live = 0
        self._count: dict[int, int] = {}
        self._always = {id(_root(a)) for a in ignored}
        self._ignored = self._always

    def start(self, held: Iterable[Iterable[Any]], ignored: Iterable[Any] = ()) -> None:
        """A body begins to run: count anew what is held, but for what is ignored in this run."""
        self._live, self._count = 0, {}
        self._ignored = self._always | {id(_root(a)) for a in ignored}
        for arrays in held:
            for array in arrays:
                self._add(array)
        self.peak = max(self.peak, self._live)

    def made(self, arrays: Iterable[Any], dropped: Iterable[Any]) -> None:
        """A step made some arrays, and others are about to be dropped."""
        for array in arrays:
            self._add(array)
        self.peak = max(self.peak, self._live)
        for array in dropped:
            root = None if array is None else _root(array)
            if root is not None and id(root) in self._count:
                self._count[id(root)] -= 1
                if not self._count[id(root)]:
                    del self._count[id(root)]
                    self._live -= root.nbytes

    def _add(self, array: Any) -> None:
        root = None if array is None else _root(array)
        if root is not None and id(root) not in self._ignored:
            if id(root) not in self._count:
                self._live += root.nbytes
            self._count[id(root)] = self._count.get(id(root), 0) + 1


def _root(array: Any) -> Any:
    """The array that owns the memory."""
    while isinstance(array.base, type(array)):
        array = array.base
    return array
