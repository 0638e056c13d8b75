"""Records: when every instruction of every rank began and ended in some measured steps.

Steps whose batches come from the same mixture of buckets are alike and share a record; a run
without buckets has one record.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.types import BodyKey, CommEdge
from runtime.engine.rank import NANOSECOND
from runtime.engine.stopwatch import Laps, Stopwatch, Watched
from runtime.engine.worker import Worker
from runtime.planning.buckets import largest_first
from runtime.planning.mixed_step import MixedTopology
from runtime.planning.plan import Plan
from runtime.planning.step import StepBatches, StepPrograms
from runtime.schedule.timeline import Timeline, Track
from runtime.training.loss import mean_loss
from runtime.training.trainer import Trainer
from runtime.transports import Transport
from symgraph.frontend.io import DataBatch

WARM_UP = 3  # uncounted first steps, which load kernels and touch caches and memory
PASSES = 2  # uncounted passes over all mixtures: memory grows in the first
STEPS = 20  # measured by default
ASKED = 8  # times a rank asks for the time of another host

Ints = npt.NDArray[Any]


class RankRecord(NamedTuple):
    """One rank's measured steps, one row per step, in int64 ns of the clock of rank 0's host."""

    walls: Ints
    """Begin and end of each step, shape (steps, 2)."""
    start: Ints
    """Begin of every instruction, shape (steps, instructions)."""
    end: Ints
    """End of every instruction, shape (steps, instructions)."""
    calls: Laps
    """Begin and end of every operator call of `runs`."""
    runs: tuple[Watched, ...]
    """The runs whose calls were timed, in program order."""


@dataclass(frozen=True)
class Record:
    """The steps of one mixture of buckets, on all ranks."""

    keys: tuple[Hashable, ...]
    """The bucket of each batch; None without buckets."""
    step: StepPrograms
    """The programs that ran."""
    ranks: tuple[RankRecord, ...]
    """The times of each rank."""
    numbers: Ints
    """The positions of these steps among all measured steps."""
    counts: Ints
    """The samples of each step, or the tokens of a text."""

    @property
    def parts(self) -> StepBatches:
        return self.step.parts

    @property
    def plan(self) -> Plan:
        """The plan of the first (largest) batch."""
        return self.parts.plans[0]

    @cached_property
    def union(self) -> MixedTopology:
        """The topology of the step."""
        return MixedTopology.of(self.parts)

    def edge(self, tag: int, mb: int) -> CommEdge:
        """Return the edge whose value a message of a micro-batch carries."""
        return self.union.edges[tag + int(self.union.first_tag[mb])]

    def buckets(self, mb: int) -> str:
        """Return the bucket of a micro-batch as text."""
        return bucket_text(self.keys[self.parts.mbs[mb].part])

    @property
    def begin(self) -> Ints:
        """The time at which the first rank began each step."""
        begin: Ints = np.min([r.walls[:, 0] for r in self.ranks], axis=0)
        return begin

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """The duration of every step, from the first rank's begin to the last one's end."""
        end = np.max([r.walls[:, 1] for r in self.ranks], axis=0)
        seconds: npt.NDArray[np.float64] = (end - self.begin) * 1e-9
        return seconds

    @property
    def steps(self) -> int:
        return len(self.ranks[0].walls)

    @property
    def median_step(self) -> int:
        """The number of the median step, which stands for all of them."""
        return middle(self.seconds)

    def timeline(self, step: int) -> Timeline:
        """Return the timeline of one step, from the first rank's begin to the last one's end."""
        tracks = [
            Track(program, record.start[step], record.end[step])
            for program, record in zip(self.step.schedule.programs, self.ranks, strict=True)
        ]
        end = max(int(record.walls[step, 1]) for record in self.ranks)
        return Timeline(tuple(tracks), NANOSECOND, int(self.begin[step]), end)


def middle(values: npt.ArrayLike) -> int:
    """Return the place of the median; of an even number of values, the lower one in the middle.

    So the median step is one that was measured, whose timeline and parts can be shown.
    """
    order = np.argsort(values, kind="stable")
    return int(order[(len(order) - 1) // 2])


def bucket_text(key: Hashable) -> str:
    """Return a bucket as text; "" without buckets."""
    return "" if key is None else str(key)


class _Alike:
    """The measurements of one mixture's steps; `times` has an entry per step for each rank."""

    def __init__(self, step: StepPrograms, workers: Mapping[int, Worker]) -> None:
        self.step, self.workers = step, workers
        self.numbers: list[int] = []
        self.counts: list[int] = []
        self.walls: list[tuple[int, int]] = []
        self.times: dict[int, list[tuple[Ints, ...]]] = {rank: [] for rank in workers}


class Recorder:
    """Trains some steps at a time and keeps their times; the trainer must be timed.

    CUDA graphs cannot time their calls. So where a rank is on a GPU, each step runs twice: first as
    training runs it, which is what is measured, and then with timed calls, one by one. How long
    these took is fitted into the runs of the first.

    A network that runs forward only has two kinds of step in turns: some batches that stream, and
    one batch alone. Every process of an MPI run does the same and gets the same records.
    """

    def __init__(
        self, trainer: Trainer, steps: int, warm_up: int = WARM_UP, *, stream: int = 1
    ) -> None:
        """Run every mixture among the next steps a few times, uncounted.

        Args:
            trainer: a timed trainer.
            steps: the number of steps that will be measured.
            warm_up: the least number of uncounted steps.
            stream: the batches of a step that streams.
        """
        self.trainer = trainer
        self._alike: dict[tuple[Hashable, ...], _Alike] = {}
        self._figures: dict[str, float] = {}
        self._samples = 0  # of the last measured step
        self._steps = 0
        self._stream = stream
        self._twice = any(context.kind == "gpu" for context in trainer.job.training.devices)
        rounds = islice(self._rounds(), steps)
        kinds = {_keys(batches): batches for together in rounds for _, batches in together}
        for batches in max(PASSES, -(-warm_up // len(kinds))) * list(kinds.values()):
            self._measured(batches)
        self._next = self._rounds()

    def _rounds(self) -> Iterator[list[tuple[int, Sequence[DataBatch]]]]:
        """Yield the steps that are run together, each with its samples and batches."""
        trainer, count = self.trainer, self._stream
        steps = trainer.steps(0)
        if count == 1:
            yield from ([(trainer.source.count(number), batches)] for number, batches in steps)
        while some := list(islice(steps, count)):
            several = [batch for _, batches in some for batch in batches]
            counts = [trainer.source.count(number) for number, _ in some]
            yield [(sum(counts), several), (counts[0], several[:1])]

    def _measured(
        self, batches: Sequence[DataBatch]
    ) -> tuple[tuple[int, int], dict[int, tuple[Ints, ...]]]:
        """Run a step; return its begin and end, and the times of the local ranks."""
        wall, tracks = self._step(batches, timed=not self._twice)
        apart = self._step(batches, timed=True)[1] if self._twice else tracks
        times = dict[int, tuple[Ints, ...]]()
        for rank, worker in self.trainer.training.workers.items():
            laps = fitted(_stopwatch(worker), apart[rank], tracks[rank])
            times[rank] = tracks[rank].start, tracks[rank].end, laps.start, laps.end
        return wall, times

    def _step(
        self, batches: Sequence[DataBatch], *, timed: bool
    ) -> tuple[tuple[int, int], dict[int, Track]]:
        """Run a step; return its begin and end, and the tracks of the local ranks."""
        session = self.trainer.training
        assert session.timing is not None, "a timed trainer"
        session.timing.on = timed
        begun = time.perf_counter_ns()
        self._figures = session.step_batches(batches)
        wall = begun, time.perf_counter_ns()
        return wall, {r: worker.timeline.tracks[r] for r, worker in session.workers.items()}

    def run(self, steps: int, *, keep: bool = True) -> None:
        """Run this many steps; `keep` says whether they join the record."""
        session = self.trainer.training
        for samples, batches in chain.from_iterable(islice(self._next, steps)):
            wall, times = self._measured(batches)
            if not keep:
                continue
            alike = self._alike.setdefault(
                _keys(batches), _Alike(session.programs, session.workers)
            )
            alike.numbers.append(len(alike.numbers) if self._stream > 1 else self._steps)
            self._samples = samples
            alike.counts.append(samples)
            alike.walls.append(wall)
            self._steps += 1
            for rank, row in times.items():
                alike.times[rank].append(row)

    def records(self) -> tuple[Record, ...]:
        """Return the steps so far on all ranks, one record per mixture."""
        return tuple(
            Record(keys, a.step, self._exchanged(a), np.array(a.numbers), np.array(a.counts))
            for keys, a in self._alike.items()
        )

    def _exchanged(self, alike: _Alike) -> tuple[RankRecord, ...]:
        found: list[RankRecord] = []

        def work(transport: Transport) -> None:
            rank = transport.rank
            rows = _exchange(transport, alike.workers[rank], alike.walls, alike.times[rank])
            if not found:
                found.extend(rows)

        self.trainer.training.cluster.run(work)
        return tuple(found)

    @property
    def loss(self) -> float:
        """The mean loss of the last step; NaN if the network has none."""
        job = self.trainer.job
        return mean_loss(self._figures, job.losses, self._samples, job.config.train.on_nan)


def _keys(batches: Sequence[DataBatch]) -> tuple[Hashable, ...]:
    return tuple([batch.bucket_key for batch in largest_first(batches)])


def _stopwatch(worker: Worker) -> Stopwatch:
    assert worker.stopwatch is not None, "a timed trainer"
    return worker.stopwatch


def fitted(stopwatch: Stopwatch, apart: Track, track: Track) -> Laps:
    """Return the calls of a step as if they had run in another step's runs.

    Args:
        stopwatch: It has timed the calls.
        apart: When the runs of these calls began and ended.
        track: The same of the other step.
    """
    laps = stopwatch.laps()
    if apart is track:
        return laps
    runs = [at for at, _ in track.program.runs]
    counts = [len(run.calls) for run in stopwatch.runs]
    of_call = np.repeat(runs, counts)
    begin, to = apart.start[of_call], track.start[of_call]
    scale = (track.end[of_call] - to) / np.maximum(apart.end[of_call] - begin, 1)
    start, end = (
        to + ((times - begin) * scale).astype(np.int64) for times in (laps.start, laps.end)
    )
    return Laps(start, end)


def _exchange(
    transport: Transport, worker: Worker, walls: list[tuple[int, int]], kept: list[tuple[Ints, ...]]
) -> list[RankRecord]:
    """Return all ranks' records, exchanged as JSON values."""
    transport.waiting_for("the record of the measured steps")
    offset = clock_offset(transport)
    times = [walls, *(list(rows) for rows in zip(*kept, strict=True))]
    own = {
        "times": [(np.array(rows, np.int64) - offset).tolist() for rows in times],
        "runs": [(*run.key, run.mb, run.calls) for run in _stopwatch(worker).runs],
    }
    return [_parsed(row) for row in transport.exchange(own)]


def _parsed(row: dict[str, Any]) -> RankRecord:
    wall, start, end, *laps = (np.array(times, np.int64) for times in row["times"])
    runs = [Watched(BodyKey(*key), mb, tuple(calls)) for *key, mb, calls in row["runs"]]
    return RankRecord(wall, start, end, Laps(*laps), tuple(runs))


def clock_offset(transport: Transport) -> int:
    """Return this rank's clock minus that of rank 0, in ns.

    Ranks of one host share a clock. A rank of another host asks rank 0 for its time, as NTP does:
    of several answers the quickest counts, and is taken to be as old as half its round trip.
    """
    hosts = transport.exchange(platform.node())
    offset, quickest, clock = 0, 1 << 62, np.zeros(1, np.int64)
    for rank, host in enumerate(hosts):
        for _ in range(ASKED if host != hosts[0] else 0):
            if transport.rank == 0:
                transport.recv(clock, rank, 0)
                clock[0] = time.perf_counter_ns()
                transport.send(clock, rank, 0).wait()
            elif transport.rank == rank:
                asked = time.perf_counter_ns()
                transport.send(clock, 0, 0).wait()
                transport.recv(clock, 0, 0)
                trip = time.perf_counter_ns() - asked
                if trip < quickest:
                    quickest, offset = trip, asked + trip // 2 - int(clock[0])
    return offset
