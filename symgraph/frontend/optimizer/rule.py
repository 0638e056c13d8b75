"""Update rules: formulas of a weight's elements, computed block by block.

In the equations of rules, w is the weight, g = scale * rescale_grad * grad, lr and wd are the
learning rate and the weight decay after their multipliers, t is the number of the update, and
clip(x) limits x to [-clip_gradient, clip_gradient] if clip_gradient is set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from symgraph.core.errors import DTypeError, GraphError, ShapeError
from symgraph.core.types import Array
from symgraph.frontend.optimizer.base import Optimizer

# Elements processed at a time: operands stay in the cache, and scratch arrays are small. It also
# fixes the order of addition of sums of squares.
BLOCK = 1 << 16
# Where the decay of the weight goes: into the gradient that is clipped, into the clipped one, or
# wherever the rule puts it.
CLIPPED, ADDED, APART = "clipped", "added", "apart"


class Now(NamedTuple):
    """The figures of one update of one parameter."""

    #: The learning rate, corrected for this update.
    lr: float
    #: The weight decay.
    wd: float
    #: The number of the update, from 1.
    t: int


class Block(NamedTuple):
    """The same elements of all arrays of an update, about to be changed in place."""

    #: The weight.
    w: Array
    #: The gradient: scratch, clipped and with the decay where the rule wants it.
    g: Array
    #: The state by slot.
    s: dict[str, Array]
    #: Scratch.
    spare: Array


class Rule(Optimizer, ABC):
    """An optimizer that computes each element from the same element of other arrays.

    It holds settings only. Its state of a weight is a dict of named arrays, made by `state` and
    passed to `apply`, so a checkpoint can hold it and any rank can own it. `update` and
    `create_state` are MXNet's calls of the same rule.
    """

    #: What is done with the decay before `_step`: CLIPPED, ADDED or APART.
    DECAY: ClassVar[str] = CLIPPED

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "create_state" in vars(cls):
            raise TypeError(
                f"{cls.__name__} has its own create_state, so it is another rule: derive it from "
                "mx.optimizer.Optimizer"
            )

    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """Return the names of the arrays in a weight's state."""

    @abstractmethod
    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        """Update a block of the weight and its state in place."""

    @property
    def by_element(self) -> bool:
        kind = type(self)
        return (kind.apply, kind.update, kind._compute) == (Rule.apply, Rule.update, Rule._compute)

    def state(self, name: str, weight: Array) -> dict[str, Array]:
        """Return the first state of a weight: zeros like it, by slot; empty for plain descent.

        Raises DTypeError unless the weight is a float array.
        """
        if not np.issubdtype(weight.dtype, np.floating):
            raise DTypeError(f"parameter {name!r} is {weight.dtype}, but only floats are trained")
        zeros = {slot: weight.copy() for slot in self.slots()}
        for array in zeros.values():
            array[...] = 0
        return zeros

    def apply(
        self,
        xp: ModuleType,
        name: str,
        weight: Array,
        grad: Array,
        state: Mapping[str, Array],
        update_count: int,
        scale: float = 1.0,
        attrs: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Update a weight and its state in place, as `Optimizer.apply`.

        Raises:
            ShapeError, DTypeError: unless all arrays have one shape and dtype.
            GraphError: if an array is not contiguous, or the state is another optimizer's.
        """
        if type(self).update is not Rule.update:  # a subclass's own, in MXNet's way
            super().apply(xp, name, weight, grad, state, update_count, scale, attrs)
            return
        self.check(name, weight, grad, state, update_count)
        lr, wd = self.step_rates(name, update_count, attrs)
        # A numpy scalar could change the dtype of the product.
        factor = float(scale * self.rescale_grad)
        self._compute(xp, name, (weight, grad, state), factor, Now(lr, wd, update_count))

    def _compute(
        self,
        xp: ModuleType,
        name: str,
        arrays: tuple[Array, Array, Mapping[str, Array]],
        factor: float,
        now: Now,
    ) -> None:
        """Update a weight, given with its gradient and state, whose gradient has this factor."""
        for _, block in self._blocks(xp, arrays, factor, now):
            self._step(xp, block, now)

    def _blocks(
        self,
        xp: ModuleType,
        arrays: tuple[Array, Array, Mapping[str, Array]],
        factor: float,
        now: Now,
    ) -> Iterator[tuple[int, Block]]:
        """Yield the blocks of a weight, its gradient and state, with the number of elements before.

        There is one block on a GPU, that is one call per operation.
        """
        weight, grad, state = arrays
        flat_weight, flat_grad = weight.reshape(-1), grad.reshape(-1)
        flat_state = {slot: array.reshape(-1) for slot, array in state.items()}
        size = BLOCK if xp is np else max(1, weight.size)
        scratch = xp.empty((2, min(size, weight.size)), dtype=weight.dtype)
        for start in range(0, weight.size, size):
            part = slice(start, start + size)
            w = flat_weight[part]
            g, spare = scratch[:, : w.size]
            xp.multiply(flat_grad[part], factor, out=g)
            block = Block(w, g, {slot: a[part] for slot, a in flat_state.items()}, spare)
            self._prepare(xp, block, now.wd)
            yield start, block

    def _prepare(self, xp: ModuleType, block: Block, wd: float) -> None:
        """Set g to clip(g + wd * w), to clip(g) + wd * w or to clip(g), as DECAY says."""
        if self.DECAY == CLIPPED:
            add_product(xp, block.g, block.w, wd, block.spare)
        self._clip(xp, block.g)
        if self.DECAY == ADDED:
            add_product(xp, block.g, block.w, wd, block.spare)

    def _clip(self, xp: ModuleType, g: Array) -> None:
        if self.clip_gradient is not None:
            xp.clip(g, -self.clip_gradient, self.clip_gradient, out=g)

    def check(
        self, name: str, weight: Array, grad: Array, state: Mapping[str, Array], update_count: int
    ) -> None:
        """Check the arguments of `apply`; raise its errors."""
        if set(state) != set(self.slots()):
            raise GraphError(
                f"the state of parameter {name!r} holds {sorted(state)} but {type(self).__name__} "
                f"needs {sorted(self.slots())}: it was made with other settings"
            )
        _check_arrays(name, weight, grad, state)
        if update_count < 1:
            raise GraphError(f"update_count of {name!r} is {update_count}: the first update is 1")

    def step_rates(
        self, name: str, update_count: int, attrs: Mapping[str, str]
    ) -> tuple[float, float]:
        """Return `rates`, with the learning rate corrected for this update (Adam's bias)."""
        rate, decay = self.rates(name, update_count, attrs)
        return rate * self._correction(update_count), decay

    def _correction(self, update_count: int) -> float:
        """Return the factor of the learning rate at an update."""
        return 1.0

    # -- MXNet's calls -----------------------------------------------------------------------

    def create_state(self, index: Any, weight: Any) -> Any:
        """Return zeros like the weight: None, one array, or a tuple of them (MXNet)."""
        arrays = tuple(self.state(self._name_of(index), weight).values())
        return arrays if len(arrays) > 1 else arrays[0] if arrays else None

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update a weight and its state in place, given as arrays of numpy or of `mx.nd`."""
        self._update_count(index)
        count, name = self._index_update_count[index], self._name_of(index)
        given = state if isinstance(state, (tuple, list)) else () if state is None else (state,)
        w, g, *arrays = map(np.asarray, (weight, grad, *given))  # on the same memory
        slots = dict(zip(self.slots(), arrays, strict=True))
        self.check(name, w, g, slots, count)
        lr, wd = self.step_rates(name, count, self._attributes_of(index))
        self._compute(np, name, (w, g, slots), float(self.rescale_grad), Now(lr, wd, count))


def add_product(xp: ModuleType, total: Array, array: Array, factor: float, spare: Array) -> None:
    """Add factor * array to total; spare is scratch, other than both."""
    if factor:
        xp.multiply(array, factor, out=spare)
        total += spare


def _check_arrays(name: str, weight: Array, grad: Array, state: Mapping[str, Array]) -> None:
    for what, array in (("grad", grad), *state.items()):
        if array.shape != weight.shape:
            raise ShapeError(
                f"parameter {name!r} is {weight.shape} but its {what} is {array.shape}"
            )
        if array.dtype != weight.dtype:
            raise DTypeError(f"parameter {name!r} is {weight.dtype} but its {what} {array.dtype}")
    for what, array in (("weight", weight), *state.items()):
        if not array.flags.c_contiguous:
            raise GraphError(
                f"{what} of parameter {name!r} is not C-contiguous, so it cannot be updated in "
                f"place: pass a copy and write it back"
            )
