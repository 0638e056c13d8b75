"""Prices: what runs and messages are expected to take before anything has run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from partitioner import Partition
from partitioner.base.types import BodyKey
from partitioner.costs import cost
from partitioner.costs.cost import CostTable, KindCosts, Speed, resident_bytes
from partitioner.costs.machine import Machine
from partitioner.cutting.merging import MergedCosts
from runtime.planning.costs.machine_costs import machine_costs
from runtime.planning.costs.overheads import StepOverheads
from runtime.schedule.message_costs import Number, replica_sum_seconds
from runtime.schedule.replay import Costs, Link
from symgraph.core.context import KINDS, Context
from symgraph.core.errors import ConfigError
from symgraph.core.graph import Graph, Node

NO_CHORES = StepOverheads()
INSTRUCTION = 2e-6  # seconds of the worker loop for one instruction

Bodies = CostTable | Speed
Pair = tuple[str, str]  # kinds of a message's sender and of its receiver


@dataclass(frozen=True)
class CostModel:
    """Seconds of a body's run, of messages and of an instruction's dispatch.

    kinds: kind of device -> measured kernels, or the speed by which all are estimated. links: the
    kinds of a sender and a receiver -> what carries their messages. machine: whose devices and
    links those are instead, where a file describes one.
    """

    kinds: Mapping[str, Bodies]
    links: Mapping[Pair, Link]
    overhead: float = INSTRUCTION
    machine: Machine | None = field(default=None, kw_only=True)

    @classmethod
    def alike(cls, bodies: Bodies, link: Link, overhead: float = INSTRUCTION) -> CostModel:
        """Where all devices are equal, of whatever kind."""
        links = dict.fromkeys(product(KINDS, KINDS), link)
        return cls(dict.fromkeys(KINDS, bodies), links, overhead)

    @property
    def measured(self) -> bool:
        """Whether kernels were measured, of all kinds."""
        tables = (isinstance(bodies, CostTable) for bodies in self.kinds.values())
        return self.machine is None and all(tables)

    @property
    def link(self) -> Link:
        """The slowest, where one must stand for all."""
        return max(self.links.values(), key=lambda link: link.latency, default=Link())

    def of(self, context: Context) -> Bodies:
        """Of a device; ConfigError if its kind has no prices."""
        if context.kind not in self.kinds:
            raise ConfigError(
                f"{context} has no costs, they were measured for {' and '.join(self.kinds)} "
                f"devices: measure with --profile where {context} is among `devices`"
            )
        return self.kinds[context.kind]

    def link_of(self, sender: Context, receiver: Context) -> Link:
        """What carries the messages of two devices."""
        return self.links.get((sender.kind, receiver.kind), self.link)

    def only(self, contexts: Iterable[Context]) -> CostModel:
        """What concerns these devices."""
        here: set[str] = {c.kind for c in contexts}
        kinds = {kind: bodies for kind, bodies in self.kinds.items() if kind in here}
        links = {pair: link for pair, link in self.links.items() if {*pair} <= here}
        return replace(self, kinds=kinds, links=links)

    def merged(self, graph: Graph, contexts: Iterable[Context]) -> cost.Costs:
        """Seconds of a graph's nodes with its products merged, on devices to place them on."""
        kinds: dict[str, cost.Costs] = {
            c.kind: MergedCosts(self.of(c), graph) for c in first_of_kinds(contexts)
        }
        return KindCosts(kinds) if len(kinds) > 1 else next(iter(kinds.values()))

    def placed(self, partition: Partition) -> cost.Costs:
        """Seconds of a cut graph's nodes, each on its own device."""
        devices = partition.placement.devices
        if len({d.kind for d in devices}) == 1:
            return self.of(devices[0])
        return _Placed(
            {
                node.name: self.of(devices[partition.rank(key)])
                for key, body in partition.bodies.items()
                for node in body.graph
                if not node.is_variable
            }
        )

    def costs(self, partition: Partition, chores: StepOverheads = NO_CHORES) -> Costs:
        """For simulations of this partition's schedules."""
        placement = partition.placement
        if self.machine is not None:
            costs = machine_costs(self.machine, partition, chores, overhead=self.overhead)
        else:
            ranks = list(enumerate(placement.devices))
            rates, seconds = [self.of(d).rates for _, d in ranks], self._body_seconds(partition)
            costs = Costs(
                lambda key: seconds[key] + chores.seconds(key, rates[partition.rank(key)]),
                links={(a, b): self.link_of(x, y) for a, x in ranks for b, y in ranks if a != b},
                overhead=self.overhead,
                update=lambda stage: chores.update_seconds(stage, rates[placement.rank_of[stage]]),
            )
        return replace(costs, sums=replica_sum_seconds(partition, costs.link_of))

    def _body_seconds(self, partition: Partition) -> dict[BodyKey, float]:
        bodies, devices = partition.bodies, partition.placement.devices
        touched = [0.0] * partition.ranks
        for key, body in bodies.items():
            touched[partition.rank(key)] += resident_bytes(body)
        found = {}
        for key, body in bodies.items():
            rank = partition.rank(key)
            own = self.of(devices[rank])
            between = () if isinstance(own, Speed) else (touched[rank],)
            found[key] = own.seconds(body, *between)
        return found


class _Placed:
    """Costs by the node; variables take no time."""

    def __init__(self, of: Mapping[str, Bodies]) -> None:
        self._of = of

    def seconds_of(self, node: Node, graph: Graph) -> float:
        return 0.0 if node.is_variable else self._of[node.name].seconds_of(node, graph)


def first_of_kinds(contexts: Iterable[Context]) -> list[Context]:
    """The first device of each kind."""
    found: dict[str, Context] = {}
    for context in contexts:
        found.setdefault(context.kind, context)
    return [*found.values()]


CostProvider = Callable[
    [Graph, Sequence[Context]], CostModel
]  # of a graph on some of these devices


def machine_prices(machine: Machine) -> CostModel:
    """Of a machine from a file: of each kind its fastest device, of each pair its slowest link."""
    devices = sorted(machine.devices, key=lambda device: device.flops)
    kinds: dict[str, Bodies] = {d.context.kind: d.speed for d in devices}
    links: dict[Pair, Link] = {}
    for a, x in enumerate(machine.devices):
        for b, y in enumerate(machine.devices):
            pair, link = (x.context.kind, y.context.kind), Link(*machine.link(a, b))
            if a != b and links.get(pair, link).latency <= link.latency:
                links[pair] = link
    return CostModel(kinds, links, machine=machine)


def link_of_host(latency: Number, bandwidth: Number, receiver: str = "cpu") -> Link:
    """Between ranks of one host, to a device of a kind.

    A CPU's thread copies what it receives; a GPU has a stream for it beside its work.
    """
    return Link(latency, bandwidth, by_receiver=receiver == "cpu")
