"""The figures of each stage after a run: measured times beside the plan's sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from partitioner.base.types import FORWARD
from partitioner.memory.memory_plan import kept_bytes
from partitioner.views.picture import group_devices
from partitioner.views.report import body_flops, parameter_bytes
from runtime.engine.session import Session
from runtime.planning.plan import Plan
from runtime.schedule.replay import Costs, RankMemory, peak_in_flight, simulate


def stage_rows(session: Session, plan: Plan) -> tuple[list[dict[str, Any]], float, float]:
    """Measure the stages of a plan in the steps of a training session.

    Returns:
        A row for each stage; the predicted seconds per step, by a replay of the schedule with the
        median measured times; the seconds per step in which all ranks compute.
    """
    ranks: list[dict[str, Any]] = []

    def work(transport: Any) -> None:
        rank = transport.rank
        local = {
            str(key): float(np.median(times))
            for key, times in session.body_seconds.items()
            if plan.partition.rank(key) == rank
        }
        updates = {
            str(stage): float(np.median(times))
            for stage, times in session.update_seconds.items()
            if plan.partition.rank_of[stage] == rank
        }
        updater, shared = session.updaters.get(rank), session.plan.shared_copies
        weights = sum(
            a.nbytes if updater is None or name not in shared else updater.piece(name, a).nbytes
            for name, a in session.arrays[rank].items()
        )
        transport.waiting_for("the summary")
        slots = 0 if updater is None else updater.held
        held = weights + slots + session.workers[rank].held
        ranks[:] = transport.exchange({"bodies": local, "updates": updates, "bytes": held})

    session.cluster.run(work)
    seconds = {k: s for row in ranks for k, s in row["bodies"].items()}
    updates = {stage: s for row in ranks for stage, s in row["updates"].items()}
    costs = Costs(
        run=lambda key: seconds.get(str(key), 0.0), update=lambda s: updates.get(str(s), 0.0)
    )
    predicted = simulate(plan.schedule, plan.partition, costs).makespan
    rows = [
        row | _measured(plan, row["stage"], seconds, ranks)
        for row in plan_rows(plan, session.memory)
    ]
    busy = len(plan.sizes) * sum(seconds.values()) + sum(updates.values())
    return rows, predicted, busy


def placement_of(plan: Plan) -> dict[str, str | list[str]]:
    """Return the device of each ctx_group, or the list of its devices."""
    devices_of = group_devices(plan.partition.graph, plan.placement)
    names = {group: [str(d) for d in devices] for group, devices in devices_of.items() if group}
    return {group: d[0] if len(d) == 1 else d for group, d in names.items()}


def plan_rows(plan: Plan, memory: Sequence[RankMemory]) -> list[dict[str, Any]]:
    """Return the figures of each stage that are known before a run: sizes per step, peak memory.

    Args:
        plan: the plan of a batch.
        memory: of each rank in a step, which may have several batches.
    """
    partition = plan.partition
    cuts = [(plan.partitions[size], count) for size, count in Counter(plan.sizes).items()]
    kept = kept_bytes(partition)
    in_flight = peak_in_flight(plan.schedule, partition)
    rows = []
    for stage, rank in enumerate(partition.rank_of):
        keys = [k for k in partition.bodies if k.stage == stage]
        sends = [
            (edge, n)
            for cut, n in cuts
            for edge in cut.edges
            if edge.src.stage == stage and cut.crosses(edge)
        ]
        rows.append(
            {
                "stage": stage,
                "rank": rank,
                "device": str(partition.placement.devices[rank]),
                "flops": sum(n * body_flops(cut.bodies[k]) for cut, n in cuts for k in keys),
                "parameter_bytes": parameter_bytes(partition, stage, set(plan.parameters)),
                "activation_bytes": kept[stage],
                "in_flight": in_flight[rank],
                "peak_bytes_predicted": memory[rank].peak,
                "bytes_sent": sum(n * edge.type.nbytes for edge, n in sends),
                "messages": sum(n for _, n in sends),
            }
        )
    return rows


def _measured(
    plan: Plan, stage: int, seconds: dict[str, float], ranks: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the columns that a run adds: seconds per step and bytes held on the stage's device."""
    forward = backward = 0.0
    for key in plan.partition.bodies:
        if key.stage == stage:
            spent = len(plan.sizes) * seconds.get(str(key), 0.0)
            forward += spent if key.phase == FORWARD else 0.0
            backward += 0.0 if key.phase == FORWARD else spent
    return {
        "seconds": forward + backward,
        "forward_seconds": forward,
        "backward_seconds": backward,
        "peak_bytes_measured": ranks[plan.partition.rank_of[stage]]["bytes"],
    }
