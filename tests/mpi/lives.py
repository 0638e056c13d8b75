"""Program: a rank comes to a moment of its life, says so, and may be stopped or killed there.

    python -m tests.mpi.lives MOMENT RANK

The rank says `at MOMENT process P guard G` and stays there until a signal comes; others go on.
Moments: `before` MPI (`never`: the others' patience for it is short), `running`, `busy` (holding
Python's lock in C), `closed` (after its goodbye).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import numpy as np

from runtime.transports import Transport
from runtime.transports.mpi import cluster as mpi_cluster
from runtime.transports.mpi.cluster import MpiCluster
from symgraph.app.command_line import report
from tests.helpers.faults import say

RANK = int(os.environ.get("PMI_RANK", "0"))
TIMEOUT = 60.0
HEARTBEAT = 2.0  # seconds
BUSY = 3 * HEARTBEAT
START = 5.0


def come_to(moment: str) -> None:
    """Stay here if it is this rank's moment: until a signal, or busy for a while."""
    here, rank = sys.argv[1:3]
    if (here, int(rank)) != (moment, RANK):
        return
    say(f"at {moment} process {os.getpid()} guard {os.getppid()}")
    if moment == "busy":
        ctypes.PyDLL(None).usleep(int(BUSY * 1e6))  # a PyDLL call keeps the lock
    else:
        signal.pause()


def work(end: Transport) -> None:
    """A step."""
    total = np.ones(1)
    end.allreduce(total)
    come_to("running")
    come_to("busy")
    end.allreduce(total)


def main() -> int:
    """Run as the command line does."""
    come_to("before")
    come_to("never")
    timeout = TIMEOUT
    if sys.argv[1] == "never":
        timeout = mpi_cluster.START_SECONDS = START
    cluster = MpiCluster(timeout, HEARTBEAT)
    try:
        cluster.run(work)
        cluster.complete()
    except (Exception, KeyboardInterrupt) as error:
        status = report(error)
        cluster.leave(status)
    come_to("closed")
    say(f"rank {RANK} has done its work")
    return 0


if __name__ == "__main__":
    say(f"process {os.getpid()}")
    os.register_at_fork(after_in_child=lambda: say(f"process {os.getpid()}"))
    sys.exit(main())
