"""Optimal placement: the exact contiguous optimum of the coarse graph, communication included.

The solver charges a value once to its sender, as if all receivers listened; the runtime sends it
to each of them. So with three devices and more the solver's optimum is a bound, and a search
nearby finishes the placement; it is proven optimal where both meet.

A graph too wide for the exact search gets the best of a few orders and the same search nearby:
whether it is depends on the graph, not on the clock, so that plans are the same every time.
"""

from __future__ import annotations

from partitioner.machine import Machine
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.finish import finish, is_uniform
from partitioner.strategies.problem import is_narrow, solved
from partitioner.strategies.refine import refined
from partitioner.strategies.types import Constraints, Costs, Placed
from symgraph.graph import Graph

WIDEST = 200_000  # down-sets: some ten seconds of search
SECONDS = 120.0  # for the solver, in case a search takes much longer


def place_optimal(graph: Graph, costs: Costs, machine: Machine, constraints: Constraints) -> Placed:
    """The slowest device, its messages included, is as fast as contiguous stages allow."""
    coarse = coarsen(graph, costs, machine, constraints, contiguous=True)
    method = "downsets" if is_narrow(coarse, machine, WIDEST) else "chain"
    devices, found = solved(coarse, machine, constraints, method, SECONDS)
    bound = found.lower_bound if is_uniform(machine, constraints) else 0.0
    devices = refined(coarse, machine, constraints, devices)
    return finish(graph, coarse, machine, constraints, devices, "optimal", bound)
