"""Learning-rate schedules: the rate as a function of how many updates there have been.

Arguments and results are those of MXNet 1.9's classes called with 1, 2, 3, ... But these keep no
state, so a resumed run, or another rank, gets the same rate from the same number.
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


class LRScheduler(ABC):
    """A schedule with an optional warm-up over its first `warmup_steps` updates.

    Warm-up goes from `warmup_begin_lr` towards `base_lr` in equal steps ("linear") or stays at
    `warmup_begin_lr` ("constant"). Raises ConfigError for arguments that make no schedule.
    """

    base_lr: float
    warmup_steps: int
    warmup_begin_lr: float
    warmup_mode: str

    def __post_init__(self) -> None:
        require_numbers(self, ConfigError)
        self._require(self.base_lr >= 0, "base_lr", self.base_lr, "0 or more")
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
        """The rate of update number `num_update`; the first is number 1."""
        if num_update >= self.warmup_steps:
            return self.decayed(num_update)
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        rise = (self.base_lr - self.warmup_begin_lr) * num_update / self.warmup_steps
        return self.warmup_begin_lr + rise

    @abstractmethod
    def decayed(self, num_update: int) -> float:
        """The rate when no warm-up is going on."""

    def rebased(self, base_lr: float) -> Self:
        """The same schedule from another `base_lr`."""
        other = copy.copy(self)
        object.__setattr__(other, "base_lr", base_lr)
        other.__post_init__()
        return other

    def _require(self, holds: bool, name: str, value: object, wanted: str) -> None:
        if not holds:
            raise ConfigError(f"{type(self).__name__}: {name} is {value!r} but must be {wanted}")


def based(schedule: LRScheduler, base_lr: float | None) -> LRScheduler:
    """The schedule, or a function of the update's number; from another `base_lr` if one is given.

    Raises ConfigError for what is neither, and for a function that a `base_lr` means nothing to.
    """
    if not callable(schedule):
        raise ConfigError(f"lr_scheduler must be one of symgraph.lr_scheduler, not {schedule!r}")
    if base_lr is None:
        return schedule
    if not isinstance(schedule, LRScheduler):
        raise ConfigError(
            f"learning_rate is the base_lr of a schedule, but lr_scheduler is {schedule!r}: leave "
            "learning_rate out"
        )
    return schedule.rebased(base_lr)


@dataclass(frozen=True)
class FactorScheduler(LRScheduler):
    """base_lr * factor ** ((num_update - 1) // step), never below `stop_factor_lr`."""

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


@dataclass(frozen=True)
class MultiFactorScheduler(LRScheduler):
    """base_lr * factor ** (how many entries of the list `step` are below num_update)."""

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


class _Descent(LRScheduler):
    """final_lr + (base_lr - final_lr) * height(x).

    x goes from 0 at the end of the warm-up to 1 at update number `max_update` and stays there.
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
        """What is left of the way down at x: from 1 at 0 to 0 at 1."""


@dataclass(frozen=True)
class PolyScheduler(_Descent):
    """From base_lr to final_lr along (1 - x) ** pwr, ending at update `max_update`."""

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


@dataclass(frozen=True)
class CosineScheduler(_Descent):
    """From base_lr to final_lr along (1 + cos(pi * x)) / 2, ending at update `max_update`."""

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
    """The schedule of that kind; ConfigError for an unknown kind or argument."""
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
