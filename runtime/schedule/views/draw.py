"""Pictures of timelines: a chart of characters, and an SVG file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from math import floor, log10

import numpy as np

from partitioner.base.types import PHASE_NAMES, PHASES
from runtime.schedule.instructions import Recv, Run, Send, Update
from runtime.schedule.program import Schedule
from runtime.schedule.timeline import Timeline, Track
from symgraph.core.columns import columns, wrapped
from symgraph.core.html import paragraph, together
from symgraph.core.visible import visible_lines

CHART = 72  # columns of a chart in a file


def chart_columns(timeline: Timeline) -> int:
    """Return the columns of a chart's time axis: as many as fit beside the names of the ranks."""
    most = columns()
    return CHART if most is None else max(1, most - len(f"  rank {timeline.ranks - 1}  F "))


def chart(timeline: Timeline, columns: int = 0) -> str:
    """Draw the runs of every rank as rows of characters, one per phase.

    `columns` is the length of the time axis; 0: as long as fits.

    A run shows the last digit of its micro-batch; if there is just one micro-batch, of its time
    segment.

    rank 0  F 0011223344......
            B             ....44332211
    """
    columns = columns or chart_columns(timeline)
    one = _is_one(timeline)
    first, last = timeline.ticks
    span = max(1, last - first)
    phases = _phases(timeline)
    ranks = [f"rank {rank}" for rank in range(len(timeline.tracks))]
    width = max(map(len, ranks), default=0)
    lines = []
    for rank, track in zip(ranks, timeline.tracks, strict=True):
        rows = {phase: ["."] * columns for phase in phases}
        for run, start, end in track.runs():
            left = min((start - first) * columns // span, columns - 1)
            right = max(left + 1, (end - first) * columns // span)
            digit = str((run.segment if one else run.mb) % 10)
            rows[run.phase][left:right] = digit * (right - left)
        for phase, row in rows.items():
            head = rank if phase == phases[0] else ""
            lines.append(f"  {head:<{width}}  {phase} {''.join(row)}")
    return "\n".join(lines)


def legend(timeline: Timeline) -> str:
    """Return a line that says what the letters and digits of a chart mean."""
    meanings = [f"{phase} {PHASE_NAMES[phase]}" for phase in _phases(timeline)]
    numbered = "time segments" if _is_one(timeline) else "micro-batches"
    return wrapped(f"  {', '.join(meanings)}; digits: {numbered}") if meanings else ""


def _is_one(timeline: Timeline) -> bool:
    """Tell whether there is just one micro-batch."""
    return not any(track.program.columns.mb.any() for track in timeline.tracks)


def _phases(timeline: Timeline) -> list[str]:
    """Return the phases of runs, in order."""
    codes = {c for t in timeline.tracks for c in np.unique(t.program.columns.code).tolist()}
    return [phase for code, phase in enumerate(PHASES) if code in codes]


# -- HTML ----------------------------------------------------------------------------------------

MOST = 200  # runs of a rank that are shown


def strips(schedule: Schedule) -> str:
    """Return each rank's runs as a row of coloured cells, with micro-batches, for notebooks."""
    rows = []
    for rank, program in enumerate(schedule.programs):
        runs = [now for now in program if isinstance(now, Run)]
        cells = [
            f'<span title="{run}" style="background:{FILL[run.phase]};color:#111;'
            f'padding:0 4px;margin-right:1px">{run.mb}</span>'
            for run in runs[:MOST]
        ]
        more = f" ... {len(runs) - MOST} more" if len(runs) > MOST else ""
        rows.append(f"<div>rank {rank} {''.join(cells)}{more}</div>")
    return together(paragraph([repr(schedule)]), *rows)


# -- SVG -----------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT, TOP = 1200, 70, 20, 76  # pixels: of the rows, and around them
ROW, GAP = 26, 12  # height of a row and room for arrows below it
LETTER = 6.2  # width of a digit
FILL = {"F": "#77aadd", "B": "#ee8866", "I": "#eedd88", "W": "#44bb99"}  # told apart by everyone
STYLE = (
    ".gantt{--ink:#222;--paper:#fff;--lane:#f2f2f2;--line:#ccc;background:var(--paper)}"
    "@media screen and (prefers-color-scheme:dark){"
    ".gantt{--ink:#e4e8ec;--paper:#14181d;--lane:#232a32;--line:#343c45}}"
    ".gantt text{font:11px sans-serif;fill:var(--ink)}.gantt .t{font-size:15px}"
    ".gantt .n{font-size:10px;text-anchor:middle;fill:#222}"
    ".gantt .r{text-anchor:end}.gantt .a{text-anchor:middle}.gantt .i{fill:var(--lane)}"
    ".gantt .o{fill:#bbb}.gantt rect{stroke:var(--paper);stroke-width:.5}"
    ".gantt line{stroke:var(--line)}"
    ".gantt .m{stroke:var(--ink);stroke-width:.6;opacity:.6}"
    + "".join(f".gantt .{phase}{{fill:{fill}}}" for phase, fill in FILL.items())
)
ARROW = (
    '<defs><marker id="h" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" '
    'orient="auto"><path d="M0 0L6 3L0 6z" fill="#777"/></marker></defs>'
)


def svg(timeline: Timeline, title: str = "") -> str:
    """Return the timeline as SVG: a row per rank, boxes with micro-batches, arrows for messages.

    Boxes with enough room are labelled micro-batch.segment; pointing at one shows its instruction
    and times. Paler boxes are runs of a rank's later stages.
    """
    first, last = timeline.ticks
    scale = WIDTH / max(1, last - first)
    bottom = TOP + len(timeline.tracks) * (ROW + GAP)
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" class="gantt" '
        f'viewBox="0 0 {LEFT + WIDTH + RIGHT} '
        f'{bottom + 34}" width="{LEFT + WIDTH + RIGHT}" height="{bottom + 34}">',
        f"<title>{escape(title or 'timeline')}</title><style>{STYLE}</style>{ARROW}",
        *_heading(timeline, title),
    ]
    tops = [TOP + rank * (ROW + GAP) for rank in range(len(timeline.tracks))]
    for rank, y in enumerate(tops):
        parts.append(f'<text class="r" x="{LEFT - 8}" y="{y + 17}">rank {rank}</text>')
        parts.append(f'<rect class="i" x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW}"/>')
    parts += _axis(first, last, float(timeline.unit), bottom)
    for track, y in zip(timeline.tracks, tops, strict=True):
        parts += _boxes(track, y, first, scale, float(timeline.unit))
    parts += _arrows(timeline, first, scale)
    parts.append("</svg>\n")
    return visible_lines("\n".join(parts))


def _heading(timeline: Timeline, title: str) -> Iterator[str]:
    """Yield title, figures and legend."""
    yield f'<text class="t" x="{LEFT}" y="24">{escape(title)}</text>'
    yield (
        f'<text x="{LEFT}" y="44">makespan {timeline.makespan:.6g}, bubble '
        f"{timeline.bubble_fraction:.1%} of all ranks' time "
        f"({timeline.bubble_fraction_of_ideal:.1%} of the ideal time)</text>"
    )
    x = LEFT
    for phase in _phases(timeline):
        yield f'<rect class="{phase}" x="{x}" y="54" width="12" height="12"/>'
        yield f'<text x="{x + 17}" y="64">{phase} {PHASE_NAMES[phase]}</text>'
        x += 30 + int(LETTER * len(PHASE_NAMES[phase])) + 14
    yield f'<line class="m" marker-end="url(#h)" x1="{x}" y1="60" x2="{x + 20}" y2="60"/>'
    yield f'<text x="{x + 25}" y="64">message</text>'


def _axis(first: int, last: int, unit: float, bottom: int) -> Iterator[str]:
    """Yield vertical lines at round times, with their labels."""
    span = (last - first) * unit
    step = _round_step(span / 10) if span else 1.0
    for tick in range(floor(span / step * (1 + 1e-9)) + 1):
        x = f"{LEFT + WIDTH * (tick * step / span if span else 0):.2f}"
        yield f'<line x1="{x}" y1="{TOP - 4}" x2="{x}" y2="{bottom}"/>'
        yield f'<text class="a" x="{x}" y="{bottom + 14}">{tick * step:.6g}</text>'
    yield f'<text class="a" x="{LEFT + WIDTH / 2}" y="{bottom + 29}">time</text>'


def _round_step(least: float) -> float:
    """Return the first of ..., 0.5, 1, 2, 5, 10, ... that is at least this."""
    power = 10.0 ** floor(log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


def _boxes(track: Track, y: int, first: int, scale: float, unit: float) -> Iterator[str]:
    """Yield boxes for the runs of a rank, and for updates that take time."""
    stages = np.unique(track.program.columns.at[track.is_run]).tolist()
    for at, box in enumerate(track.program):
        start, end = int(track.start[at]), int(track.end[at])
        if not isinstance(box, Run) and (start == end or not isinstance(box, Update)):
            continue
        x, width = LEFT + (start - first) * scale, (end - start) * scale
        kind, label = "o", str(box)
        if isinstance(box, Run):
            kind, paler = box.phase, 0.6 * stages.index(box.stage) / len(stages)
            kind += f'" fill-opacity="{1 - paler:.2f}' if paler else ""
            label = f"{box.mb}.{box.segment}" if box.segment else str(box.mb)
        times = f"{(start - first) * unit:.6g} to {(end - first) * unit:.6g}"
        yield (
            f'<rect class="{kind}" x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW}">'
            f"<title>{box}: {times}</title></rect>"
        )
        if len(label) * LETTER < width:
            yield f'<text class="n" x="{x + width / 2:.2f}" y="{y + 17}">{label}</text>'


def _arrows(timeline: Timeline, first: int, scale: float) -> Iterator[str]:
    """Yield a line for each message, from its send to the end of its receive."""
    sends: dict[tuple[int, int], tuple[int, int]] = {}  # (tag, micro-batch) -> rank, tick
    for rank, track in enumerate(timeline.tracks):
        for message, end in _ends(track, Send):
            sends[message.tag, message.mb] = rank, end
    for rank, track in enumerate(timeline.tracks):
        for message, end in _ends(track, Recv):
            # A send in another process is not there.
            source, posted = sends.get((message.tag, message.mb), (rank, end))
            if source != rank:
                down = source < rank
                y1 = TOP + source * (ROW + GAP) + (ROW if down else 0)
                y2 = TOP + rank * (ROW + GAP) + (0 if down else ROW)
                x1, x2 = (LEFT + (tick - first) * scale for tick in (posted, end))
                yield (
                    f'<line class="m" marker-end="url(#h)" x1="{x1:.2f}" y1="{y1}" '
                    f'x2="{x2:.2f}" y2="{y2}"/>'
                )


def _ends(track: Track, kind: type[Send] | type[Recv]) -> Iterable[tuple[Send | Recv, int]]:
    """Return the sends or receives of a rank, with the ticks of their ends."""
    pairs = zip(track.program, track.end.tolist(), strict=True)
    return ((instruction, end) for instruction, end in pairs if isinstance(instruction, kind))
