"""Placement without order: classes anywhere, several stages a device where values go back.

A device may hold the embedding and the decoder and nothing of what lies between, so that a weight
they share is not sent. More stages make longer pipelines: look at the simulated step, not at the
load alone.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.finish import finish
from partitioner.strategies.optimal import place_optimal
from partitioner.strategies.problem import solved
from partitioner.strategies.refine import proven
from partitioner.strategies.types import Constraints, Placed
from symgraph.core.errors import PlacementError
from symgraph.core.graph import Graph


def place_noncontiguous(
    graph: Graph, costs: Costs, machine: Machine, constraints: Constraints
) -> Placed:
    """The slowest device, its messages included, is as fast as the search finds.

    Never slower than the contiguous placement, which is one of them.
    """
    coarse = coarsen(graph, costs, machine, constraints, contiguous=False)
    devices, bound = solved(coarse, machine, constraints, "noncontiguous")
    devices, bound = proven(coarse, machine, constraints, devices, bound)
    found = finish(graph, coarse, machine, constraints, devices, "noncontiguous", bound)
    with suppress(PlacementError):  # in one row it may not fit
        row = place_optimal(graph, costs, machine, constraints)
        if row.load < found.load:
            return replace(row, strategy="noncontiguous", lower_bound=min(bound, row.load))
    return found
