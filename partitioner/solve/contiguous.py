"""The contiguous optimum on any DAG: the sweep over all down-sets of what cannot be split.

A good placement found on some topological orders bounds the search: what no better placement can
cut is joined, and the walk from each down-set stops as soon as a piece is too heavy.

Elements without forward nodes (gradients that no colour binds) may go anywhere. They are set aside:
the sweep charges a cost for them that is never too high (see relaxation.py), which gives a lower
bound, and they are put where they cost least afterwards. Where bound and placement do not meet,
the largest of them join the down-sets as elements without order, as many as the family allows.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from partitioner.solve.bounds import lower_bound, memory_problem
from partitioner.solve.budget import Budget, Stopped
from partitioner.solve.chain import best_chain, devices_of
from partitioner.solve.down_sets import TooMany, down_sets
from partitioner.solve.elements import Elements, elements, mirrored, ordered
from partitioner.solve.prices import priced
from partitioner.solve.problem import Problem, Solution, largest, solution, violations
from partitioner.solve.reduction import join_uncuttable, reduced, timeless
from partitioner.solve.relaxation import place_free, relaxed
from partitioner.solve.sweep import Pieces, sweep
from partitioner.solve.weights import weights
from symgraph.core.orders import neighbours, topological
from symgraph.core.types import Array

MAX_BAND_SETS = 60_000  # down-sets in a band
BAND_WIDTHS = (24, 16, 12, 8, 5, 3)
MAX_HALVINGS, SMALL_GAP = 12, 1e-5  # for the gap between a bound and a placement
MAX_FREE_SETS = 8_000  # down-sets with elements without order, which multiply them
Best = tuple[float, Array]  # largest load, node -> device


def place_downsets(problem: Problem, budget: Budget) -> Solution | None:
    """Find the optimal contiguous placement; None where none is feasible.

    When the budget is spent, or on graphs too wide to enumerate, it is the best one met, with a
    bound. A step of the budget is a down-set that a walk comes to.
    """
    core = elements(problem, contiguous=True)
    exact, rough = reduced(core), reduced(core, weigh=False)
    best, floor = _start(rough), lower_bound(problem)
    if best is None and np.isfinite(core.limits).any():
        packed = place_downsets(memory_problem(problem, shares=True), budget)
        if packed is None or packed.lower_bound > 1 + 1e-9:
            return None
        best = _if_feasible(problem, packed)
    try:
        if len(rough) < len(exact):
            best, _ = _exact(rough, best, floor, budget)
            floor = _weightless(core, best, floor, budget)
        if best is None or floor < best[0] * (1 - 1e-9):
            best, floor = _exact(exact, best, floor, budget)
    except TooMany:
        best = _banded(rough, best, budget)
    except Stopped:
        pass
    return None if best is None else solution(problem, best[1], floor, "downsets")


def _if_feasible(problem: Problem, packed: Solution) -> Best | None:
    """Return a placement with its load if it keeps the memory limits."""
    if violations(problem, packed.assignment, contiguous=True):
        return None
    return largest(problem, packed.assignment), np.array(packed.assignment)


def _weightless(core: Elements, best: Best | None, floor: float, budget: Budget) -> float:
    """Bound the load by the optimum if what takes no time took no memory, so it can be joined."""
    problem = core.problem
    memory = np.where(timeless(core)[core.of], 0.0, problem.memory)
    lighter = reduced(elements(replace(problem, memory=memory), contiguous=True))
    return _exact(lighter, best, floor, budget)[1]


def _start(core: Elements) -> Best | None:
    best = best_chain(mirrored(core), math.inf)
    return None if best is None else _finished(core, best[1])


def _finished(core: Elements, nodes: Array) -> Best:
    """Put free elements where they are best; return the load by the definition, and the nodes."""
    nodes = place_free(core, nodes)
    return largest(core.problem, nodes), nodes


def _exact(
    core: Elements, best: Best | None, floor: float, budget: Budget
) -> tuple[Best | None, float]:
    """Find the optimum and its bound. Raises TooMany or Stopped."""
    bound = best[0] if best else _sum_of_all(core)
    core = reduced(join_uncuttable(core, bound))
    if not core.free.any():
        best = _swept(core, best, bound, budget)
        return best, best[0] if best else floor
    for most in (1, MAX_FREE_SETS):
        aside = _set_aside(core, most)
        if not aside.free.any():
            best = _swept(aside, best, best[0] if best else bound, budget)
            return best, best[0] if best else floor
        best, floor = _around_free(core, aside, best, floor, budget)
        if best is not None and floor >= best[0] * (1 - 1e-9):
            break
    return best, floor


def _set_aside(core: Elements, most: int) -> Elements:
    """Call fewer elements free: the largest are left to the down-sets, within a limit."""
    free = np.flatnonzero(core.free)
    _, arcs, kept = relaxed(core)
    room = most // len(down_sets(len(kept), arcs))
    times = np.where(np.isfinite(core.times), core.times, 0.0).max(axis=0)
    shares = [x / max(1e-300, x.sum()) for x in (times, core.memory)]
    by_size = free[np.argsort(-(shares[0] + shares[1])[free], kind="stable")]
    called = core.free.copy()
    called[by_size[: max(0, room.bit_length() - 1)]] = False
    return replace(core, free=called)


def _sum_of_all(core: Elements) -> float:
    """Return more than any load."""
    times = core.times[np.isfinite(core.times)].sum()
    return float(times + sum(max(costs) for costs, _ in core.nets)) * 1.001 + 1.0


def _swept(core: Elements, best: Best | None, bound: float, budget: Budget) -> Best | None:
    """Sweep all down-sets for a placement below the bound; else return the one at hand."""
    chain = sweep(weights(core), down_sets(len(core), core.arcs, budget.steps), bound, budget)
    if chain is None:
        return best
    return _finished(core, core.assignment(devices_of(core, chain[1])))


def _around_free(
    core: Elements, aside: Elements, best: Best | None, floor: float, budget: Budget
) -> tuple[Best | None, float]:
    """Bind free elements to an order for the placement, and set them aside for the bound."""
    best = _swept(mirrored(aside), best, best[0] if best else _sum_of_all(core), budget)
    high = best[0] if best else _sum_of_all(core)
    costs, arcs, kept = relaxed(aside)
    family = down_sets(len(kept), arcs, budget.steps)
    chain = sweep(costs, family, high * (1 - 1e-9), budget)
    if chain is None:
        return best, best[0] if best else floor
    best, low = _best_of(core, best, kept, chain[1]), max(floor, chain[0])
    # Is there room for what is set aside, too? If not, loads have to be larger.
    left_out = float(priced(core.times[:, aside.free], core.prices).sum())
    devices = float((np.array(costs.counts) * core.prices).sum())
    for _ in range(MAX_HALVINGS):
        high = min(high, best[0] if best else high)
        if low >= high * (1 - SMALL_GAP):
            break
        middle = (low + high) / 2
        chain = sweep(costs, family, middle, budget, middle * devices - left_out)
        if chain is None:
            low = middle
        else:
            best, high = _best_of(core, best, kept, chain[1]), middle
    return best, low


def _best_of(core: Elements, best: Best | None, kept: Array, pieces: Pieces) -> Best | None:
    """Return the better of a placement and a chain of the elements that were kept."""
    chain = [(kind, [int(kept[v]) for v in members]) for kind, members in pieces]
    other = _finished(core, core.assignment(devices_of(core, chain)))
    if best is not None and best[0] <= other[0]:
        return best
    return best if violations(core.problem, other[1], contiguous=True) else other


def _along(core: Elements, nodes: Array) -> list[int]:
    """Order the elements so that the devices of a placement follow one after another."""
    devices = core.devices(nodes).tolist()
    arcs = {
        (devices[a], devices[b])
        for a, b in core.arcs
        if devices[a] != devices[b] and not core.free[a] and not core.free[b]
    }
    near = neighbours(core.problem.devices, arcs)
    rank = {d: i for i, d in enumerate(topological(*near, lambda d, step: d))}
    near = neighbours(len(core), sorted(core.arcs))
    return topological(*near, lambda v, step: rank[devices[v]])


def _banded(core: Elements, best: Best | None, budget: Budget) -> Best | None:
    """Search near the best order so far, in bands as wide as can be enumerated.

    In a band, an element may come at most `width` places earlier than in the placement's order.
    """
    core = mirrored(core)
    while best is not None and not budget.spent:
        order, chain = _along(core, best[1]), None
        for width in BAND_WIDTHS:
            band = frozenset((order[i], order[i + width]) for i in range(len(order) - width))
            narrowed = ordered(core, band)
            try:
                family = down_sets(len(narrowed), narrowed.arcs, MAX_BAND_SETS)
                chain = sweep(weights(narrowed), family, best[0] * (1 - 1e-9), budget)
            except TooMany:
                continue
            except Stopped:
                return best
            break
        if chain is None:
            return best
        best = _finished(core, narrowed.assignment(devices_of(narrowed, chain[1])))
    return best
