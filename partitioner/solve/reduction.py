"""Joining what some best placement keeps together anyway, so that fewer down-sets are left.

Say v takes no time and no memory that matters, and u is a neighbour that v may always move to:
the last thing v waits for, or the first that waits for v. Take any placement with v on d and u
on a, and move v to a. Nets with both were cut and may heal; those that are just {u, v} surely do:
a and d each save their cost. Nets with v but not u may open on a and on d. So if the former cost
no less than the latter, no device gets slower, and v and u may be joined. Dropped outputs, masks,
reshapes, and the ends of tuples go this way; each would double the down-sets.
"""

from __future__ import annotations

import math

import numpy as np

from partitioner.solve.elements import Elements, joined
from symgraph.core.orders import closures, neighbours, topological
from symgraph.core.types import Array


def reduced(core: Elements, *, weigh: bool = True) -> Elements:
    """Make all such joins; the optimum stays the same.

    Args:
        core: the elements.
        weigh: whether to leave alone elements whose memory may matter.
    """
    while pairs := _joins(core, weigh):
        core = joined(core, pairs)
    return core


def _joins(core: Elements, weigh: bool) -> list[tuple[int, int]]:
    """List joins that hold one after another: none touches what another one looked at."""
    light = _light(core, weigh)
    if not light.any():
        return []
    before, after = neighbours(len(core), sorted(core.arcs))
    order = topological(before, after, lambda v, step: step)
    above, below = closures(before, order), closures(after, reversed(order))
    touched: set[int] = set()
    pairs = []
    for v in map(int, np.flatnonzero(light)):
        nets = [core.nets[e] for e in core.nets_of[v]]
        seen = {v}.union(before[v], after[v], *(members for _, members in nets))
        if seen & touched:
            continue
        for u in _homes(core, v, seen, before, after, above, below):
            opens = _added([costs for costs, members in nets if u not in members], core)
            heals = _added([c for c, members in nets if members in ((u, v), (v, u))], core)
            if (opens <= heals).all():
                pairs.append((u, v))
                touched |= seen
                break
    return pairs


def _added(costs: list[tuple[float, ...]], core: Elements) -> Array:
    """Add up nets' costs on each kind."""
    total: Array = np.array(costs, dtype=np.float64).reshape(-1, len(core.kinds)).sum(axis=0)
    return total


def _light(core: Elements, weigh: bool) -> Array:
    """Find elements that take no time on any kind of device and no memory that can bind."""
    light = timeless(core)
    if weigh and core.memory.sum() > core.limits.min():
        light &= core.memory == 0
    return light


def timeless(core: Elements) -> Array:
    """Find elements that take no time on any device there is."""
    timeless: Array = (core.times == 0).all(axis=0)
    return timeless


def _homes(
    core: Elements,
    v: int,
    seen: set[int],
    before: list[list[int]],
    after: list[list[int]],
    above: list[int],
    below: list[int],
) -> list[int]:
    """List the elements that v may move to from anywhere: one before it, one after it.

    Without order (a free element, or a placement that need not be contiguous), v may move to all
    that it shares a net with.
    """
    if seen == {v}:  # v is alone, so any element will do
        return [int(v == 0)] if len(core) > 1 else []
    if core.free[v] or not core.contiguous:
        return sorted(seen - {v})
    last = [u for u in before[v] if all(above[u] >> p & 1 for p in before[v])]
    first = [u for u in after[v] if all(below[u] >> s & 1 for s in after[v])]
    return last + first


def join_uncuttable(core: Elements, bound: float) -> Elements:
    """Join what no placement below the bound can cut.

    A net that is cut has parts on two devices or more, and each of them pays for the net and for at
    least one of its elements. What a placement at the bound cuts stays apart, whatever is rounded.
    """
    counts, bound = np.array([kind.count for kind in core.kinds]), bound * (1 + 1e-12)
    while math.isfinite(bound):
        pairs = [
            (held[0], v)
            for costs, held in core.nets
            if counts[costs + core.times[:, held].min(axis=1) <= bound].sum() < 2
            for v in held[1:]
        ]
        if not pairs:
            break
        core = joined(core, pairs)
    return core
