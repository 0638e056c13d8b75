"""The end of a step, gradient norms and parameter updates, by the kernels of a device kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from runtime.backends.cpu import updates as cpu_updates
from runtime.backends.cuda import updates as cuda_updates
from runtime.backends.device.table import Step
from symgraph.core.types import Array
from symgraph.frontend.optimizer import SGD, Adam, Optimizer, sum_of_squares

FLOATS = (np.float32, np.float64)


def squared_norms(xp: Any, gradients: Sequence[Array]) -> Callable[[], list[float]]:
    """Ask for the sum of squares of each, added up in float64 and always in the same order.

    Calling the result waits for a GPU.
    """
    if all(gradient.dtype in FLOATS for gradient in gradients):
        norms: Callable[[], list[float]] = _kernels(xp).squared_norms(gradients)
        return norms
    return lambda: [squared_norm(xp, gradient) for gradient in gradients]


def squared_norm(xp: Any, gradient: Array) -> float:
    """Return the sum of squares of one gradient."""
    if gradient.dtype not in FLOATS:
        return float(sum_of_squares(xp, gradient))
    return squared_norms(xp, [gradient])()[0]


def _kernels(xp: Any) -> ModuleType:
    return cpu_updates if xp is np else cuda_updates


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
) -> Step | None:
    """Update one parameter by `optimizer.apply`, or return what `make` is to do: SGD and Adam."""
    kind, number = type(optimizer), weight.dtype.type
    writeable = xp is not np or all(array.flags.writeable for array in (weight, *state.values()))
    whole = kind in (SGD, Adam) and weight.dtype in FLOATS and writeable
    if not whole or not isinstance(optimizer, SGD | Adam):
        optimizer.apply(xp, name, weight, grad, state, count, scale, attrs)
        return None
    optimizer.check(name, weight, grad, state, count)
    rate, decay = optimizer.step_rates(name, count, attrs)
    limit = math.inf if optimizer.clip_gradient is None else optimizer.clip_gradient
    factors = [number(x) for x in (rate, decay, scale * optimizer.rescale_grad, limit)]
    flat = [a.reshape(-1) for a in (weight, grad, *map(state.__getitem__, optimizer.slots()))]
    if isinstance(optimizer, Adam):
        betas = optimizer.beta1, optimizer.beta2, 1 - optimizer.beta1, 1 - optimizer.beta2
        return Step("adam", flat, factors + [number(x) for x in (*betas, optimizer.epsilon)])
    if state:
        return Step("momentum", flat, [*factors, number(optimizer.momentum)])
    return Step("sgd", flat, factors)


def make(xp: Any, steps: Sequence[Step]) -> None:
    """Update these parameters, on a GPU with few launches."""
    if steps:
        _kernels(xp).make(steps)
