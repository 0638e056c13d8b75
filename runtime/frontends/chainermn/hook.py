"""The exception hook: a rank's uncaught exception ends all ranks, with one line that says why.

ChainerMN's hook is off by default, and mpiexec then waits forever (chainermn#236). This one is set
when the first communicator over all MPI processes is made.
"""

from __future__ import annotations

import atexit
import sys
from types import TracebackType

from runtime.transports.base import Failure, error_text
from runtime.transports.mpi.cluster import MpiCluster, MpiContext
from symgraph.core.errors import PeerFailed

_worlds: list[MpiContext] = []


def world_context(timeout: float) -> MpiContext:
    """Return the context of all MPI processes; made once, on every process, at the first call."""
    if not _worlds:
        cluster = MpiCluster(timeout)
        _set_hook(cluster)
        atexit.register(cluster.close)
        _worlds.append(cluster.context())
    return _worlds[0]


def _set_hook(cluster: MpiCluster) -> None:
    outer = sys.excepthook

    def end_all(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        where = cluster.context().waiter.what
        if isinstance(error, PeerFailed):
            print(error, file=sys.stderr)
        else:
            cluster.abort(Failure(cluster.rank, where, error_text(error)))
            outer(kind, error, trace)
        cluster.leave(1)

    sys.excepthook = end_all
