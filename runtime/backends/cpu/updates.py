"""The end of a step: norms and parameter updates in one pass over memory each, on any device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime.backends.cuda import updates as on_gpu
from runtime.backends.device.table import jit_exact, jit_reassoc
from symgraph.core.types import Array
from symgraph.frontend.optimizer import SGD, Adam, Optimizer, sum_of_squares

BLOCK = 1 << 14  # elements of a partial sum
FLOATS = (np.float32, np.float64)


def squared_norms(xp: Any, gradients: Sequence[Array]) -> list[float]:
    """The sum of squares of each, added up in float64 and always in the same order."""
    if xp is not np and all(gradient.dtype in FLOATS for gradient in gradients):
        return on_gpu.squared_norms(gradients)
    return [squared_norm(xp, gradient) for gradient in gradients]


def squared_norm(xp: Any, gradient: Array) -> float:
    """`squared_norms` of one."""
    if gradient.dtype not in FLOATS:
        return float(sum_of_squares(xp, gradient))
    if xp is not np:
        return on_gpu.squared_norms([gradient])[0]
    return float(_squares(gradient.reshape(-1)))


def update(
    xp: Any,
    optimizer: Optimizer,
    name: str,
    weight: Array,
    grad: Array,
    state: Mapping[str, Array],
    count: int,
    scale: float,
    attrs: Mapping[str, str],
) -> None:
    """`optimizer.update` on the arrays of one parameter, compiled for SGD and Adam."""
    kind, number = type(optimizer), weight.dtype.type
    free = xp is not np or all(array.flags.writeable for array in (weight, *state.values()))
    if kind not in (SGD, Adam) or weight.dtype not in FLOATS or not free:
        optimizer.update(xp, name, weight, grad, state, count, scale, attrs)
        return
    optimizer.check(name, weight, grad, state, count)
    rate, decay = optimizer.step_rates(name, count, attrs)
    limit = math.inf if optimizer.clip_gradient is None else optimizer.clip_gradient
    factors = [number(x) for x in (rate, decay, scale * optimizer.rescale_grad, limit)]
    flat = [a.reshape(-1) for a in (weight, grad, *map(state.__getitem__, optimizer.slots()))]
    if isinstance(optimizer, Adam):
        settings = optimizer.beta1, optimizer.beta2, 1 - optimizer.beta1, 1 - optimizer.beta2
        formula, own = "adam", [number(x) for x in (*settings, optimizer.epsilon)]
    elif isinstance(optimizer, SGD) and state:
        formula, own = "momentum", [number(optimizer.momentum)]
    else:
        formula, own = "sgd", []
    if xp is np:
        STEPS[formula](*flat, *factors, *own)
    else:
        on_gpu.step(formula, flat, [*factors, *own])


@jit_reassoc
def _squares(flat: Array) -> float:
    """Of a gradient without axes but one; added up in float64, block by block."""
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
) -> None:
    for j in range(len(w)):
        g = grad[j] * scale
        if decay != 0:
            g += w[j] * decay
        g = clip if g > clip else -clip if g < -clip else g
        m = mean[j] * beta1 + g * rest1
        v = var[j] * beta2 + g * g * rest2
        mean[j], var[j] = m, v
        w[j] -= m / (np.sqrt(v) + epsilon) * rate


STEPS = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}
