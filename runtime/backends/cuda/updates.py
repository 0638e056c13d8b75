"""The end of a step on a GPU: squared norms and parameter updates, in one pass over memory each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.backends.cuda.base import WIDE, each, function, launch
from runtime.backends.device import arrays
from symgraph.core.types import Array

MAX_PARTS = 1024  # partial sums, a block each
MIN_TERMS = 16  # elements of a thread if there are fewer parts


def squared_norms(gradients: Sequence[Array]) -> list[float]:
    """Return each gradient's sum of squares in float64; wait for the GPU once.

    The order of a sum depends on the number of its elements alone, not on the GPU.
    """
    cupy = arrays.loaded()
    parts, out = cupy.empty(MAX_PARTS, "float64"), cupy.empty(len(gradients), "float64")
    for place, gradient in enumerate(gradients):
        size, real = gradient.size, gradient.dtype.name
        count = min(MAX_PARTS, -(-size // (WIDE * MIN_TERMS)))
        squares, total = (function("updates", n, real=real) for n in ("squares", "total"))
        for call in (
            launch(squares, (count,), (WIDE,), gradient, parts, size),
            launch(total, (1,), (WIDE,), parts, out[place : place + 1], count),
        ):
            call.function(*call.args)
    sums: list[float] = out.get().tolist()
    return sums


def step(name: str, flat: Sequence[Array], numbers: Sequence[Any]) -> None:
    """Update a parameter.

    Args:
        name: The kernel of updates.cu.
        flat: Flat arrays: the parameter, its gradient and the optimizer's state.
        numbers: The kernel's settings, in the parameter's dtype.
    """
    weight = flat[0]
    run = function("updates", name, real=weight.dtype.name)
    call = launch(run, *each(weight.size), *flat, weight.size, *numbers)
    call.function(*call.args)
