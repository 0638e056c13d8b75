"""Tables of blocks: kernels that work on many arrays in one launch.

A launch for each array would take the host longer than the card. So such a kernel reads from a
table where its block's elements lie, of whichever array.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from symgraph.core.types import Array

MOST_TABLES = 256

Places = tuple[
    tuple[int, ...], ...
]  # of each piece of work: its arrays' addresses, then their size


@lru_cache(MOST_TABLES)
def table_of(cupy: Any, places: Places, most: int, itemsize: int) -> Array:
    """Return on the GPU, for each block: where its elements begin in each array; how many.

    Args:
        cupy: The module CuPy.
        places: What there is to do.
        most: Elements of a block.
        itemsize: Bytes of an element.
    """
    rows = [
        (*[address + start * itemsize for address in addresses], min(most, size - start))
        for *addresses, size in places
        for start in range(0, size, most)
    ]
    table: Array = cupy.array(np.array(rows, np.int64))
    return table
