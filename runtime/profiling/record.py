"""The record: what all ranks of a pipeline did in some measured steps."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.types import BodyKey
from runtime.pipeline import Plan
from runtime.stopwatch import Laps, Stopwatch, Watched
from runtime.timeline import Timeline, Track
from runtime.trainer import Trainer, mean_loss
from runtime.transports import Transport
from runtime.worker import NANOSECOND, Worker

WARM_UP = 3  # steps that are not counted: kernels are loaded, caches and memory touched
STEPS = 20

Ints = npt.NDArray[Any]


class RankRecord(NamedTuple):
    """One rank's measured steps, one row each: int64 ns of the clock of rank 0's host.

    walls: begin and end. start, end: of every instruction. calls: of every call of `runs`.
    """

    walls: Ints
    start: Ints
    end: Ints
    calls: Laps
    runs: tuple[Watched, ...]


@dataclass(frozen=True)
class Record:
    """The steps of all ranks. loss: mean negative log-likelihood of the last step's words."""

    plan: Plan
    ranks: tuple[RankRecord, ...]
    loss: float

    @property
    def begin(self) -> Ints:
        """When the first rank began each step."""
        begin: Ints = np.min([r.walls[:, 0] for r in self.ranks], axis=0)
        return begin

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """Of every step, from the first rank's begin to the last one's end."""
        end = np.max([r.walls[:, 1] for r in self.ranks], axis=0)
        seconds: npt.NDArray[np.float64] = (end - self.begin) * 1e-9
        return seconds

    @property
    def steps(self) -> int:
        return len(self.ranks[0].walls)

    @property
    def median_step(self) -> int:
        """The number of the step that took the median time (the faster of two)."""
        return int(np.argsort(self.seconds, kind="stable")[(self.steps - 1) // 2])

    @property
    def usual(self) -> Ints:
        """The steps between the quartiles, at least one: what hiccups of the machine are not in."""
        order = np.argsort(self.seconds, kind="stable")
        cut = self.steps // 4
        usual: Ints = order[cut : self.steps - cut]
        return usual

    def timeline(self, step: int) -> Timeline:
        """One step; it begins with that of the first rank."""
        tracks = [
            Track(program, record.start[step], record.end[step])
            for program, record in zip(self.plan.schedule.programs, self.ranks, strict=True)
        ]
        return Timeline(tuple(tracks), NANOSECOND, int(self.begin[step]))


class Recorder:
    """Trains some steps at a time and keeps what they took; the trainer must be timed.

    Every process of an MPI run does the same and gets the same.
    """

    def __init__(self, trainer: Trainer, warm_up: int = WARM_UP) -> None:
        self.trainer = trainer
        self._walls: list[tuple[int, int]] = []
        self._kept: dict[int, list[tuple[Ints, ...]]] = {r: [] for r in trainer.training.workers}
        self._figures: dict[str, float] = {}
        self._batches = trainer.steps(trainer.training.steps)
        self.run(warm_up, keep=False)

    def run(self, steps: int, *, keep: bool = True) -> None:
        """Do so many steps. keep: whether they are part of the record."""
        session = self.trainer.training
        for _, batches in islice(self._batches, steps):
            begun = time.perf_counter_ns()
            self._figures = session.step_batches(batches)
            wall = begun, time.perf_counter_ns()
            laps = {r: (w, _stopwatch(w).laps()) for r, w in session.workers.items()}
            if keep:
                self._walls.append(wall)
                for rank, (worker, calls) in laps.items():
                    track = worker.timeline.tracks[rank]
                    self._kept[rank].append((track.start, track.end, calls.start, calls.end))

    def record(self) -> Record:
        """All steps so far, of all ranks."""
        trainer, found = self.trainer, list[RankRecord]()

        def work(transport: Transport) -> None:
            rank = transport.rank
            worker = trainer.training.workers[rank]
            rows = _exchange(transport, worker, self._walls, self._kept[rank])
            if not found:
                found.extend(rows)

        trainer.training.cluster.run(work)
        loss = mean_loss(self._figures, trainer.job.figures)
        return Record(trainer.job.training, tuple(found), loss)


def _stopwatch(worker: Worker) -> Stopwatch:
    assert worker.stopwatch is not None, "a timed trainer"
    return worker.stopwatch


def _exchange(
    transport: Transport, worker: Worker, walls: list[tuple[int, int]], kept: list[tuple[Ints, ...]]
) -> list[RankRecord]:
    """All ranks' records; transports exchange what JSON can say."""
    transport.waiting_for("the record of the measured steps")
    offset = clock_offset(transport)
    times = [walls, *(list(rows) for rows in zip(*kept, strict=True))]
    own = {
        "times": [(np.array(rows, np.int64) - offset).tolist() for rows in times],
        "runs": [(*run.key, run.mb, run.calls, run.adding) for run in _stopwatch(worker).runs],
    }
    return [_parsed(row) for row in transport.exchange(own)]


def _parsed(row: dict[str, Any]) -> RankRecord:
    wall, start, end, *laps = (np.array(times, np.int64) for times in row["times"])
    runs = [
        Watched(BodyKey(*key), mb, tuple(calls), tuple(adding))
        for *key, mb, calls, adding in row["runs"]
    ]
    return RankRecord(wall, start, end, Laps(*laps), tuple(runs))


def clock_offset(transport: Transport) -> int:
    """This rank's clock less that of rank 0, in ns: hosts begin to count when they start.

    Ranks of one host have one clock. Others read theirs when an exchange ends, which is right to
    a message's latency.
    """
    hosts = transport.exchange(platform.node())
    now = time.perf_counter_ns()
    clocks = transport.exchange(now)
    return 0 if hosts[transport.rank] == hosts[0] else int(clocks[transport.rank] - clocks[0])
