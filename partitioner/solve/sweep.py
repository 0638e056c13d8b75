"""The dynamic programme over a family of down-sets: the best chain of pieces, one per device.

    {} = I0 < I1 < ... < Iq = all         piece j = Ij \\ Ij-1, on a device of some kind

best[I, s] is the smallest possible largest load of a way to cover I with as many devices of each
kind as the state s says. From each I that is reachable below the bound, a depth-first walk visits
every larger J whose piece J \\ I may still be below it, and keeps the piece's load up to date
element by element. With all down-sets the result is the optimum; with the prefixes of one
topological order it is the optimum for that order.

A kind of one device that alone can run some element is used where that element is: no state has
to count it.

With a goal, best[I, s] is the smallest sum of all loads instead, of those below the bound, without
the time of free elements that are set aside: whether the devices have room for those, too.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from partitioner.base.compiled import compiled, inner, overwrite
from partitioner.solve.budget import Budget
from partitioner.solve.down_sets import Family, rows
from partitioner.solve.prices import priced
from partitioner.solve.weights import Nets, Weights, nets_of
from symgraph.core.types import Array

Pieces = list[tuple[int, list[int]]]  # (kind, elements), first to last
SLICE_SETS = 512  # down-sets between two looks at the budget
FEW_KINDS = 3  # with more kinds, the rest is not priced for every set of kinds that may be left


class Kinds(NamedTuple):
    """The kinds for the kernel."""

    counts: Array  #: devices of each kind
    limits: Array  #: bytes that each of them may hold
    strides: Array  #: the number that one more device adds to a state; 0: not counted
    own: Array  #: an element that only this kind's one device can run; -1: none
    prices: Array  #: the price of a second on each kind
    left: Array  #: the row of Table.left for each set of kinds that are left, as a bit set


class Table(NamedTuple):
    """The results of a sweep."""

    best: Array  #: the least largest load, or sum of loads, so far: [down-sets, states]
    came: Array  #: the down-set before, times the number of kinds, plus the piece's kind
    stamp: Array  #: the last down-set from which a walk came to each
    #: The cost of unplaced elements and cut nets at the prices of some kinds, then a row of
    #: memory: [rows, down-sets].
    left: Array
    bound: Array  #: the bound that loads must stay below
    goal: float  #: the bound on the priced sum of all loads; inf: none
    steps: Array  #: the number of steps of all walks


def states(w: Weights) -> int:
    """Count the states of a down-set: how many devices of each kind are used."""
    return math.prod(count + 1 for count, own in zip(w.counts, _own(w), strict=True) if own < 0)


def sweep(
    w: Weights, family: Family, bound: float, budget: Budget, goal: float = math.inf
) -> tuple[float, Pieces] | None:
    """Find the best chain with a largest load below the bound; None if there is none.

    Args:
        w: the costs of pieces.
        family: the down-sets to walk.
        bound: loads are below it.
        budget: the budget of the walks.
        goal: if finite, find the chain with the smallest sum of loads instead, below this goal.

    Raises:
        Stopped: when the budget is spent.
    """
    nets = nets_of(w)
    kinds, left = _kinds(w, family, nets)
    size = (len(family), states(w))
    table = Table(
        np.full(size, math.inf),
        np.full(size, -1, dtype=np.int32),
        np.full(len(family), -1, dtype=np.int32),
        left,
        np.array([bound]),
        goal,
        np.zeros(1, dtype=np.int64),
    )
    table.best[0, 0] = 0.0
    for start in range(0, len(family), SLICE_SETS):
        before = int(table.steps[0])
        _sweep(
            np.arange(start, min(start + SLICE_SETS, len(family))),
            (family.starts, family.steps, family.added, family.bits),
            (w.times, w.memory),
            nets,
            table,
            kinds,
        )
        budget.take(int(table.steps[0]) - before)
    last = int(np.argmin(table.best[-1]))
    if not table.best[-1, last] < (bound if math.isinf(goal) else goal):
        return None
    return float(table.best[-1, last]), _pieces(family, table.came, last, kinds.strides)


def _own(w: Weights) -> list[int]:
    """Find, for each kind of one device, an element that nothing else can run; else -1."""
    runs = np.isfinite(w.times)
    own = []
    for g, count in enumerate(w.counts):
        alone = np.flatnonzero(runs[g] & (runs.sum(axis=0) == 1))
        own.append(int(alone[0]) if count == 1 and len(alone) else -1)
    return own


def _kinds(w: Weights, family: Family, nets: Nets) -> tuple[Kinds, Array]:
    """Lay out the kinds for the kernel; return them and Table.left."""
    own = _own(w)
    strides, size = [], 1
    for count, alone in zip(w.counts, own, strict=True):
        strides.append(0 if alone >= 0 else size)
        size *= 1 if alone >= 0 else count + 1
    k = len(w.counts)
    every = (1 << k) - 1
    sets = list(range(1, every + 1)) if k <= FEW_KINDS else [every]
    row = np.array([sets.index(s if s in sets else every) for s in range(1 << min(k, FEW_KINDS))])
    kinds = Kinds(
        np.array(w.counts),
        np.array(w.limits, dtype=np.float64),
        np.array(strides, dtype=np.int64),
        np.array(own, dtype=np.int64),
        w.prices,
        row,
    )
    left = [_left(w, family, nets, [g for g in range(k) if s >> g & 1]) for s in sets]
    return kinds, np.stack([*left, _unplaced(family, w.memory)])


def _left(w: Weights, family: Family, nets: Nets, kinds: list[int]) -> Array:
    """Bound what the elements outside each down-set, and the nets it cuts, cost these kinds."""
    price = w.prices[kinds]
    costs = (nets.costs[kinds] * price[:, None]).min(axis=0)
    left = _unplaced(family, priced(w.times[kinds], price))
    first, members = rows([members for _, members in w.nets])
    _cut(family.bits, family.starts, family.steps, family.added, nets, costs, first, members, left)
    return left


def _unplaced(family: Family, values: Array) -> Array:
    """Add up the elements' values outside each down-set."""
    left = np.zeros(len(family))
    _sum_outside(family.starts, family.steps, family.added, values, left)
    return left


def _pieces(family: Family, came: Array, state: int, strides: Array) -> Pieces:
    """Trace back the chain that led to a state of the full set."""
    pieces: Pieces = []
    at = len(family) - 1
    while at != 0:
        before, kind = divmod(int(came[at, state]), len(strides))
        pieces.append((kind, family.difference(at, before)))
        state -= int(strides[kind])
        at = before
    return pieces[::-1]


@compiled()
def _sum_outside(starts, steps, added, values, left):  # type: ignore[no-untyped-def]
    """Add up the values outside each down-set, from the full one down. (numba infers.)"""
    for i in range(left.shape[0] - 2, -1, -1):
        k = starts[i]  # any step will do: all lead to the full one
        left[i] = left[steps[k]] + values[added[k]]


@compiled()
def _cut(bits, starts, steps, added, nets, costs, first, members, left):  # type: ignore[no-untyped-def]
    """Add the cost of the nets that each down-set cuts, which follows from a smaller one's."""
    cut, known = np.zeros(bits.shape[0]), np.zeros(bits.shape[0], dtype=np.bool_)
    for i in range(bits.shape[0]):
        left[i] += cut[i]
        for k in range(starts[i], starts[i + 1]):
            if known[steps[k]]:
                continue
            known[steps[k]] = True
            total, v = cut[i], added[k]
            for j in range(nets.starts[v], nets.starts[v + 1]):
                e = nets.values[j]
                inside = 0
                for u in members[first[e] : first[e + 1]]:
                    inside += (bits[i, u >> 6] >> np.uint64(u & 63)) & np.uint64(1) != 0
                if nets.groups[e] < 0 and inside == 0:
                    total += costs[e]
                if nets.groups[e] < 0 and inside + 1 == nets.sizes[e]:
                    total -= costs[e]
            cut[steps[k]] = total


@compiled()
def _sweep(indices, family, costs, nets, table, kinds):  # type: ignore[no-untyped-def]
    """Walk from each down-set of the range. (numba infers the types.)"""
    starts, steps, added, bits = family
    times, memory = costs
    k, n = times.shape
    path, at = np.zeros(n + 1, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
    elem, held = np.zeros(n + 1, dtype=np.int64), np.zeros(n + 1)
    compute, cut = np.zeros((n + 1, k)), np.zeros((n + 1, k))  # of the walk's piece, by depth
    free, bare = np.zeros((n + 1, k)), np.zeros((n + 1, k))
    active = np.zeros(table.best.shape[1], dtype=np.int64)
    room = np.zeros(k, dtype=np.int64)
    for i in indices:
        alive = _alive(i, bits, table, kinds, active, room)
        if not alive:
            continue
        depth = 0
        path[0], at[0] = i, starts[i]
        while depth >= 0:
            if at[depth] == starts[path[depth] + 1]:
                if depth > 0:
                    _leave(elem[depth], nets)
                depth -= 1
                continue
            child, v = steps[at[depth]], added[at[depth]]
            at[depth] += 1
            if table.stamp[child] == i:
                continue
            table.stamp[child] = i
            table.steps[0] += 1
            fits = False
            for g in range(k):
                x = compute[depth, g] + times[g, v]
                compute[depth + 1, g] = x
                fits |= x < table.bound[0] and held[depth] + memory[v] <= kinds.limits[g]
            if not fits:
                continue
            held[depth + 1] = held[depth] + memory[v]
            depth += 1
            overwrite(cut[depth], cut[depth - 1])
            overwrite(free[depth], free[depth - 1])
            overwrite(bare[depth], bare[depth - 1])
            _enter(v, nets, cut[depth], free[depth], bare[depth])
            path[depth], at[depth], elem[depth] = child, starts[child], v
            for g in range(k):
                load = compute[depth, g] + cut[depth, g] + free[depth, g]
                fits = load < table.bound[0] and held[depth] <= kinds.limits[g]
                if fits and (kinds.own[g] < 0 or _holds(bits, i, child, kinds.own[g])):
                    if table.goal < np.inf:
                        load = (load - free[depth, g] + bare[depth, g]) * kinds.prices[g]
                    _record(i, child, g, load, table, kinds, active[:alive])


@inner()
def _holds(bits, i, child, v):  # type: ignore[no-untyped-def]
    """Tell whether an element is in the piece between two down-sets."""
    words = bits[child, v >> 6] & ~bits[i, v >> 6]
    return (words >> np.uint64(v & 63)) & np.uint64(1) != 0


@inner()
def _alive(i, bits, table, kinds, active, room):  # type: ignore[no-untyped-def]
    """List the states of a down-set that may still lead below the bound; return their number.

    Left out are those with too few devices for what is left, and those that are no better than
    another state with no more devices of any kind.
    """
    bound, alive, k = table.bound[0], 0, kinds.counts.shape[0]
    last = table.left.shape[0] - 1
    for s in range(table.best.shape[1]):
        value = table.best[i, s]
        if not value < (table.goal if table.goal < np.inf else bound):
            continue
        spare, space, which = 0.0, 0.0, 0
        for g in range(k):
            v = kinds.own[g]
            if v >= 0:
                room[g] = (bits[i, v >> 6] >> np.uint64(v & 63)) & np.uint64(1) == 0
            else:
                room[g] = kinds.counts[g] - s // kinds.strides[g] % (kinds.counts[g] + 1)
            if room[g]:
                spare += room[g] * kinds.prices[g] * bound
                space += room[g] * kinds.limits[g]
                which |= 1 << g
        row = kinds.left[which] if k <= FEW_KINDS else 0
        if which and table.left[row, i] > spare * (1 + 1e-9):
            continue
        if table.goal < np.inf and value + table.left[row, i] > table.goal * (1 + 1e-9):
            continue
        if not which or table.left[last, i] > space * (1 + 1e-9):
            continue
        if not _worse(s, value, i, table, kinds, active[:alive]):
            active[alive] = s
            alive += 1
    return alive


@inner()
def _worse(s, value, i, table, kinds, active):  # type: ignore[no-untyped-def]
    """Tell whether an active state is as good with no more devices of any kind."""
    for t in active:
        if table.best[i, t] > value:
            continue
        more = False
        for g in range(kinds.counts.shape[0]):
            if kinds.strides[g]:
                size = kinds.counts[g] + 1
                more |= t // kinds.strides[g] % size > s // kinds.strides[g] % size
        if not more:
            return True
    return False


@inner()
def _record(i, child, g, load, table, kinds, active):  # type: ignore[no-untyped-def]
    """Record a piece from i to the child on a device of kind g, after each active state."""
    best, stride = table.best, kinds.strides[g]
    for s in active:
        if stride and s // stride % (kinds.counts[g] + 1) == kinds.counts[g]:
            continue
        t = s + stride
        value, limit = max(best[i, s], load), table.bound[0]
        if table.goal < np.inf:
            value, limit = best[i, s] + load, table.goal
        if value < min(best[child, t], limit):
            best[child, t], table.came[child, t] = value, i * kinds.counts.shape[0] + g
    if child == best.shape[0] - 1 and table.goal == np.inf:
        table.bound[0] = min(table.bound[0], best[child].min())


@inner()
def _enter(v, nets, cut, free, bare):  # type: ignore[no-untyped-def]
    """Take an element into the piece; update what it pays for nets and for free elements."""
    for j in range(nets.starts[v], nets.starts[v + 1]):
        e = nets.values[j]
        group = nets.groups[e]
        for g in range(cut.shape[0]):
            cost = nets.costs[g, e]
            if group >= 0:
                choice = nets.choice[g, group]
                free[g] -= choice.min()
                _turn(choice, nets.taken[e], nets.inside[e], nets.sizes[e], cost)
                free[g] += choice.min()
                choice = nets.bare[g, group]
                bare[g] -= choice.min()
                _turn(choice, nets.taken[e], nets.inside[e], nets.sizes[e], cost)
                bare[g] += choice.min()
            else:
                if nets.inside[e] == 0:
                    cut[g] += cost
                if nets.inside[e] + 1 == nets.sizes[e]:
                    cut[g] -= cost
        nets.inside[e] += 1


@inner()
def _leave(v, nets):  # type: ignore[no-untyped-def]
    """Take an element out of the piece."""
    for j in range(nets.starts[v], nets.starts[v + 1]):
        e = nets.values[j]
        group = nets.groups[e]
        nets.inside[e] -= 1
        if group >= 0:
            for g in range(nets.costs.shape[0]):
                for choice in (nets.choice[g, group], nets.bare[g, group]):
                    _turn(choice, nets.taken[e], nets.inside[e], nets.sizes[e], -nets.costs[g, e])


@inner()
def _turn(choice, taken, count, size, cost):  # type: ignore[no-untyped-def]
    """Add (cost > 0) or remove an element of a net; update which sets of free members pay."""
    for s in range(choice.shape[0]):
        before = count + taken[s]
        if before == 0:
            choice[s] += cost
        if before + 1 == size:
            choice[s] -= cost
