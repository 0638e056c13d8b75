"""Plans in words: what a config would do, before anything runs."""

from __future__ import annotations

from typing import Any

from partitioner import StageMemory
from partitioner.report import aligned, table
from runtime.calibrate import measure_speed
from runtime.instructions import Run
from runtime.pipeline import Plan
from runtime.replay import Costs, simulate
from runtime.summary import memory_of, plan_row
from runtime.timeline import Timeline
from runtime.trainer import Job, create_optimizer
from symgraph.units import bytes_text

CHART = 72  # columns of the timeline


def plan_report(job: Job) -> tuple[str, dict[str, Any]]:
    """The report of `--plan` as text, and its figures with the keys of `--json`.

    The timeline is predicted from operation counts and a quick measurement of this machine's
    matrix products; a training run predicts anew from its measured times.
    """
    plan = job.training
    speed = measure_speed()
    costs = Costs(lambda key: speed.seconds(plan.partition.bodies[key]))
    timeline = simulate(plan.schedule, plan.partition, costs)
    memory = memory_of(plan, len(create_optimizer(job.config).slots()))
    config = job.config
    head = (
        f"{config.model}: {len(plan.partition.graph)} nodes with gradients, batch of "
        f"{sum(plan.sizes)} in micro-batches of {', '.join(map(str, plan.sizes))}, "
        f"schedule {config.pipeline.schedule}"
    )
    parts = [
        head,
        "partition (one micro-batch):\n" + table(plan.partition, set(plan.parameters)),
        "memory at the worst moment:\n" + memory_table(plan, memory),
        f"predicted step: {timeline.makespan * 1e3:.1f} ms, bubble "
        f"{timeline.bubble_fraction:.1%} of all ranks' time, at {speed.flops / 1e9:.0f} GFLOP/s "
        f"and {speed.call * 1e6:.1f} µs a call\n" + chart(timeline),
    ]
    figures = {
        "predicted_step_seconds": timeline.makespan,
        "bubble_fraction": timeline.bubble_fraction,
        "schedule": config.pipeline.schedule,
        "micro_batches": len(plan.sizes),
        "time_segment": None,
        "placement": dict(config.group2ctx),
        "devices": list(config.devices),
        "stages": [plan_row(plan, stage, memory[stage]) for stage in range(len(memory))],
    }
    return "\n\n".join(parts), figures


def memory_table(plan: Plan, memory: tuple[StageMemory, ...]) -> str:
    """Per stage: what its memory is made of."""
    head = ("stage", "device", "parameters", "gradients", "optimizer", "kept x in flight",
            "transient", "peak")  # fmt: skip
    rows: list[tuple[str, ...]] = [head]
    placement = plan.partition.placement
    for stage, m in enumerate(memory):
        rows.append((
            str(stage), str(placement.devices[placement.rank_of[stage]]), bytes_text(m.parameters),
            bytes_text(m.gradients), bytes_text(m.optimizer),
            f"{bytes_text(m.kept)} x {m.in_flight}",
            bytes_text(m.transient), bytes_text(m.peak),
        ))  # fmt: skip
    return "\n".join(aligned(rows))


def chart(timeline: Timeline, columns: int = CHART) -> str:
    """The runs of every rank as a row of characters: the micro-batch's last digit, F over B.

    rank 0  F 0011223344......
            B             ....44332211
    """
    span = timeline.makespan or 1.0
    rows = {(r, p): ["."] * columns for r in range(timeline.ranks) for p in "FB"}
    for event in timeline.events:
        if isinstance(event.instruction, Run):
            row = rows[event.rank, event.instruction.phase]
            first = int(event.start / span * columns)
            last = max(first + 1, int(event.end / span * columns))
            for column in range(first, min(last, columns)):
                row[column] = str(event.instruction.mb % 10)
    lines = []
    for rank in range(timeline.ranks):
        lines.append(f"  rank {rank}  F {''.join(rows[rank, 'F'])}")
        lines.append(f"          B {''.join(rows[rank, 'B'])}")
    return "\n".join(lines)
