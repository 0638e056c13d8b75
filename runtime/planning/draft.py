"""Drafts: differentiated and placed graphs, ready to be cut and scheduled one way or another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from partitioner import MemoryPlan, Partition, Placement, plan_memory
from partitioner.base.segments import time_segments, time_steps
from partitioner.cutting.cut import cut
from partitioner.cutting.merging import merge
from partitioner.cutting.recompute import recompute
from partitioner.memory.memory_plan import kept_bytes
from runtime.backends.scratch import scratch_bytes
from runtime.planning.costs.overheads import StepOverheads, chores
from runtime.planning.memory.arena import Kind, reserve
from runtime.schedule.program import Schedule
from runtime.schedule.replay import Costs, RankMemory, check, memory_profile
from symgraph.core.graph import Graph
from symgraph.core.types import Value


class Choice(NamedTuple):
    """One way to run a draft.

    schedule: what it is called. split: whether the backward phase is cut in two. programs: the
    schedule of the cut graph. time_segment: steps a segment, None: not cut along time. recompute:
    stages that run their forward nodes again.
    """

    schedule: str
    split: bool
    programs: Callable[[Partition], Schedule]
    time_segment: int | None = None
    recompute: tuple[int, ...] = ()


@dataclass(frozen=True)
class Made:
    """A choice carried out: the cut graphs by micro-batch size, and checked programs.

    memory: of each rank, as it is held at once; see packed_memory.
    """

    choice: Choice
    partitions: Mapping[int, Partition]
    schedule: Schedule
    memory: tuple[RankMemory, ...]

    @property
    def first(self) -> Partition:
        """The partition of the first (largest) micro-batch."""
        return next(iter(self.partitions.values()))

    @property
    def peak(self) -> int:
        """Bytes of the rank that needs the most."""
        return max(m.peak for m in self.memory)


def packed_memory(
    made: Made, sizes: Sequence[int], grads: Mapping[str, Value], parameters: Collection[str]
) -> tuple[RankMemory, ...]:
    """The memory that ranks will take, to the byte: what packing leaves unused is transient too.

    sizes, grads, parameters: see Draft.
    """
    partitions = {Kind(0, size): partition for size, partition in made.partitions.items()}
    kinds, of_kinds = [Kind(0, size) for size in sizes], dict.fromkeys(partitions, grads)
    found = []
    for rank, account in enumerate(made.memory):
        programs = [made.schedule.programs[rank]]
        arena = reserve(programs, rank, partitions, kinds, of_kinds, parameters)
        rest = arena.nbytes - account.gradients - account.activations
        found.append(replace(account, transient=rest))
    return tuple(found)


@dataclass(frozen=True)
class Draft:
    """What is decided before schedules are: see `make`.

    graphs: micro-batch size -> the graph with gradients. sizes: of all micro-batches. grads,
    slots, parameters: for the memory plan.
    """

    graphs: Mapping[int, Graph]
    sizes: tuple[int, ...]
    placement: Placement
    grads: Mapping[str, Value]
    parameters: frozenset[str]
    slots: int
    _cuts: dict[object, Partition] = field(default_factory=dict, repr=False)
    _plans: dict[Partition, MemoryPlan] = field(default_factory=dict, repr=False)
    _merged: dict[object, Graph] = field(default_factory=dict, repr=False)

    @property
    def first(self) -> Graph:
        """The graph of the first (largest) micro-batch."""
        return self.graphs[self.sizes[0]]

    @cached_property
    def steps(self) -> int:
        """Time steps that the network is unrolled for; 0 if it is not."""
        return time_steps(self.first)

    @cached_property
    def whole(self) -> Partition:
        """The first micro-batch's cut with one segment and one backward phase."""
        return self._cut(self.sizes[0], False, None, ())

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Bytes that each stage keeps for its backward phase, a micro-batch."""
        return kept_bytes(self.whole)

    def chores(self, partition: Partition, update: bool) -> StepOverheads:
        """Of a step of a cut."""
        return chores(
            partition,
            self.grads,
            self.parameters,
            micro_batches=len(self.sizes),
            slots=self.slots,
            update=update,
        )

    def busiest(self, split: bool, steps: int | None, costs: Callable[[Partition], Costs]) -> float:
        """Seconds that the busiest rank runs bodies, cut like that: no step is shorter."""
        partition = self._cut(self.sizes[0], split, steps, ())
        run, busy = costs(partition).run, [0.0] * partition.ranks
        for key in partition.bodies:
            busy[partition.rank(key)] += len(self.sizes) * float(run(key))
        return max(busy)

    def late(self, time_segment: int) -> str:
        """What of the network cannot be cut into such segments, in words; "" for nothing."""
        return time_segments(self.first, time_segment).why_late(time_segment)

    def _cut(self, size: int, split: bool, steps: int | None, again: tuple[int, ...]) -> Partition:
        """The graph of one micro-batch size, cut; candidates share cuts."""
        key = size, split, steps, again
        if key not in self._cuts:
            graph = self._ready(size, steps, again)
            self._cuts[key] = cut(graph, self.placement, split=split, time_segment=steps)
        return self._cuts[key]

    def _ready(self, size: int, steps: int | None, again: tuple[int, ...]) -> Graph:
        """The graph that is cut, with one backward phase or two."""
        key = size, steps, again
        if key not in self._merged:
            graph = recompute(self.graphs[size], self.placement, again, time_segment=steps)
            self._merged[key] = merge(graph, self.placement, steps)
        return self._merged[key]

    def make(self, choice: Choice) -> Made:
        """Cut, lower, check and account for memory. Raises ScheduleError for what cannot run."""
        how = choice.split, choice.time_segment, choice.recompute
        partitions = {size: self._cut(size, *how) for size in dict.fromkeys(self.sizes)}
        first = partitions[self.sizes[0]]
        assert all(_without_types(p) == _without_types(first) for p in partitions.values())
        schedule = choice.programs(first)
        check(schedule, first, len(self.sizes))
        memory = memory_profile(schedule, first, self.memory_plan(first), len(self.sizes))
        return Made(choice, partitions, schedule, memory)

    def packed(self, made: Made) -> Made:
        """With the memory that its ranks will take."""
        memory = packed_memory(made, self.sizes, self.grads, self.parameters)
        return replace(made, memory=memory)

    def memory_plan(self, partition: Partition) -> MemoryPlan:
        """The memory of a cut's bodies; schedules of one cut share it."""
        if partition not in self._plans:
            self._plans[partition] = plan_memory(
                partition,
                grads=self.grads,
                slots=self.slots,
                parameters=self.parameters,
                several=len(self.sizes) > 1,
                scratch=scratch_bytes(partition),
            )
        return self._plans[partition]


def _without_types(partition: Partition) -> object:
    """What the partitions of all micro-batch sizes have in common."""
    return list(partition.bodies), [(e.tag, e.value, e.src, e.dst) for e in partition.edges]
