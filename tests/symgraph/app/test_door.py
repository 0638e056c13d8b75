"""The door of our commands: how a process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from symgraph.app.door import RANK_VARIABLES

INTERRUPTED = 130


@pytest.mark.parametrize(
    ("status", "rank", "ended"),
    [
        (INTERRUPTED, "0", -signal.SIGINT),
        (INTERRUPTED, None, INTERRUPTED),
        (2, "0", 2),
        (0, "0", 0),
    ],
)
def test_a_rank_interrupted_before_mpi_ends_by_the_signal(status, rank, ended):
    """After Ctrl-C of one rank in its imports, the others waited a minute in MPI_Init.

    MPICH's launcher ends the others for a signal, but not for an exit status.
    """
    environment = {k: v for k, v in os.environ.items() if k not in RANK_VARIABLES}
    if rank is not None:
        environment["PMI_RANK"] = rank
    program = f"from symgraph.app.door import leave; leave({status})"
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    assert done.returncode == ended
