"""Program: ChainerMN's patterns on the ranks that mpiexec started, against serial networks.

Says how many outputs and gradients this rank has checked; all ranks together have all of them.
"""

from __future__ import annotations

import os

import numpy as np

from runtime.planning.options import Options
from runtime.transports import Cluster, ThreadCluster
from runtime.transports.mpi.cluster import MpiCluster
from symgraph.core.context import cpu
from tests.helpers.chain_patterns import PATTERNS, case_of, point_to_point
from tests.helpers.collectives import network, tree
from tests.helpers.pipelines import Case, judge, make_plan, run_step
from tests.mpi.cases import Training, alone, options, spread


def checked(case: Case, serial: Case, cluster: Cluster, rank: int) -> int:
    """Run it; how many arrays came out here, all of them as in the serial network."""
    want = judge(serial)
    placed = Options({f"rank{r}": cpu(r) for r in range(cluster.size)})
    got = run_step(make_plan(case, placed), case, cluster)[rank]
    pairs = [(a, b) for a, b in zip(got.outputs, want.outputs, strict=True) if a is not None]
    pairs += [(grad, want.grads[name]) for name, grad in got.grads.items()]
    for array, right in pairs:
        np.testing.assert_allclose(array, right, rtol=1e-10, atol=1e-12)
    return len(pairs)


def cases(p: int) -> dict[str, tuple[Case, Case]]:
    """Name -> the network on p ranks, and the serial one."""
    found = {}
    for name, pattern in PATTERNS.items():
        got, want = pattern(p)
        found[name] = case_of(got, p), case_of(want, p)
    for name, retain in (("X1", False), ("X2", True)):
        found[name] = (point_to_point(retain, p),) * 2
    for make in (network, tree):
        found[f"X8-{make.__name__}"] = (make(p),) * 2
    return found


def main() -> None:
    with MpiCluster(timeout=60.0) as cluster:
        count = sum(checked(*pair, cluster, cluster.rank) for pair in cases(cluster.size).values())
        training = Training(options(cluster.size, spread(cluster.size, "first", "second")))
        found = training(cluster)[cluster.rank]
        with ThreadCluster(1) as one:
            want = alone(training)(one)[0]
        assert all(array.tobytes() == want[name].tobytes() for name, array in found.items())
        assert len(set(want["losses"].tolist())) == 5
        os.write(1, f"checked {count} {' '.join(sorted(found))}\n".encode())


if __name__ == "__main__":
    main()
