"""The budget of a search: seconds on the clock, and steps, which are the same on every machine.

A search that steps alone end finds the same placement again, in another process too; one that
the clock ends need not.
"""

from __future__ import annotations

import math
import time


class Stopped(Exception):
    """The budget is spent."""


class Budget:
    """What a search may still spend."""

    def __init__(self, *, seconds: float = math.inf, steps: float = math.inf) -> None:
        self.steps = steps
        self._end = time.perf_counter() + seconds

    @property
    def seconds(self) -> float:
        """Left on the clock; inf where it does not count."""
        return self._end - time.perf_counter()

    @property
    def spent(self) -> bool:
        return self.steps <= 0 or self.seconds <= 0

    def take(self, steps: float) -> None:
        """Count steps. Raises Stopped when there are no more, or no more time."""
        self.steps -= steps
        if self.spent:
            raise Stopped

    def part(self, share: float) -> Budget:
        """A budget of its own with that share of what is left."""
        return Budget(seconds=self.seconds * share, steps=self.steps * share)
