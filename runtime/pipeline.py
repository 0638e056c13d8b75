"""The pipeline plan: a symbol taken through the whole flow to checked programs for all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partitioner import Partition, Placement, group2ctx
from runtime.choose import FORWARD_ONLY, Tried, Wish, choose
from runtime.draft import Choice, Draft
from runtime.instructions import COLLECTIVE
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
from symgraph.symbol import Symbol
from symgraph.types import Value


@dataclass(frozen=True)
class Options:
    """How to cut and schedule, as the user says it.

    groups: group name -> device (None: everything on `default`). devices: all ranks' devices.
    schedule, order, time_segment, recompute, memory: see runtime.choose.Wish. states: variable ->
    the output that is its value in the next step. slots: optimizer arrays a parameter. update:
    end each step with norms, losses and parameter updates. pricing: what runs and messages
    take, asked for only if something is chosen automatically.
    """

    groups: Mapping[str, Context] | None = None
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

    def wish(self, train: bool) -> Wish:
        """What it says of schedules; a plan that does not train runs forward in order."""
        name = self.schedule if train else FORWARD_ONLY
        again = self.recompute if train else ()
        limit = self.memory if train else None
        return Wish(name, self.order, self.time_segment, again, limit, self.update)


@dataclass(frozen=True)
class Plan:
    """Everything ranks need, the same on all of them.

    partitions: micro-batch size -> the cut graph of that size; all have the same bodies and
    edges. sizes: samples of each micro-batch. layouts, outputs: of the forward outputs.
    grads: parameter -> the value of its gradient. heads: output index -> its head gradient.
    states: variable -> the value it takes in the next step. memory: of each rank at its worst
    moment. choice, tried: the schedule, time segments and recomputation, and what else there was.
    late: what cannot be cut along time, in words. prices: what a choice was made with.
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
    full = _lowered(symbol, feeds, whole, shapes, dtypes)
    axes = {name: feed.axis for name, feed in feeds.items()}
    if wrt is None:
        wrt = [n for n in symbol.list_arguments() if n not in feeds]
    typed = {
        size: full if size == whole else _lowered(symbol, feeds, size, shapes, dtypes)
        for size in dict.fromkeys(sizes)
    }
    ready = {size: micro_batch(graph, axes, size, whole) for size, graph in typed.items()}
    both = {size: gradients(m.graph, wrt, heads=heads) for size, m in ready.items()}
    size = sizes[0]
    graph = both[size].graph
    placement = group2ctx(graph, options.groups, options.default, options.devices)
    early = prologue(full, axes)
    fed = {*feeds, *(v.node for v in early.outputs), *both[size].heads.values()}
    parameters = frozenset(n.name for n in graph.variables if n.name not in fed)
    graphs = {size: b.graph for size, b in both.items()}
    draft = Draft(graphs, sizes, placement, both[size].grads, parameters, options.slots)
    made, tried, prices = choose(draft, options.wish(bool(wrt)), options.pricing)
    return Plan(
        made.partitions, sizes, made.schedule, dict(feeds), early, full.outputs,
        tuple(symbol.list_outputs()), {v: ready[size].layouts[v] for v in full.outputs},
        both[size].grads, both[size].heads,
        _states(options.states, symbol, full.outputs, placement), made.memory, made.choice, tried,
        "" if made.choice.time_segment is None else draft.late(made.choice.time_segment),
        prices,
    )  # fmt: skip


def _require_cpus(options: Options) -> None:
    for device in (options.default, *options.devices, *(options.groups or {}).values()):
        if device.kind != "cpu":
            raise PlacementError(
                f"{device} cannot be used: this version runs on cpu(0), cpu(1), ..."
            )


def _lowered(
    symbol: Symbol,
    feeds: Mapping[str, Feed],
    size: int,
    shapes: Mapping[str, Any] | None,
    dtypes: Mapping[str, Any] | None,
) -> Graph:
    """The forward graph for a batch of that many samples."""
    fed = {name: feed.part(size).shape for name, feed in feeds.items()}
    kinds = {name: feed.type.dtype for name, feed in feeds.items()}
    return lower(symbol, {**(shapes or {}), **fed}, {**(dtypes or {}), **kinds})


def _states(
    named: Mapping[str, str], symbol: Symbol, outputs: tuple[Value, ...], place: Placement
) -> dict[str, Value]:
    """The value of each state in the next step; both must be on one rank."""
    names = symbol.list_outputs()
    found = {}
    for variable, output in named.items():
        value = outputs[names.index(output)]
        here, there = (place.device_of(n) for n in (variable, value.node))
        if here != there:
            raise PlacementError(
                f"state {variable!r} is on {here}, but its next value {output!r} is made on "
                f"{there}; give both the same ctx_group"
            )
        found[variable] = value
    return found
