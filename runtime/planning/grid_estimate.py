"""The estimate of a grid of a large graph: one of its rows is simulated.

All rows do the same, so a grid of many nodes need not be built to see that it is too slow. The sums
of gradients over rows, which come on top, are left out.
"""

from __future__ import annotations

from dataclasses import replace

from partitioner import Placement
from runtime.planning.draft import Draft
from runtime.planning.network import PlanRequest, make_network
from runtime.planning.options import AUTO, Options
from runtime.planning.plan import Plan
from runtime.planning.schedule_choice import select_timed
from runtime.schedule.generators.table import SCHEDULES


def grid_seconds(request: PlanRequest, whole: Plan, best: Placement, options: Options) -> float:
    """Estimate the step of a grid.

    Args:
        request: the network.
        whole: its plan without a grid.
        best: the placement of a row.
        options: those of the grid.
    """
    count, rows = len(whole.sizes), options.grid
    of_row = replace(_like_whole(options, whole), devices=rows[0])
    if options.machine is not None:
        of_row = replace(of_row, machine=options.machine.only(rows[0]))
    network = make_network(request, replace(of_row, micro_batches=count * len(rows)), {})
    network = replace(network, sizes=network.sizes[:count])
    draft = Draft(network, replace(best, devices=rows[0]), of_row)
    return select_timed(draft, of_row.costs(network.first)).choice.seconds or 0.0


def _like_whole(options: Options, whole: Plan) -> Options:
    """Return the options with the schedule of a plan, or with the named ones if it has no name."""
    named = whole.choice.schedule if whole.choice.schedule in SCHEDULES else AUTO
    return replace(options, schedule=named, named_only=True, near=1)
