"""Options: what the user says of a plan, one dataclass per concern.

`Options` inherits them all, so that users pass flat keywords; functions take the concern they need.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

from partitioner import Placement
from partitioner.costs.machine import Machine
from partitioner.placement.group2ctx import Groups, devices_of
from partitioner.strategies import find_strategy
from partitioner.strategies.rules import Rule
from partitioner.strategies.types import SOLVER_STEPS, STEP
from runtime.planning.costs.prices import CostModel, CostProvider, default_pricing
from runtime.planning.grid import grid_rows, rows_of
from runtime.schedule.generators.table import find_schedule
from symgraph.core.context import Context, cpu, require_context, require_contexts
from symgraph.core.errors import MicroBatchError
from symgraph.core.graph import Graph
from symgraph.core.types import TensorType
from symgraph.passes.batching import Feed
from symgraph.passes.loss_scale import UNSCALED, LossScale
from symgraph.passes.precision import FLOAT32

LOG = logging.getLogger(__name__)
AUTO, ALL, NONE = "auto", "all", "none"
FORWARD_ONLY = "forward"  # the schedule of plans that do not train
SCHEDULE_FILES = (".csv", ".txt")
LENGTHS_TRIED = 3  # lengths of time segments


class PlacedNetwork(NamedTuple):
    """A network that has its placement, for others of the same parameters to follow."""

    graph: Graph
    """The graph of its largest micro-batch."""
    placement: Placement
    """The placement of that graph."""
    parameters: Collection[str]
    """The variables of the graph that are not fed."""


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """The memory of ranks."""

    memory: int | None = None
    """Bytes that each rank may hold; None: any number."""
    batches: int = 1
    """The batches of a step: a limit is for all of them together."""
    slots: int = 0
    """Arrays that the optimizer keeps for each parameter."""
    shard_optimizer: bool = False
    """Whether each copy of a parameter in replicas keeps the optimizer's arrays of its own piece
    only; see runtime.engine.optimizer_step."""
    shared_memory: bool = True
    """Whether all ranks are threads of one process, so that replicas on CPUs add up gradients where
    they are; see runtime.engine.replica_sums. A `machine` is taken to send them."""


@dataclass(frozen=True)
class PlacementOptions(MemoryOptions):
    """The devices, and how the network's nodes are spread over them."""

    groups: Groups | None = None
    """The device of each ctx_group, or the devices of its shards; None: all on `default`.

    With a strategy, groups are pinned to these devices.
    """
    default: Context = field(default_factory=cpu)
    """The device of nodes that are in no group."""
    devices: tuple[Context, ...] = ()
    """The devices of all ranks; (): a strategy places on all of `machine`, or else on `default`."""
    _: KW_ONLY
    strategy: str | None = None
    """A name of partitioner.strategies, or `auto`; None: `groups` places the network."""
    machine: Machine | None = None
    """The machine that has the devices; None: one that is made of them and their measured costs."""
    placement: Placement | None = None
    """The placement of another plan of the same network, used as it is."""
    like: PlacedNetwork | None = None
    """The network of another bucket, whose placement is carried over."""
    splits: bool = True
    """Whether strategy `auto` may put groups that `groups` does not name on several devices, or
    all of them on a grid."""
    keep_groups: bool = False
    """Whether the nodes of one ctx_group stay together; this field and the next four go to
    partitioner.strategies.Constraints."""
    rules: tuple[Rule, ...] = ()
    """Constraints on the placement, by hand or by a strategy."""
    objective: str = STEP
    """The criterion for the best of several placements."""
    split_tied: bool = False
    """Whether parameters may be sent to other devices than their own."""
    solver_steps: float = SOLVER_STEPS
    """The effort of solvers."""
    data_axis: int | None = None
    """Rows of the rank grid; each runs its share of every micro-batch's samples. None: as many as
    `model_axis` says; without that, one, or as many as strategy `auto` finds best."""
    replicas_near: bool = False
    """Whether the devices of a column of the grid follow each other, not those of a row, so that
    replicas are near each other."""
    model_axis: int | None = None
    """Columns of the rank grid; None: as many as there are devices for."""

    @property
    def contexts(self) -> tuple[Context, ...]:
        """All devices that are named, those of ranks first, in their order."""
        grouped = [d for group in (self.groups or {}).values() for d in devices_of(group)]
        return tuple(dict.fromkeys((*self.ranks, self.default, *grouped)))

    @property
    def ranks(self) -> tuple[Context, ...]:
        """The devices to place on."""
        return self.devices or (self.default,)

    @property
    def rows(self) -> int:
        """The number of rows of the rank grid; raises ConfigError if `model_axis` fits none."""
        return self.data_axis or rows_of(len(self.ranks), self.model_axis)

    @property
    def grid(self) -> list[tuple[Context, ...]]:
        """The rank grid, as rows of devices; raises ConfigError if there is no such grid."""
        return grid_rows(self.ranks, self.rows, self.model_axis, near=self.replicas_near)

    @property
    def group_sizes(self) -> dict[str, int]:
        """The number of devices of each group."""
        return {group: len(devices_of(d)) for group, d in (self.groups or {}).items()}

    def limits(self, contexts: Sequence[Context]) -> tuple[int | None, ...]:
        """Return the bytes that each of these devices may hold, by `memory` and by the machine."""
        own = {d.context: d.memory for d in self.machine.devices} if self.machine else {}
        pairs = ((own.get(context), self.memory) for context in contexts)
        return tuple(min((x for x in pair if x is not None), default=None) for pair in pairs)

    def with_limit(self, nbytes: int) -> Self:
        """Return the options with lower limits, of `memory` and the machine, raised to this."""
        raised = None if self.memory is None else max(self.memory, nbytes)
        if self.machine is None:
            return replace(self, memory=raised)
        return replace(self, memory=raised, machine=self.machine.with_limit(nbytes))

    def unlimited(self) -> Self:
        """Return the options without memory limits."""
        if self.machine is None:
            return replace(self, memory=None)
        return replace(self, memory=None, machine=self.machine.unlimited())

    def machine_of(self, costs: CostModel) -> Machine:
        """Return the machine that a strategy places on: `devices` of `machine`, if both are given.

        Raises ConfigError for a device that the machine does not have.
        """
        if self.machine is None:
            return costs.machine_of(self.ranks)
        return self.machine.only(self.devices) if self.devices else self.machine


@dataclass(frozen=True)
class ScheduleOptions(MemoryOptions):
    """The programs of a step."""

    schedule: str = "gpipe"
    """A name of SCHEDULES, `auto`, `forward` (no backward phase), or a file of runs."""
    _: KW_ONLY
    update: bool = False
    """Whether each step ends with gradient norms, losses and parameter updates."""
    clips: bool = False
    """Whether gradients are clipped by their global norm; for predictions."""
    order: str | None = None
    """The order of gpipe's backward phase."""
    time_segment: int | str | None = None
    """Time steps per segment, or `auto`; None: the network is not cut along time."""
    recompute: str | tuple[int, ...] = ()
    """Stages that run their forward nodes again before their backward nodes, or `none`, `all`, or
    `auto`: those that the memory limit makes necessary."""
    named_only: bool = False
    """Whether schedule `auto` tries only the schedules of SCHEDULES, which are quicker to try and
    fit other networks too."""
    near: int = LENGTHS_TRIED
    """Lengths of time segments that `auto` tries besides none: those nearest to the best in
    theory."""


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions:
    """The dtypes of activations and gradients."""

    precision: str = FLOAT32
    """See symgraph.passes.precision."""
    loss_scale: LossScale = UNSCALED
    """See symgraph.passes.loss_scale."""


@dataclass(frozen=True)
class NetworkOptions(PrecisionOptions):
    """The graph that is placed."""

    micro_batches: int | str = 1
    """The number of pieces that each batch is split into; `auto`: the shortest predicted step."""
    _: KW_ONLY
    states: Mapping[str, str] = field(default_factory=dict)
    """Variable -> the output that is its value in the next step."""
    shards: Mapping[str, str] = field(default_factory=dict)
    """Group -> the `shard` attribute of its operators, in place of their own."""
    replicas: Mapping[str, str] = field(default_factory=dict)
    """Group -> the `replicate` attribute of its operators, in place of their own."""
    whole: bool = True
    """Whether outputs of losses that are made in shards or by replicas are put together; see
    symgraph.passes.shard and symgraph.passes.replicate."""


@dataclass(frozen=True)
class Options(NetworkOptions, ScheduleOptions, PlacementOptions):
    """The user's choices for placing, cutting and scheduling a network."""

    _: KW_ONLY
    pricing: CostProvider = field(default_factory=default_pricing)
    """Gives what runs and messages cost; called only if something is chosen automatically."""

    def __repr__(self) -> str:
        shown = []
        for known in fields(self)[:-1]:
            made, value = known.default_factory, getattr(self, known.name)
            if value != (known.default if made is MISSING else made()):
                shown.append(f"{known.name}={value!r}")
        return f"Options({', '.join(shown)})"

    @property
    def lends(self) -> bool:
        """Whether replicas on CPUs add up gradients where they are."""
        return self.shared_memory and self.machine is None

    @property
    def shares_weights(self) -> bool:
        """Whether copies of a parameter are one array, where the ranks of replicas can lend it."""
        return self.lends and self.shard_optimizer

    @property
    def norms(self) -> bool:
        """Whether each step needs the norms of its gradients."""
        return self.clips or self.loss_scale.dynamic

    @property
    def spreads_sums(self) -> bool:
        """Whether all copies of a parameter need the sums of their gradients, not just pieces."""
        return not self.shard_optimizer or self.norms

    def costs(self, graph: Graph) -> CostModel:
        """Return the costs of a graph on these devices."""
        LOG.debug("finding what %d operators cost", sum(not node.is_variable for node in graph))
        costs = self.pricing(graph, self.contexts)
        LOG.debug("")  # that is done
        return costs

    def forward_only(self) -> Options:
        """Return the options of a plan that does not train: micro-batches run forward in order."""
        return replace(self, schedule=FORWARD_ONLY, recompute=(), order=None)


def require_options(feeds: Mapping[str, Any], options: Options) -> None:
    """Reject invalid options and feeds, even those that nothing would read.

    Raises:
        TypeError: feeds, options, devices or counts of other types.
        MicroBatchError: a batch axis that the fed variable does not have.
        ConfigError, PlacementError: unknown schedules and strategies.
    """
    if not isinstance(options, Options):
        groups = options if isinstance(options, Mapping) else "{'a': cpu(0)}"
        raise TypeError(f"plan takes Options, such as Options(groups={groups}), not {options!r}")
    _require_feeds(feeds)
    require_context("default", options.default)
    require_contexts("devices", options.devices)
    if not isinstance(options.groups or {}, Mapping):
        raise TypeError(
            f"group2ctx maps groups to devices, as in {{'a': cpu(0)}}, not {options.groups!r}"
        )
    for group, devices in (options.groups or {}).items():
        require_contexts(f"group2ctx: what {group!r} is mapped to", devices)
    require_known(options.schedule, options.strategy)
    _require_counts(options.micro_batches, options.time_segment)


def _require_feeds(feeds: Mapping[str, Any]) -> None:
    if not isinstance(feeds, Mapping):
        raise TypeError(
            f"feeds maps names to Feed(...), as in {{'data': Feed(...)}}, not {feeds!r}"
        )
    for name, feed in feeds.items():
        if not isinstance(feed, Feed) or not isinstance(feed.type, TensorType):
            raise TypeError(
                f"feeds: {name!r} is a Feed(TensorType(shape, dtype), batch axis), not {feed!r}"
            )
        rank = len(feed.type.shape)
        if feed.axis not in range(rank):
            raise MicroBatchError(
                f"{name!r} of {feed.type} has no batch axis {feed.axis!r}; "
                + (f"use 0 to {rank - 1}" if rank else "what is fed needs one")
            )


def require_known(schedule: str, strategy: str | None) -> None:
    """Raise ConfigError for an unknown schedule, PlacementError for an unknown strategy."""
    if schedule not in (AUTO, FORWARD_ONLY) and not schedule.endswith(SCHEDULE_FILES):
        find_schedule(schedule, AUTO, FORWARD_ONLY)
    if strategy not in (AUTO, None):
        find_strategy(strategy, AUTO)


def _require_counts(micro_batches: object, time_segment: object) -> None:
    """Raise TypeError for other numbers than whole ones."""
    if not isinstance(micro_batches, int) and micro_batches != AUTO:
        raise TypeError(f"micro_batches is a whole number or 'auto', not {micro_batches!r}")
    if not isinstance(time_segment, int | None) and time_segment != AUTO:
        raise TypeError(f"time_segment is a whole number, 'auto' or None, not {time_segment!r}")
