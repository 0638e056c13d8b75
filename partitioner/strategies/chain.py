"""Chain placement: the exact optimum for one topological order at a time, over several orders."""

from __future__ import annotations

from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.finish import finish
from partitioner.strategies.problem import solved
from partitioner.strategies.refine import swapped
from partitioner.strategies.types import Constraints, Placed
from symgraph.core.graph import Graph


def place_chain(graph: Graph, costs: Costs, machine: Machine, constraints: Constraints) -> Placed:
    """The slowest device is as fast as it can be if nodes are placed in one of a few orders.

    Over links that differ, cuts are made for a mean one; then devices are swapped.
    """
    coarse = coarsen(graph, costs, machine, constraints, contiguous=True)
    devices, bound = solved(coarse, machine, constraints, "chain")
    devices = swapped(coarse, machine, constraints, devices)
    return finish(graph, coarse, machine, constraints, devices, "chain", bound)
