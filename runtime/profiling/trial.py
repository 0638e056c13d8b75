"""The trial: a config that is set up to be measured, some steps at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

from runtime.blas import limit_blas
from runtime.calibrate import measure_speed
from runtime.pipeline import Plan
from runtime.prices import PriceMemory, Prices, Pricing, shared_prices
from runtime.profiling.figures import Profile, profile_of
from runtime.profiling.outcome import Outcome, profiled
from runtime.profiling.record import STEPS, WARM_UP, Recorder
from runtime.profiling.words import figures
from runtime.summary import placement_of, stage_rows
from runtime.trainer import Job, Trainer, blas_threads, job_of, load_corpus, training_plan
from runtime.transports import Cluster
from symgraph.config_keys import Config
from symgraph.corpus import Corpus
from symgraph.model import Model


def endless(config: Config) -> Config:
    """The config without an end of training, evaluations and checkpoints."""
    train = config.train.model_copy(update={"steps": 1 << 40, "epochs": None, "seconds": None})
    return config.model_copy(update={"train": train, "checkpoint": None})


Planned = tuple[Model, Plan]  # what runtime.trainer.training_plan gives


class Shared:
    """What several trials need once: texts, and the prices of kernels."""

    def __init__(self) -> None:
        self._corpora: dict[str, Corpus] = {}
        self._prices = PriceMemory()

    def corpus(self, config: Config) -> Corpus:
        """The config's text."""
        key = config.data.model_dump_json()
        if key not in self._corpora:
            self._corpora[key] = load_corpus(config)
        return self._corpora[key]

    def pricing(self, cluster: Cluster) -> Pricing:
        """Prices as rank 0 of a cluster measures them, of each kernel once."""

        return self._prices.pricing(partial(shared_prices, cluster=cluster))


def prices_of(plan: Plan) -> Prices:
    """What a prediction is made with: the prices of the plan's choices, or else fresh ones."""
    return plan.prices or plan.options.pricing(plan.network.first)


def about(job: Job, trainer: Trainer) -> dict[str, Any]:
    """The keys of `--json` that say what was run, and its stages."""
    plan = job.training
    stages, _, _ = stage_rows(trainer)
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
    """A config on a cluster: its prices, and a recorder that measures it."""

    job: Job
    prices: Prices
    recorder: Recorder
    threads: int

    @classmethod
    def of(
        cls,
        config: Config,
        cluster: Cluster,
        *,
        shared: Shared | None = None,
        planned: Planned | None = None,
        warm_up: int = WARM_UP,
    ) -> Trial:
        """Plan and set up; every rank's process does the same."""
        config, shared = endless(config), shared or Shared()
        job = job_of(config, *(planned or training_plan(config, shared.pricing(cluster))))
        prices = prices_of(job.training)
        threads = blas_threads(config, cluster, os.cpu_count() or 1)
        with limit_blas(threads):
            trainer = Trainer(job, cluster, shared.corpus(config), timed=True)
            recorder = Recorder(trainer, warm_up)
        return cls(job, prices, recorder, threads)

    @property
    def plan(self) -> Plan:
        return self.job.training

    @property
    def tokens(self) -> int:
        """Words of a step."""
        return self.recorder.trainer.source.tokens(0)

    def run(self, steps: int = STEPS, *, keep: bool = True) -> None:
        """Do so many steps more. keep: whether they are measured."""
        with limit_blas(self.threads):
            self.recorder.run(steps, keep=keep)

    def profile(self) -> Profile:
        """The figures of all measured steps."""
        with limit_blas(self.threads):
            speed = measure_speed()
        return profile_of(self.recorder.record(), self.prices, speed)

    def summary(self, profile: Profile) -> dict[str, Any]:
        """The keys of `--json` that a profile knows, and its own."""
        return {
            "train_loss": profile.record.loss,
            "steps": profile.record.steps,
            "tokens": profile.record.steps * self.tokens,
            "tokens_per_second": self.tokens / profile.step,
        } | about(self.job, self.recorder.trainer) | figures(profile)  # fmt: skip

    def outcome(self) -> Outcome:
        """What a comparison says of all measured steps."""
        profile = self.profile()
        return profiled(profile, self.summary(profile), self.tokens)
