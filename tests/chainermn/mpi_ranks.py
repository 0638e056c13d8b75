"""Program that the MPI tests of communicators start on every rank: `... mpi_ranks CASE`."""

from __future__ import annotations

import os
import sys

import numpy as np

from runtime.chainermn import create_communicator
from tests.chainermn.checks import CHECKS, data


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def contract() -> None:
    world = create_communicator("flat", timeout=60)
    for check in CHECKS.values():
        check(world)
    for name in ("naive", "hierarchical", "two_dimensional"):
        node = str(world.rank // 2 if world.size % 2 == 0 else world.rank)
        CHECKS["check_mean_gradients"](create_communicator(name, node=node))
    from mpi4py import MPI

    CHECKS["check_collectives"](create_communicator("naive", MPI.COMM_WORLD.Dup()))
    say("contract kept")


def fails() -> None:
    """Rank 1 raises; nobody handles anything."""
    comm = create_communicator("flat", timeout=60)
    comm.allreduce(np.ones(1))
    if comm.rank == 1:
        _ = 1 / 0
    comm.recv(1, 7)


def wrong_tag() -> None:
    comm = create_communicator("flat", timeout=60)
    if comm.rank == 0:
        comm.send(data(3), 1, 4)
        comm.recv(1)
    elif comm.rank == 1:
        comm.recv(0, 5)
    comm.bcast(data(1))


CASES = {"contract": contract, "fails": fails, "wrong-tag": wrong_tag}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
