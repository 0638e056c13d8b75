"""Program: every run of `tests.mpi.cases` on the ranks that mpiexec started.

    mpiexec -n N python -m tests.mpi.step FOLDER

Each rank writes the arrays that came out on it to FOLDER/rank<r>.npz, as `<run>: <name>`.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

from runtime.backends.cpu.choice import OPENBLAS, named, settle
from runtime.transports.mpi.cluster import MpiCluster
from tests.mpi.cases import runs


def main(folder: Path) -> None:
    """Do all runs on one cluster, one after the other, with the products of the tests' process."""
    settle(named(OPENBLAS))
    warnings.filterwarnings("error")
    warnings.filterwarnings("ignore", "group2ctx maps groups")
    found: dict[str, np.ndarray] = {}
    with MpiCluster(timeout=60.0) as cluster:
        for name, run in runs(cluster.size).items():
            arrays = run(cluster)[cluster.rank]
            found |= {f"{name}: {key}": array for key, array in arrays.items()}
        np.savez(folder / f"rank{cluster.rank}.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
