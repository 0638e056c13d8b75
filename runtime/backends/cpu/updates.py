"""The end of a step on a CPU: squared norms and parameter updates, in one pass over memory each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from runtime.backends.device.compile import jit_exact, jit_reassoc
from runtime.backends.device.table import Step
from symgraph.core.types import Array

BLOCK = 1 << 14  # elements of a partial sum


def squared_norms(gradients: Sequence[Array]) -> Array:
    """Return the sum of squares of each in float64, always added up in the same order."""
    return np.array([_squares(gradient.reshape(-1)) for gradient in gradients], np.float64)


def prepare(steps: Sequence[Step]) -> Callable[[float], None]:
    """Return what updates parameters, given the factor of their gradients."""

    def update(scale: float) -> None:
        for step in steps:
            STEPS[step.formula](*step.flat, *step.numbers(scale))

    return update


@jit_reassoc
def _squares(flat: Array) -> float:
    """Add up the squares of a vector in float64, block by block."""
    total = 0.0
    for start in range(0, len(flat), BLOCK):
        block = flat[start : start + BLOCK]
        part = 0.0
        for j in range(len(block)):
            number = np.float64(block[j])
            part += number * number
        total += part
    return total


@jit_exact
def _sgd(w: Array, grad: Array, rate: Any, decay: Any, scale: Any, clip: Any) -> None:
    for j in range(len(w)):
        g = grad[j] * scale
        g = clip if g > clip else -clip if g < -clip else g
        if decay != 0:
            g += w[j] * decay
        w[j] -= g * rate


@jit_exact
def _momentum(
    w: Array, grad: Array, mom: Array, rate: Any, decay: Any, scale: Any, clip: Any, keep: Any
) -> None:
    for j in range(len(w)):
        g = grad[j] * scale
        g = clip if g > clip else -clip if g < -clip else g
        if decay != 0:
            g += w[j] * decay
        mom[j] = mom[j] * keep - g * rate
        w[j] += mom[j]


@jit_exact
def _adam(
    w: Array,
    grad: Array,
    mean: Array,
    var: Array,
    rate: Any,
    decay: Any,
    scale: Any,
    clip: Any,
    beta1: Any,
    beta2: Any,
    rest1: Any,
    rest2: Any,
    epsilon: Any,
    apart: Any,
) -> None:
    for j in range(len(w)):
        g = grad[j] * scale
        if apart != 0:
            w[j] -= w[j] * decay
        elif decay != 0:
            g += w[j] * decay
        g = clip if g > clip else -clip if g < -clip else g
        m = mean[j] * beta1 + g * rest1
        v = var[j] * beta2 + g * g * rest2
        mean[j], var[j] = m, v
        w[j] -= m / (np.sqrt(v) + epsilon) * rate


STEPS = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}
