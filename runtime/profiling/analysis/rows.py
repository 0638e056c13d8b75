"""The rows of a profile: what operators and bodies cost per step, over all mixtures of buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.types import BodyKey
from partitioner.costs.cost import Speed
from partitioner.views.report import body_flops
from runtime.planning.memory.arena import Kind
from runtime.profiling.analysis.mixture import Mixture
from runtime.profiling.analysis.record import Record, bucket_text
from runtime.schedule.instructions import Run, Update

COPIES, UPDATES = "(copies in and out of runs)", "(updates)"  # rows that are not operators


class Row(NamedTuple):
    """The costs of the calls of one operator per step, over all ranks."""

    name: str
    """The operator, or a name in brackets for work outside operators."""
    calls: float
    """The number of calls per step."""
    median: float
    """The median seconds of one call."""
    spread: float
    """The interquartile range of one call's seconds."""
    seconds: float
    """The sum of all calls' medians per step."""
    share: float
    """The share of `seconds` in the sum over all rows."""
    flops: int
    """Operations per step."""
    nbytes: int
    """Bytes read and written per step."""
    roofline: float
    """The share of `seconds` that operations and bytes would take at the machine's best."""

    @property
    def flops_per_second(self) -> float:
        """The achieved rate."""
        return self.flops / self.seconds if self.seconds else 0.0


class BodyRow(NamedTuple):
    """The costs of one bucket's body on its rank."""

    bucket: str
    """The bucket as text; "" without buckets."""
    key: BodyKey
    rank: int
    calls: float
    """The number of runs per step."""
    median: float
    """The median seconds of one run."""
    spread: float
    """The interquartile range of one run's seconds."""
    predicted: float
    """The predicted seconds of one run."""
    flops: int
    """Operations of one run, the mean where micro-batches are unequal."""
    share: float
    """The share of this body in the seconds of all bodies."""

    @property
    def name(self) -> str:
        return f"{self.bucket} {self.key}" if self.bucket else str(self.key)


class _Timed(NamedTuple):
    """Work that is done once in each step of a mixture."""

    weight: float
    """The mixture's share of all steps."""
    seconds: npt.NDArray[Any]
    """The seconds in each step."""
    flops: int = 0
    nbytes: int = 0
    least: float = 0.0
    """The seconds that the device would take at its best."""


def operators(mixtures: Sequence[Mixture], speeds: Mapping[str, Speed]) -> list[Row]:
    """Return a row per operator, and rows for the other work of runs and updates.

    Args:
        mixtures: all mixtures of the profile.
        speeds: the speed of each kind of device.
    """
    kinds: dict[str, list[_Timed]] = {}
    for mixture in mixtures:
        weight = mixture.weight
        speed_of = [speeds[d.kind] for d in mixture.record.plan.devices]
        for call in mixture.calls:
            best = speed_of[call.rank].roofline(call.flops, call.nbytes) if call.nbytes else 0.0
            timed = _Timed(weight, call.seconds, call.flops, call.nbytes, best)
            kinds.setdefault(call.op, []).append(timed)
        for name, seconds in _others(mixture):
            kinds.setdefault(name, []).append(_Timed(weight, seconds))
    found = [_row(name, of_kind) for name, of_kind in kinds.items()]
    total = sum(row.seconds for row in found) or 1.0
    rows = [row._replace(share=row.seconds / total) for row in found]
    return sorted(rows, key=lambda row: -row.seconds)


def _row(name: str, done: Sequence[_Timed]) -> Row:
    every = np.concatenate([t.seconds for t in done])
    low, median, high = (float(x) for x in np.percentile(every, (25, 50, 75)))
    whole = sum(t.weight * float(np.median(t.seconds)) for t in done)
    least = sum(t.weight * t.least for t in done)
    return Row(
        name,
        sum(t.weight for t in done),
        median,
        high - low,
        whole,
        0.0,
        round(sum(t.weight * t.flops for t in done)),
        round(sum(t.weight * t.nbytes for t in done)),
        least / whole if whole else 0.0,
    )


def _others(mixture: Mixture) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield the seconds of each run outside its calls, and of each update."""
    inside: dict[tuple[int, BodyKey, int], Any] = {}
    for call in mixture.calls:
        place = call.rank, call.key, call.mb
        inside[place] = inside.get(place, 0.0) + call.seconds
    for rank, now, seconds in _instructions(mixture.record):
        if isinstance(now, Run):
            yield COPIES, seconds - inside.get((rank, now.key, now.mb), 0.0)
        elif isinstance(now, Update):
            yield UPDATES, seconds


def _instructions(record: Record) -> Iterator[tuple[int, Any, npt.NDArray[Any]]]:
    """Yield the rank of each instruction, the instruction, and its seconds in each step."""
    programs = record.step.schedule.programs
    for rank, (own, program) in enumerate(zip(record.ranks, programs, strict=True)):
        seconds = (own.end - own.start) * 1e-9
        for at, now in enumerate(program):
            yield rank, now, seconds[:, at]


def run_seconds(record: Record) -> dict[tuple[Kind, BodyKey], list[npt.NDArray[Any]]]:
    """Return the seconds of every run of each kind's bodies, an array over all steps per run."""
    found: dict[tuple[Kind, BodyKey], list[npt.NDArray[Any]]] = {}
    for _, now, seconds in _instructions(record):
        if isinstance(now, Run):
            found.setdefault((record.parts.mbs[now.mb].kind, now.key), []).append(seconds)
    return found


def bodies(mixtures: Sequence[Mixture]) -> list[BodyRow]:
    """Return a row per body, the most expensive first."""
    done: dict[tuple[str, BodyKey], list[_Timed]] = {}
    expected: dict[tuple[str, BodyKey], float] = {}
    rank_of: dict[tuple[str, BodyKey], int] = {}
    for mixture in mixtures:
        record, weight = mixture.record, mixture.weight
        for (kind, key), runs in run_seconds(record).items():
            flops = body_flops(record.parts.partitions[kind].bodies[key])
            place = bucket_text(record.keys[kind.part]), key
            done.setdefault(place, []).extend(_Timed(weight, s, flops) for s in runs)
        unit = weight * float(mixture.predicted.unit)
        for rank, track in enumerate(mixture.predicted.tracks):
            for run, start, end in track.runs():
                place = record.buckets(run.mb), run.key
                expected[place] = expected.get(place, 0.0) + (end - start) * unit
                rank_of[place] = rank
    rows = []
    for place, own in done.items():
        row = _row("", own)
        rows.append(
            BodyRow(
                *place,
                rank_of[place],
                row.calls,
                row.median,
                row.spread,
                expected[place] / row.calls,
                round(row.flops / row.calls),
                row.seconds,
            )
        )
    total = sum(row.share for row in rows) or 1.0
    rows = [row._replace(share=row.share / total) for row in rows]
    return sorted(rows, key=lambda row: -row.share)
