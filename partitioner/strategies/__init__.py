"""Placement strategies: from a graph, its costs and a machine to a placement, by name.

    graph, costs, machine, constraints ──STRATEGIES[name]──▶ Placed (placement, load, bound)

All but group2ctx, which does what the user says, work on the coarse graph (coarse.py); all keep to
pins, memory and what must stay together, or raise PlacementError.
"""

from __future__ import annotations

from partitioner.costs.cost import Costs
from partitioner.strategies.chain import place_chain
from partitioner.strategies.group2ctx import place_by_groups
from partitioner.strategies.noncontiguous import place_noncontiguous
from partitioner.strategies.optimal import place_optimal
from partitioner.strategies.parameters import place_by_parameters
from partitioner.strategies.refine import place_refined
from partitioner.strategies.types import OBJECTIVES, Constraints, Placed, Strategy
from partitioner.strategies.uniform import place_uniform
from symgraph.core.errors import PlacementError, nearest

STRATEGIES: dict[str, Strategy] = {
    "group2ctx": place_by_groups,
    "uniform": place_uniform,
    "parameters": place_by_parameters,
    "chain": place_chain,
    "optimal": place_optimal,
    "noncontiguous": place_noncontiguous,
    "refine": place_refined,
}

__all__ = [
    "OBJECTIVES",
    "STRATEGIES",
    "Constraints",
    "Costs",
    "Placed",
    "Strategy",
    "find_strategy",
]


def find_strategy(name: str, *others: str) -> Strategy:
    """The strategy of that name; PlacementError naming the known ones.

    others: what the caller takes as well.
    """
    if name not in STRATEGIES:
        raise PlacementError(f"no strategy {name!r}; {nearest(name, (*others, *STRATEGIES))}")
    return STRATEGIES[name]
