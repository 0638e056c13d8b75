"""The end of a step on a GPU: squared norms and parameter updates, in one pass over memory each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.cuda.base import WIDE, each, function, launch
from symgraph import arrays
from symgraph.types import Array

PARTS = 1024  # at most so many sums, a block each
EACH = 16  # elements a thread, at least, where there are fewer parts


def squared_norm(gradient: Array) -> float:
    """The sum of squares in float64, always in the same order; waits for the GPU.

    How it is cut into parts hangs on the number of elements alone, not on the GPU.
    """
    cupy, size, real = arrays.loaded(), gradient.size, gradient.dtype.name
    count = min(PARTS, -(-size // (WIDE * EACH)))
    parts, out = cupy.empty(count, "float64"), cupy.empty(1, "float64")
    calls = (
        launch(function("updates", "squares", real=real), (count,), (WIDE,), gradient, parts, size),
        launch(function("updates", "total", real=real), (1,), (WIDE,), parts, out, count),
    )
    for call in calls:
        call.function(*call.args)
    return float(out[0])


def step(name: str, flat: Sequence[Array], numbers: Sequence[Any]) -> None:
    """One update of a parameter: kernel `name` of updates.cu on flat arrays, the parameter first.

    numbers: its settings, in the parameter's dtype.
    """
    weight = flat[0]
    run = function("updates", name, real=weight.dtype.name)
    call = launch(run, *each(weight.size), *flat, weight.size, *numbers)
    call.function(*call.args)
