"""The job: a config with the plans to train and to evaluate its model.

Config ─training_plan→ Planned ─job_of→ Job
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from partitioner import Placement
from partitioner.costs.machine import Machine
from partitioner.costs.machine_files import load_machine
from partitioner.strategies.types import STEPS
from runtime.planning.buckets import Buckets
from runtime.planning.costs.files import load_prices
from runtime.planning.costs.prices import CostModel, CostProvider, always
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.planning.step import StepPrograms
from runtime.training.batches import IGNORED
from symgraph.app.config import Config
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError
from symgraph.frontend import lr_scheduler, optimizer
from symgraph.frontend.model import Model, load_model
from symgraph.passes.loss_scale import LossScale

NLL = 2  # the figures of `nll_stats`: negative log-likelihood and the number of words


@dataclass(frozen=True)
class Planned:
    """A config and the plan to train its model, or that of the largest of its buckets.

    model: where batches have one shape. buckets: where they have not.
    """

    config: Config
    training: Plan
    model: Model | None = None
    buckets: Buckets | None = None

    def step(self, keys: Sequence[Hashable]) -> StepPrograms:
        """What a step of batches of these buckets runs; their plans are made if need be."""
        if self.buckets is None:
            return StepPrograms.of(self.training)
        for key in keys:
            self.buckets.plan(key, ())
        return self.buckets.step(keys)


@dataclass(frozen=True)
class Job:
    """A config made ready: the plans to train and to evaluate its model.

    buckets, scoring: where the data is in buckets; then the plans are those of the largest.
    """

    config: Config
    training: Plan
    evaluation: Plan
    figures: tuple[str, str]
    buckets: Buckets | None = None
    scoring: Buckets | None = None


def prepare(config: Config, pricing: CostProvider | None = None) -> Job:
    """Build the model and plan its training and evaluation; runs nothing.

    Args:
        config: The config.
        pricing: Prices for what the config leaves open, equal on all ranks; by default those of
            Options.
    """
    return job_of(training_plan(config, pricing))


def training_plan(
    config: Config,
    pricing: CostProvider | None = None,
    *,
    quick: bool = False,
    placement: Placement | None = None,
) -> Planned:
    """The plan to train a config's model; of buckets that of the largest, to be made first.

    quick: what is open is chosen from fewer schedules and time segments, and placed with less
    effort. placement: of another plan of the same network, in place of the config's.
    """
    given, options = _given(config), _options(config, pricing)
    if placement is not None:
        options = replace(options, strategy=None, placement=placement)
    if quick:
        options = replace(options, named_only=True, near=1, solver_steps=STEPS / 100)
    if config.data.buckets is None:
        model = load_model(config.model, **given, **config.args)
        options = replace(options, states=model.states)
        dtypes = _dtypes(config, model)
        made = plan(model.symbol, model.feeds, options, wrt=None, dtypes=dtypes)
        return Planned(config, made, model)

    def build(length: int) -> Model:
        more = {"sequence_length": length, "ignore_label": IGNORED}
        return load_model(config.model, **{**given, **more}, **config.args)

    dtype = config.train.dtype
    buckets = Buckets(build, max(config.data.buckets), (), options, dtype=dtype)
    return Planned(config, buckets.default, buckets=buckets)


def job_of(planned: Planned) -> Job:
    """The job of a plan: evaluation runs on the same placement and time segments."""
    config, training, buckets = planned.config, planned.training, planned.buckets
    if buckets is not None:
        scoring = buckets.scoring()
        return _with_figures(Job(config, training, scoring.default, ("", ""), buckets, scoring))
    model = planned.model
    assert model is not None
    dtypes = _dtypes(config, model)
    evaluation = plan(model.symbol, model.feeds, training.evaluating(), dtypes=dtypes)
    return _with_figures(Job(config, training, evaluation, ("", "")))


def _with_figures(job: Job) -> Job:
    """The job with the names of the model's figures."""
    figures = tuple(job.training.scalars)
    if len(figures) != NLL:
        raise ConfigError(
            f"model: {job.config.model} must report the two outputs of nll_stats, but its summed "
            f"outputs with one element are {list(figures)}"
        )
    return replace(job, figures=(figures[0], figures[1]))


def _given(config: Config) -> dict[str, Any]:
    """What a model's function gets from the config besides `args`."""
    data = config.data
    given: dict[str, Any] = {
        "batch_size": data.batch_size,
        "sequence_length": data.sequence_length,
        "vocab": data.vocab,
        "dtype": config.train.dtype,
    }
    known = {*given, "ignore_label"} if data.buckets is not None else {*given}
    for name in known & config.args.keys():
        section = "train" if name == "dtype" else "data"
        raise ConfigError(f"args.{name}: the model gets it from {section}.{name}; leave it out")
    return given


def _options(config: Config, pricing: CostProvider | None) -> Options:
    """How a config's network is cut and scheduled; pricing: None for that of Options."""
    devices = tuple(Context.parse(d) for d in config.devices)
    pipeline = config.pipeline
    machine = machine_of(config)
    if machine is not None:
        pricing = always(CostModel.of_machine(machine))
    elif config.partition.costs is not None:
        pricing = always(load_prices(config.partition.costs))
    options = Options(
        config.groups or None,
        devices[0],
        devices,
        pipeline.schedule,
        pipeline.micro_batches,
        update=True,
        order=pipeline.order,
        time_segment=pipeline.time_segment,
        recompute=pipeline.recompute,
        memory=config.partition.memory,
        slots=len(create_optimizer(config).slots()),
        whole=False,
        strategy=config.partition.strategy,
        keep_groups=config.partition.keep_groups,
        machine=machine,
        shards=config.partition.shards,
        replicas=config.partition.replicas,
        splits=config.partition.split == "auto",
        objective=config.partition.objective,
        split_tied=config.partition.split_tied,
        data_axis=config.partition.data_axis,
        model_axis=config.partition.model_axis,
        precision=config.train.precision,
        loss_scale=LossScale.of(config.train.precision, config.train.loss_scale),
    )
    return options if pricing is None else replace(options, pricing=pricing)


def _dtypes(config: Config, model: Model) -> dict[str, str]:
    """The types of what is not fed."""
    names = model.symbol.list_arguments()
    return {name: config.train.dtype for name in names if name not in model.feeds}


def machine_of(config: Config) -> Machine | None:
    """The devices of the config, as its machine file describes them; None without a file."""
    devices = tuple(Context.parse(d) for d in config.devices)
    return load_machine(config.machine).only(devices) if config.machine else None


def create_optimizer(config: Config) -> optimizer.Optimizer:
    """The optimizer of a config's `train:` section."""
    train = config.train
    settings: dict[str, Any] = {"learning_rate": train.base_rate, "wd": train.weight_decay}
    if train.momentum:
        settings["momentum"] = train.momentum
    if train.lr_schedule is not None:
        given = train.lr_schedule.model_dump()
        kind = given.pop("kind")
        settings["lr_scheduler"] = lr_scheduler.create(kind, **given, base_lr=train.base_rate)
    return optimizer.create(train.optimizer, **settings)
