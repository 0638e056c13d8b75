"""Bounded waits of an MPI process: polls that end with what is awaited, or say why it never comes.

A poll backs off into short sleeps, so that there may be more ranks than cores, and then looks at
the lifeline, so that it ends when a peer fails. What has come already is taken without all that:
callers try once themselves before they wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from runtime.transports.base import GRACE_SECONDS, Failure, T, peer_failed, timed_out
from runtime.transports.mpi.lifeline import Lifeline
from runtime.transports.stalls import RankStatus, Wait
from symgraph.core.errors import RunError

__all__: list[str] = []

QUICK = 100  # polls before the clock, or anything else, is looked at
# Seconds of polling before others are let run, and before the first sleep; then sleeps grow.
ALONE_SECONDS, SPIN_SECONDS, FIRST_SLEEP, LAST_SLEEP = 20e-6, 200e-6, 50e-6, 1e-3
BYTE_SECONDS = 1e-9  # polling is what moves a large message: nobody sleeps while one is under way
EVERY_RUN = 0  # as the run of a wait: it may end as long as no rank has said goodbye

_abandoned: list[object] = []  # requests of failed waits: MPI may still use their buffers


def abandon(request: object) -> None:
    """Keep what a failed wait leaves behind until the process ends."""
    _abandoned.append(request)


class Waiter:
    """The waits of one rank, one after the other."""

    def __init__(
        self,
        mpi: Any,
        rank: int,
        timeout: float,
        lifeline: Lifeline | None = None,
    ) -> None:
        """mpi: mpi4py's module. timeout: seconds. lifeline: None if there is none (yet)."""
        self.rank, self.timeout = rank, timeout
        self.what = ""
        self.stand = RankStatus() if lifeline is None else lifeline.stand
        self._lifeline, self._error, self._truncated = lifeline, mpi.Exception, mpi.ERR_TRUNCATE
        self._waits = 0

    def meet(self, group: str) -> int:
        """This rank comes to a meeting of a group: its number."""
        number = self.stand.met[group] = self.stand.met.get(group, 0) + 1
        return number

    def until(
        self,
        attempt: Callable[[], T | None],
        awaited: str,
        needs: Sequence[int] = (),
        *,
        moving: int = 0,
        run: int = EVERY_RUN,
        meeting: tuple[str, int] = ("", 0),
    ) -> T:
        """Call `attempt` until it gives something true, and return that.

        needs, run, meeting: see `Wait`. needs: empty if messages move already, and the wait ends
        unless somebody fails. moving: their bytes; this rank may be needed for them to go on.
        Of MPI's errors, only the one of a message that is larger than its buffer is passed on.
        """
        try:
            for _ in range(QUICK):
                if got := attempt():
                    return got
            self._waits += 1
            text = f"{awaited} ({self.what})" if self.what else awaited
            wait = Wait(self._waits, text, tuple(needs), run, meeting)
            return self._poll(attempt, awaited, moving * BYTE_SECONDS, wait)
        except self._error as error:
            if error.Get_error_class() == self._truncated:
                raise
            # A peer's death may show as an MPI error before the lifeline tells of it.
            time.sleep(GRACE_SECONDS / 3)
            self.check(awaited)
            raise RunError(f"rank {self.rank}, waiting for {awaited}: MPI says {error}") from error
        except BaseException:
            abandon(attempt)
            raise

    def _poll(self, attempt: Callable[[], T | None], awaited: str, busy: float, wait: Wait) -> T:
        begin = time.monotonic()
        pause = FIRST_SLEEP
        try:
            while True:
                self.check(awaited)
                if got := attempt():
                    return got
                waited = time.monotonic() - begin
                if waited < busy + SPIN_SECONDS:
                    if waited > busy + ALONE_SECONDS:
                        os.sched_yield()  # to a rank that has work, if there are few cores
                    continue
                if waited > self.timeout:
                    raise timed_out(self.rank, self.timeout, awaited, self.what)
                self._show(wait)
                time.sleep(pause)
                pause = min(1.2 * pause, LAST_SLEEP)
        finally:
            self._show(None)

    def alarm(self, call: Callable[[], None]) -> None:
        """Let it be called, on any thread, when a failure is heard of."""
        if self._lifeline is not None:
            self._lifeline.alarms.append(call)

    def watch(self, look: Callable[[], str]) -> None:
        """Let it be called now and then, on another thread: what it says is this rank's failure."""

        def failure() -> Failure | None:
            text = look()
            return Failure(self.rank, self.what, text) if text else None

        if self._lifeline is not None:
            self._lifeline.watches.append(failure)

    def check(self, awaited: str) -> None:
        """Raise PeerFailed, at once, for a wait that a failure has made vain."""
        if self._lifeline is not None and self._lifeline.failure is not None:
            raise peer_failed(self.rank, self._lifeline.failure, awaited, self.what)

    def _show(self, wait: Wait | None) -> None:
        self.stand.wait = wait if wait is None or wait.needs else None
