"""Placement by the user's groups, weighed like the others: what a plan by hand costs."""

from __future__ import annotations

import numpy as np

from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.placement.group2ctx import Groups, group2ctx
from partitioner.solve.prices import priced
from partitioner.strategies.coarse import node_times, weighed
from partitioner.strategies.finish import finish
from partitioner.strategies.types import Constraints, Placed
from symgraph.core.errors import PlacementError
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup


def place_by_groups(
    graph: Graph, costs: Costs, machine: Machine, constraints: Constraints
) -> Placed:
    """Every group on the device that the user maps it to, and all else near it.

    Without groups, those that are pinned; the first device is the default. The bound is of all
    placements of single nodes. PlacementError as partitioner.placement.group2ctx.group2ctx, and for
    devices that the machine has not.
    """
    first, *_ = machine.contexts
    placement = group2ctx(graph, _groups(graph, machine, constraints), first, machine.contexts)
    unknown = placement.devices[len(machine.devices) :]
    if unknown:
        raise PlacementError(f"group2ctx names {unknown[0]}, which the machine has not")
    rank = {node: placement.rank_of[stage] for node, stage in placement.stage_of.items()}
    k = len(machine.devices)
    alone = weighed(
        graph, costs, machine, constraints, rank, (-1,) * k, tuple(range(k)), contiguous=False
    )
    bound = _bound(graph, costs, machine)
    return finish(graph, alone, machine, constraints, range(k), "group2ctx", bound)


def _groups(graph: Graph, machine: Machine, constraints: Constraints) -> Groups:
    """The user's map, or one of all groups in which those without a pin go to the first device."""
    if constraints.groups is not None:
        return constraints.groups
    names = dict.fromkeys(lookup(n.tags, "ctx_group") for n in graph if n.origin is None)
    return {
        name: machine.contexts[constraints.pins.get(name, 0)] for name in names if name is not None
    }


def _bound(graph: Graph, costs: Costs, machine: Machine) -> float:
    """What no placement is below: the largest node, and all work spread evenly."""
    number = {n.name: i for i, n in enumerate(graph)}
    times = node_times(graph, costs, machine, number, len(number))
    total = times.sum(axis=1)
    price = total.min() / total if total.min() > 0 else np.ones(len(total))
    return max(float(times.min(axis=0).max()), float(priced(times, price).sum() / price.sum()))
