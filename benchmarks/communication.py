"""Messages through the layers of the runtime, compared with mpi4py's on raw buffers.

    mpiexec -n 2 python -m benchmarks.communication [--seconds 0.3]

Point to point: half the round-trip time of a float32 message. `endpoint` is the layer of pipelines;
`communicator` is `Communicator.send`, `recv` and `allreduce`. All receive into existing arrays.
Rounds of the layers alternate; the table shows the fastest round of each relative to mpi4py's:
above 1 is slower.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from runtime import launched_by_mpi
from runtime.chainermn import create_communicator
from runtime.transports.mpi.cluster import MpiCluster

SIZES = [1 << k for k in range(10, 25, 2)]  # bytes
ROUNDS = 7
Turn = Callable[[], Any]


def there_and_back(rank: int, send: Turn, receive: Turn) -> Turn:
    """Send one message each way."""

    def turn() -> None:
        for step in (send, receive) if rank == 0 else (receive, send):
            step()

    return turn


def point_to_point(raw: Any, comm: Any, end: Any, nbytes: int) -> dict[str, Turn]:
    """Return a function per layer that runs a turn with messages of `nbytes` bytes.

    As in pipelines, the endpoint receives even if its own message has not left yet.
    """
    other = 1 - raw.rank
    array, out = (np.zeros(nbytes // 4, np.float32) for _ in range(2))
    back = partial(there_and_back, raw.rank)
    return {
        "mpi4py": back(lambda: raw.Send(array, other), lambda: raw.Recv(out, other)),
        "endpoint": back(lambda: end.send(array, other, 0), lambda: end.recv(out, other, 0)),
        "communicator": back(lambda: comm.send(array, other), lambda: comm.recv(other, out=out)),
    }


def allreduce(raw: Any, comm: Any, end: Any, nbytes: int) -> dict[str, Turn]:
    """Return a function per layer that runs a turn of sums over both ranks."""
    array, out = (np.zeros(nbytes // 4, np.float32) for _ in range(2))
    return {
        "mpi4py": lambda: raw.Allreduce(array, out),
        "communicator": lambda: comm.allreduce(array, out),
    }


def quickest(raw: Any, turns: dict[str, Turn], seconds: float) -> dict[str, float]:
    """Return the seconds per turn of the fastest round; rank 0 chooses the turns per round."""
    found: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(ROUNDS):
        for name, turn in turns.items():
            raw.Barrier()
            begin = time.perf_counter()
            turn()
            once = max(1e-7, time.perf_counter() - begin)
            count = raw.bcast(max(1, int(seconds / ROUNDS / once)))
            raw.Barrier()
            begin = time.perf_counter()
            for _ in range(count):
                turn()
            if number:
                found[name].append((time.perf_counter() - begin) / count)
    return {name: min(times) for name, times in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each size and layer")
    options = parser.parse_args()
    if not launched_by_mpi(os.environ):
        print("error: start it with mpiexec -n 2", file=sys.stderr)
        return 2
    with MpiCluster() as cluster:
        cluster.run(partial(compare, cluster, options.seconds))
    return 0


def compare(cluster: MpiCluster, seconds: float, end: Any) -> None:
    """Print a table of every size."""
    raw = cluster.line().comm.Dup()
    comm = create_communicator("flat", cluster.line().comm.Dup())
    for title, make, legs in (("point to point", point_to_point, 2), ("allreduce", allreduce, 1)):
        for nbytes in SIZES:
            times = quickest(raw, make(raw, comm, end, nbytes), seconds)
            if raw.rank == 0:
                own = times.pop("mpi4py") / legs
                shares = "  ".join(f"{n} {t / legs / own:5.2f}" for n, t in times.items())
                speed = f"{own * 1e6:9.1f} µs {nbytes / own / 1e9:6.2f} GB/s"
                print(f"{title:14}  {nbytes:9,} B  mpi4py {speed}  {shares}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
