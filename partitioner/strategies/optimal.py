"""Optimal placement: the exact contiguous optimum of the coarse graph, communication included.

Devices may differ in speed, memory and links; which of them takes which piece is part of the
answer. The solver charges a value once to its sender, as if all receivers listened, and one link a
device; the runtime sends it to each receiver, over the link between the two. Where that makes a
difference the solver's optimum is a bound, and a search that counts every message improves the
placement until it meets the bound or has tried everything.

A graph too wide for the exact search gets the best of a few orders and the same search. All
limits are counted in steps, so plans are the same every time.
"""

from __future__ import annotations

from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.finish import finish
from partitioner.strategies.problem import is_narrow, solved
from partitioner.strategies.refine import proven
from partitioner.strategies.types import Constraints, Placed
from symgraph.core.graph import Graph

WIDEST = 1_000_000  # down-sets, times sets of devices: some ten seconds of search


def place_optimal(graph: Graph, costs: Costs, machine: Machine, constraints: Constraints) -> Placed:
    """The slowest device, its messages included, is as fast as contiguous stages allow."""
    coarse = coarsen(graph, costs, machine, constraints, contiguous=True)
    method = "downsets" if is_narrow(coarse, machine, constraints, WIDEST) else "chain"
    devices, bound = solved(coarse, machine, constraints, method)
    devices, bound = proven(coarse, machine, constraints, devices, bound)
    return finish(graph, coarse, machine, constraints, devices, "optimal", bound)
