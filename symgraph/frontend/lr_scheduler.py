"""Learning-rate schedules: the rate as a function of the number of the update.

Arguments and results are those of MXNet 1.9's `mx.lr_scheduler` called with 1, 2, 3, ... Schedules
here keep no state, so a resumed run, or another rank, gets the same rate for the same update.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Self

import numpy as np

from symgraph.core.errors import ConfigError, nearest
from symgraph.core.number_checks import require_numbers


class LRScheduler:
    """Base class of schedules (`mx.lr_scheduler.LRScheduler`).

    A schedule of one's own implements `decayed`, or `__call__` for all updates.

    Raises ConfigError for arguments out of range.
    """

    #: Learning rate after the warm-up, before any decay.
    base_lr: float
    #: Updates of the warm-up; 0: none.
    warmup_steps: int
    #: Learning rate at the start of the warm-up.
    warmup_begin_lr: float
    #: "linear" rises to base_lr in equal steps, "constant" stays at warmup_begin_lr.
    warmup_mode: str

    def __init__(
        self,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0.0,
        warmup_mode: str = "linear",
    ) -> None:
        self.base_lr, self.warmup_steps = base_lr, warmup_steps
        self.warmup_begin_lr, self.warmup_mode = warmup_begin_lr, warmup_mode
        self.__post_init__()

    def __post_init__(self) -> None:
        require_numbers(self, ConfigError)
        for name in ("base_lr", "warmup_begin_lr", "stop_factor_lr", "final_lr"):
            rate = getattr(self, name, 0.0)
            self._require(rate >= 0, name, rate, "0 or more")
        self._require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 or more")
        self._require(
            self.warmup_begin_lr <= self.base_lr,
            "warmup_begin_lr",
            self.warmup_begin_lr,
            f"no more than base_lr ({self.base_lr})",
        )
        self._require(
            self.warmup_mode in ("linear", "constant"),
            "warmup_mode",
            self.warmup_mode,
            "'linear' or 'constant'",
        )

    def __call__(self, num_update: int) -> float:
        """Return the learning rate of update `num_update`; the first update is number 1."""
        if num_update >= self.warmup_steps:
            return self.decayed(num_update)
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        rise = (self.base_lr - self.warmup_begin_lr) * num_update / self.warmup_steps
        return self.warmup_begin_lr + rise

    def decayed(self, num_update: int) -> float:
        """Return the learning rate of an update after the warm-up."""
        raise NotImplementedError(f"{type(self).__name__} has neither decayed nor __call__")

    def with_base_lr(self, base_lr: float) -> Self:
        """Return the same schedule with another `base_lr`."""
        other = copy.copy(self)
        other.base_lr = base_lr
        other.__post_init__()
        return other

    def _require(self, holds: bool, name: str, value: object, wanted: str) -> None:
        if not holds:
            raise ConfigError(f"{type(self).__name__}: {name} is {value!r} but must be {wanted}")


def with_base_lr(schedule: LRScheduler, base_lr: float | None) -> LRScheduler:
    """Return the schedule with this `base_lr`, or unchanged for None.

    A function of the update's number is accepted too, but only without a `base_lr`. Raises
    ConfigError for anything else.
    """
    if not callable(schedule):
        raise ConfigError(f"lr_scheduler must be one of symgraph.lr_scheduler, not {schedule!r}")
    if base_lr is None:
        return schedule
    if not isinstance(schedule, LRScheduler):
        raise ConfigError(
            f"learning_rate sets the base_lr of a schedule, but lr_scheduler is {schedule!r}: "
            "omit learning_rate"
        )
    return schedule.with_base_lr(base_lr)


@dataclass
class FactorScheduler(LRScheduler):
    """base_lr * factor ** ((num_update - 1) // step), but at least `stop_factor_lr` (MXNet).

    Raises ConfigError unless step >= 1 and 0 < factor <= 1.
    """

    step: int
    factor: float = 1.0
    stop_factor_lr: float = 1e-8
    base_lr: float = 0.01
    warmup_steps: int = 0
    warmup_begin_lr: float = 0.0
    warmup_mode: str = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.step >= 1, "step", self.step, "1 or more")
        self._require(0 < self.factor <= 1, "factor", self.factor, "above 0 and no more than 1")

    def decayed(self, num_update: int) -> float:
        times = max(num_update - 1, 0) // self.step
        if times == 0:
            return self.base_lr
        return max(self.base_lr * self.factor**times, self.stop_factor_lr)


@dataclass
class MultiFactorScheduler(LRScheduler):
    """base_lr * factor ** (number of entries of `step` below num_update) (MXNet).

    Raises ConfigError unless `step` is a rising list of whole numbers above 0, and 0 < factor <= 1.
    """

    step: Sequence[int]
    factor: float = 1.0
    base_lr: float = 0.01
    warmup_steps: int = 0
    warmup_begin_lr: float = 0.0
    warmup_mode: str = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        step = np.asarray(self.step)
        listed = step.ndim == 1 and step.size > 0 and step.dtype.kind in "iuf"
        rising = listed and step[0] > 0 and bool((np.diff(step) > 0).all())
        whole = rising and bool((step == np.floor(step)).all())
        self._require(whole, "step", self.step, "a rising list of whole numbers > 0")
        self._require(0 < self.factor <= 1, "factor", self.factor, "above 0 and no more than 1")

    def decayed(self, num_update: int) -> float:
        return self.base_lr * self.factor ** bisect_left(self.step, num_update)


class _Descent(LRScheduler, ABC):
    """final_lr + (base_lr - final_lr) * height(x).

    x rises from 0 at the end of the warm-up to 1 at update `max_update`, and stays 1.
    """

    max_update: int
    final_lr: float

    def __post_init__(self) -> None:
        super().__post_init__()
        least = self.warmup_steps + 1
        self._require(
            self.max_update >= least,
            "max_update",
            self.max_update,
            f"{least} or more (warmup_steps + 1)",
        )

    def decayed(self, num_update: int) -> float:
        decay = min(num_update, self.max_update) - self.warmup_steps
        x = decay / (self.max_update - self.warmup_steps)
        return self.final_lr + (self.base_lr - self.final_lr) * self.height(x)

    @abstractmethod
    def height(self, x: float) -> float:
        """Return the share of the descent that is left at x: 1 at x = 0, 0 at x = 1."""


@dataclass
class PolyScheduler(_Descent):
    """Descend from base_lr to final_lr along (1 - x) ** pwr, until update `max_update` (MXNet)."""

    max_update: int
    base_lr: float = 0.01
    pwr: float = 2
    final_lr: float = 0.0
    warmup_steps: int = 0
    warmup_begin_lr: float = 0.0
    warmup_mode: str = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.pwr > 0, "pwr", self.pwr, "above 0")

    def height(self, x: float) -> float:
        return math.pow(1.0 - x, self.pwr)


@dataclass
class CosineScheduler(_Descent):
    """Descend from base_lr to final_lr along (1 + cos(pi * x)) / 2, until `max_update` (MXNet)."""

    max_update: int
    base_lr: float = 0.01
    final_lr: float = 0.0
    warmup_steps: int = 0
    warmup_begin_lr: float = 0.0
    warmup_mode: str = "linear"

    def height(self, x: float) -> float:
        return (1.0 + math.cos(math.pi * x)) / 2.0


SCHEDULERS: dict[str, type[LRScheduler]] = {
    "factor": FactorScheduler,
    "multi_factor": MultiFactorScheduler,
    "poly": PolyScheduler,
    "cosine": CosineScheduler,
}


def create(kind: str, **arguments: Any) -> LRScheduler:
    """Make a schedule of a kind of SCHEDULERS; ConfigError for an unknown kind or argument."""
    if kind not in SCHEDULERS:
        raise ConfigError(f"unknown lr_scheduler {kind!r}: {nearest(kind, SCHEDULERS)}")
    accepted = signature(SCHEDULERS[kind])
    try:
        accepted.bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"lr_scheduler {kind!r}: {error} (it takes {', '.join(accepted.parameters)})"
        ) from None
    return SCHEDULERS[kind](**arguments)
