"""The comparison: candidates after their measurement, ranked, in words, figures and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.profiling.analysis.advice import advice
from runtime.profiling.report.csv import write_table
from runtime.profiling.report.files import PAGE, require_report, writing_report
from runtime.profiling.report.html import Cell, Show, render
from runtime.profiling.report.result import Passage, Result, Table
from runtime.profiling.report.text import again, step_words
from runtime.profiling.trials.baseline import Gain
from runtime.profiling.trials.outcome import Figures, Outcome, held_bytes
from runtime.profiling.trials.trial import Shared, Trial
from runtime.schedule.views.draw import chart
from symgraph.app.config import Config
from symgraph.core.units import bytes_text, seconds_text, value_text

RANKING = "ranking"
KEPT = (
    "step_seconds",
    "predicted_step_seconds",
    "bubble_fraction",
    "schedule",
    "micro_batches",
    "time_segment",
    "recompute",
    "blas",
    "blas_threads",
    "strategy",
    "placement",
    "devices",
    "stages",
)


@dataclass(frozen=True)
class Compared:
    """A candidate after its measurement."""

    name: str
    config: Config
    outcome: Outcome

    @classmethod
    def of(cls, name: str, config: Config, trial: Trial, again: Shared | None = None) -> Compared:
        """Return a candidate with the outcome of its trial, and with what was planned for it."""
        made = trial.planned.config
        config = config.model_copy(update={"devices": made.devices, "pipeline": made.pipeline})
        return cls(name, config, trial.outcome(again))

    @property
    def figures(self) -> Figures:
        return self.outcome.figures


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Candidates after their measurement."""

    ranking: tuple[Compared, ...]
    """All candidates, the fastest first."""
    gain: Gain | None = None
    """The gain of the fastest on several devices over one device; None: not measured."""

    @property
    def ties(self) -> tuple[str, ...]:
        """The names of the candidates that are not clearly slower than the first."""
        first, *others = self.ranking
        return tuple(c.name for c in others if c.outcome.ties_with(first.outcome))

    def tie_lines(self) -> list[str]:
        """Return a line that names the first and those that tie with it, if any do."""
        names = "; ".join([self.ranking[0].name, *self.ties])
        return [f"no clear winner, as their spreads overlap: {names}"] if self.ties else []

    def verdict(self) -> list[str]:
        """Return the lines that come first: the gain over one device, and ties."""
        return [*([] if self.gain is None else self.gain.lines()), *self.tie_lines()]

    def passages(self) -> list[Passage]:
        """Return the verdict, the ranked table and the timelines."""
        found = [Passage(self.verdict())] if self.verdict() else []
        found.append(Passage(table=[_head(self.ranking), *_rows(self.ranking)]))
        for c in self.ranking:
            typical = c.outcome.profile.typical
            first = f"{c.name}, a {step_words(typical)}: {seconds_text(typical.seconds)}"
            shown = chart(typical.measured)
            found.append(Passage([first, *again(c.outcome.profile)], chart=shown))
        return found

    def figures(self) -> dict[str, Any]:
        """Return the keys of `--json`; `ranking` has the fastest candidate first."""
        return {
            "baseline": None if self.gain is None else self.gain.figures(),
            "ties": list(self.ties),
            RANKING: [_figures(c) for c in self.ranking],
        }

    def tables(self) -> Mapping[str, Table]:
        """Return the ranking in seconds, bytes and shares."""
        rows = ((c.name, *c.figures) for c in self.ranking)
        return {RANKING: (("name", *Figures._fields), rows)}

    def report(self, folder: str) -> Path:
        """Write the page, ranking.csv and one config per candidate; return the page's path."""
        require_report(folder)
        to, compared = Path(folder), self.ranking
        shows = [
            Show(
                c.outcome.profile,
                c.config.to_yaml(),
                held_bytes(c.outcome.summary),
                f"{place}. {c.name}",
                False,
                advice(c.outcome.profile, c.config),
            )
            for place, c in enumerate(compared, 1)
        ]
        steps = compared[0].outcome.profile.steps
        about = f"{steps} steps of each, measured in alternation; the median ones are shown"
        rows = _head(compared), _sortable(compared)
        models = {str(c.config.model) for c in compared}
        title = f"Partitions of {models.pop()} compared" if len(models) == 1 else "Compared"
        page = render(title, about, shows, rows, verdict=self.verdict())
        with writing_report(folder):
            (to / PAGE).write_text(page, encoding="utf-8")
            for place, c in enumerate(compared, 1):
                text = f"# {c.name}\n{c.config.to_yaml()}"
                (to / f"{place}.yaml").write_text(text, encoding="utf-8")
            write_table(to / f"{RANKING}.csv", *self.tables()[RANKING])
        return to / PAGE


HEAD = (
    "",
    "candidate",
    "{unit}/s",
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


def _head(compared: Sequence[Compared]) -> tuple[str, ...]:
    head = tuple(name.format(unit=compared[0].outcome.profile.unit) for name in HEAD)
    if compared[0].figures.latency is None:
        return head
    return (*(name.replace("step", "batch") for name in head), "latency")


def _rows(compared: Sequence[Compared]) -> list[tuple[str, ...]]:
    """Return a row per candidate below HEAD; forward only, with the latency of a batch."""
    best = compared[0].figures.per_second
    return [
        (
            str(place),
            c.name,
            value_text(f.per_second),
            value_text(f.spread),
            seconds_text(f.step),
            f"{f.per_second / best:.0%}",
            f"{f.bubble:.1%}",
            f"{f.imbalance:.1%}",
            bytes_text(f.peak),
            bytes_text(f.bytes_sent),
            seconds_text(f.predicted),
            f"{f.error:+.1%}",
            *([] if f.latency is None else [seconds_text(f.latency)]),
        )
        for place, c in enumerate(compared, 1)
        for f in [c.figures]
    ]


def _sortable(compared: Sequence[Compared]) -> list[Sequence[Cell]]:
    """Return the ranking for a page, with the values by which a click on a column sorts."""
    rows: list[Sequence[Cell]] = []
    for place, (c, (_, name, *texts)) in enumerate(zip(compared, _rows(compared), strict=True), 1):
        f = c.figures
        values = (*f[:3], f.per_second, *f[3:9], *([] if f.latency is None else [f.latency]))
        rows.append([(str(place), place), name, *zip(texts, map(float, values), strict=True)])
    return rows


def _figures(c: Compared) -> dict[str, Any]:
    unit = c.outcome.profile.unit
    return {
        "name": c.name,
        f"{unit}_per_second": c.figures.per_second,
        f"{unit}_per_second_quartiles": list(c.outcome.quartiles),
        **{k: v for k, v in c.figures._asdict().items() if k != "per_second"},
        "config": c.config.model_dump(mode="json"),
        **{key: c.outcome.summary[key] for key in KEPT},
    }
