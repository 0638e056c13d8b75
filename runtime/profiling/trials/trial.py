"""The trial: a config that is set up to be measured, some steps at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from partitioner.costs.cost import Speed
from partitioner.strategies.types import LATENCY, THROUGHPUT
from runtime.backends.cpu.choice import use_blas
from runtime.backends.device.arrays import device
from runtime.backends.device.processor import limit_blas
from runtime.backends.device.settings import product_precision
from runtime.planning.costs.prices import CostModel, CostProvider, first_of_kinds
from runtime.planning.mixed_step import predict, stream_batches
from runtime.planning.step import StepPrograms
from runtime.profiling.analysis.pace import STREAM, Pace, alone_of, streaming
from runtime.profiling.analysis.profile import Profile, profile_of
from runtime.profiling.analysis.record import STEPS, WARM_UP, Record, Recorder
from runtime.profiling.calibration.pricing import CostCache
from runtime.profiling.calibration.rates import measure_speed
from runtime.profiling.report.text import figures
from runtime.profiling.trials.outcome import Outcome
from runtime.training.data.base import Dataset
from runtime.training.data.random_values import RandomDataset
from runtime.training.data.table import load_data
from runtime.training.given import GivenConfig
from runtime.training.job import Job, Planned, devices_of, job_of, training_plan
from runtime.training.summary import placement_of, stage_rows
from runtime.training.trainer import Trainer, blas_threads
from runtime.transports import Cluster
from symgraph.app.config import Config

OFF = 0.05  # of a step: a prediction that is further off is made again with prices of now


def endless(config: Config) -> Config:
    """Return the config without evaluations, checkpoints or an end of training."""
    train = config.train.model_copy(update={"steps": 1 << 40, "epochs": None, "seconds": None})
    return config.model_copy(update={"train": train, "checkpoint": None})


class Shared:
    """Resources that several trials share: data and measured costs."""

    def __init__(self) -> None:
        self._data: dict[str, Dataset] = {}
        self._costs: dict[tuple[int, str], CostCache] = {}

    def data(self, config: Config) -> Dataset:
        """Return the config's data, loaded once."""
        if isinstance(config, GivenConfig):
            return RandomDataset(config.data, config.network.graph)
        key = config.data.model_dump_json()
        if key not in self._data:
            self._data[key] = load_data(config)
        return self._data[key]

    def pricing(self, cluster: Cluster, config: Config) -> CostProvider:
        """Return a provider of a config's costs, measured on the cluster, each kernel once."""
        return self.costs(config, cluster).on(cluster, devices_of(config))

    def costs(self, config: Config, cluster: Cluster) -> CostCache:
        """Return the costs measured so far for devices such as a config's.

        One device has a cache of its own, with its threads of BLAS: rank 0 may measure it while
        other ranks, whose caches must ask for the same kernels as rank 0's, do not.
        """
        threads = blas_threads(config, cluster) if len(config.devices) == 1 else 0
        return self._costs.setdefault((threads, config.blas), CostCache(max(1, threads)))


def prices_of(planned: Planned, steps: Iterable[StepPrograms]) -> CostModel:
    """Return the costs for predictions: those of the plan's choices, or else fresh ones.

    Args:
        planned: the planned run.
        steps: the steps that are predicted, for whose kernels costs are needed.
    """
    plans = {id(plan): plan for step in steps for plan in step.parts.plans}
    if planned.buckets is None and planned.training.prices is not None:
        return planned.training.prices
    found = [planned.training.options.costs(plan.network.first) for plan in plans.values()]
    return found[-1]


def about(job: Job, trainer: Trainer) -> dict[str, Any]:
    """Return the keys of `--json` that describe the run and its stages."""
    plan = job.training
    stages, _, _ = stage_rows(trainer.training, trainer.job.training)
    return {
        "schedule": plan.choice.schedule,
        "micro_batches": len(plan.sizes),
        "time_segment": plan.choice.time_segment,
        "recompute": list(plan.choice.recompute),
        "strategy": job.config.partition.strategy,
        "placement": placement_of(plan),
        "devices": list(job.config.devices),
        "stages": stages,
    }


@dataclass(frozen=True)
class Trial:
    """A config on a cluster, and a recorder that measures it."""

    planned: Planned
    job: Job
    recorder: Recorder
    threads: int

    @classmethod
    def of(
        cls,
        config: Config,
        cluster: Cluster,
        *,
        steps: int = STEPS,
        shared: Shared | None = None,
        planned: Planned | None = None,
        warm_up: int = WARM_UP,
    ) -> Trial:
        """Plan and set up; every rank's process does the same.

        steps: that will be run. planned: what is planned already. warm_up: see Recorder.
        """
        config, shared = endless(config), shared or Shared()
        planned = replace(
            planned or training_plan(config, shared.pricing(cluster, config)), config=config
        )
        job = job_of(planned)
        threads = blas_threads(config, cluster)
        with use_blas(config.blas), limit_blas(threads):
            trainer = Trainer(job, cluster, shared.data(config), timed=True)
            batches = stream_batches(job.training, STREAM)
            recorder = Recorder(trainer, steps, warm_up, stream=batches)
        return cls(planned, job, recorder, threads)

    @property
    def by_latency(self) -> bool:
        """Whether it is judged by the latency of a batch, which only a forward-only network is."""
        return self.job.forward_only and self.job.config.partition.objective == LATENCY

    @property
    def criterion(self) -> str:
        """What it is judged by, in a word."""
        if not self.job.forward_only:
            return "training steps"
        return LATENCY if self.by_latency else THROUGHPUT

    def run(self, steps: int = STEPS, *, keep: bool = True) -> None:
        """Run this many more steps; `keep` says whether they are measured."""
        with use_blas(self.job.config.blas), limit_blas(self.threads):
            self.recorder.run(steps, keep=keep)

    def profile(self, again: Shared | None = None) -> Profile:
        """Return the profile of all measured steps.

        Args:
            again: with it, costs are measured again if the prediction is far off, to tell whether
                the machine has changed.
        """
        with use_blas(self.job.config.blas) as choice:
            return replace(self._profile(again), products=self._products(str(choice)))

    def _products(self, on_cpus: str) -> str:
        """Name the libraries of matrix products; on_cpus: those of the host."""
        kinds = {context.kind for context in self.job.training.devices}
        libraries = {"cpu": on_cpus, "gpu": f"cuBLAS in {product_precision()}"}
        return "; ".join(name for kind, name in libraries.items() if kind in kinds)

    def _profile(self, again: Shared | None) -> Profile:
        with limit_blas(self.threads):
            devices = first_of_kinds(self.job.training.devices)
            speeds: dict[str, Speed] = {c.kind: measure_speed(device(c)) for c in devices}
        records = self.recorder.records()
        prices = prices_of(self.planned, [record.step for record in records])
        unit = self.recorder.trainer.data.unit
        pace, shown = None, records
        if self.job.forward_only:
            pace = Pace.of(records, prices, by_latency=self.by_latency)
            shown = (alone_of(records) if self.by_latency else streaming(records),)
        found = profile_of(shown, prices, speeds, self.job.training, self.recorder.loss, unit)
        found = replace(found, pace=pace)
        if again is None or abs(found.error) <= OFF:
            return found
        seconds = self._predict_again(found.typical.record, prices, again)
        return replace(found, predicted_again=seconds)

    def _predict_again(self, record: Record, prices: CostModel, again: Shared) -> float:
        """Return the seconds of a step, predicted from kernels that are measured now.

        prices: those of the plan, whose links are kept.
        """
        cluster = self.recorder.trainer.training.cluster
        pricing = again.costs(self.job.config, cluster).kernels_on(cluster)
        for plan in record.parts.plans:
            kernels = pricing(plan.network.first, plan.options.contexts)
        return predict(record.step, kernels.with_links_of(prices), record.union).makespan

    def summary(self, profile: Profile) -> dict[str, Any]:
        """Return all keys of `--json` for a profiled run."""
        return (
            {
                "train_loss": profile.loss if math.isfinite(profile.loss) else None,
                "steps": profile.steps,
                profile.unit: sum(int(m.record.counts.sum()) for m in profile.mixtures),
                f"{profile.unit}_per_second": profile.count / profile.step,
                "blas": profile.products,
                "blas_threads": self.threads,
            }
            | about(self.job, self.recorder.trainer)
            | figures(profile)
        )

    def outcome(self, again: Shared | None = None) -> Outcome:
        """Return the profile and summary of all measured steps; `again` as for `profile`."""
        profile = self.profile(again)
        return Outcome(profile, self.summary(profile))
