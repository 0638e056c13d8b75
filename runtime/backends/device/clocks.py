"""Stamps: points in a device's work, put on the host's clock when the work is done.

The calls for a GPU return before it has done what they ask for, so the host cannot see when that
begins or ends. It leaves CUDA events among the work instead, which note the card's own time as it
comes by. One event of a step, the anchor, is also seen by the host; the others are told by how
much later than it they came.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Ticks = npt.NDArray[np.int64]
NANOSECONDS = 1e6  # in a millisecond, in which CUDA tells times


class Stamps(Protocol):
    """The stamps of one worker."""

    def begin(self) -> None:
        """Forget all stamps: what was done so far is over, a step begins."""
        ...

    def stamp(self) -> Any:
        """The point between what this thread has asked for and what it will ask for; no waiting."""
        ...

    def ticks(self, stamps: Sequence[Any]) -> Ticks:
        """When these points came, in ns of `time.perf_counter_ns`; their work must be done."""
        ...


class HostStamps:
    """Of the CPU, whose work is done when its call returns."""

    stamp = staticmethod(time.perf_counter_ns)

    def begin(self) -> None:
        """See Stamps."""

    def ticks(self, stamps: Sequence[int]) -> Ticks:
        """See Stamps."""
        return np.array(stamps, np.int64)


class EventStamps:
    """Of a stream of a GPU, for a thread that uses this device.

    Differences are right to half a microsecond, and to the 7 digits of CUDA's milliseconds. All of
    them may be off together by half the time that the host takes to see the anchor.
    """

    def __init__(self, cuda: Any, stream: Any) -> None:
        self._cuda, self._stream = cuda, stream
        self._events: list[Any] = []  # made once, used again in every step
        self._used = 0
        self._anchor: Any = None
        self._begun = 0  # ns: when the anchor came

    def begin(self) -> None:
        """See Stamps; waits for what the stream has to do."""
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
        later = [self._cuda.get_elapsed_time(self._anchor, event) for event in stamps]
        return self._begun + np.rint(np.array(later, np.float64) * NANOSECONDS).astype(np.int64)
