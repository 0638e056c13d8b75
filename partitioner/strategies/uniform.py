"""Uniform placement: numbers of classes by the devices' speeds, in topological order.

What people do by hand (and Megatron by default): layers by count, whatever they cost.
"""

from __future__ import annotations

import math

import numpy as np

from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.finish import finish
from partitioner.strategies.problem import floor, slowness
from partitioner.strategies.types import Constraints, Placed
from symgraph.core.graph import Graph


def place_uniform(graph: Graph, costs: Costs, machine: Machine, constraints: Constraints) -> Placed:
    """As many classes on each device, give or take one; on one that is twice as fast, twice as
    many. A pinned class goes to its pin."""
    coarse = coarsen(graph, costs, machine, constraints, contiguous=True)
    n = len(coarse)
    shares = 1 / slowness(coarse)
    ends = [math.ceil(round(x, 9)) for x in np.cumsum(shares) / shares.sum() * n]
    devices = np.searchsorted(ends, np.arange(n), "right").tolist()
    devices = [pin if pin >= 0 else d for d, pin in zip(devices, coarse.pins, strict=True)]
    bound = floor(coarse, machine, constraints)
    return finish(graph, coarse, machine, constraints, devices, "uniform", bound)
