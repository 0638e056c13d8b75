"""The choice of schedule, time segments and recomputation, where the user leaves it open.

What is open is tried and simulated with the programs that would run; the shortest step that keeps
within the memory limit is taken, the earlier candidate among equals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from partitioner import Partition
from partitioner.base.segments import segment_lengths
from partitioner.base.types import FORWARD, INPUT, WEIGHT
from runtime.planning.costs.prices import CostModel
from runtime.planning.draft import Choice, Draft, Made
from runtime.schedule.generators.gpipe import gpipe
from runtime.schedule.generators.table import (
    SCHEDULES,
    ComputeLists,
    expand,
    find_schedule,
    forward_only,
)
from runtime.schedule.instructions import Run
from runtime.schedule.lowering.lower import lower
from runtime.schedule.program import Schedule
from runtime.schedule.replay import simulate
from runtime.schedule.search.list_scheduler import Listed, list_schedule
from runtime.schedule.text import load_schedule_file
from symgraph.core.errors import ConfigError, LimitError
from symgraph.core.graph import Graph
from symgraph.core.units import bytes_text
from symgraph.passes.replicate import copies_of

AUTO, ALL, NONE, FORWARD_ONLY = "auto", "all", "none", "forward"
LISTED = 2  # time segments that the list scheduler is tried for
NEAR = 3  # lengths of time segments that are tried
SUFFIXES = (".csv", ".txt")


@dataclass(frozen=True)
class Wish:
    """What the user says.

    schedule: a name of SCHEDULES, `auto`, `forward` (no backward phase) or a file of runs. order:
    of gpipe's backward phase. time_segment: steps, `auto`, or None: do not cut along time.
    recompute: stages, `none`, `all` or `auto`: those that the memory limit wants. memory: bytes
    that each rank may hold. update: whether programs end with parameter updates. named_only:
    whether `auto` takes only schedules of SCHEDULES, which are quicker to try and fit other
    networks too. near: lengths of time segments that `auto` tries, those nearest to the best in
    theory, besides none.
    """

    schedule: str
    order: str | None = None
    time_segment: int | str | None = None
    recompute: str | tuple[int, ...] = ()
    memory: int | None = None
    update: bool = False
    named_only: bool = False
    near: int = NEAR


class Tried(NamedTuple):
    """A candidate: predicted seconds of a step (None: not simulated), bytes of its worst rank.

    bound: seconds, proved; no order of these runs within the limit is shorter. Known of `auto`.
    """

    schedule: str
    time_segment: int | None
    recompute: tuple[int, ...]
    seconds: float | None
    peak: int
    bound: float | None = None


def choose(
    draft: Draft, wish: Wish, pricing: Callable[[Graph], CostModel]
) -> tuple[Made, tuple[Tried, ...], CostModel | None]:
    """The best way to run a draft that the wish allows, all that were tried, and their prices.

    pricing: asked only if there is a choice. Raises ConfigError for unknown names, LimitError if
    no allowed way keeps within the memory limit, naming the smallest limit that works.
    """
    prices = cache(lambda: pricing(draft.first))
    segments = _time_segments(draft, wish, prices)
    tries = _Tries(draft, wish, prices, wish.schedule == AUTO or len(segments) > 1)
    names = SCHEDULES if wish.schedule == AUTO else (wish.schedule,)
    for steps in segments:
        for name in names:
            tries.add(_named(name, wish, draft, steps))
    if wish.schedule == AUTO and not wish.named_only:
        for steps in tries.promising():
            for split in (False, True):
                tries.add_listed(steps, split)
    if tries.best is None:
        assert tries.least is not None
        raise LimitError(_too_large(tries.least, draft, wish))
    return tries.best[1], tuple(tries.tried), prices() if tries.is_open else None


class _Tries:
    """The ways to run a draft, as they are tried.

    is_open: whether there is a choice. best: with its seconds. least: what needs the least memory.
    """

    def __init__(
        self, draft: Draft, wish: Wish, prices: Callable[[], CostModel], is_open: bool
    ) -> None:
        self.draft, self.wish, self.is_open = draft, wish, is_open
        self.costs = cache(
            lambda partition: prices().costs(partition, draft.chores(partition, wish.update))
        )
        self.tried: list[Tried] = []
        self.best: tuple[float, Made] | None = None
        self.least: Made | None = None

    def add(self, choice: Choice, listed: Sequence[Listed] = ()) -> Made:
        """Try a choice. listed: where it puts what the list scheduler finds."""
        wish = self.wish
        made = _recomputed(self.draft, choice, wish)
        fits = wish.memory is None or made.peak <= wish.memory
        seconds = None
        if self.is_open and fits:
            seconds = simulate(made.schedule, made.first, self.costs(made.first)).makespan
        again = made.choice.recompute
        bound = float(listed[-1].lower_bound) if listed else None
        self.tried.append(
            Tried(choice.schedule, choice.time_segment, again, seconds, made.peak, bound)
        )
        if self.least is None or made.peak < self.least.peak:
            self.least = made
        if fits and (self.best is None or (seconds or 0.0) < self.best[0]):
            self.best = seconds or 0.0, made
        return made

    def add_listed(self, steps: int | None, split: bool) -> None:
        """Try the list scheduler's, unless a rank's runs alone take longer than the best step.

        It keeps to the limit before packing: where packing needs more, it gets so much less.
        """
        busy = self.draft.busiest(split, steps, self.costs)
        if self.best is not None and busy >= self.best[0]:
            return
        limit = self.wish.memory
        made = self._add_listed(steps, split, limit)
        if limit is not None and made.peak > limit:
            self._add_listed(steps, split, 2 * limit - made.peak)

    def _add_listed(self, steps: int | None, split: bool, limit: int | None) -> Made:
        listed: list[Listed] = []

        def scheduled(partition: Partition) -> Schedule:
            plan = self.draft.memory_plan(partition)
            mbs, costs = len(self.draft.sizes), self.costs(partition)
            found = list_schedule(partition, mbs, costs, memory=plan, limit=limit)
            listed.append(found)
            return _lowered(partition, found.compute, self.wish)

        return self.add(Choice(AUTO, split, scheduled, steps), listed)

    def promising(self) -> list[int | None]:
        """The time segments that the list scheduler is worth its time for: of the best so far."""

        def worth(tried: Tried) -> tuple[bool, float]:
            return tried.seconds is None, tried.seconds or tried.peak

        ranked = sorted(self.tried, key=worth)
        return list(dict.fromkeys(t.time_segment for t in ranked))[:LISTED]


def step_seconds(draft: Draft, made: Made, wish: Wish, prices: CostModel) -> float:
    """The predicted time of a step."""
    costs = prices.costs(made.first, draft.chores(made.first, wish.update))
    return simulate(made.schedule, made.first, costs).makespan


def _too_large(least: Made, draft: Draft, wish: Wish) -> str:
    rank = max(range(len(least.memory)), key=lambda r: least.memory[r].peak)
    device = draft.placement.devices[rank]
    advice = "" if wish.recompute in (AUTO, ALL) else "; recompute: auto may do with less"
    return (
        f"schedule {wish.schedule} needs {bytes_text(least.peak)} ({least.peak} bytes) on "
        f"{device}, more than the limit of {bytes_text(wish.memory or 0)}; that is the smallest "
        f"limit that works{advice}"
    )


# -- schedules -----------------------------------------------------------------------------------


def _lowered(partition: Partition, lists: ComputeLists, wish: Wish) -> Schedule:
    return lower(partition, lists, update=wish.update, replicas=bool(copies_of(partition.graph)))


def _named(name: str, wish: Wish, draft: Draft, steps: int | None) -> Choice:
    """The choice of a schedule of SCHEDULES, of `forward`, or of one in a file."""
    lists: ComputeLists | Schedule
    if Path(name).suffix in SUFFIXES:
        lists = load_schedule_file(name)
    else:
        lists = compute_lists(name, wish.order, draft.placement.rank_of, len(draft.sizes))
    programs = lists.programs if isinstance(lists, Schedule) else lists
    split = any(
        isinstance(i, Run) and i.phase in (INPUT, WEIGHT) for program in programs for i in program
    )

    def scheduled(partition: Partition) -> Schedule:
        if isinstance(lists, Schedule):
            return lists
        segments = 1 + max((key.segment for key in partition.bodies), default=0)
        return _lowered(partition, expand(lists, segments), wish)

    return Choice(name, split, scheduled, steps)


def compute_lists(name: str, order: str | None, rank_of: Sequence[int], mbs: int) -> ComputeLists:
    """What ranks run by the schedule of that name; order: of gpipe's backward phase, or None."""
    if order is not None and name != "gpipe":
        raise ConfigError(f"pipeline.order is for the schedule gpipe, not for {name}")
    if name == FORWARD_ONLY:
        return forward_only(rank_of, mbs)
    if order is not None:
        return gpipe(rank_of, mbs, order=order)
    return find_schedule(name)(rank_of, mbs)


# -- time segments -------------------------------------------------------------------------------


def _time_segments(
    draft: Draft, wish: Wish, prices: Callable[[], CostModel]
) -> Sequence[int | None]:
    """The numbers of steps to try; None: one segment."""
    steps = wish.time_segment
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
    best = _best_steps(draft, prices())
    near = sorted(segment_lengths(draft.steps), key=lambda k: abs(math.log(k / best)))
    return (None, *sorted(near[: wish.near], reverse=True))


def _best_steps(draft: Draft, prices: CostModel) -> float:
    """k* = sqrt(T·a / ((p - 1)·c)), the segment length of the shortest wavefront.

    T steps of c seconds each on the slowest of p stages; a: seconds that every further segment
    costs, for its messages and instructions.
    """
    partition = draft.whole
    costs = prices.costs(partition)
    stages = draft.placement.stages
    slowest = max(float(costs.run(k)) for k in partition.bodies if k.phase == FORWARD)
    extra = float(prices.link.latency) + 4 * prices.overhead  # receive, run, send, free
    step = max(slowest / draft.steps, 1e-12)
    return math.sqrt(draft.steps * extra / ((stages - 1) * step))


# -- recomputation -------------------------------------------------------------------------------


def _recomputed(draft: Draft, choice: Choice, wish: Wish) -> Made:
    """The choice with the recomputation that the wish asks for."""
    stages = tuple(range(draft.placement.stages))
    make = partial(_made, draft, wish)
    if wish.recompute == ALL:
        return make(choice._replace(recompute=stages))
    if wish.recompute == NONE:
        return make(choice)
    if wish.recompute != AUTO:
        assert not isinstance(wish.recompute, str)
        unknown = set(wish.recompute) - set(stages)
        if unknown:
            raise ConfigError(
                f"recompute: no stage {min(unknown)}; the stages are 0 to {len(stages) - 1}"
            )
        return make(choice._replace(recompute=wish.recompute))
    best = make(choice)
    again: tuple[int, ...] = ()
    while wish.memory is not None and best.peak > wish.memory:
        full = {r for r, m in enumerate(best.memory) if m.peak > wish.memory}
        more = [s for s in stages if s not in again and draft.placement.rank_of[s] in full]
        if not more:
            break
        again = (*again, max(more, key=draft.kept.__getitem__))
        made = make(choice._replace(recompute=tuple(sorted(again))))
        best = made if made.peak < best.peak else best
    return best


def _made(draft: Draft, wish: Wish, choice: Choice) -> Made:
    """The choice carried out; packed, if there is a memory limit to keep to."""
    made = draft.make(choice)
    return made if wish.memory is None else draft.packed(made)
