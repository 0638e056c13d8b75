"""Program: wrong programs of `tests.helpers.wrong_programs` on the ranks that mpiexec started.

    for n in 2 3 4; do mpiexec -n $n python -m tests.mpi.wrong; done

All those for that many ranks, one after the other, each on a cluster of its own (a program would
rather end its process after a failure); with an argument k, one of k. Prints what each rank hears
of each of them, and how long it took.
"""

from __future__ import annotations

import json
import os
import sys
import time

from runtime.frontends.chainermn.communicator import Communicator
from runtime.frontends.chainermn.mpi_group import MpiGroup
from runtime.transports.mpi.cluster import MpiCluster
from symgraph.core.errors import SymgraphError
from tests.helpers.wrong_programs import COUNT, name_of, wrong_program

PATIENT = 60.0


def heard(number: int) -> dict[str, object]:
    """Run it; this rank's error."""
    program, error = wrong_program(number), None
    begin = time.monotonic()
    with MpiCluster(PATIENT) as cluster:
        rank, group = cluster.rank, MpiGroup(cluster.context())
        try:
            cluster.run(lambda end: program.work(end, Communicator("naive", group, "node")))
        except SymgraphError as caught:
            error = caught
    seconds = time.monotonic() - begin
    kind = "" if error is None else type(error).__name__
    return {
        "program": name_of(number),
        "rank": rank,
        "seconds": seconds,
        "kind": kind,
        "error": "" if error is None else str(error),
    }


def main(every: int) -> None:
    """Say a line for each program."""
    with MpiCluster(PATIENT) as cluster:
        size = cluster.size
    for number in range(0, COUNT, every):
        if wrong_program(number).ranks == size:
            os.write(1, f"{json.dumps(heard(number))}\n".encode())
    from mpi4py import MPI

    # After failures the package leaves without MPI_Finalize: with so many requests given up, MPICH
    # may crash in it. All ranks have come to their ends here, so this ends them, with status 0.
    MPI.COMM_WORLD.Barrier()
    time.sleep(0.5)  # so that the launcher has read all lines: an abort drops the others
    MPI.COMM_WORLD.Abort(0)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
