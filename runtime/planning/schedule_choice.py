"""The choice of schedule, time segments and recomputation, where the user leaves it open.

What is open is tried and simulated with the programs that would run; the shortest step that keeps
within the memory limit is taken, the earlier candidate among equals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain, combinations, product
from pathlib import Path

import numpy as np

from partitioner import Partition
from partitioner.base.segments import segment_lengths
from partitioner.base.types import FORWARD, BodyKey
from runtime.planning.account import memory_plan
from runtime.planning.costs.prices import CostModel
from runtime.planning.draft import Draft, Longer
from runtime.planning.options import (
    ALL,
    AUTO,
    FORWARD_ONLY,
    NONE,
    SCHEDULE_FILES,
    ScheduleOptions,
)
from runtime.planning.plan import Plan, PlanCandidate
from runtime.schedule.generators.columns import I, W
from runtime.schedule.generators.forward import forward_only
from runtime.schedule.generators.gpipe import gpipe
from runtime.schedule.generators.segments import expand
from runtime.schedule.generators.table import SCHEDULES, ComputeLists, find_schedule
from runtime.schedule.lowering.lower import lower
from runtime.schedule.program import Program, Schedule
from runtime.schedule.replay import Simulator, memory_profile
from runtime.schedule.search.list_scheduler import ListSchedule, list_schedule
from runtime.schedule.text import load_schedule_file
from symgraph.core.errors import ConfigError, LimitError
from symgraph.core.units import bytes_text
from symgraph.passes.replicate import copies_of

FEW_STAGES = 4  # of a rank, of which all sets may recompute
PACKINGS = 3  # choices of stages that are packed
MOST_SETS = 8  # sets of stages that are all tried
LENGTHS_LISTED = 2  # lengths of time segments to try the list scheduler for

Kinds = Sequence[bool]  # whether the backward phase is cut in two, of schedules
BOTH: Kinds = (False, True)
Costing = Callable[[], CostModel]
Weights = Callable[[], Sequence[float]]
_Lists = tuple[Program, ...] | Schedule
Attempt = Callable[[tuple[int, ...]], Plan]  # stages that run their forward nodes again -> a plan


def select_schedule(
    draft: Draft, costs: Costing, kinds: Kinds = BOTH, *, beat: float = math.inf
) -> Plan:
    """Return the best plan of a draft that its options allow, with all candidates.

    Args:
        costs: called only if there is a choice.
        kinds: of the schedules to try, if there is a choice: whether the backward phase is cut in
            two.
        beat: the seconds of another plan; to find schedules that take longer is of no use.

    Raises:
        ConfigError: unknown names.
        LimitError: no allowed plan keeps within the memory limit; it names the smallest limit that
            works.
    """
    options = draft.options
    segments = _time_segments(draft, costs)
    tries = _Tries(draft, costs, options.schedule == AUTO or len(segments) > 1, beat)
    names = SCHEDULES if options.schedule == AUTO else (options.schedule,)
    lists = {name: _lists_of(name, draft) for name in names}
    for steps in segments:
        for name in names:
            if splits_backward(lists[name]) in kinds or options.schedule != AUTO:
                tries.add_named(name, lists[name], steps)
    if options.schedule == AUTO and not options.named_only:
        for steps in tries.promising():
            for split in kinds:
                tries.add_listed(steps, split)
    if tries.best is None:
        assert tries.least is not None
        raise _too_large(draft, tries.least)
    prices = costs() if tries.is_open else None
    return replace(tries.best, candidates=tuple(tries.candidates), prices=prices)


class _Tries:
    """The ways to run a draft that have been tried."""

    def __init__(self, draft: Draft, costs: Costing, is_open: bool, beat: float) -> None:
        """Take as `is_open` whether there is a choice; `beat` as in select_schedule."""
        self.draft, self.is_open, self.beat = draft, is_open, beat
        of_cut = cache(lambda cut: costs().costs(cut, draft.overheads(cut)))
        self.costs = of_cut  # not by `self`: a cycle would keep all cuts until planning ends
        self.simulator = cache(lambda cut: Simulator(cut, of_cut(cut)))
        self.candidates: list[PlanCandidate] = []
        self.best: Plan | None = None
        self.least: Plan | None = None  # the one that exceeds limits the least
        self._least = math.inf, 0  # by how much, and its bytes
        self._named: dict[object, PlanCandidate] = {}  # by lists and time segment

    def add_named(self, name: str, lists: _Lists, steps: int | None) -> None:
        """Try a schedule by name, unless one that runs the same was tried."""
        known = self._named.get((lists, steps))
        if known is None:
            self._named[lists, steps] = self.add(_named(name, lists, self.draft, steps)).choice
        else:
            self.candidates.append(replace(known, schedule=name))

    def add(self, attempt: Attempt, listed: Sequence[ListSchedule] = ()) -> Plan:
        """Try an attempt.

        Args:
            listed: the list to which the attempt adds the list scheduler's results.
        """
        plan = _recomputed(self.draft, attempt, self._forward)
        excess = max(self.draft.excess(plan.account))
        fits = excess <= 1
        seconds = None
        if self.is_open and fits:
            seconds = self.simulator(plan.partition).makespan(plan.schedule)
        holds = listed and self.draft.network.even
        bound = float(listed[-1].lower_bound) if holds else None
        plan = replace(plan, choice=replace(plan.choice, seconds=seconds, bound=bound))
        self.candidates.append(plan.choice)
        if self.least is None or (excess, plan.choice.peak) < self._least:
            self.least, self._least = plan, (excess, plan.choice.peak)
        if fits and (self.best is None or (seconds or 0.0) < (self.best.choice.seconds or 0.0)):
            self.best = plan
        return plan

    def _forward(self) -> Sequence[float]:
        """Weigh what it takes to run the stages' forward nodes again: seconds, or else bytes."""
        if not self.is_open:
            return self.draft.kept
        run = self.costs(self.draft.whole).run
        keys = [BodyKey(stage, FORWARD) for stage in range(self.draft.placement.stages)]
        return [float(run(key)) if key in self.draft.whole.bodies else 0.0 for key in keys]

    def add_listed(self, steps: int | None, split: bool) -> None:
        """Try the list scheduler, unless a rank's runs alone take longer than the best step.

        It keeps to the limit before packing: where packing needs more, its limit is lowered by the
        excess.
        """
        busy = self.draft.busiest(split, steps, self.costs)
        if self.best is not None and busy >= (self.best.choice.seconds or 0.0):
            return
        limits = self.draft.limits
        plan = self._add_listed(steps, split, limits)
        if max(self.draft.excess(plan.account)) > 1:
            held = zip(plan.account.step.packed, limits, strict=True)
            less = [x if x is None else min(x, 2 * x - m.peak) for m, x in held]
            self._add_listed(steps, split, less)

    def _add_listed(self, steps: int | None, split: bool, limits: Sequence[int | None]) -> Plan:
        listed: list[ListSchedule] = []
        known = self.best.choice.seconds if self.best is not None else None
        beat = self.beat if known is None else min(self.beat, known)

        def programs(partition: Partition) -> Schedule:
            draft, costs, memory = self.draft, self.costs(partition), None
            if draft.limited:
                memory = memory_plan(partition, draft.network, draft.options)
            count = draft.micro_batches
            found = list_schedule(partition, count, costs, memory=memory, limit=limits, beat=beat)
            listed.append(found)
            return _lowered(partition, found.compute, draft.options)

        return self.add(partial(self.draft.plan, AUTO, split, programs, steps), listed)

    def promising(self) -> list[int | None]:
        """Return the time segments of the best candidates, for the list scheduler."""

        def worth(candidate: PlanCandidate) -> tuple[bool, float]:
            return candidate.seconds is None, candidate.seconds or candidate.peak

        ranked = sorted(self.candidates, key=worth)
        return list(dict.fromkeys(c.time_segment for c in ranked))[:LENGTHS_LISTED]


def select_timed(
    draft: Draft, costs: CostModel, kinds: Kinds = BOTH, *, beat: float = math.inf
) -> Plan:
    """Return the plan with the best schedule, simulated even if only one is allowed.

    Args:
        kinds, beat: as `select_schedule` takes them.
    """
    plan = select_schedule(draft, lambda: costs, kinds, beat=beat)
    if plan.choice.seconds is not None:
        return plan
    return replace(plan, choice=replace(plan.choice, seconds=step_seconds(draft, plan, costs)))


def step_seconds(draft: Draft, plan: Plan, costs: CostModel) -> float:
    """Return the time of a step by which plans are compared."""
    first = plan.partition
    simulator = Simulator(first, costs.costs(first, draft.overheads(first)))
    return simulator.makespan(plan.schedule)


def _too_large(draft: Draft, least: Plan) -> LimitError:
    options, excess = draft.options, draft.excess(least.account)
    rank = max(range(len(excess)), key=excess.__getitem__)
    peak = least.account.step.packed[rank].peak
    together = f"a step of {options.batches} batches by " if options.batches > 1 else ""
    return LimitError(
        f"{together}schedule {options.schedule} needs {bytes_text(peak)} ({peak} bytes) on "
        f"{least.devices[rank]}, more than the limit of {bytes_text(draft.limits[rank] or 0)}; "
        f"that is the smallest limit that works{limit_advice(options)}",
        peak,
    )


def limit_advice(options: ScheduleOptions) -> str:
    """Say what may do with a smaller memory limit."""
    if options.schedule == FORWARD_ONLY or options.recompute in (AUTO, ALL):
        return ""
    return "; recompute: auto may do with less"


# -- schedules -----------------------------------------------------------------------------------


def _lowered(partition: Partition, lists: ComputeLists, options: ScheduleOptions) -> Schedule:
    replicas = bool(copies_of(partition.graph))
    weights = replicas and options.shard_optimizer
    return lower(partition, lists, update=options.update, replicas=replicas, weights=weights)


def _lists_of(name: str, draft: Draft) -> _Lists:
    """Return what ranks run by a schedule of SCHEDULES, by `forward`, or by one in a file."""
    if Path(name).suffix in SCHEDULE_FILES:
        lists = load_schedule_file(name)
        return lists if isinstance(lists, Schedule) else tuple(lists)
    rank_of, count = draft.placement.rank_of, draft.micro_batches
    return compute_lists(name, draft.options.order, rank_of, count)


def splits_backward(lists: _Lists) -> bool:
    """Tell whether a schedule cuts the backward phase in two."""
    programs = lists.programs if isinstance(lists, Schedule) else lists
    codes = np.unique(np.concatenate([program.columns.code for program in programs]))
    return bool(np.isin(codes, (I, W)).any())


def _named(name: str, lists: _Lists, draft: Draft, steps: int | None) -> Attempt:
    """Return the attempt of a schedule."""

    def scheduled(partition: Partition) -> Schedule:
        if isinstance(lists, Schedule):
            return lists
        return _lowered(partition, _expanded(partition, lists), draft.options)

    split = splits_backward(lists)
    longer = None if isinstance(lists, Schedule) else _longer(name, draft)
    return partial(draft.plan, name, split, scheduled, steps, longer=longer)


def _longer(name: str, draft: Draft) -> Longer | None:
    """Return what makes the programs of more micro-batches, if a step has several batches."""
    options, rank_of = draft.options, draft.placement.rank_of
    if options.batches == 1 or Path(name).suffix in SCHEDULE_FILES:
        return None

    def scheduled(partition: Partition, mbs: int) -> Schedule:
        lists = compute_lists(name, options.order, rank_of, mbs)
        return _lowered(partition, _expanded(partition, lists), options)

    return scheduled


def _expanded(partition: Partition, lists: Sequence[Program]) -> ComputeLists:
    return expand(lists, 1 + max((key.segment for key in partition.bodies), default=0))


def compute_lists(
    name: str, order: str | None, rank_of: Sequence[int], mbs: int
) -> tuple[Program, ...]:
    """Return what ranks run by the schedule of that name.

    Args:
        order: of gpipe's backward phase, or None.
        rank_of: the rank of each stage.
        mbs: the number of micro-batches.
    """
    if order is not None and name != "gpipe":
        raise ConfigError(f"pipeline.order is for the schedule gpipe, not for {name}")
    if name == FORWARD_ONLY:
        lists: ComputeLists = forward_only(rank_of, mbs)
    elif order is not None:
        lists = gpipe(rank_of, mbs, order=order)
    else:
        lists = find_schedule(name)(rank_of, mbs)
    return tuple(map(Program.of, lists))


# -- time segments -------------------------------------------------------------------------------


def _time_segments(draft: Draft, costs: Costing) -> Sequence[int | None]:
    """Return the lengths of time segments to try; None: one segment."""
    steps = draft.options.time_segment
    if steps is None or isinstance(steps, int):
        if steps is not None and not draft.steps:
            raise ConfigError(
                f"a time segment of {steps} steps, but no node of the network has a time step: "
                "unroll it with sg.rnn, or mark its steps with AttrScope(time_step=...)"
            )
        return (steps,)
    stages = draft.placement.stages
    if not draft.steps or stages == 1:
        return (None,)
    best = _best_length(draft, costs())
    near = sorted(segment_lengths(draft.steps), key=lambda k: abs(math.log(k / best)))
    return (None, *sorted(near[: draft.options.near], reverse=True))


def _best_length(draft: Draft, model: CostModel) -> float:
    """Return k* = sqrt(T·a / ((p - 1)·c)), the segment length of the shortest wavefront.

    T steps of c seconds each on the slowest of p stages; a: seconds that every further segment
    costs, for its messages and instructions.
    """
    partition = draft.whole
    costs = model.costs(partition)
    stages = draft.placement.stages
    slowest = max(float(costs.run(k)) for k in partition.bodies if k.phase == FORWARD)
    extra = float(model.link.latency) + 4 * model.overhead  # receive, run, send, free
    step = max(slowest / draft.steps, 1e-12)
    return math.sqrt(draft.steps * extra / ((stages - 1) * step))


# -- recomputation -------------------------------------------------------------------------------


def _recomputed(draft: Draft, attempt: Attempt, weights: Weights) -> Plan:
    """Return the plan of an attempt with the recomputation that the options ask for.

    Args:
        weights: gives what it takes to run each stage's forward nodes again.
    """
    options, stages = draft.options, tuple(range(draft.placement.stages))
    if options.recompute == ALL:
        return attempt(stages)
    if options.recompute == NONE:
        return attempt(())
    if options.recompute == AUTO:
        return _recomputed_where_needed(draft, attempt, weights)
    assert not isinstance(options.recompute, str)
    unknown = set(options.recompute) - set(stages)
    if unknown:
        raise ConfigError(
            f"recompute: no stage {min(unknown)}; the stages are 0 to {len(stages) - 1}"
        )
    return attempt(options.recompute)


def _recomputed_where_needed(draft: Draft, attempt: Attempt, weights: Weights) -> Plan:
    """Return the plan that recomputes the least of the stages of too large ranks to keep the limit.

    Where nothing keeps the limits, it is the plan that exceeds them the least.
    """
    best = attempt(())
    full = [r for r, share in enumerate(draft.excess(best.account)) if share > 1]
    if not full:
        return best
    rank_of = draft.placement.rank_of
    tried: dict[tuple[int, ...], Plan] = {(): best}

    def excess(stages: tuple[int, ...]) -> Sequence[float]:
        if stages not in tried:
            tried[stages] = attempt(stages)
        return draft.excess(tried[stages].account)

    every = tuple([s for s, rank in enumerate(rank_of) if rank in full])
    excess(every)
    sets = {
        r: _sets([s for s, at in enumerate(rank_of) if at == r], draft, weights()) for r in full
    }
    found = _by_mixing(draft, best, tried[every], sets, excess)
    if found is None and math.prod(map(len, sets.values())) <= MOST_SETS:
        choices = (tuple(sorted(chain.from_iterable(parts))) for parts in product(*sets.values()))
        found = next((stages for stages in choices if max(excess(stages)) <= 1), None)
    if found is not None:
        return tried[found]
    return min(tried.values(), key=lambda p: (max(draft.excess(p.account)), p.choice.peak))


def _by_mixing(
    draft: Draft,
    whole: Plan,
    again: Plan,
    sets: Mapping[int, Sequence[tuple[int, ...]]],
    excess: Callable[[tuple[int, ...]], Sequence[float]],
) -> tuple[int, ...] | None:
    """Choose stages to recompute rank by rank, with the bytes of bodies of two plans.

    What a rank holds depends on its own stages alone, and nearly on each of them alone.

    Args:
        draft, whole, again, sets: as `_peaks` takes them.
        excess: returns what each rank holds as a share of its limit, given these stages.
    """
    if [*again.partition.bodies] != [*whole.partition.bodies]:
        return None
    peaks = _peaks(draft, whole, again, sets)
    room = {rank: draft.limits[rank] or 0 for rank in sets}
    for _ in range(PACKINGS):
        within = {r: [i for i, x in enumerate(peaks[r]) if x <= room[r]] for r in sets}
        at = {r: f[0] if f else int(np.argmin(peaks[r])) for r, f in within.items()}
        stages = tuple(sorted(s for r, i in at.items() for s in sets[r][i]))
        shares = excess(stages)
        if max(shares) <= 1:
            return stages
        if not all(within.values()):
            return None
        for rank, i in at.items():
            if shares[rank] > 1:  # as packed
                room[rank] = peaks[rank][i] - 1
    return None


def _sets(stages: Sequence[int], draft: Draft, weights: Sequence[float]) -> list[tuple[int, ...]]:
    """List the sets of a rank's stages that may recompute, those that weigh the least first.

    Of many stages, those that keep the most recompute first.
    """
    if len(stages) <= FEW_STAGES:
        found = [held for n in range(len(stages) + 1) for held in combinations(stages, n)]
        return sorted(found, key=lambda held: sum(weights[s] for s in held))
    order = sorted(stages, key=draft.kept.__getitem__, reverse=True)
    return [tuple(order[:n]) for n in range(len(order) + 1)]


def _peaks(
    draft: Draft, whole: Plan, again: Plan, sets: Mapping[int, Sequence[tuple[int, ...]]]
) -> dict[int, list[int]]:
    """Return the bytes that ranks hold, unpacked, with each of their sets of stages.

    Args:
        draft: the draft of both plans.
        whole, again: the plans in which none and all of these ranks' stages recompute.
        sets: the sets of stages that recompute, of each rank.
    """
    cut, step = whole.partition, whole.account.step
    plans = [memory_plan(p, draft.network, draft.options) for p in (cut, again.partition)]
    peaks: dict[int, list[int]] = {rank: [] for rank in sets}
    for turn in range(max(map(len, sets.values()))):
        tried = {rank: some[turn] for rank, some in sets.items() if turn < len(some)}
        stages = {s for some in tried.values() for s in some}
        bodies = {key: plans[key.stage in stages].bodies[key] for key in cut.bodies}
        account = memory_profile(
            step.schedule, cut, replace(plans[0], bodies=bodies), len(step.network.sizes)
        )
        for rank in tried:
            peaks[rank].append(account[rank].peak)
    return peaks
