"""The profile: figures of a record, beside what was predicted of the same programs.

Of each rank the parts of a step are means over the usual steps (between the quartiles of all), so
they add up to those steps' mean to the nanosecond; everything else is a median over all steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.consistency import consistency
from partitioner.cost import CostTable, Speed
from partitioner.report import body_flops
from partitioner.types import BodyKey
from runtime.breakdown import RankTime, breakdown
from runtime.instructions import Run, Update
from runtime.prices import Prices
from runtime.profiling.calls import Call, calls_of
from runtime.profiling.record import Record
from runtime.replay import simulate
from runtime.timeline import Timeline

COPIES, UPDATES = "(copies in and out of runs)", "(updates)"  # rows of no operator


class Row(NamedTuple):
    """What calls of one kind cost a step, all ranks together.

    calls: a step. median, spread (interquartile range): of one call. seconds: sum of the calls'
    medians. share: of all rows. flops, nbytes: a step. roofline: the part of `seconds` that the
    operations and bytes take at the machine's best.
    """

    name: str
    calls: int
    median: float
    spread: float
    seconds: float
    share: float
    flops: int
    nbytes: int
    roofline: float

    @property
    def flops_a_second(self) -> float:
        return self.flops / self.seconds if self.seconds else 0.0


class BodyRow(NamedTuple):
    """A body on its rank: runs a step, seconds of one run and its prediction."""

    key: BodyKey
    rank: int
    calls: int
    median: float
    spread: float
    predicted: float
    flops: int
    share: float


@dataclass(frozen=True)
class RankParts:
    """Seconds of one rank's step; their sum is `Profile.parts_of`.

    time: see runtime.breakdown; its dispatch leaves out between. between: before the first
    instruction (weights are packed for products, inputs checked) and after the last.
    """

    time: RankTime
    between: float

    @property
    def total(self) -> float:
        return float(sum(astuple(self.time))) + self.between

    @property
    def waiting(self) -> float:
        """Seconds in which the rank does nothing of its own."""
        t = self.time
        return t.communication + t.warm_up + t.drain + t.imbalance


@dataclass(frozen=True)
class Profile:
    """All that is known after a profile; see the module.

    seconds: of every step. parts_of: the mean of the usual steps. operators, bodies: the slowest
    first. predicted: the timeline that was expected, by `prices`. speed: the machine's best, one
    rank. warnings: what is strange about the costs.
    """

    record: Record
    prices: Prices
    predicted: Timeline
    measured: Timeline
    speed: Speed
    calls: tuple[Call, ...]
    operators: tuple[Row, ...]
    bodies: tuple[BodyRow, ...]
    parts: tuple[RankParts, ...]
    parts_of: float
    warnings: tuple[str, ...]

    @property
    def step(self) -> float:
        """The median step in seconds."""
        return float(np.median(self.record.seconds))

    @property
    def error(self) -> float:
        """How far the prediction is above (or below: < 0) the measured step, as a share of it."""
        return self.predicted.makespan / self.step - 1

    @property
    def compute(self) -> float:
        """Seconds a step in which bodies run and parameters are updated, of all ranks."""
        return sum(parts.time.compute for parts in self.parts)


def profile_of(record: Record, prices: Prices, speed: Speed) -> Profile:
    """The figures of a record. prices: of the prediction. speed: for the roofline."""
    plan = record.plan
    partition = plan.partition
    predicted = simulate(plan.schedule, partition, prices.costs(partition))
    calls = calls_of(record)
    parts = [_parts(record, int(step)) for step in record.usual]
    return Profile(
        record, prices, predicted, record.timeline(record.median_step), speed, tuple(calls),
        tuple(_operators(record, calls, speed)), tuple(_bodies(record, predicted)),
        tuple([_mean([of_step[rank] for of_step in parts]) for rank in range(partition.ranks)]),
        float(np.mean(record.seconds[record.usual])), tuple(_findings(record, prices)),
    )  # fmt: skip


# -- the parts of a step ---------------------------------------------------------------------------


def _parts(record: Record, step: int) -> list[RankParts]:
    timeline = record.timeline(step)
    begin = timeline.ticks[0]
    after = record.seconds[step] - timeline.makespan
    found = []
    for track, time in zip(
        timeline.tracks, breakdown(timeline, record.plan.partition), strict=True
    ):
        before = (int(track.start[0]) - begin) * 1e-9 if len(track.start) else 0.0
        values = {f.name: getattr(time, f.name) for f in fields(time)}
        values["dispatch"] = max(0.0, values["dispatch"] - before)
        found.append(RankParts(RankTime(**values), before + float(after)))
    return found


def _mean(parts: Sequence[RankParts]) -> RankParts:
    times = np.mean([astuple(p.time) for p in parts], axis=0)
    return RankParts(RankTime(*map(float, times)), float(np.mean([p.between for p in parts])))


# -- operators -------------------------------------------------------------------------------------


def _operators(record: Record, calls: Iterable[Call], speed: Speed) -> list[Row]:
    """A row an operator, and rows for what runs and updates do besides."""
    kinds: dict[str, list[Call]] = {}
    for call in calls:
        kinds.setdefault(call.op, []).append(call)
    found = [_row(name, of_kind, speed) for name, of_kind in kinds.items()]
    for name, seconds in _others(record, calls).items():
        found.append(_timed_row(name, [np.asarray(s) for s in seconds]))
    total = sum(row.seconds for row in found) or 1.0
    rows = [row._replace(share=row.seconds / total) for row in found if row.calls]
    return sorted(rows, key=lambda row: -row.seconds)


def _row(name: str, calls: Sequence[Call], speed: Speed) -> Row:
    row = _timed_row(name, [call.seconds for call in calls])
    least = sum(speed.roofline(call.flops, call.nbytes) for call in calls)
    return row._replace(
        flops=sum(call.flops for call in calls), nbytes=sum(call.nbytes for call in calls),
        roofline=least / row.seconds if row.seconds else 0.0,
    )  # fmt: skip


def _timed_row(name: str, seconds: Sequence[npt.NDArray[np.float64]]) -> Row:
    every = np.concatenate(seconds) if seconds else np.zeros(1)
    low, median, high = (float(x) for x in np.percentile(every, (25, 50, 75)))
    whole = sum(float(np.median(s)) for s in seconds)
    return Row(name, len(seconds), median, high - low, whole, 0.0, 0, 0, 0.0)


def _others(record: Record, calls: Iterable[Call]) -> dict[str, list[Any]]:
    """The seconds of each run outside of its calls, and of each update."""
    inside: dict[tuple[int, BodyKey, int], Any] = {}
    for call in calls:
        place = call.rank, call.key, call.mb
        inside[place] = inside.get(place, 0.0) + call.seconds
    found: dict[str, list[Any]] = {COPIES: [], UPDATES: []}
    for rank, own in enumerate(record.ranks):
        seconds = (own.end - own.start) * 1e-9
        for at, now in enumerate(record.plan.schedule.programs[rank]):
            if isinstance(now, Run):
                found[COPIES].append(seconds[:, at] - inside.get((rank, now.key, now.mb), 0.0))
            elif isinstance(now, Update):
                found[UPDATES].append(seconds[:, at])
    return found


# -- bodies ----------------------------------------------------------------------------------------


def run_seconds(record: Record) -> dict[BodyKey, list[Any]]:
    """The seconds of every run of each body: an array of all steps for each micro-batch."""
    found: dict[BodyKey, list[Any]] = {}
    for own, program in zip(record.ranks, record.plan.schedule.programs, strict=True):
        seconds = (own.end - own.start) * 1e-9
        for at, now in enumerate(program):
            if isinstance(now, Run):
                found.setdefault(now.key, []).append(seconds[:, at])
    return found


def _bodies(record: Record, predicted: Timeline) -> list[BodyRow]:
    partition = record.plan.partition
    expected = {
        run.key: (end - start) * float(predicted.unit)
        for track in predicted.tracks for run, start, end in track.runs()
    }  # fmt: skip
    rows = []
    for key, runs in run_seconds(record).items():
        row = _timed_row(str(key), runs)
        flops = body_flops(partition.bodies[key])
        rows.append(BodyRow(
            key, partition.rank(key), row.calls, row.median, row.spread, expected[key], flops,
            row.seconds,
        ))  # fmt: skip
    total = sum(row.share for row in rows) or 1.0
    rows = [row._replace(share=row.share / total) for row in rows]
    return sorted(rows, key=lambda row: -row.share)


def _findings(record: Record, prices: Prices) -> Iterable[str]:
    """What is strange about measured costs, beside all runs of the measured step."""
    if not isinstance(prices.bodies, CostTable) or prices.machine is not None:
        return ()
    runs = sum(float(np.median(s)) for all_of in run_seconds(record).values() for s in all_of)
    plan = record.plan
    return consistency(prices.bodies, plan.partition.graph, runs, len(plan.sizes)).findings
