"""Prices of time on devices of several kinds, which give lower bounds on the largest load.

Say a second of kind g has the price p[g]. Each node costs at least its cheapest kind's price for
its time there, and all devices together earn T · Σ count[g] · p[g] in time T. So

    T  ≥  Σ_v min_g p[g] · time[g, v]  /  Σ_g count[g] · p[g]         for any prices >= 0

The best prices make it the load of a fractional placement; a linear programme finds them.
"""

from __future__ import annotations

import math

import numpy as np

from partitioner.solve.highs import matrix, minimise
from symgraph.core.types import Array


def best_prices(times: Array, counts: Array) -> Array:
    """Find the prices of a second on each kind that bound the load best; the largest is 1.

    Args:
        times: seconds of each node: [kinds, nodes]; inf: it cannot run there.
        counts: the number of devices of each kind.
    """
    kinds, nodes = times.shape
    g, v = np.nonzero(np.isfinite(times))
    largest = float(times[g, v].max(initial=0.0))
    if kinds == 1 or largest == 0 or len(np.unique(v)) < nodes:
        return np.ones(kinds)
    row, one = np.arange(len(g)), np.ones(len(g))
    cheaper = matrix(  # a node's cost minus its price, for every node and kind
        np.concatenate([one, -times[g, v] / largest]),
        np.tile(row, 2),
        np.concatenate([v, nodes + g]),
        (len(g), nodes + kinds),
    )
    spent = np.concatenate([np.zeros(nodes), counts])[None]
    result = minimise(
        np.concatenate([-np.ones(nodes), np.zeros(kinds)]),
        [(cheaper, -np.inf, 0.0), (spent, 1.0, 1.0)],
        np.inf,
    )
    if result.x is None:
        return np.ones(kinds)
    price: Array = np.maximum(0.0, result.x[nodes:])
    price /= price.max()
    return price


def priced(times: Array, price: Array) -> Array:
    """Return the least that each node costs: [nodes] from times [kinds, nodes]."""
    costs = np.full(times.shape, math.inf)
    np.multiply(times, price[:, None], out=costs, where=np.isfinite(times))
    least: Array = costs.min(axis=0)
    return least
