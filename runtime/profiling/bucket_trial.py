"""The trial of buckets: a config whose steps differ in length, set up to be measured by turns.

No two steps need be alike, so there is no median step to show. Speeds are those of whole turns, and
what was predicted of exactly the steps that ran is held against what they took.
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from runtime.blas import limit_blas
from runtime.bucketing import BucketSession, Step, largest_first
from runtime.mixing import Union, mixed_costs
from runtime.prices import Prices
from runtime.profiling.outcome import Figures, Outcome, held_bytes
from runtime.profiling.record import Ints, clock_offset
from runtime.profiling.trial import Shared, about, endless
from runtime.program import Schedule
from runtime.replay import simulate
from runtime.trainer import Trainer, blas_threads, mean_loss, prepare
from runtime.transports import Cluster, Transport
from symgraph.config_keys import Config
from symgraph.io import DataBatch

PASSES = 2  # over all kinds of steps before any counts: memory grows in the first


class Done(NamedTuple):
    """A measured step. turn: its number; words: that count."""

    turn: int
    keys: tuple[Hashable, ...]
    words: int


class BucketTrial:
    """A config with buckets on a cluster; see runtime.profiling.trial.Trial."""

    def __init__(
        self, config: Config, cluster: Cluster, *, steps: int, shared: Shared | None = None
    ) -> None:
        """Plan and set up; every rank's process does the same.

        steps: that will be run. One of each kind among them runs before, since the first of a kind
        is planned and bound.
        """
        config, shared = endless(config), shared or Shared()
        self.cluster = cluster
        self.job = prepare(config, shared.pricing(cluster))
        self.threads = blas_threads(config, cluster, os.cpu_count() or 1)
        self.done: list[Done] = []
        self._turns = 0
        with limit_blas(self.threads):
            self.trainer = Trainer(self.job, cluster, shared.corpus(config))
            session = self.trainer.training
            assert isinstance(session, BucketSession)
            self.session = session
            # (begin, end, in bodies) of every measured step: ns of each local rank's clock.
            self._times: dict[int, list[tuple[int, int, int]]] = {r: [] for r in session.workers}
            self._figures: dict[str, float] = {}
            self._steps = self.trainer.steps(0)
            kinds = {_keys(b): b for _, b in islice(self.trainer.steps(0), steps)}
            for batches in PASSES * list(kinds.values()):
                session.step_batches(batches)
        self.prices = self._prices(kinds)

    def run(self, steps: int, *, keep: bool = True) -> None:
        """Do a turn of so many steps more. keep: whether they are measured."""
        with limit_blas(self.threads):
            for number, batches in islice(self._steps, steps):
                begun = time.perf_counter_ns()
                self._figures = self.session.step_batches(batches)
                ended = time.perf_counter_ns()
                if not keep:
                    continue
                words = self.trainer.source.tokens(number)
                self.done.append(Done(self._turns, _keys(batches), words))
                for rank, worker in self.session.workers.items():
                    track = worker.timeline.tracks[rank]
                    busy = int((track.end - track.start)[track.is_run].sum())
                    self._times[rank].append((begun, ended, busy))
        self._turns += keep

    def outcome(self) -> Outcome:
        """The figures of all measured steps."""
        times = self._gathered()
        seconds = (times[:, :, 1].max(axis=0) - times[:, :, 0].min(axis=0)) * 1e-9
        predicted = [predicted_seconds(self._step(done.keys), self.prices) for done in self.done]
        sent = [sent_bytes(self._step(done.keys)) for done in self.done]
        speeds = self._speeds(seconds)
        low, middle, high = (float(x) for x in np.percentile(speeds, (25, 50, 75)))
        whole, expected = float(seconds.sum()), float(np.sum(predicted))
        ranks, steps = len(times), len(self.done)
        bubble = 1 - float(times[:, :, 2].sum()) * 1e-9 / (ranks * whole)
        summary = about(self.job, self.trainer) | {
            "train_loss": mean_loss(self._figures, self.job.figures),
            "steps": steps,
            "tokens": sum(done.words for done in self.done),
            "tokens_per_second": middle,
            "step_seconds": whole / steps,
            "step_seconds_all": seconds.tolist(),
            "predicted_step_seconds": expected / steps,
            "predicted_step_seconds_all": predicted,
            "bubble_fraction": bubble,
        }
        figures = Figures(
            middle, high - low, whole / steps, bubble, None, max(held_bytes(summary)),
            round(float(np.mean(sent))), expected / steps, expected / whole - 1,
        )  # fmt: skip
        local = len(self.cluster.ranks) == ranks
        return Outcome(figures, summary, steps, self.session.timeline if local else None)

    def _speeds(self, seconds: Ints) -> Ints:
        """Words a second of each turn."""
        turns = np.array([done.turn for done in self.done])
        words = np.bincount(turns, [done.words for done in self.done])
        speeds: Ints = words / np.bincount(turns, seconds)
        return speeds

    def _step(self, keys: tuple[Hashable, ...]) -> Step:
        return self.session.buckets.step(keys)

    def _prices(self, kinds: Iterable[tuple[Hashable, ...]]) -> Prices:
        """What predictions are made with: the prices of the kernels of all buckets."""
        pricing = self.job.training.options.pricing
        plans = [plan for keys in kinds for plan in self._step(keys).parts.plans]
        found = pricing(self.job.training.network.first)
        for plan in {id(plan): plan for plan in plans}.values():
            found = pricing(plan.network.first)
        return found

    def _gathered(self) -> Ints:
        """[rank, step, (begin, end, in bodies)]: ns of the clock of rank 0's host."""
        found: list[Ints] = []

        def work(transport: Transport) -> None:
            transport.waiting_for("the record of the measured steps")
            own = np.array(self._times[transport.rank], np.int64)
            own[:, :2] -= clock_offset(transport)
            rows = transport.exchange(own.tolist())
            if not found:
                found.append(np.array(rows, np.int64))

        self.cluster.run(work)
        return found[0]


def predicted_seconds(step: Step, prices: Prices) -> float:
    """A simulation of a step of any buckets."""
    union = Union.of(step.parts)
    programs = tuple([union.numbered(program) for program in step.schedule.programs])
    return simulate(Schedule(programs), union, mixed_costs(step.parts, prices)).makespan


def sent_bytes(step: Step) -> int:
    """Bytes of all messages between the stages of a step."""
    partitions = [step.parts.partitions[kind] for kind in step.parts.kinds]
    return sum(e.type.nbytes for p in partitions for e in p.edges if p.crosses(e))


def _keys(batches: Sequence[DataBatch]) -> tuple[Hashable, ...]:
    return tuple([batch.bucket_key for batch in largest_first(batches)])
