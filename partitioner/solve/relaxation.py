"""Free elements set aside: a problem without them that never costs more.

No order binds a free element, so the down-sets need not know it. A device that holds S of the
others pays at least

    min over sets F of free elements of  load(S + F)

whatever it holds of the free ones. That splits into a sum over groups of free elements that
share nets, and in a small group all F can be tried. What is lost is that each free element is
on one device only. Groups are at most MAX_GROUP elements: a net that joins more is kept for one
part of them and forgotten for the others, which never costs more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from partitioner.solve.elements import Arcs, Elements
from partitioner.solve.problem import evaluate
from partitioner.solve.weights import MAX_GROUP, Weights, weights
from symgraph.core.types import Array


def relaxed(core: Elements) -> tuple[Weights, Arcs, Array]:
    """Return costs and arcs of the elements that are not free, and their numbers in the whole."""
    kept = np.flatnonzero(~core.free)
    number = {int(v): i for i, v in enumerate(kept)}
    group_of = _groups(core)
    nets, groups, masks = [], [], []
    for costs, members in core.nets:
        away = [group_of[v] for v in members if core.free[v]]
        group = max((g for g, _ in away), key=[g for g, _ in away].count, default=-1)
        nets.append((costs, tuple(number[v] for v in members if v in number)))
        groups.append(group)
        masks.append(sum(1 << i for g, i in away if g == group))
    count = max((g for g, _ in group_of.values()), default=0) + 1
    times = np.full((len(core.kinds), count, 1 << MAX_GROUP), np.inf)
    times[:, :, 0] = 0.0
    for v, (g, i) in group_of.items():
        for s in range(1 << i):
            times[:, g, s | 1 << i] = times[:, g, s] + core.times[:, v]
    costs_of_kept = replace(
        weights(core),
        times=np.ascontiguousarray(core.times[:, kept]),
        memory=core.memory[kept],
        nets=tuple(nets),
        groups=tuple(groups),
        masks=tuple(masks),
        free=times,
    )
    arcs = frozenset((number[a], number[b]) for a, b in core.arcs if a in number and b in number)
    return costs_of_kept, arcs, kept


def _groups(core: Elements) -> dict[int, tuple[int, int]]:
    """Map free elements to (group, place in it): neighbours together while there is room."""
    near: dict[int, list[int]] = {int(v): [] for v in np.flatnonzero(core.free)}
    for _, members in core.nets:
        away = [v for v in members if core.free[v]]
        for v in away:
            near[v] += [u for u in away if u != v]
    place: dict[int, tuple[int, int]] = {}
    groups = 0
    for v in near:
        if v in place:
            continue
        part = [v]
        for u in part:
            part += [x for x in dict.fromkeys(near[u]) if x not in place and x not in part]
        place.update({u: (groups, i) for i, u in enumerate(part[:MAX_GROUP])})
        groups += 1
    return place


def place_free(core: Elements, nodes: Array) -> Array:
    """Put free elements where they cost least, by single moves."""
    problem = core.problem
    limits = [problem.kinds[g].memory_limit for g in problem.kind_of]
    nodes = nodes.copy()
    members = {int(f): np.flatnonzero(core.of == f) for f in np.flatnonzero(core.free)}
    if not members:
        return nodes

    def key(trial: Array) -> tuple[bool, list[float]]:
        loads = evaluate(problem, trial)
        over = any(x.memory > limit for x, limit in zip(loads, limits, strict=True))
        return over, sorted((x.total for x in loads), reverse=True)

    best = key(nodes)
    moved = True
    while moved:
        moved = False
        for held in members.values():
            for device in range(problem.devices):
                trial = nodes.copy()
                trial[held] = device
                if (score := key(trial)) < best:
                    best, nodes, moved = score, trial, True
    return nodes
