"""The profile: the figures of records beside the predictions for the same programs.

Steps of one mixture of buckets are alike; without buckets all steps are. The step is the median one
of those that are alike (record.py), from the first rank's begin to the last one's end: its seconds,
its timeline and the parts of each rank, which add up to it, are those of this one step. What calls
and runs cost are medians over all steps that are alike. Figures of several mixtures are means,
weighted by the mixtures' frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from partitioner.costs.consistency import consistency
from partitioner.costs.cost import Speed
from runtime.planning.account import fullest
from runtime.planning.costs.prices import CostModel
from runtime.planning.mixed_step import sent_bytes
from runtime.planning.plan import Plan
from runtime.profiling.analysis.mixture import Mixture
from runtime.profiling.analysis.pace import Pace
from runtime.profiling.analysis.record import Record, bucket_text
from runtime.profiling.analysis.rows import BodyRow, Row, bodies, operators, run_seconds
from runtime.schedule.replay import RankMemory
from runtime.schedule.views.breakdown import RankTime, breakdown
from symgraph.core.units import count_text, seconds_text

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RankParts:
    """The seconds of one rank's step, by use; their sum is `Profile.step`."""

    time: RankTime
    """The breakdown of the step; its `dispatch` does not include `between`."""
    between: float
    """Seconds before the first instruction (packing, checking inputs) and after the last."""

    @property
    def total(self) -> float:
        return float(sum(astuple(self.time))) + self.between

    @property
    def waiting(self) -> float:
        t = self.time
        return t.communication + t.warm_up + t.drain + t.imbalance


@dataclass(frozen=True)
class Profile:
    """Everything that is known about the measured steps."""

    prices: CostModel
    """The costs with which the steps were predicted."""
    speeds: Mapping[str, Speed]
    """The speed of each kind of device, for the roofline."""
    mixtures: tuple[Mixture, ...]
    """The mixtures of buckets that occurred, the most frequent first."""
    operators: tuple[Row, ...]
    """What the calls of each operator cost, the most expensive first."""
    bodies: tuple[BodyRow, ...]
    """What the runs of each body cost, the most expensive first."""
    parts: tuple[RankParts, ...]
    """The parts of the step on each rank; those of a rank add up to `step`."""
    warnings: tuple[str, ...]
    """Sentences about costs that look wrong."""
    loss: float
    """The loss of the last step."""
    unit: str
    """The unit of counts: "samples" or "tokens"."""
    baseline_memory: tuple[RankMemory, ...]
    """The memory of each rank for the plan of the largest bucket, which is always bound."""
    pace: Pace | None = None
    """The throughput and latency of a network that runs forward only; None: it is trained."""
    predicted_again: float | None = None
    """Seconds predicted for the typical step with kernels timed after the steps, if they were."""
    products: str = ""
    """The libraries of matrix products on its devices; on CPUs, by the kind of product."""

    def __repr__(self) -> str:
        measured, predicted = seconds_text(self.step), seconds_text(self.predicted_step)
        steps = count_text(self.steps, "step")
        return f"<Profile: {steps}, median {measured}, predicted {predicted} ({self.error:+.1%})>"

    @cached_property
    def typical(self) -> Mixture:
        """The mixture of the step that took the median time of all; its timelines are shown."""
        every = sorted(
            (seconds, at)
            for at, mixture in enumerate(self.mixtures)
            for seconds in mixture.record.seconds.tolist()
        )
        return self.mixtures[every[(len(every) - 1) // 2][1]]

    def _mean(self, values: Iterable[float]) -> float:
        return sum(m.weight * x for m, x in zip(self.mixtures, values, strict=True))

    @property
    def steps(self) -> int:
        return sum(mixture.record.steps for mixture in self.mixtures)

    @property
    def step(self) -> float:
        """The seconds of the median step; of several mixtures, the mean of their medians."""
        return self._mean(m.seconds for m in self.mixtures)

    @property
    def predicted_step(self) -> float:
        return self._mean(m.predicted.makespan for m in self.mixtures)

    @property
    def error(self) -> float:
        """How far the prediction is above (or below: < 0) the measured step, as a share of it."""
        return self.predicted_step / self.step - 1

    @property
    def count(self) -> float:
        """The mean number of samples in a step, or of tokens of a text."""
        return self._mean(float(m.record.counts.mean()) for m in self.mixtures)

    @property
    def bubble_fraction(self) -> float:
        """The share of all ranks' time in which nothing is computed."""
        spans = [m.measured.makespan for m in self.mixtures]
        idle = (s * m.measured.bubble_fraction for m, s in zip(self.mixtures, spans, strict=True))
        return self._mean(idle) / self._mean(spans)

    @property
    def compute(self) -> float:
        """Seconds per step in which bodies run and parameters are updated, over all ranks."""
        return sum(parts.time.compute for parts in self.parts)

    @property
    def bytes_sent(self) -> float:
        """The bytes of all messages of a step."""
        return self._mean(sent_bytes(m.record.step) for m in self.mixtures)

    @property
    def memory(self) -> tuple[RankMemory, ...]:
        """The memory of each rank for the mixture that needs most."""
        return fullest([self.baseline_memory, *(m.memory for m in self.mixtures)])

    def every(self, *, predicted: bool = False) -> Floats:
        """Return the measured or predicted seconds of all steps, in order."""
        found = np.zeros(self.steps)
        for m in self.mixtures:
            found[m.record.numbers] = m.predicted.makespan if predicted else m.record.seconds
        return found


def profile_of(
    records: Sequence[Record],
    prices: CostModel,
    speeds: Mapping[str, Speed],
    plan: Plan,
    loss: float = math.nan,
    unit: str = "samples",
) -> Profile:
    """Compute the profile of all records.

    Args:
        records: one per mixture of buckets.
        prices: the costs for the predictions.
        speeds: the speed of each kind of device, for the roofline.
        plan: the training plan, or that of the largest bucket.
        loss: the loss of the last step.
        unit: what is counted, "samples" or "tokens".
    """
    steps = sum(record.steps for record in records)
    mixtures = [Mixture.of(record, record.steps / steps, prices) for record in records]
    mixtures.sort(key=lambda m: -m.weight)
    weights = np.array([m.weight for m in mixtures])
    ranks = zip(*(_parts(m) for m in mixtures), strict=True)
    return Profile(
        prices,
        speeds,
        tuple(mixtures),
        tuple(operators(mixtures, speeds)),
        tuple(bodies(mixtures)),
        tuple(_sum(weights, own) for own in ranks),
        tuple(_findings(mixtures, prices)),
        loss,
        unit,
        plan.memory,
    )


# -- the parts of a step ---------------------------------------------------------------------------


def _parts(mixture: Mixture) -> list[RankParts]:
    """Return how each rank spends the median step."""
    whole = mixture.measured
    timeline = replace(whole, finish=None)  # what comes after the last instruction is no drain
    begin, after, found = timeline.ticks[0], whole.makespan - timeline.makespan, []
    times = breakdown(timeline, mixture.record.union)
    for track, time in zip(timeline.tracks, times, strict=True):
        before = (int(track.start[0]) - begin) * 1e-9 if len(track.start) else 0.0
        values = {f.name: getattr(time, f.name) for f in fields(time)}
        values["dispatch"] = max(0.0, values["dispatch"] - before)
        found.append(RankParts(RankTime(**values), before + after))
    return found


def _sum(weights: Floats, parts: Sequence[RankParts]) -> RankParts:
    """Return the mean of one rank's parts over all mixtures."""
    rows = np.array([[*astuple(own.time), own.between] for own in parts])
    *times, between = weights @ rows
    return RankParts(RankTime(*map(float, times)), float(between))


# -- warnings --------------------------------------------------------------------------------------


def _findings(mixtures: Sequence[Mixture], prices: CostModel) -> list[str]:
    """Return warnings where measured costs do not fit the measured runs.

    Of unequal micro-batches, those of the largest size are compared.
    """
    if not prices.measured:
        return []
    seconds: dict[str, float] = {}
    runs: dict[str, int] = {}
    plans: dict[str, Plan] = {}
    for record in [m.record for m in mixtures]:
        for (kind, _), all_of in run_seconds(record).items():
            if kind.size == record.parts.plans[kind.part].sizes[0]:
                bucket = bucket_text(record.keys[kind.part])
                spent = record.steps * sum(float(np.median(s)) for s in all_of)
                seconds[bucket] = seconds.get(bucket, 0.0) + spent
        for key, plan in zip(record.keys, record.parts.plans, strict=True):
            bucket = bucket_text(key)
            plans[bucket] = plan
            runs[bucket] = runs.get(bucket, 0) + record.steps * plan.sizes.count(plan.sizes[0])
    found = []
    for bucket, plan in plans.items():
        count = plan.sizes.count(plan.sizes[0])
        step = seconds[bucket] * count / runs[bucket]
        costs, alone = prices.placed(plan.partition), prices.alone().placed(plan.partition)
        findings = consistency(costs, plan.partition.graph, step, count, alone=alone).findings
        found += [f"bucket {bucket}: {line}" if bucket else line for line in findings]
    return found
