"""Kernels of the bound on steps: what no order of runs can beat, for placements in part or whole.

The bound holds for every schedule, as messages overlap with runs: a run begins when what it reads
has come, a rank does one thing at a time, and so does a link.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partitioner.base.compiled import compiled, inner, largest, overwrite
from symgraph.core.types import Array

SWEEPS = 8  # through all items, at most: what is not settled then is bounded less sharply
NOWHERE = -1


class Task(NamedTuple):
    """A network in outline on a machine, for the kernels; rows are compressed: (starts, values).

    Items are listed after those that they read from.
    """

    #: The number of micro-batches, and the seconds from the last run to the end of the step.
    mbs: int
    meeting: float
    #: By item: its atom and phase (0 forward, 1 input gradients, 2 weight gradients), and the items
    #: of the two terms of a sum, or NOWHERE.
    atom: Array
    phase: Array
    terms: Array
    #: Seconds: [devices, items], and the least of all devices: [items].
    times: Array
    least: Array
    #: Rows by item: the items that it reads from, and the flow of each.
    sources: tuple[Array, Array]
    flows: Array
    #: Seconds of a flow from device to device, and those of its link: [flows, devices, devices].
    wires: Array
    carried: Array
    #: By two devices: the number of their link.
    links: Array
    #: By atom: its class, whether its items may be in a body of their own, and rows of the atoms
    #: that it reads from. `order` lists atoms after those.
    homes: Array
    alone: Array
    before: tuple[Array, Array]
    order: Array
    #: Seconds of updates: [devices, classes].
    updates: Array
    #: The classes of each part, which is placed as one, as rows; whether a part may be on a device.
    parts: tuple[Array, Array]
    allowed: Array
    #: The last device before each that is just like it; NOWHERE: none.
    twin: Array
    #: The price of a second on each device, and the least price of the parts from each one on.
    prices: Array
    rest: Array


@compiled()
def explore(task, upper, steps, rows, lows):  # type: ignore[no-untyped-def]
    """Find the placements of the lowest bounds, as many as there are rows to write them to.

    Args:
        upper: seconds; placements that cannot take less are of no interest.
        steps: the most bounds to compute.

    Returns:
        the number of placements found, the bound of all that are below `upper` and not among them
        (infinite if there are none), and the number of bounds computed.
    """
    n, k = len(task.parts[0]) - 1, task.times.shape[0]
    on = np.full(task.updates.shape[1], NOWHERE)
    placed = np.zeros(k, np.int64)
    choice, low = np.zeros((n + 1, k), np.int64), np.full((n + 1, k), np.inf)
    turn = np.full(n + 1, NOWHERE)  # of the part's devices, which are not known yet at first
    depth = count = used = 0
    others, below = np.inf, upper
    while depth >= 0:
        if turn[depth] == NOWHERE:
            turn[depth] = 0
            used += _choices(task, on, placed, depth, choice[depth], low[depth])
        at = turn[depth]
        if at == k or not low[depth, at] < below:
            if at < k and low[depth, at] < upper:
                others = min(others, low[depth, at])
            depth -= 1
            if depth >= 0:
                _put(task, on, placed, depth, NOWHERE)
            continue
        turn[depth] += 1
        if used >= steps:  # what is left is bounded by what is known of it
            others = min(others, low[depth, at])
            continue
        _put(task, on, placed, depth, choice[depth, at])
        if depth + 1 < n:
            depth += 1
            turn[depth] = NOWHERE
            continue
        if count == len(rows):
            count, below = _halved(rows, lows)
            others = min(others, below)
        if low[depth, at] < below:
            overwrite(rows[count], on)
            lows[count] = low[depth, at]
            count += 1
        else:
            others = min(others, low[depth, at])
        _put(task, on, placed, depth, NOWHERE)
    return count, others, used


@compiled()
def bounds(task, rows):  # type: ignore[no-untyped-def]
    """Bound the steps of placements: [placements, classes]."""
    out = np.empty(len(rows))
    on = np.empty(task.updates.shape[1], np.int64)
    for i in range(len(rows)):
        overwrite(on, rows[i])
        out[i] = _bound(task, on, len(task.parts[0]) - 1)
    return out


@inner()
def _halved(rows, lows):  # type: ignore[no-untyped-def]
    """Keep the half with the lowest bounds; return its size, and the least bound of the others.

    It is Hoare's selection, since numba takes seconds to compile a sort.
    """
    half, first, last = len(lows) // 2, 0, len(lows) - 1
    while first < last:
        pivot, i, j = lows[(first + last) // 2], first, last
        while i <= j:
            while lows[i] < pivot:
                i += 1
            while pivot < lows[j]:
                j -= 1
            if i <= j:
                lows[i], lows[j] = lows[j], lows[i]
                for c in range(rows.shape[1]):
                    rows[i, c], rows[j, c] = rows[j, c], rows[i, c]
                i, j = i + 1, j - 1
        if half <= j:
            last = j
        elif i <= half:
            first = i
        else:
            break
    return half, lows[half]


@inner()
def _put(task, on, placed, part, device):  # type: ignore[no-untyped-def]
    """Put a part on a device, or take it from where it is."""
    starts, classes = task.parts
    old = on[classes[starts[part]]]
    if old != NOWHERE:
        placed[old] -= 1
    if device != NOWHERE:
        placed[device] += 1
    for i in range(starts[part], starts[part + 1]):
        on[classes[i]] = device


@inner()
def _choices(task, on, placed, part, choice, low):  # type: ignore[no-untyped-def]
    """Write the devices of a part, those of the lowest bound first; return how many there are."""
    k = task.times.shape[0]
    count = 0
    low[:] = np.inf
    for d in range(k):
        twin = task.twin[d]
        if not task.allowed[part, d] or (not placed[d] and twin >= 0 and not placed[twin]):
            continue
        _put(task, on, placed, part, d)
        bound = _bound(task, on, part + 1)
        _put(task, on, placed, part, NOWHERE)
        at = count
        while at > 0 and low[at - 1] > bound:
            choice[at], low[at] = choice[at - 1], low[at - 1]
            at -= 1
        choice[at], low[at] = d, bound
        count += 1
    return count


@inner()
def _bound(task, on, part):  # type: ignore[no-untyped-def]
    """Bound the steps of all placements that have these classes on these devices.

    Args:
        on: class -> its device, or NOWHERE if it is open.
        part: the parts from this one on are open.
    """
    k, items = task.times.shape
    where, unit, units = _units(task, on)
    took = np.empty(items)
    long = np.zeros(units)  # of a unit: seconds of its items
    rank = np.full(units, NOWHERE)
    load = np.zeros(k)
    for i in range(items):
        d = where[i]
        took[i] = task.least[i] if d == NOWHERE else task.times[d, i]
        long[unit[i]] += took[i]
        if d != NOWHERE:
            rank[unit[i]] = d
            load[d] += took[i]
    head, tail = _ends(task, where, unit, long)
    most, longest = 0.0, largest(tail)
    for u in range(units):
        runs = task.mbs if rank[u] != NOWHERE else 1
        most = max(most, head[u] + runs * long[u] + tail[u])
    for u in range(units):  # what begins no earlier, and ends no later, than two of a rank's units
        d = rank[u]
        if d == NOWHERE or task.mbs * load[d] + head[u] + longest <= most:
            continue
        for v in range(units):
            if rank[v] != d or head[v] < head[u] or tail[u] < tail[v]:
                continue
            held = 0.0
            for w in range(units):
                if rank[w] == d and head[w] >= head[u] and tail[w] >= tail[v]:
                    held += long[w]
            most = max(most, head[u] + task.mbs * held + tail[v])
    most = max(most, _on_links(task, where, unit, long, head, tail))
    spent = price = 0.0
    for d in range(k):
        spent += task.prices[d] * load[d]
        price += task.prices[d]
    most = max(most, task.mbs * (spent + task.rest[part]) / price)
    return most + task.meeting + _updating(task, on)


@inner()
def _updating(task, on):  # type: ignore[no-untyped-def]
    update = np.zeros(task.times.shape[0])
    for c in range(len(on)):
        if on[c] != NOWHERE:
            update[on[c]] += task.updates[on[c], c]
    return largest(update)


@inner()
def _units(task, on):  # type: ignore[no-untyped-def]
    """Find the device of each item, or NOWHERE, and its unit; return these and their number.

    Units are parts of bodies: the items of one phase that have one device, and as many changes of
    devices before them. Where that is open, an item is a unit of its own.
    """
    k, items, atoms = task.times.shape[0], len(task.atom), len(task.homes)
    level = np.full(atoms, NOWHERE)
    for a in task.order:
        d = on[task.homes[a]]
        if d == NOWHERE:
            continue
        most = 0
        for i in range(task.before[0][a], task.before[0][a + 1]):
            b = task.before[1][i]
            if level[b] == NOWHERE:
                most = NOWHERE
                break
            most = max(most, level[b] + (on[task.homes[b]] != d))
        level[a] = most
    number = np.full((3, largest(level) + 2, k), NOWHERE)
    where, unit = np.empty(items, np.int64), np.empty(items, np.int64)
    count = 0
    for i in range(items):
        home = task.atom[i]
        where[i] = on[task.homes[home]]
        whole = level[home] != NOWHERE and not task.alone[home]
        own = number[task.phase[i], level[home], where[i]] if whole else NOWHERE
        left, right = task.terms[i]
        if left != NOWHERE:  # a sum is made where both terms are, or else at home
            one, two = unit[left], unit[right]
            apart = where[left] != where[right] and min(where[left], where[right]) != NOWHERE
            if one == two and task.phase[i] == task.phase[left]:
                where[i], unit[i] = where[left], one
                continue
            if not apart and (own == NOWHERE or (own != one and own != two)):
                whole = False
                if where[left] != where[right] or where[i] != where[left]:
                    where[i] = NOWHERE
        if not whole or own == NOWHERE:
            own, count = count, count + 1
        if whole:
            number[task.phase[i], level[home], where[i]] = own
        unit[i] = own
    return where, unit, count


@inner()
def _wire(task, flow, a, b):  # type: ignore[no-untyped-def]
    return 0.0 if min(a, b) == NOWHERE or a == b else task.wires[flow, a, b]


@inner()
def _ends(task, where, unit, long):  # type: ignore[no-untyped-def]
    """Return the least time before each unit's first run, and behind its last one."""
    head = _longest(task, where, unit, long, False)
    return head, _longest(task, where, unit, long, True)


@inner()
def _longest(task, where, unit, long, back):  # type: ignore[no-untyped-def]
    """Return the longest way to each unit from what it waits for or, `back`, from what waits."""
    longest, n = np.zeros(len(long)), len(where)
    starts, sources = task.sources
    for _ in range(SWEEPS):
        changed = False
        for k in range(n):
            i = n - 1 - k if back else k
            for j in range(starts[i], starts[i + 1]):
                s = sources[j]
                a, b = (unit[i], unit[s]) if back else (unit[s], unit[i])
                if a != b:
                    way = longest[a] + long[a]
                    way += _wire(task, task.flows[j], where[s], where[i])
                    if way > longest[b]:
                        longest[b], changed = way, True
        if not changed:
            break
    return longest


@inner()
def _on_links(task, where, unit, long, head, tail):  # type: ignore[no-untyped-def]
    """Bound the step by what links carry, each value once from device to device."""
    count = 0
    for a in range(len(task.links)):
        count = max(count, largest(task.links[a]) + 1)
    busy = np.zeros(count)
    first, last = np.full(count, np.inf), np.full(count, np.inf)
    starts, sources = task.sources
    seen = np.zeros((task.wires.shape[0], task.links.shape[0]), np.bool_)
    for i in range(len(where)):
        for j in range(starts[i], starts[i + 1]):
            s, flow = sources[j], task.flows[j]
            a, b = where[s], where[i]
            if min(a, b) == NOWHERE or a == b:
                continue
            link = task.links[a, b]
            own = task.carried[flow, a, b]
            if not seen[flow, b]:
                seen[flow, b] = True
                busy[link] += own
            first[link] = min(first[link], head[unit[s]] + long[unit[s]])
            rest = task.wires[flow, a, b] - own + long[unit[i]] + tail[unit[i]]
            last[link] = min(last[link], rest)
    most = 0.0
    for link in range(count):
        if busy[link] > 0:
            most = max(most, first[link] + task.mbs * busy[link] + last[link])
    return most
