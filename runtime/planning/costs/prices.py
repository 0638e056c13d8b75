"""Prices: what runs and messages are expected to take before anything has run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from itertools import permutations, product

from partitioner import Partition
from partitioner.base.types import BodyKey
from partitioner.costs import cost
from partitioner.costs.cost import (
    STEADY,
    CostTable,
    KindCosts,
    Speed,
    Variation,
    resident_bytes,
)
from partitioner.costs.machine import Device, Level, LinkSpec, Machine
from partitioner.cutting.merging import MergedCosts
from runtime.planning.costs.overheads import StepOverheads
from runtime.schedule.message_costs import (
    Number,
    meeting_seconds,
    replica_sum_seconds,
    replica_weight_seconds,
)
from runtime.schedule.replay import Costs, Link
from symgraph.core.context import KINDS, Context
from symgraph.core.errors import ConfigError
from symgraph.core.graph import Graph, Node

NO_OVERHEADS = StepOverheads()
UNSURE = 0.06  # of a step: nine of ten predictions are off by less if the machine does not vary
INSTRUCTION = 2e-6  # seconds of the worker loop for one instruction

KernelCosts = CostTable | Speed
Pair = tuple[str, str]  # the device kinds of a message's sender and receiver


@dataclass(frozen=True)
class CostModel:
    """Seconds that bodies, messages and the dispatch of instructions take."""

    kinds: Mapping[str, KernelCosts]
    """Kind of device -> measured kernels, or the speed by which all kernels are estimated."""
    links: Mapping[Pair, Link]
    """Kinds of sender and receiver -> their link."""
    overhead: float = INSTRUCTION
    """Seconds of a rank before each instruction."""
    machine: Machine | None = field(default=None, kw_only=True)
    """A machine whose pairs of devices each have their own link, and whose devices each have
    their own speed, where their kind's kernels were not measured."""
    _links_of: dict[Sequence[Context], Mapping[tuple[int, int], Link]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def alike(cls, kernels: KernelCosts, link: Link, overhead: float = INSTRUCTION) -> CostModel:
        """Make the model of equal devices, of whatever kind."""
        links = dict.fromkeys(product(KINDS, KINDS), link)
        return cls(dict.fromkeys(KINDS, kernels), links, overhead)

    @classmethod
    def of_machine(cls, machine: Machine) -> CostModel:
        """Make the model of a machine; a kind counts as its fastest device and slowest links."""
        devices = sorted(machine.devices, key=lambda device: device.flops)
        kinds: dict[str, KernelCosts] = {d.context.kind: d.speed for d in devices}
        slowest: dict[Pair, LinkSpec] = {}
        for (a, x), (b, y) in permutations(enumerate(machine.contexts), 2):
            pair, link = (x.kind, y.kind), machine.link(a, b)
            if slowest.get(pair, link).latency <= link.latency:
                slowest[pair] = link
        links = {pair: Link(*link) for pair, link in slowest.items()}
        return cls(kinds, links, machine=machine)

    @property
    def measured(self) -> bool:
        """Whether kernels of all kinds were measured."""
        return all(isinstance(kernels, CostTable) for kernels in self.kinds.values())

    def interval(self, seconds: float) -> tuple[float, float] | None:
        """Return between which seconds a step is expected whose prediction is `seconds`.

        It is as wide as predictions are off on a steady machine (see `benchmarks.prediction`), and
        as kernels varied when they were measured, by other programs for example. None: kernels of
        some kind were not measured.
        """
        if not self.measured:
            return None
        variations = [k.variation for k in self.kinds.values() if isinstance(k, CostTable)]
        found = reduce(Variation.union, variations, STEADY)
        return seconds * found.low * (1 - UNSURE), seconds * found.high * (1 + UNSURE)

    @property
    def link(self) -> Link:
        """The link with the largest latency, for uses that need a single link."""
        return max(self.links.values(), key=lambda link: link.latency, default=Link())

    def of(self, context: Context) -> KernelCosts:
        """Return the costs of a device's kernels.

        Raises:
            ConfigError: a device that has no costs.
        """
        if self.machine is None or isinstance(self.kinds.get(context.kind), CostTable):
            return self._of_kind(context)
        return self.machine.devices[self.machine.index(context)].speed

    def _of_kind(self, context: Context) -> KernelCosts:
        if context.kind not in self.kinds:
            raise ConfigError(
                f"{context} has no costs, they were measured for {' and '.join(self.kinds)} "
                f"devices: measure with `symgraph profile` where {context} is among `devices`"
            )
        return self.kinds[context.kind]

    def link_between(self, sender: Context, receiver: Context) -> Link:
        """Return the link that carries messages from one device to another."""
        if self.machine is not None:
            return Link(*self.machine.link(*map(self.machine.index, (sender, receiver))))
        return self.links.get((sender.kind, receiver.kind), self.link)

    def _host_of(self, context: Context) -> str:
        """Return what a device shares with those of the same host; GPUs share nothing."""
        if context.kind == "gpu":
            return str(context)
        machine = self.machine
        return "" if machine is None else machine.devices[machine.index(context)].node

    def _links_between(self, devices: Sequence[Context]) -> dict[tuple[int, int], Link]:
        """Return the links of all pairs of ranks; those that are alike are one object."""
        pairs = permutations(enumerate(devices), 2)
        if self.machine is None:
            return {(a, b): self.link_between(x, y) for (a, x), (b, y) in pairs}
        machine = self.machine
        at = [machine.index(context) for context in devices]
        known: dict[int, Link] = {}
        links = {}
        for (a, _), (b, _) in pairs:
            spec = machine.link(at[a], at[b])
            if id(spec) not in known:
                known[id(spec)] = Link(*spec)
            links[a, b] = known[id(spec)]
        return links

    def only(self, contexts: Iterable[Context]) -> CostModel:
        """Return the model without the kinds that none of these devices has."""
        wanted: set[str] = {c.kind for c in contexts}
        kinds = {kind: kernels for kind, kernels in self.kinds.items() if kind in wanted}
        links = {pair: link for pair, link in self.links.items() if {*pair} <= wanted}
        return replace(self, kinds=kinds or self.kinds, links=links)  # errors name them if none is

    def machine_of(self, contexts: Iterable[Context]) -> Machine:
        """Make a machine of these devices, for users without a machine file.

        CPUs are in one socket, GPUs in one node but in sockets of their own, so that each pair of
        kinds has its own links. Devices of several hosts have those of their machine.
        """
        devices = []
        for context in contexts:
            speed = self._speed_of(context)
            node, socket = ("1", str(context.index)) if context.kind == "gpu" else ("0", "0")
            if self.machine is not None:
                node = self.machine.devices[self.machine.index(context)].node
            devices.append(
                Device(context, speed.flops, speed.call, speed.bandwidth, node=node, socket=socket)
            )
        if self.machine is not None:
            return Machine(tuple(devices), self.machine.links)
        pairs = {"socket": ("cpu", "cpu"), "node": ("gpu", "gpu"), "rack": ("cpu", "gpu")}
        links = {level: self.links.get(pair, self.link) for level, pair in pairs.items()}
        levels = {n: Level(float(link.latency), float(link.bandwidth)) for n, link in links.items()}
        return Machine(tuple(devices), levels)

    def _speed_of(self, context: Context) -> Speed:
        kernels = self._of_kind(context)
        return kernels.speed if isinstance(kernels, CostTable) else kernels

    def on_hosts(
        self, contexts: Sequence[Context], hosts: Sequence[str], links: Mapping[str, Level]
    ) -> CostModel:
        """Return the model of devices on several hosts, between which these links were measured."""
        devices = []
        for context, host in zip(contexts, hosts, strict=True):
            if context.kind in self.kinds:
                speed = self._speed_of(context)
                device = Device(context, speed.flops, speed.call, speed.bandwidth, node=host)
                devices.append(device)
        return replace(self, machine=Machine(tuple(devices), links))

    def with_links_of(self, other: CostModel) -> CostModel:
        """Return the model with the links of another one."""
        return replace(self, links={**self.links, **other.links}, machine=other.machine)

    def merged(self, graph: Graph, contexts: Iterable[Context]) -> cost.Costs:
        """Return the costs of a graph's nodes with its products merged, to place them by."""
        kinds: dict[str, cost.Costs] = {
            c.kind: MergedCosts(self._of_kind(c), graph) for c in first_of_kinds(contexts)
        }
        return KindCosts(kinds) if len(kinds) > 1 else next(iter(kinds.values()))

    def alone(self) -> CostModel:
        """Return the model of a device that works while the others wait."""
        kinds = {kind: kernels.alone for kind, kernels in self.kinds.items()}
        return replace(self, kinds=kinds)

    def least(self) -> CostModel:
        """Return the model in which measured kernels take the least, whatever is in caches."""
        kinds = {kind: kernels.least() for kind, kernels in self.kinds.items()}
        return replace(self, kinds=kinds)

    def placed(self, partition: Partition) -> cost.Costs:
        """Return the costs of a cut graph's nodes, each on its own device."""
        devices = partition.placement.devices
        if len({d.kind for d in devices}) == 1:
            return self._of_kind(devices[0])
        return _PlacedCosts(
            {
                node.name: self._of_kind(devices[partition.rank(key)])
                for key, body in partition.bodies.items()
                for node in body.graph
                if not node.is_variable
            }
        )

    def costs(self, partition: Partition, overheads: StepOverheads = NO_OVERHEADS) -> Costs:
        """Return the costs of a partition's bodies and messages, for simulations.

        Raises:
            ConfigError: a device that has no costs, or is not in the machine.
        """
        placement, devices = partition.placement, partition.placement.devices
        kernels = [self.of(context) for context in devices]
        rates = [k.rates for k in kernels]
        unshared = cache(lambda: _body_seconds(partition, [k.alone for k in kernels]))
        shares = len({*placement.rank_of}) > 1 and any(isinstance(k, CostTable) for k in kernels)
        seconds = _body_seconds(partition, kernels) if shares else unshared()
        if devices not in self._links_of:
            self._links_of[devices] = self._links_between(devices)
        last = {placement.rank_of[stage]: stage for stage in overheads.updating}

        def update(stage: int) -> float:
            rank = placement.rank_of[stage]
            found = overheads.update_seconds(stage, rates[rank])
            return found + rates[rank].step if last.get(rank) == stage else found

        def besides(key: BodyKey) -> float:
            return overheads.seconds(key, rates[partition.rank(key)])

        costs = Costs(
            lambda key: seconds[key] + besides(key),
            links=self._links_of[devices],
            overhead=self.overhead,
            update=update,
            alone=(lambda key: unshared()[key] + besides(key)) if shares else None,
            hosts=[self._host_of(context) for context in devices] if shares else (),
        )
        if self.machine is not None:
            norms = len(partition.graph.variables)
            meeting = meeting_seconds(range(len(devices)), norms * 8, costs.link_of)
            costs = replace(costs, meeting=meeting)
        given, shared = (partition, costs.link_of), overheads.shared_memory
        sums = replica_sum_seconds(*given, spread=overheads.spreads_sums, shared_memory=shared)
        if not overheads.spreads_weights:
            return replace(costs, sums=sums)
        weights = replica_weight_seconds(*given, shared_memory=shared)
        return replace(costs, sums=sums, weights=weights)


def _body_seconds(partition: Partition, kernels: Sequence[KernelCosts]) -> dict[BodyKey, float]:
    """Return the seconds of each body; kernels: the costs of each rank's."""
    touched = [0.0] * partition.ranks
    for key, body in partition.bodies.items():
        touched[partition.rank(key)] += resident_bytes(body)
    variables = frozenset([node.name for node in partition.graph.variables])
    seconds = {}
    for key, body in partition.bodies.items():
        rank = partition.rank(key)
        costs = kernels[rank]
        surroundings = () if isinstance(costs, Speed) else (touched[rank], variables)
        seconds[key] = costs.seconds(body, *surroundings)
    return seconds


class _PlacedCosts:
    """Costs by the node; variables take no time."""

    def __init__(self, of: Mapping[str, KernelCosts]) -> None:
        self._of = of

    def seconds_of(self, node: Node, graph: Graph) -> float:
        return 0.0 if node.is_variable else self._of[node.name].seconds_of(node, graph)


def first_of_kinds(contexts: Iterable[Context]) -> list[Context]:
    """Return the first device of each kind."""
    first: dict[str, Context] = {}
    for context in contexts:
        first.setdefault(context.kind, context)
    return [*first.values()]


def link_of_host(latency: Number, bandwidth: Number, receiver: str = "cpu") -> Link:
    """Return the link between ranks of one host, to a device of a kind.

    A CPU's thread copies what it receives; a GPU has a stream for it beside its work.
    """
    return Link(latency, bandwidth, by_receiver=receiver == "cpu")


# -- providers -----------------------------------------------------------------------------------

# Gives the costs of a graph on some of these devices.
CostProvider = Callable[[Graph, Sequence[Context]], CostModel]

# The costs to compare with where nothing is measured; they are the same on all ranks.
NOMINAL = CostModel.alike(Speed(1e11, 5e-6, 1e10), Link(2e-5, 5e9))


def always(costs: CostModel) -> CostProvider:
    """Return a provider that gives the same costs for all graphs."""
    return lambda graph, contexts: costs


# What makes the costs of options that name none: planning itself measures nothing.
MEASURED = "runtime.profiling.calibration.pricing"


def default_pricing() -> CostProvider:
    """Return the provider of options that name none: it measures the network's kernels."""
    provider: CostProvider = importlib.import_module(MEASURED).fresh_pricing()
    return provider
