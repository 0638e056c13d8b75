"""Sums over micro-batches in one fixed order, whatever the order in which the terms come.

    ((g0 + g1) + (g2 + g3)) + g4        five micro-batches

Schedules finish micro-batches in different orders; floating-point sums must not depend on that.
The terms are leaves of a fixed binary tree, and two siblings are added as soon as both are there
(addition is commutative to the bit). Terms that come in ascending or descending order leave at
most log2(M) + 1 partial sums waiting.
"""

from __future__ import annotations

from typing import Any

from symgraph.types import Array


class TreeSum:
    """The sum of `count` arrays, numbered 0 to count - 1."""

    def __init__(self, count: int) -> None:
        self._widths = [count]
        while self._widths[-1] > 1:
            self._widths.append((self._widths[-1] + 1) // 2)
        self._waiting: dict[tuple[int, int], tuple[Array, bool]] = {}

    def add(self, xp: Any, index: int, term: Array) -> None:
        """Add term `index`; it is kept, not changed."""
        total, owned, level = term, False, 0
        while level < len(self._widths) - 1:
            sibling = index ^ 1
            if sibling < self._widths[level]:
                other = self._waiting.pop((level, sibling), None)
                if other is None:
                    break
                total, owned = _join(xp, total, owned, *other), True
            level, index = level + 1, index // 2
        self._waiting[level, index] = (total, owned)

    @property
    def total(self) -> Array:
        """The whole sum; all terms must have been added."""
        return self._waiting[len(self._widths) - 1, 0][0]

    @property
    def arrays(self) -> list[Array]:
        """The partial sums that are waiting."""
        return [array for array, _ in self._waiting.values()]


def _join(xp: Any, a: Array, a_owned: bool, b: Array, b_owned: bool) -> Array:
    if a_owned or b_owned:
        into = a if a_owned else b
        xp.add(a, b, out=into)
        return into
    total: Array = xp.asarray(xp.add(a, b))  # the sum of 0-d arrays is a scalar
    return total
