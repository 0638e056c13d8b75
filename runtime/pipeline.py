"""The pipeline plan: a symbol taken through the whole flow to checked programs for all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from partitioner import Partition, Placement, group2ctx
from partitioner.machine import Machine
from partitioner.place import Groups, devices_of
from partitioner.strategies import Constraints
from runtime.choose import FORWARD_ONLY, Tried, Wish, choose
from runtime.draft import Choice, Draft
from runtime.instructions import COLLECTIVE
from runtime.placing import Considered, Decision, decide, uniform_machine
from runtime.prices import Prices, Pricing, measured_prices
from runtime.program import Schedule
from runtime.replay import RankMemory
from symgraph.batching import Feed, batch_size, micro_batch, prologue, split_sizes
from symgraph.context import Context, cpu
from symgraph.errors import PlacementError
from symgraph.gradients import gradients
from symgraph.graph import Graph
from symgraph.lower import lower
from symgraph.ops.layout import Layout
from symgraph.shard import Shard, Sharded, shard
from symgraph.simplify import fold
from symgraph.symbol import Symbol
from symgraph.types import Value


@dataclass(frozen=True)
class Options:
    """How to cut and schedule, as the user says it.

    groups: group name -> device, or the devices of its shards (None: everything on `default`).
    devices: all ranks' devices.
    schedule, order, time_segment, recompute, memory: see runtime.choose.Wish. states: variable ->
    the output that is its value in the next step. slots: optimizer arrays a parameter. update:
    end each step with norms, losses and parameter updates. pricing: what runs and messages
    take, asked for only if something is chosen automatically. whole: see symgraph.shard.
    strategy: a name of partitioner.strategies, or `auto`; then groups are pinned to their
    devices. machine: the devices to place on; None: equal ones. keep_groups: see
    partitioner.strategies.Constraints. placement: of another plan of the same network.
    """

    groups: Groups | None = None
    default: Context = field(default_factory=cpu)
    devices: tuple[Context, ...] = ()
    schedule: str = "gpipe"
    micro_batches: int = 1
    states: Mapping[str, str] = field(default_factory=dict)
    update: bool = False
    order: str | None = None
    time_segment: int | str | None = None
    recompute: str | tuple[int, ...] = ()
    memory: int | None = None
    slots: int = 0
    pricing: Pricing = measured_prices
    whole: bool = True
    strategy: str | None = None
    machine: Machine | None = None
    keep_groups: bool = False
    placement: Placement | None = None

    def wish(self, train: bool) -> Wish:
        """What it says of schedules; a plan that does not train runs forward in order."""
        name = self.schedule if train else FORWARD_ONLY
        again = self.recompute if train else ()
        limit = self.memory if train else None
        return Wish(name, self.order, self.time_segment, again, limit, self.update)

    def machine_of(self, prices: Prices) -> Machine:
        """The devices that a strategy places on."""
        devices = self.devices or (self.default,)
        return self.machine or uniform_machine(devices, prices)

    def constraints(
        self,
        parameters: Collection[str],
        grads: Mapping[str, Value],
        together: Collection[tuple[str, str]],
    ) -> Constraints:
        """What a strategy must keep to."""
        devices = self.devices or (self.default,)
        pins = {
            group: devices.index(given)
            for group, given in (self.groups or {}).items() if isinstance(given, Context)
        }  # fmt: skip
        spread = {
            group: tuple(map(devices.index, given))
            for group, given in (self.groups or {}).items() if not isinstance(given, Context)
        }  # fmt: skip
        return Constraints(
            memory=self.memory, parameters=parameters, grads=grads, slots=self.slots,
            in_flight=min(self.micro_batches, len(devices)), keep_groups=self.keep_groups,
            together=together, pins=pins, spread=spread,
        )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Everything ranks need, the same on all of them.

    partitions: micro-batch size -> the cut graph of that size; all have the same bodies and
    edges. sizes: samples of each micro-batch. layouts, outputs: of the forward outputs.
    grads: parameter -> the value of its gradient. heads: output index -> its head gradient.
    states: variable -> the value it takes in the next step. memory: of each rank at its worst
    moment. choice, tried: the schedule, time segments and recomputation, and what else there was.
    late: what cannot be cut along time, in words. prices: what a choice was made with.
    considered: the placements of strategies. shards: variable -> the part of a parameter that it
    is; it stands in that one's place in `grads`.
    """

    partitions: Mapping[int, Partition]
    sizes: tuple[int, ...]
    schedule: Schedule
    feeds: Mapping[str, Feed]
    prologue: Graph
    outputs: tuple[Value, ...]
    output_names: tuple[str, ...]
    layouts: Mapping[Value, Layout]
    grads: Mapping[str, Value]
    heads: Mapping[int, str]
    states: Mapping[str, Value]
    memory: tuple[RankMemory, ...]
    choice: Choice
    tried: tuple[Tried, ...]
    late: str
    prices: Prices | None
    considered: tuple[Considered, ...]
    shards: Mapping[str, Shard]

    @property
    def partition(self) -> Partition:
        """The partition of the first (largest) micro-batch."""
        return self.partitions[self.sizes[0]]

    @property
    def parameters(self) -> list[str]:
        """Variables that are not fed: parameters and auxiliary states, in graph order."""
        fed = {*self.feeds, *(v.node for v in self.prologue.outputs), *self.heads.values()}
        return [n.name for n in self.partition.graph.variables if n.name not in fed]

    @property
    def trains(self) -> bool:
        """Whether its programs end with parameter updates."""
        return any((p.columns.code == COLLECTIVE).any() for p in self.schedule.programs)

    def rank_of(self, variable: str) -> int:
        """The rank on which a forward variable lives."""
        placement = self.partition.placement
        return placement.rank_of[placement.stage_of[variable]]

    @property
    def digest(self) -> str:
        """A hash of graphs, placement and programs, by which ranks compare what they run."""
        text = hashlib.sha256()
        for size, partition in sorted(self.partitions.items()):
            placement = partition.placement
            where = (sorted(placement.stage_of.items()), placement.rank_of)
            text.update(f"{size} {partition.graph.digest} {where}\n".encode())
        for program in self.schedule.programs:
            text.update(program.tobytes())
        return text.hexdigest()


def plan(
    symbol: Symbol,
    feeds: Mapping[str, Feed],
    options: Options,
    *,
    wrt: Sequence[str] | None = (),
    heads: bool = False,
    shapes: Mapping[str, Any] | None = None,
    dtypes: Mapping[str, Any] | None = None,
) -> Plan:
    """Lower, differentiate, place, cut, schedule and check.

    feeds: the variables that get new values every step. wrt: the variables to differentiate by;
    None: all arguments that are not fed; (): forward only. shapes, dtypes: of other variables,
    where they cannot be inferred. Raises what the steps raise; nothing has run yet.
    """
    _require_cpus(options)
    whole = batch_size(feeds) if feeds else 1
    sizes = split_sizes(whole, options.micro_batches)
    lowered = partial(_lowered, symbol, feeds, options, shapes, dtypes)
    full = lowered(whole)
    axes = {name: feed.axis for name, feed in feeds.items()}
    if wrt is None:
        wrt = [n for n in symbol.list_arguments() if n not in feeds]
    typed = {size: full if size == whole else lowered(size) for size in dict.fromkeys(sizes)}
    ready = {size: micro_batch(s.graph, axes, size, whole) for size, s in typed.items()}
    wrt = full.variables(wrt)
    both = {size: gradients(fold(m.graph), wrt, heads=heads) for size, m in ready.items()}
    size = sizes[0]
    graph = both[size].graph
    early = prologue(full.graph, axes)
    fed = {*feeds, *(v.node for v in early.outputs), *both[size].heads.values()}
    parameters = frozenset(n.name for n in graph.variables if n.name not in fed)
    together = [(n, _output(full, o).node) for n, o in options.states.items()]
    draft = partial(
        Draft, {size: b.graph for size, b in both.items()}, sizes, grads=both[size].grads,
        parameters=parameters, slots=options.slots,
    )  # fmt: skip
    constraints = partial(options.constraints, parameters, both[size].grads, together)
    placement, made, tried, prices, considered = _decide(
        graph, draft, options, constraints, options.wish(bool(wrt))
    )
    outputs = full.graph.outputs
    return Plan(
        made.partitions, sizes, made.schedule, dict(feeds), early, outputs, full.names,
        {v: ready[size].layouts[v] for v in outputs}, both[size].grads, both[size].heads,
        _states(options.states, full, placement), made.memory, made.choice, tried,
        "" if made.choice.time_segment is None else draft(placement).late(made.choice.time_segment),
        prices, considered, full.shards,
    )  # fmt: skip


def _decide(
    graph: Graph,
    draft: Callable[[Placement], Draft],
    options: Options,
    constraints: Callable[[], Constraints],
    wish: Wish,
) -> Decision:
    """The placement that the user gives, by groups or from another plan, or a strategy's."""
    if options.strategy is None or options.placement is not None:
        given = options.placement or group2ctx(
            graph, options.groups, options.default, options.devices
        )
        return Decision(given, *choose(draft(given), wish, options.pricing))
    limits = constraints()
    return decide(draft, graph, options.strategy, options.machine_of, limits, wish, options.pricing)


def _require_cpus(options: Options) -> None:
    grouped = (d for given in (options.groups or {}).values() for d in devices_of(given))
    for device in (options.default, *options.devices, *grouped):
        if device.kind != "cpu":
            raise PlacementError(
                f"{device} cannot be used: this version runs on cpu(0), cpu(1), ..."
            )


def _lowered(
    symbol: Symbol,
    feeds: Mapping[str, Feed],
    options: Options,
    shapes: Mapping[str, Any] | None,
    dtypes: Mapping[str, Any] | None,
    size: int,
) -> Sharded:
    """The forward graph for a batch of that many samples, in shards where it says so."""
    fed = {name: feed.part(size).shape for name, feed in feeds.items()}
    kinds = {name: feed.type.dtype for name, feed in feeds.items()}
    graph = lower(symbol, {**(shapes or {}), **fed}, {**(dtypes or {}), **kinds})
    devices = {group: len(devices_of(d)) for group, d in (options.groups or {}).items()}
    return shard(graph, symbol.list_outputs(), feeds, devices=devices, whole=options.whole)


def _output(full: Sharded, name: str) -> Value:
    return full.graph.outputs[full.names.index(name)]


def _states(named: Mapping[str, str], full: Sharded, place: Placement) -> dict[str, Value]:
    """The value of each state in the next step; both must be on one rank."""
    found = {}
    for variable, output in named.items():
        value = _output(full, output)
        here, there = (place.device_of(n) for n in (variable, value.node))
        if here != there:
            raise PlacementError(
                f"state {variable!r} is on {here}, but its next value {output!r} is made on "
                f"{there}; give both the same ctx_group"
            )
        found[variable] = value
    return found
