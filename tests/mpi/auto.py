"""Program: a plan that is left to `auto`, before and after its cluster is made, and a session.

    mpiexec -n 2 python -m tests.mpi.auto

Prints for both plans whether the costs were measured, and their digests.
"""

from __future__ import annotations

import os

import runtime
import symgraph as sg
from runtime.profiling.calibration import pricing

pricing.SECONDS = 0.0  # the fewest passes over the kernels


def planned() -> runtime.Plan:
    """Plan layers of several widths, without groups."""
    x = sg.sym.Variable("data")
    for width in (64, 96, 128, 160):
        x = sg.sym.FullyConnected(x, num_hidden=width, name=f"fc{width}")
    loss = sg.sym.SoftmaxOutput(x, sg.sym.Variable("label"), name="softmax")
    feeds = {
        "data": sg.Feed(sg.TensorType((32, 64), "float32")),
        "label": sg.Feed(sg.TensorType((32,), "float32")),
    }
    devices = sg.cpu(0), sg.cpu(1)
    options = runtime.Options(
        devices=devices, strategy="auto", schedule="auto", micro_batches=4, update=True
    )
    return runtime.plan(loss, feeds, options, wrt=None)


def main() -> None:
    """Say a line on each rank."""
    before = planned()
    with runtime.make_cluster("mpi", 2) as cluster:
        after = planned()
        arrays = runtime.initialize(after, cluster, sg.init.Xavier(), seed=1)
        runtime.Session(after, cluster, arrays, optimizer=sg.optimizer.create("sgd"))
        said = [f"{p.prices.measured} {p.digest}" for p in (before, after) if p.prices]
        os.write(1, f"{' '.join(said)}\n".encode())


if __name__ == "__main__":
    main()
