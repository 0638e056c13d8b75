"""The budget of a search: seconds on the clock, and steps, which are the same on every machine.

A search that only steps limit finds the same placement every time, in another process too; one
that the clock ends may not.
"""

from __future__ import annotations

import math
import time


class Stopped(Exception):
    """The budget is spent."""


class Budget:
    """The steps and seconds that a search may still spend."""

    def __init__(self, *, seconds: float = math.inf, steps: float = math.inf) -> None:
        self.steps = steps
        self._end = time.perf_counter() + seconds

    @property
    def seconds(self) -> float:
        """The seconds left on the clock; inf without a time limit."""
        return self._end - time.perf_counter()

    @property
    def spent(self) -> bool:
        return self.steps <= 0 or self.seconds <= 0

    def take(self, steps: float) -> None:
        """Spend steps. Raises Stopped when no steps or no seconds are left."""
        self.steps -= steps
        if self.spent:
            raise Stopped

    def part(self, share: float) -> Budget:
        """Make a separate budget with that share of what is left."""
        return Budget(seconds=self.seconds * share, steps=self.steps * share)
