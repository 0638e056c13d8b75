"""The search: which split, schedule, micro-batches, time segment and recomputation are fastest.

Each candidate is a config whose open choices the planner makes by simulation (runtime.placing,
runtime.choose). What the planner does not vary is varied here, coordinate by coordinate: first the
micro-batches of the unsplit network, in powers of two, then each split that is worth trying with
the best number, and with its neighbours if that is better. The few with the shortest predicted
steps are measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from partitioner.merging import MergedCosts
from runtime.choose import AUTO, NONE
from runtime.job import Planned, training_plan
from runtime.pipeline import Plan
from runtime.prices import Prices, Pricing
from runtime.profiling.trial import prices_of
from runtime.replay import simulate
from runtime.splits import Split, candidates, marks, weigh
from symgraph.config_keys import Config
from symgraph.errors import LimitError, MicroBatchError, PlacementError, ScheduleError
from symgraph.units import seconds_text

SECONDS = 60.0  # of simulations; what is not tried by then is left out
MOST = 32  # micro-batches
QUICK = "optimal"  # the strategy that all are tried with; the best then with all strategies


@dataclass(frozen=True)
class Candidate:
    """A config that is planned.

    config: as the planner was asked. prices: of its prediction. given: whether it is the user's.
    """

    config: Config
    splits: tuple[Split, ...]
    planned: Planned
    prices: Prices
    given: bool = False

    @property
    def plan(self) -> Plan:
        return self.planned.training

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        choice = self.plan.choice
        words = [choice.schedule, f"{len(self.plan.sizes)} micro-batches"]
        if choice.time_segment is not None:
            words.append(f"segments of {choice.time_segment}")
        words += [f"{split.group} in {split.kind}" for split in self.splits]
        if choice.recompute:
            words.append(f"forward again on {', '.join(map(str, choice.recompute))}")
        return ", ".join(words) + (", as given" if self.given else "")

    @cached_property
    def seconds(self) -> float:
        """The predicted step."""
        partition = self.plan.partition
        costs = self.prices.costs(partition)
        return simulate(self.plan.schedule, partition, costs).makespan

    @cached_property
    def bound(self) -> float:
        """Seconds that no order of the runs of this cut can beat: proved, or the busiest rank's."""
        choice, partition = self.plan.choice, self.plan.partition
        proved = [
            t.bound for t in self.plan.tried
            if t.bound is not None
            and (t.time_segment, t.recompute) == (choice.time_segment, choice.recompute)
        ]  # fmt: skip
        busy = [0.0] * partition.ranks
        costs = self.prices.costs(partition)
        for key in partition.bodies:
            busy[partition.rank(key)] += len(self.plan.sizes) * float(costs.run(key))
        return max(min(proved, default=0.0), *busy)

    @property
    def simulated(self) -> int:
        """Plans that were simulated to find this one."""
        return max(1, len(self.plan.tried)) + max(0, len(self.plan.considered) - 1)


@dataclass(frozen=True)
class Found:
    """Candidates, the shortest predicted step first; left_out: configs not tried for lack of time.

    given: the config as the user wrote it, if it is a whole plan.
    """

    candidates: tuple[Candidate, ...]
    given: Candidate | None
    left_out: int

    @property
    def simulated(self) -> int:
        """Plans that were simulated."""
        return sum(candidate.simulated for candidate in self.candidates)


def search(
    config: Config,
    pricing: Pricing,
    *,
    seconds: float = SECONDS,
    say: Callable[[str], None] = lambda line: None,
) -> Found:
    """Plan all candidates, within about so many seconds.

    A config without a strategy says where everything goes: it is a candidate as it stands, and the
    others place all groups anew. With one, `group2ctx` pins. Raises what planning raises if nothing
    can be planned: LimitError names the smallest memory limit of the last try.
    """
    tried = _Tried(pricing, say, time.perf_counter() + seconds)
    given = None
    if config.partition.strategy is None and config.group2ctx:
        with suppress(LimitError):
            given = replace(tried.plan(config, ()), given=True)
    free, devices = _opened(config), len(config.devices)
    counts = _counts(config.data.batch_size, devices)
    for count in counts:
        tried.add(free, count, ())
    if config.partition.split == AUTO and devices > 1 and tried.candidates:
        for splits in _splits(tried.best, free):
            best = tried.best
            count = len(best.plan.sizes)
            tried.add(_with(free, splits), count, splits)
            if tried.best is not best:
                for other in [c for c in (2 * count, count // 2) if c in counts]:
                    tried.add(_with(free, splits), other, splits)
    if not tried.candidates:
        assert tried.failed is not None
        raise tried.failed
    tried.refine(config.partition.strategy or AUTO)
    everything = [*tried.candidates, *([given] if given else [])]
    return Found(tuple(_distinct(everything)), given, tried.left_out)


class _Tried:
    """The candidates so far. deadline: of trying more, once there is one."""

    def __init__(self, pricing: Pricing, say: Callable[[str], None], deadline: float) -> None:
        self.pricing, self.say, self.deadline = pricing, say, deadline
        self.candidates: list[Candidate] = []
        self.failed: Exception | None = None
        self.left_out = 0

    @property
    def best(self) -> Candidate:
        return min(self.candidates, key=lambda c: c.seconds)

    def plan(self, config: Config, splits: tuple[Split, ...]) -> Candidate:
        planned = training_plan(config, self.pricing)
        return Candidate(config, splits, planned, prices_of(planned, [planned.step(())]))

    def add(self, config: Config, count: int, splits: tuple[Split, ...]) -> None:
        """Plan the config for so many micro-batches, if that can be and there is time."""
        if self.candidates and time.perf_counter() > self.deadline:
            self.left_out += 1
            return
        pipeline = config.pipeline.model_copy(update={"micro_batches": count})
        try:
            found = self.plan(config.model_copy(update={"pipeline": pipeline}), splits)
        except (PlacementError, ScheduleError, MicroBatchError) as error:
            self.failed = error
            self.say(f"  {count} micro-batches: {error}")
            return
        self.candidates.append(found)
        self.say(f"  {found.name}: {seconds_text(found.seconds)} predicted")

    def refine(self, strategy: str) -> None:
        """Plan the best once more with the strategy that was asked for."""
        best = self.best
        if strategy != best.config.partition.strategy:
            partition = best.config.partition.model_copy(update={"strategy": strategy})
            config = best.config.model_copy(update={"partition": partition})
            self.add(config, len(best.plan.sizes), best.splits)


def _opened(config: Config) -> Config:
    """The config with all choices left to the planner, but for splits."""
    old = config.partition
    quick = QUICK if old.strategy in (None, AUTO) else old.strategy
    limited = old.memory is not None and config.pipeline.recompute == NONE
    pipeline = {
        "schedule": AUTO, "time_segment": AUTO, "order": None,
        "recompute": AUTO if limited else config.pipeline.recompute,
    }  # fmt: skip
    return config.model_copy(update={
        "partition": old.model_copy(update={"strategy": quick, "split": NONE}),
        "pipeline": config.pipeline.model_copy(update=pipeline),
        "group2ctx": config.group2ctx if old.strategy else {},
    })  # fmt: skip


def _counts(batch: int, devices: int) -> list[int]:
    """The numbers of micro-batches that are tried, those near twice the devices first."""
    powers = (1 << n for n in range(batch.bit_length()))
    counts = [count for count in powers if count <= min(batch, MOST)]
    return sorted(counts, key=lambda count: abs(math.log(count / (2 * devices))))


def _splits(best: Candidate, config: Config) -> list[tuple[Split, ...]]:
    """The splits that are worth trying."""
    graph = best.plan.network.first
    weights = weigh(graph, MergedCosts(best.prices.bodies, graph))
    return candidates(weights, tuple(config.group2ctx), len(config.devices))


def _with(config: Config, splits: tuple[Split, ...]) -> Config:
    """The config with some groups on all devices, their pieces placed by all strategies."""
    groups = {**config.group2ctx, **{split.group: config.devices for split in splits}}
    shards = {**config.partition.shards, **marks(splits)}
    strategy = AUTO if config.partition.strategy == QUICK else config.partition.strategy
    partition = config.partition.model_copy(update={"shards": shards, "strategy": strategy})
    return config.model_copy(update={"group2ctx": groups, "partition": partition})


def _distinct(found: list[Candidate]) -> Iterator[Candidate]:
    """The shortest predicted step first; of those that differ in placement only, the best."""
    seen: set[str] = set()
    for candidate in sorted(found, key=lambda c: c.seconds):
        if candidate.name not in seen:
            seen.add(candidate.name)
            yield candidate
