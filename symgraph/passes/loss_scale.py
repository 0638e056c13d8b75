"""Loss scaling: gradients are multiplied from the heads on, so that small ones do not vanish.

float16 has no number between 0 and 6e-8, where many gradients of activations lie. A loss's own
gradient is multiplied by the scale, and so are all gradients; the update divides those of
parameters, which are float32, by it. A dynamic scale is as large as possible: a step in which a
gradient overflows is skipped and the scale halved; after many good steps the scale is doubled.

Source: Micikevicius et al. 2018, "Mixed precision training", section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from symgraph.core.errors import ConfigError, RunError

AUTO = "auto"
FIRST, LARGEST = 2.0**16, 2.0**24
PATIENCE = 2000  # good steps in a row before the scale is doubled


@dataclass(frozen=True)
class LossScale:
    """A loss scale."""

    value: float = 1.0
    dynamic: bool = False
    #: Good steps in a row, if it is dynamic.
    good: int = 0

    @classmethod
    def of(cls, precision: str, given: float | str) -> LossScale:
        """Return the scale that the user asks for.

        Args:
            precision: The precision of activations.
            given: A number, or "auto": dynamic for float16, otherwise 1, since other dtypes have
                the range of float32.

        Raises:
            ConfigError: `given` is neither "auto" nor a positive number.
        """
        if given == AUTO:
            return cls(FIRST, dynamic=True) if precision == "float16" else cls()
        if not isinstance(given, int | float | np.number) or not 0 < given < math.inf:
            raise ConfigError(f"loss_scale is {given!r} but must be auto or a number above 0")
        return cls(float(given))

    @property
    def scales(self) -> bool:
        """Whether gradients are multiplied by anything but 1."""
        return self.dynamic or self.value != 1.0

    @property
    def progress(self) -> dict[str, float]:
        """The state that a checkpoint holds: nothing if the scale is fixed."""
        return {"loss_scale": self.value, "good_steps": self.good} if self.dynamic else {}

    def resumed(self, about: Mapping[str, Any]) -> LossScale:
        """Return the scale of a checkpoint's `progress`, if both are dynamic."""
        if not self.dynamic or "loss_scale" not in about:
            return self
        return replace(self, value=about["loss_scale"], good=about["good_steps"])

    def after(self, finite: bool) -> LossScale:
        """Return the scale of the next step.

        Args:
            finite: Whether all gradients of this step were finite.

        Raises:
            RunError: They were not, although the scale is 1 already: no scale can help.
        """
        if not self.dynamic:
            return self
        if not finite:
            if self.value <= 1.0:
                raise RunError(
                    "gradients are not finite although the loss scale has come down to 1: training "
                    "has diverged; lower the learning rate, or use precision bfloat16"
                )
            return replace(self, value=self.value / 2, good=0)
        if self.good + 1 < PATIENCE:
            return replace(self, good=self.good + 1)
        return replace(self, value=min(2 * self.value, LARGEST), good=0)


UNSCALED = LossScale()
