"""The exhibit: a profile as the plain data that pages, pictures and CSV files show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from runtime.profiling.analysis.mixture import Mixture
from runtime.profiling.analysis.profile import Profile
from runtime.profiling.analysis.waits import reasons
from runtime.profiling.report.text import again, how_long, pace_lines, warnings
from runtime.schedule.instructions import Free, Recv, Run, Send
from runtime.schedule.timeline import Timeline
from symgraph.core.units import bytes_text, flops_text, seconds_text

OTHER = "o"  # the kind of updates and reductions; runs have their phase, messages `m`
MESSAGE = "m"


def exhibit(profile: Profile) -> dict[str, Any]:
    """Both timelines with what hovering shows; times in seconds.

    A view has `seconds`, for each rank its `boxes` (start, end, kind, label, lines of text),
    `nodes` (start, end, name, text) and `memory` (times and bytes), and `arrows` (rank, time,
    rank, time).
    """
    typical = profile.typical
    devices = typical.record.plan.devices
    return {
        "ranks": [f"rank {rank} {device}" for rank, device in enumerate(devices)],
        "views": {
            "measured": _view(typical, typical.measured, _nodes(typical)),
            "predicted": _view(typical, typical.predicted, {}),
        },
        "shown": typical.name,
        "head": ". ".join([*pace_lines(profile), how_long(profile)]),
        "reasons": [*again(profile), *reasons(profile)],
        "warnings": warnings(profile),
    }


def _view(typical: Mixture, timeline: Timeline, nodes: Mapping[int, list[Any]]) -> dict[str, Any]:
    return {
        "seconds": timeline.makespan,
        "boxes": [list(_boxes(typical, timeline, rank)) for rank in range(timeline.ranks)],
        "nodes": [nodes.get(rank, []) for rank in range(timeline.ranks)],
        "memory": [_memory(typical, timeline, rank) for rank in range(timeline.ranks)],
        "arrows": list(_arrows(timeline)),
    }


def _boxes(typical: Mixture, timeline: Timeline, rank: int) -> Iterator[list[Any]]:
    """Yield a box for each instruction of a rank that takes time."""
    record = typical.record
    medians = typical_seconds(typical, rank)
    for at, now in enumerate(timeline.tracks[rank].program):
        event = timeline.event(rank, at)
        if isinstance(now, Free) or event.end <= event.start:
            continue
        lines = [f"{seconds_text(event.end - event.start)} from {seconds_text(event.start)}"]
        kind, label = OTHER, str(now)
        if isinstance(now, Run):
            kind, label = now.phase, f"{now.mb}.{now.segment}" if now.segment else str(now.mb)
            bucket = record.buckets(now.mb)
            lines.append(
                f"stage {now.stage}, micro-batch {now.mb}, segment {now.segment}"
                + (f", bucket {bucket}" if bucket else "")
            )
        elif isinstance(now, Send | Recv):
            kind = MESSAGE
            edge = record.edge(now.tag, now.mb)
            lines.append(f"{edge.value} of {edge.type}, {bytes_text(edge.type.nbytes)}")
        measured, predicted = medians[at]
        lines.append(f"median {seconds_text(measured)}, predicted {seconds_text(predicted)}")
        yield [event.start, event.end, kind, label, [str(now), *lines]]


def typical_seconds(typical: Mixture, rank: int) -> list[tuple[float, float]]:
    """Return the median measured and the predicted seconds of each instruction of a rank."""
    own, track = typical.record.ranks[rank], typical.predicted.tracks[rank]
    measured = np.median(own.end - own.start, axis=0) * 1e-9
    predicted = (track.end - track.start) * float(typical.predicted.unit)
    return list(zip(measured.tolist(), predicted.tolist(), strict=True))


def _nodes(typical: Mixture) -> dict[int, list[Any]]:
    """Return the calls of the median step by rank."""
    step = typical.record.median_step
    begin = typical.measured.ticks[0]
    found: dict[int, list[Any]] = {}
    for rank, own in enumerate(typical.record.ranks):
        calls = [call for call in typical.calls if call.rank == rank]
        times = zip(
            calls,
            ((own.calls.start[step] - begin) * 1e-9).tolist(),
            ((own.calls.end[step] - begin) * 1e-9).tolist(),
            strict=True,
        )
        found[rank] = [
            [
                start,
                end,
                call.node,
                f"{call.op}, {flops_text(call.flops)}, "
                f"{bytes_text(call.nbytes)}, {seconds_text(end - start)}",
            ]
            for call, start, end in times
        ]
    return found


def _memory(typical: Mixture, timeline: Timeline, rank: int) -> dict[str, Any]:
    """Return the bytes held after each instruction, as the plan accounts for them."""
    track, held = timeline.tracks[rank], typical.memory[rank].profile
    at = (track.end - timeline.ticks[0]) * float(timeline.unit)
    keep = np.flatnonzero(np.diff(held, prepend=-1))  # where it changes
    peak = typical.memory[rank].peak
    return {"at": at[keep].tolist(), "bytes": held[keep].tolist(), "peak": peak}


def _arrows(timeline: Timeline) -> Iterator[list[float]]:
    """Yield an arrow from the end of each send to the end of its receive."""
    sent: dict[tuple[int, int], tuple[int, float]] = {}
    for event in timeline.events:
        if isinstance(event.instruction, Send):
            sent[event.instruction.tag, event.instruction.mb] = event.rank, event.end
    for event in timeline.events:
        now = event.instruction
        if isinstance(now, Recv) and (now.tag, now.mb) in sent:
            source, end = sent[now.tag, now.mb]
            yield [source, end, event.rank, event.end]
