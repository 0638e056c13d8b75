"""Sums over micro-batches in one fixed order, whatever the order in which the terms come.

    ((g0 + g1) + (g2 + g3)) + g4        five micro-batches

Schedules finish micro-batches in different orders; floating-point sums must not depend on that.
The terms are leaves of a fixed binary tree, and two siblings are added as soon as both are known
(addition is commutative to the bit). Terms that come in ascending or descending order leave at
most log2(M) + 1 partial sums waiting. Programs are known before they run, and so are these steps.
"""

from __future__ import annotations

from typing import NamedTuple


class Keep(NamedTuple):
    """Copy the new term: partial sum `number` begins with it."""

    number: int


class Join(NamedTuple):
    """Add to partial sum `into` the new term, or (`ends`) partial sum `number`, which ends."""

    into: int
    number: int
    ends: bool


class TreeSum:
    """The steps by which `count` terms, numbered 0 to count - 1, are added up.

    A partial sum has the number of its first term.
    """

    def __init__(self, count: int) -> None:
        self._widths = [count]
        while self._widths[-1] > 1:
            self._widths.append((self._widths[-1] + 1) // 2)
        self._waiting: dict[tuple[int, int], int] = {}

    @property
    def waiting(self) -> list[int]:
        """The partial sums that wait for their siblings."""
        return [*self._waiting.values()]

    def add(self, index: int) -> list[Keep | Join]:
        """Return the steps to take when term `index` comes."""
        steps: list[Keep | Join] = []
        total, at, level = index, index, 0
        while level < len(self._widths) - 1:
            sibling = at ^ 1
            if sibling < self._widths[level]:
                other = self._waiting.pop((level, sibling), None)
                if other is None:
                    break
                steps.append(Join(other, total, bool(steps)))
                total = other
            level, at = level + 1, at // 2
        if not steps:
            steps.append(Keep(index))
        self._waiting[level, at] = total
        return steps
