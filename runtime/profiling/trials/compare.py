"""Comparisons: several configs measured in alternation, so that all see the same machine.

A round gives every candidate a turn of some steps, in forward and reverse order alternately. The
first step of a turn is not counted, because another candidate's data is in the caches. With a time
limit each candidate has one turn, and then the fastest ones share the remaining time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runtime.profiling.analysis.record import WARM_UP
from runtime.profiling.calibration.pricing import CostCache
from runtime.profiling.report.csv import write_table
from runtime.profiling.report.files import PAGE, writing_report
from runtime.profiling.report.html import Cell, Show, render
from runtime.profiling.report.text import again
from runtime.profiling.trials.outcome import Figures, Outcome, held_bytes
from runtime.profiling.trials.trial import Shared, Trial
from runtime.schedule.views.draw import chart
from runtime.training.job import Planned
from runtime.transports import Cluster
from symgraph.app.config import Config
from symgraph.core.units import aligned_columns, bytes_text, seconds_text

TURN = 4  # counted steps of a turn
NEARLY = 1.1  # times the fastest's step: what is slower will not become the fastest


@dataclass(frozen=True)
class Compared:
    """A candidate after its measurement."""

    name: str
    config: Config
    outcome: Outcome

    @property
    def figures(self) -> Figures:
        return self.outcome.figures


def compare(
    configs: Mapping[str, Config],
    clusters: Callable[[Config], Cluster],
    *,
    steps: int,
    say: Callable[[str], None] = lambda line: None,
    planned: Mapping[str, Planned] = MappingProxyType({}),
    shared: Shared | None = None,
    warm_up: int = WARM_UP,
    within: float = math.inf,
) -> list[Compared]:
    """Measure all candidates; return them with the fastest first.

    Args:
        configs: candidates by name.
        clusters: the clusters on which they run; the caller closes them.
        steps: the least number of steps of each, if there is time.
        planned: plans that exist already, by name.
        warm_up: the number of uncounted first steps; see Recorder.
        within: seconds after which no further round begins. With a limit, only the nearly fastest
            candidates join later rounds; without one, predictions that are far off are repeated.
    """
    ends, rounds = time.perf_counter() + within, -(-steps // TURN)
    shared, trials = shared or Shared(), dict[str, Trial]()
    for name, config in configs.items():
        say(f"{name}: {'warming up' if name in planned else 'planning and warming up'}")
        trials[name] = Trial.of(
            config,
            clusters(config),
            steps=rounds * (1 + TURN),
            shared=shared,
            planned=planned.get(name),
            warm_up=warm_up,
        )
    turn, took = list(trials), dict.fromkeys(trials, 0.0)
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for name in turn if number % 2 == 0 else turn[::-1]:
            trials[name].run(1, keep=False)
            begun = time.perf_counter()
            trials[name].run(TURN)
            took[name] += time.perf_counter() - begun
        if within < math.inf:
            left = ends - time.perf_counter()
            turn = promising({name: took[name] for name in turn}, left * (number + 1))
        if not turn:
            break
    memory = CostCache() if within == math.inf else None
    measured = [Compared(name, configs[name], t.outcome(memory)) for name, t in trials.items()]
    return sorted(measured, key=lambda c: -c.figures.tokens_per_second)


def promising(took: Mapping[str, float], left: float) -> list[str]:
    """Return the nearly fastest candidates for whose next turn there is time.

    Args:
        took: the seconds that each took for the same steps.
        left: the seconds that remain.
    """
    order = sorted(took, key=took.__getitem__)
    ends = list(accumulate(took[name] * (1 + TURN) / TURN for name in order))
    most = NEARLY * took[order[0]]
    return [
        name for name, end in zip(order, ends, strict=True) if took[name] <= most and end <= left
    ]


# -- words and pages -------------------------------------------------------------------------------

HEAD = (
    "",
    "candidate",
    "tokens/s",
    "spread",
    "step",
    "of the first",
    "bubble",
    "imbalance",
    "peak memory",
    "sent a step",
    "predicted",
    "error",
)


def ranking(compared: Sequence[Compared]) -> list[tuple[str, ...]]:
    """Return a row per candidate below HEAD."""
    best = compared[0].figures.tokens_per_second
    return [
        (
            str(place),
            c.name,
            f"{f.tokens_per_second:,.0f}",
            f"{f.spread:,.0f}",
            seconds_text(f.step),
            f"{f.tokens_per_second / best:.0%}",
            f"{f.bubble:.1%}",
            f"{f.imbalance:.1%}",
            bytes_text(f.peak),
            bytes_text(f.bytes_sent),
            seconds_text(f.predicted),
            f"{f.error:+.1%}",
        )
        for place, c in enumerate(compared, 1)
        for f in [c.figures]
    ]


def _sortable(compared: Sequence[Compared]) -> list[Sequence[Cell]]:
    """Return the ranking for a page, with the values by which a click on a column sorts."""
    rows: list[Sequence[Cell]] = []
    for place, (c, (_, name, *texts)) in enumerate(
        zip(compared, ranking(compared), strict=True), 1
    ):
        f = c.figures
        values = (*f[:3], f.tokens_per_second, *f[3:])
        rows.append([(str(place), place), name, *zip(texts, map(float, values), strict=True)])
    return rows


def comparison_report(compared: Sequence[Compared]) -> str:
    """Return the ranked table and the timelines for the terminal."""
    charts = []
    for c in compared:
        typical = c.outcome.profile.typical
        of = f", a step of buckets {typical.name}" if typical.name else ""
        measured = typical.measured
        lines = [f"{c.name}{of}: {seconds_text(measured.makespan)}", *again(c.outcome.profile)]
        charts.append("\n".join([*lines, chart(measured)]))
    return "\n\n".join(["\n".join(aligned_columns([HEAD, *ranking(compared)])), *charts])


def comparison_figures(compared: Iterable[Compared]) -> list[dict[str, Any]]:
    """Return the `--json` figures of each candidate, the fastest first."""
    return [
        {"name": c.name, **c.figures._asdict(), "config": c.config.model_dump(mode="json")}
        | {key: c.outcome.summary[key] for key in KEPT}
        for c in compared
    ]


KEPT = (
    "step_seconds",
    "predicted_step_seconds",
    "bubble_fraction",
    "schedule",
    "micro_batches",
    "time_segment",
    "recompute",
    "strategy",
    "placement",
    "devices",
    "stages",
)


def write_comparison(compared: Sequence[Compared], folder: str) -> Path:
    """Write the page, ranking.csv and one config per candidate; return the page's path."""
    to = Path(folder)
    shows = [
        Show(
            c.outcome.profile,
            c.config.to_yaml(),
            held_bytes(c.outcome.summary),
            f"{place}. {c.name}",
            False,
        )
        for place, c in enumerate(compared, 1)
    ]
    steps = compared[0].outcome.profile.steps
    about = f"{steps} steps of each, measured in alternation; the median ones are shown"
    page = render("Partitions compared", about, shows, (HEAD, _sortable(compared)))
    with writing_report(folder):
        (to / PAGE).write_text(page, encoding="utf-8")
        for place, c in enumerate(compared, 1):
            text = f"# {c.name}\n{c.config.to_yaml()}"
            (to / f"{place}.yaml").write_text(text, encoding="utf-8")
        rows = ((c.name, *c.figures) for c in compared)
        write_table(to / "ranking.csv", ("name", *Figures._fields), rows)
    return to / PAGE
