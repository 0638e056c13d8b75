"""The stopwatch: when each call of a rank's runs began and ended, taken while steps run.

A worker that is given one is bound with a stamp before each call and after the last; one that is
not is bound as ever, so that a run without a profile pays nothing. A stamp takes a tenth of a
microsecond, on a GPU some two; there it tells when the card did the call, not when it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.types import BodyKey
from runtime.backends.bodies import BoundBody, Call
from runtime.backends.device.clocks import HostStamps, Stamps


class Watched(NamedTuple):
    """A run that is timed: names of its nodes' calls, and of those that add up gradients."""

    key: BodyKey
    mb: int
    calls: tuple[str, ...]
    adding: tuple[str, ...]


class Laps(NamedTuple):
    """Start and end of every call of a step, in the order of `Stopwatch.runs`: int64 ns."""

    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]


class Stopwatch:
    """Times of one worker; `runs` are in the order of its program."""

    def __init__(self) -> None:
        self.runs: list[Watched] = []
        self._stamps: list[Any] = []
        self._device: Stamps = HostStamps()

    def reset(self, stamps: Stamps) -> None:
        """Forget all runs: the worker is bound anew. stamps: of its device."""
        self._device = stamps
        self.runs.clear()
        self._stamps.clear()

    def watch(
        self, body: BoundBody, mb: int, adding: Sequence[Call]
    ) -> tuple[BoundBody, list[Call]]:
        """A run's calls with stamps between them; to be asked in the order of the program."""
        names = tuple([s.name for s in body.steps]), tuple([s.name for s in adding])
        self.runs.append(Watched(body.key, mb, *names))
        return body._replace(steps=tuple(self._timed(body.steps))), self._timed(adding)

    def _timed(self, steps: Sequence[Call]) -> list[Call]:
        """A stamp before each step, and one after the last."""
        found = []
        for step in steps:
            found += [Call(step.name, self._stamp, ()), step]
        return [*found, Call(steps[-1].name, self._stamp, ())] if steps else []

    def _stamp(self) -> None:
        self._stamps.append(self._device.stamp())

    def laps(self) -> Laps:
        """The calls of the step since the last time this was asked, before the next one begins."""
        stamps = self._device.ticks(self._stamps)
        self._stamps.clear()
        first = np.ones(len(stamps), bool)  # stamps that begin a call
        at = -1
        for run in self.runs:
            for count in (len(run.calls), len(run.adding)):
                if count:
                    at += count + 1
                    first[at] = False
        assert at + 1 == len(stamps), "one whole step since the last time"
        begin = np.flatnonzero(first)
        return Laps(stamps[begin], stamps[begin + 1])
