"""A fake cluster: threads with bounded channels and late ranks, where a hang is an error at once.

It is the threads cluster, whose ranks are late by seeded random delays, plus two things:

Capacity. Of each channel's undelivered messages the first `capacity` are copied, so that their
tickets are done; a later one becomes one of the first when others are received. So with 0 a
ticket is done when the message is received (rendezvous), with None at once.

Hangs. A rank that waits says what for. Only a rank that does not wait can bring about what another
one waits for: so when all ranks wait or are at their ends, and nothing that is waited for has
come, nothing will. No clock is asked.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.transports import Failure, ThreadCluster, Ticket, Transport
from runtime.transports.base import T
from runtime.transports.threads import ThreadTransport
from symgraph.errors import PeerFailed

DELAY = 0.001  # seconds; the longest


class Hung(PeerFailed):
    """No rank can go on; raised on every rank that waits."""


class FakeCluster(ThreadCluster):
    """Ranks as threads with channels of one capacity; see the top of this file."""

    def __init__(self, ranks: int, capacity: int | None, seed: int, delay: float = DELAY) -> None:
        """delay: seconds that a rank waits at most before each send and each wait."""
        super().__init__(ranks)
        self.capacity, self.seed, self.delay = capacity, seed, delay

    def run(self, work: Callable[[Transport], T]) -> list[T]:
        """See `Cluster.run`; Hung if the ranks come to where none can go on."""
        watch = _Watch(self.size)

        def faked(end: Transport) -> T:
            assert isinstance(end, ThreadTransport)
            fake = _FakeTransport(end, self, watch)
            result = work(fake)
            fake.close()  # not after an error, which the others are about to hear of: no hang
            return result

        return super().run(faked)


class _Watch:
    """Who waits for what, and whether that is for ever."""

    def __init__(self, size: int) -> None:
        self.lock = threading.Lock()  # also held by whoever buffers messages
        self.verdict: Failure | None = None
        self._size = size
        self._waits: dict[int, tuple[Callable[[], object], str]] = {}

    def begin(self, rank: int, ready: Callable[[], object], why: str) -> Failure | None:
        """The rank waits until `ready()`; why none can go on, if that is so now."""
        with self.lock:
            self._waits[rank] = ready, why
            busy = len(self._waits) < self._size or any(come() for come, _ in self._waits.values())
            if busy or self.verdict is not None:
                return None
            lines = [f"  rank {rank} {why}" for rank, (_, why) in sorted(self._waits.items())]
            self.verdict = Failure(-1, "", "\n".join(["no rank can go on:", *lines]))
            return self.verdict

    def end(self, rank: int) -> None:
        """The rank goes on."""
        with self.lock:
            del self._waits[rank]


class _FakeTransport(ThreadTransport):
    """A second endpoint of a rank, used in the place of the first."""

    def __init__(self, end: ThreadTransport, cluster: FakeCluster, watch: _Watch) -> None:
        super().__init__(end.rank, end._run, end.timeout)
        self._end, self._watch = end, watch
        self._capacity, self._delay = cluster.capacity, cluster.delay
        self._random = random.Random(f"{cluster.seed} {end.rank}")

    def send(self, array: npt.NDArray[Any], dst: int, tag: int) -> Ticket:
        self._dawdle()
        ticket = super().send(array, dst, tag)
        self._buffer(self.rank, dst)
        return ticket

    def recv(self, out: npt.NDArray[Any], src: int, tag: int) -> None:
        super().recv(out, src, tag)
        self._buffer(src, self.rank)

    def waiting_for(self, what: str) -> None:
        super().waiting_for(what)
        self._end.waiting_for(what)  # from where the cluster takes it for its errors

    def close(self) -> None:
        super().close()
        self._look(lambda: False, "is at its end")

    def wait_until(self, ready: Callable[[], object], awaited: str) -> None:
        self._dawdle()
        at = f" ({self.what})" if self.what else ""
        self._look(ready, f"waits for {awaited}{at}")
        try:
            super().wait_until(ready, awaited)
        except PeerFailed as error:
            if self._run.failure is self._watch.verdict:
                raise Hung(str(error)) from None
            raise
        self._watch.end(self.rank)

    def _look(self, ready: Callable[[], object], why: str) -> None:
        """Rest until `ready()`; if no rank can go on then, all are told."""
        verdict = self._watch.begin(self.rank, ready, why)
        if verdict is not None:
            self._run.fail(verdict)

    def _buffer(self, src: int, dst: int) -> None:
        """Take over what the channel has room for, so that senders need their arrays no longer."""
        with self._watch.lock:
            for message in list(self._run.boxes[dst].messages[src])[: self._capacity]:
                if not message.taken:
                    message.array = np.array(message.array)
                    message.take()

    def _dawdle(self) -> None:
        """Be late by a hundredth of the longest delay to all of it, in even magnitudes."""
        time.sleep(self._delay * 100.0 ** -self._random.random())
