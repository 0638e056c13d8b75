"""The pace of a network that runs forward only: its throughput, and the latency of one batch.

Batches stream: a step has several, which follow each other through the stages without a pause.
Their steady pace is the time from the first to the last run of the rank for which that is longest,
divided by the batches: so filling and emptying the pipeline does not count. The latency is the time
of a step with one batch alone, from its first micro-batch in to its last one out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np
import numpy.typing as npt

from runtime.planning.costs.prices import CostModel
from runtime.planning.mixed_step import predict
from runtime.profiling.analysis.record import Record
from runtime.schedule.timeline import Timeline

STREAM = 4  # batches of a measured step
Floats = npt.NDArray[np.float64]


def steady(timeline: Timeline, batches: int) -> float:
    """Return the seconds of a batch in a step of several that stream."""
    return max(timeline.own_spans()) / batches


@dataclass(frozen=True)
class Pace:
    """The measured and predicted seconds of a batch."""

    batches: int
    """The batches of a step that streams; 1: each hands its states to the next, so none does."""
    count: float
    """The samples of a batch, or the tokens of a text."""
    by_latency: bool
    """Whether plans are judged by their latency, else by their throughput."""
    stream: Floats
    """The seconds of a batch at the steady pace of each measured step."""
    predicted_stream: float
    alone: Floats
    """The seconds of each measured step of one batch alone."""
    predicted_alone: float

    @classmethod
    def of(cls, records: Sequence[Record], prices: CostModel, *, by_latency: bool) -> Pace:
        """Compute the pace of the records of both kinds of step."""
        streams, alone = streaming(records), alone_of(records)
        batches = len(streams.keys)
        expected = predict(streams.step, prices, streams.union)
        paces = [steady(streams.timeline(step), batches) for step in range(streams.steps)]
        return cls(
            batches,
            float(alone.counts.mean()),
            by_latency,
            np.array(paces),
            steady(expected, batches),
            alone.seconds,
            predict(alone.step, prices, alone.union).makespan,
        )

    @property
    def throughput(self) -> float:
        """Samples, or tokens, per second at the median pace."""
        return self.count / self.every

    @property
    def every(self) -> float:
        """The median seconds of a batch while batches stream."""
        return float(median_low(self.stream))

    @property
    def latency(self) -> float:
        """The median seconds of a batch alone."""
        return float(median_low(self.alone))

    @property
    def seconds(self) -> Floats:
        """The seconds of a batch by which plans are judged, of each step."""
        return self.alone if self.by_latency else self.stream

    @property
    def batch(self) -> float:
        """Their median."""
        return self.latency if self.by_latency else self.every

    @property
    def predicted(self) -> float:
        """The same as predicted."""
        return self.predicted_alone if self.by_latency else self.predicted_stream


def streaming(records: Sequence[Record]) -> Record:
    """Return the record of the steps with the most batches."""
    return max(records, key=lambda record: len(record.keys))


def alone_of(records: Sequence[Record]) -> Record:
    """Return the record of the steps with one batch."""
    return min(records, key=lambda record: len(record.keys))
