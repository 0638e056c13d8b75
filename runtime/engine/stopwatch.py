"""The stopwatch: start and end of each call of a rank's runs, measured while steps run.

A worker with a stopwatch is bound with a stamp before each call and after the last one, and to the
plain calls as well, which are made while `Timing.on` is off; a worker without is bound to the plain
calls alone, so a run without a profile costs nothing. A stamp takes a tenth of a microsecond; on a
GPU about two, and there it tells when the GPU ran the call, not when the host made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.types import BodyKey
from runtime.backends.bodies import BoundBody
from runtime.backends.calls import Call
from runtime.backends.device.clocks import HostStamps, Stamps
from runtime.backends.native import NativeCalls, apart


class Watched(NamedTuple):
    """A run that is timed."""

    #: The body.
    key: BodyKey
    #: The micro-batch.
    mb: int
    #: The names of its calls: of nodes, or of the variables whose gradients they add up.
    calls: tuple[str, ...]


class Laps(NamedTuple):
    """The times of every call in a step, in the order of `Stopwatch.runs`."""

    #: The start of each call, in ns.
    start: npt.NDArray[np.int64]
    #: The end of each call, in ns.
    end: npt.NDArray[np.int64]


class Timing:
    """Whether the calls of the next runs are timed, for all workers of a session."""

    def __init__(self) -> None:
        self.on = True


class Stopwatch:
    """The times of one worker; `runs` are in the order of its program."""

    def __init__(self, timing: Timing | None = None) -> None:
        self.timing = timing or Timing()
        self.runs: list[Watched] = []
        self._stamps: list[Any] = []
        self._device: Stamps = HostStamps()

    def reset(self, stamps: Stamps) -> None:
        """Forget all runs, as the worker is bound anew; use these stamps of its device."""
        self._device = stamps
        self.runs.clear()
        self._stamps.clear()

    def watch(self, body: BoundBody, mb: int) -> BoundBody:
        """Put stamps between the calls of a run; called for the runs in the program's order."""
        names = tuple([s.name for s in apart(body.steps)])
        self.runs.append(Watched(body.key, mb, names))
        return body._replace(steps=tuple(self._timed(body.steps)))

    def _timed(self, steps: Sequence[Call]) -> list[Call]:
        """Put a stamp before each call and one after the last."""
        timed = []
        for step in steps:
            if isinstance(step.function, NativeCalls):
                timed.append(Call(step.name, self._time, (step.function,)))
            else:
                timed += [Call(step.name, self._stamp, ()), step]
        return [*timed, Call(steps[-1].name, self._stamp, ())] if steps else []

    def _stamp(self) -> None:
        self._stamps.append(self._device.stamp())

    def _time(self, calls: NativeCalls) -> None:
        self._stamps += calls.timed()

    def laps(self) -> Laps:
        """Return the times of the step since the last call; called once after every step."""
        stamps = self._device.ticks(self._stamps)
        self._stamps.clear()
        first = np.ones(len(stamps), bool)  # stamps that begin a call
        at = -1
        for run in self.runs:
            if run.calls:
                at += len(run.calls) + 1
                first[at] = False
        assert at + 1 == len(stamps), "one whole step since the last call"
        begin = np.flatnonzero(first)
        return Laps(stamps[begin], stamps[begin + 1])
