"""Pictures for papers, by matplotlib: timelines, and memory over time, as PNG."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from partitioner.base.types import PHASE_NAMES
from runtime.profiling.analysis.profile import Profile
from runtime.schedule.timeline import Timeline
from runtime.schedule.views.draw import FILL

DPI = 150
WIDE = 9.0  # inches


def timeline_png(profile: Profile, path: Path) -> None:
    """A typical step, measured above predicted, on one axis of milliseconds."""
    typical = profile.typical
    ranks = typical.measured.ranks
    with _figure(path, 2, 1.2 + 0.9 * ranks) as axes:
        last = 1e3 * max(typical.measured.makespan, typical.predicted.makespan)
        shown = (("measured", typical.measured), ("predicted", typical.predicted))
        for ax, (name, timeline) in zip(axes, shown, strict=True):
            _draw(ax, timeline)
            ax.set_title(f"{name}: {timeline.makespan * 1e3:.1f} ms", loc="left")
            ax.set_xlim(0, last)
        axes[-1].set_xlabel("ms")
        used = {key.phase for key in typical.record.plan.partition.bodies}
        phases = [phase for phase in FILL if phase in used]
        handles = [axes[0].barh(0, 0, color=FILL[phase]) for phase in phases]
        axes[0].legend(
            handles,
            [PHASE_NAMES[p] for p in phases],
            loc="lower right",
            bbox_to_anchor=(1, 1),
            ncols=len(phases),
            frameon=False,
        )


def memory_png(profile: Profile, path: Path) -> None:
    """Draw the bytes that each device holds during a typical step, by the plan's account."""
    typical, timeline = profile.typical, profile.typical.measured
    devices = typical.record.plan.devices
    with _figure(path, 1, 3.2) as (ax,):
        for rank, (track, memory) in enumerate(zip(timeline.tracks, typical.memory, strict=True)):
            at = (track.end - timeline.ticks[0]) * float(timeline.unit) * 1e3
            ax.step(at, memory.profile / 2**20, where="post", label=str(devices[rank]))
            ax.axhline(memory.peak / 2**20, linestyle=":", color=f"C{rank}", linewidth=1)
        ax.set(xlabel="ms", ylabel="MiB", ylim=(0, None), title="memory (dotted: peak)")
        ax.legend(frameon=False)


def _draw(ax: Any, timeline: Timeline) -> None:
    begin, unit = timeline.ticks[0], float(timeline.unit) * 1e3
    for rank, track in enumerate(timeline.tracks):
        for phase in FILL:
            spans = [
                ((start - begin) * unit, (end - start) * unit)
                for run, start, end in track.runs()
                if run.phase == phase
            ]
            ax.broken_barh(
                spans, (rank - 0.4, 0.8), color=FILL[phase], edgecolor="white", linewidth=0.3
            )
    ax.set_yticks(range(timeline.ranks), [f"rank {rank}" for rank in range(timeline.ranks)])
    ax.invert_yaxis()


@contextmanager
def _figure(path: Path, rows: int, height: float) -> Iterator[list[Any]]:
    """Axes below one another, written when all is drawn; no window system is asked for."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # on demand: an extra
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDE, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 1, squeeze=False, sharex=rows > 1)
    yield list(axes[:, 0])
    figure.savefig(path, dpi=DPI)
