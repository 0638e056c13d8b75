"""The receive stream: on which values come to a GPU while its context's other work goes on.

The memory that a value comes into may still be in use. So each receive waits for an event after
the last work that uses it, and not for what was asked for since; what is asked for after the
receive waits for it in turn.

    work        F0    F1          B0        R1 comes while F1 runs, into memory that F0 has left
    receives       R1    R2
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ReceiveStream:
    """Of a context, beside the stream of its work. Receives are done in the order of the calls."""

    def __init__(self, cuda: Any, work: Any) -> None:
        self._cuda, self._work = cuda, work
        self._stream = cuda.Stream(non_blocking=True)
        self._begun, self._came = self.event(), self.event()

    def event(self) -> Any:
        """A point in the work, each time that it is recorded."""
        return self._cuda.Event(disable_timing=True)

    def record(self, event: Any) -> None:
        """Let an event be the end of the work so far."""
        self._work.record(event)

    def begin(self) -> None:
        """Let receives wait for all the work so far."""
        self.record(self._begun)
        self._stream.wait_event(self._begun)

    def receive(self, call: Callable[[], None], free: Any) -> None:
        """Make a call that receives a value. free: the event it waits for; None: it need not."""
        with self._stream:
            if free is not None:
                self._stream.wait_event(free)
            call()
        self._stream.record(self._came)
        self._work.wait_event(self._came)
