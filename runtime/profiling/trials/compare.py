"""Comparisons: several configs measured in alternation, so that all see the same machine.

The network on one device is always among them, unless the caller says otherwise (baseline.py). A
round gives every candidate a turn of some steps, in forward and reverse order alternately. The
first step of a turn is not counted, because another candidate's data is in the caches. With a time
limit each candidate has one turn, and then the fastest ones share the remaining time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runtime.profiling.analysis.record import WARM_UP
from runtime.profiling.report.csv import write_table
from runtime.profiling.report.files import PAGE, writing_report
from runtime.profiling.report.html import Cell, Show, render
from runtime.profiling.report.text import again
from runtime.profiling.trials.baseline import (
    Gain,
    baselines_of,
    is_baseline,
    one_device,
)
from runtime.profiling.trials.outcome import Figures, Outcome, held_bytes
from runtime.profiling.trials.trial import Shared, Trial
from runtime.schedule.views.draw import chart
from runtime.training.job import Planned
from runtime.transports import Cluster
from symgraph.app.config import Config
from symgraph.core.errors import ConfigError
from symgraph.core.units import aligned_columns, bytes_text, seconds_text, value_text

TURN = 4  # counted steps of a turn
NEARLY = 1.1  # times the fastest's step: what is slower will not become the fastest


@dataclass(frozen=True)
class Compared:
    """A candidate after its measurement."""

    name: str
    config: Config
    outcome: Outcome

    @classmethod
    def of(cls, name: str, config: Config, trial: Trial, again: Shared | None = None) -> Compared:
        """Return a candidate with the outcome of its trial, and with the micro-batches it had."""
        config = config.model_copy(update={"pipeline": trial.planned.config.pipeline})
        return cls(name, config, trial.outcome(again))

    @property
    def figures(self) -> Figures:
        return self.outcome.figures


@dataclass(frozen=True)
class Comparison:
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


def compare(
    configs: Mapping[str, Config],
    clusters: Callable[[Config], Cluster | None],
    *,
    steps: int,
    say: Callable[[str], None] = lambda line: None,
    planned: Mapping[str, Planned] = MappingProxyType({}),
    shared: Shared | None = None,
    warm_up: int = WARM_UP,
    within: float = math.inf,
    baseline: bool = True,
) -> Comparison:
    """Measure all candidates, and each network on one device.

    Args:
        configs: candidates by name.
        clusters: the clusters on which they run, which the caller closes; None for a candidate that
            another process runs by itself.
        steps: the least number of steps of each, if there is time.
        planned: plans that exist already, by name.
        warm_up: the number of uncounted first steps; see Recorder.
        within: seconds after which no further round begins. With a limit, only the nearly fastest
            candidates and one device join later rounds; without one, predictions that are far off
            are repeated.
        baseline: whether to add a network on one device where the candidates lack it.
    """
    ends, whole = time.perf_counter() + within, -(-steps // TURN) * TURN
    added = baselines_of(configs) if baseline else {}
    shared, trials, too_large = shared or Shared(), dict[str, Trial](), dict[str, str]()
    given: dict[str, Config] = {**configs, **added}
    for name, config in given.items():
        if (cluster := clusters(config)) is None:
            continue
        say(f"{name}: {'warming up' if name in planned else 'planning and warming up'}")
        make = one_device if name in added else partial(Trial.of, planned=planned.get(name))
        length = whole + whole // TURN
        made = make(config, cluster, steps=length, shared=shared, warm_up=warm_up)
        if isinstance(made, str):
            too_large[name] = made
        else:
            trials[name] = made
    _require_alike(trials)
    wide = [config for config in given.values() if len(config.devices) > 1]
    beside = [name for name in trials if any(is_baseline(given[name], c) for c in wide)]
    alternate(trials, whole, say=say, ends=ends, keep=beside)
    memory = Shared() if within == math.inf else None
    measured = [Compared.of(name, given[name], t, memory) for name, t in trials.items()]
    ranking = sorted(measured, key=lambda c: -c.figures.per_second)
    reasons = [(given[name], reason) for name, reason in too_large.items()]
    return Comparison(tuple(ranking), gain_of(ranking, reasons))


def _require_alike(trials: Mapping[str, Trial]) -> None:
    """Raise ConfigError for candidates that are not ranked by the same figure."""
    criteria = {name: trial.criterion for name, trial in trials.items()}
    for name, criterion in criteria.items():
        first, wanted = next(iter(criteria.items()))
        if criterion != wanted:
            raise ConfigError(
                f"candidate {first!r} is ranked by {wanted}, but {name!r} by {criterion}; compare "
                "networks that all have a loss, or none with one partition.objective"
            )


def alternate(
    trials: Mapping[str, Trial],
    steps: int,
    *,
    say: Callable[[str], None] = lambda line: None,
    ends: float = math.inf,
    keep: Collection[str] = (),
) -> None:
    """Run some steps of each trial, in turns.

    Args:
        trials: the trials by name.
        steps: the number of counted steps of each.
        say: is told of each round.
        ends: the time after which no further round begins; see `compare`.
        keep: trials that join later rounds even if they are slow.
    """
    turn, took, rounds = list(trials), dict.fromkeys(trials, 0.0), -(-steps // TURN)
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for name in turn if number % 2 == 0 else turn[::-1]:
            trials[name].run(1, keep=False)
            begun = time.perf_counter()
            trials[name].run(min(TURN, steps - TURN * number))
            took[name] += time.perf_counter() - begun
        if ends < math.inf:
            left = ends - time.perf_counter()
            turn = promising({name: took[name] for name in turn}, left * (number + 1), keep)
        if not turn:
            break


def gain_of(ranking: Sequence[Compared], too_large: Sequence[tuple[Config, str]]) -> Gain | None:
    """Return what the fastest on several devices gains over the same network on one.

    Args:
        ranking: all candidates, the fastest first.
        too_large: baselines that one device cannot hold, with the reasons.

    Returns:
        The gain; None without a candidate on several devices, or without its baseline.
    """
    several = [c for c in ranking if len(c.config.devices) > 1]
    if not several:
        return None
    best = several[0]
    name = best.name if len(several) > 1 else ""
    what = "a step" if best.figures.latency is None else "a batch"
    for c in ranking:
        if is_baseline(c.config, best.config):
            return Gain(
                best.config.devices,
                best.figures.step,
                c.config.devices[0],
                c.figures.step,
                not c.outcome.ties_with(best.outcome),
                c.outcome.summary["micro_batches"],
                c.outcome.summary["blas_threads"],
                name,
                what=what,
            )
    for one, reason in too_large:
        if is_baseline(one, best.config):
            return Gain(
                best.config.devices, best.figures.step, one.devices[0], name=name, reason=reason
            )
    return None


def promising(took: Mapping[str, float], left: float, keep: Collection[str] = ()) -> list[str]:
    """Return the nearly fastest candidates for whose next turn there is time.

    Args:
        took: the seconds that each took for the same steps.
        left: the seconds that remain.
        keep: candidates that need not be nearly as fast as the fastest.
    """
    order = sorted(took, key=took.__getitem__)
    most = NEARLY * took[order[0]]
    chosen = [name for name in order if took[name] <= most or name in keep]
    ends = accumulate(took[name] * (1 + TURN) / TURN for name in chosen)
    return [name for name, end in zip(chosen, ends, strict=True) if end <= left]


# -- words and pages -------------------------------------------------------------------------------

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


def ranking(compared: Sequence[Compared]) -> list[tuple[str, ...]]:
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
    for place, (c, (_, name, *texts)) in enumerate(
        zip(compared, ranking(compared), strict=True), 1
    ):
        f = c.figures
        values = (*f[:3], f.per_second, *f[3:9], *([] if f.latency is None else [f.latency]))
        rows.append([(str(place), place), name, *zip(texts, map(float, values), strict=True)])
    return rows


def comparison_report(found: Comparison) -> str:
    """Return the verdict, the ranked table and the timelines for the terminal."""
    charts = []
    for c in found.ranking:
        typical = c.outcome.profile.typical
        of = f", a step of buckets {typical.name}" if typical.name else ""
        measured = typical.measured
        lines = [f"{c.name}{of}: {seconds_text(measured.makespan)}", *again(c.outcome.profile)]
        charts.append("\n".join([*lines, chart(measured)]))
    table = "\n".join(aligned_columns([_head(found.ranking), *ranking(found.ranking)]))
    return "\n\n".join([*filter(None, ["\n".join(found.verdict())]), table, *charts])


def comparison_figures(found: Comparison) -> dict[str, Any]:
    """Return the figures of `--json`; `ranking` has the fastest candidate first."""
    return {
        "baseline": None if found.gain is None else found.gain.figures(),
        "ties": list(found.ties),
        "ranking": [
            {
                "name": c.name,
                f"{c.outcome.profile.unit}_per_second": c.figures.per_second,
                f"{c.outcome.profile.unit}_per_second_quartiles": list(c.outcome.quartiles),
                **{k: v for k, v in c.figures._asdict().items() if k != "per_second"},
                "config": c.config.model_dump(mode="json"),
            }
            | {key: c.outcome.summary[key] for key in KEPT}
            for c in found.ranking
        ],
    }


KEPT = (
    "step_seconds",
    "predicted_step_seconds",
    "bubble_fraction",
    "schedule",
    "micro_batches",
    "time_segment",
    "recompute",
    "blas_threads",
    "strategy",
    "placement",
    "devices",
    "stages",
)


def write_comparison(found: Comparison, folder: str) -> Path:
    """Write the page, ranking.csv and one config per candidate; return the page's path."""
    to, compared = Path(folder), found.ranking
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
    rows = _head(compared), _sortable(compared)
    page = render("Partitions compared", about, shows, rows, verdict=found.verdict())
    with writing_report(folder):
        (to / PAGE).write_text(page, encoding="utf-8")
        for place, c in enumerate(compared, 1):
            text = f"# {c.name}\n{c.config.to_yaml()}"
            (to / f"{place}.yaml").write_text(text, encoding="utf-8")
        table = ((c.name, *c.figures) for c in compared)
        write_table(to / "ranking.csv", ("name", *Figures._fields), table)
    return to / PAGE
