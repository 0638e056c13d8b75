"""The command `python -m runtime simulate`: figures and pictures of a schedule on a chain.

It generates or reads a schedule, proves it, simulates it, and says where the time goes.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from runtime.frontends.cli.cases import Case, figure, make_case, some
from runtime.schedule.instructions import FREE, Run
from runtime.schedule.program import Columns, Program
from runtime.schedule.replay import check, peak_in_flight, simulate
from runtime.schedule.text import dump_csv
from runtime.schedule.timeline import Event, Timeline
from runtime.schedule.views.breakdown import RankTime, breakdown, critical_path
from runtime.schedule.views.draw import chart, chart_columns, legend, svg
from runtime.schedule.views.trace import write_trace
from symgraph.app.command_line import require_writable
from symgraph.core.columns import aligned_columns, wrapped
from symgraph.core.errors import ConfigError, ScheduleError
from symgraph.core.writing import writing

MAX_CHART_RANKS, MAX_CHART_RUNS, MAX_SVG_RUNS = 64, 50_000, 200_000
MAX_TABLE_RANKS = 16
FILES = ("svg", "trace", "csv", "dump")  # options that name a file to write


def explore(options: Namespace) -> None:
    """Run `python -m runtime simulate` with these options and print the result.

    Raises:
        ConfigError: The options are not valid.
        ScheduleError: The schedule is not valid.
    """
    case = make_case(options)
    if options.svg and case.count > MAX_SVG_RUNS:
        raise ConfigError(
            f"--svg: {case.count:,} runs are too many to draw (at most {MAX_SVG_RUNS:,})"
        )
    for name in FILES:
        if getattr(options, name) is not None:
            require_writable(getattr(options, name), f"cannot write --{name}")
    proof = prove(case, options.capacity)
    timeline = simulate(case.schedule, case.topology, case.costs, capacity=options.capacity)
    path = critical_path(timeline, case.topology)
    figures = {
        "schedule": options.schedule,
        "time_steps": options.time_steps,
        "time_segment": options.time_segment,
        **make_figures(case, timeline, options.overhead),
        "critical_path": [str(e.instruction) for e in path if isinstance(e.instruction, Run)],
    }
    parts = [
        "\n".join([case.heading, *case.notes, proof]),
        summary(figures),
        rank_table(figures),
        path_line(path),
    ]
    if not options.no_chart:
        parts.append(chart_text(case, timeline))
    write_files(options, case, timeline)
    print(wrapped("\n\n".join(parts)))
    if options.json:
        print(json.dumps(figures))


def prove(case: Case, capacity: int | None) -> str:
    """Check the schedule with links that buffer nothing; if that fails, with `capacity`."""
    try:
        check(case.schedule, case.topology, case.mbs)
    except ScheduleError:
        if capacity == 0:
            raise
        check(case.schedule, case.topology, case.mbs, capacity=capacity)
        return "proved: complete and in order; with --capacity 0 it would hang"
    return "proved: complete and in order; cannot hang, even with links that hold no message"


def make_figures(case: Case, timeline: Timeline, overhead: Fraction) -> dict[str, Any]:
    """Return the figures, with the keys of `--json`.

    makespan, own_spans (of each rank, from its first start of a run to its last end), busy and
    breakdown are times; peak_in_flight counts micro-batches, once for each stage of a rank.
    """
    ranks, busy, spans = timeline.ranks, timeline.busy(), timeline.own_spans()
    ideal, longest = sum(busy) / ranks, max(spans)
    return {
        "ranks": ranks,
        "stages": len(case.topology.rank_of),
        "placement": list(case.topology.rank_of),
        "micro_batches": case.mbs,
        "time_segments": case.segments,
        "makespan": timeline.makespan,
        "ideal": ideal,
        "bubble_fraction_of_total": timeline.bubble_fraction,
        "bubble_fraction_of_ideal": timeline.bubble_fraction_of_ideal,
        "bubble_fraction_of_longest_own_span": 1 - ideal / longest if longest else 0.0,
        "own_spans": spans,
        "busy": busy,
        "peak_in_flight": list(peak_in_flight(case.schedule, case.topology)),
        "breakdown": [
            asdict(_dispatched(time, int(track.is_run.sum()) * overhead))
            for time, track in zip(breakdown(timeline, case.topology), timeline.tracks, strict=True)
        ],
    }


def _dispatched(time: RankTime, overhead: Fraction) -> RankTime:
    """Count the overhead of runs, which the simulation includes in their times, as dispatch."""
    moved = float(overhead)
    return replace(time, compute=time.compute - moved, dispatch=time.dispatch + moved)


def summary(figures: dict[str, Any]) -> str:
    """Return the figures of the whole machine as text, each with its meaning."""
    longest = max(figures["own_spans"])
    rows = (
        ("makespan", figure(figures["makespan"]), "from the first start to the last end"),
        ("ideal", figure(figures["ideal"]), "time in runs, of an average rank"),
        (
            "bubble of total",
            f"{figures['bubble_fraction_of_total']:.2%}",
            "(makespan - ideal) / makespan, as GPipe counts",
        ),
        (
            "bubble of ideal",
            f"{figures['bubble_fraction_of_ideal']:.2%}",
            "(makespan - ideal) / ideal, as Megatron-LM counts",
        ),
        (
            "bubble of longest span",
            f"{figures['bubble_fraction_of_longest_own_span']:.2%}",
            f"(span - ideal) / span, as zero-bubble counts; first run to last of a rank: "
            f"{figure(longest)}",
        ),
    )
    width = max(len(value) for _, value, _ in rows)
    return "\n".join(f"{name:<22}  {value:>{width}}  {what}" for name, value, what in rows)


def rank_table(figures: dict[str, Any]) -> str:
    """Return a table of where each rank's time goes; of many ranks, only the first and last."""
    times, peaks = figures["breakdown"], figures["peak_in_flight"]
    rows = [("rank", "in flight", *(name.replace("_", "-") for name in times[0]))]
    shown: Sequence[int] = range(len(times))
    if len(times) > MAX_TABLE_RANKS:
        shown = (*shown[: MAX_TABLE_RANKS // 2], *shown[-MAX_TABLE_RANKS // 2 :])
    rows += [(str(r), str(peaks[r]), *map(figure, times[r].values())) for r in shown]
    if len(times) > MAX_TABLE_RANKS:
        hidden = f"... {len(times) - MAX_TABLE_RANKS} more"
        rows.insert(1 + MAX_TABLE_RANKS // 2, (hidden, *[""] * (len(rows[0]) - 1)))
    return "\n".join(aligned_columns(rows))


def path_line(path: Sequence[Event]) -> str:
    """Return the runs that determine the makespan, and the time in and between them, as text."""
    ends = [0.0, *(event.end for event in path)]
    runs = waits = 0.0
    for event, before in zip(path, ends, strict=False):
        if isinstance(event.instruction, Run):
            runs += event.end - before
        else:
            waits += event.end - before
    names = [str(event.instruction) for event in path if isinstance(event.instruction, Run)]
    return (
        f"critical path: {some(names, ' ')} ({len(names)} runs: {figure(runs)}, "
        f"messages and waiting: {figure(waits)})"
    )


def chart_text(case: Case, timeline: Timeline) -> str:
    """Return the chart, or why there is none.

    If possible, a column is a whole number of ticks, or a tick a whole number of columns.
    """
    if timeline.ranks > MAX_CHART_RANKS or case.count > MAX_CHART_RUNS:
        return (
            f"no chart of {timeline.ranks:,} ranks and {case.count:,} runs (at most "
            f"{MAX_CHART_RANKS} and {MAX_CHART_RUNS:,}); --trace writes a file to look at"
        )
    ticks = max(1, timeline.ticks[1] - timeline.ticks[0])
    room = chart_columns(timeline)
    fits = (n for n in range(room, room // 2, -1) if n % ticks == 0 or ticks % n == 0)
    return f"{chart(timeline, next(fits, room))}\n{legend(timeline)}"


def write_files(options: Namespace, case: Case, timeline: Timeline) -> None:
    """Write the files that the options name; raise ConfigError if one cannot be written."""
    writers: tuple[Callable[[Path], object], ...] = (
        lambda path: path.write_text(svg(timeline, case.heading), encoding="utf-8"),
        lambda path: write_trace(timeline, path),
        lambda path: dump_csv(map(_runs, case.schedule.programs), path),
        lambda path: path.write_text(f"{case.schedule}\n", encoding="utf-8"),
    )
    for name, write in zip(FILES, writers, strict=True):
        path = getattr(options, name)
        if path is not None:
            with writing(repr(path)):
                write(Path(path))


def _runs(program: Program) -> Program:
    """Return the runs of a program."""
    return Program(Columns(*(c[program.columns.code < FREE] for c in program.columns)))
