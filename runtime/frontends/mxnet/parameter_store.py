"""The parameter store: arrays under their names, and all that training remembers of them.

Every network that is bound to a store (of another bucket, or for another batch size) works on the
same arrays, so a parameter is one array whatever uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from runtime.backends.device.arrays import Device, copy, fill, on_host
from runtime.engine.devices import device_of, filling
from runtime.engine.optimizer_step import OptimizerStep
from runtime.engine.rank import RankResources
from runtime.engine.session import Arrays
from runtime.planning.plan import Plan
from runtime.transports import Cluster
from symgraph.core.errors import ConfigError, GraphError, RunError, ShapeError, nearest
from symgraph.core.seeding import SEEDING
from symgraph.core.types import Array, TensorType
from symgraph.frontend.init import AnyInitializer
from symgraph.frontend.optimizer import Optimizer
from symgraph.frontend.params_file import load_params, save_params
from symgraph.passes.loss_scale import UNSCALED, LossScale
from symgraph.passes.shards import Shard, join, parameter_of, piece_of

UPDATES = "updates"  # in an optimizer's file: the numbers of updates and training passes
KIND = "optimizer"  # and the name of its class, as bytes


class DeviceCopy(NamedTuple):
    """The array that a variable's rank works on, where that is no view of the parameter's."""

    parameter: str
    #: The rows of the parameter; None: all.
    shard: Shard | None
    device: Device
    array: Array

    def rows(self, whole: Array) -> Array:
        """Its rows of an array like the parameter's."""
        return whole if self.shard is None else self.shard.of(whole)


class Watch:
    """Sees every pass before it runs; this one ignores them."""

    #: What the last pass was fed, for those who look.
    fed: Mapping[str, Array] = MappingProxyType({})

    @property
    def active(self) -> bool:
        """Whether it looks at the next pass."""
        return False

    def look(
        self, network: Any, feeds: Mapping[str, Array], train: bool, key: tuple[int, int]
    ) -> None:
        """Look at a bound network, what it is fed, its mode and the key of its random numbers."""

    def close(self) -> None:
        """End whatever it uses."""


class FirstValues(NamedTuple):
    """Names of parameters or states, with the values that a user gives for some of them."""

    names: list[str]
    values: Mapping[str, Any] | None


class ParameterStore:
    """The arrays that networks share, and the state of their training."""

    #: Parameters and auxiliary states, whole.
    arrays: dict[str, Array]
    #: Gradients of the last backward pass, whole.
    grads: dict[str, Array]
    #: What networks work on instead of rows of `arrays`, by variable.
    device_copies: dict[str, DeviceCopy]
    #: The optimizer's arrays: variable -> slot -> array.
    states: dict[str, dict[str, Array]]
    #: Updates of parameters so far.
    updates: int
    #: Training passes so far: the key of random numbers.
    steps: int
    #: Other passes so far, likewise.
    reads: int
    #: What is shown of every pass.
    watch: Watch
    #: The scale of gradients in the next pass.
    loss_scale: LossScale
    #: By rank, what workers share that never run at the same time.
    resources: dict[int, RankResources]

    def __init__(
        self,
        cluster: Cluster,
        *,
        seed: int | None = None,
        loss_scale: LossScale = UNSCALED,
        trains: bool = True,
    ) -> None:
        """Make a store without parameters.

        Args:
            cluster: The ranks that run the networks; all are local.
            seed: The key of first values and random numbers; None: that of `mx.random.seed`.
            loss_scale: The first loss scale.
            trains: Whether networks change parameters: then each replica has an array of its own.
        """
        self.cluster, self._seed, self._generation = cluster, seed, SEEDING.generation
        self.arrays, self.grads, self.device_copies, self.states = {}, {}, {}, {}
        self.ready = False  # whether parameters have values
        self.optimizer: Optimizer | None = None
        self.updates = self.steps = self.reads = 0
        self.watch = Watch()
        self._first_scale = self.loss_scale = loss_scale
        self.resources = RankResources.of_ranks(cluster.ranks)
        self._trains = trains
        self._last_run: object = None

    # -- arrays ------------------------------------------------------------------------------

    def use(self, arrays: dict[str, Array], grads: dict[str, Array]) -> None:
        """Work on these arrays, wherever they lie, from now on."""
        self.arrays, self.grads = arrays, grads

    def allocate(self, types: Mapping[str, TensorType]) -> None:
        """Make zeros for the parameters and states that are new.

        Raises:
            ShapeError: One exists with another shape.
            GraphError: One is new, but parameters have values already: nobody would set it.
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

    def rank_arrays(self, plan: Plan) -> Arrays:
        """The arrays that each rank of a plan works on: views of rows, or device copies."""
        arrays: Arrays = {rank: {} for rank in self.cluster.ranks}
        for name in plan.parameters:
            shard, rank, target = plan.shards.get(name), plan.rank_of(name), device_of(plan, name)
            parameter = parameter_of(plan.shards, name)
            array = piece_of(plan.shards, name, self.arrays[parameter])
            if (self._trains and shard and shard.copy) or not target.holds(array):
                if name not in self.device_copies:
                    with filling(plan, rank):
                        piece = DeviceCopy(parameter, shard, target, target.put(array))
                    self.device_copies[name] = piece
                array = self.device_copies[name].array
            arrays[rank][name] = array
        return arrays

    def assign(self, name: str, value: Any) -> None:
        """Give a parameter or state new values, wherever it is; ShapeError if they do not fit."""
        self.arrays[name][...] = self._fitting(name, value)
        self.refresh(name)

    def refresh(self, parameter: str | None = None) -> None:
        """Copy a parameter's array, or every one, to its device copies."""
        for piece in self.device_copies.values():
            if parameter in (None, piece.parameter):
                fill(piece.device, piece.array, piece.rows(self.arrays[piece.parameter]))

    def _fitting(self, name: str, value: Any) -> Array:
        array: Array = on_host(value)
        shape = self.arrays[name].shape
        if array.shape != shape:
            raise ShapeError(f"parameter {name!r} is given {array.shape}, but is {shape}")
        return array

    def initialize(
        self,
        tables: Iterable[FirstValues],
        initializer: AnyInitializer | None,
        attrs: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Set first values: the given ones, and the initializer's for the rest.

        Args:
            tables: The parameters and the auxiliary states.
            initializer: Sets the values that are not given.
            attrs: The attributes of variables.

        Raises:
            ShapeError: A value has another shape; nothing has changed.
        """
        tables = list(tables)
        values: dict[str, Array] = {}
        for names, table in tables:
            for name in names:
                if table is not None and name in table:
                    values[name] = self._fitting(name, table[name])
        for name in [name for names, _ in tables for name in names]:
            array = self.arrays[name]
            if name in values:
                self.assign(name, values[name])
            elif initializer is not None:
                tags = attrs.get(name)
                self.assign(name, initializer(name, array.shape, array.dtype, self.seed, tags))
        self.ready = True

    def copies(self, names: Iterable[str]) -> dict[str, Array]:
        """Copies of these parameters and states on the host."""
        names = list(names)
        self._fetch(names)
        return {name: self.arrays[name].copy() for name in names}

    def _fetch(self, names: Iterable[str]) -> None:
        """Copy the values of device copies back to `arrays`."""
        wanted = {*names}
        for piece in self.device_copies.values():
            if piece.parameter in wanted and (piece.shard is None or not piece.shard.copy):
                copy(piece.rows(self.arrays[piece.parameter]), piece.array)

    def move(self, before: Plan, after: Plan) -> None:
        """Move all arrays from where one plan of a network has them to where another does."""
        if _places(before) == _places(after):
            return
        self._fetch(self.arrays)
        states = self._whole_states(before) if self.states else {}
        for table in (self.device_copies, self.grads, self.states):
            table.clear()
        self._set_states(after, states)

    def close(self) -> None:
        """End the threads of all networks."""
        self.watch.close()
        self.cluster.close()

    # -- passes ------------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """The key of first values and random numbers; setting it begins with pass 0 again."""
        return SEEDING.seed if self._seed is None else self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._seed, self.steps, self.reads = seed, 0, 0

    def next_key(self, *, train: bool) -> tuple[int, int]:
        """Return the key of the next pass' random numbers: the seed, and the number of the pass."""
        if self._seed is None and self._generation != SEEDING.generation:
            self._generation, self.steps, self.reads = SEEDING.generation, 0, 0
        self.reads += not train
        return self.seed, self.steps if train else self.reads - 1

    def passed(self, run: object, *, trained: bool) -> None:
        """Note the session or phases that ran last; their results are in the shared memory."""
        self._last_run = run
        self.steps += trained

    def has_results_of(self, run: object) -> bool:
        """Whether a session or phases ran last."""
        return self._last_run is run

    # -- the optimizer -----------------------------------------------------------------------

    @property
    def wanted_optimizer(self) -> Optimizer:
        """The optimizer; RunError if there is none yet."""
        if self.optimizer is None:
            raise RunError("there is no optimizer yet: call init_optimizer")
        return self.optimizer

    def begin(self, optimizer: Optimizer) -> None:
        """Train with an optimizer from now on, whose states are zero."""
        self.optimizer = optimizer
        self.states.clear()
        self.updates, self.loss_scale = optimizer.begin_num_update, self._first_scale

    def lend(self, steps: Mapping[int, OptimizerStep]) -> None:
        """Make the optimizer steps of all ranks continue on this store's states."""
        for step in steps.values():
            step.continue_from(self.states, self.updates, self.loss_scale)

    def take_back(self, steps: Mapping[int, OptimizerStep]) -> None:
        """Take over the counts and the loss scale of optimizer steps, equal on all ranks."""
        first = next(iter(steps.values()))
        self.updates, self.loss_scale = first.updates, first.loss_scale

    def save_states(self, path: str, plan: Plan) -> None:
        """Write the optimizer's arrays, whole, by parameter and slot, the counts and the scale."""
        kind = np.frombuffer(type(self.wanted_optimizer).__name__.encode(), np.uint8)
        counts = {UPDATES: np.array([self.updates, self.steps]), KIND: kind}
        scale = {name: np.array(number) for name, number in self.loss_scale.progress.items()}
        save_params(path, self._whole_states(plan), counts | scale)

    def load_states(self, path: str, plan: Plan) -> None:
        """Read what `save_states` wrote.

        Raises ConfigError for another kind of optimizer, and if an array is missing or does not
        fit.
        """
        arrays, counts = load_params(path)
        if UPDATES not in counts:
            raise ConfigError(f"{path} holds no optimizer's states")
        own = type(self.wanted_optimizer).__name__
        kind = bytes(counts.pop(KIND, np.frombuffer(own.encode(), np.uint8))).decode()
        if kind != own:
            raise ConfigError(f"{path} holds states of the optimizer {kind}, not of {own}")
        updates, steps = map(int, counts[UPDATES])
        trained = [name for name in plan.grads if name not in plan.feeds]
        begun = arrays or updates > self.wanted_optimizer.begin_num_update
        for name in trained if begun else ():
            parameter = parameter_of(plan.shards, name)
            for key in self._keys(parameter).values():
                if key not in arrays:
                    raise ConfigError(f"{path} has no {key!r}; {nearest(key, arrays)}")
                array, stored = self.arrays[parameter], arrays[key]
                if (stored.shape, stored.dtype) != (array.shape, array.dtype):
                    raise ConfigError(
                        f"{path}: {key!r} is {stored.dtype}{list(stored.shape)}, but the "
                        f"parameter is {array.dtype}{list(array.shape)}"
                    )
        self.states.clear()
        self._set_states(plan, arrays)
        self.updates, self.steps = updates, steps
        scale = {name: a.item() for name, a in counts.items() if name != UPDATES}
        self.loss_scale = self.loss_scale.resumed(scale)

    def _keys(self, parameter: str) -> dict[str, str]:
        """Slot -> the name of the optimizer's array of a parameter in files."""
        return {slot: f"{parameter}/{slot}" for slot in self.wanted_optimizer.slots()}

    def _whole_states(self, plan: Plan) -> dict[str, Array]:
        wholes: dict[str, Array] = {}
        for slot in self.wanted_optimizer.slots():
            pieces = {name: on_host(state[slot]) for name, state in self.states.items()}
            wholes |= {f"{name}/{slot}": a for name, a in join(plan.shards, pieces).items()}
        return wholes

    def _set_states(self, plan: Plan, arrays: Mapping[str, Array]) -> None:
        """Put the rows of these arrays, where they are given, on their variables' devices."""
        for name in plan.parameters if arrays else ():
            keys = self._keys(parameter_of(plan.shards, name))
            if arrays.keys() >= {*keys.values()}:
                with filling(plan, plan.rank_of(name)) as target:
                    self.states[name] = {
                        slot: target.put(piece_of(plan.shards, name, arrays[key]))
                        for slot, key in keys.items()
                    }


def _places(plan: Plan) -> dict[str, tuple[Device, Shard | None]]:
    """The device and rows of each parameter's variables."""
    return {name: (device_of(plan, name), plan.shards.get(name)) for name in plan.parameters}
