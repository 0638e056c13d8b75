"""Placement strategies: from a graph, its costs and a machine to a placement, by name.

    graph, costs, machine, constraints ──STRATEGIES[name]──▶ Placed (placement, load, bound)

All but group2ctx, which follows the user's map, work on the coarse graph. All respect rules,
memory limits and what must stay together, or raise PlacementError.

May import solve and the rooms below it.
Start reading: assignments.py, which has a function per strategy; coarse.py.
"""

from __future__ import annotations

from functools import partial

from partitioner.costs.cost import Costs
from partitioner.strategies.assignments import place_contiguous, place_noncontiguous
from partitioner.strategies.rules import Rule
from partitioner.strategies.types import OBJECTIVES, Constraints, Placed, Strategy
from partitioner.strategies.user_groups import place_by_groups
from symgraph.core.errors import PlacementError, nearest

STRATEGIES: dict[str, Strategy] = {
    "group2ctx": place_by_groups,
    "uniform": partial(place_contiguous, strategy="uniform"),
    "parameters": partial(place_contiguous, strategy="parameters"),
    "chain": partial(place_contiguous, strategy="chain"),
    "optimal": partial(place_contiguous, strategy="optimal"),
    "noncontiguous": place_noncontiguous,
    "refine": partial(place_contiguous, strategy="refine"),
}

__all__ = [
    "OBJECTIVES",
    "STRATEGIES",
    "Constraints",
    "Costs",
    "Placed",
    "Rule",
    "Strategy",
    "find_strategy",
]


def find_strategy(name: str, *others: str) -> Strategy:
    """Return the strategy of that name.

    Args:
        name: the strategy's name.
        others: names that the caller takes as well.

    Raises:
        PlacementError: for an unknown name; it lists the known ones.
    """
    if name not in STRATEGIES:
        raise PlacementError(f"no strategy {name!r}; {nearest(name, (*others, *STRATEGIES))}")
    return STRATEGIES[name]
