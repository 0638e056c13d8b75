"""Optimizers: update rules of weights, and clipping of gradients by their global norm.

The equations, arguments and defaults are MXNet 1.9's. An optimizer holds settings only. Its state
of a weight is a dict of named arrays, made by `state` and passed to `update`, so a checkpoint can
hold it and any rank can own it.

In the equations, w is the weight, g = scale * rescale_grad * grad, lr and wd are the learning rate
and the weight decay after their multipliers, and clip(x) limits x to [-clip_gradient,
clip_gradient] if clip_gradient is set.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from inspect import signature
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from symgraph.core.errors import ConfigError, DTypeError, GraphError, RunError, ShapeError, nearest
from symgraph.core.number_checks import require_numbers
from symgraph.core.tags import lookup
from symgraph.frontend.lr_scheduler import LRScheduler, with_base_lr

# Elements processed at a time: operands stay in the cache, and scratch arrays are small. It also
# fixes the order of addition of `sum_of_squares`.
BLOCK = 1 << 16

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Optimizer(ABC):
    """Base class of optimizers, with the settings common to all (`mx.optimizer.Optimizer`).

    Raises ConfigError for settings out of range.
    """

    DEFAULT_RATE: ClassVar[float] = 0.01

    #: The learning rate; it replaces the `base_lr` of a scheduler. None: the scheduler's, or else
    #: DEFAULT_RATE.
    learning_rate: float | None = None
    _: KW_ONLY
    #: Weight decay.
    wd: float = 0.0
    #: The learning rate as a function of the update's number.
    lr_scheduler: LRScheduler | None = None
    #: Factor of all gradients.
    rescale_grad: float = 1.0
    #: Limit of each element of a gradient; for the norm of all see `global_norm_scale`.
    clip_gradient: float | None = None

    def __post_init__(self) -> None:
        require_numbers(self, ConfigError)
        self._check("wd", self.wd, math.inf)
        if self.clip_gradient is not None:
            self._check("clip_gradient", self.clip_gradient, math.inf, above=True)
        if self.learning_rate is not None:
            self._check("learning_rate", self.learning_rate, math.inf)
        if self.lr_scheduler is not None:
            object.__setattr__(
                self, "lr_scheduler", with_base_lr(self.lr_scheduler, self.learning_rate)
            )

    def state(self, name: str, weight: Array) -> dict[str, Array]:
        """Return the first state of a weight: zeros like it, by slot; empty for plain descent.

        Raises DTypeError unless the weight is a float array.
        """
        if not np.issubdtype(weight.dtype, np.floating):
            raise DTypeError(f"parameter {name!r} is {weight.dtype}, but only floats are trained")
        zeros = {slot: weight.copy() for slot in self.slots()}
        for array in zeros.values():
            array.fill(0)
        return zeros

    def rates(self, name: str, update_count: int, attrs: Mapping[str, str]) -> tuple[float, float]:
        """Return (learning rate, weight decay) of a parameter, with its `lr_mult` and `wd_mult`.

        The default of wd_mult is 1 for names that end in `_weight` or `_gamma`, and 0 for others.
        """
        if self.lr_scheduler is not None:
            rate = self.lr_scheduler(update_count)
        else:
            rate = self.DEFAULT_RATE if self.learning_rate is None else self.learning_rate
        decays = name.endswith(("_weight", "_gamma"))
        return (
            float(rate * _multiplier(name, attrs, "lr_mult", 1.0)),
            float(self.wd * _multiplier(name, attrs, "wd_mult", 1.0 if decays else 0.0)),
        )

    def update(
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
        """Update a weight and its state in place; the gradient does not change.

        Args:
            xp: numpy or CuPy.
            name: the parameter's name.
            weight: the weight, C-contiguous.
            grad: its gradient.
            state: its state, made by `state`; the arrays are C-contiguous.
            update_count: number of the update, from 1.
            scale: factor of the gradient, such as that of `global_norm_scale`.
            attrs: the variable's attributes, with `lr_mult` and `wd_mult`.

        Raises:
            ShapeError, DTypeError: unless all arrays have one shape and dtype.
            GraphError: if an array is not contiguous, or the state is another optimizer's.
        """
        self.check(name, weight, grad, state, update_count)
        lr, wd = self.step_rates(name, update_count, attrs)
        factor = float(
            scale * self.rescale_grad
        )  # a numpy scalar could change the dtype of the product
        flat_weight, flat_grad = weight.reshape(-1), grad.reshape(-1)
        flat_state = {slot: array.reshape(-1) for slot, array in state.items()}
        block = BLOCK if xp is np else max(1, weight.size)  # one call per operation on a GPU
        scratch = xp.empty((2, min(block, weight.size)), dtype=weight.dtype)
        for start in range(0, weight.size, block):
            part = slice(start, start + block)
            w = flat_weight[part]
            g, spare = scratch[:, : w.size]
            xp.multiply(flat_grad[part], factor, out=g)
            self._decay_and_clip(xp, w, g, wd, spare)
            self._step(xp, w, g, {slot: a[part] for slot, a in flat_state.items()}, lr, spare)

    def check(
        self, name: str, weight: Array, grad: Array, state: Mapping[str, Array], update_count: int
    ) -> None:
        """Check the arguments of `update`; raise its errors."""
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

    @property
    def by_element(self) -> bool:
        """Whether an element's update depends on that element alone, not on a norm, say.

        Then parts of a parameter may be updated in different places. A rule with an `update` of its
        own has to say so.
        """
        return type(self).update is Optimizer.update

    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """Return the names of the arrays in a weight's state."""

    @abstractmethod
    def _step(
        self, xp: ModuleType, w: Array, g: Array, s: dict[str, Array], lr: float, spare: Array
    ) -> None:
        """Update a block of w and s in place; g (with the decay) and spare are scratch."""

    def _correction(self, update_count: int) -> float:
        """Return the factor of the learning rate at an update."""
        return 1.0

    def _decay_and_clip(self, xp: ModuleType, w: Array, g: Array, wd: float, spare: Array) -> None:
        """Set g to clip(g + wd * w)."""
        _add_product(xp, g, w, wd, spare)
        self._clip(xp, g)

    def _clip(self, xp: ModuleType, g: Array) -> None:
        if self.clip_gradient is not None:
            xp.clip(g, -self.clip_gradient, self.clip_gradient, out=g)

    def _check(self, name: str, value: float, below: float, above: bool = False) -> None:
        if not (0.0 < value < below if above else 0.0 <= value < below):
            low = "above 0" if above else "0 or more"
            high = "" if math.isinf(below) else f" and below {below}"
            raise ConfigError(f"{type(self).__name__}: {name} is {value} but must be {low}{high}")


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with momentum (`mx.optimizer.SGD`).

    mom = momentum * mom - lr * (clip(g) + wd * w);  w = w + mom
    """

    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("momentum", self.momentum, 1.0)

    def slots(self) -> tuple[str, ...]:
        return ("mom",) if self.momentum else ()

    def _decay_and_clip(self, xp: ModuleType, w: Array, g: Array, wd: float, spare: Array) -> None:
        """Set g to clip(g) + wd * w."""
        self._clip(xp, g)
        _add_product(xp, g, w, wd, spare)

    def _step(
        self, xp: ModuleType, w: Array, g: Array, s: dict[str, Array], lr: float, spare: Array
    ) -> None:
        g *= lr
        if not self.momentum:
            w -= g
            return
        mom = s["mom"]
        mom *= self.momentum
        mom -= g
        w += mom


@dataclass(frozen=True)
class NAG(SGD):
    """Nesterov's accelerated gradient (`mx.optimizer.NAG`).

    d = lr * (clip(g) + wd * w);  mom = momentum * mom - d;  w = w + momentum * mom - d
    """

    def _step(
        self, xp: ModuleType, w: Array, g: Array, s: dict[str, Array], lr: float, spare: Array
    ) -> None:
        g *= lr
        w -= g
        if self.momentum:
            mom = s["mom"]
            mom *= self.momentum
            mom -= g
            _add_product(xp, w, mom, self.momentum, spare)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (`mx.optimizer.Adam`; Kingma and Ba, arXiv:1412.6980); t is the number of the update.

    d = clip(g + wd * w);  mean = beta1 * mean + (1 - beta1) * d
    var = beta2 * var + (1 - beta2) * d**2
    w = w - lr * sqrt(1 - beta2**t) / (1 - beta1**t) * mean / (sqrt(var) + epsilon)
    """

    DEFAULT_RATE: ClassVar[float] = 0.001

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("beta1", self.beta1, 1.0)
        self._check("beta2", self.beta2, 1.0)
        self._check("epsilon", self.epsilon, math.inf, above=True)

    def slots(self) -> tuple[str, ...]:
        return ("mean", "var")

    def _correction(self, update_count: int) -> float:
        return math.sqrt(1.0 - self.beta2**update_count) / (1.0 - self.beta1**update_count)

    def _step(
        self, xp: ModuleType, w: Array, g: Array, s: dict[str, Array], lr: float, spare: Array
    ) -> None:
        mean, var = s["mean"], s["var"]
        mean *= self.beta1
        _add_product(xp, mean, g, 1.0 - self.beta1, spare)
        g *= g
        var *= self.beta2
        _add_product(xp, var, g, 1.0 - self.beta2, spare)
        xp.sqrt(var, out=spare)
        spare += self.epsilon
        xp.divide(mean, spare, out=g)
        g *= lr
        w -= g


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """RMSProp (`mx.optimizer.RMSProp`): Tieleman and Hinton's, or Graves's if `centered`.

    d = clip(g + wd * w);  n = gamma1 * n + (1 - gamma1) * d**2
    plain:     w = w - lr * d / sqrt(n + epsilon)
    centered:  mean = gamma1 * mean + (1 - gamma1) * d
               delta = gamma2 * delta - lr * d / sqrt(max(n - mean**2, 0) + epsilon)
               w = w + delta                      (arXiv:1308.0850, equations 38 to 45)

    Without the max(), as in MXNet, a steady gradient rounds the variance below zero: nan.
    """

    DEFAULT_RATE: ClassVar[float] = 0.001

    gamma1: float = 0.9
    gamma2: float = 0.9
    epsilon: float = 1e-8
    centered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("gamma1", self.gamma1, 1.0)
        self._check("gamma2", self.gamma2, 1.0)
        self._check("epsilon", self.epsilon, math.inf, above=True)

    def slots(self) -> tuple[str, ...]:
        return ("n", "mean", "delta") if self.centered else ("n",)

    def _step(
        self, xp: ModuleType, w: Array, g: Array, s: dict[str, Array], lr: float, spare: Array
    ) -> None:
        n = s["n"]
        n *= self.gamma1
        xp.multiply(g, g, out=spare)
        spare *= 1.0 - self.gamma1
        n += spare
        if self.centered:
            mean = s["mean"]
            mean *= self.gamma1
            _add_product(xp, mean, g, 1.0 - self.gamma1, spare)
            xp.multiply(mean, mean, out=spare)
            xp.subtract(n, spare, out=spare)
            xp.maximum(spare, 0.0, out=spare)
            spare += self.epsilon
        else:
            xp.add(n, self.epsilon, out=spare)
        xp.sqrt(spare, out=spare)
        g /= spare
        g *= lr
        if self.centered:
            delta = s["delta"]
            delta *= self.gamma2
            delta -= g
            w += delta
        else:
            w -= g


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "nag": NAG, "adam": Adam, "rmsprop": RMSProp}


def create(name: str, **settings: Any) -> Optimizer:
    """Make an optimizer by its name in any case (`mx.optimizer.create`).

    Raises ConfigError for an unknown name or setting.
    """
    rule = OPTIMIZERS.get(str(name).lower())
    if rule is None:
        raise ConfigError(f"unknown optimizer {name!r}: {nearest(str(name).lower(), OPTIMIZERS)}")
    accepted = signature(rule).parameters
    for word in settings:
        if word not in accepted:
            raise ConfigError(
                f"optimizer {name!r} has no setting {word!r}: {nearest(word, accepted)}"
            )
    return rule(**settings)


def sum_of_squares(xp: ModuleType, grad: Array) -> float:
    """Return the squared L2 norm of a gradient, added up in float64 in a fixed order."""
    flat = grad.reshape(-1)
    total = 0.0
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK].astype(xp.float64)
        block *= block
        total += float(block.sum())
    return total


def global_norm_scale(sum_of_squares: float, max_norm: float) -> float:
    """Return the factor of all gradients that limits their global L2 norm to max_norm.

    Args:
        sum_of_squares: over all parameters of all stages, each counted once.
        max_norm: the limit; a norm within it returns exactly 1.

    Raises:
        RunError: if the norm is not finite.
        ConfigError: if max_norm is not above 0.
    """
    if not max_norm > 0:
        raise ConfigError(f"the limit of the global norm is {max_norm} but must be above 0")
    if not math.isfinite(sum_of_squares):
        raise RunError(
            f"the sum of squares of all gradients is {sum_of_squares}: training has diverged; "
            f"lower the learning rate"
        )
    norm = math.sqrt(sum_of_squares)
    return 1.0 if norm <= max_norm else max_norm / norm


def _add_product(xp: ModuleType, total: Array, array: Array, factor: float, spare: Array) -> None:
    """Add factor * array to total; spare is scratch, other than both."""
    if factor:
        xp.multiply(array, factor, out=spare)
        total += spare


def _multiplier(name: str, attrs: Mapping[str, str], key: str, default: float) -> float:
    text = lookup(attrs, key)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise GraphError(f"{key} of parameter {name!r} is {text!r}, not a number") from None


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
