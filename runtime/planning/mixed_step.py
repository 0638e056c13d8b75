"""The mixed step: micro-batches of several buckets in one pipeline, none waiting for the longest.

All buckets are cut into the same stages, so one compute list fits them all:

    rank 0   0F0  0F1  0F2            micro-batches 0 and 2 of 60 words, 1 of 8: each runs the
    rank 1        1F0  1F1  1F2       bodies of its own bucket

Which instruction must precede which then depends on the micro-batch. So that such a step can be
lowered, proved and simulated like any other, every kind of micro-batch gets stages of its own:
kind k's stage s is stage k * S + s of one topology, where a micro-batch runs only those of its
kind. Workers look the bodies of a micro-batch up by its kind, so they get the programs with the
stages' own numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from partitioner import Partition
from partitioner.base.types import BodyKey, CommEdge
from runtime.planning.account import excess
from runtime.planning.costs.prices import NOMINAL, CostModel
from runtime.planning.memory.arena import Kind
from runtime.planning.plan import Plan
from runtime.planning.schedule_choice import compute_lists
from runtime.planning.step import StepBatches, StepPrograms
from runtime.schedule.generators.segments import expand
from runtime.schedule.generators.table import ComputeLists
from runtime.schedule.instructions import RECV, SEND, UPDATE
from runtime.schedule.lowering.lower import lower
from runtime.schedule.program import Columns, Program, Schedule
from runtime.schedule.replay import Costs, check, simulate
from runtime.schedule.timeline import Timeline, Track
from symgraph.core.errors import ScheduleError
from symgraph.passes.replicate import copies_of

HELD = 1 << 28  # bytes of the messages of batches that stream
Ints = npt.NDArray[np.int32]
Listing = Callable[[Sequence[int], int], ComputeLists]  # ranks of stages, micro-batches


@dataclass(frozen=True)
class MixedTopology:
    """The topology of all kinds of a step, one after the other."""

    rank_of: tuple[int, ...]
    ranks: int
    bodies: tuple[BodyKey, ...]
    edges: tuple[CommEdge, ...]
    first_stage: Ints
    """[micro-batch]: the first stage of its kind."""
    first_tag: Ints
    """[micro-batch]: the first edge of its kind."""

    @classmethod
    def of(cls, parts: StepBatches) -> MixedTopology:
        """Return the union of the kinds of these parts."""
        bodies: list[BodyKey] = []
        edges: list[CommEdge] = []
        partitions = list(parts.partitions.values())
        stages = [0, *accumulate(len(p.rank_of) for p in partitions)]
        tags = [0, *accumulate(len(p.edges) for p in partitions)]
        for k, (partition, stage, tag) in enumerate(zip(partitions, stages, tags, strict=False)):
            bodies += [key._replace(stage=key.stage + stage) for key in partition.bodies]
            edges += [
                replace(
                    e,
                    tag=e.tag + tag,
                    src=e.src._replace(stage=e.src.stage + stage),
                    dst=e.dst._replace(stage=e.dst.stage + stage),
                    exchange=e.exchange and f"{e.exchange} of kind {k}",
                )
                for e in partition.edges
            ]
        number = {kind: i for i, kind in enumerate(parts.partitions)}
        kinds = [number[kind] for kind in parts.kinds]
        return cls(
            tuple([rank for p in partitions for rank in p.rank_of]),
            partitions[0].ranks,
            tuple(bodies),
            tuple(edges),
            np.array(stages, np.int32)[kinds],
            np.array(tags, np.int32)[kinds],
        )

    @property
    def runs(self) -> npt.NDArray[np.bool_]:
        """[stage, micro-batch]: whether the stage is of the micro-batch's kind."""
        starts = np.unique(self.first_stage)
        kinds = np.searchsorted(starts, np.arange(len(self.rank_of)), side="right") - 1
        return np.equal(starts[kinds][:, None], self.first_stage)

    def numbered(self, program: Program, sign: int = 1) -> Program:
        """Return the program in the union's numbers; with sign -1, back in every kind's own."""
        code, at, mb, segment = program.columns
        shift = np.where(code < SEND, self.first_stage[mb], 0)
        shift += np.where((code == SEND) | (code == RECV), self.first_tag[mb], 0)
        return Program(Columns(code, (at + sign * shift).astype(np.int32), mb, segment))


@dataclass(frozen=True)
class Mixed:
    """A step of several batches."""

    parts: StepBatches
    schedule: Schedule
    order: tuple[int, ...]
    """The micro-batches as they enter the pipeline."""
    seconds: float
    """The simulated step, by which the order was chosen."""

    @cached_property
    def step(self) -> StepPrograms:
        """The step, with its memory."""
        return StepPrograms(self.parts, self.schedule)


def mix(
    parts: StepBatches,
    listing: Listing,
    prices: CostModel | None,
    limits: Sequence[int | None] = (),
) -> Mixed:
    """Return the programs of a step of these parts.

    The micro-batches enter as they are given, longest first, shortest first, with the longest in
    the middle, or the shortest and then the longest first, whichever is predicted to take the least
    time: a short one first fills the pipeline soon, a short one last drains it soon.

    Gradients are added up in a fixed order, so more of their sums are held where micro-batches do
    not come in it, which may need more memory than a step of the longest ones alone. With limits,
    only what keeps to them is taken, if anything does.

    Args:
        parts: the batches.
        listing: a schedule.
        prices: by default NOMINAL.
        limits: the bytes that each rank may hold; by default any number.

    Raises:
        ScheduleError: the buckets have different stages, or the schedule has no programs for this
            many micro-batches.
    """
    first = next(iter(parts.partitions.values()))
    _require_alike(parts.partitions, first)
    union = MixedTopology.of(parts)
    costs = mixed_costs(parts, prices or NOMINAL)
    segments = 1 + max(key.segment for key in union.bodies)
    lists = [Program.of(runs) for runs in listing(first.rank_of, len(parts.mbs))]
    replicas = bool(copies_of(first.graph))
    tried: list[tuple[Mixed, Schedule]] = []
    for order in _orders(parts, union, costs):
        renamed = [_reordered(program, order) for program in lists]
        schedule = lower(
            union,
            [union.numbered(program) for program in expand(renamed, segments)],
            update=parts.plans[0].trains,
            replicas=replicas,
            weights=replicas and parts.plans[0].options.shard_optimizer,
        )
        seconds = simulate(schedule, union, costs).makespan
        programs = [_split(program, union, len(first.rank_of)) for program in schedule.programs]
        tried.append((Mixed(parts, Schedule(tuple(programs)), order, seconds), schedule))
    best, schedule = _best(tried, limits)
    check(schedule, union, len(parts.mbs), runs=union.runs)
    return best


def _require_alike(partitions: Mapping[Kind, Partition], first: Partition) -> None:
    """Raise ScheduleError unless all kinds have the same stages."""
    for kind, partition in partitions.items():
        if partition.rank_of != first.rank_of:
            raise ScheduleError(
                f"batch {kind.part} of the step has stages on ranks {partition.rank_of}, the first "
                f"one on {first.rank_of}; run them in steps of their own"
            )


def _best(
    tried: list[tuple[Mixed, Schedule]], limits: Sequence[int | None]
) -> tuple[Mixed, Schedule]:
    """Return the fastest that keeps to the limits, or else the one that exceeds them the least."""
    tried.sort(key=lambda some: some[0].seconds)
    if all(limit is None for limit in limits):
        return tried[0]
    shares = []
    for mixed, _ in tried:
        shares.append(max(excess(mixed.step.memory, limits)))
        if shares[-1] <= 1:
            break
    return tried[shares.index(min(shares))]


def stream(plan: Plan, batches: int) -> StepPrograms:
    """Return the programs of a step of several batches of a forward-only plan.

    They follow each other through the stages without a pause: the first micro-batch of one enters
    while the last ones of the batch before it are under way.
    """
    if batches == 1:
        return StepPrograms.of(plan)
    parts = StepBatches((plan,) * batches)
    listing = partial(compute_lists, plan.choice.schedule, None)
    return StepPrograms(parts, mix(parts, listing, plan.prices).schedule)


def stream_batches(plan: Plan, most: int) -> int:
    """Return how many batches of a plan may stream in a step: `most`, or fewer.

    Ranks hold what they send until the end of the step, so the messages of all batches must not be
    too large, and a memory limit must hold them. Batches that hand states to the next, or that are
    trained on, do not stream.
    """
    if plan.grads or plan.states:
        return 1
    count = max(1, min(most, HELD // max(1, sent_bytes(StepPrograms.of(plan)))))
    limits = plan.options.limits(plan.devices)
    if any(limit is not None for limit in limits):
        while count > 1 and max(excess(stream(plan, count).memory, limits)) > 1:
            count -= 1
    return count


def _orders(parts: StepBatches, union: MixedTopology, costs: Costs) -> list[tuple[int, ...]]:
    """Return orders of the micro-batches to try, without repetition.

    Without backward the batches stream: each leaves the pipeline before the next one.
    """
    order = range(len(parts.mbs))
    if not parts.plans[0].grads:
        return [tuple(order)]
    seconds = [
        sum(float(costs.run(k)) for k in union.bodies if runs[k.stage]) for runs in union.runs.T
    ]
    rising = sorted(order, key=seconds.__getitem__)
    falling = sorted(order, key=lambda mb: -seconds[mb])
    hill = [*falling[1::2][::-1], *falling[::2]]
    filling = [falling[-1], *falling[:-1]]
    return [*dict.fromkeys(map(tuple, (order, falling, rising, hill, filling)))]


def _reordered(program: Program, order: Sequence[int]) -> Program:
    code, at, mb, segment = program.columns
    return Program(Columns(code, at, np.array(order, np.int32)[mb], segment))


def _split(program: Program, union: MixedTopology, stages: int) -> Program:
    """Return the program in every kind's own numbers; a stage is updated once, for all kinds."""
    code, at, mb, segment = program.columns
    keep = (code != UPDATE) | (at < stages)
    return union.numbered(Program(Columns(code[keep], at[keep], mb[keep], segment[keep])), -1)


def mixed_costs(parts: StepBatches, prices: CostModel) -> Costs:
    """Return the union's costs: a body's as in its own partition, all else as in the first one."""
    count = len(parts.mbs)
    of_kinds = [
        prices.costs(partition, parts.plans[kind.part].overheads(partition, count))
        for kind, partition in parts.partitions.items()
    ]
    stages = len(next(iter(parts.partitions.values())).rank_of)

    def own(key: BodyKey) -> tuple[Costs, BodyKey]:
        kind, stage = divmod(key.stage, stages)
        return of_kinds[kind], key._replace(stage=stage)

    def run(key: BodyKey) -> float:
        costs, body = own(key)
        return float(costs.run(body))

    def alone(key: BodyKey) -> float:
        costs, body = own(key)
        return float((costs.alone or costs.run)(body))

    def update(stage: int) -> float:
        # A stage is updated once, for all kinds.
        return float(of_kinds[0].update(stage)) if stage < stages else 0.0

    sums = [
        (
            [
                k._replace(stage=k.stage + kind * stages)
                for k in keys
                for kind in range(len(of_kinds))
            ],
            seconds,
        )
        for keys, seconds in of_kinds[0].sums
    ]
    known = None if of_kinds[0].alone is None else alone
    return replace(of_kinds[0], run=run, alone=known, update=update, sums=sums)


def predict(step: StepPrograms, prices: CostModel, union: MixedTopology | None = None) -> Timeline:
    """Simulate a step of any batches.

    Args:
        step: the step.
        prices: the costs.
        union: the union of its parts, where it is known.
    """
    union = union or MixedTopology.of(step.parts)
    programs = step.schedule.programs
    numbered = Schedule(tuple([union.numbered(program) for program in programs]))
    timeline = simulate(numbered, union, mixed_costs(step.parts, prices))
    tracks = zip(programs, timeline.tracks, strict=True)
    return replace(
        timeline, tracks=tuple([Track(program, t.start, t.end) for program, t in tracks])
    )


def sent_bytes(step: StepPrograms) -> int:
    """Return the bytes of all messages between the ranks in a step."""
    partitions = [step.parts.partitions[kind] for kind in step.parts.kinds]
    return sum(e.type.nbytes for p in partitions for e in p.edges if p.crosses(e))
