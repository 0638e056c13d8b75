"""The end of every strategy: classes on devices become a checked placement of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.base.stages import form_stages
from partitioner.base.types import Placement
from partitioner.costs.machine import Machine
from partitioner.strategies.coarse import Coarse, limits
from partitioner.strategies.loads import Loads
from partitioner.strategies.problem import too_small
from partitioner.strategies.types import Constraints, Placed
from symgraph.core.graph import Graph


def finish(
    graph: Graph,
    coarse: Coarse,
    machine: Machine,
    constraints: Constraints,
    devices: Sequence[int],
    strategy: str,
    lower_bound: float,
) -> Placed:
    """The nodes of every class on its device. Raises PlacementError for too much memory on one."""
    devices = _in_a_row(coarse, machine, constraints, devices)
    loads = Loads(coarse, machine, devices)
    given = limits(machine, constraints)
    if any(x is not None and m > x for m, x in zip(loads.memory, given, strict=True)):
        who = f" for the strategy {strategy}"
        raise too_small(machine, constraints, loads.memory, max(loads.memory), who)
    rank_of_node = {name: devices[c] for name, c in coarse.of.items()}
    stage_of, rank_of = form_stages(graph, rank_of_node)
    load = max(loads.seconds)
    return Placed(
        Placement(stage_of, rank_of, machine.contexts),
        load,
        min(load, lower_bound),
        strategy,
        tuple(loads.memory),
    )


def _in_a_row(
    coarse: Coarse, machine: Machine, constraints: Constraints, devices: Sequence[int]
) -> Sequence[int]:
    """The same with the devices numbered along the graph, if they are all alike."""
    k = range(len(machine.devices))
    links = {machine.link(a, b)[:2] for a in k for b in k if a != b}
    rooms, alike = {*limits(machine, constraints)}, (coarse.times == coarse.times[0]).all()
    if len(links) > 1 or len(rooms) > 1 or not alike or max(coarse.pins) >= 0:
        return devices
    number = {d: i for i, d in enumerate(dict.fromkeys(devices))}
    return [number[d] for d in devices]
