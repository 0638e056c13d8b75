"""The search: which split, schedule, micro-batches, time segment and recomputation are fastest.

Each candidate is a config whose open choices the planner makes by simulation
(runtime.planning.placement_choice, runtime.planning.schedule_choice). What the planner does not
vary is varied here, coordinate by coordinate: a few numbers of micro-batches of the unsplit
network, then each split that is worth trying, then other numbers, in powers of two. All of that is
quick: named schedules, one length of time segments. The best few are then planned with all that
there is to choose from.

With buckets, the planner chooses by the largest; here a candidate counts by the mean step of an
epoch, so some of what the planner had second to best is tried as well. Without, it is the best that
cuts time if the planner would not, or does not if it would. The few candidates with the shortest
predicted steps are measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from partitioner import Placement
from runtime.planning.costs.prices import CostModel, CostProvider
from runtime.planning.options import AUTO, NONE
from runtime.planning.plan import Plan, PlanCandidate
from runtime.planning.splits import GroupSplit, shard_marks, splits_to_try, weigh
from runtime.profiling.search.candidate import Candidate
from runtime.profiling.search.epoch import EpochOf, alike
from runtime.profiling.trials.baseline import plan_baseline
from runtime.training.job import samples_of, training_plan
from symgraph.app.config import Config
from symgraph.app.data_config import batches_per_step
from symgraph.core.context import Context
from symgraph.core.errors import LimitError, MicroBatchError, PlacementError, ScheduleError
from symgraph.core.graph import Graph
from symgraph.core.units import count_text, seconds_text

SECONDS = 50.0  # of simulations; what is not tried by then is left out
QUICK_SHARE = 0.6  # of SECONDS, for planning candidates quickly
MAX_MICRO_BATCHES = 32
FIRST_COUNTS = 3  # numbers of micro-batches that are tried before splits
QUICK = "optimal"  # the strategy for quick planning; the best candidates then try all strategies
EFFORT = 5  # thorough planning takes about this many times as long as quick planning
REFINED = 3  # candidates that are planned again with every choice


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
    seconds: float
    """The seconds that the search took."""
    baseline: Candidate | None = None
    """The network on one device, which is among the candidates; None: it was not tried."""
    too_large: str = ""
    """Why one device cannot hold the network."""

    def with_baseline(self, one: Config, pricing: CostProvider, epoch: EpochOf) -> Found:
        """Add the network on one device.

        Args:
            one: its config; see `baseline_of`.
            pricing: the provider of its costs.
            epoch: see `search`.
        """
        begun = time.perf_counter()
        try:
            planned = plan_baseline(one, pricing)
        except LimitError as error:
            return replace(self, too_large=str(error))
        found = replace(Candidate.of(planned.config, (), planned, epoch(planned)), baseline=True)
        candidates = sorted([*self.candidates, found], key=lambda c: c.seconds)
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
    say: Callable[[str], object] = lambda line: None,
) -> Found:
    """Plan all candidates, within about `seconds`.

    A config without a strategy places every group itself: it is a candidate as given, and the
    others place all groups anew. With a strategy, `group2ctx` pins groups.

    Args:
        config: the config to vary.
        pricing: the provider of costs.
        epoch: gives the mixtures of buckets by which a candidate is ranked, with their shares.
        seconds: the time limit.
        say: is told what is being tried.

    Raises:
        LimitError: nothing fits the memory limit; it names the smallest limit of the last try.
    """
    begun = time.perf_counter()
    tried = _Tried(pricing, epoch, say, begun + QUICK_SHARE * seconds)
    given = None
    if config.partition.strategy is None and config.group2ctx:
        with suppress(LimitError):
            given = replace(tried.plan(config, ()), given=True)
    _vary(tried, config)
    if not tried.candidates:
        assert tried.failed is not None
        raise tried.failed
    tried.deadline = begun + seconds
    tried.refine(config.partition.strategy or AUTO)
    everything = [*tried.candidates, *([given] if given else [])]
    simulated = sum(candidate.simulated for candidate in everything)
    took = time.perf_counter() - begun
    return Found(tuple(_distinct(everything)), given, simulated, tried.left_out, took)


def _vary(tried: _Tried, config: Config) -> None:
    """Try micro-batches and splits."""
    free, devices = _opened(config), len(config.devices)
    counts = _counts(samples_of(config), batches_per_step(config.data), devices)
    for count in counts[:FIRST_COUNTS]:
        tried.add(_counted(free, count), ())
    if config.partition.split == AUTO and devices > 1 and tried.candidates:
        for splits in _splits(tried.best, free):
            tried.add(_counted(_with(free, splits), len(tried.best.plan.sizes)), splits)
    if not tried.candidates:
        for count in counts[FIRST_COUNTS:]:
            tried.add(_counted(free, count), ())
        return
    best = tried.best
    for count in sorted(counts, key=lambda count: abs(math.log(count / len(best.plan.sizes)))):
        if not any((len(c.plan.sizes), c.splits) == (count, best.splits) for c in tried.candidates):
            tried.add(_counted(best.config, count), best.splits)


class _Tried:
    """The candidates so far. deadline: of trying more, once there is one."""

    def __init__(
        self, pricing: CostProvider, epoch: EpochOf, say: Callable[[str], object], deadline: float
    ) -> None:
        self.epoch, self.say, self.deadline = epoch, say, deadline
        self._pricing = pricing
        self._measuring = 0.0  # seconds that prices took
        self.candidates: list[Candidate] = []
        self.failed: Exception | None = None
        self.left_out = 0

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
        begun = time.perf_counter() - self._measuring
        planned = training_plan(config, self._price, quick=quick, placement=placement)
        found = Candidate.of(config, splits, planned, self.epoch(planned))
        took = time.perf_counter() - self._measuring - begun
        return replace(found, quick=quick, took=took)

    def _price(self, graph: Graph, contexts: Sequence[Context]) -> CostModel:
        begun = time.perf_counter()
        prices = self._pricing(graph, contexts)
        self._measuring += time.perf_counter() - begun
        return prices

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
            self.failed = error
            self.say(f"  {count_text(config.pipeline.micro_batches, 'micro-batch')}: {error}")
            return None
        self.candidates.append(found)
        self.say(f"  {found.name}: {seconds_text(found.seconds)} predicted")
        return found

    def refine(self, strategy: str) -> None:
        """Plan the best few once more, with all that there is to choose from.

        strategy: that was asked for; the best is tried with it.
        """
        for place, candidate in enumerate(self.ranked[:REFINED]):
            whole = self._refined(candidate)
            if whole is not None and whole.planned.buckets is not None:
                self._others(whole, _ranked(whole.plan)[1:REFINED])
            elif whole is not None and place == 0:
                self._other_kind(whole)
        best = self.best
        ready = time.perf_counter() + EFFORT * best.took < self.deadline
        if strategy != best.config.partition.strategy and ready:
            config = _changed(best.config, "partition", strategy=strategy)
            self.add(config, best.splits)
            if self.best is not best:
                self.add(config, best.splits, quick=False)

    def _refined(self, candidate: Candidate) -> Candidate | None:
        """Plan one with all that there is to choose from, but for placements if time is short."""
        config, splits = candidate.config, candidate.splits
        if time.perf_counter() + EFFORT * candidate.took < self.deadline:
            return self.add(config, splits, quick=False)
        place = candidate.plan.placement
        found = self.add(config, splits, quick=False, placement=place)
        if found is not None:
            self.candidates[-1] = found = replace(found, quick=True)
        return found

    def _others(self, candidate: Candidate, rest: Sequence[PlanCandidate]) -> None:
        """Candidates of what a plan had to choose from besides: it may be better for an epoch."""
        for tried in rest:
            pinned = {"schedule": tried.schedule, "time_segment": tried.time_segment}
            config = _changed(candidate.config, "pipeline", **pinned, **_recompute(candidate))
            self._placed_like(candidate, config, candidate.plan.placement)

    def _other_kind(self, candidate: Candidate) -> None:
        """The best without time segments if a plan has some, else the best with, placed for itself.

        They have kernels of other lengths, and of these a measurement may have been off the most.
        """
        segmented = candidate.plan.choice.time_segment is not None
        for tried in _ranked(candidate.plan):
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


def _counted(config: Config, count: int) -> Config:
    return _changed(config, "pipeline", micro_batches=count)


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


def _counts(batch: int, batches: int, devices: int) -> list[int]:
    """Return the numbers of micro-batches to try, those near two per device and step first."""
    powers = (1 << n for n in range(batch.bit_length()))
    counts = [count for count in powers if count <= min(batch, MAX_MICRO_BATCHES)]
    return sorted(counts, key=lambda count: abs(math.log(batches * count / (2 * devices))))


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
