"""Network: predicted steps beside measured ones over links between hosts.

    python -m examples.cluster --hosts 4 --delay 10ms --bandwidth 100Mbit -- \\
        mpiexec -n 4 python -m benchmarks.network

Layers sleep, so that the links alone decide: every rank measures them, and what their messages, the
meetings at the end of each step and the sleeps take is predicted. Prints a row per schedule and
size of messages.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import median

import numpy as np

import benchmarks.sleeping as sleeping
from benchmarks.prediction import WARM_UP, known_costs
from partitioner.base.types import BodyKey
from partitioner.costs.cost import Speed
from runtime import Options, Plan, Session, initialize, plan, simulate
from runtime.planning.costs.prices import CostModel
from runtime.profiling.calibration.pricing import reach_of
from runtime.schedule.replay import Link
from runtime.transports import Cluster, make_cluster
from symgraph import Feed, TensorType, cpu
from symgraph.frontend.optimizer import SGD
from symgraph.init import Uniform

LAYERS, BATCH = ((0.004, 0.004, 0.002),) * 4, 8
SCHEDULES = ("gpipe", "1f1b", "zb-h1")
KIBIBYTES = (1, 16, 64, 256)  # of a message


def main() -> None:
    """Measure and print all rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=15)
    steps = parser.parse_args().steps
    devices = tuple(map(cpu, range(len(LAYERS))))
    with make_cluster("mpi", len(devices)) as cluster:
        alike = CostModel.alike(Speed(1e15, 0.0), Link())
        prices = reach_of(cluster, devices).of(alike)
        for schedule in SCHEDULES:
            for size in KIBIBYTES:
                made = _planned(schedule, size)
                costs = replace(prices.costs(made.partition), run=_sleeps(made).__getitem__)
                predicted = simulate(made.schedule, made.partition, costs).makespan
                measured = _measured(made, size, cluster, steps)
                if 0 in cluster.ranks:
                    print(
                        f"{schedule:6} {size:4} KiB  measured {1e3 * measured:7.1f} ms  "
                        f"predicted {1e3 * predicted:7.1f} ms  {predicted / measured - 1:+.1%}",
                        flush=True,
                    )


def _planned(schedule: str, kibibytes: int) -> Plan:
    """Plan a chain of layers whose messages have this size."""
    groups = {f"g{layer}": cpu(layer) for layer in range(len(LAYERS))}
    options = Options(groups, cpu(0), (), schedule, BATCH // 2, update=True)
    specs = {"x": Feed(TensorType((BATCH, kibibytes * 128)))}  # float32, 2 samples in each message
    return plan(sleeping.chain(LAYERS), specs, options, wrt=None)


def _sleeps(made: Plan) -> dict[BodyKey, float]:
    phases = {
        f"{phase}{layer}": seconds
        for layer, row in enumerate(LAYERS)
        for phase, seconds in zip("FIW", row, strict=True)
    }
    return known_costs(made, phases)


def _measured(made: Plan, kibibytes: int, cluster: Cluster, steps: int) -> float:
    """Return the median seconds from the end of a step to that of the next, on this process."""
    arrays = initialize(made, cluster, Uniform(0.1), seed=1)
    session = Session(made, cluster, arrays, optimizer=SGD(), clip=1.0)
    feeds = {"x": np.zeros((BATCH, kibibytes * 128), np.float32)}
    spans = []
    for _ in range(WARM_UP + steps):
        session.step(feeds)
        spans.append(session.timeline.makespan)
    return median(spans[WARM_UP:])


if __name__ == "__main__":
    main()
