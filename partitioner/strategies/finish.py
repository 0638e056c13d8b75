"""The end of every strategy: classes on devices become a checked placement of nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partitioner.machine import Machine
from partitioner.stages import form_stages
from partitioner.strategies.coarse import Coarse, limits
from partitioner.strategies.loads import Loads, speeds
from partitioner.strategies.problem import too_small
from partitioner.strategies.types import Constraints, Placed
from partitioner.types import Placement
from symgraph.graph import Graph


def finish(
    graph: Graph,
    coarse: Coarse,
    machine: Machine,
    constraints: Constraints,
    devices: Sequence[int],
    strategy: str,
    lower_bound: float = 0.0,
) -> Placed:
    """The nodes of every class on its device. Raises PlacementError for too much memory on one."""
    loads = Loads(coarse, machine, devices)
    given = limits(machine, constraints)
    if any(x is not None and m > x for m, x in zip(loads.memory, given, strict=True)):
        who = f" for the strategy {strategy}"
        raise too_small(machine, constraints, loads.memory, max(loads.memory), who)
    rank_of_node = {name: devices[c] for name, c in coarse.of.items()}
    stage_of, rank_of = form_stages(graph, rank_of_node)
    load = max(loads.seconds)
    return Placed(
        Placement(stage_of, rank_of, machine.contexts), load,
        min(load, max(lower_bound, floor(coarse, machine))), strategy, tuple(loads.memory),
    )  # fmt: skip


def floor(coarse: Coarse, machine: Machine) -> float:
    """What no placement of the classes is below: the largest class, and all work spread evenly."""
    whole = float(coarse.seconds.sum()) / float((1 / speeds(machine)).sum())
    return max(whole, float(np.max(coarse.seconds)))


def is_uniform(machine: Machine, constraints: Constraints) -> bool:
    """Whether all devices and links are alike, so that the solver's bound holds."""
    k = range(len(machine.devices))
    links = {machine.link(a, b)[:2] for a in k for b in k if a != b}
    same = len({d.flops for d in machine.devices}) == 1
    return same and len(links) <= 1 and len(set(limits(machine, constraints))) == 1
