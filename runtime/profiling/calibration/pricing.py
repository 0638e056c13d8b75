"""Pricing: costs that are measured on the devices at hand, when a choice depends on them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

from partitioner.base.segments import segment_lengths, time_steps
from partitioner.costs.cost import CostTable
from partitioner.costs.machine import Level
from partitioner.cutting.merging import merge_whole
from runtime.backends.device.arrays import device
from runtime.backends.device.processor import await_quiet, limit_blas
from runtime.planning.costs.files import prices_data, prices_from
from runtime.planning.costs.prices import (
    NOMINAL,
    CostModel,
    CostProvider,
    KernelCosts,
    Pair,
    first_of_kinds,
    link_of_host,
)
from runtime.profiling.calibration import cpu_kernels as profile
from runtime.profiling.calibration.gpu_kernels import measure_card
from runtime.profiling.calibration.machine import link_between, links_between
from runtime.profiling.calibration.rates import measure_speed
from runtime.schedule.replay import Link
from runtime.transports import Cluster, ThreadCluster, Transport, launched_by_mpi
from runtime.transports.mpi.cluster import open_cluster
from symgraph.core.context import Context, cpu
from symgraph.core.graph import Graph
from symgraph.core.heap import trim_heap

SECONDS = 3.0  # time limit for profiling one kind of device before a choice
NOTHING = CostModel({}, {})
HERE = cpu(0), cpu(1)


class Hosts(NamedTuple):
    """The devices of several hosts."""

    devices: Sequence[Context]
    #: Of each device: the name of its host.
    names: Sequence[str]
    #: The links inside hosts and between them.
    links: Mapping[str, Level]


class Reach(NamedTuple):
    """The links of a cluster's processes."""

    #: On one host: the links inside a kind of devices and between kinds.
    links: Mapping[Pair, Link] = {}
    #: Where there are several.
    hosts: Hosts | None = None

    def of(self, prices: CostModel) -> CostModel:
        """Return the prices with these links."""
        if self.hosts is not None:
            return prices.on_hosts(*self.hosts)
        return replace(prices, links={**prices.links, **self.links})


def quick_prices(contexts: Sequence[Context] = HERE[:1]) -> CostModel:
    """Return costs by operation counts and a measurement of a tenth of a second."""
    with limit_blas(1):
        kinds: dict[str, KernelCosts] = {
            c.kind: measure_speed(device(c)) for c in first_of_kinds(contexts)
        }
        return CostModel(kinds, measure_links(contexts))


def measured_prices(
    graph: Graph, contexts: Sequence[Context], known: CostModel = NOTHING, *, threads: int = 1
) -> CostModel:
    """Measure the graph's kernels on each kind of device.

    Args:
        graph: the graph.
        contexts: the devices.
        known: what was measured before, which is returned as well.
        threads: the threads of BLAS for each device.
    """
    await_quiet()
    with limit_blas(threads):
        kinds: dict[str, KernelCosts] = {
            c.kind: _measured(graph, c, contexts, known.kinds.get(c.kind))
            for c in first_of_kinds(contexts)
        }
        links = measure_links(contexts, known.links)
    trim_heap()  # kernels are timed on arrays that are as large as the network's
    return replace(known, kinds={**known.kinds, **kinds}, links={**known.links, **links})


def _measured(
    graph: Graph, context: Context, contexts: Sequence[Context], old: KernelCosts | None
) -> CostTable:
    """Return the table of a device's kind; CPUs run all together, as in a pipeline."""
    known = old if isinstance(old, CostTable) else None
    graphs, here = versions(graph), device(context)
    if here.is_host:
        workers = min(sum(c.kind == context.kind for c in contexts), profile.cores())
        new = profile.measure(graphs, seconds=SECONDS, known=known, workers=workers)
    else:
        seen = {*known.measured, *known.failed} if known else ()
        new = measure_card(graphs, context, seconds=SECONDS, known=seen)
    if known is None:
        return new
    measured, failed = {**known.measured, **new.measured}, {**known.failed, **new.failed}
    variation = known.variation.union(new.variation)
    return replace(known, measured=measured, failed=failed, variation=variation)


class CostCache:
    """The costs of all kernels so far: each kernel is measured once, whatever the graph."""

    def __init__(self, threads: int = 1) -> None:
        """threads: those of BLAS for each device."""
        self._threads = threads
        self._known = NOTHING
        self._asked: set[tuple[str, Context]] = set()  # (digest of a graph, device)
        self._reaches: dict[tuple[int, tuple[Context, ...]], Reach] = {}

    def pricing(
        self, measure: Callable[[Graph, Sequence[Context], CostModel], CostModel]
    ) -> CostProvider:
        """Return a provider with this cache; measure: measures what is not known yet."""

        def priced(graph: Graph, contexts: Sequence[Context]) -> CostModel:
            asked = {(graph.digest, context) for context in contexts}
            if not asked <= self._asked:
                self._known = measure(graph, contexts, self._known)
                self._asked |= asked
            return self._known.only(contexts)

        return priced

    def kernels_on(self, cluster: Cluster) -> CostProvider:
        """Return a provider with this cache, where rank 0 of a cluster measures for all."""
        return self.pricing(partial(shared_prices, cluster=cluster, threads=self._threads))

    def on(self, cluster: Cluster, devices: Sequence[Context]) -> CostProvider:
        """Return such a provider that also knows the links between the processes of a cluster.

        Args:
            cluster: the cluster.
            devices: the device of each rank.
        """
        kernels = self.kernels_on(cluster)

        def priced(graph: Graph, contexts: Sequence[Context]) -> CostModel:
            prices, key = kernels(graph, contexts), (id(cluster), tuple(devices))
            if key not in self._reaches:
                self._reaches[key] = reach_of(cluster, devices)
            return self._reaches[key].of(prices)

        return priced


def fresh_pricing() -> CostProvider:
    """Return a provider that measures in this process, with a memory of its own.

    Ranks of mpiexec that each measured for themselves would make different plans. Where their
    cluster is open, rank 0 measures for all, so all must plan; else costs are nominal.
    """
    if not launched_by_mpi(os.environ):
        return CostCache().pricing(measured_prices)
    cache = CostCache()

    def priced(graph: Graph, contexts: Sequence[Context]) -> CostModel:
        cluster = open_cluster()
        if cluster is None:
            return NOMINAL
        ranks = contexts[: cluster.size]
        several = len(ranks) == cluster.size
        return (cache.on(cluster, ranks) if several else cache.kernels_on(cluster))(graph, contexts)

    return priced


def versions(graph: Graph) -> list[Graph]:
    """Return a graph as it is, and merged for time segments of all `segment_lengths`."""
    return [graph, *(merge_whole(graph, k) for k in (None, *segment_lengths(time_steps(graph))))]


def shared_prices(
    graph: Graph,
    contexts: Sequence[Context],
    known: CostModel = NOTHING,
    *,
    cluster: Cluster,
    threads: int = 1,
) -> CostModel:
    """Return what rank 0 measures, on every rank of a cluster, so that all choose the same.

    Args:
        graph, contexts, known, threads: see measured_prices.
        cluster: the cluster.
    """

    def work(transport: Transport) -> CostModel:
        transport.waiting_for("rank 0's profile of the network")
        own: dict[str, Any] | None = None
        if transport.rank == 0:
            own = prices_data(measured_prices(graph, contexts, known, threads=threads))
        return prices_from(transport.exchange(own)[0])

    return cluster.run(work)[0]


def reach_of(cluster: Cluster, devices: Sequence[Context]) -> Reach:
    """Measure the links of a cluster's processes; those of threads are in all prices.

    Args:
        cluster: the cluster.
        devices: the device of each rank.
    """

    def work(transport: Transport) -> Reach:
        transport.waiting_for("the measurement of the links between ranks")
        names = transport.exchange(platform.node())
        if len({*names}) == 1:
            return Reach(_links(transport, devices))
        here = device(devices[transport.rank])
        with here.use():
            return Reach(hosts=Hosts(devices, names, links_between(transport, names, here)))

    return Reach() if len(cluster.ranks) == cluster.size else cluster.run(work)[0]


def measure_links(contexts: Sequence[Context], known: Collection[Pair] = ()) -> dict[Pair, Link]:
    """Measure the link between each two kinds of devices, and inside a kind, between threads.

    GPUs have a link to each other if there are two; CPUs always have one.

    Args:
        contexts: the devices.
        known: pairs of device kinds to skip.
    """
    there = {*contexts} | ({*HERE} if "cpu" in {c.kind for c in contexts} else set())
    devices = sorted(there)
    if {*_pairs(devices)} <= {*known}:
        return {}
    with ThreadCluster(len(devices)) as cluster:
        return cluster.run(lambda end: _links(end, devices, known))[0]


def _pairs(devices: Sequence[Context]) -> dict[Pair, tuple[int, int]]:
    """Return of each two kinds of devices, and of each kind, the first two ranks."""
    found: dict[Pair, tuple[int, int]] = {}
    for (a, one), (b, other) in combinations(enumerate(devices), 2):
        if (other.kind, one.kind) not in found:
            found.setdefault((one.kind, other.kind), (a, b))
    return found


def _links(
    transport: Transport, devices: Sequence[Context], known: Collection[Pair] = ()
) -> dict[Pair, Link]:
    """Measure on all ranks the links of their kinds of devices, but those that are known."""
    found: dict[Pair, Link] = {}
    here = device(devices[transport.rank])
    for (sender, receiver), ranks in _pairs(devices).items():
        if (sender, receiver) not in known:
            level = link_between(transport, *ranks, here)
            for source, target in ((sender, receiver), (receiver, sender)):
                found[source, target] = link_of_host(level.latency, level.bandwidth, target)
    return found
