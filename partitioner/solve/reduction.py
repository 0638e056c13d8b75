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

from partitioner.solve.elements import Elements, Net, joined
from partitioner.solve.orders import closures, neighbours, topological
from partitioner.solve.problem import Array


def reduced(core: Elements, *, weigh: bool = True) -> Elements:
    """The elements after all such joins; the optimum stays the same.

    weigh: False joins elements whose memory may matter, too.
    """
    while pairs := _joins(core, weigh):
        core = joined(core, pairs)
    return core


def _joins(core: Elements, weigh: bool) -> list[tuple[int, int]]:
    """Joins that hold one after another: none touches what another one looked at."""
    light = _light(core, weigh)
    if not light.any():
        return []
    before, after = neighbours(len(core), sorted(core.arcs))
    order = topological(before, after, lambda v, step: step)
    above, below = closures(before, order), closures(after, reversed(order))
    held: list[list[Net]] = [[] for _ in range(len(core))]
    for net in core.nets:
        for v in net[1]:
            held[v].append(net)
    touched: set[int] = set()
    pairs = []
    for v in map(int, np.flatnonzero(light)):
        seen = {v}.union(before[v], after[v], *(members for _, members in held[v]))
        if seen & touched:
            continue
        for u in _homes(core, v, seen, before, after, above, below):
            opens = _added([costs for costs, members in held[v] if u not in members], core)
            heals = _added([c for c, members in held[v] if members in ((u, v), (v, u))], core)
            if (opens <= heals).all():
                pairs.append((u, v))
                touched |= seen
                break
    return pairs


def _added(costs: list[tuple[float, ...]], core: Elements) -> Array:
    """The sum of nets' costs on each kind."""
    total: Array = np.array(costs, dtype=np.float64).reshape(-1, len(core.kinds)).sum(axis=0)
    return total


def _light(core: Elements, weigh: bool) -> Array:
    """Elements without time on any kind of device and without memory that can bind."""
    light = timeless(core)
    if weigh and core.memory.sum() > core.limits.min():
        light &= core.memory == 0
    return light


def timeless(core: Elements) -> Array:
    """Elements that take no time on any device there is."""
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
    """The elements that v may move to from anywhere: one before it, one after it.

    Without order (a free element, or a placement that need not be contiguous): all it shares a
    net with.
    """
    if seen == {v}:  # alone: as well here as there
        return [int(v == 0)] if len(core) > 1 else []
    if core.free[v] or not core.contiguous:
        return sorted(seen - {v})
    last = [u for u in before[v] if all(above[u] >> p & 1 for p in before[v])]
    first = [u for u in after[v] if all(below[u] >> s & 1 for s in after[v])]
    return last + first


def join_uncuttable(core: Elements, bound: float) -> Elements:
    """Join what no placement below the bound can cut.

    Two devices or more hold parts of a net that is cut, and each pays for it and for one of its
    elements at least.
    """
    counts = np.array([kind.count for kind in core.kinds])
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
