"""The end of a step on a GPU: squared norms and parameter updates, in one pass over memory each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.backends.cuda.base import WIDE, each, function, launch
from runtime.backends.device import arrays
from symgraph.core.types import Array

PARTS = 1024  # at most so many sums, a block each
EACH = 16  # elements a thread, at least, where there are fewer parts


def squared_norms(gradients: Sequence[Array]) -> list[float]:
    """The sum of squares of each in float64, always in the same order; waits for the GPU once.

    How one is cut into parts hangs on the number of its elements alone, not on the GPU.
    """
    cupy = arrays.loaded()
    parts, out = cupy.empty(PARTS, "float64"), cupy.empty(len(gradients), "float64")
    for place, gradient in enumerate(gradients):
        size, real = gradient.size, gradient.dtype.name
        count = min(PARTS, -(-size // (WIDE * EACH)))
        squares, total = (function("updates", n, real=real) for n in ("squares", "total"))
        for call in (
            launch(squares, (count,), (WIDE,), gradient, parts, size),
            launch(total, (1,), (WIDE,), parts, out[place : place + 1], count),
        ):
            call.function(*call.args)
    found: list[float] = out.get().tolist()
    return found


def step(name: str, flat: Sequence[Array], numbers: Sequence[Any]) -> None:
    """One update of a parameter: kernel `name` of updates.cu on flat arrays, the parameter first.

    numbers: its settings, in the parameter's dtype.
    """
    weight = flat[0]
    run = function("updates", name, real=weight.dtype.name)
    call = launch(run, *each(weight.size), *flat, weight.size, *numbers)
    call.function(*call.args)
