"""Chain placement: the exact optimum for one topological order at a time, over several orders."""

from __future__ import annotations

import math

from partitioner.machine import Machine
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.finish import finish
from partitioner.strategies.problem import solved
from partitioner.strategies.types import Constraints, Costs, Placed
from symgraph.graph import Graph


def place_chain(graph: Graph, costs: Costs, machine: Machine, constraints: Constraints) -> Placed:
    """The slowest device is as fast as it can be if nodes are placed in one of a few orders."""
    coarse = coarsen(graph, costs, machine, constraints, contiguous=True)
    devices, _ = solved(coarse, machine, constraints, "chain", math.inf)
    return finish(graph, coarse, machine, constraints, devices, "chain")
