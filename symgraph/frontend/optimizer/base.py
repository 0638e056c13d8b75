"""The base of all optimizers: settings, rates, and MXNet's calls for one weight at a time."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar

import numpy as np

from symgraph.core.errors import ConfigError, GraphError
from symgraph.core.number_checks import require_numbers
from symgraph.core.tags import lookup
from symgraph.core.types import Array
from symgraph.frontend.lr_scheduler import LRScheduler, with_base_lr
from symgraph.frontend.ndarray import viewed

_ONE_AT_A_TIME = threading.Lock()  # for the counts of an optimizer that several ranks share


class ScheduledRate(ConfigError, UserWarning):
    """A learning rate is set though a scheduler gives it; MXNet raises UserWarning."""


@dataclass
class Optimizer:
    """Base class of optimizers, with the settings common to all (`mx.optimizer.Optimizer`).

    An optimizer of one's own implements MXNet's `create_state` and `update`:

        class Descent(Optimizer):
            def create_state(self, index, weight):
                return mx.nd.zeros(weight.shape)       # None, an array, or a tuple of arrays

            def update(self, index, weight, grad, state):
                self._update_count(index)
                state[:] = 0.9 * state + self.rescale_grad * grad
                weight[:] -= self._get_lr(index) * state

    Sessions call them with arrays of `mx.nd` (on a GPU with CuPy's), and with the parameter's name
    for the index.
    `Rule` is for those that are formulas of single elements.

    Raises ConfigError for settings out of range.
    """

    DEFAULT_RATE: ClassVar[float] = 0.01
    #: Whether the float32 copy of multi_precision is last in a state, as in MXNet's of some.
    COPY_LAST: ClassVar[bool] = False

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
    #: The number of updates before the first one.
    begin_num_update: int = 0
    #: Whether `update_multi_precision` keeps float32 copies of float16 weights. Networks here have
    #: float32 parameters with any `precision=`, so only direct calls need it.
    multi_precision: bool = False
    #: The names of parameters by the index that `update` gets.
    param_idx2name: Mapping[Any, str] | None = field(default=None, repr=False)
    #: The network, whose variables have `lr_mult` and `wd_mult`; needed for direct calls only.
    sym: Any = field(default=None, repr=False, compare=False)

    #: The learning rate that was given, or set since.
    _rate: float | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_numbers(self, ConfigError)
        self._check("wd", self.wd, math.inf)
        self._check("begin_num_update", self.begin_num_update, math.inf)
        if self.clip_gradient is not None:
            self._check("clip_gradient", self.clip_gradient, math.inf, above=True)
        rate = self._rate
        if rate is not None:
            self._check("learning_rate", rate, math.inf)
        if self.lr_scheduler is not None:
            self.lr_scheduler = with_base_lr(self.lr_scheduler, rate)
        elif rate is None:
            self._rate = self.DEFAULT_RATE
        self.idx2name = dict(self.param_idx2name or {})
        self.lr_mult: dict[Any, float] = {}
        self.wd_mult: dict[Any, float] = {}
        self.num_update = self.begin_num_update
        self._index_update_count: dict[Any, int] = {}
        self._attributes = {} if self.sym is None else self.sym.attr_dict()

    def __getstate__(self) -> dict[str, Any]:
        """Return what pickle and copy keep: all but the network."""
        return {**vars(self), "sym": None}

    # -- rates -------------------------------------------------------------------------------

    @property
    def lr(self) -> float | None:
        """The learning rate without a scheduler; it may be set between updates.

        Raises ConfigError for a rate out of range, and if there is a scheduler.
        """
        return self._rate

    @lr.setter
    def lr(self, rate: float) -> None:
        if self.lr_scheduler is not None:
            raise ScheduledRate(
                f"{type(self).__name__}: the learning rate is its lr_scheduler's; set lr_scheduler "
                "to None first"
            )
        self._check("learning_rate", rate, math.inf)
        self._rate = float(rate)

    def set_learning_rate(self, lr: float) -> None:
        """Set `lr` (`mx.optimizer.Optimizer.set_learning_rate`)."""
        self.lr = lr

    def set_lr_mult(self, args_lr_mult: Mapping[Any, float]) -> None:
        """Set factors of the learning rate by parameter; they replace variables' `lr_mult`."""
        self.lr_mult = dict(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Mapping[Any, float]) -> None:
        """Set factors of the weight decay by parameter; they replace variables' `wd_mult`."""
        self.wd_mult = dict(args_wd_mult)

    def rates(self, name: str, update_count: int, attrs: Mapping[str, str]) -> tuple[float, float]:
        """Return (learning rate, weight decay) of a parameter, with its `lr_mult` and `wd_mult`.

        The default of wd_mult is 1 for names that end in `_weight` or `_gamma`, and 0 for others.
        """
        if self.lr_scheduler is not None:
            rate = _scheduled(self.lr_scheduler, update_count)
        else:
            rate = self.DEFAULT_RATE if self._rate is None else self._rate
        decays = name.endswith(("_weight", "_gamma"))
        by_rate, by_decay = self.lr_mult.get(name), self.wd_mult.get(name)
        if by_rate is None:
            by_rate = _multiplier(name, attrs, "lr_mult", 1.0)
        if by_decay is None:
            by_decay = _multiplier(name, attrs, "wd_mult", 1.0 if decays else 0.0)
        return float(rate * by_rate), float(self.wd * by_decay)

    # -- what sessions call ------------------------------------------------------------------

    @property
    def by_element(self) -> bool:
        """Whether an element's update depends on that element alone, not on a norm, say.

        Then parts of a parameter may be updated in different places. A subclass may say so by
        `by_element = True`.
        """
        return False

    def slots(self) -> tuple[str, ...]:
        """Return the names of the arrays in a weight's state."""
        return tuple(f"state{number}" for number, _ in enumerate(_leaves(self._probe())))

    def _probe(self) -> Any:
        """Return a state, whose form is that of every state."""
        return self.create_state("probe_weight", viewed(np.zeros(1, np.float32)))

    def state(self, name: str, weight: Array) -> dict[str, Array]:
        """Return the first state of a weight: its arrays by slot."""
        leaves = _leaves(self.create_state(name, viewed(weight)))
        return {
            slot: np.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
            for slot, leaf in zip(self.slots(), leaves, strict=True)
        }

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
        """
        leaves = map(viewed, state.values())
        with _ONE_AT_A_TIME:
            self._attributes[name] = attrs
            self._index_update_count[name] = update_count - 1
            made = _filled(self._probe(), leaves)
            self.update(name, viewed(weight), viewed(grad * scale), made)

    # -- MXNet's calls -----------------------------------------------------------------------

    def create_state(self, index: Any, weight: Any) -> Any:
        """Return the first state of a weight: None, an array, or a tuple of these (MXNet)."""
        return None

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update a weight and its state in place (`mx.optimizer.Optimizer.update`).

        Args:
            index: the parameter's index or name.
            weight: the weight.
            grad: its gradient.
            state: what `create_state` returned.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no update(index, weight, grad, state)"
        )

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """Return `create_state`; with multi_precision, a float32 copy of a float16 weight too."""
        if not self._keeps_copy(weight):
            return self.create_state(index, weight)
        copy = weight.astype("float32")
        inner = self.create_state(index, copy)
        return (inner, copy) if self.COPY_LAST else (copy, inner)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Call `update`, on the copy that `create_state_multi_precision` has made if it has.

        Several weights, gradients and states may be given, with a list of their indices.
        """
        if isinstance(index, (list, tuple)):
            for one in zip(index, weight, grad, state, strict=True):
                self.update_multi_precision(*one)
            return
        if not self._keeps_copy(weight):
            self.update(index, weight, grad, state)
            return
        copy, inner = reversed(state) if self.COPY_LAST else state
        self.update(index, copy, grad.astype("float32"), inner)
        weight[:] = copy.astype("float16")

    def _keeps_copy(self, weight: Any) -> bool:
        return self.multi_precision and np.dtype(weight.dtype) == np.float16

    def _update_count(self, index: Any) -> None:
        """Count an update of a parameter, or of several."""
        for one in index if isinstance(index, (list, tuple)) else [index]:
            count = self._index_update_count.get(one, self.begin_num_update) + 1
            self._index_update_count[one] = count
            self.num_update = max(count, self.num_update)

    def _get_lr(self, index: Any) -> float:
        """Return the learning rate of a parameter's current update."""
        return self._rates_of(index)[0]

    def _get_wd(self, index: Any) -> float:
        """Return the weight decay of a parameter; one without a name counts as a weight."""
        return self._rates_of(index)[1]

    def _get_lrs(self, indices: Sequence[Any]) -> list[float]:
        return [self._get_lr(index) for index in indices]

    def _get_wds(self, indices: Sequence[Any]) -> list[float]:
        return [self._get_wd(index) for index in indices]

    def _rates_of(self, index: Any) -> tuple[float, float]:
        count = self._index_update_count.get(index, self.num_update)
        return self.rates(self._name_of(index), count, self._attributes_of(index))

    def _name_of(self, index: Any) -> str:
        return str(self.idx2name.get(index, index))

    def _attributes_of(self, index: Any) -> Mapping[str, str]:
        """Return a parameter's attributes, with factors that are set by its index."""
        named = isinstance(index, str) or index in self.idx2name
        found = dict(self._attributes.get(self._name_of(index), {} if named else {"wd_mult": "1"}))
        for key, factors in (("lr_mult", self.lr_mult), ("wd_mult", self.wd_mult)):
            if index in factors and not isinstance(index, str):
                found = {k: v for k, v in found.items() if key not in k}
                found[key] = str(factors[index])
        return found

    def _check(self, name: str, value: float, below: float, above: bool = False) -> None:
        if not (0.0 < value < below if above else 0.0 <= value < below):
            low = "above 0" if above else "0 or more"
            high = "" if math.isinf(below) else f" and below {below}"
            raise ConfigError(f"{type(self).__name__}: {name} is {value} but must be {low}{high}")


def _current_rate(optimizer: Optimizer) -> float | None:
    """The learning rate now: the scheduler's for the last update, or the one that is set."""
    if optimizer.lr_scheduler is not None and hasattr(optimizer, "num_update"):
        return float(optimizer.lr_scheduler(optimizer.num_update))
    return optimizer._rate


def _scheduled(schedule: LRScheduler, update_count: int) -> float:
    """The rate of an update by a schedule; ConfigError for what is no rate."""
    given: Any = schedule(update_count)
    try:
        rate = float(given)
    except (TypeError, ValueError):
        rate = math.nan
    if not 0.0 <= rate < math.inf:
        raise ConfigError(
            f"lr_scheduler gave {given!r} for update {update_count}: it must return a number, 0 or "
            "more"
        )
    return rate


def _set_first_rate(optimizer: Optimizer, rate: float | None) -> None:
    optimizer._rate = rate


# The argument of the constructor is the first rate; the attribute is the current one, as in MXNet.
Optimizer.learning_rate = property(_current_rate, _set_first_rate)  # type: ignore[assignment]


def _leaves(state: Any) -> Iterator[Array]:
    """Yield the arrays of a state."""
    if isinstance(state, (tuple, list)):
        for part in state:
            yield from _leaves(part)
    elif state is not None:
        yield state


def _filled(state: Any, leaves: Iterator[Array]) -> Any:
    """Return a state of the same form with other arrays."""
    if isinstance(state, (tuple, list)):
        return type(state)(_filled(part, leaves) for part in state)
    return None if state is None else next(leaves)


def _multiplier(name: str, attrs: Mapping[str, str], key: str, default: float) -> float:
    text = lookup(attrs, key)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise GraphError(f"{key} of parameter {name!r} is {text!r}, not a number") from None
