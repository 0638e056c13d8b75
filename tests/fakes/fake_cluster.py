"""A fake cluster: the threads cluster with bounded channels and ranks that are late at random.

Of each channel's undelivered messages the first `capacity` are copied, so that their tickets are
done; a later one becomes one of the first when others are received. So with 0 a ticket is done
when the message is received (rendezvous), with None at once. The delays are seeded.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from runtime.backends.parcels import Parcel
from runtime.transports import ThreadCluster, Ticket, Transport
from runtime.transports.base import T
from runtime.transports.mpi.endpoint import Tickets
from runtime.transports.threads.cluster import ThreadTransport

DELAY = 0.001  # seconds; the longest


class FakeCluster(ThreadCluster):
    """Ranks as threads with channels of one capacity; see the top of this file."""

    def __init__(self, ranks: int, capacity: int | None, seed: int, delay: float = DELAY) -> None:
        """delay: seconds that a rank waits at most before each send and each wait."""
        super().__init__(ranks)
        self.capacity, self.seed, self.delay = capacity, seed, delay

    def run(self, work: Callable[[Transport], T]) -> list[T]:
        """See `Cluster.run`."""
        lock = threading.Lock()

        def faked(end: Transport) -> T:
            assert isinstance(end, ThreadTransport)
            fake = _FakeTransport(end, self, lock)
            result = work(fake)
            fake.close()
            return result

        return super().run(faked)


class _FakeTransport(ThreadTransport):
    """A second endpoint of a rank, used in the place of the first."""

    def __init__(self, end: ThreadTransport, cluster: FakeCluster, lock: threading.Lock) -> None:
        """lock: held by whoever buffers messages."""
        super().__init__(end.rank, end._run, end.timeout)
        self._end, self._lock = end, lock
        self._capacity, self._delay = cluster.capacity, cluster.delay
        self._random = random.Random(f"{cluster.seed} {end.rank}")

    def send_all(self, parcel: Parcel, dst: int, tags: Sequence[int]) -> Ticket:
        """Send the messages one by one, as MPI does, since a channel holds `capacity` of them."""
        if len(tags) > 1:
            pairs = zip(parcel.arrays, tags, strict=True)
            return Tickets([self.send_all(Parcel([array]), dst, (tag,)) for array, tag in pairs])
        self._dawdle()
        ticket = super().send_all(parcel, dst, tags)
        self._buffer(self.rank, dst)
        return ticket

    def recv_all(self, parcel: Parcel, src: int, tags: Sequence[int]) -> None:
        if len(tags) > 1:
            for array, tag in zip(parcel.arrays, tags, strict=True):
                self.recv_all(Parcel([array]), src, (tag,))
            return
        super().recv_all(parcel, src, tags)
        self._buffer(src, self.rank)

    def waiting_for(self, what: str) -> None:
        super().waiting_for(what)
        self._end.waiting_for(what)  # from where the cluster takes it for its errors

    def wait_until(self, ready: Callable[[], object], awaited: str, peer: int) -> None:
        self._dawdle()
        super().wait_until(ready, awaited, peer)

    def _buffer(self, src: int, dst: int) -> None:
        """Take over what the channel has room for, so that senders need their arrays no longer."""
        with self._lock:
            for message in list(self._run.boxes[dst].messages[src])[: self._capacity]:
                if not message.taken:
                    message.parcel = Parcel([np.array(a) for a in message.parcel.arrays])
                    message.take()

    def _dawdle(self) -> None:
        """Be late by a hundredth of the longest delay to all of it, in even magnitudes."""
        time.sleep(self._delay * 100.0 ** -self._random.random())
