"""Tables of blocks: kernels that work on many arrays in one launch.

A launch for each array would take the host longer than the card. So such a kernel reads from a
table where its block's elements lie, of whichever array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import Any

import numpy as np

from runtime.backends.device import arrays
from symgraph.core.types import Array

MOST_TABLES = 256

Place = tuple[int, ...]  # of a piece of work: its arrays' addresses, then their size in elements


def block_table(places: Iterable[Place], most: int, itemsize: int) -> Array:
    """Divide arrays among the blocks of one launch.

    Args:
        places: What there is to do.
        most: Elements of a block.
        itemsize: Bytes of an element.

    Returns:
        On the GPU, for each block: where its elements begin in each array; how many.
    """
    rows = [
        (*[address + start * itemsize for address in addresses], min(most, size - start))
        for *addresses, size in places
        for start in range(0, size, most)
    ]
    table: Array = arrays.loaded().array(np.array(rows, np.int64))
    return table


def kept_on_card(make: Callable[..., Array]) -> Callable[..., Array]:
    """Decorate what makes a table of CuPy and further arguments: it is made once on each GPU."""

    @lru_cache(MOST_TABLES)
    def made(card: int, *given: Any) -> Array:
        return make(*given)

    @wraps(make)
    def table(cupy: Any, *given: Any) -> Array:
        return made(cupy.cuda.runtime.getDevice(), cupy, *given)

    return table


@kept_on_card
def table_of(cupy: Any, places: tuple[Place, ...], most: int, itemsize: int) -> Array:
    """Return the `block_table` of pieces of work that come again; cupy: the module CuPy."""
    return block_table(places, most, itemsize)
