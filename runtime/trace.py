"""Timelines as trace files in Chrome's JSON format, which Perfetto and chrome://tracing show.

    process = rank, with two rows:   runs       runs, reductions and updates
                                     messages   sends, receives (as long as they wait) and frees

An arrow leads from the end of the run before each send to the start of the run after its receive.
Predicted and measured timelines give files of the same form, so that they can be laid side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.instructions import Collective, Free, Instruction, Recv, Run, Send, Update
from runtime.timeline import Timeline, Track

RUNS, MESSAGES = 0, 1  # thread ids
NAMES = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients"}

TraceEvent = dict[str, Any]


def write_trace(timeline: Timeline, path: str | Path) -> None:
    """Write the trace; open it at https://ui.perfetto.dev or chrome://tracing."""
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(trace_events(timeline)):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")


def trace_events(timeline: Timeline) -> Iterator[TraceEvent]:
    """The events of the trace; times in microseconds, as the format wants them."""
    microseconds = float(timeline.unit * 1_000_000)
    begin, _ = timeline.ticks
    flows: dict[tuple[int, int], int] = {}  # (tag, micro-batch) -> number of its arrow
    for rank, track in enumerate(timeline.tracks):
        yield _metadata("process_name", rank, RUNS, {"name": f"rank {rank}"})
        yield _metadata("process_sort_index", rank, RUNS, {"sort_index": rank})
        yield _metadata("thread_name", rank, RUNS, {"name": "runs"})
        yield _metadata("thread_name", rank, MESSAGES, {"name": "messages"})
        for instruction, start, end in _entries(track, begin):
            yield {
                "name": str(instruction), "ph": "X", "pid": rank,
                "tid": RUNS if isinstance(instruction, Run | Collective | Update) else MESSAGES,
                "ts": start * microseconds, "dur": (end - start) * microseconds,
                **_meaning(instruction),
            }  # fmt: skip
        for message, leaves, ts in _arrow_ends(track, begin):
            yield {
                "name": "message", "cat": "message", "ph": "s" if leaves else "f", "bp": "e",
                "id": flows.setdefault((message.tag, message.mb), len(flows)),
                "pid": rank, "tid": RUNS, "ts": ts * microseconds,
            }  # fmt: skip


def _metadata(name: str, rank: int, row: int, args: dict[str, Any]) -> TraceEvent:
    return {"name": name, "ph": "M", "pid": rank, "tid": row, "args": args}


def _entries(track: Track, begin: int) -> Iterator[tuple[Instruction, int, int]]:
    """The instructions of a rank with their ticks after the step's begin."""
    start, end = (track.start - begin).tolist(), (track.end - begin).tolist()
    return zip(track.program, start, end, strict=True)


def _meaning(instruction: Instruction) -> dict[str, Any]:
    """The category and arguments of an instruction's event."""
    match instruction:
        case Run(stage, phase, mb, segment):
            args = {"stage": stage, "micro-batch": mb, "segment": segment}
            return {"cat": NAMES[phase], "args": args}
        case Send(tag, mb) | Recv(tag, mb):
            kind = "send" if isinstance(instruction, Send) else "receive"
            return {"cat": kind, "args": {"edge": tag, "micro-batch": mb}}
        case Free():
            return {"cat": "free"}
        case Update(stage):
            return {"cat": "update", "args": {"stage": stage}}
    return {"cat": "reduction"}


def _arrow_ends(track: Track, begin: int) -> Iterator[tuple[Send | Recv, bool, float]]:
    """Where arrows leave (True) and arrive: messages, and times just inside of the runs.

    Viewers attach an end to the slice that is open at its time, so it must not be on its edge.
    """
    waiting: list[Recv] = []
    inside: float | None = None  # just before the end of the last run
    for instruction, start, end in _entries(track, begin):
        margin = (end - start) / 100
        if isinstance(instruction, Run):
            yield from ((recv, False, start + margin) for recv in waiting)
            waiting, inside = [], end - margin
        elif isinstance(instruction, Recv):
            waiting.append(instruction)
        elif isinstance(instruction, Send) and inside is not None:
            yield instruction, True, inside
