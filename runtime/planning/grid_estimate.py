"""The estimate of a grid of a large graph: one row is simulated, and its ranks sum gradients.

All rows do the same, so to see whether a grid is worth planning, one of them is enough: its ranks
sum their gradients with the other rows' when their last run has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from partitioner import Placement
from partitioner.base.collectives import CollectiveLayout
from partitioner.cutting.replicas import BUCKET_BYTES
from runtime.planning.costs.prices import CostModel
from runtime.planning.draft import Draft
from runtime.planning.network import PlanRequest, make_network
from runtime.planning.options import AUTO, Options
from runtime.planning.plan import Plan
from runtime.planning.schedule_choice import select_timed
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import SEND
from runtime.schedule.message_costs import collective_seconds
from runtime.schedule.replay import Link, simulate
from symgraph.core.context import Context


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
    row = select_timed(draft, of_row.costs(network.first))
    return _with_sums(row, draft, rows, whole.prices or of_row.costs(network.first))


def _like_whole(options: Options, whole: Plan) -> Options:
    """Return the options with the schedule of a plan, or with the named ones if it has no name."""
    named = whole.choice.schedule if whole.choice.schedule in SCHEDULES else AUTO
    return replace(options, schedule=named, named_only=True, near=1)


def _with_sums(
    row: Plan, draft: Draft, rows: Sequence[tuple[Context, ...]], prices: CostModel
) -> float:
    """Return the seconds of a row's step, whose ranks then sum gradients with the other rows."""
    partition = row.partition
    costs = draft.options.costs(partition.graph).costs(partition, draft.overheads(partition))
    timeline = simulate(row.schedule, partition, costs)
    nbytes = [0] * len(rows[0])
    for name in row.grads:
        nbytes[row.rank_of(name)] += partition.graph[name].types[0].nbytes
    last, summed = 0.0, 0.0
    for rank, track in enumerate(timeline.tracks):
        runs = np.asarray(track.end)[track.program.columns.code < SEND]
        end = float(runs.max(initial=0.0))
        last = max(last, end)
        column = [devices[rank] for devices in rows]
        summed = max(summed, end + sum_seconds(column, nbytes[rank], prices))
    return float(timeline.makespan) + max(0.0, summed - last)


def sum_seconds(column: Sequence[Context], nbytes: int, prices: CostModel) -> float:
    """Return the seconds in which the devices of a column sum gradients, bucket by bucket."""

    def link(a: int, b: int) -> Link:
        return prices.link_between(column[a], column[b])

    count = -(-nbytes // BUCKET_BYTES)
    if len(column) == 1 or not count:
        return 0.0
    piece = nbytes // count // len(column)
    ranks = range(len(column))
    sizes = tuple(tuple(piece * (a != b) for b in ranks) for a in ranks)
    layouts = [CollectiveLayout(kind, tuple(ranks), sizes) for kind in ("alltoall", "allgather")]
    return count * float(sum(collective_seconds(layout, link) for layout in layouts))
