"""Placement of any problem of nodes and values on devices of several kinds.

    Problem ──solve(strategy)──▶ Solution (devices, loads, lower bound, gap)

May import base and costs. The formats of workload files stay in workload_files.py.
Start reading: problem.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from partitioner.solve.budget import Budget
from partitioner.solve.chain import place_chain
from partitioner.solve.contiguous import place_downsets
from partitioner.solve.infeasibility import infeasible
from partitioner.solve.noncontiguous import place_noncontiguous
from partitioner.solve.problem import (
    InfeasibleError,
    Kind,
    Load,
    Problem,
    Solution,
    Transfer,
    evaluate,
    published,
    violations,
)
from symgraph.core.errors import PlacementError, nearest

Strategy = Callable[[Problem, Budget], Solution | None]

STRATEGIES: dict[str, Strategy] = {
    "chain": place_chain,
    "downsets": place_downsets,
    "noncontiguous": place_noncontiguous,
}

__all__ = [
    "STRATEGIES",
    "Budget",
    "InfeasibleError",
    "Kind",
    "Load",
    "Problem",
    "Solution",
    "Strategy",
    "Transfer",
    "evaluate",
    "published",
    "solve",
    "violations",
]


def solve(
    problem: Problem, strategy: str = "downsets", *, time_limit: float = math.inf
) -> Solution:
    """Place a problem's nodes so that the slowest device is as fast as possible.

    Args:
        problem: the nodes, values and devices.
        strategy: a name in STRATEGIES.
        time_limit: about how many seconds to search; after that, the best placement so far is
            returned with the bound so far.

    Raises:
        InfeasibleError: where no placement keeps the limits.
        PlacementError: for an unknown strategy.
    """
    if strategy not in STRATEGIES:
        raise PlacementError(f"no strategy {strategy!r}; {nearest(strategy, STRATEGIES)}")
    search = STRATEGIES[strategy]
    best = search(problem, Budget(seconds=time_limit)) if problem.devices else None
    if best is None:
        raise infeasible(problem, contiguous=strategy != "noncontiguous")
    return best
