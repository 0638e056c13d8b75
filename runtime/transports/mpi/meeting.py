"""Meetings: all ranks of an MPI communicator come and say what they are about to call.

A collective of MPI hangs or mixes up contents if the ranks make different calls. So ranks first
gather a row of integers from each: the waits of that are bounded, whoever is missing is known, and
every rank sees the same rows, so all of them raise the same error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.transports.mpi.waiter import EVERY_RUN, Waiter

__all__: list[str] = []

Comm = Any  # mpi4py's Intracomm: only cluster.py knows that package
Bytes = npt.NDArray[np.uint8]


class Meeting:
    """The meetings of one communicator, one after another.

    Attributes:
        row: What this rank says, to be filled before `hold`.
        rows: What all ranks have said at the last meeting, by rank.
    """

    def __init__(
        self,
        comm: Comm,
        waiter: Waiter,
        name: str,
        ranks: Sequence[int],
        width: int,
        run: int = EVERY_RUN,
        whom: str = "all ranks",
    ) -> None:
        """Prepare meetings of `width` integers per rank.

        Args:
            name: The same on all of its ranks, and of no other communicator.
            ranks: The places of the communicator's ranks in the cluster.
            run: See `stalls.Wait`.
            whom: The ranks, as errors name them.
        """
        self.row = np.zeros(width, np.int64)
        self.rows = np.empty((comm.size, width), np.int64)
        self._comm, self._waiter, self._name, self._ranks = comm, waiter, name, ranks
        self._run, self._whom = run, whom

    def hold(self, verb: str) -> None:
        """Gather the rows of all ranks; `verb` is the call that waits name."""
        number = self._waiter.meet(self._name)
        request = self._comm.Iallgather(self.row, self.rows)
        if not request.Test():
            awaited, meeting = f"{verb} with {self._whom}", (self._name, number)
            self._waiter.until(request.Test, awaited, self._ranks, run=self._run, meeting=meeting)


def gather_bytes(
    comm: Comm,
    until: Callable[..., Any],
    mine: bytes,
    awaited: str,
    sizes: Sequence[int] | None = None,
) -> list[bytes]:
    """Gather the bytes of all ranks, by rank.

    Args:
        until: See `Waiter.until`.
        sizes: Of every rank's bytes; None: the ranks tell each other first.
    """
    if sizes is None:
        told = np.empty(comm.size, np.int64)
        until(comm.Iallgather(np.array([len(mine)]), told).Test, awaited)
        sizes = told.tolist()
    given, joined = np.frombuffer(mine, np.uint8), np.empty(sum(sizes), np.uint8)
    until(comm.Iallgatherv(given, [joined, sizes]).Test, awaited, buffers=(given, joined))
    return [part.tobytes() for part in np.split(joined, np.cumsum(sizes)[:-1])]


def exchange_all(comm: Comm, waiter: Waiter, obj: Any) -> list[Any]:
    """Do what `Transport.exchange` does before there are endpoints."""
    parts = gather_bytes(comm, waiter.until, json.dumps(obj).encode(), "the start of all ranks")
    return [json.loads(part) for part in parts]
