"""Placement by parameters: about as many bytes of parameters on all devices (DeepSpeed's default).

Classes in topological order are cut into a row of pieces, so that the largest piece is as small
as can be; where devices differ, for the speed of its device. How long they take does not count.
"""

from __future__ import annotations

from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.solve import Kind, Problem, Transfer, solve
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.finish import finish
from partitioner.strategies.problem import floor, slowness
from partitioner.strategies.types import Constraints, Placed
from symgraph.core.graph import Graph


def place_by_parameters(
    graph: Graph, costs: Costs, machine: Machine, constraints: Constraints
) -> Placed:
    """The most parameter bytes on a device are as few as can be. Pins come first."""
    coarse = coarsen(graph, costs, machine, constraints, contiguous=True)
    n = len(coarse)
    slow = slowness(coarse)
    kinds = tuple(
        Kind("device", int((slow == s).sum()), s * coarse.parameters) for s in dict.fromkeys(slow)
    )
    row = Problem(
        coarse.names,
        kinds,
        0.0 * coarse.parameters,
        tuple(Transfer(c, (c + 1,), 0.0) for c in range(n - 1)),
    )
    order = [d for s in dict.fromkeys(slow) for d in range(len(slow)) if slow[d] == s]
    found = [order[d] for d in solve(row, "chain").assignment]
    devices = [pin if pin >= 0 else d for d, pin in zip(found, coarse.pins, strict=True)]
    bound = floor(coarse, machine, constraints)
    return finish(graph, coarse, machine, constraints, devices, "parameters", bound)
