"""SIGTERM and SIGUSR1, which schedulers send before they kill: how a run ends by them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from symgraph.app.command_line import TERMINATED
from symgraph.core.errors import Terminated

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
ECHO_SECONDS = 1.0  # a launcher's signal may come to a rank twice: from it, and from its guard


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise Terminated in the block at the first of these signals."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise Terminated(f"stopped by {signal.Signals(signum).name}")

    with _handled(end):
        yield


class StopSignals:
    """Training's part of a run: the first signal asks for its end, a later one ends the process."""

    def __init__(self) -> None:
        #: The name of the first signal; None: there was none.
        self.name: str | None = None
        self._at = 0.0

    @contextmanager
    def heard(self, ask: Callable[[], None]) -> Iterator[None]:
        """Call `ask` at the first signal in the block."""

        def hear(signum: int, frame: FrameType | None) -> None:
            now = time.monotonic()
            if self.name is None:
                self.name, self._at = signal.Signals(signum).name, now
                ask()
            elif now - self._at > ECHO_SECONDS:
                os._exit(TERMINATED)

        with _handled(hear):
            yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals in the block, if this is the main thread: others may not."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, handler) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, old in before.items():
            signal.signal(signum, old)
