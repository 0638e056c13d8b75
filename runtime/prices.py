"""Prices: what runs and messages are expected to take before anything has run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from partitioner import Partition
from partitioner.cost import CostTable, Speed
from runtime import profile
from runtime.calibrate import measure_speed
from runtime.replay import Costs, Link
from runtime.transports import Cluster, ThreadCluster, Transport
from symgraph.graph import Graph

SMALL, LARGE, TURNS = 8, 4 << 20, 20  # bytes of the messages, and how often they go forth and back
INSTRUCTION = 2e-6  # seconds of the worker loop for one instruction
PROFILE_SECONDS = 5.0  # the most that a profile takes before a choice


@dataclass(frozen=True)
class Prices:
    """Seconds of a body's run, of messages and of an instruction's dispatch.

    bodies: measured kernels, or the speed by which all are estimated.
    """

    bodies: CostTable | Speed
    link: Link
    overhead: float = INSTRUCTION

    def costs(self, partition: Partition) -> Costs:
        """For simulations of this partition's schedules."""
        price = self.bodies.body if isinstance(self.bodies, CostTable) else self.bodies.seconds
        seconds = {key: price(body) for key, body in partition.bodies.items()}
        return Costs(seconds.__getitem__, self.link, overhead=self.overhead)


Pricing = Callable[[Graph], Prices]  # of a graph's bodies, however it is cut


def quick_prices() -> Prices:
    """From operation counts and a measurement of a tenth of a second."""
    with threadpool_limits(limits=1, user_api="blas"):
        return Prices(measure_speed(), measure_link())


def measured_prices(graph: Graph) -> Prices:
    """From a profile of the graph's kernels, one thread each."""
    with threadpool_limits(limits=1, user_api="blas"):
        return Prices(profile.measure([graph], seconds=PROFILE_SECONDS), measure_link())


def shared_prices(graph: Graph, cluster: Cluster) -> Prices:
    """The prices that rank 0 measures, on every rank of a cluster: all choose the same."""

    def work(transport: Transport) -> Prices:
        transport.waiting_for("rank 0's profile of the network")
        own = None
        if transport.rank == 0:
            prices = measured_prices(graph)
            assert isinstance(prices.bodies, CostTable)
            own = [
                prices.bodies.to_json(),
                float(prices.link.latency),
                float(prices.link.bandwidth),
            ]
        table, latency, bandwidth = transport.exchange(own)[0]
        return Prices(CostTable.from_json(table), Link(latency, bandwidth))

    return cluster.run(work)[0]


def measure_link() -> Link:
    """Latency and bandwidth of messages between two threads."""
    with ThreadCluster(2) as cluster:
        small, large = (min(cluster.run(_ping(nbytes))) for nbytes in (SMALL, LARGE))
    return Link(small, LARGE / max(large - small, 1e-9))


def _ping(nbytes: int) -> Callable[[Transport], float]:
    """Work of two ranks that gives the least seconds of a message of that size."""

    def work(transport: Transport) -> float:
        message, other = np.zeros(nbytes, np.int8), 1 - transport.rank
        best = float("inf")
        for _ in range(TURNS):
            start = time.perf_counter()
            for sender in (0, 1):
                if transport.rank == sender:
                    transport.send(message, other, 0).wait()
                else:
                    transport.recv(message, other, 0)
            best = min(best, (time.perf_counter() - start) / 2)
        return best

    return work
