"""Uniform placement: equal numbers of classes on all devices, in topological order.

What people do by hand (and Megatron by default): layers by count, whatever they cost.
"""

from __future__ import annotations

from partitioner.machine import Machine
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.finish import finish
from partitioner.strategies.types import Constraints, Costs, Placed
from symgraph.graph import Graph


def place_uniform(graph: Graph, costs: Costs, machine: Machine, constraints: Constraints) -> Placed:
    """As many classes on each device, give or take one. A pinned class goes to its pin."""
    coarse = coarsen(graph, costs, machine, constraints, contiguous=True)
    n, k = len(coarse), len(machine.devices)
    devices = [pin if pin >= 0 else c * k // n for c, pin in enumerate(coarse.pins)]
    return finish(graph, coarse, machine, constraints, devices, "uniform")
