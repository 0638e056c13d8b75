"""Placement by parameters: about as many bytes of parameters on all devices (DeepSpeed's default).

Classes in topological order are cut into a row of pieces, so that the largest piece is as small
as can be. How long they take does not count.
"""

from __future__ import annotations

import numpy as np

from partitioner.machine import Machine
from partitioner.solve import Problem, Transfer, solve
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.finish import finish
from partitioner.strategies.types import Constraints, Costs, Placed
from symgraph.graph import Graph


def place_by_parameters(
    graph: Graph, costs: Costs, machine: Machine, constraints: Constraints
) -> Placed:
    """The most parameter bytes on a device are as few as can be. Pins come first."""
    coarse = coarsen(graph, costs, machine, constraints, contiguous=True)
    n = len(coarse)
    row = Problem(
        coarse.names, coarse.parameters, np.full(n, np.inf), np.zeros(n),
        tuple(Transfer(c, (c + 1,), 0.0) for c in range(n - 1)), len(machine.devices),
    )  # fmt: skip
    found = solve(row, "chain").assignment
    devices = [pin if pin >= 0 else d for d, pin in zip(found, coarse.pins, strict=True)]
    return finish(graph, coarse, machine, constraints, devices, "parameters")
