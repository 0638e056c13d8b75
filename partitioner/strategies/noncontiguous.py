"""Placement without order: classes anywhere, several stages a device where values go back.

A device may hold the embedding and the decoder and nothing of what lies between, so that a weight
they share is not sent. More stages make longer pipelines: look at the simulated step, not at the
load alone.
"""

from __future__ import annotations

from partitioner.machine import Machine
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.finish import finish, is_uniform
from partitioner.strategies.problem import solved
from partitioner.strategies.refine import refined
from partitioner.strategies.types import Constraints, Costs, Placed
from symgraph.graph import Graph

SECONDS = 30.0  # for the search and the proof of a bound


def place_noncontiguous(
    graph: Graph, costs: Costs, machine: Machine, constraints: Constraints
) -> Placed:
    """The slowest device, its messages included, is as fast as the search finds."""
    coarse = coarsen(graph, costs, machine, constraints, contiguous=False)
    devices, found = solved(coarse, machine, constraints, "noncontiguous", SECONDS)
    bound = found.lower_bound if is_uniform(machine, constraints) else 0.0
    devices = refined(coarse, machine, constraints, devices)
    return finish(graph, coarse, machine, constraints, devices, "noncontiguous", bound)
