"""The figures of each stage after a run: measured times beside the plan's sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from partitioner import StageMemory, plan_memory
from partitioner.report import body_flops
from runtime.pipeline import Plan
from runtime.replay import Costs, in_flight, simulate

if TYPE_CHECKING:
    from runtime.trainer import Trainer


def memory_of(plan: Plan, slots: int) -> tuple[StageMemory, ...]:
    """The memory plan of a training plan whose optimizer has `slots` arrays a parameter."""
    return plan_memory(
        plan.partition,
        in_flight(plan.schedule),
        trained=list(plan.grads),
        slots=slots,
        parameters=plan.parameters,
    )


def stage_rows(trainer: Trainer) -> tuple[list[dict[str, Any]], float, float]:
    """(a row a stage, predicted seconds of a step, median seconds that all ranks' bodies run).

    The prediction replays the schedule with the median measured time of each body.
    """
    session, plan = trainer.training, trainer.job.training
    found: dict[str, Any] = {}

    def work(transport: Any) -> None:
        rank = transport.rank
        own = {
            str(key): float(np.median(times))
            for key, times in session.body_seconds.items()
            if plan.partition.rank(key) == rank
        }
        updater = session.updaters[rank]
        extra = sum(a.nbytes for s in updater.states.values() for a in s.values())
        weights = sum(a.nbytes for a in session.arrays[rank].values())
        frames = trainer.frame_bytes.get(rank, 0)
        transport.waiting_for("the summary")
        rows = transport.exchange({
            "bodies": own, "bytes": extra + weights + frames,
        })  # fmt: skip
        found["ranks"] = rows

    session.cluster.run(work)
    seconds = {k: s for row in found["ranks"] for k, s in row["bodies"].items()}
    costs = Costs(lambda key: seconds.get(str(key), 0.0))
    predicted = simulate(plan.schedule, plan.partition, costs).makespan
    memory = memory_of(plan, len(next(iter(session.updaters.values())).optimizer.slots()))
    rows = [
        plan_row(plan, stage, memory[stage]) | _measured(plan, stage, seconds, found["ranks"])
        for stage in range(plan.partition.placement.stages)
    ]
    busy = len(plan.sizes) * sum(seconds.values())
    return rows, predicted, busy


def plan_row(plan: Plan, stage: int, memory: StageMemory) -> dict[str, Any]:
    """What is known of a stage before a run: sizes a step, and its memory."""
    partition = plan.partition
    micro_batches = len(plan.sizes)
    keys = [k for k in partition.bodies if k.stage == stage]
    sends = [e for e in partition.edges if e.src.stage == stage and partition.crosses(e)]
    rank = partition.placement.rank_of[stage]
    return {
        "stage": stage,
        "rank": rank,
        "device": str(partition.placement.devices[rank]),
        "flops": micro_batches * sum(body_flops(partition.bodies[k]) for k in keys),
        "parameter_bytes": memory.parameters,
        "activation_bytes": memory.kept,
        "in_flight": memory.in_flight,
        "peak_bytes_predicted": memory.peak,
        "bytes_sent": micro_batches * sum(e.type.nbytes for e in sends),
        "messages": micro_batches * len(sends),
    }


def _measured(
    plan: Plan, stage: int, seconds: dict[str, float], ranks: list[dict[str, Any]]
) -> dict[str, Any]:
    """What a run adds: seconds a step, and the bytes held if the stage has its rank alone."""
    placement = plan.partition.placement
    rank = placement.rank_of[stage]
    alone = placement.rank_of.count(rank) == 1
    by_phase = {p: len(plan.sizes) * seconds.get(f"{stage}{p}", 0.0) for p in "FB"}
    return {
        "seconds": sum(by_phase.values()),
        "forward_seconds": by_phase["F"],
        "backward_seconds": by_phase["B"],
        "peak_bytes_measured": ranks[rank]["bytes"] if alone else None,
    }
