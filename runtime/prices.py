"""Prices: what runs and messages are expected to take before anything has run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from threadpoolctl import threadpool_limits

from partitioner import Partition
from partitioner.cost import CostTable, Speed, resident_bytes
from partitioner.machine import Machine
from partitioner.merging import merge_whole
from partitioner.segments import time_steps
from partitioner.types import BodyKey
from runtime import profile
from runtime.calibrate import measure_speed
from runtime.chores import Chores
from runtime.machine_costs import machine_costs
from runtime.measure import link_between
from runtime.replay import Costs, Link
from runtime.replicas import sums
from runtime.transports import Cluster, ThreadCluster, Transport
from symgraph.errors import ConfigError
from symgraph.graph import Graph

NO_CHORES = Chores()
INSTRUCTION = 2e-6  # seconds of the worker loop for one instruction
PROFILE_SECONDS = 3.0  # the most that a profile takes before a choice


@dataclass(frozen=True)
class Prices:
    """Seconds of a body's run, of messages and of an instruction's dispatch.

    bodies: measured kernels, or the speed by which all are estimated. machine: whose devices and
    links those are instead, where a file describes one.
    """

    bodies: CostTable | Speed
    link: Link
    overhead: float = INSTRUCTION
    machine: Machine | None = None

    def costs(self, partition: Partition, chores: Chores = NO_CHORES) -> Costs:
        """For simulations of this partition's schedules."""
        if self.machine is not None:
            costs = machine_costs(self.machine, partition, chores, overhead=self.overhead)
        else:
            rates, seconds = self.bodies.rates, self._body_seconds(partition)
            costs = Costs(
                lambda key: seconds[key] + chores.seconds(key, rates), self.link,
                overhead=self.overhead, update=lambda stage: chores.update_seconds(stage, rates),
            )  # fmt: skip
        return replace(costs, sums=sums(partition, costs.link_of))

    def _body_seconds(self, partition: Partition) -> dict[BodyKey, float]:
        bodies = partition.bodies
        if isinstance(self.bodies, Speed):
            return {key: self.bodies.seconds(body) for key, body in bodies.items()}
        touched = [0.0] * partition.ranks
        for key, body in bodies.items():
            touched[partition.rank(key)] += resident_bytes(body)
        return {k: self.bodies.seconds(b, touched[partition.rank(k)]) for k, b in bodies.items()}


Pricing = Callable[[Graph], Prices]  # of a graph's bodies, however it is cut


def machine_prices(machine: Machine) -> Prices:
    """Of a machine from a file; `bodies` and `link` are its fastest device and its slowest link."""
    count = range(len(machine.devices))
    links = [Link(*machine.link(a, b)) for a in count for b in count if a != b]
    slowest = max(links, key=lambda link: link.latency, default=Link())
    fastest = max(machine.devices, key=lambda device: device.flops)
    return Prices(fastest.speed, slowest, machine=machine)


def quick_prices() -> Prices:
    """From operation counts and a measurement of a tenth of a second."""
    with threadpool_limits(limits=1, user_api="blas"):
        return Prices(measure_speed(), measure_link())


def measured_prices(
    graph: Graph, known: Prices | None = None, *, devices: int | None = None
) -> Prices:
    """From a profile of the graph's kernels, one thread of BLAS each.

    known: what was measured before. devices: how many work at the same time, if that is known.
    """
    old = known.bodies if known is not None and isinstance(known.bodies, CostTable) else None
    with threadpool_limits(limits=1, user_api="blas"):
        seen = {*old.measured, *old.failed} if old else set()
        workers = min(devices or profile.cores(), profile.cores())
        new = profile.measure(
            versions(graph), seconds=PROFILE_SECONDS, known=seen, workers=workers
        )  # fmt: skip
        if known is None or old is None:
            return Prices(new, measure_link())
    measured, failed = {**old.measured, **new.measured}, {**old.failed, **new.failed}
    return replace(known, bodies=replace(old, measured=measured, failed=failed))


class PriceMemory:
    """The prices of all kernels that were asked for: each is measured once, whatever the graph."""

    def __init__(self) -> None:
        self._known: Prices | None = None
        self._graphs: set[str] = set()  # digests of those whose kernels are known

    def pricing(self, measure: Callable[[Graph, Prices | None], Prices]) -> Pricing:
        """Pricing with this memory. measure: measured_prices, or shared_prices on a cluster."""

        def priced(graph: Graph) -> Prices:
            if self._known is None or graph.digest not in self._graphs:
                self._known = measure(graph, self._known)
                self._graphs.add(graph.digest)
            return self._known

        return priced


def fresh_pricing() -> Pricing:
    """Measured in this process, with a memory of its own."""
    return PriceMemory().pricing(measured_prices)


def versions(graph: Graph) -> list[Graph]:
    """A graph as it stands and merged for time segments of all `segment_lengths`."""
    return [graph, *(merge_whole(graph, k) for k in (None, *segment_lengths(time_steps(graph))))]


def segment_lengths(steps: int) -> list[int]:
    """The lengths of time segments that are tried: a half, a quarter, an eighth ... of all."""
    parts = [1 << n for n in range(1, max(1, steps).bit_length())]
    return list(dict.fromkeys(-(-steps // part) for part in parts))


def shared_prices(graph: Graph, known: Prices | None = None, *, cluster: Cluster) -> Prices:
    """The prices that rank 0 measures, on every rank of a cluster: all choose the same.

    known: see measured_prices.
    """

    def work(transport: Transport) -> Prices:
        transport.waiting_for("rank 0's profile of the network")
        own = None
        if transport.rank == 0:
            prices = measured_prices(graph, known, devices=transport.size)
            assert isinstance(prices.bodies, CostTable)
            own = [
                prices.bodies.to_json(),
                float(prices.link.latency),
                float(prices.link.bandwidth),
            ]
        table, latency, bandwidth = transport.exchange(own)[0]
        return Prices(CostTable.from_json(table), link_of_host(latency, bandwidth))

    return cluster.run(work)[0]


def link_of_host(latency: float, bandwidth: float) -> Link:
    """Between ranks of one host, whose receivers copy."""
    return Link(latency, bandwidth, by_receiver=True)


def measure_link() -> Link:
    """Latency and bandwidth of messages between two threads."""
    with ThreadCluster(2) as cluster:
        level = cluster.run(lambda transport: link_between(transport, 0, 1))[0]
    return link_of_host(level.latency, level.bandwidth)


def save_prices(prices: Prices, path: str | Path) -> None:
    """Write measured prices as JSON: a table of costs, with the link of this machine.

    ConfigError if nothing was measured, or the file cannot be written.
    """
    if not isinstance(prices.bodies, CostTable) or prices.machine is not None:
        raise ConfigError(f"no costs were measured to write to {path}: `machine` describes them")
    latency, bandwidth = float(prices.link.latency), float(prices.link.bandwidth)
    found = json.loads(prices.bodies.to_json())
    found["link"] = {"latency": latency, "bandwidth": bandwidth}
    try:
        text = json.dumps(found, indent=1, sort_keys=True) + "\n"
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the costs to {path}: {error.strerror}") from None


def load_prices(path: str | Path) -> Prices:
    """What `save_prices` wrote, or a table of costs alone; ConfigError if it is neither."""
    table = CostTable.load(path)
    link = json.loads(Path(path).read_text(encoding="utf-8")).get(
        "link", {"latency": 0, "bandwidth": inf}
    )
    try:
        return Prices(table, link_of_host(float(link["latency"]), float(link["bandwidth"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: link: expected latency and bandwidth, not {error}") from None
