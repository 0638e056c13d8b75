"""The store: parameters under their names, and what training remembers of them.

Every network that is bound to a store (of another bucket, or for another batch size) works on the
same arrays, so a parameter is one array whatever uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from runtime.blas import SharedCores
from runtime.pipeline import Plan
from runtime.session import Arrays
from runtime.transports import Cluster
from runtime.worker import Shared
from symgraph.errors import ConfigError, GraphError, RunError, ShapeError, nearest
from symgraph.optimizer import Optimizer
from symgraph.params_file import load_params, save_params
from symgraph.pieces import join
from symgraph.types import Array, TensorType

UPDATES = "updates"  # in an optimizer's file: how many updates and training passes there were


@dataclass
class Store:
    """What networks share.

    arrays: parameters and auxiliary states, whole. copies: further copies of those with replicas,
    by variable. grads: what a backward pass computed, whole. states: the optimizer's arrays, by
    variable. ready: whether parameters have values. updates: of parameters so far. steps: training
    passes so far, the key of random numbers. shared: by rank, what workers that take turns have
    together. cores: for the matrix products of one rank. ran: the session or phases that ran last,
    whose results are in the shared memory.
    """

    cluster: Cluster
    seed: int = 0
    arrays: dict[str, Array] = field(default_factory=dict)
    copies: dict[str, Array] = field(default_factory=dict)
    grads: dict[str, Array] = field(default_factory=dict)
    states: dict[str, dict[str, Array]] = field(default_factory=dict)
    ready: bool = False
    optimizer: Optimizer | None = None
    updates: int = 0
    steps: int = 0
    shared: dict[int, Shared] = field(init=False)
    cores: SharedCores = field(init=False)
    ran: object = None

    def __post_init__(self) -> None:
        self.cores = SharedCores(self.cluster.size)
        self.shared = {rank: Shared() for rank in self.cluster.ranks}

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
        """The arrays that each rank of a plan works on: these, or views of their rows."""
        found: Arrays = {rank: {} for rank in self.cluster.ranks}
        for name in made.parameters:
            shard = made.shards.get(name)
            array = self.arrays[shard.parameter if shard else name]
            if shard:
                array = shard.of(array)
                if shard.copy:
                    array = self.copies.setdefault(name, array.copy())
            found[made.rank_of(name)][name] = array
        return found

    def assign(self, made: Plan, name: str, value: Array) -> None:
        """Give a parameter or state new values, wherever it is; ShapeError if they do not fit."""
        wanted = self.arrays[name].shape
        if np.shape(value) != wanted:
            raise ShapeError(f"parameter {name!r} is given {np.shape(value)}, but is {wanted}")
        self.arrays[name][...] = value
        for variable in self.copies.keys() & made.shards.keys():
            if made.shards[variable].parameter == name:
                self.copies[variable][...] = value

    def save_states(self, path: str, made: Plan) -> None:
        """Write the optimizer's arrays, whole, by parameter and slot, and the counts."""
        found: dict[str, Array] = {}
        for slot in self.wanted_optimizer.slots():
            own = {name: state[slot] for name, state in self.states.items()}
            found |= {f"{name}/{slot}": array for name, array in join(made.shards, own).items()}
        save_params(path, found, {UPDATES: np.array([self.updates, self.steps])})

    def load_states(self, path: str, made: Plan) -> None:
        """Go on with what `save_states` wrote; ConfigError if it lacks something."""
        arrays, counts = load_params(path)
        if UPDATES not in counts:
            raise ConfigError(f"{path} holds no optimizer's states")
        updates, steps = map(int, counts[UPDATES])
        trained = [name for name in made.grads if name not in made.feeds]
        for name in trained if updates else ():
            shard = made.shards.get(name)
            state = {}
            for slot in self.wanted_optimizer.slots():
                key = f"{shard.parameter if shard else name}/{slot}"
                if key not in arrays:
                    raise ConfigError(f"{path} has no {key!r}; {nearest(key, arrays)}")
                state[slot] = (shard.of(arrays[key]) if shard else arrays[key]).copy()
            self.states[name] = state
        self.updates, self.steps = updates, steps

    @property
    def wanted_optimizer(self) -> Optimizer:
        """The optimizer; RunError if there is none yet."""
        if self.optimizer is None:
            raise RunError("there is no optimizer yet: call init_optimizer")
        return self.optimizer
