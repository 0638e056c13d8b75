"""The store: parameters under their names, and what training remembers of them.

Every network that is bound to a store (of another bucket, or for another batch size) works on the
same arrays, so a parameter is one array whatever uses it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from runtime.backends.device.arrays import Device, copy, fill, on_host
from runtime.backends.device.processor import SharedCores
from runtime.engine.devices import device_of, filling
from runtime.engine.optimizer_step import OptimizerStep
from runtime.engine.rank import RankResources
from runtime.engine.session import Arrays
from runtime.planning.plan import Plan
from runtime.transports import Cluster
from symgraph.core.errors import ConfigError, GraphError, RunError, ShapeError, nearest
from symgraph.core.types import Array, TensorType
from symgraph.frontend.init import Initializer, Mixed
from symgraph.frontend.optimizer import Optimizer
from symgraph.frontend.params_file import load_params, save_params
from symgraph.passes.loss_scale import UNSCALED, LossScale
from symgraph.passes.shards import Shard, join

UPDATES = "updates"  # in an optimizer's file: how many updates and training passes there were


class DeviceCopy(NamedTuple):
    """A variable's array that is no part of its parameter's whole one.

    shard: None if it is all of the parameter.
    """

    parameter: str
    shard: Shard | None
    device: Device
    array: Array

    def of(self, whole: Array) -> Array:
        """Its rows of an array like the parameter's."""
        return whole if self.shard is None else self.shard.of(whole)


@dataclass
class Store:
    """What networks share.

    arrays: parameters and auxiliary states, whole, on the host. apart: by variable, what networks
    work on instead: further copies of what has replicas, and all that lies on GPUs; see `copies`.
    grads: what a backward pass computed, whole. states: the optimizer's arrays, by variable, where
    it is. ready: whether parameters have values. updates: of parameters so far. steps: training
    passes so far, the key of random numbers. first_scale, loss_scale: of gradients, at first and in
    the next pass. shared: by rank, what workers that take turns have together. cores: for the
    matrix products of one rank. ran: the session or phases that ran last, whose results are in the
    shared memory.
    """

    cluster: Cluster
    seed: int = 0
    first_scale: LossScale = UNSCALED
    arrays: dict[str, Array] = field(default_factory=dict)
    apart: dict[str, DeviceCopy] = field(default_factory=dict)
    grads: dict[str, Array] = field(default_factory=dict)
    states: dict[str, dict[str, Array]] = field(default_factory=dict)
    ready: bool = False
    optimizer: Optimizer | None = None
    updates: int = 0
    steps: int = 0
    loss_scale: LossScale = field(init=False)
    shared: dict[int, RankResources] = field(init=False)
    cores: SharedCores = field(init=False)
    ran: object = None

    def __post_init__(self) -> None:
        self.loss_scale = self.first_scale
        self.cores = SharedCores(self.cluster.size)
        self.shared = {rank: RankResources() for rank in self.cluster.ranks}

    def allocate(self, types: Mapping[str, TensorType]) -> None:
        """Zeros for the parameters and states that are new.

        Raises ShapeError for one that is there with another shape, GraphError for a new one where
        parameters have values already: nobody would give it any.
        """
        for name, (shape, dtype) in types.items():
            if name not in self.arrays and self.ready:
                raise GraphError(
                    f"parameter {name!r} is new: the network whose parameters are shared has none "
                    f"of that name; {nearest(name, self.arrays)}"
                )
            array = self.arrays.setdefault(name, np.zeros(shape, dtype))
            if array.shape != shape:
                raise ShapeError(
                    f"parameter {name!r} has shape {array.shape}, but these inputs make it {shape}"
                )

    def of(self, made: Plan) -> Arrays:
        """The arrays that each rank of a plan works on: these, views of their rows, or apart."""
        found: Arrays = {rank: {} for rank in self.cluster.ranks}
        for name in made.parameters:
            shard, rank, here = made.shards.get(name), made.rank_of(name), device_of(made, name)
            parameter = shard.parameter if shard else name
            array = self.arrays[parameter]
            if shard:
                array = shard.of(array)
            if (shard and shard.copy) or not here.is_host:
                if name not in self.apart:
                    with filling(made, rank):
                        self.apart[name] = DeviceCopy(parameter, shard, here, here.put(array))
                array = self.apart[name].array
            found[rank][name] = array
        return found

    def assign(self, name: str, value: Any) -> None:
        """Give a parameter or state new values, wherever it is; ShapeError if they do not fit."""
        whole = self.arrays[name]
        whole[...] = self._fitting(name, value)
        for piece in self.apart.values():
            if piece.parameter == name:
                fill(piece.device, piece.array, piece.of(whole))

    def _fitting(self, name: str, value: Any) -> Array:
        array: Array = on_host(value)
        shape = self.arrays[name].shape
        if array.shape != shape:
            raise ShapeError(f"parameter {name!r} is given {array.shape}, but is {shape}")
        return array

    def initialize(
        self,
        names: Collection[str],
        given: Mapping[str, Any] | None,
        initializer: Initializer | Mixed | None,
        attrs: Mapping[str, Mapping[str, str]],
        *,
        allow_missing: bool,
    ) -> None:
        """First values: those given, and for the rest, if allowed, the initializer's.

        attrs: of variables. GraphError for one that is missing among those given, ShapeError for
        one that does not fit; then nothing has changed.
        """
        own = {} if given is None else {n: given[n] for n in names if n in given}
        values = {name: self._fitting(name, value) for name, value in own.items()}
        for name in names:
            if given is not None and name not in values and not allow_missing:
                raise GraphError(f"parameter {name!r} is missing among those given")
        for name in names:
            array = self.arrays[name]
            if name in values:
                self.assign(name, values[name])
            elif initializer is not None:
                tags = attrs.get(name)
                self.assign(name, initializer(name, array.shape, array.dtype, self.seed, tags))

    def copies(self, names: Collection[str]) -> dict[str, Array]:
        """These parameters and states as they are now, on the host."""
        self._fetch(names)
        return {name: self.arrays[name].copy() for name in names}

    def _fetch(self, names: Collection[str]) -> None:
        """Let `arrays` have what is apart."""
        for piece in self.apart.values():
            if piece.parameter in names and (piece.shard is None or not piece.shard.copy):
                copy(piece.of(self.arrays[piece.parameter]), piece.array)

    def placed_anew(self, before: Plan, made: Plan) -> None:
        """Bring everything to where another placement of the network wants it."""
        if _places(before) == _places(made):
            return
        self._fetch(self.arrays)
        states = self._whole_states(before) if self.states else {}
        for table in (self.apart, self.grads, self.states):
            table.clear()
        self._set_states(made, states)

    # -- the optimizer -----------------------------------------------------------------------

    def begin(self, optimizer: Optimizer) -> None:
        """Train with an optimizer, which remembers nothing yet."""
        self.optimizer = optimizer
        self.states.clear()
        self.updates, self.loss_scale = 0, self.first_scale

    def lend(self, updaters: Mapping[int, OptimizerStep]) -> None:
        """Have the ends of a training step, by rank, go on from where this is."""
        for updater in updaters.values():
            updater.continue_from(self.states, self.updates, self.loss_scale)

    def take_back(self, updaters: Mapping[int, OptimizerStep]) -> None:
        """Be where updaters are after the step, the same on all ranks."""
        first = next(iter(updaters.values()))
        self.updates, self.loss_scale = first.updates, first.loss_scale

    def save_states(self, path: str, made: Plan) -> None:
        """Write the optimizer's arrays, whole, by parameter and slot, the counts and the scale."""
        counts = {UPDATES: np.array([self.updates, self.steps])}
        scale = {name: np.array(number) for name, number in self.loss_scale.progress.items()}
        save_params(path, self._whole_states(made), counts | scale)

    def load_states(self, path: str, made: Plan) -> None:
        """Go on with what `save_states` wrote; ConfigError if it lacks something or cannot fit."""
        arrays, counts = load_params(path)
        if UPDATES not in counts:
            raise ConfigError(f"{path} holds no optimizer's states")
        updates, steps = map(int, counts[UPDATES])
        trained = [name for name in made.grads if name not in made.feeds]
        for name in trained if updates else ():
            for slot in self.wanted_optimizer.slots():
                key = _key(made, name, slot)
                if key not in arrays:
                    raise ConfigError(f"{path} has no {key!r}; {nearest(key, arrays)}")
                own, found = self.arrays[key.rpartition("/")[0]], arrays[key]
                if (found.shape, found.dtype) != (own.shape, own.dtype):
                    raise ConfigError(
                        f"{path}: {key!r} is {found.dtype}{list(found.shape)}, but the parameter "
                        f"is {own.dtype}{list(own.shape)}"
                    )
        self.states.clear()
        self._set_states(made, arrays if updates else {})
        self.updates, self.steps = updates, steps
        scale = {name: a.item() for name, a in counts.items() if name != UPDATES}
        self.loss_scale = self.loss_scale.resumed(scale)

    def _whole_states(self, made: Plan) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for slot in self.wanted_optimizer.slots():
            own = {name: on_host(state[slot]) for name, state in self.states.items()}
            found |= {f"{name}/{slot}": array for name, array in join(made.shards, own).items()}
        return found

    def _set_states(self, made: Plan, arrays: Mapping[str, Array]) -> None:
        """Let variables have their rows of these arrays, if they are there, on their devices."""
        for name in made.parameters if arrays else ():
            shard, here = made.shards.get(name), device_of(made, name)
            keys = {slot: _key(made, name, slot) for slot in self.wanted_optimizer.slots()}
            if arrays.keys() >= {*keys.values()}:
                wholes = {slot: arrays[key] for slot, key in keys.items()}
                with filling(made, made.rank_of(name)):
                    self.states[name] = {
                        slot: here.put(shard.of(whole) if shard else whole)
                        for slot, whole in wholes.items()
                    }

    @property
    def wanted_optimizer(self) -> Optimizer:
        """The optimizer; RunError if there is none yet."""
        if self.optimizer is None:
            raise RunError("there is no optimizer yet: call init_optimizer")
        return self.optimizer


def _places(made: Plan) -> dict[str, tuple[Device, Shard | None]]:
    """Where the parameters are, in what pieces."""
    return {name: (device_of(made, name), made.shards.get(name)) for name in made.parameters}


def _key(made: Plan, variable: str, slot: str) -> str:
    """What an optimizer's array is called in files."""
    shard = made.shards.get(variable)
    return f"{shard.parameter if shard else variable}/{slot}"
