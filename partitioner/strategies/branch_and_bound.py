"""Branch and bound on the coarse graph: the best placement over the machine's links, with proof.

The solvers charge a value once to its sender and know one link per device. Here every message is
counted as it is sent; classes are placed one after another, and branches that cannot end below the
best so far are cut. Steps are limited, so the result is the same every time: small graphs are
searched completely, on others the search may only improve the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partitioner.base.compiled import compiled, inner, overwrite
from partitioner.solve.down_sets import rows
from partitioner.solve.prices import best_prices, priced
from partitioner.strategies.coarse import Coarse
from partitioner.strategies.loads import Loads
from symgraph.core.types import Array

STEP_COST = 200  # steps of the budget for putting a part on a device
MAX_DEVICES = 60  # sets of them are bits of an integer


class Task(NamedTuple):
    """The coarse graph for the kernel; rows are compressed: (starts, values)."""

    #: The classes of each part, which is placed as one, as rows.
    starts: Array
    classes: Array
    #: Seconds: [devices, classes].
    times: Array
    #: Bytes of each class, and of each device.
    memory: Array
    limits: Array
    #: Whether a part may be on a device: [parts, devices].
    allowed: Array
    #: Seconds of each star's messages between two devices: [stars, devices, devices].
    costs: Array
    #: Rows by class: the stars that it is the centre of, and those that it is another end of.
    centre: tuple[Array, Array]
    other: tuple[Array, Array]
    #: Rows by class: the classes that forward values come from (`into`) or go to.
    arcs: tuple[Array, Array]
    into: Array
    #: The last device before each that is just like it; -1: none.
    twin: Array
    #: The price of a second on each device.
    prices: Array
    #: The least price of all parts from each one on.
    rest: Array
    contiguous: bool


def searched(coarse: Coarse, devices: Sequence[int]) -> tuple[list[int], bool]:
    """Search all placements from a start that keeps all limits; a contiguous one stays so.

    Returns:
        class -> device, no slower than the start, and whether it is proved that none is faster.
    """
    if len(coarse.limits) > MAX_DEVICES:
        return list(devices), False
    start = Loads(coarse, devices)
    task = _task(coarse, coarse.contiguous and start.acyclic())
    best_devices = np.array(devices, dtype=np.int64)
    steps = int(coarse.constraints.steps / STEP_COST)
    done = bool(_search(task, best_devices, np.array([start.largest]), steps))
    return best_devices.tolist(), done


def _task(coarse: Coarse, contiguous: bool) -> Task:
    k, held = len(coarse.limits), coarse.parts
    latency, rate = coarse.link_costs
    costs = np.array([s.messages * latency + s.nbytes * rate for s in coarse.stars])
    centre: list[list[int]] = [[] for _ in coarse.names]
    other: list[list[int]] = [[] for _ in coarse.names]
    arcs: list[dict[int, bool]] = [{} for _ in coarse.names]
    for i, star in enumerate(coarse.stars):
        centre[star.centre].append(i)
        for c in star.others:
            other[c].append(i)
            if not star.backward:
                arcs[star.centre][c], arcs[c][star.centre] = False, True
    limits = np.array([np.inf if x is None else x for x in coarse.limits])
    allowed = coarse.allowed[[part[0] for part in held]]
    price = best_prices(coarse.times, np.ones(k))
    least = priced(coarse.times, price)
    weight = [float(least[part].sum()) for part in held]
    return Task(
        *rows(held),
        coarse.times,
        coarse.memory.astype(np.float64),
        limits,
        allowed,
        costs.reshape(-1, k, k),
        rows(centre),
        rows(other),
        rows([list(a) for a in arcs]),
        np.array([into for a in arcs for into in a.values()], dtype=np.bool_),
        np.array(twins(coarse)),
        price,
        np.append(np.cumsum(weight[::-1])[::-1], 0.0),
        contiguous,
    )


def twins(coarse: Coarse) -> list[int]:
    """Find each device's twin, the last before it that is just like it, or -1.

    Of two that are alike and empty, the first is as good.
    """
    k, limits, (latency, rate) = len(coarse.limits), coarse.limits, coarse.link_costs

    def alike(a: int, b: int) -> bool:
        order = np.arange(k)
        order[[a, b]] = b, a
        return (
            limits[a] == limits[b]
            and np.array_equal(coarse.allowed[:, a], coarse.allowed[:, b])
            and np.array_equal(coarse.times[a], coarse.times[b])
            and all(np.array_equal(x, x[np.ix_(order, order)]) for x in (latency, rate))
        )

    return [max((a for a in range(b) if alike(a, b)), default=-1) for b in range(k)]


@compiled()
def _search(task, found, best, steps):  # type: ignore[no-untyped-def]
    """Improve found and best; return whether all has been searched. (numba infers the types.)"""
    k, depth, n = task.times.shape[0], 0, task.starts.shape[0] - 1
    stars = task.costs.shape[0]
    load, held = np.zeros((n + 1, k)), np.zeros((n + 1, k))
    before = np.zeros((n + 1, k), dtype=np.int64)  # bit sets of devices that values come from
    count, home = np.zeros((stars, k), dtype=np.int64), np.full(stars, -1)
    on, placed = np.full(task.times.shape[1], -1), np.zeros(k, dtype=np.int64)
    first = found[task.classes[task.starts[:-1]]].copy()
    tried = np.zeros(n + 1, dtype=np.int64)
    while depth >= 0:
        if depth == n or tried[depth] == k:
            depth -= 1
            if depth >= 0:
                _take(task, depth, on, count, home, placed)
            continue
        d = tried[depth] - 1  # the device of the start, then the others in order
        d = first[depth] if d < 0 else d if d < first[depth] else d + 1
        tried[depth] += 1
        if not task.allowed[depth, d]:
            continue
        if not placed[d] and task.twin[d] >= 0 and not placed[task.twin[d]]:
            continue
        steps -= 1
        if steps < 0:
            return False
        overwrite(load[depth + 1], load[depth])
        overwrite(held[depth + 1], held[depth])
        overwrite(before[depth + 1], before[depth])
        _put(task, depth, d, on, count, home, load[depth + 1], held[depth + 1], before[depth + 1])
        placed[d] += 1
        if _hopeless(task, depth + 1, d, load, held, before, best[0]):
            _take(task, depth, on, count, home, placed)
            continue
        depth += 1
        tried[depth] = 0
        if depth == n:
            best[0] = load[depth].max()
            overwrite(found, on)
    return True


@inner()
def _hopeless(task, depth, d, load, held, before, best):  # type: ignore[no-untyped-def]
    """Tell whether no placement of the other parts ends below the best."""
    bound = best * (1 - 1e-9)
    if (held[depth] > task.limits).any() or load[depth].max() >= bound:
        return True
    spent = (task.prices * load[depth]).sum() + task.rest[depth]
    if spent >= bound * task.prices.sum():
        return True
    if not task.contiguous:
        return False
    reached, fresh = np.int64(0), before[depth, d]
    while fresh:  # all devices that values come to d from, over others too
        reached |= fresh
        following = np.int64(0)
        for e in range(task.times.shape[0]):
            if fresh >> e & 1:
                following |= before[depth, e]
        fresh = following & ~reached
    return reached >> d & 1 != 0


@inner()
def _put(task, part, d, on, count, home, load, held, before):  # type: ignore[no-untyped-def]
    """Put a part's classes on a device, and count the messages that are then known."""
    k = load.shape[0]
    for c in task.classes[task.starts[part] : task.starts[part + 1]]:
        on[c] = d
        load[d] += task.times[d, c]
        held[d] += task.memory[c]
        for s in task.centre[1][task.centre[0][c] : task.centre[0][c + 1]]:
            home[s] = d
            for e in range(k):
                if e != d and count[s, e]:
                    load[d] += task.costs[s, d, e]
                    load[e] += task.costs[s, d, e]
        for s in task.other[1][task.other[0][c] : task.other[0][c + 1]]:
            count[s, d] += 1
            if count[s, d] == 1 and home[s] >= 0 and home[s] != d:
                load[d] += task.costs[s, home[s], d]
                load[home[s]] += task.costs[s, home[s], d]
        for j in range(task.arcs[0][c], task.arcs[0][c + 1]):
            e = on[task.arcs[1][j]]
            if e >= 0 and e != d:
                if task.into[j]:
                    before[d] |= 1 << e
                else:
                    before[e] |= 1 << d


@inner()
def _take(task, part, on, count, home, placed):  # type: ignore[no-untyped-def]
    """Undo _put, except for the loads, which each depth has its own of."""
    d = on[task.classes[task.starts[part]]]
    placed[d] -= 1
    for c in task.classes[task.starts[part] : task.starts[part + 1]]:
        for s in task.centre[1][task.centre[0][c] : task.centre[0][c + 1]]:
            home[s] = -1
        for s in task.other[1][task.other[0][c] : task.other[0][c + 1]]:
            count[s, d] -= 1
        on[c] = -1
