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
from symgraph.frontend.optimizer import SGD, Adam, AdamW, Optimizer, sum_of_squares

FLOATS = (np.float32, np.float64)

#: Updates parameters, given the factor of their gradients.
Update = Callable[[float], None]


def squared_norms(xp: Any, gradients: Sequence[Array]) -> Array:
    """Return the sum of squares of each, added up in float64 and always in the same order.

    On a GPU they are there when its work is done.
    """
    norms: Array
    if all(gradient.dtype in FLOATS for gradient in gradients):
        norms = _kernels(xp).squared_norms(gradients)
    else:
        norms = xp.array([squared_norm(xp, gradient) for gradient in gradients])
    return norms


def squared_norm(xp: Any, gradient: Array) -> float:
    """Return the sum of squares of one gradient."""
    if gradient.dtype not in FLOATS:
        return float(sum_of_squares(xp, gradient))
    return float(squared_norms(xp, [gradient])[0])


def _kernels(xp: Any) -> ModuleType:
    return cpu_updates if xp is np else cuda_updates


def step_of(
    optimizer: Optimizer,
    xp: Any,
    name: str,
    weight: Array,
    grad: Array,
    state: Mapping[str, Array],
    count: int,
    attrs: Mapping[str, str],
) -> Step | None:
    """Return a parameter's update number `count`; None: it is by `optimizer.apply`.

    Those of SGD, Adam and AdamW have kernels.
    """
    kind, number = type(optimizer), weight.dtype.type
    writeable = xp is not np or all(array.flags.writeable for array in (weight, *state.values()))
    whole = kind in (SGD, Adam, AdamW) and weight.dtype in FLOATS and writeable
    if not whole or not isinstance(optimizer, SGD | Adam):
        return None
    optimizer.check(name, weight, grad, state, count)
    rates = tuple(map(number, optimizer.step_rates(name, count, attrs)))
    limit = math.inf if optimizer.clip_gradient is None else optimizer.clip_gradient
    formula, settings = "sgd", [limit]
    if isinstance(optimizer, Adam):
        betas = optimizer.beta1, optimizer.beta2, 1 - optimizer.beta1, 1 - optimizer.beta2
        apart = isinstance(optimizer, AdamW)  # the decay, from the gradient
        formula, settings = "adam", [limit, *betas, optimizer.epsilon_at(count), apart]
    elif state:
        formula, settings = "momentum", [limit, optimizer.momentum]
    flat = [a.reshape(-1) for a in (weight, grad, *map(state.__getitem__, optimizer.slots()))]
    return Step(formula, flat, rates, optimizer.rescale_grad, tuple(map(number, settings)))


def prepare(xp: Any, steps: Sequence[Step]) -> Update:
    """Return what makes these updates, on a GPU with few launches."""
    update: Update = _kernels(xp).prepare(steps)
    return update
