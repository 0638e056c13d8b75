"""The candidate of a search: a config that is planned, with the steps of an epoch simulated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from partitioner.strategies.types import LATENCY
from runtime.planning.costs.prices import CostModel
from runtime.planning.mixed_step import predict, stream_batches
from runtime.planning.plan import Plan
from runtime.planning.splits import GroupSplit
from runtime.profiling.analysis.pace import STREAM, steady
from runtime.profiling.search.epoch import Epoch
from runtime.profiling.trials.baseline import ONE
from runtime.profiling.trials.trial import prices_of
from runtime.schedule.timeline import Timeline
from runtime.training.job import Planned
from symgraph.app.config import Config
from symgraph.core.units import count_text
from symgraph.passes.precision import FLOAT32


@dataclass(frozen=True)
class Candidate:
    """A config that is planned.

    config: as the planner was asked. prices: of its prediction. steps: simulated, each with its
    part of an epoch. batches: that stream in a step; seconds are then those of one of them. quick:
    whether it was placed with little effort, so that its config may make another plan. given:
    whether it is the user's. baseline: whether it is the network on one device. fewer: whether it
    leaves some of the user's devices out.
    """

    config: Config
    splits: tuple[GroupSplit, ...]
    planned: Planned
    prices: CostModel
    steps: tuple[tuple[float, Timeline], ...]
    batches: int = 1
    quick: bool = False
    given: bool = False
    baseline: bool = False
    fewer: bool = False

    @classmethod
    def of(
        cls, config: Config, splits: tuple[GroupSplit, ...], planned: Planned, epoch: Epoch
    ) -> Candidate:
        """With the prediction of every step. Raises ScheduleError for steps that cannot be.

        A network without a loss is predicted as it is measured: with batches that stream, or with
        one alone if its latency counts.
        """
        if planned.forward_only and config.partition.objective != LATENCY:
            epoch = (((None,) * stream_batches(planned.training, STREAM), 1.0),)
        steps = [(part, planned.step(keys)) for keys, part in epoch]
        prices = prices_of(planned, [step for _, step in steps])
        found = tuple((part, predict(step, prices)) for part, step in steps)
        batches = len(epoch[0][0]) if planned.forward_only else 1
        return cls(config, splits, planned, prices, found, batches)

    @property
    def plan(self) -> Plan:
        return self.planned.training

    @property
    def nodes(self) -> int:
        """The nodes of a micro-batch's graph, with those of all replicas."""
        return len(self.plan.network.first)

    @property
    def precision(self) -> str:
        return self.config.train.precision

    @property
    def name(self) -> str:
        """The choices of the plan in a few words."""
        choice = self.plan.choice
        first = ONE if self.baseline else choice.schedule
        words = [first, count_text(len(self.plan.sizes), "micro-batch")]
        if choice.time_segment is not None:
            words.append(f"segments of {choice.time_segment}")
        rows, devices = self.config.partition.data_axis or 1, len(self.config.devices)
        if rows > 1:
            words.append(f"{rows} replicas")
        if self.fewer:
            words.append(count_text(devices, "device"))
        words += [f"{split.group} in {split.kind}" for split in self.splits]
        if choice.recompute:
            words.append(f"forward again on {', '.join(map(str, choice.recompute))}")
        if self.precision != FLOAT32:
            words.append(self.precision)
        return ", ".join(words) + (", as given" if self.given else "")

    @property
    def seconds(self) -> float:
        """The predicted step, or batch of a stream."""
        if self.batches > 1:
            return sum(part * steady(timeline, self.batches) for part, timeline in self.steps)
        return sum(part * timeline.makespan for part, timeline in self.steps)

    @cached_property
    def bound(self) -> float:
        """Seconds that no order of the runs of this cut can beat: proved, or the busiest rank's."""
        choice = self.plan.choice
        proved = [
            t.bound
            for t in self.plan.candidates
            if t.bound is not None
            and self.planned.buckets is None
            and (t.time_segment, t.recompute) == (choice.time_segment, choice.recompute)
        ]
        busy = sum(part * max(timeline.busy()) for part, timeline in self.steps)
        return max(min(proved, default=0.0), busy / self.batches)

    @property
    def even(self) -> float:
        """Seconds of a step if its runs were spread evenly over all ranks, which never wait."""
        busy = sum(part * sum(line.busy()) / line.ranks for part, line in self.steps)
        return busy / self.batches

    @property
    def simulated(self) -> int:
        """Plans that were simulated to find this one."""
        return max(1, len(self.plan.candidates)) + max(0, len(self.plan.placements) - 1)
