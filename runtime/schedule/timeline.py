"""Timelines: when each rank did what, predicted or measured.

Times are whole ticks, so a simulation with rational costs is exact; the tick of a measured run is
that of its clock. Figures in seconds are rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.schedule.instructions import FREE, UPDATE, Instruction, Run
from runtime.schedule.program import Program
from symgraph.core.units import count_text, seconds_text
from symgraph.frontend.backend import load

Ticks = npt.NDArray[Any]


class Event(NamedTuple):
    """One instruction of one rank, from start to end in seconds after the timeline's begin."""

    rank: int
    instruction: Instruction
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Track:
    """What one rank did.

    Instructions do not overlap; the time between two of them is the rank's overhead.
    """

    program: Program
    #: int64 ticks, one entry per instruction.
    start: Ticks
    end: Ticks

    @property
    def is_run(self) -> npt.NDArray[Any]:
        """The instructions that run a body: bool, one entry per instruction."""
        return self.program.columns.code < FREE

    @property
    def computes(self) -> npt.NDArray[Any]:
        """The runs of bodies and updates of parameters: bool, one entry per instruction."""
        code = self.program.columns.code
        return np.asarray((code < FREE) | (code == UPDATE))

    def runs(self) -> Iterator[tuple[Run, int, int]]:
        """Yield its runs of bodies, with start and end in ticks."""
        for at, run in self.program.runs:
            yield run, int(self.start[at]), int(self.end[at])

    def updates(self) -> Iterator[tuple[int, int, int]]:
        """Yield the stages whose parameters it updates, with start and end in ticks."""
        columns = self.program.columns
        for at in np.flatnonzero(columns.code == UPDATE):
            yield int(columns.at[at]), int(self.start[at]), int(self.end[at])


EMPTY = Track(Program.of(()), np.zeros(0, np.int64), np.zeros(0, np.int64))


DRAWN = 20_000  # instructions in a picture


@dataclass(frozen=True, eq=False, repr=False)
class Timeline:
    """One step of all ranks; the same type for predicted and measured runs."""

    #: One per rank; empty for a rank in another process.
    tracks: tuple[Track, ...]
    #: Seconds of a tick.
    unit: Fraction
    #: The tick at which the step began, if that is before the first instruction's start.
    origin: int | None = None
    #: The tick at which the step ended, if that is after the last instruction's end.
    finish: int | None = None

    @property
    def ranks(self) -> int:
        return len(self.tracks)

    @cached_property
    def ticks(self) -> tuple[int, int]:
        """The ticks at which the step began and ended."""
        used = [t for t in self.tracks if len(t.program)]
        starts = [int(t.start[0]) for t in used] if self.origin is None else [self.origin]
        begin = min(starts, default=0)
        ends = [int(t.end[-1]) for t in used] if self.finish is None else [self.finish]
        return begin, max(ends, default=begin)

    @property
    def exact(self) -> Fraction:
        """Seconds from begin to end, as a fraction."""
        begin, end = self.ticks
        return (end - begin) * self.unit

    @property
    def makespan(self) -> float:
        """Seconds from begin to end."""
        return float(self.exact)

    @property
    def events(self) -> tuple[Event, ...]:
        """Every instruction, rank by rank; for large timelines, read the tracks instead."""
        return tuple(e for rank in range(self.ranks) for e in self._events(rank))

    def event(self, rank: int, step: int) -> Event:
        """Return the instruction at one step of a rank's program."""
        track = self.tracks[rank]
        start, end = int(track.start[step]), int(track.end[step])
        return Event(rank, track.program[step], self._at(start), self._at(end))

    def _events(self, rank: int) -> Iterator[Event]:
        track = self.tracks[rank]
        times = zip(track.program, track.start.tolist(), track.end.tolist(), strict=True)
        for instruction, start, end in times:
            yield Event(rank, instruction, self._at(start), self._at(end))

    def _at(self, tick: int) -> float:
        return (tick - self.ticks[0]) * self.unit.numerator / self.unit.denominator

    def _busy(self) -> list[int]:
        return [int((t.end - t.start)[t.computes].sum()) for t in self.tracks]

    def busy(self) -> list[float]:
        """Return, by rank, the seconds in which bodies run and parameters are updated."""
        return [float(ticks * self.unit) for ticks in self._busy()]

    def own_spans(self) -> list[float]:
        """Return, by rank, the seconds from the first start of a run to the last end of one.

        The largest is what the zero-bubble papers count as the cost of a schedule.
        """
        runs = [(t.start[t.is_run], t.end[t.is_run]) for t in self.tracks]
        return [float(int(e[-1] - s[0]) * self.unit) if len(s) else 0.0 for s, e in runs]

    @property
    def bubble_fraction(self) -> float:
        """The share of all ranks' time in which nothing is computed (GPipe's bubble)."""
        begin, end = self.ticks
        total = (end - begin) * self.ranks
        return float(1 - Fraction(sum(self._busy()), total)) if total else 0.0

    @property
    def bubble_fraction_of_ideal(self) -> float:
        """The time in which nothing is computed, relative to that of computing (Megatron-LM)."""
        begin, end = self.ticks
        busy = sum(self._busy())
        return float(Fraction((end - begin) * self.ranks, busy) - 1) if busy else 0.0

    def __repr__(self) -> str:
        return (
            f"<Timeline: {count_text(self.ranks, 'rank')}, {seconds_text(self.makespan)}, bubble "
            f"{self.bubble_fraction:.1%} of all ranks' time>"
        )

    def _repr_svg_(self) -> str | None:
        """Return a picture with a row per rank, for notebooks; None: it is too large."""
        if sum(len(track.program) for track in self.tracks) > DRAWN:
            return None
        svg: str = load("timeline_picture").svg(self)
        return svg

    def __str__(self) -> str:
        """Return the events in the order of their starts, in seconds."""
        by_start = sorted(self.events, key=lambda e: (e.start, e.rank))
        return "\n".join(
            f"{e.start:10.6f} {e.end:10.6f}  rank {e.rank}  {e.instruction}" for e in by_start
        )


def merge(timelines: Sequence[Timeline]) -> Timeline:
    """Return one timeline of the timelines of single ranks, which share a clock."""
    unit = timelines[0].unit
    assert all(t.unit == unit for t in timelines)
    tracks = [EMPTY] * max(t.ranks for t in timelines)
    for timeline in timelines:
        for rank, track in enumerate(timeline.tracks):
            if len(track.program):
                tracks[rank] = track
    begins = [t.ticks[0] for t in timelines if any(len(track.program) for track in t.tracks)]
    return Timeline(tuple(tracks), unit, min(begins, default=None))
