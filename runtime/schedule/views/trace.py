"""Timelines as trace files in Chrome's JSON format, which Perfetto and chrome://tracing show.

    process = rank, with two rows:   runs       runs, reductions and updates
                                     messages   sends, receives (as long as they wait) and frees

An arrow leads from the end of the run before each send to the start of the run after its receive.
Several timelines, such as a measured and a predicted one, have rows below each other in one file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from partitioner.base.types import PHASE_NAMES, CommEdge
from runtime.schedule.instructions import Collective, Free, Instruction, Recv, Run, Send, Update
from runtime.schedule.timeline import Timeline, Track

RUNS, MESSAGES = 0, 1  # thread ids
ROWS, FLOWS = 2, 1 << 24  # ids that each timeline of a trace has for rows and for arrows

TraceEvent = dict[str, Any]


class Slice(NamedTuple):
    """A part of a run: the call of a node."""

    name: str
    #: Ticks of its timeline.
    start: int
    end: int
    #: What a viewer shows about it.
    args: dict[str, Any]


class Shown(NamedTuple):
    """A timeline in a trace."""

    timeline: Timeline
    #: In the names of its rows.
    label: str = ""
    #: Of a tag and micro-batch.
    edge: Callable[[int, int], CommEdge] | None = None
    #: By rank: shown below its runs.
    slices: Mapping[int, Iterable[Slice]] = MappingProxyType({})


def write_trace(timeline: Timeline, path: str | Path) -> None:
    """Write a trace file, to be opened at https://ui.perfetto.dev or chrome://tracing."""
    write_traces([Shown(timeline)], path)


def write_traces(shown: Iterable[Shown], path: str | Path) -> None:
    """Write one trace file of several timelines."""
    events = (event for at, one in enumerate(shown) for event in shown_events(one, at))
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(events):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")


def shown_events(shown: Shown, number: int = 0) -> Iterator[TraceEvent]:
    """Yield the events of the number-th timeline of a trace, with times in microseconds."""
    timeline, label, edge, slices = shown
    microseconds = float(timeline.unit * 1_000_000)
    begin, _ = timeline.ticks
    first = number * ROWS
    title = f"{label} " if label else ""
    flows: dict[tuple[int, int], int] = {}  # (tag, micro-batch) -> number of its arrow
    for rank, track in enumerate(timeline.tracks):
        if not number:
            yield _metadata("process_name", rank, RUNS, {"name": f"rank {rank}"})
            yield _metadata("process_sort_index", rank, RUNS, {"sort_index": rank})
        for row, name in ((RUNS, "runs"), (MESSAGES, "messages")):
            yield _metadata("thread_name", rank, first + row, {"name": title + name})
        for instruction, start, end in _entries(track, begin):
            row = RUNS if isinstance(instruction, Run | Collective | Update) else MESSAGES
            yield {
                "name": str(instruction),
                "ph": "X",
                "pid": rank,
                "tid": first + row,
                "ts": start * microseconds,
                "dur": (end - start) * microseconds,
                **_meaning(instruction, edge),
            }
        for name, start, end, args in slices.get(rank, ()):
            yield {
                "name": name,
                "cat": "node",
                "ph": "X",
                "pid": rank,
                "tid": first + RUNS,
                "ts": (start - begin) * microseconds,
                "dur": (end - start) * microseconds,
                "args": args,
            }
        for message, leaves, ts in _arrow_ends(track, begin):
            arrow = flows.setdefault((message.tag, message.mb), len(flows))
            yield {
                "name": "message",
                "cat": "message",
                "ph": "s" if leaves else "f",
                "bp": "e",
                "id": arrow + number * FLOWS,
                "pid": rank,
                "tid": first + RUNS,
                "ts": ts * microseconds,
            }


def _metadata(name: str, rank: int, row: int, args: dict[str, Any]) -> TraceEvent:
    return {"name": name, "ph": "M", "pid": rank, "tid": row, "args": args}


def _entries(track: Track, begin: int) -> Iterator[tuple[Instruction, int, int]]:
    """Return the instructions of a rank with their ticks after the beginning of the step."""
    start, end = (track.start - begin).tolist(), (track.end - begin).tolist()
    return zip(track.program, start, end, strict=True)


def _meaning(
    instruction: Instruction, edge: Callable[[int, int], CommEdge] | None
) -> dict[str, Any]:
    """Return the category and arguments of an instruction's event."""
    match instruction:
        case Run(stage, phase, mb, segment):
            args: dict[str, Any] = {"stage": stage, "micro-batch": mb, "segment": segment}
            return {"cat": PHASE_NAMES[phase], "args": args}
        case Send(tag, mb) | Recv(tag, mb):
            kind = "send" if isinstance(instruction, Send) else "receive"
            args = {"edge": tag, "micro-batch": mb}
            if edge is not None:
                carried = edge(tag, mb)
                args |= {"value": str(carried.value), "bytes": carried.type.nbytes}
            return {"cat": kind, "args": args}
        case Free():
            return {"cat": "free"}
        case Update(stage):
            return {"cat": "update", "args": {"stage": stage}}
    return {"cat": "reduction"}


def _arrow_ends(track: Track, begin: int) -> Iterator[tuple[Send | Recv, bool, float]]:
    """Yield where arrows leave (True) and arrive: messages, and times just inside the runs.

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
