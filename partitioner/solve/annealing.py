"""Searches of placements without order: all of them, or simulated annealing by moves.

The energy is the p-norm of the loads: smooth, and for large p close to the largest one. A step
moves an element, swaps two, or moves all elements of a net at once (single moves would have to
climb over its cost twice). A move that breaks the memory limit is not made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partitioner.base.compiled import compiled, inner, overwrite
from partitioner.solve.down_sets import rows
from partitioner.solve.elements import Elements
from symgraph.core.types import Array

START_HEAT, END_HEAT = 0.03, 1e-5  # temperatures, as shares of the energy


def anneal(core: Elements, devices: Array, steps: int, seed: int) -> Array:
    """Return the best element -> device met from a feasible start, never worse than it."""
    start = devices.astype(np.int64)
    best: Array = _anneal(start, *_tables(core), steps, np.uint64(seed + 1))
    return best


def try_all(core: Elements, devices: Array) -> Array:
    """Return the best element -> device of all: the given feasible one, or a better one."""
    best: Array = _try_all(devices.astype(np.int64), rows(options(core)), *_tables(core))
    return best


def options(core: Elements) -> list[list[int]]:
    """List the devices that each element can run on."""
    return [np.flatnonzero(row).tolist() for row in np.isfinite(core.times[core.kind_of].T)]


def _tables(core: Elements) -> tuple[Any, ...]:
    """Return what the compiled searches read: times, memory, limits, nets and their costs."""
    costs = np.array([costs for costs, _ in core.nets], dtype=np.float64)
    return (
        core.times[core.kind_of].T.copy(),
        core.memory,
        core.limits[core.kind_of],
        rows(core.nets_of),
        rows([members for _, members in core.nets]),
        costs.reshape(-1, len(core.kinds))[:, core.kind_of].copy(),
    )


@inner()
def _draw(state):  # type: ignore[no-untyped-def]  # numba infers
    """Draw a number in [0, 1) by xorshift64*: the same on every machine."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@inner()
def _put(v, b, home, times, memory, nets, members, costs, count, load, used):  # type: ignore[no-untyped-def]
    """Move v to device b and keep the loads up to date. (numba infers the types.)"""
    a = home[v]
    if a == b:
        return
    home[v] = b
    load[a] -= times[v, a]
    load[b] += times[v, b]
    used[a] -= memory[v]
    used[b] += memory[v]
    for k in range(nets[0][v], nets[0][v + 1]):
        e = nets[1][k]
        size = members[0][e + 1] - members[0][e]
        load[a] += costs[e, a] * ((1 if count[e, a] > 1 else 0) - (1 if count[e, a] < size else 0))
        load[b] += costs[e, b] * (
            (1 if count[e, b] + 1 < size else 0) - (1 if count[e, b] > 0 else 0)
        )
        count[e, a] -= 1
        count[e, b] += 1


@inner()
def _within(used, limits):  # type: ignore[no-untyped-def]  # numba infers
    """Tell whether no device is too small."""
    fits = True
    for d in range(len(used)):
        fits &= used[d] <= limits[d]
    return fits


@inner()
def _energy(load, scale):  # type: ignore[no-untyped-def]  # numba infers
    """Return the 16-norm of the loads."""
    total = 0.0
    for x in load:
        y = (x / scale) ** 2
        y *= y
        y *= y
        total += y * y
    return np.sqrt(np.sqrt(np.sqrt(np.sqrt(total))))


@inner()
def _propose(state, home, devices, members, moved, to):  # type: ignore[no-untyped-def]
    """Draw a step into `moved` and `to`; return how many elements it moves."""
    n, nets = home.shape[0], members[0].shape[0] - 1
    kind = _draw(state)
    if kind < 0.2 and nets > 0:
        e = int(_draw(state) * nets)
        first = members[0][e]
        size = members[0][e + 1] - first
        b = home[members[1][first + int(_draw(state) * size)]]
        if kind < 0.1:
            b = int(_draw(state) * devices)
        for k in range(size):
            moved[k], to[k] = members[1][first + k], b
        return size
    v = int(_draw(state) * n)
    moved[0], to[0] = v, int(_draw(state) * devices)
    if kind < 0.6:
        return 1
    w = int(_draw(state) * n)
    moved[1], to[0], to[1] = w, home[w], home[v]
    return 0 if v == w else 2


@inner()
def _counted(home, times, memory, nets, members, costs):  # type: ignore[no-untyped-def]
    """Count elements of each net on each device; add up the devices' loads and memory."""
    n, devices = times.shape
    count = np.zeros((costs.shape[0], devices), dtype=np.int64)
    load, used = np.zeros(devices), np.zeros(devices)
    for v in range(n):
        load[home[v]] += times[v, home[v]]
        used[home[v]] += memory[v]
        for k in range(nets[0][v], nets[0][v + 1]):
            count[nets[1][k], home[v]] += 1
    for e in range(costs.shape[0]):
        for d in range(devices):
            if 0 < count[e, d] < members[0][e + 1] - members[0][e]:
                load[d] += costs[e, d]
    return count, load, used


@compiled()
def _anneal(start, times, memory, limits, nets, members, costs, steps, seed):  # type: ignore[no-untyped-def]
    """Return the best placement met. (numba infers the types.)"""
    n, devices = times.shape
    state = np.full(1, seed, dtype=np.uint64)
    home = start.copy()
    count, load, used = _counted(home, times, memory, nets, members, costs)
    moved, to = np.zeros(n + 2, dtype=np.int64), np.zeros(n + 2, dtype=np.int64)
    back = np.zeros(n + 2, dtype=np.int64)
    best, least, scale = home.copy(), load.max(), load.max()
    energy = _energy(load, scale)
    cooling = (END_HEAT / START_HEAT) ** (1 / steps)
    heat = START_HEAT
    for _ in range(steps):
        heat *= cooling
        size = _propose(state, home, devices, members, moved, to)
        moves, fits = False, True
        for k in range(size):
            moves |= home[moved[k]] != to[k]
            fits &= np.isfinite(times[moved[k], to[k]])
        if not (moves and fits):
            continue
        for k in range(size):
            back[k] = home[moved[k]]
            _put(moved[k], to[k], home, times, memory, nets, members, costs, count, load, used)
        after = _energy(load, scale)
        better = after <= energy
        fits = _within(used, limits)
        if fits and (better or _draw(state) < np.exp((energy - after) / (heat * energy))):
            energy = after
            if load.max() < least * (1 - 1e-12):
                least = load.max()
                overwrite(best, home)
            continue
        for k in range(size - 1, -1, -1):
            _put(moved[k], back[k], home, times, memory, nets, members, costs, count, load, used)
    return best


@compiled()
def _try_all(start, options, times, memory, limits, nets, members, costs):  # type: ignore[no-untyped-def]
    """Count through all placements, the first element fastest. (numba infers the types.)"""
    n = times.shape[0]
    best, home, chosen = start.copy(), start.copy(), np.zeros(n, dtype=np.int64)
    least = _counted(home, times, memory, nets, members, costs)[1].max()
    for v in range(n):
        home[v] = options[1][options[0][v]]
    count, load, used = _counted(home, times, memory, nets, members, costs)
    v = 0
    while v < n:
        if _within(used, limits) and load.max() < least * (1 - 1e-12):
            least = load.max()
            overwrite(best, home)
        v = 0
        while v < n:
            chosen[v] += 1
            carry = options[0][v] + chosen[v] == options[0][v + 1]
            if carry:
                chosen[v] = 0
            to = options[1][options[0][v] + chosen[v]]
            _put(v, to, home, times, memory, nets, members, costs, count, load, used)
            if not carry:
                break
            v += 1
    return best
