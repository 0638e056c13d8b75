"""Costs on a machine that a file describes: rooflines of its devices, and its links."""

from __future__ import annotations

from partitioner import Partition, Placement
from partitioner.costs.machine import Machine
from runtime.planning.costs.overheads import StepOverheads
from runtime.schedule.replay import Costs, Link


def links(machine: Machine, placement: Placement) -> dict[tuple[int, int], Link]:
    """The link of each (source rank, destination rank), for `Costs.links`.

    ConfigError for a device that the machine has not.
    """
    at = [machine.index(context) for context in placement.devices]
    return {
        (src, dst): Link(*machine.link(a, b))
        for src, a in enumerate(at)
        for dst, b in enumerate(at)
        if src != dst
    }


def machine_costs(
    machine: Machine, partition: Partition, chores: StepOverheads, *, overhead: float = 0.0
) -> Costs:
    """For simulations of this partition's schedules: a body takes the time of its own device.

    overhead: seconds of a rank before each instruction. ConfigError as `links`.
    """
    placement = partition.placement
    speeds = [machine.devices[machine.index(c)].speed for c in placement.devices]
    seconds = {k: speeds[partition.rank(k)].seconds(body) for k, body in partition.bodies.items()}
    rates = [speed.rates for speed in speeds]
    return Costs(
        lambda key: seconds[key] + chores.seconds(key, rates[partition.rank(key)]),
        links=links(machine, placement),
        overhead=overhead,
        update=lambda stage: chores.update_seconds(stage, rates[placement.rank_of[stage]]),
    )
