"""The receive stream: values arrive on a GPU while its context's other work runs.

The memory of an arriving value may still be in use. So each receive waits for an event after the
last work that uses it, but not for work queued since; work queued after the receive waits for it.

    work        F0    F1          B0        R1 arrives while F1 runs, in memory that F0 has freed
    receives       R1    R2
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ReceiveStream:
    """A context's second stream, beside that of its work; receives run in the order of calls."""

    def __init__(self, cuda: Any, work: Any) -> None:
        self._cuda, self._work = cuda, work
        self._stream = cuda.Stream(non_blocking=True)
        self._begun, self._came = self.event(), self.event()

    def event(self) -> Any:
        """Return an event, to be recorded in the work."""
        return self._cuda.Event(disable_timing=True)

    def record(self, event: Any) -> None:
        """Record an event at the end of the work so far."""
        self._work.record(event)

    def begin(self) -> None:
        """Make receives wait for all work so far."""
        self.record(self._begun)
        self._stream.wait_event(self._begun)

    def receive(self, call: Callable[[], None], free: Any) -> None:
        """Make a call that receives a value, after the event `free` if there is one."""
        with self._stream:
            if free is not None:
                self._stream.wait_event(free)
            call()
        self._stream.record(self._came)
        self._work.wait_event(self._came)
