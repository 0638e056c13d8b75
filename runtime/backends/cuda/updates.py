"""The end of a step on a GPU: squared norms and parameter updates, all arrays in one launch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from runtime.backends.cuda.base import BLOCK, WIDE, function, launch
from runtime.backends.cuda.tables import kept_on_card, table_of
from runtime.backends.device import arrays
from runtime.backends.device.table import Step
from symgraph.core.types import Array

TERMS = 1 << 14  # elements of a partial sum, which a block adds up
ELEMENTS = 1 << 12  # elements that a block updates


def squared_norms(gradients: Sequence[Array]) -> Array:
    """Return each gradient's sum of squares in float64.

    The order of a sum depends on the number of its elements alone, not on the GPU.
    """
    cupy = arrays.loaded()
    out: Array = cupy.zeros(len(gradients), "float64")
    of_dtype: defaultdict[np.dtype[Any], list[int]] = defaultdict(list)
    for place, gradient in enumerate(gradients):
        if gradient.size:
            of_dtype[gradient.dtype].append(place)
    for dtype, places in of_dtype.items():
        some = [gradients[place] for place in places]
        pieces = tuple([(arrays.address(g), g.size) for g in some])
        table = table_of(cupy, pieces, TERMS, dtype.itemsize)
        sums = _sums(cupy, tuple(places), tuple([g.size for g in some]))
        parts = cupy.empty(len(table), "float64")
        squares, total = (function("updates", n, real=dtype.name) for n in ("squares", "totals"))
        for call in (
            launch(squares, (len(table),), (WIDE,), table, parts),
            launch(total, (len(sums),), (WIDE,), sums, parts, out),
        ):
            call.function(*call.args)
    return out


def prepare(steps: Sequence[Step]) -> Callable[[float], None]:
    """Return what updates parameters, given the factor of their gradients.

    It is one launch for all that have the same formula, settings and dtype.
    """
    alike: defaultdict[tuple[Any, ...], list[Step]] = defaultdict(list)
    for step in steps:
        dtype = step.flat[0].dtype
        alike[step.formula, dtype, step.rates, step.rescale, step.settings].append(step)
    launches = [
        (
            function("updates", formula, real=dtype.name),
            table_of(
                arrays.loaded(),
                tuple([(*map(arrays.address, s.flat), s.flat[0].size) for s in some]),
                ELEMENTS,
                dtype.itemsize,
            ),
            some[0],
        )
        for (formula, dtype, *_), some in alike.items()
    ]

    def update(scale: float) -> None:
        for run, table, step in launches:
            call = launch(run, (len(table),), (BLOCK,), table, *step.numbers(scale))
            call.function(*call.args)

    return update


@kept_on_card
def _sums(cupy: Any, places: tuple[int, ...], sizes: tuple[int, ...]) -> Array:
    """Return on the GPU, for each sum: its first part, how many there are, and its place."""
    counts = -(-np.array(sizes) // TERMS)
    rows = np.stack([np.cumsum(counts) - counts, counts, np.array(places)], axis=1)
    table: Array = cupy.array(rows.astype(np.int64))
    return table
