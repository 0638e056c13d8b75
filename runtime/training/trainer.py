"""The trainer: a config's whole run, from plan to summary."""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np

from runtime.backends.cpu.choice import use_blas
from runtime.engine.bucket_session import BucketSession
from runtime.engine.divergence import IGNORE, STOP
from runtime.engine.session import RECENT, Arrays, Session, initialize
from runtime.planning.micro_batches import Recipes
from runtime.training.checkpoints.folder import CheckpointFolder
from runtime.training.checkpoints.saves import Saves, locked, newest_whole
from runtime.training.checkpoints.state import read_about, restore
from runtime.training.data.base import Dataset, Inputs, brief_digest
from runtime.training.data.held_out import held_out_steps
from runtime.training.data.timed import TimedSentences
from runtime.training.job import Job, create_optimizer, plan_facts, require_loss
from runtime.training.loss import mean_loss
from runtime.training.metrics import HeldOutMetrics
from runtime.training.models import initializer_of
from runtime.training.signals import StopSignals
from runtime.training.summary import placement_of, stage_rows
from runtime.transports import Cluster
from runtime.transports.agreement import (
    agree_on_batches,
    agree_on_blas,
    agree_on_data,
    agree_on_settings,
    agree_on_versions,
)
from runtime.transports.base import Transport
from runtime.transports.versions import versions
from symgraph.app.config import Config
from symgraph.core.errors import ConfigError, RunError
from symgraph.core.units import count_text
from symgraph.frontend.io import DataBatch

Figures = Mapping[str, float]  # of an evaluation, by name


@dataclass(frozen=True)
class Progress:
    """The progress of a run after one of its steps."""

    #: The number of the step.
    step: int
    #: The seconds since the start of this run, without evaluations.
    seconds: float
    #: The samples, or tokens of a text, of all steps, including those of earlier runs.
    count: int
    #: Those per second of this run.
    per_second: float
    #: The mean loss of the step; NaN if the network has none.
    loss: float
    #: `loss_scale`, if there is one, and `skipped`: 1 if the step was left out, where steps may be.
    scaling: Mapping[str, float] = field(default_factory=dict)


def blas_threads(config: Config, cluster: Cluster) -> int:
    """Return the threads per matrix product: the config's, or this host's cores over its ranks."""
    return config.blas_threads if isinstance(config.blas_threads, int) else cluster.cores


def agree_on_config(
    config: Config, cluster: Cluster, options: Mapping[str, Any] | None = None
) -> None:
    """Raise on all ranks unless they have one config and one version of symgraph.

    Paths of data files may differ by host.

    Args:
        options: The command line's, by name, that all ranks must have alike.
    """
    cluster.run(lambda transport: agree_on_blas(transport, config.blas))
    with use_blas(config.blas):
        cluster.run(lambda transport: agree_on_versions(transport, versions()))
    settings = {**(options or {})} | {
        f"{section}.{key}" if isinstance(values, dict) else section: value
        for section, values in config.model_dump(mode="json").items()
        for key, value in (values.items() if isinstance(values, dict) else [("", values)])
        if (section, key) not in (("data", "path"), ("data", "valid_path"))
    }
    cluster.run(lambda transport: agree_on_settings(transport, settings))


class Trainer:
    """Trains a job on a cluster; `fit` is the whole run.

    Every process of an MPI run does the same; figures are the same on all of them.
    """

    def __init__(self, job: Job, cluster: Cluster, data: Dataset, *, timed: bool = False) -> None:
        """Create the sessions; `timed` tells whether to time the calls of training steps."""
        self.job, config, self.data = job, job.config, data
        saving = config.checkpoint
        self.folder = None if saving is None else CheckpointFolder(Path(saving.directory))
        if self.folder is not None and 0 in cluster.ranks:
            self.folder.make()
        training = data.source("training", config, job.model)
        assert training is not None, "all data has a training part"
        self.source = training
        self._timed = training if isinstance(training, TimedSentences) else None
        if self._timed is not None and job.buckets is not None:
            self._timed.plan(job.buckets)
        self.valid = data.source("held-out", config, job.model)
        read = f"{data.digest}, {self.total_steps} steps"
        cluster.run(lambda transport: agree_on_data(transport, read))
        arrays = initial_arrays(job, cluster)
        names = config.evaluate.metrics
        self.metrics = HeldOutMetrics(names, job.model, job.evaluation) if names else None
        self._require_held_out(cluster)
        self.training, self.evaluation = _sessions(job, cluster, arrays, timed)
        self.saves = None
        if self.folder is not None and saving is not None:
            self.saves = Saves(
                self.training, self.folder, saving.keep, asynchronous=saving.asynchronous
            )
        self._locked: ExitStack | None = None  # while no other run may use the folder
        self._signals = StopSignals()
        self.step_seconds: deque[float] = deque(maxlen=RECENT)
        self.saved = 0  # the step of the newest checkpoint
        self.stalls: deque[float] = deque(maxlen=RECENT)  # seconds that saves held up training
        self.saves_made = 0  # those whose stalls were measured
        self.skipped = 0  # steps of this run that were left out
        self.last = self._first = Progress(0, 0.0, 0, 0.0, math.nan)
        self._evaluated = -1  # the step after which the held-out figures were computed
        self._held_out: Figures = {}
        #: The summary without held-out figures; None before the end of training.
        self.trained: dict[str, Any] | None = None

    def _require_held_out(self, cluster: Cluster) -> None:
        """Raise on all ranks unless the first held-out batch fits the network and the metrics."""
        problem: Exception | None = None
        try:
            if self.valid is not None:
                batches = self.valid.batches(0)
                if self.metrics is not None:
                    self.metrics.require(batches[0])
        except Exception as error:
            problem = error

        def tell(transport: Transport) -> None:
            transport.waiting_for("the start: reading held-out data")
            if problem is not None:
                raise problem
            transport.exchange(None)

        cluster.run(tell)

    @property
    def total_steps(self) -> int | None:
        """The number of the step that ends training; None if only time limits it."""
        train = self.job.config.train
        limits = [train.steps, train.epoch_limit and train.epoch_limit * len(self.source)]
        return min((n for n in limits if n is not None), default=None)

    @property
    def nothing_left(self) -> str | None:
        """Tell the user that the checkpoint already has all steps; None if steps are left."""
        total, done, train = self.total_steps, self.training.steps, self.job.config.train
        if total is None or done < total:
            return None
        limit = f"train.epochs={train.epoch_limit} ({count_text(total, 'step')})"
        if train.steps == total:
            limit = f"train.steps={total}"
        return f"nothing left to train: the checkpoint of step {done:,} is at or beyond {limit}"

    @property
    def where_saved(self) -> str:
        """Name the newest checkpoint of this run, or say that nothing was saved."""
        if self.saves is None:
            return "nothing was saved, as the config has no checkpoint"
        return f"checkpoint {self.saves.folder.named(self.saved)}"

    def fit(
        self,
        on_step: Callable[[Progress], None] = lambda p: None,
        on_evaluation: Callable[[int, Figures], None] = lambda step, figures: None,
        on_save: Callable[[int, float], None] = lambda step, stall: None,
    ) -> dict[str, Any]:
        """Train to the config's limit and evaluate; return the summary, as `--json` prints it.

        SIGTERM and SIGUSR1 end training after the step under way, with a checkpoint if the config
        asks for any; the summary then has `stopped`, and no loss. If the last evaluation fails, the
        checkpoint is there already, and `trained` has the summary without held-out figures.

        Args:
            on_step: Is called after each step.
            on_evaluation: Is called after each evaluation, with its step and the figures.
            on_save: Is called after each save but the last, with the seconds that training stood
                still for it.

        Raises:
            ConfigError: The network has no loss, or another run writes checkpoints into the same
                folder.
        """
        require_loss(self.job)
        self._lock()
        try:
            with self._signals.heard(self._ask_to_stop):
                self._train(on_step, on_evaluation, on_save)
                self.save()
                if self.saves is not None:
                    self.saves.finish()
                stopped = self._stopped()
            self.trained = self.summary()
            if stopped is not None:
                return self.trained | {"stopped": stopped}
            if self._evaluated != self.last.step:
                self._tell_evaluation(on_evaluation)
            return self.trained | self._named(self._held_out)
        finally:
            if self.saves is not None:
                self.saves.close()
            self._unlock()

    def _train(
        self,
        on_step: Callable[[Progress], None],
        on_evaluation: Callable[[int, Figures], None],
        on_save: Callable[[int, float], None],
    ) -> None:
        config = self.job.config
        start = time.perf_counter()
        every = config.evaluate.every
        spent = 0.0  # in evaluations
        self._first = self.last
        count = self.last.count
        for number, batches in self.steps(self.training.steps):
            begun = time.perf_counter()
            limit = config.train.seconds
            over = limit is not None and begun - start >= limit
            figures = self._step(batches, stop=over or self._signals.name is not None)
            self.step_seconds.append(time.perf_counter() - begun)
            samples = self.source.count(number)
            count += samples
            done = count - self._first.count
            elapsed = time.perf_counter() - start - spent
            self.last = Progress(
                number + 1,
                elapsed,
                count,
                done / elapsed,
                mean_loss(figures, self.job.losses, samples, config.train.on_nan),
                {k: figures[k] for k in ("loss_scale", "skipped") if k in figures},
            )
            self.skipped += self.last.scaling.get("skipped", 0) > 0
            on_step(self.last)
            if self.training.stopped:
                break
            saving = config.checkpoint and config.checkpoint.every
            if saving and (number + 1) % saving == 0:
                self.stalls.append(self.save())
                self.saves_made += 1
                on_save(number + 1, self.stalls[-1])
            if every and self.valid and (number + 1) % every == 0:
                before = time.perf_counter()
                self._tell_evaluation(on_evaluation)
                spent += time.perf_counter() - before

    def _tell_evaluation(self, on_evaluation: Callable[[int, Figures], None]) -> None:
        self._evaluated, self._held_out = self.last.step, self.evaluate()
        if self._held_out:
            on_evaluation(self._evaluated, self._held_out)

    def _step(self, batches: Sequence[DataBatch], *, stop: bool) -> dict[str, float]:
        """Run a training step, in whose sums ranks also tell how far a save is.

        Raises:
            RunError: on all ranks, if they have read different batches.
        """
        if self.saves is not None:
            self.saves.tell()
        cluster, updaters = self.training.cluster, self.training.updaters.values()
        read = 0 if len(cluster.ranks) == cluster.size else brief_digest(batches)
        for updater in updaters:
            updater.read = read
        figures = self.training.step_batches(batches, stop=stop)
        if not all(updater.alike for updater in updaters):
            what = f"step {self.training.steps}"
            cluster.run(lambda transport: agree_on_batches(transport, what, read))
        if self.saves is not None:
            self.saves.hear()
        return figures

    def _ask_to_stop(self) -> None:
        """Let the step under way be the last, unless its sums have been made already."""
        for updater in self.training.updaters.values():
            updater.stop = True

    def _stopped(self) -> str | None:
        """Return what to say of a run that a signal has stopped on any rank; None if none has."""
        names = self.training.cluster.run(lambda t: t.exchange(self._signals.name))[0]
        name = next(filter(None, names), None)
        if name is None:
            return None
        return f"stopped by {name} after step {self.training.steps}; {self.where_saved}"

    def save(self) -> float:
        """Save a checkpoint, if the config asks for any and this step has none yet.

        Returns:
            The seconds that training stood still for it.
        """
        if self.saves is None or self.saved == self.training.steps:
            return 0.0
        self.saved = self.training.steps
        return self.saves.begin(
            {
                "config": self.job.config.model_dump(mode="json"),
                "vocabulary": self.data.identity,
                "plan": plan_facts(self.job),
                "recipes": self._timed and self._timed.recipes.data(),
                "versions": dict(versions()),
            }
        )

    def resume(self) -> Path | None:
        """Resume from the newest checkpoint, if the config says so; return its path.

        Raises:
            ConfigError: It is damaged (see `checkpoint.fallback`), of another run, or another run
                writes into the same folder.
        """
        settings = self.job.config.checkpoint
        if settings is None or self.folder is None or settings.resume == "never":
            return None
        self._lock()
        try:
            cluster = self.training.cluster
            path = newest_whole(cluster, self.folder, fallback=settings.fallback)
            if path is not None:
                self._restore(path)
        except BaseException:
            self._unlock()
            raise
        return path

    def _restore(self, path: Path) -> None:
        about = read_about(path)
        _require_same_run(about.get("config"), self.job.config, path)
        if about.get("vocabulary", self.data.identity) != self.data.identity:
            raise ConfigError(
                f"the text has another vocabulary than the one that the checkpoint {path} was "
                "trained on; train on that one, or use another checkpoint.directory or "
                "resume: never"
            )
        if 0 in self.training.cluster.ranks:
            _warn_of_versions(about.get("versions", {}), path)
        if self._timed is not None:
            self._timed.recipes = Recipes.from_data(about["recipes"])
        restore(self.training, path)
        self.saved = self.training.steps
        self.last = Progress(self.saved, 0.0, self.count(self.saved), 0.0, math.nan)

    def _lock(self) -> None:
        """Lock the folder of checkpoints and clean it; ConfigError, on all ranks, if it is used."""
        if self.folder is not None and self._locked is None:
            self._locked = locked(self.training.cluster, self.folder)

    def _unlock(self) -> None:
        if self._locked is not None:
            self._locked.close()
        self._locked = None

    def count(self, steps: int) -> int:
        """Count the samples, or tokens of a text, of the first `steps` steps."""
        return sum(self.source.count(step) for step in range(steps))

    def steps(self, first: int) -> Iterator[tuple[int, Sequence[DataBatch]]]:
        """Yield the number and the batches of every step from `first` to the limit."""
        total = self.total_steps
        number = first
        while total is None or number < total:
            try:
                if self.source.begins_epoch(number):
                    self.training.reset_states()
                batches = self.source.batches(number)
            except ConfigError as error:
                if number == first:
                    raise
                raise RunError(str(error)) from error  # data that could be read before
            yield number, batches
            number += 1

    def evaluate(self) -> Figures:
        """Compute the loss and the metrics of the held-out part, carrying states along.

        Returns:
            Figures by name: `loss`, for a text also `perplexity`, and the metrics; empty if nothing
            is held out.
        """
        if self.valid is None:
            return {}
        self.evaluation.reset_states()
        samples, filled = 0, []
        cluster, limit = self.evaluation.cluster, self.job.config.evaluate.tokens
        for count, batches in held_out_steps(cluster, self.valid, limit):
            self.evaluation.reset_states(last=batches[0].pad)  # as _without_padding begins
            self.evaluation.step_batches(batches)
            samples += count
            if self.metrics is not None:
                self.metrics.update(batches[0], self.evaluation.gather_outputs())
            if batches[0].pad and self.job.model is not None:  # labels that pad buckets are ignored
                filled.append(Inputs.of(self.job.model).only_first(batches[0], 1))
        sums = self.evaluation.collect()
        for first in filled:
            sums = self._without_padding(sums, first)
        on_nan = IGNORE if self.job.config.train.on_nan == IGNORE else STOP
        loss = mean_loss(sums, self.job.losses, samples, on_nan)
        figures = {"loss": loss} if self.job.losses else {}
        if self.data.unit == "tokens":
            figures["perplexity"] = perplexity(loss)
        if self.metrics is not None:
            figures |= self.metrics.collect(cluster)
        return figures

    def _without_padding(self, sums: dict[str, float], first: DataBatch) -> dict[str, float]:
        """Subtract the figures of the samples that fill up a batch: copies of its first one."""
        inputs = Inputs.of(self.job.model)
        self.evaluation.reset_states()
        self.evaluation.step_batches([inputs.only_first(first, inputs.batch)])
        share = first.pad / inputs.batch
        return {n: sums[n] - share * value for n, value in self.evaluation.collect().items()}

    def _named(self, held_out: Figures) -> dict[str, Any]:
        """Return held-out figures with the keys of `--json`; what is not finite is None."""
        finite = {n: value if math.isfinite(value) else None for n, value in held_out.items()}
        texts = {"perplexity": finite.get("perplexity")} if self.data.unit == "tokens" else {}
        return {"loss": finite.get("loss"), **texts, "held_out": finite}

    def _counts(self) -> dict[str, Any]:
        """Return what has been counted since the first run of all, and since this one began."""
        last, unit = self.last, self.data.unit
        steps = last.step - self._first.step
        return {
            "steps": last.step,
            "steps_this_run": steps,
            unit: last.count,
            f"{unit}_this_run": last.count - self._first.count,
            f"{unit}_per_second": last.per_second if steps else None,
            "seconds": last.seconds,
        }

    def summary(self) -> dict[str, Any]:
        """Collect the figures of the run, with the keys of `--json`; see docs/commands.md.

        With several buckets, the predicted seconds and the bubble of a step are None; without a
        step in this run, all times of a step are. There are no held-out figures.
        """
        job, config = self.job, self.job.config
        stages, predicted, busy = stage_rows(self.training, self.job.training)
        median = median_low(self.step_seconds) if self.step_seconds else None
        if median is None:
            stages = [{k: None if "seconds" in k else v for k, v in s.items()} for s in stages]
        ranks = job.training.placement.ranks
        known = None if job.buckets else median
        return {
            **self._named({}),
            "train_loss": self.last.loss if math.isfinite(self.last.loss) else None,
            **self._counts(),
            "step_seconds": median,
            "predicted_step_seconds": predicted if known else None,
            "bubble_fraction": max(0.0, 1.0 - busy / (ranks * known)) if known else None,
            "schedule": job.training.choice.schedule,
            "micro_batches": len(job.training.sizes),
            "time_segment": job.training.choice.time_segment,
            "recompute": list(job.training.choice.recompute),
            "precision": config.train.precision,
            "loss_scale": self.last.scaling.get("loss_scale"),
            "skipped_steps": self.skipped,
            "checkpoint_stall": self._stall(median),
            "stopped": None,
            "strategy": config.partition.strategy,
            "placement": placement_of(job.training),
            "devices": list(config.devices),
            "stages": stages,
        }

    def _stall(self, step: float | None) -> dict[str, Any] | None:
        """Return what saves have cost, beside the seconds of a step; None without a save."""
        if not self.stalls:
            return None
        seconds = float(np.median(self.stalls))
        return {
            "seconds": seconds,
            "of_step": seconds / step if step else None,
            "saves": self.saves_made,
        }


def initial_arrays(job: Job, cluster: Cluster) -> Arrays:
    """Return the parameters and states of the local ranks with which training begins."""
    first = initializer_of(job.model, job.config)
    return initialize(job.training, cluster, first, job.config.train.seed)


def _sessions(job: Job, cluster: Cluster, arrays: Arrays, timed: bool) -> tuple[Session, Session]:
    """Create the sessions to train and to evaluate; one of both if it runs forward only."""
    train = job.config.train
    seed = train.seed
    given: Any = {
        "optimizer": create_optimizer(job.config) if job.training.trains else None,
        "clip": train.clip_global_norm,
        "on_nan": train.on_nan,
        "seed": seed,
        "timed": timed,
    }
    if job.forward_only:
        session = Session(job.training, cluster, arrays, seed=seed, timed=timed)
        return session, session
    if job.buckets is None or job.scoring is None:
        training = Session(job.training, cluster, arrays, **given)
        keep = bool(job.config.evaluate.metrics)
        return training, Session(job.evaluation, cluster, arrays, seed=seed, keep_outputs=keep)
    buckets = BucketSession(job.buckets, cluster, arrays, **given)
    return buckets, BucketSession(
        job.scoring, cluster, arrays, seed=seed, resources=buckets.resources
    )


def perplexity(loss: float) -> float:
    """Return the perplexity of a mean negative log-likelihood; infinite where it overflows."""
    return math.exp(loss) if loss < 700 else math.inf


FIXED = (  # keys that may not change from a checkpoint to the run that resumes from it
    ("model",),
    ("args",),
    ("loss",),
    ("data", "kind"),
    ("train", "optimizer"),
    ("train", "dtype"),
    ("train", "seed"),
)
FIXED_DATA = (  # likewise, where the kind of data has them
    "batch_size",
    "sequence_length",
    "buckets",
    "batches_per_step",
    "micro_batches",
    "lengths",
    "rows",
    "window",
    "vocab",
    "function",
    "held_out",
    "shuffle",
    "scale",
)
UNORDERED = ("buckets", "lengths", "rows")  # of FIXED_DATA: lists whose order does not matter


def _require_same_run(old: object, config: Config, path: Path) -> None:
    """Raise ConfigError if a checkpoint's config differs from the run's in a key of FIXED."""
    new = config.model_dump(mode="json")
    known = config.data.model_dump(mode="json", exclude_defaults=True)
    if isinstance(old, dict) and isinstance(old.get("data"), dict):
        known |= old["data"]  # older checkpoints lack newer keys
    of_data = [("data", key) for key in FIXED_DATA if key in new["data"] and key in known]
    for key in (*FIXED, *of_data):
        name = ".".join(key)
        before, after = old, new
        for part in key:
            if not isinstance(before, dict) or part not in before:
                raise ConfigError(
                    f"{path} is not a checkpoint of a training run: {name} is missing"
                )
            before, after = before[part], after[part]
        if key[-1] in UNORDERED and isinstance(before, list) and isinstance(after, list):
            before, after = sorted({*before}), sorted({*after})
        if before != after:
            raise ConfigError(
                f"{name}: {after!r}, but the checkpoint {path} was written with {before!r}; change "
                f"{name} back, or use another checkpoint.directory or resume: never"
            )


def _warn_of_versions(then: Mapping[str, str], path: Path) -> None:
    """Warn if a checkpoint was written with other versions than those that run now."""
    other = [f"{k} {v}, not {then.get(k)}" for k, v in versions().items() if then.get(k) != v]
    if other:
        warnings.warn(
            f"{path} was written with other versions ({'; '.join(other)}): bits may differ",
            stacklevel=2,
        )
