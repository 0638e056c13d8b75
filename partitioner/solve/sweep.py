"""The dynamic programme over a family of down-sets: the best chain of pieces, one a device.

    {} = I0 < I1 < ... < Iq = all         piece j = Ij \\ Ij-1, on an accelerator or a CPU core

best[I, a, c] is the smallest possible largest load of a way to cover I with a accelerators and
c cores. From each I that is reachable below the bound, a depth-first walk visits every larger
J whose piece J \\ I may still be below it, and keeps the piece's load up to date element by
element. With all down-sets the result is the optimum; with the prefixes of one topological
order it is the optimum for that order.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np

from partitioner.solve.elements import Elements
from partitioner.solve.lattice import Family, rows
from partitioner.solve.problem import Array

Pieces = list[tuple[str, list[int]]]  # ("acc" | "cpu", elements), first to last
MOST = 4  # free elements in a group: all sets of them are tried
SLICE = 512  # down-sets between two looks at the clock


@dataclass(frozen=True)
class Weights:
    """What a piece costs, element by element.

    groups, masks, times: of free elements set aside (see relax.py). Net e has the members masks[e]
    of group groups[e] besides its elements (-1 and 0: none); times[g, s] is the time of the
    members s of group g on an accelerator. A piece takes along what costs it least.
    """

    accelerator: Array
    cpu: Array
    memory: Array
    limit: float
    nets: tuple[tuple[float, tuple[int, ...]], ...]
    groups: tuple[int, ...]
    masks: tuple[int, ...]
    times: Array
    accelerators: int
    cpus: int


def weights(core: Elements) -> Weights:
    """The costs of a problem's own elements."""
    problem = core.problem
    return Weights(
        core.accelerator, core.cpu, core.memory, _limit(core), core.nets,
        (-1,) * len(core.nets), (0,) * len(core.nets), np.zeros((0, 1 << MOST)),
        problem.accelerators, problem.cpus,
    )  # fmt: skip


def _limit(core: Elements) -> float:
    """The memory limit; a hair less where sizes are not whole, so that no rounding passes it."""
    whole = bool((core.problem.memory == np.floor(core.problem.memory)).all())
    return core.problem.memory_limit * (1.0 if whole else 1 - 1e-12)


class Stopped(Exception):
    """The deadline passed before the sweep was done."""


def sweep(
    w: Weights, family: Family, bound: float, deadline: float = math.inf
) -> tuple[float, Pieces] | None:
    """The best chain with a largest load below the bound, or None. Raises Stopped."""
    nets = _nets(w)
    size = (len(family), (w.accelerators + 1) * (w.cpus + 1))
    table = Table(
        np.full(size, math.inf), np.full(size, -1, dtype=np.int32),
        np.full(len(family), -1, dtype=np.int32), _left(w, family, nets), np.array([bound]),
    )  # fmt: skip
    table.best[0, 0] = 0.0
    for start in range(0, len(family), SLICE):
        _sweep(
            np.arange(start, min(start + SLICE, len(family))),
            (family.starts, family.steps, family.added),
            (w.accelerator, w.cpu, w.memory), nets, table,
            (w.accelerators, w.cpus, float(w.limit), _relief(w)),
        )  # fmt: skip
        if time.perf_counter() > deadline:
            raise Stopped
    last = int(np.argmin(table.best[-1]))
    if not table.best[-1, last] < bound:
        return None
    return float(table.best[-1, last]), _pieces(family, table.came, last, w.cpus)


class Table(NamedTuple):
    """What a sweep writes: best and came are [down-sets, states], state a * (L + 1) + c.

    came: twice the down-set before, plus 1 for a core. stamp: the last down-set that a walk
    came here from. left: accelerator time and memory not yet placed, and the cost of all nets
    that the down-set cuts. bound: loads must be below.
    """

    best: Array
    came: Array
    stamp: Array
    left: Array
    bound: Array


class Nets(NamedTuple):
    """Nets for the kernel: those of each element as compressed rows, then columns by net.

    groups, taken: see Weights; taken[e, s] counts the members of net e in the set s of its group.
    choice: what each set of each group costs the piece of the walk: [groups, sets].
    inside: elements of each net in that piece.
    """

    starts: Array
    values: Array
    costs: Array
    sizes: Array
    groups: Array
    taken: Array
    choice: Array
    inside: Array


def _nets(w: Weights) -> Nets:
    held: list[list[int]] = [[] for _ in w.accelerator]
    for e, (_, members) in enumerate(w.nets):
        for v in members:
            held[v].append(e)
    sizes = np.array([len(m) for _, m in w.nets], dtype=np.int32)
    sizes += np.array([mask.bit_count() for mask in w.masks], dtype=np.int32)
    taken = _taken(w)
    return Nets(
        *rows(held), np.array([cost for cost, _ in w.nets], dtype=np.float64), sizes,
        np.array(w.groups, dtype=np.int32), taken, w.times + _opened(w, sizes, taken),
        np.zeros(len(sizes), dtype=np.int32),
    )  # fmt: skip


def _taken(w: Weights) -> Array:
    """How many free members of each net are in each set: [nets, sets]."""
    counts = [[(mask & s).bit_count() for s in range(1 << MOST)] for mask in w.masks]
    return np.array(counts, dtype=np.int32).reshape(-1, 1 << MOST)


def _opened(w: Weights, sizes: Array, taken: Array) -> Array:
    """What each set of free members pays without any element: [groups, sets]."""
    paid = np.zeros(w.times.shape)
    for e, g in enumerate(w.groups):
        if g >= 0:
            paid[g] += w.nets[e][0] * ((taken[e] > 0) & (taken[e] < sizes[e]))
    return paid


def _left(w: Weights, family: Family, nets: Nets) -> Array:
    """See Table. Elements that no accelerator can run have no accelerator time."""
    time_left = np.where(np.isfinite(w.accelerator), w.accelerator, 0.0)
    values = np.stack([time_left, w.memory], axis=1)
    left = np.zeros((len(family), 2))
    left[0] = values.sum(axis=0)
    for i in range(len(family)):
        a, b = family.starts[i], family.starts[i + 1]
        left[family.steps[a:b]] = left[i] - values[family.added[a:b]]
    members = rows([members for _, members in w.nets])
    cut = np.zeros(len(family))
    _cut(family.bits, family.starts, family.steps, family.added, nets, *members, cut)
    return np.column_stack([left, cut])


def _relief(w: Weights) -> float:
    """The most accelerator time that a core saves in one unit of its own."""
    costly = w.accelerator > 0
    if (w.cpu[costly] == 0).any():
        return math.inf
    finite = costly & np.isfinite(w.accelerator) & np.isfinite(w.cpu)
    return float((w.accelerator[finite] / w.cpu[finite]).max(initial=0.0))


def _pieces(family: Family, came: Array, state: int, cpus: int) -> Pieces:
    """The chain that led to a state of the full set."""
    found: Pieces = []
    at = len(family) - 1
    while at != 0:
        code = int(came[at, state])
        at_before, on_cpu = divmod(code, 2)
        found.append(("cpu" if on_cpu else "acc", family.difference(at, at_before)))
        state -= 1 if on_cpu else cpus + 1
        at = at_before
    return found[::-1]


@numba.njit(cache=True)
def _cut(bits, starts, steps, added, nets, first, members, cut):  # type: ignore[no-untyped-def]
    """The cost of the nets that each down-set cuts, from that of a smaller one."""
    known = np.zeros(bits.shape[0], dtype=np.bool_)
    for i in range(bits.shape[0]):
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
                    total += nets.costs[e]
                if nets.groups[e] < 0 and inside + 1 == nets.sizes[e]:
                    total -= nets.costs[e]
            cut[steps[k]] = total


@numba.njit(cache=True)
def _sweep(indices, family, times, nets, table, limits):  # type: ignore[no-untyped-def]
    """Walk from each down-set of the range. (numba infers the types.)"""
    starts, steps, added = family
    accs, cpus, limit, _ = limits
    n = times[0].shape[0]
    path, at = np.zeros(n + 1, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
    elem = np.zeros(n + 1, dtype=np.int64)
    sums = np.zeros((n + 1, 5))  # of the walk's piece: acc, cpu, memory, nets cut, free elements
    active = np.zeros(table.best.shape[1], dtype=np.int64)
    for i in indices:
        alive = _alive(i, table, limits, active)
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
            x, y = sums[depth, 0] + times[0][v], sums[depth, 1] + times[1][v]
            z = sums[depth, 2] + times[2][v]
            fits = accs > 0 and x < table.bound[0] and z <= limit
            if not fits and not (cpus > 0 and y < table.bound[0]):
                continue
            cut, free = _enter(v, nets, sums[depth, 3], sums[depth, 4])
            depth += 1
            path[depth], at[depth], elem[depth] = child, starts[child], v
            sums[depth, 0], sums[depth, 1], sums[depth, 2] = x, y, z
            sums[depth, 3], sums[depth, 4] = cut, free
            load = x + cut + free if fits else np.inf
            _record(i, child, load, y, table, limits, active[:alive])


@numba.njit(cache=True)
def _alive(i, table, limits, active):  # type: ignore[no-untyped-def]
    """The states of a down-set that may still lead below the bound; how many there are.

    Not those where too few devices are left for what is left, and not those that another state
    with no more devices is as good as.
    """
    accs, cpus, limit, relief = limits
    bound, alive = table.bound[0], 0
    for s in range(table.best.shape[1]):
        value = table.best[i, s]
        if not value < bound:
            continue
        a, c = s // (cpus + 1), s % (cpus + 1)
        spare = (accs - a) * bound
        if c < cpus:
            spare += (cpus - c) * bound * relief
            need = table.left[i, 0]
        else:  # an accelerator pays for each net that is cut here
            need = table.left[i, 0] + table.left[i, 2]
            if table.left[i, 1] > (accs - a) * limit * (1 + 1e-9):
                continue
        if need > spare * (1 + 1e-9):
            continue
        worse = False
        for t in active[:alive]:
            if t % (cpus + 1) <= c and table.best[i, t] <= value:
                worse = True
        if not worse:
            active[alive] = s
            alive += 1
    return alive


@numba.njit(cache=True)
def _record(i, child, load, core_load, table, limits, active):  # type: ignore[no-untyped-def]
    """A piece from i to the child: on an accelerator, on a core, after each active state."""
    accs, cpus = limits[0], limits[1]
    best = table.best
    for s in active:
        if load < table.bound[0] and s // (cpus + 1) < accs:
            value, t = max(best[i, s], load), s + cpus + 1
            if value < min(best[child, t], table.bound[0]):
                best[child, t], table.came[child, t] = value, 2 * i
        if core_load < table.bound[0] and s % (cpus + 1) < cpus:
            value = max(best[i, s], core_load)
            if value < min(best[child, s + 1], table.bound[0]):
                best[child, s + 1], table.came[child, s + 1] = value, 2 * i + 1
    if child == best.shape[0] - 1:
        table.bound[0] = min(table.bound[0], best[child].min())


@numba.njit(cache=True)
def _enter(v, nets, cut, free):  # type: ignore[no-untyped-def]
    """Take an element into the piece: what it then pays for nets, and for free elements."""
    for k in range(nets.starts[v], nets.starts[v + 1]):
        e = nets.values[k]
        g = nets.groups[e]
        if g >= 0:
            free -= nets.choice[g].min()
            _turn(nets.choice[g], nets.taken[e], nets.inside[e], nets.sizes[e], nets.costs[e])
            free += nets.choice[g].min()
        elif nets.inside[e] == 0:
            cut += nets.costs[e]
        nets.inside[e] += 1
        if g < 0 and nets.inside[e] == nets.sizes[e]:
            cut -= nets.costs[e]
    return cut, free


@numba.njit(cache=True)
def _leave(v, nets):  # type: ignore[no-untyped-def]
    """Take an element out of the piece again."""
    for k in range(nets.starts[v], nets.starts[v + 1]):
        e = nets.values[k]
        g = nets.groups[e]
        nets.inside[e] -= 1
        if g >= 0:
            _turn(nets.choice[g], nets.taken[e], nets.inside[e], nets.sizes[e], -nets.costs[e])


@numba.njit(cache=True)
def _turn(choice, taken, count, size, cost):  # type: ignore[no-untyped-def]
    """A net's element comes in (cost > 0) or goes out: which sets of free members now pay."""
    for s in range(choice.shape[0]):
        before = count + taken[s]
        if before == 0:
            choice[s] += cost
        if before + 1 == size:
            choice[s] -= cost
