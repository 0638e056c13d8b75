"""Assignments: a device for every class of the coarse graph, by one function for each strategy.

    uniform        classes by count and the devices' speeds, whatever they cost: what people do by
                   hand, and Megatron by default
    parameters     about as many bytes of parameters on all devices: DeepSpeed's default
    chain          the exact optimum for one topological order at a time, over several orders
    refine         the chain, improved by moves of classes for as long as one helps
    optimal        the exact contiguous optimum
    noncontiguous  classes anywhere, several stages a device where values go back

The solvers charge a value once to its sender, over one link for each device; the runtime sends it
to each receiver, over the link between the two. Where that makes a difference, the solver's optimum
is a bound, and `local_search.proven` improves the placement until it meets the bound or has tried
everything. All searches are limited in steps, so plans are the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from partitioner.base.remembered import remembered
from partitioner.base.stages import form_stages
from partitioner.base.types import Placement
from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.solve import Kind, Problem, Transfer, solve
from partitioner.strategies.branching import Assignment, branched
from partitioner.strategies.coarse import Coarse, coarsen, weighed
from partitioner.strategies.loads import Loads
from partitioner.strategies.local_search import proven, refined, swapped
from partitioner.strategies.problem import (
    NOTHING,
    floor,
    is_narrow,
    least_memory,
    slowness,
    solved,
    too_small,
)
from partitioner.strategies.rules import require_kept
from partitioner.strategies.types import Constraints, Placed
from symgraph.core.errors import PlacementError
from symgraph.core.graph import Graph

WIDEST_SEARCH = 1_000_000  # down-sets, times sets of devices: some ten seconds of search


def uniform(coarse: Coarse) -> Assignment:
    """Give each device its share of the classes by its speed, in topological order.

    A class that may not be there goes to the nearest device.
    """
    n = len(coarse)
    shares = 1 / slowness(coarse)
    ends = [math.ceil(round(x, 9)) for x in np.cumsum(shares) / shares.sum() * n]
    return _where_allowed(coarse, np.searchsorted(ends, np.arange(n), "right").tolist()), floor(
        coarse
    )


def parameters(coarse: Coarse) -> Assignment:
    """Cut the classes in topological order so that the most parameter bytes are as few as can be.

    Where devices differ, bytes count for the speed of their device. A class that may not be there
    goes to the nearest device.
    """
    slow = slowness(coarse)
    speeds = dict.fromkeys(slow)
    kinds = tuple(Kind("device", int((slow == s).sum()), s * coarse.parameters) for s in speeds)
    row = tuple(Transfer(c, (c + 1,), 0.0) for c in range(len(coarse) - 1))
    problem = Problem(coarse.names, kinds, 0.0 * coarse.parameters, row)
    order = [d for s in speeds for d in range(len(slow)) if slow[d] == s]
    devices = [order[d] for d in solve(problem, "chain").assignment]
    return _where_allowed(coarse, devices), floor(coarse)


def chain(coarse: Coarse) -> Assignment:
    """Cut one of a few topological orders where the slowest device is fastest, then swap devices.

    Over links that differ, cuts are made for a mean one.
    """
    devices, bound = solved(coarse, "chain")
    return swapped(coarse, devices), bound


def refine(coarse: Coarse) -> Assignment:
    """Improve the solver's chain by local search."""
    devices, bound = solved(coarse, "chain")
    return refined(coarse, devices), bound


def optimal(coarse: Coarse) -> Assignment:
    """Find the contiguous optimum; a graph too wide for that gets the best of a few orders."""
    method = "downsets" if is_narrow(coarse, WIDEST_SEARCH) else "chain"
    return proven(coarse, *solved(coarse, method))


def noncontiguous(coarse: Coarse) -> Assignment:
    """Search all placements of the classes, contiguous or not."""
    return proven(coarse, *solved(coarse, "noncontiguous"))


CONTIGUOUS: dict[str, Callable[[Coarse], Assignment]] = {
    "uniform": uniform,
    "parameters": parameters,
    "chain": chain,
    "optimal": optimal,
    "refine": refine,
}


@remembered
def assigned(coarse: Coarse, strategy: str) -> Assignment:
    """Assign classes by a strategy of CONTIGUOUS, or by `noncontiguous`."""
    return branched(coarse, CONTIGUOUS.get(strategy, noncontiguous))


def place_contiguous(
    graph: Graph, costs: Costs, machine: Machine, constraints: Constraints, *, strategy: str
) -> Placed:
    """Place a graph by a strategy of CONTIGUOUS: values flow along a row of devices."""
    coarse = coarsen(graph, costs, machine, constraints, contiguous=True)
    return as_placement(graph, coarse, *assigned(coarse, strategy), strategy)


def place_noncontiguous(
    graph: Graph, costs: Costs, machine: Machine, constraints: Constraints
) -> Placed:
    """Place a graph without order, never slower than the contiguous optimum, which is one such way.

    A device may hold the embedding and the decoder and nothing of what lies between, so that a
    weight they share is not sent. More stages make longer pipelines: look at the simulated step,
    not at the load alone.
    """
    coarse = coarsen(graph, costs, machine, constraints, contiguous=False)
    devices, bound = assigned(coarse, "noncontiguous")
    placed = as_placement(graph, coarse, devices, bound, "noncontiguous")
    with suppress(PlacementError):  # in one row it may not fit
        row = place_contiguous(graph, costs, machine, constraints, strategy="optimal")
        if row.load < placed.load:
            return replace(row, strategy="noncontiguous", lower_bound=min(bound, row.load))
    return placed


def place_on_one(
    graph: Graph, costs: Costs, machine: Machine, constraints: Constraints, device: int
) -> Placed:
    """Put everything on one device, whatever the limits on memory.

    Raises:
        PlacementError: something is pinned to another device, or a rule is broken.
    """
    if any(pin != device for pin in constraints.pins.values()):
        raise PlacementError(f"not everything can be on {machine.contexts[device]}: see the pins")
    of = {node.name: 0 for node in graph if node.origin is None}
    free = replace(constraints, memory=None, in_flight=1)
    allowed = np.arange(len(machine.devices))[None] == device
    any_size = machine.unlimited()
    coarse = weighed(graph, costs, any_size, free, of, (-1,), allowed, contiguous=False)
    load = float(coarse.times[device, 0])
    return as_placement(graph, coarse, (device,), load, f"{machine.contexts[device]} alone")


def place_smallest(
    graph: Graph, costs: Costs, machine: Machine, constraints: Constraints
) -> Placed:
    """Place a graph so that the device that holds the most holds as little as can be.

    Limits on memory may be smaller than that.

    Raises:
        PlacementError: nothing keeps all rules.
    """
    some = constraints if constraints.memory is not None else replace(constraints, memory=0)
    coarse = coarsen(graph, costs, machine, some, contiguous=False)

    def assign(narrowed: Coarse) -> Assignment:
        devices = least_memory(narrowed)
        if devices is None:
            raise PlacementError(NOTHING)
        return devices, 0.0

    devices, _ = branched(coarse, assign)
    free = coarse.unlimited()
    return as_placement(graph, free, devices, floor(free), "least memory")


def as_placement(
    graph: Graph, coarse: Coarse, devices: Sequence[int], lower_bound: float, strategy: str
) -> Placed:
    """Put the nodes of every class on its device.

    Raises:
        PlacementError: a device is too small, or a rule is broken.
    """
    devices, contexts = numbered_in_a_row(coarse, devices), coarse.machine.contexts
    if coarse.constraints.rules:
        device_of = {name: contexts[devices[c]] for name, c in coarse.of.items()}
        require_kept(graph, coarse.constraints.rules, device_of)
    loads = Loads(coarse, devices)
    if any(x is not None and m > x for m, x in zip(loads.memory, coarse.limits, strict=True)):
        who = f" for the strategy {strategy}"
        raise too_small(coarse, loads.memory, max(loads.memory), who)
    stage_of, rank_of = form_stages(graph, {name: devices[c] for name, c in coarse.of.items()})
    placement = Placement(stage_of, rank_of, contexts)
    load = max(loads.seconds)
    return Placed(placement, load, min(load, lower_bound), strategy, tuple(loads.memory))


def _where_allowed(coarse: Coarse, devices: Sequence[int]) -> list[int]:
    """Put each class that may not be on its device on the nearest one of those that it may."""
    order = np.arange(len(coarse.limits))
    distance = np.abs(order - np.asarray(devices)[:, None])
    nearest: list[int] = np.where(coarse.allowed, distance, len(order)).argmin(axis=1).tolist()
    return nearest


def numbered_in_a_row(coarse: Coarse, devices: Sequence[int]) -> Sequence[int]:
    """Number those devices along the graph that are alike."""
    free: dict[int, list[int]] = {kind: [] for kind in coarse.alike}
    for d, kind in reversed([*enumerate(coarse.alike)]):
        free[kind].append(d)
    number = {d: free[coarse.alike[d]].pop() for d in dict.fromkeys(devices)}
    return [number[d] for d in devices]
