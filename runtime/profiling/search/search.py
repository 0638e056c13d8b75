"""The search: which devices, replicas, micro-batches, split, schedule and segments are fastest.

Each candidate is a config whose open choices the planner makes by simulation
(runtime.planning.placement_choice, runtime.planning.schedule_choice). What the planner does not
vary is varied here: the shapes (runtime.profiling.search.shapes), in the order of their estimates,
and for the best of them each split that is worth trying. All of that is quick: named schedules, one
length of time segments. The best few are then planned with all that there is to choose from.

A search ends when its work is done, so that it finds the same on a busy machine: the nodes of all
graphs that were planned are counted, more than once where planning is thorough. A limit on seconds
is for those who cannot wait, and the result says when it was reached.

With buckets, the planner chooses by the largest; here a candidate counts by the mean step of an
epoch, so some of what the planner had second to best is tried as well. Without, it is the best that
cuts time if the planner would not, or does not if it would. The few candidates with the shortest
predicted steps are measured.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from partitioner import Placement
from partitioner.placement.group2ctx import devices_of
from partitioner.strategies.types import STEP
from runtime.planning.costs.prices import CostProvider
from runtime.planning.options import AUTO, NONE
from runtime.planning.placement_estimates import ANYWHERE
from runtime.planning.plan import Plan, PlanCandidate
from runtime.planning.splits import GroupSplit, shard_marks, splits_to_try, weigh
from runtime.profiling.search.candidate import Candidate
from runtime.profiling.search.epoch import EpochOf, alike
from runtime.profiling.search.shapes import (
    Forecast,
    Outlook,
    Shape,
    device_counts,
    promising,
    shapes,
)
from runtime.profiling.trials.baseline import plan_baseline
from runtime.training.job import machine_of, rules_of, samples_of, training_plan
from symgraph.app.config import Config
from symgraph.app.data_config import batches_per_step
from symgraph.core.errors import LimitError, MicroBatchError, PlacementError, ScheduleError
from symgraph.core.units import count_text, seconds_text

LOG = logging.getLogger(__name__)
SECONDS = 3600.0  # of simulations, at most; what is not tried by then is left out
WORK = 40_000  # nodes to plan quickly; see _Tried
QUICK_SHARE = 0.6  # of WORK, for planning candidates quickly
MAX_MICRO_BATCHES = 32
QUICK = "optimal"  # the strategy for quick planning; the best candidates then try all strategies
LISTED, PLACED = 3, 6  # the work of thorough planning: with a given placement, or with a new one
REFINED = 3  # candidates that are planned again with every choice
NEAR = 1.25  # times the best step: slower ones are not planned again
HOPELESS = 1.5  # times the best step: shapes with such an estimate are not planned


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    candidates: tuple[Candidate, ...]
    """All candidates, the shortest predicted step first."""
    given: Candidate | None
    """The config as the user wrote it, if it is a whole plan."""
    simulated: int
    """The number of simulated plans."""
    left_out: int
    """The number of candidates that were not tried for lack of time."""
    proved: int
    """The number of shapes that cannot be faster than the best, by their bounds."""
    unpromising: int
    """The number of shapes that were only estimated."""
    seconds: float
    """The seconds that the search took."""
    baseline: Candidate | None = None
    """The network on one device, which is among the candidates; None: it was not tried."""
    too_large: str = ""
    """Why one device cannot hold the network."""

    def joined(self, other: Found) -> Found:
        """Add what a search in another precision has found."""
        candidates = sorted([*self.candidates, *other.candidates], key=lambda c: c.seconds)
        return Found(
            tuple(candidates),
            self.given,
            self.simulated + other.simulated,
            self.left_out + other.left_out,
            self.proved + other.proved,
            self.unpromising + other.unpromising,
            self.seconds + other.seconds,
            self.baseline or other.baseline,
            self.too_large or other.too_large,
        )

    def with_baseline(self, config: Config, pricing: CostProvider, epoch: EpochOf) -> Found:
        """Add the network on one device.

        Args:
            config: the config that was searched; see `plan_baseline`.
            pricing: the provider of its costs.
            epoch: see `search`.
        """
        begun = time.perf_counter()
        try:
            planned = plan_baseline(config, pricing)
        except LimitError as error:
            return replace(self, too_large=str(error))
        found = replace(Candidate.of(planned.config, (), planned, epoch(planned)), baseline=True)
        several = [c for c in self.candidates if len(c.config.devices) > 1]
        candidates = sorted([*(several or self.candidates), found], key=lambda c: c.seconds)
        took = self.seconds + time.perf_counter() - begun
        count = self.simulated + found.simulated
        return replace(
            self, candidates=tuple(candidates), baseline=found, simulated=count, seconds=took
        )


def search(
    config: Config,
    pricing: CostProvider,
    *,
    epoch: EpochOf = alike,
    seconds: float = SECONDS,
    work: float = WORK,
    say: Callable[[str], object] = lambda line: None,
) -> Found:
    """Plan candidates in the order of their promise, until the work is done.

    A config without a strategy places every group itself: it is a candidate as given, and the
    others place all groups anew. With a strategy, `group2ctx` pins groups.

    Args:
        config: the config to vary.
        pricing: the provider of costs.
        epoch: gives the mixtures of buckets by which a candidate is ranked, with their shares.
        seconds: the time limit.
        work: the nodes to plan, about.
        say: is told what is being tried, with the best step so far.

    Raises:
        LimitError: nothing fits the memory limit; it names the smallest limit of all tries.
    """
    begun = time.perf_counter()
    tried = _Tried(pricing, epoch, say, begun + seconds, QUICK_SHARE * work, len(config.devices))
    given = None
    if config.partition.strategy is None and config.group2ctx:
        with suppress(LimitError):
            given = replace(tried.plan(config, ()), given=True)
    _vary(tried, config)
    if tried.candidates:
        tried.work += (1 - QUICK_SHARE) * work
        tried.refine(config.partition.strategy or AUTO)
    elif given is None:
        raise min(tried.failed, key=lambda error: getattr(error, "smallest", math.inf))
    everything = [*tried.candidates, *([given] if given else [])]
    simulated = sum(candidate.simulated for candidate in everything)
    took = time.perf_counter() - begun
    return Found(
        tuple(_distinct(everything)),
        given,
        simulated,
        tried.left_out,
        tried.proved,
        tried.unpromising,
        took,
    )


def _vary(tried: _Tried, config: Config) -> None:
    """Try shapes, the most promising first, and splits of the best."""
    free = _opened(config)
    samples, batches = samples_of(config), batches_per_step(config.data)
    every = _shapes(free, samples, one=config.machine is not None)
    turn = 1 if config.machine is not None else -1  # what is measured is priced for all devices
    every.sort(key=lambda shape: (shape.rows, shape.micro_batches, turn * shape.devices))
    first = next((shape for shape in every if tried.add(_shaped(free, shape), ())), None)
    if first is None and free.partition.strategy == QUICK != config.partition.strategy:  # in rows
        free = _changed(free, "partition", strategy=ANYWHERE)
        first = next((shape for shape in every if tried.add(_shaped(free, shape), ())), None)
    if first is None:
        return
    others = every[every.index(first) + 1 :]
    if others and time.perf_counter() < tried.deadline:
        count = count_text(len(others), "other shape")
        tried.say(f"  estimating {count} (numbers of devices, replicas and micro-batches)")
        forecast = Forecast(tried.best.plan, machine_of(config), batches)
        for outlook in promising(_estimated(forecast, others)):
            tried.add_shape(_shaped(free, outlook.shape), outlook)
    else:
        tried.left_out += len(others)
    best = tried.best
    devices = len(best.config.devices)
    if (
        config.partition.split == AUTO
        and devices > 1
        and (best.config.partition.data_axis or 1) == 1
    ):
        for splits in _splits(best, best.config):
            tried.add(_with(best.config, splits), splits)


def _estimated(forecast: Forecast, others: Sequence[Shape]) -> Iterator[Outlook]:
    for number, shape in enumerate(others):
        LOG.debug(
            "estimating shapes",
            extra={"done": number, "of": len(others)},
        )
        yield forecast.of(shape)


def _shapes(config: Config, samples: int, *, one: bool) -> list[Shape]:
    """Return the shapes to try.

    Args:
        config: the config with open choices.
        samples: the batch.
        one: whether one device is a shape; measurements have one device beside the partitions.
    """
    devices, partition = len(config.devices), config.partition
    named = {str(d) for group in config.groups.values() for d in devices_of(group)}
    named |= {str(d) for rule in rules_of(config) for d in rule.devices}
    held = max((i for i, d in enumerate(config.devices, 1) if d in named), default=1)
    least = min(devices, max(held, 1 if one else 2))
    if (partition.data_axis or 1) > 1 or partition.model_axis is not None:
        least = devices = len(config.devices)
    rows = not named and partition.data_axis is None and partition.model_axis is None
    rows = rows and partition.objective == STEP and not partition.constraints
    counts = device_counts(devices, least)
    return [*shapes(counts, devices, samples, rows=rows, most=MAX_MICRO_BATCHES)]


class _Tried:
    """The candidates so far.

    deadline: of trying more, once there is one. work: the nodes that may still be planned.
    """

    def __init__(
        self,
        pricing: CostProvider,
        epoch: EpochOf,
        say: Callable[[str], object],
        deadline: float,
        work: float,
        devices: int,
    ) -> None:
        self.epoch, self.say, self.deadline, self.work = epoch, say, deadline, work
        self._pricing = pricing
        self.devices = devices
        self.candidates: list[Candidate] = []
        self.failed: list[Exception] = []
        self.left_out = self.proved = self.unpromising = 0

    @property
    def best(self) -> Candidate:
        return self.ranked[0]

    @property
    def ranked(self) -> list[Candidate]:
        """The shortest predicted step first."""
        return sorted(self.candidates, key=lambda c: c.seconds)

    def plan(
        self,
        config: Config,
        splits: tuple[GroupSplit, ...],
        *,
        quick: bool = False,
        placement: Placement | None = None,
    ) -> Candidate:
        planned = training_plan(config, self._pricing, quick=quick, placement=placement)
        fewer = len(config.devices) < self.devices
        found = Candidate.of(config, splits, planned, self.epoch(planned))
        found = replace(found, quick=quick, fewer=fewer)
        thorough = PLACED if placement is None else LISTED
        as_given = config.partition.strategy is None
        self.work -= found.nodes * (1 if quick or as_given else thorough)
        return found

    def affords(self, candidate: Candidate, times: int) -> bool:
        """Tell whether a plan like the candidate's may take so many times its work."""
        return times * candidate.nodes <= self.work and time.perf_counter() < self.deadline

    def add_shape(self, config: Config, outlook: Outlook) -> None:
        """Plan a shape, unless it cannot be the best or is not likely to be."""
        best, one = self.best, self.candidates[0]
        nodes = one.nodes * outlook.shape.rows / (one.config.partition.data_axis or 1)
        if self.epoch is alike and outlook.bound >= best.seconds:
            self.proved += 1
        elif outlook.seconds > HOPELESS * best.seconds or nodes > self.work:
            self.unpromising += 1
        else:
            self.add(config, ())

    def add(
        self,
        config: Config,
        splits: tuple[GroupSplit, ...],
        *,
        quick: bool = True,
        placement: Placement | None = None,
    ) -> Candidate | None:
        """Plan the config, if that can be and there is time."""
        if self.candidates and time.perf_counter() > self.deadline:
            self.left_out += 1
            return None
        try:
            found = self.plan(config, splits, quick=quick, placement=placement)
        except (PlacementError, ScheduleError, MicroBatchError) as error:
            self.failed.append(error)
            self.say(f"  micro_batches {config.pipeline.micro_batches}: {error}")
            return None
        self.candidates.append(found)
        so_far = "" if found is self.best else f", best so far {seconds_text(self.best.seconds)}"
        self.say(f"  {found.name}: {seconds_text(found.seconds)} predicted{so_far}")
        return found

    def refine(self, strategy: str) -> None:
        """Plan the best few once more, with all that there is to choose from.

        strategy: that was asked for; the best is tried with it.
        """
        near = NEAR * self.best.seconds
        for place, candidate in enumerate(self.ranked[:REFINED]):
            whole = self._refined(candidate) if candidate.seconds <= near else None
            if whole is not None and whole.planned.buckets is not None:
                self._others(whole, _ranked(whole.plan)[1:REFINED])
            elif whole is not None and place == 0:
                self._other_kind(whole)
        best = self.best
        if strategy != best.config.partition.strategy and self.affords(best, 2 * PLACED):
            config = _changed(best.config, "partition", strategy=strategy)
            self.add(config, best.splits)
            if self.best is not best:
                self.add(config, best.splits, quick=False)

    def _refined(self, candidate: Candidate) -> Candidate | None:
        """Plan one with all that there is to choose from, but for placements if time is short."""
        config, splits = candidate.config, candidate.splits
        if self.affords(candidate, PLACED):
            return self.add(config, splits, quick=False)
        if not self.affords(candidate, LISTED):
            return None
        place = candidate.plan.placement
        found = self.add(config, splits, quick=False, placement=place)
        if found is not None:
            self.candidates[-1] = found = replace(found, quick=True)
        return found

    def _others(self, candidate: Candidate, rest: Sequence[PlanCandidate]) -> None:
        """Candidates of what a plan had to choose from besides: it may be better for an epoch."""
        for tried in rest if self.affords(candidate, LISTED * len(rest)) else ():
            pinned = {"schedule": tried.schedule, "time_segment": tried.time_segment}
            config = _changed(candidate.config, "pipeline", **pinned, **_recompute(candidate))
            self._placed_like(candidate, config, candidate.plan.placement)

    def _other_kind(self, candidate: Candidate) -> None:
        """The best without time segments if a plan has some, else the best with, placed for itself.

        They have kernels of other lengths, and of these a measurement may have been off the most.
        """
        segmented = candidate.plan.choice.time_segment is not None
        for tried in _ranked(candidate.plan) if self.affords(candidate, 1 + LISTED) else ():
            if (tried.time_segment is not None) != segmented:
                pinned = {"schedule": AUTO, "time_segment": tried.time_segment}
                config = _changed(candidate.config, "pipeline", **pinned, **_recompute(candidate))
                quick = self.add(config, candidate.splits)
                if quick is not None:
                    self._placed_like(candidate, config, quick.plan.placement)
                return

    def _placed_like(self, candidate: Candidate, config: Config, placement: Placement) -> None:
        """Plan a config with a given placement, planned as thoroughly as the candidate."""
        found = self.add(config, candidate.splits, quick=False, placement=placement)
        if found is not None:
            self.candidates[-1] = replace(found, quick=candidate.quick)


def _recompute(candidate: Candidate) -> dict[str, Any]:
    """Return the candidate's choice of recomputation as a config value."""
    chosen = candidate.plan.choice.recompute
    return {"recompute": chosen} if chosen else {}


def _ranked(plan: Plan) -> list[PlanCandidate]:
    """Return the choices that a plan considered, the shortest predicted step first.

    With buckets that is the largest bucket's step; another choice may be better for all buckets.
    """
    known = [tried for tried in plan.candidates if tried.seconds is not None]
    return sorted(known, key=lambda t: (t.seconds, t.schedule, t.time_segment or 0))


def _changed(config: Config, section: str, **values: Any) -> Config:
    """Return the config with other values for some keys of a section."""
    changed = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: changed})


def _shaped(config: Config, shape: Shape) -> Config:
    """Return the config with the first devices as the shape says."""
    shaped = _changed(config, "pipeline", micro_batches=shape.micro_batches)
    devices = config.devices
    if shape.devices * shape.rows * (config.partition.data_axis or 1) != len(devices):
        devices = devices[: shape.devices * shape.rows]
    if shape.rows > 1:
        shaped = _changed(shaped, "partition", data_axis=shape.rows)
    return shaped.model_copy(update={"devices": devices})


def _opened(config: Config) -> Config:
    """Return the config with all choices but splits left to the planner."""
    old = config.partition
    quick = QUICK if old.strategy in (None, AUTO) else old.strategy
    limited = old.memory is not None and config.pipeline.recompute == NONE
    pipeline = {
        "schedule": AUTO,
        "time_segment": AUTO,
        "order": None,
        "recompute": AUTO if limited else config.pipeline.recompute,
    }
    return config.model_copy(
        update={
            "partition": old.model_copy(update={"strategy": quick, "split": NONE}),
            "pipeline": config.pipeline.model_copy(update=pipeline),
            "group2ctx": config.group2ctx if old.strategy else {},
        }
    )


def _splits(best: Candidate, config: Config) -> list[tuple[GroupSplit, ...]]:
    """Return the splits that are worth trying."""
    graph = best.plan.network.first
    devices = best.plan.devices
    weights = weigh(graph, best.prices.merged(graph, devices))
    rules = best.plan.options.rules
    return splits_to_try(weights, tuple(config.group2ctx), len(config.devices), rules)


def _with(config: Config, splits: tuple[GroupSplit, ...]) -> Config:
    """Return the config with some groups on all devices and every strategy for their pieces."""
    groups = {**config.group2ctx, **{split.group: config.devices for split in splits}}
    shards = {**config.partition.shards, **shard_marks(splits)}
    strategy = AUTO if config.partition.strategy == QUICK else config.partition.strategy
    partition = config.partition.model_copy(update={"shards": shards, "strategy": strategy})
    return config.model_copy(update={"group2ctx": groups, "partition": partition})


def _distinct(found: list[Candidate]) -> Iterator[Candidate]:
    """Yield candidates by predicted step; of those that differ only in placement, the best.

    A quickly planned candidate is left out if another one has its name.
    """
    seen = {candidate.name for candidate in found if not candidate.quick}
    found = [c for c in found if not (c.quick and c.name in seen)]
    seen.clear()
    for candidate in sorted(found, key=lambda c: c.seconds):
        if candidate.name not in seen:
            seen.add(candidate.name)
            yield candidate
