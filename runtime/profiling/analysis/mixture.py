"""The mixture: steps with batches of the same buckets, and so alike, beside their prediction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from runtime.planning.costs.prices import CostModel
from runtime.planning.mixed_step import predict
from runtime.profiling.analysis.calls import Call, calls_of
from runtime.profiling.analysis.record import Record, bucket_text
from runtime.schedule.replay import RankMemory
from runtime.schedule.timeline import Timeline


@dataclass(frozen=True)
class Mixture:
    """The steps that are alike, beside their prediction.

    weight: the part of all steps. calls: in the order of the ranks' programs. memory: of each rank.
    """

    record: Record
    weight: float
    predicted: Timeline
    calls: tuple[Call, ...]
    memory: tuple[RankMemory, ...]

    @classmethod
    def of(cls, record: Record, weight: float, prices: CostModel) -> Mixture:
        """With what the prices predict."""
        step = record.step
        calls = tuple(calls_of(record))
        return cls(record, weight, predict(step, prices, record.union), calls, step.memory)

    @property
    def name(self) -> str:
        """The buckets of its batches."""
        return ", ".join(filter(None, map(bucket_text, self.record.keys)))

    @property
    def seconds(self) -> float:
        """The median step."""
        return float(np.median(self.record.seconds))

    @cached_property
    def measured(self) -> Timeline:
        """The median step's timeline."""
        return self.record.timeline(self.record.median_step)

    @property
    def error(self) -> float:
        """How far the prediction is above the median step, as a share of it."""
        return self.predicted.makespan / self.seconds - 1
