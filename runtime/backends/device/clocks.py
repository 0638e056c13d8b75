"""Timestamps of points in a device's work, on the host's clock.

Calls for a GPU return before it has done the work, so the host cannot see when that begins or ends.
It queues CUDA events among the work instead, which record the GPU's own time. The host waits for
one event of a step, the anchor; the others are placed on the host's clock by how much later than
the anchor they were reached.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Ticks = npt.NDArray[np.int64]
NANOSECONDS = 1e6  # in a millisecond, CUDA's unit of time


class Stamps(Protocol):
    """The timestamps of one worker."""

    def begin(self) -> None:
        """Forget all timestamps, because a new step begins."""
        ...

    def stamp(self) -> Any:
        """Mark the end of the work that this thread has queued so far, without waiting."""
        ...

    def ticks(self, stamps: Sequence[Any]) -> Ticks:
        """Return when finished work reached these points, in ns of `time.perf_counter_ns`."""
        ...

    def reached(self, stamps: Sequence[Any]) -> Ticks:
        """Return the ticks of those first points that work has reached, without waiting."""
        ...


class HostStamps:
    """Timestamps on the CPU, whose work is done when its call returns."""

    stamp = staticmethod(time.perf_counter_ns)

    def begin(self) -> None:
        """See Stamps."""

    def ticks(self, stamps: Sequence[int]) -> Ticks:
        """See Stamps."""
        return np.array(stamps, np.int64)

    reached = ticks


class EventStamps:
    """Timestamps of a GPU's stream, for a thread that uses this device.

    Differences are exact to half a microsecond, and to the 7 digits of CUDA's milliseconds. All
    timestamps share an error of up to half the time that the host takes to notice the anchor.
    """

    def __init__(self, cuda: Any, stream: Any) -> None:
        self._cuda, self._stream = cuda, stream
        self._events: list[Any] = []  # reused in every step
        self._used = 0
        self._anchor: Any = None
        self._begun = 0  # ns: when the anchor was reached

    def begin(self) -> None:
        """See Stamps; waits for the stream's earlier work."""
        self._used = 0
        self._stream.synchronize()
        before = time.perf_counter_ns()
        self._anchor = self.stamp()
        self._anchor.synchronize()
        self._begun = (before + time.perf_counter_ns()) // 2

    def stamp(self) -> Any:
        """See Stamps."""
        if self._used == len(self._events):
            self._events.append(self._cuda.Event())
        event = self._events[self._used]
        self._used += 1
        self._stream.record(event)
        return event

    def ticks(self, stamps: Sequence[Any]) -> Ticks:
        """See Stamps."""
        # Instructions that one call has done have the same event.
        after = {e: self._cuda.get_elapsed_time(self._anchor, e) for e in dict.fromkeys(stamps)}
        later = [after[event] for event in stamps]
        return self._begun + np.rint(np.array(later, np.float64) * NANOSECONDS).astype(np.int64)

    def reached(self, stamps: Sequence[Any]) -> Ticks:
        """See Stamps."""
        return self.ticks(list(takewhile(lambda event: event.done, [*stamps])))
