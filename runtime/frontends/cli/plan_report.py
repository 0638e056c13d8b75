"""The plan report: what a config would do, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from partitioner.costs.cost import CostTable
from partitioner.placement.group2ctx import devices_of
from partitioner.views.picture import block, counted, group_block
from partitioner.views.report import table
from runtime.planning.costs.files import load_prices
from runtime.planning.costs.prices import CostModel, KernelCosts
from runtime.planning.explain import without_idle
from runtime.planning.grid import groups_in
from runtime.planning.mixed_step import predict, stream, stream_batches
from runtime.planning.plan import Plan, PlanCandidate
from runtime.planning.splits import GAIN
from runtime.planning.step import StepPrograms
from runtime.profiling.analysis.pace import STREAM, steady
from runtime.profiling.calibration.pricing import quick_prices
from runtime.profiling.report.text import interval_words
from runtime.schedule.replay import RankMemory
from runtime.schedule.timeline import Timeline
from runtime.schedule.views.draw import chart, legend
from runtime.training.job import Job, machine_of
from runtime.training.summary import placement_of, plan_rows
from symgraph.app.config import Config
from symgraph.app.data_config import buckets_of, is_by_time
from symgraph.core.columns import aligned_columns
from symgraph.core.context import Context
from symgraph.core.tags import lookup
from symgraph.core.units import bytes_text, count_text, seconds_text, si_text
from symgraph.passes.batching import batch_size
from symgraph.passes.shards import GROUP, place_of


def plan_report(job: Job) -> tuple[str, dict[str, Any]]:
    """Return the report of `--plan` as text, and its figures with the keys of `--json`.

    The timeline is predicted from the profile that automatic choices were made with, or else from
    operation counts and a quick measurement of this machine; a training run predicts anew from
    its measured times.
    """
    plan = job.training
    prices = prices_of(job.config, plan).only(plan.options.contexts)
    timeline = predict(StepPrograms.of(plan), prices)
    config, figures = job.config, _figures(job, timeline, prices)
    phases = "forward only" if job.forward_only else "with gradients"
    head = (
        f"{config.model}: {len(plan.partition.graph)} nodes {phases}, batch of "
        f"{sum(plan.sizes)} in micro-batches of {', '.join(map(str, plan.sizes))}, {how(plan)}"
    )
    parts = [
        head,
        "partition (one micro-batch):\n" + table(plan.partition, set(plan.parameters)),
        f"memory at the worst moment{_of_step(job)}:\n" + memory_table(plan, job.memory),
        _predicted(job, timeline, figures)
        + interval_words(prices, timeline.makespan)
        + f", bubble {timeline.bubble_fraction:.1%} of all ranks' time, {_basis(prices)}\n"
        + f"{chart(timeline)}\n{legend(timeline)}\n"
        + _bound(plan, timeline),
    ]
    buckets = buckets_of(config.data)
    shown = f"of the buckets {', '.join(map(str, buckets))} the largest is shown" if buckets else ""
    parts[1:1] = [note for note in [shown, plan.uncut_reason] if note]
    if plan.placements:
        parts.insert(-1, "placements:\n" + placements_table(plan, prices))
        parts.insert(-1, config_block(plan))
    if len(plan.counts) > 1:
        steps = [f"{count}: {seconds_text(seconds)}" for count, seconds in plan.counts.items()]
        parts.insert(-1, "predicted steps by the number of micro-batches: " + "; ".join(steps))
    if plan.splits:
        parts.insert(-1, "splits: " + "; ".join(c.split_words for c in plan.splits))
    if len(plan.candidates) > 1:
        parts.insert(-1, "tried:\n" + candidates_table(plan))
    return "\n\n".join(parts), figures


def _predicted(job: Job, timeline: Timeline, figures: Mapping[str, Any]) -> str:
    """Say how long a step takes; forward only, how fast batches stream and how long one takes."""
    if not job.forward_only:
        return f"predicted step: {seconds_text(timeline.makespan)}"
    batch = figures["predicted_batch_seconds"]
    return (
        f"predicted: {sum(job.training.sizes) / batch:,.0f} samples/s, a batch every "
        f"{seconds_text(batch)} while batches stream; latency of a batch alone "
        f"{seconds_text(timeline.makespan)}"
    )


def _figures(job: Job, timeline: Timeline, prices: CostModel) -> dict[str, Any]:
    plan, config = job.training, job.config
    of_pace = {}
    if job.forward_only:
        batches = stream_batches(plan, STREAM)
        streaming = predict(stream(plan, batches), prices)
        of_pace = {
            "predicted_batch_seconds": steady(streaming, batches),
            "predicted_latency_seconds": timeline.makespan,
        }
    return of_pace | {
        "predicted_step_seconds": timeline.makespan,
        "predicted_step_interval": prices.interval(timeline.makespan),
        "bubble_fraction": timeline.bubble_fraction,
        "schedule": plan.choice.schedule,
        "micro_batches": len(plan.sizes),
        "time_segment": plan.choice.time_segment,
        "recompute": list(plan.choice.recompute),
        "strategy": config.partition.strategy,
        "lower_bound_seconds": plan.bound,
        "placement": placement_of(plan),
        "devices": list(config.devices),
        "stages": plan_rows(plan, job.memory),
    }


def prices_of(config: Config, plan: Plan) -> CostModel:
    """Return the costs of a plan's choices; without one those of the config, or quick ones."""
    if plan.prices is not None:
        return plan.prices
    if config.partition.costs is not None:
        return load_prices(config.partition.costs)
    machine = machine_of(config)
    if machine is not None:
        return CostModel.of_machine(machine)
    return quick_prices(plan.options.contexts)


def _bound(plan: Plan, timeline: Timeline) -> str:
    """Say how far the step is above what no order of its runs can beat."""
    busy = timeline.busy()
    rank = max(range(len(busy)), key=busy.__getitem__)
    least = busy[rank]
    gap = f"{timeline.makespan / least - 1:.1%}" if least else "-"
    device = plan.devices[rank]
    return (
        f"no schedule of this partition can beat {seconds_text(least)}, the work of {device}: "
        f"the predicted step is {gap} longer"
    )


def config_block(plan: Plan) -> str:
    """Return the lines of a config that give the plan's placement."""
    options, lines = plan.options, []
    if options.rows > 1:
        groups = block(counted(_first_row(plan)), {})
    else:
        groups = group_block(plan.partition.graph, plan.placement)
    if options.shards:
        marked = [f"{group}: {pieces}" for group, pieces in options.shards.items()]
        lines.append(f"  shards: {{{', '.join(marked)}}}\n")
    if options.rows > 1:
        lines.append(f"  data_axis: {options.rows}\n")
    if options.rows > 1 and options.replicas_near:
        lines.append("  replicas_near: true\n")
    return groups + "".join(["partition:\n", *lines] if lines else [])


def _first_row(plan: Plan) -> Iterator[tuple[str, Context]]:
    """Yield the group and the device of each operator in the first row of a plan on a grid.

    A group in several columns was divided into one for each (`runtime.planning.grid.columns`).
    """
    assert plan.request is not None
    named = groups_in(plan.request.lowered(batch_size(plan.request.feeds)))
    for node in plan.partition.graph:
        place, part = place_of(node), lookup(node.tags, GROUP) or ""
        if node.origin is None and not node.is_variable and place and place[0] == 0:
            (device, *_) = devices_of((plan.options.groups or {})[part])
            yield part if part in named else part.removesuffix(str(device)).rstrip(), device


def _basis(prices: CostModel) -> str:
    """Say what a prediction is based on."""
    several = len(prices.kinds) > 1
    words = [_bodies(b) + several * f" ({kind})" for kind, b in prices.kinds.items()]
    return " and ".join([*words, f"{seconds_text(float(prices.link.latency))} a message"])


def _bodies(bodies: KernelCosts) -> str:
    if isinstance(bodies, CostTable):
        return f"from {len(bodies.measured)} measured kernels"
    return f"at {si_text(bodies.flops, 'FLOP/s')}, {seconds_text(bodies.call)} a call"


def how(plan: Plan) -> str:
    """Describe the schedule, time segments and recomputation of a plan."""
    choice = plan.choice
    text = f"schedule {choice.schedule}"
    if choice.time_segment is not None:
        text += f", time segments of {choice.time_segment} steps"
    if choice.recompute:
        text += f", forward run again on stage {', '.join(map(str, choice.recompute))}"
    return text


def _of_step(job: Job) -> str:
    """Say of which step the memory is told, if it has more than one batch."""
    parts = 1 if job.largest is None else len(job.largest.parts.plans)
    if parts == 1:
        return ""
    noun = "micro-batch" if is_by_time(job.config.data) else "batch"
    return f" of a step of {count_text(parts, noun)} of the largest bucket"


def memory_table(plan: Plan, memory: Sequence[RankMemory]) -> str:
    """Return what the memory of each device, in a plan's steps, consists of at its worst moment."""
    parts = ("parameters", "optimizer", "scratch", "gradients", "activations", "transient", "peak")
    shown = [name for name in parts if plan.grads or name not in ("optimizer", "gradients")]
    rows: list[tuple[str, ...]] = [("rank", "device", *shown, "at")]
    for rank, held in enumerate(memory):
        texts = [bytes_text(getattr(held, name)) for name in shown]
        rows.append((str(rank), str(plan.devices[rank]), *texts, str(held.at)))
    return "\n".join(aligned_columns(rows))


def placements_table(plan: Plan, prices: CostModel) -> str:
    """Return the placements that strategies found, with the chosen one marked.

    Args:
        prices: of what runs on the plan's devices.
    """
    rows: list[tuple[str, ...]] = [
        ("", "strategy", "slowest device", "at least", "gap", "predicted step")
    ]
    for c in plan.placements:
        known = c.placed or c.estimate
        if known is not None:
            taken = c.placed is not None and c.placed.placement == plan.placement
            rows.append(
                (
                    "->" if taken else "",
                    known.strategy,
                    seconds_text(known.load),
                    seconds_text(known.lower_bound),
                    f"{known.gap:.1%}",
                    _step(c),
                )
            )
    rest = filter(None, [_idle(plan, prices), plan.proof])
    return "\n".join([*aligned_columns(rows), *rest])


def _idle(plan: Plan, prices: CostModel) -> str:
    """Name the idle devices, and what it costs that each step ends with an exchange with them."""
    steps = without_idle(plan, prices)
    if steps is None:
        return ""
    idle = [str(d) for r, d in enumerate(plan.devices) if r not in plan.placement.rank_of]
    note = f"idle, as the step would be longer with work on them: {', '.join(idle)}"
    now, alone = steps
    if alone >= GAIN * now:
        return note
    return (
        f"{note}; each step still ends with an exchange with them: without them in `devices` the "
        f"predicted step of this placement is {seconds_text(alone)}, not {seconds_text(now)}"
    )


def _step(candidate: PlanCandidate) -> str:
    if candidate.seconds is not None:
        return seconds_text(candidate.seconds)
    if candidate.estimate is not None:
        return f"about {seconds_text(candidate.estimate.seconds)}"
    return "too large" if candidate.bound is None else f"> {seconds_text(candidate.bound)}"


def candidates_table(plan: Plan) -> str:
    """Return the candidates of an automatic choice, with the chosen one marked."""
    rows: list[tuple[str, ...]] = [
        (
            "",
            "schedule",
            "steps a segment",
            "forward again",
            "predicted step",
            "at least",
            "peak memory",
        ),
    ]
    rows += [
        (
            "->" if c == plan.choice else "",
            c.schedule,
            "-" if c.time_segment is None else str(c.time_segment),
            ", ".join(map(str, c.recompute)) or "-",
            "too large" if c.seconds is None else seconds_text(c.seconds),
            "" if c.bound is None else seconds_text(c.bound),
            bytes_text(c.peak),
        )
        for c in plan.candidates
    ]
    return "\n".join(aligned_columns(rows))
