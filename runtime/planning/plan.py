"""The plan: checked programs for all ranks, and everything else that they need."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from partitioner import Partition, Placement
from partitioner.base.segments import time_segments
from partitioner.cutting.replicas import shared_copies
from partitioner.solve.problem import optimality_gap
from partitioner.strategies import Placed
from runtime.planning.account import Account
from runtime.planning.costs.overheads import StepOverheads, step_overheads
from runtime.planning.costs.prices import CostModel
from runtime.planning.grid import NO_GRID, Grid
from runtime.planning.network import Network, PlanRequest
from runtime.planning.options import AUTO, Options, PlacedNetwork
from runtime.planning.splits import GroupSplit
from runtime.schedule.instructions import COLLECTIVE
from runtime.schedule.program import Schedule
from runtime.schedule.replay import RankMemory
from symgraph.core.batch_layout import PARTIAL, Layout
from symgraph.core.context import Context
from symgraph.core.graph import Graph
from symgraph.core.html import listing, paragraph, together
from symgraph.core.types import Value
from symgraph.core.units import count_text, seconds_text
from symgraph.passes.batching import Feed
from symgraph.passes.shards import Shard


@dataclass(frozen=True)
class Estimate:
    """A placement that was compared by an estimate of its step."""

    strategy: str
    """The name of the strategy."""
    load: float
    """Seconds per micro-batch of the slowest device."""
    lower_bound: float
    """No placement of the same classes of nodes has a smaller load, by the strategy's proof."""
    seconds: float
    """The estimated step."""
    devices: tuple[int, ...]
    """The numbers of the devices that are not idle."""
    placed: Callable[[], Placed] = field(compare=False, repr=False)
    """Makes the placement."""

    @property
    def gap(self) -> float:
        """The most by which the load exceeds the optimum, as a share of the load."""
        return optimality_gap(self.load, self.lower_bound)


@dataclass(frozen=True)
class PlanCandidate:
    """One of the ways to place or run a network that planning compared."""

    schedule: str = ""
    """The name of its schedule; "" for the best one of a placement."""
    time_segment: int | None = None
    """Time steps per segment; None: the network is not cut along time."""
    recompute: tuple[int, ...] = ()
    """Stages that run their forward nodes again."""
    peak: int = 0
    """Bytes of the rank that needs the most, packed only if there is a memory limit."""
    account: Account | None = field(default=None, compare=False, repr=False)
    """Counts the peak when it is needed; None: `peak` is known."""
    seconds: float | None = None
    """The predicted step; None: not simulated, as it is too large or `bound` is too long."""
    bound: float | None = None
    """Seconds that no step of this kind can beat, where they are known."""
    placed: Placed | None = None
    """A strategy's placement, where strategies are compared."""
    estimate: Estimate | None = None
    """The placement's estimate, where the graph is too large to plan all of them."""
    splits: tuple[GroupSplit, ...] = ()
    """The groups on several devices, where splits are compared."""
    grid: Grid = NO_GRID
    """The grid of all devices, where grids are compared."""
    failed: str = ""
    """Why the network cannot be planned this way."""

    def counted(self) -> PlanCandidate:
        """Return it with its peak."""
        if self.account is None:
            return self
        return replace(self, peak=self.account.peak, account=None)

    @property
    def split_words(self) -> str:
        """The splits or the grid, and the predicted step, in words."""
        words = " and ".join(f"{s.group} in {s.kind}" for s in self.splits) or "no group split"
        if self.grid.rows > 1:
            words = f"{self.grid.rows} rows" + ", replicas near each other" * self.grid.near
        if self.bound is not None:
            return f"{words}: about {seconds_text(self.bound)}"
        return f"{words}: {self.failed or seconds_text(self.seconds or 0.0)}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan:
    """Everything ranks need, the same on all of them. `str` shows the partition as a table."""

    network: Network
    """The graphs that were placed."""
    options: Options
    """The user's options, with the chosen splits."""
    partitions: Mapping[int, Partition]
    """Micro-batch size -> the cut graph of that size; all have the same bodies and edges."""
    schedule: Schedule
    """The programs of all ranks."""
    account: Account
    """The memory of each rank at its worst moment."""
    choice: PlanCandidate
    """The schedule, time segments and recomputation."""
    candidates: tuple[PlanCandidate, ...] = ()
    """All ways to run this placement that were tried, `choice` among them."""
    placements: tuple[PlanCandidate, ...] = ()
    """The strategies' placements that were compared."""
    bound: float | None = None
    """Seconds that no step with another placement of whole operators can beat; None: not known."""
    splits: tuple[PlanCandidate, ...] = ()
    """The splits of groups that were compared."""
    counts: Mapping[int, float] = field(default_factory=dict)
    """The numbers of micro-batches that were compared -> the predicted step in seconds."""
    prices: CostModel | None = None
    """The costs that the choice was made with; None: nothing was left open."""
    request: PlanRequest | None = field(default=None, compare=False)
    """The network as it was asked for; None while it is being planned."""

    def __repr__(self) -> str:
        choice, placement = self.choice, self.placement
        words = [choice.schedule, count_text(len(self.sizes), "micro-batch")]
        if choice.time_segment is not None:
            words.append(f"segments of {count_text(choice.time_segment, 'time step')}")
        words.append(f"{count_text(placement.stages, 'stage')} {placement.where}")
        if choice.seconds is not None:
            words.append(f"predicted step {seconds_text(choice.seconds)}")
        return f"<Plan: {', '.join(words)}>"

    def _repr_html_(self) -> str:
        """Return the cut network, the order of the runs and the table of stages, for notebooks."""
        drawing, runs = self.partition._repr_svg_(), self.schedule._repr_html_()
        return together(paragraph([repr(self)]), drawing, runs, listing(str(self.partition)))

    def __str__(self) -> str:
        return f"{self!r}\n{self.partition}"

    @property
    def memory(self) -> tuple[RankMemory, ...]:
        """The memory of each rank, to the byte; bytes unused by packing count as transient."""
        return self.account.packed

    def counted(self) -> Plan:
        """Return it with the memory of all ways to run it that were tried."""
        tried = tuple([candidate.counted() for candidate in self.candidates])
        return replace(self, choice=self.choice.counted(), candidates=tried)

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
        """The part to compute on the whole batch before its first micro-batch."""
        return self.network.prologue

    @property
    def proof(self) -> str:
        """A sentence that bounds the gap to the best placement's step; "": no bound is known."""
        if self.bound is None or not self.choice.seconds:
            return ""
        count = count_text(len(self.sizes), "micro-batch")
        joined = ", which all join the end of a step," if self.trains and self.devices[1:] else ""
        return (
            f"no placement of whole operators on these devices{joined} takes less than "
            f"{seconds_text(self.bound)} with {count}: the step is proved within "
            f"{self.choice.seconds / self.bound - 1:.1%} of the best"
        )

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The forward outputs."""
        return self.network.outputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the forward outputs."""
        return self.network.names

    @property
    def layouts(self) -> Mapping[Value, Layout]:
        """The layouts by which the outputs' micro-batches make up the whole batch's."""
        return self.network.layouts

    @property
    def states(self) -> Mapping[str, Value]:
        """Variable -> the value that it takes in the next step."""
        return self.network.states

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
        """Variable -> the part of a parameter that it is, and that it replaces in `grads`."""
        return self.network.shards

    @property
    def partition(self) -> Partition:
        """The partition of the first (largest) micro-batch."""
        return self.partitions[self.sizes[0]]

    @property
    def placement(self) -> Placement:
        """The stage of every node and the rank of every stage."""
        return self.partition.placement

    @property
    def devices(self) -> tuple[Context, ...]:
        """The device of each rank."""
        return self.placement.devices

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

    @cached_property
    def shared_copies(self) -> Mapping[str, str]:
        """Copy of a parameter -> the first copy, whose array it is; see partitioner.cutting."""
        shared = self.options.shares_weights
        return shared_copies(self.partition, shared_memory=True) if shared else {}

    @cached_property
    def uncut_reason(self) -> str:
        """Why some nodes are not cut along time as they should be; "" if all are."""
        steps = self.choice.time_segment
        if steps is None:
            return ""
        return time_segments(self.network.first, steps).why_late(steps)

    def rank_of(self, variable: str) -> int:
        """Return the rank on which a forward variable lives."""
        return self.placement.rank_of[self.placement.stage_of[variable]]

    def device_of(self, variable: str) -> Context:
        """Return the device on which a forward variable lives."""
        return self.devices[self.rank_of(variable)]

    def overheads(
        self, partition: Partition | None = None, micro_batches: int | None = None
    ) -> StepOverheads:
        """Compute the overheads of a step.

        Args:
            partition: another one of the same network; by default the first micro-batch's.
            micro_batches: of a step with other batches; by default as many as the plan has.
        """
        return step_overheads(
            partition or self.partition,
            self.grads,
            frozenset(self.parameters),
            micro_batches=micro_batches or len(self.sizes),
            slots=self.options.slots,
            update=self.options.update,
            shard_optimizer=self.options.shard_optimizer,
            shared_memory=self.options.lends,
            spreads_sums=self.options.spreads_sums,
            norms=self.options.norms,
        )

    def following(self, **changes: Any) -> Options:
        """Return options for another network of the same parameters, searching for nothing again.

        Its placement is carried over from this plan, and it has this plan's schedule, time segments
        and recomputation, or those of the best named schedule: an order that was searched for fits
        no other network.

        Args:
            changes: other fields of the options.
        """
        chosen = self._best_named
        fixed = {
            "like": PlacedNetwork(self.network.first, self.placement, frozenset(self.parameters)),
            "placement": None,
            "strategy": None,
            "rules": (),
            "schedule": chosen.schedule,
            "time_segment": chosen.time_segment,
            "recompute": chosen.recompute,
            "batches": 1,
        }
        return replace(self.options, **(fixed | changes))

    @property
    def _best_named(self) -> PlanCandidate:
        """The choice, or if its order was searched for, the best of the named schedules."""
        if self.choice.schedule != AUTO:
            return self.choice
        named = [c for c in self.candidates if c.schedule != AUTO]
        return min(named, key=lambda c: (c.seconds is None, c.seconds or c.peak))

    @property
    def _in_pieces(self) -> bool:
        """Whether some output of the network has become several."""
        return self.request is not None and len(self.outputs) > len(
            self.request.symbol.list_outputs()
        )

    def evaluating(self, *, whole: bool = False) -> Options:
        """Return options for the same network without updates, on the same placement.

        They have no memory limit: what training needs is more.

        Args:
            whole: whether outputs are to be put together that this plan leaves in pieces.
        """
        if whole and self._in_pieces:
            return self.following(update=False, whole=True).unlimited()
        return replace(
            self.options.unlimited(),
            update=False,
            placement=self.placement,
            rules=(),
            like=None,
            time_segment=self.choice.time_segment,
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
