"""Timelines: when each rank did what, predicted or measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runtime.instructions import Instruction, Run


class Event(NamedTuple):
    """One instruction of one rank, from start to end in seconds."""

    rank: int
    instruction: Instruction
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The events of one step, of all ranks; the same type for predicted and measured runs."""

    ranks: int
    events: tuple[Event, ...]

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        if not self.events:
            return 0.0
        return max(e.end for e in self.events) - min(e.start for e in self.events)

    def busy(self) -> list[float]:
        """Seconds that each rank ran bodies."""
        totals = [0.0] * self.ranks
        for event in self.events:
            if isinstance(event.instruction, Run):
                totals[event.rank] += event.end - event.start
        return totals

    @property
    def bubble_fraction(self) -> float:
        """The share of all ranks' time in which no body runs (zero-bubble's bubble rate)."""
        span = self.makespan * self.ranks
        return 1.0 - sum(self.busy()) / span if span else 0.0

    def __str__(self) -> str:
        lines = [f"{e.start:10.6f} {e.end:10.6f}  rank {e.rank}  {e.instruction}"
                 for e in sorted(self.events, key=lambda e: (e.start, e.rank))]  # fmt: skip
        return "\n".join(lines)


def merge(timelines: Sequence[Timeline]) -> Timeline:
    """One timeline from those of single ranks, whose clocks are one clock."""
    events = [e for t in timelines for e in t.events]
    return Timeline(max(t.ranks for t in timelines), tuple(events))
