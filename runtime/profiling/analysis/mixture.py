"""Mixtures: the steps whose batches come from the same buckets, beside their prediction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from runtime.planning.costs.prices import CostModel
from runtime.planning.mixed_step import predict
from runtime.profiling.analysis.calls import Call, calls_of
from runtime.profiling.analysis.record import Record, bucket_text
from runtime.schedule.replay import RankMemory
from runtime.schedule.timeline import Timeline


@dataclass(frozen=True)
class Mixture:
    """Steps that are alike, beside their prediction."""

    record: Record
    """The measured steps."""
    weight: float
    """Their share of all measured steps."""
    predicted: Timeline
    """The simulated step."""
    calls: tuple[Call, ...]
    """The operator calls of all ranks, in program order."""
    memory: tuple[RankMemory, ...]
    """The planned memory of each rank."""

    @classmethod
    def of(cls, record: Record, weight: float, prices: CostModel) -> Mixture:
        """Return the mixture of a record, predicted with these prices."""
        step = record.step
        calls = tuple(calls_of(record))
        return cls(record, weight, predict(step, prices, record.union), calls, step.memory)

    @property
    def name(self) -> str:
        """The buckets of the batches as text."""
        return ", ".join(filter(None, map(bucket_text, self.record.keys)))

    @property
    def seconds(self) -> float:
        """The seconds of the median step."""
        return self.measured.makespan

    @cached_property
    def measured(self) -> Timeline:
        """The median step's timeline."""
        return self.record.timeline(self.record.median_step)

    @property
    def error(self) -> float:
        """How far the prediction is above the median step, as a share of it."""
        return self.predicted.makespan / self.seconds - 1
