"""The job: a config with the plans to train and to evaluate its model.

Config ─training_plan→ Planned ─job_of→ Job

A network without a loss runs forward only: its plan has no gradients, and there is no other one.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from partitioner import Placement
from partitioner.costs.machine import Machine
from partitioner.costs.machine_files import load_machine
from partitioner.strategies.rules import APART, AT_MOST, SAME, SPLIT, TOGETHER, Rule
from partitioner.strategies.types import LATENCY, SOLVER_STEPS, STEP, THROUGHPUT
from runtime.backends.cpu.choice import use_blas
from runtime.planning.account import fullest
from runtime.planning.buckets import Buckets
from runtime.planning.costs.files import load_prices
from runtime.planning.costs.prices import CostModel, CostProvider, always
from runtime.planning.micro_batches import even_recipes, first_allowed
from runtime.planning.mixed_step import stream
from runtime.planning.options import AUTO, Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan_model, raised_limit
from runtime.planning.step import StepPrograms
from runtime.schedule.replay import RankMemory
from runtime.training.clusters import THREADS, transport_of
from runtime.training.given import network_of
from runtime.training.given_costs import check_costs
from runtime.training.loss import Loss, with_figures
from runtime.training.metrics import create_metrics
from runtime.training.models import build_model
from symgraph.app.config import Config
from symgraph.app.data_config import batches_per_step, buckets_of, is_by_time, rows_of
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError, LimitError
from symgraph.core.units import bytes_text
from symgraph.frontend import lr_scheduler, optimizer
from symgraph.frontend.model import Model
from symgraph.frontend.name import NameManager
from symgraph.passes.batching import batch_size
from symgraph.passes.loss_scale import LossScale


@dataclass(frozen=True)
class Planned:
    """A config and the plan to train its model."""

    #: The config.
    config: Config
    #: The plan; with several buckets that of the largest.
    training: Plan
    #: The names of the figures of its losses.
    losses: tuple[Loss, ...]
    #: The model, where all batches have one shape.
    model: Model | None = None
    #: The plans of all buckets, where batches have several shapes.
    buckets: Buckets | None = None
    #: The largest step that may come, where batches have several shapes.
    largest: StepPrograms | None = None

    @property
    def forward_only(self) -> bool:
        """Whether there is nothing to train: the network has no loss."""
        return not self.losses and not self.training.grads

    def step(self, keys: Sequence[Hashable]) -> StepPrograms:
        """Return the programs of a step with batches of these buckets; plan those that are new."""
        if self.buckets is None:
            return stream(self.training, len(keys))
        with use_blas(self.config.blas):
            for key in keys:
                self.buckets.plan(key, ())
            return self.buckets.step(keys)


@dataclass(frozen=True, kw_only=True)
class Job(Planned):
    """A config with the plans to train and to evaluate its model."""

    #: The plan of an evaluation step; with several buckets that of the largest.
    evaluation: Plan
    #: The plans to evaluate all buckets.
    scoring: Buckets | None = None

    @property
    def memory(self) -> tuple[RankMemory, ...]:
        """The memory of each rank in the largest training step; one batch alone is always bound."""
        largest = [] if self.largest is None else [self.largest.memory]
        return fullest([self.training.memory, *largest])


def prepare(config: Config, pricing: CostProvider | None = None, *, whole: bool = False) -> Job:
    """Build the model and plan its training and evaluation, without running anything.

    Args:
        config: The config.
        pricing: Prices for what the config leaves open, equal on all ranks; by default those of
            Options.
        whole: See `job_of`.
    """
    return job_of(training_plan(config, pricing), whole=whole)


def training_plan(
    config: Config,
    pricing: CostProvider | None = None,
    *,
    quick: bool = False,
    placement: Placement | None = None,
) -> Planned:
    """Plan the training of a config's model, or of the largest of its buckets.

    Args:
        config: The config.
        pricing: See `prepare`.
        quick: Whether to consider fewer schedules and time segments, and to place with less effort.
        placement: Replaces the config's; that of another plan of the same network.
    """
    options = _options(config, pricing)
    if placement is not None:
        options = replace(options, strategy=None, placement=placement)
    if quick:
        options = replace(options, named_only=True, near=1, data_axis=options.rows)
        options = replace(options, solver_steps=SOLVER_STEPS / 100)
    with use_blas(config.blas):
        planned = _planned(config, options)
        if config.partition.costs is not None:
            graph = planned.training.network.first
            check_costs(config.partition.costs, options.pricing(graph, options.devices), graph)
        return planned


def _planned(config: Config, options: Options) -> Planned:
    dtype = config.train.dtype
    if (network := network_of(config)) is not None:
        return Planned(config, network.plan(options), network.losses, network.model)
    if buckets_of(config.data) is not None:
        try:
            return _in_buckets(config, options)
        except LimitError as error:
            raise _with_limit_that_works(config, options, error) from None
    model, losses = _built(config)
    if not losses:
        options = _forward_only(options)
    training = plan_model(model, options, dtype, train=bool(losses))
    return Planned(config, training, losses, model)


def _in_buckets(config: Config, options: Options) -> Planned:
    """Plan the largest bucket and the largest step, before the first one.

    Raises:
        LimitError: they need more memory than the limit.
        SymgraphError: batches cannot be in one step.
    """
    of_buckets: tuple[Loss, ...] = ()

    def of_length(bucket: int, rows: int | None = None) -> Model:
        nonlocal of_buckets
        model, of_buckets = _built(config, bucket, rows)
        return model

    longest = max(buckets_of(config.data) or ())
    batches = 1 if is_by_time(config.data) else batches_per_step(config.data)
    dtype = config.train.dtype
    buckets = Buckets(of_length, longest, (), options, dtype=dtype, batches=batches)
    if not of_buckets:
        raise ConfigError(
            f"data.buckets: {config.model} has no loss, and only networks with a loss have "
            "buckets; use data.sequence_length"
        )
    planned = Planned(config, buckets.default, of_buckets, buckets=buckets)
    return replace(planned, largest=_largest_step(planned))


def _largest_step(planned: Planned) -> StepPrograms:
    """Return the largest step that may come.

    All its batches are of the largest bucket; by time, all its micro-batches are of that length.
    """
    config, data = planned.config, planned.config.data
    longest, batches = max(buckets_of(data) or ()), batches_per_step(data)
    if not is_by_time(data):
        return planned.step((longest,) * batches)
    rows = rows_of(data, len(planned.training.sizes))
    return planned.step(
        first_allowed(even_recipes(longest, rows, batches * samples_of(config)), planned.step)
    )


def _with_limit_that_works(config: Config, options: Options, error: LimitError) -> LimitError:
    """Return the error with the smallest limit that really works.

    By time, micro-batches are planned once the largest bucket fits, and may need more than it does.
    With a limit that lets them fit, in turn, the largest bucket may be planned in another way.
    """
    given = options.memory
    if given is None or not is_by_time(config.data):
        return error
    limit, works = raised_limit(
        error.smallest, lambda limit: _in_buckets(config, replace(options, memory=limit))
    )
    if works and limit == error.smallest:
        return error
    least = "" if works else "at least "
    known = "that is the smallest limit" if works else "it is not known which limit"
    return LimitError(
        f"the micro-batches of a step need {least}{bytes_text(limit)} ({limit} bytes) on a "
        f"device, more than the limit of {bytes_text(given)}; {known} that works",
        limit,
    )


def _built(
    config: Config, bucket: int | None = None, rows: int | None = None
) -> tuple[Model, tuple[Loss, ...]]:
    """Build a model with figures of its losses; automatic names are the same each time."""
    with NameManager():
        model = build_model(config, bucket, rows)
        # Unknown ones are refused before planning; the network's file may have registered some.
        create_metrics(config.evaluate.metrics)
        return with_figures(model)


def job_of(planned: Planned, *, whole: bool = False) -> Job:
    """Plan the evaluation, on the same placement and time segments as the training.

    Args:
        planned: The training.
        whole: Whether somebody reads the outputs of losses; metrics do.
    """
    with use_blas(planned.config.blas):
        return _job_of(planned, whole or bool(planned.config.evaluate.metrics))


def _job_of(planned: Planned, whole: bool) -> Job:
    config, training, model = planned.config, planned.training, planned.model
    if planned.buckets is not None:
        scoring = planned.buckets.scoring()
        return Job(**vars(planned), evaluation=scoring.default, scoring=scoring)
    assert model is not None
    evaluation = training
    if (network := network_of(config)) is not None:
        evaluation = network.plan(training.evaluating(), train=False)
    elif planned.losses:
        evaluation = plan_model(
            model, training.evaluating(whole=whole), config.train.dtype, train=False
        )
    return Job(**vars(planned), evaluation=evaluation)


def require_loss(job: Job) -> None:
    """Raise ConfigError for a network that cannot be trained, as it has no loss."""
    if job.forward_only:
        raise ConfigError(
            f"model: {job.config.model} has no loss, so there is nothing to train: "
            "`symgraph predict CONFIG --output OUT.npz` runs it, and `loss:` in the config, or an "
            "output such as SoftmaxOutput, gives it a loss"
        )


def samples_of(config: Config) -> int:
    """Return the number of samples in a batch: the config's, or those of the model's inputs."""
    return config.data.batch_size or batch_size(build_model(config).feeds)


def _precision(config: Config) -> str:
    """Return the precision; ConfigError if that is for a search to find."""
    if config.train.precision == AUTO:
        raise ConfigError(
            "train.precision: auto is for `symgraph search`, which tries float32 and bfloat16; "
            "name one of them, such as train.precision=bfloat16"
        )
    return config.train.precision


def _options(config: Config, pricing: CostProvider | None) -> Options:
    """Return the planning options of a config; without `pricing`, with the default of Options."""
    devices, rule = devices_of(config), create_optimizer(config)
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
        slots=len(rule.slots()),
        shared_memory=transport_of(config, os.environ) == THREADS,
        clips=config.train.clip_global_norm is not None,
        whole=False,
        strategy=config.partition.strategy,
        keep_groups=config.partition.keep_groups,
        rules=rules_of(config),
        machine=machine,
        shards=config.partition.shards,
        replicas=config.partition.replicas,
        splits=config.partition.split == "auto",
        objective=config.partition.objective,
        split_tied=config.partition.split_tied,
        data_axis=config.partition.data_axis,
        replicas_near=config.partition.replicas_near,
        model_axis=config.partition.model_axis,
        precision=_precision(config),
        loss_scale=LossScale.of(config.train.precision, config.train.loss_scale),
    )
    shard = config.train.shard_optimizer
    if isinstance(shard, str):  # auto: a norm needs whole sums, which threads read where they are
        in_place = options.lends and {d.kind for d in devices} == {"cpu"}
        normed = options.clips or options.loss_scale.dynamic
        shard = rule.by_element and (in_place or not normed)
    options = replace(options, shard_optimizer=shard)
    return options if pricing is None else replace(options, pricing=pricing)


def _forward_only(options: Options) -> Options:
    """Return the options of a network without a loss, which is never updated.

    Its batches stream, so that its step is as long as the slowest device is busy; its latency is
    that of a batch with all its micro-batches.
    """
    objective = STEP if options.objective == LATENCY else THROUGHPUT
    return replace(options, update=False, slots=0, clips=False, objective=objective)


def rules_of(config: Config) -> tuple[Rule, ...]:
    """Return the constraints of a config, one for each of their names."""
    rules: list[Rule] = []
    for constraint in config.partition.constraints:
        ((kind, given),) = constraint.items()
        if kind in (TOGETHER, APART):
            rules.append(Rule(kind, tuple(given)))
            continue
        for name, value in given.items():
            if kind == SAME:
                rules.append(Rule(kind, (value, name)))
            elif kind == AT_MOST:
                rules.append(Rule(kind, (name,), count=value))
            elif kind == SPLIT:
                rules.append(Rule(kind, (name,), axis=value))
            else:
                listed = [value] if isinstance(value, str) else value
                rules.append(Rule(kind, (name,), tuple(map(Context.parse, listed))))
    return tuple(rules)


def devices_of(config: Config) -> tuple[Context, ...]:
    """Return the device of each rank."""
    return tuple(Context.parse(d) for d in config.devices)


def machine_of(config: Config) -> Machine | None:
    """Load the devices of a config from its machine file; None without a file."""
    return load_machine(config.machine).only(devices_of(config)) if config.machine else None


def create_optimizer(config: Config) -> optimizer.Optimizer:
    """Create the optimizer of a config's `train:` section."""
    train = config.train
    settings: dict[str, Any] = {"learning_rate": train.base_rate, "wd": train.weight_decay}
    if train.momentum:
        settings["momentum"] = train.momentum
    if train.lr_schedule is not None:
        schedule = train.lr_schedule.model_dump()
        kind = schedule.pop("kind")
        settings["lr_scheduler"] = lr_scheduler.create(kind, **schedule, base_lr=train.base_rate)
    return optimizer.create(train.optimizer, **settings)


def plan_facts(job: Job) -> dict[str, Any]:
    """Return what the bits of a run depend on, and how it was placed, as JSON can hold it.

    `split` has the groups on several devices: group -> its devices, one for each piece.
    """
    plan = job.training
    groups = {} if plan.options.groups is None else plan.options.groups
    return {
        "devices": [*map(repr, plan.devices)],
        "micro_batches": len(plan.sizes),
        "time_segment": plan.choice.time_segment,
        "recompute": list(plan.choice.recompute),
        "schedule": plan.choice.schedule,
        "split": {
            group: [*map(repr, placed)]
            for group, placed in groups.items()
            if not isinstance(placed, Context)
        },
        "shards": dict(plan.options.shards),
        "replicas": dict(plan.options.replicas),
        "data_axis": plan.options.rows,
    }
