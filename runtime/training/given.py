"""Configs of networks that are given as symbols in Python, not by the name of a function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pydantic import ConfigDict, Field, InstanceOf

from runtime.backends.cpu.choice import blas_name
from runtime.planning.network import PlanRequest
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.training.loss import Loss, reported
from symgraph.app.config import Config
from symgraph.app.data_config import RandomData
from symgraph.core.errors import ConfigError
from symgraph.core.graph import Graph
from symgraph.frontend.model import Model
from symgraph.passes.batching import batch_size

GIVEN = "a network given in Python"
OPTIMIZERS: tuple[dict[str, Any], ...] = (  # by the number of arrays for each parameter
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "adam"},
)
SLOW = 1e-6  # a learning rate with which random data changes little
SECTIONS = {
    "partition": (
        "strategy",
        "keep_groups",
        "objective",
        "split_tied",
        "data_axis",
        "replicas_near",
        "model_axis",
        "memory",
    ),
    "pipeline": ("schedule", "order", "micro_batches", "time_segment", "recompute"),
}


@dataclass(frozen=True, eq=False)
class GivenNetwork:
    """The network of a plan. Two are equal if the same was asked for."""

    request: PlanRequest
    #: The options of the plan.
    options: Options

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        request, options = self.request, self.options
        return (
            request.symbol.tojson(),
            dict(request.feeds),
            request.wrt,
            dict(request.shapes),
            dict(request.dtypes),
            dict(options.states),
            options.update,
            options.slots,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GivenNetwork) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key[0])

    @property
    def model(self) -> Model:
        """The symbol with its feeds and states."""
        return Model(self.request.symbol, self.request.feeds, self.options.states)

    @property
    def graph(self) -> Graph:
        """The forward graph for the whole batch."""
        return self.request.lowered(batch_size(self.request.feeds))

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The losses that its training reports."""
        return reported(self.model) if self.options.update else ()

    def plan(self, options: Options, *, train: bool = True) -> Plan:
        """Plan it with other options; `train`: whether as it was planned, or forward only."""
        own, request = self.options, self.request
        update = own.update and train
        return plan(
            request.symbol,
            request.feeds,
            replace(options, states=own.states, whole=own.whole, slots=own.slots, update=update),
            wrt=request.wrt if train else (),
            shapes=request.shapes,
            dtypes=request.dtypes,
        )


class GivenConfig(Config):
    """The config of a network that is given in Python: its data is random, its devices a plan's."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: str = GIVEN
    data: RandomData = RandomData(kind="random")
    network: InstanceOf[GivenNetwork] = Field(exclude=True, repr=False)
    """The network."""

    def to_yaml(self) -> str:
        """Write the config as YAML, which cannot hold the network."""
        return f"# model: name a function that builds the network\n{super().to_yaml()}"


def config_of(given: Plan) -> GivenConfig:
    """Return a config that says what a plan's options say.

    Raises:
        ConfigError: The plan is not one that a session can run by itself.
    """
    request, options = given.request, given.options
    if request is None or request.heads:
        raise ConfigError(
            "this plan waits for gradients of its outputs, which only an Executor feeds; make one "
            "with runtime.plan(symbol, feeds, options)"
        )
    if not given.feeds:
        raise ConfigError("the plan is fed nothing: runtime.plan(symbol, feeds, options)")
    if options.machine is not None:
        raise ConfigError(
            "the plan was made for a machine that is described by Options(machine=...); plan for "
            "devices of this one to measure it, or search with a config and `machine: FILE`"
        )
    groups = {
        name: tuple(map(repr, devices)) if isinstance(devices, tuple | list) else repr(devices)
        for name, devices in (options.groups or {}).items()
    }
    marks = {"shards": dict(options.shards), "replicas": dict(options.replicas)}
    values: dict[str, Any] = {
        "devices": tuple(map(repr, given.devices)),
        "group2ctx": groups,
        "partition": {"split": "auto" if options.splits else "none", **marks},
        "pipeline": {},
        "train": _training(options),
        "network": GivenNetwork(request, options),
        "blas": blas_name(),
    }
    for section, names in SECTIONS.items():
        values[section] |= {name: getattr(options, name) for name in names}
    return GivenConfig.model_validate(values)


def _training(options: Options) -> dict[str, Any]:
    scale = options.loss_scale
    return {
        **OPTIMIZERS[min(options.slots, len(OPTIMIZERS) - 1)],
        "learning_rate": SLOW,
        "clip_global_norm": 1.0 if options.clips else None,
        "precision": options.precision,
        "loss_scale": "auto" if scale.dynamic else scale.value,
        "shard_optimizer": options.shard_optimizer,
        "on_nan": "ignore",
    }


def network_of(config: Config) -> GivenNetwork | None:
    """Return the network that is given with a config; None: `model` names a function."""
    return config.network if isinstance(config, GivenConfig) else None
