"""Tables of blocks: kernels that work on many arrays in one launch.

A launch for each array would take the host longer than the card. So such a kernel reads from a
table where its block's elements lie, of whichever array.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
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


@lru_cache(MOST_TABLES)
def table_of(cupy: Any, places: tuple[Place, ...], most: int, itemsize: int) -> Array:
    """Return the `block_table` of pieces of work that come again; cupy: the module CuPy."""
    return block_table(places, most, itemsize)
