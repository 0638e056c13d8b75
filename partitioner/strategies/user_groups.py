"""Placement by the user's groups, weighed like the others: what a plan by hand costs."""

from __future__ import annotations

import numpy as np

from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.placement.group2ctx import Groups, group2ctx
from partitioner.solve.prices import priced
from partitioner.strategies.assignments import as_placement
from partitioner.strategies.coarse import node_times, weighed
from partitioner.strategies.types import Constraints, Placed
from symgraph.core.errors import PlacementError
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup


def place_by_groups(
    graph: Graph, costs: Costs, machine: Machine, constraints: Constraints
) -> Placed:
    """Put every group on the device that the user maps it to, and all else near it.

    Without a map, groups go to their pins; the first device is the default. The bound is that of
    all placements of single nodes.

    Raises:
        PlacementError: as placement.group2ctx.group2ctx, and for devices that are not the
            machine's and for a rule that is broken.
    """
    groups = _pinned_groups(graph, machine, constraints)
    if constraints.groups is not None:
        groups = constraints.groups
    placement = group2ctx(graph, groups, machine.contexts[0], machine.contexts)
    unknown = placement.devices[len(machine.devices) :]
    if unknown:
        raise PlacementError(f"group2ctx names {unknown[0]}, which the machine does not have")
    rank = {node: placement.rank_of[stage] for node, stage in placement.stage_of.items()}
    k = len(machine.devices)
    coarse = weighed(
        graph, costs, machine, constraints, rank, (-1,) * k, np.eye(k, dtype=bool), contiguous=False
    )
    bound = least_load(graph, costs, machine)
    return as_placement(graph, coarse, range(k), bound, "group2ctx")


def _pinned_groups(graph: Graph, machine: Machine, constraints: Constraints) -> Groups:
    """Map all groups to their pins or the devices of their pieces, others to the first device."""
    at = machine.contexts
    spread = {group: tuple([at[d] for d in held]) for group, held in constraints.spread.items()}
    names = dict.fromkeys(lookup(n.tags, "ctx_group") for n in graph if n.origin is None)
    return {
        name: spread.get(name) or at[constraints.pins.get(name, 0)]
        for name in names
        if name is not None
    }


def least_load(graph: Graph, costs: Costs, machine: Machine) -> float:
    """Bound the load of any placement by the largest node, and by all work spread evenly."""
    number = {n.name: i for i, n in enumerate(graph)}
    times = node_times(graph, costs, machine, number, len(number))
    total = times.sum(axis=1)
    price = total.min() / total if total.min() > 0 else np.ones(len(total))
    return max(float(times.min(axis=0).max()), float(priced(times, price).sum() / price.sum()))
