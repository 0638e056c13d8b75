"""The pipeline plan: a symbol taken through the whole flow to checked programs for all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from partitioner import Partition, Placement, group2ctx
from partitioner.costs.machine import Machine
from partitioner.placement.group2ctx import Groups, assign, devices_of
from partitioner.placement.transfer import carry
from partitioner.strategies import Constraints
from partitioner.strategies.types import STEP, STEPS
from runtime.backends.device.arrays import require
from runtime.planning.costs.overheads import StepOverheads, chores
from runtime.planning.costs.prices import CostModel, CostProvider
from runtime.planning.draft import Choice, Draft, Made, packed_memory
from runtime.planning.grid import columns, grid_rows, groups_in, in_first_row
from runtime.planning.memory.arena import give_back
from runtime.planning.network import Network, PlanRequest, make_network
from runtime.planning.placement_choice import Considered, Decision, decide, machine_at_hand
from runtime.planning.requirements import require_asked
from runtime.planning.schedule_choice import AUTO, FORWARD_ONLY, NEAR, Tried, Wish, choose
from runtime.planning.splits import GAIN, Compared, Split, candidates, marks
from runtime.profiling.calibration.pricing import fresh_pricing
from runtime.schedule.instructions import COLLECTIVE
from runtime.schedule.program import Schedule
from runtime.schedule.replay import RankMemory
from symgraph.core.batch_layout import PARTIAL, Layout
from symgraph.core.context import Context, cpu
from symgraph.core.errors import ConfigError, MicroBatchError, PlacementError, ScheduleError
from symgraph.core.graph import Graph
from symgraph.core.types import Value
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed, batch_size
from symgraph.passes.loss_scale import UNSCALED, LossScale
from symgraph.passes.precision import FLOAT32
from symgraph.passes.shards import Shard


@dataclass(frozen=True)
class Options:
    """How to cut and schedule, as the user says it.

    groups: group name -> device, or the devices of its shards (None: everything on `default`).
    devices: all ranks' devices.
    schedule, order, time_segment, recompute, memory, named_only, near: see
    runtime.planning.schedule_choice.Wish. states: variable -> the output that is its value in the
    next step. slots: optimizer arrays a parameter. update: end each step with norms, losses and
    parameter updates. pricing: what runs and messages take, asked for only if something is chosen
    automatically. whole: see symgraph.passes.shard. strategy: a name of partitioner.strategies, or
    `auto`; then groups are pinned to their devices. machine: the devices to place on; None: equal
    ones. placement: of another plan of the same network. like: the plan of another bucket, whose
    placement is carried over. shards,
    replicas: group -> the value of that attribute for its operators, over their own. splits:
    whether strategy `auto` may put groups that `groups` does not name on several devices.
    keep_groups, objective, split_tied, solver_steps: see partitioner.strategies.Constraints.
    data_axis, model_axis: see runtime.planning.grid. precision, loss_scale: see
    symgraph.passes.precision and symgraph.passes.loss_scale.
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
    pricing: CostProvider = field(default_factory=fresh_pricing)
    whole: bool = True
    strategy: str | None = None
    machine: Machine | None = None
    keep_groups: bool = False
    placement: Placement | None = None
    like: Plan | None = None
    shards: Mapping[str, str] = field(default_factory=dict)
    replicas: Mapping[str, str] = field(default_factory=dict)
    splits: bool = True
    objective: str = STEP
    split_tied: bool = False
    named_only: bool = False
    near: int = NEAR
    solver_steps: float = STEPS
    data_axis: int = 1
    model_axis: int | None = None
    precision: str = FLOAT32
    loss_scale: LossScale = UNSCALED

    def wish(self, train: bool) -> Wish:
        """What it says of schedules; a plan that does not train runs forward in order."""
        name = self.schedule if train else FORWARD_ONLY
        again = self.recompute if train else ()
        limit = self.memory if train else None
        order = self.order if train else None
        return Wish(
            name, order, self.time_segment, again, limit, self.update, self.named_only, self.near
        )

    @property
    def contexts(self) -> tuple[Context, ...]:
        """All devices that are named."""
        grouped = [d for given in (self.groups or {}).values() for d in devices_of(given)]
        return tuple(dict.fromkeys((self.default, *self.devices, *grouped)))

    def prices(self, graph: Graph) -> CostModel:
        """Of a graph on these devices."""
        return self.pricing(graph, self.contexts)

    def machine_of(self, prices: CostModel) -> Machine:
        """The devices that a strategy places on."""
        devices = self.devices or (self.default,)
        return self.machine or machine_at_hand(devices, prices)

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
            for group, given in (self.groups or {}).items()
            if isinstance(given, Context)
        }
        spread = {
            group: tuple(map(devices.index, given))
            for group, given in (self.groups or {}).items()
            if not isinstance(given, Context)
        }
        return Constraints(
            memory=self.memory,
            parameters=parameters,
            grads=grads,
            slots=self.slots,
            in_flight=min(self.micro_batches, len(devices)),
            keep_groups=self.keep_groups,
            together=together,
            pins=pins,
            spread=spread,
            objective=self.objective,
            split_tied=self.split_tied,
            steps=self.solver_steps,
        )


@dataclass(frozen=True)
class Plan:
    """Everything ranks need, the same on all of them.

    network: what was placed. options: how it was asked for, with the splits that were chosen.
    partitions: micro-batch size -> the cut graph of that size; all have the same bodies and
    edges. states: variable -> the value it takes in the next step. account: what each rank holds
    at its worst moment, before packing. choice, tried: the schedule, time segments and
    recomputation, and what else there was. late: what cannot be cut along time, in words. prices:
    what a choice was made with. considered, compared: placements and splits that were tried.
    """

    network: Network
    options: Options
    partitions: Mapping[int, Partition]
    schedule: Schedule
    states: Mapping[str, Value]
    account: tuple[RankMemory, ...]
    choice: Choice
    tried: tuple[Tried, ...]
    late: str
    prices: CostModel | None
    considered: tuple[Considered, ...]
    compared: tuple[Compared, ...] = ()

    @cached_property
    def memory(self) -> tuple[RankMemory, ...]:
        """What each rank takes, to the byte, and its worst moment."""
        made = Made(self.choice, self.partitions, self.schedule, self.account)
        return packed_memory(made, self.sizes, self.grads, self.network.parameters)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each micro-batch."""
        return self.network.sizes

    @property
    def feeds(self) -> Mapping[str, Feed]:
        """The variables that get new values every step."""
        return self.network.feeds

    @property
    def prologue(self) -> Graph:
        """What is computed of the whole batch before its first micro-batch."""
        return self.network.prologue

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The forward outputs."""
        return self.network.outputs

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.network.names

    @property
    def layouts(self) -> Mapping[Value, Layout]:
        """How the outputs' micro-batches make up the whole batch's."""
        return self.network.layouts

    @property
    def grads(self) -> Mapping[str, Value]:
        """Parameter -> the value of its gradient; see `shards`."""
        return self.network.grads

    @property
    def heads(self) -> Mapping[int, str]:
        """Output index -> its head gradient."""
        return self.network.heads

    @property
    def shards(self) -> Mapping[str, Shard]:
        """Variable -> the part of a parameter that it is; it stands in that one's place."""
        return self.network.shards

    @property
    def partition(self) -> Partition:
        """The partition of the first (largest) micro-batch."""
        return self.partitions[self.sizes[0]]

    @property
    def parameters(self) -> list[str]:
        """Variables that are not fed: parameters and auxiliary states, in graph order."""
        held = self.network.parameters
        return [n.name for n in self.partition.graph.variables if n.name in held]

    @property
    def trains(self) -> bool:
        """Whether its programs end with parameter updates."""
        return any((p.columns.code == COLLECTIVE).any() for p in self.schedule.programs)

    @property
    def scalars(self) -> dict[str, Value]:
        """The outputs that are figures to report: sums over the batch with one element."""
        graph = self.partition.graph
        return {
            name: value
            for name, value in zip(self.output_names, self.outputs, strict=True)
            if self.layouts[value] is PARTIAL and graph.type_of(value).size == 1
        }

    def rank_of(self, variable: str) -> int:
        """The rank on which a forward variable lives."""
        placement = self.partition.placement
        return placement.rank_of[placement.stage_of[variable]]

    def chores(self, partition: Partition | None = None, micro_batches: int = 0) -> StepOverheads:
        """Of a step of so many micro-batches (0: as it has), cut like this or as the first."""
        options, count = self.options, micro_batches or len(self.sizes)
        return chores(
            partition or self.partition,
            self.grads,
            frozenset(self.parameters),
            micro_batches=count,
            slots=options.slots,
            update=options.update,
        )

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
    require_asked(feeds, options)
    if options.machine is None:
        for context in options.contexts:
            require(context)
    if wrt is None:
        wrt = [n for n in symbol.list_arguments() if n not in feeds]
    asked = PlanRequest(symbol, feeds, tuple(wrt), heads, shapes or {}, dtypes or {})
    best = _best(asked, options)
    if best.prices is not None:
        give_back()
    return best


def _best(asked: PlanRequest, options: Options) -> Plan:
    """The plan, with the splits of groups that are best where they are open."""
    if options.data_axis > 1 or options.model_axis is not None:
        asked, options = _on_grid(asked, options)
    best = _drafted(asked, options)
    open_ = options.strategy == AUTO and options.placement is None
    if not (options.splits and open_ and asked.feeds and len(options.devices) > 1):
        return best.plan
    compared = [Compared((), best.decision.seconds)]
    for splits in _splits(best, options):
        with suppress(PlacementError, ScheduleError, MicroBatchError):
            other = _drafted(asked, _with(options, splits))
            compared.append(Compared(splits, other.decision.seconds))
            if other.decision.seconds < GAIN * best.decision.seconds:
                best = other
    return replace(best.plan, compared=tuple(compared))


def _on_grid(asked: PlanRequest, options: Options) -> tuple[PlanRequest, Options]:
    """What to ask for so that every operator is on a whole column of the grid."""
    rows = grid_rows(options.devices or (options.default,), options.data_axis, options.model_axis)
    row = replace(options, devices=rows[0], splits=False, data_axis=1, model_axis=None)
    if len(rows) == 1:
        return asked, replace(row, splits=options.splits)
    if not asked.feeds:
        raise ConfigError("data_axis deals out samples, but the network is fed none")
    graph = asked.lowered(batch_size(asked.feeds))
    named = groups_in(graph)
    given = in_first_row(options.groups or {}, rows, named)
    if options.strategy is None:
        device_of = assign(graph, given or None, options.default)
    else:
        whole = replace(row, groups=given, keep_groups=bool(named))
        placement = _best(asked, whole).partition.placement
        device_of = {n: placement.device_of(n) for n in graph.nodes if n in placement.stage_of}
    found = columns(graph, device_of, rows)
    there = replace(
        row,
        devices=options.devices,
        strategy=None,
        data_axis=options.data_axis,
        groups=found.devices,
    )
    return replace(asked, groups=found.of), there


def _splits(draft: _Drafted, options: Options) -> list[tuple[Split, ...]]:
    given = options.groups or {}
    return candidates(draft.decision.weights, tuple(given), len(options.devices))


def _with(options: Options, splits: Sequence[Split]) -> Options:
    """The options with some groups on all devices."""
    groups = {**(options.groups or {}), **{s.group: options.devices for s in splits}}
    return replace(options, groups=groups, shards={**options.shards, **marks(splits)})


class _Drafted(NamedTuple):
    """A plan and how it was decided."""

    plan: Plan
    decision: Decision


def _drafted(asked: PlanRequest, options: Options) -> _Drafted:
    """The plan with the groups split as the options say."""
    network = make_network(
        asked,
        options.micro_batches,
        _device_counts(options),
        options.shards,
        options.replicas,
        whole=options.whole,
        precision=options.precision,
        scaled=options.loss_scale.scales,
    )
    draft = partial(
        Draft,
        network.graphs,
        network.sizes,
        grads=network.grads,
        parameters=network.parameters,
        slots=options.slots,
    )
    together = [(n, network.output(o).node) for n, o in options.states.items()]
    limits = partial(options.constraints, network.parameters, network.grads, together)
    decision = _decide(network.first, draft, options, limits, options.wish(bool(asked.wrt)))
    made, placement = decision.made, decision.placement
    steps = made.choice.time_segment
    return _Drafted(
        Plan(
            network,
            options,
            made.partitions,
            made.schedule,
            network.next_states(options.states, placement),
            made.memory,
            made.choice,
            decision.tried,
            "" if steps is None else draft(placement).late(steps),
            decision.prices,
            decision.considered,
        ),
        decision,
    )


def _decide(
    graph: Graph,
    draft: Callable[[Placement], Draft],
    options: Options,
    constraints: Callable[[], Constraints],
    wish: Wish,
) -> Decision:
    """The placement that the user gives, by groups or by another plan, or a strategy's."""
    given = options.placement
    if options.like is not None:
        other = options.like
        parameters = frozenset(other.parameters)
        given = carry(graph, other.network.first, other.partition.placement, parameters)
    elif options.strategy is None and given is None:
        given = group2ctx(graph, options.groups, options.default, options.devices)
    if given is not None:
        return Decision(given, *choose(draft(given), wish, options.prices))
    assert options.strategy is not None
    limits = constraints()
    return decide(draft, graph, options.strategy, options.machine_of, limits, wish, options.prices)


def _device_counts(options: Options) -> dict[str, int]:
    """On how many devices each group is."""
    return {group: len(devices_of(d)) for group, d in (options.groups or {}).items()}
