"""Connected components by scipy, which is imported at the first call: it takes 0.3 s to load."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from symgraph.core.types import Array


def connected(n: int, pairs: Iterable[tuple[int, int]] | Array, *, strong: bool = False) -> Array:
    """Return the number of the (strongly) connected component of each node 0 .. n-1."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = np.asarray(pairs if isinstance(pairs, np.ndarray) else list(pairs), dtype=np.int64)
    ends = ends.reshape(-1, 2)
    table = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(n, n))
    labels: Array = connected_components(table, connection="strong" if strong else "weak")[1]
    return labels.astype(np.int64)
