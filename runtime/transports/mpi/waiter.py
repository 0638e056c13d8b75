"""Bounded waits of an MPI process: polling until the awaited event, a failure or a time limit.

Polling backs off into short sleeps, so that there may be more ranks than cores, and checks the
lifeline, so that it ends when a peer fails. Callers try once themselves before they wait: what has
arrived already costs nothing of this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from runtime.transports.base import GRACE_SECONDS, Doing, Failure, T, peer_failed, timed_out
from runtime.transports.mpi.lifeline import Lifeline
from runtime.transports.stalls import RankStatus, Wait
from symgraph.core.errors import RunError

__all__: list[str] = []

QUICK_POLLS = 100  # before the clock or the lifeline is looked at
# Seconds of polling before other ranks may run, and before the first sleep: of ranks that share
# cores, and of ranks that have one each, which nobody else needs.
ALONE_SECONDS, SHARING_SECONDS, OWN_CORE_SECONDS = 20e-6, 200e-6, 10e-3
# A sleep is a part of what has been waited: that much is the most by which a wait is too long.
SLEEPING, FIRST_SLEEP, LAST_SLEEP = 0.02, 50e-6, 1e-3
BYTE_SECONDS = 1e-9  # no sleep for so long per byte: polling is what moves large messages
EVERY_RUN = 0  # the run of a wait that may last until a rank says goodbye

_abandoned: list[object] = []  # requests of failed waits: MPI may still use their buffers


def abandon(request: object) -> None:
    """Keep an object of a failed wait alive until the process ends."""
    _abandoned.append(request)


class Waiter:
    """The waits of one rank, one after another."""

    def __init__(
        self,
        mpi: Any,
        rank: int,
        timeout: float,
        lifeline: Lifeline | None = None,
        *,
        own_core: bool = False,
    ) -> None:
        """Make a waiter.

        Args:
            mpi: mpi4py's module.
            rank: this rank.
            timeout: seconds.
            lifeline: None if there is none (yet).
            own_core: whether this host has a core for each of its ranks.
        """
        self.rank, self.timeout = rank, timeout
        self._spinning = OWN_CORE_SECONDS if own_core else SHARING_SECONDS
        self.what = ""
        self.status = RankStatus() if lifeline is None else lifeline.status
        self._lifeline, self._error, self._truncated = lifeline, mpi.Exception, mpi.ERR_TRUNCATE
        self._waits = 0
        self._long: tuple[Wait, int] | None = None  # the current wait, and when it began

    def meet(self, group: str) -> int:
        """Count this rank's arrival at a group's next meeting; return the meeting's number."""
        number = self.status.met[group] = self.status.met.get(group, 0) + 1
        return number

    def until(
        self,
        attempt: Callable[[], T | None],
        awaited: str,
        needs: Sequence[int] = (),
        *,
        moving: int = 0,
        buffers: Sequence[object] = (),
        run: int = EVERY_RUN,
        meeting: tuple[str, int] = ("", 0),
    ) -> T:
        """Call `attempt` until it returns something true, and return that.

        Args:
            attempt: Polls once.
            awaited: What errors say that this rank waits for.
            needs: See `Wait`; empty if messages are moving already, so that the wait ends unless a
                rank fails.
            moving: Bytes of messages that may need this rank's polling to make progress.
            buffers: Kept until the process ends if the wait fails, because MPI may still use
                them. mpi4py 4.1's requests keep those of messages and of most collectives, but
                not of Iallgatherv, Iallreduce, Ireduce and Ireduce_scatter_block.
            run: See `Wait`.
            meeting: See `Wait`.

        Of MPI's errors, only that of a message larger than its buffer is passed on.
        """
        try:
            for _ in range(QUICK_POLLS):
                if got := attempt():
                    return got
            self._waits += 1
            text = f"{awaited} ({self.what})" if self.what else awaited
            wait = Wait(self._waits, text, tuple(needs), run, meeting)
            return self._poll(attempt, awaited, moving * BYTE_SECONDS, wait)
        except self._error as error:
            if error.Get_error_class() == self._truncated:
                raise
            # A peer's death may show as an MPI error before the lifeline reports it.
            time.sleep(GRACE_SECONDS / 3)
            self.check(awaited)
            raise RunError(f"rank {self.rank}, waiting for {awaited}: MPI says {error}") from error
        except BaseException:
            abandon((attempt, buffers))
            raise

    def _poll(self, attempt: Callable[[], T | None], awaited: str, busy: float, wait: Wait) -> T:
        begin = time.monotonic()
        self._long = wait, time.perf_counter_ns()
        try:
            while True:
                self.check(awaited)
                if got := attempt():
                    return got
                waited = time.monotonic() - begin
                if waited < busy + self._spinning:
                    if waited > busy + ALONE_SECONDS:
                        os.sched_yield()  # to a rank that has work, if cores are few
                    continue
                if waited > self.timeout:
                    raise timed_out(self.rank, self.timeout, awaited, self.what)
                self._show(wait)
                time.sleep(min(max(SLEEPING * waited, FIRST_SLEEP), LAST_SLEEP))
        finally:
            self._show(None)
            self._long = None

    def doing(self) -> Doing:
        """Return what this rank is doing; any thread may ask."""
        current = self._long
        if current is None:
            return Doing(self.what)
        wait, since = current
        return Doing(self.what, wait.text, wait.needs, since)

    def alarm(self, call: Callable[[], None]) -> None:
        """Register a call to be made, on any thread, when a failure is heard of."""
        if self._lifeline is not None:
            self._lifeline.alarms.append(call)

    def watch(self, look: Callable[[], str]) -> None:
        """Register a check for another thread to make regularly; its text is a failure."""

        def failure() -> Failure | None:
            text = look()
            return Failure(self.rank, self.what, text) if text else None

        if self._lifeline is not None:
            self._lifeline.watches.append(failure)

    def check(self, awaited: str) -> None:
        """Raise PeerFailed if a failure has made the wait pointless."""
        if self._lifeline is not None and self._lifeline.failure is not None:
            raise peer_failed(self.rank, self._lifeline.failure, awaited, self.what)

    def _show(self, wait: Wait | None) -> None:
        self.status.wait = wait if wait is None or wait.needs else None
