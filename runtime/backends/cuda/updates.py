"""The end of a step on a GPU: squared norms and parameter updates, all arrays in one launch.

A launch for each parameter would take the host longer than the card. So a kernel reads from a
table where its block's elements lie, of whichever array.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from runtime.backends.cuda.base import BLOCK, WIDE, block_table, function, launch
from runtime.backends.device import arrays
from runtime.backends.device.table import Step
from symgraph.core.types import Array

TERMS = 1 << 14  # elements of a partial sum, which a block adds up
ELEMENTS = 1 << 12  # elements that a block updates
MOST_TABLES = 256

Places = tuple[tuple[int, ...], ...]  # of each step: its arrays' addresses, then their size


def squared_norms(gradients: Sequence[Array]) -> Callable[[], list[float]]:
    """Ask for each gradient's sum of squares in float64; call the result to wait for them.

    The order of a sum depends on the number of its elements alone, not on the GPU.
    """
    cupy = arrays.loaded()
    out = cupy.zeros(len(gradients), "float64")
    of_dtype: defaultdict[str, list[int]] = defaultdict(list)
    for place, gradient in enumerate(gradients):
        if gradient.size:
            of_dtype[gradient.dtype.name].append(place)
    for real, places in of_dtype.items():
        some = [gradients[place] for place in places]
        table = _table(cupy, tuple([(arrays.address(g), g.size) for g in some]), TERMS, real)
        sums = _sums(cupy, tuple(places), tuple([g.size for g in some]))
        parts = cupy.empty(len(table), "float64")
        squares, total = (function("updates", n, real=real) for n in ("squares", "totals"))
        for call in (
            launch(squares, (len(table),), (WIDE,), table, parts),
            launch(total, (len(sums),), (WIDE,), sums, parts, out),
        ):
            call.function(*call.args)

    def found() -> list[float]:
        sums: list[float] = out.get().tolist()
        return sums

    return found


def make(steps: Sequence[Step]) -> None:
    """Update parameters: one launch for all that have the same formula, settings and dtype."""
    alike: defaultdict[tuple[Any, ...], list[Step]] = defaultdict(list)
    for step in steps:
        alike[step.formula, step.flat[0].dtype.name, tuple(step.numbers)].append(step)
    for (formula, real, numbers), some in alike.items():
        places = tuple([(*map(arrays.address, s.flat), s.flat[0].size) for s in some])
        table = _table(arrays.loaded(), places, ELEMENTS, real)
        run = function("updates", formula, real=real)
        call = launch(run, (len(table),), (BLOCK,), table, *numbers)
        call.function(*call.args)


@lru_cache(MOST_TABLES)
def _table(cupy: Any, places: Places, most: int, real: str) -> Array:
    """Return the `block_table` of arrays of a dtype."""
    return block_table(places, most, np.dtype(real).itemsize)


@lru_cache(MOST_TABLES)
def _sums(cupy: Any, places: tuple[int, ...], sizes: tuple[int, ...]) -> Array:
    """Return on the GPU, for each sum: its first part, how many there are, and its place."""
    counts = -(-np.array(sizes) // TERMS)
    rows = np.stack([np.cumsum(counts) - counts, counts, np.array(places)], axis=1)
    table: Array = cupy.array(rows.astype(np.int64))
    return table
