"""Prices of time on devices of several kinds, which give lower bounds on the largest load.

Say a second of kind g has the price p[g]. Each node costs at least its cheapest kind's price for
its time there, and all devices together earn T · Σ count[g] · p[g] in time T. So

    T  ≥  Σ_v min_g p[g] · time[g, v]  /  Σ_g count[g] · p[g]         for any prices >= 0

The best prices make it the load of a fractional placement; a linear programme finds them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from partitioner.solve.highs import matrix, minimise

Array = npt.NDArray[Any]


def best_prices(times: Array, counts: Array) -> Array:
    """The price of a second on each kind, the largest 1. times: [kinds, nodes], inf: cannot run."""
    kinds, nodes = times.shape
    g, v = np.nonzero(np.isfinite(times))
    largest = float(times[g, v].max(initial=0.0))
    if kinds == 1 or largest == 0 or len(np.unique(v)) < nodes:
        return np.ones(kinds)
    row, one = np.arange(len(g)), np.ones(len(g))
    cheaper = matrix(  # what a node is worth - its price there, for every node and kind
        np.concatenate([one, -times[g, v] / largest]),
        np.tile(row, 2),
        np.concatenate([v, nodes + g]),
        (len(g), nodes + kinds),
    )
    spent = np.concatenate([np.zeros(nodes), counts])[None]
    found = minimise(
        np.concatenate([-np.ones(nodes), np.zeros(kinds)]),
        [(cheaper, -np.inf, 0.0), (spent, 1.0, 1.0)],
        np.inf,
    )
    if found.x is None:
        return np.ones(kinds)
    price: Array = np.maximum(0.0, found.x[nodes:])
    price /= price.max()
    return price


def priced(times: Array, price: Array) -> Array:
    """The least that each node costs: [nodes] of times [kinds, nodes]."""
    costs = np.full(times.shape, math.inf)
    np.multiply(times, price[:, None], out=costs, where=np.isfinite(times))
    least: Array = costs.min(axis=0)
    return least
