"""The page: a profile, or several side by side, as one HTML file that needs no network.

It is rendered by jinja2 from the template, style and script beside this file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, fields
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from partitioner.base.types import PHASE_NAMES
from partitioner.views.picture import svg
from runtime.profiling.analysis.profile import Profile
from runtime.profiling.report.text import MIXTURES, OPERATOR_HEAD, mixture_rows, several
from runtime.profiling.report.views import MESSAGE, OTHER, exhibit
from runtime.schedule.views.breakdown import RankTime
from symgraph.core.glossary import column_note
from symgraph.core.units import bytes_text, count_text, seconds_text, si_text
from symgraph.core.visible import visible_lines

FEW = 4  # devices to name one by one
DIGITS = 8  # after the point, of seconds: hundredths of a microsecond
PARTS = {field.name: field.name.replace("_", "-") for field in fields(RankTime)}
PARTS["between"] = "between steps"
Cell = str | tuple[str, float]  # what is shown, and what it is sorted by
Rows = tuple[Sequence[str], list[Sequence[Cell]]]


class Show(NamedTuple):
    """A profile on a page."""

    profile: Profile
    #: The config that makes it again, as YAML.
    config: str
    #: Bytes held, by rank.
    memory: Sequence[int]
    #: Which of several profiles it is.
    name: str = ""
    #: Whether to show tables of operators, bodies and messages, and the graph.
    full: bool = True
    #: The one thing to change next.
    change: str = ""


def render(
    title: str,
    about: str,
    shows: Sequence[Show],
    ranking: Rows | None = None,
    *,
    verdict: Sequence[str] = (),
) -> str:
    """Return the text of the page.

    Args:
        title, about: what the page is of.
        shows: the profiles.
        ranking: the head and the rows of a table before them.
        verdict: the sentences before all figures.
    """
    from jinja2 import Environment  # on demand: the extra `report`

    here = files(__package__) / "page"
    texts = {kind: (here / f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js")}
    exhibits = [_exhibit(show) for show in shows]
    data = json.dumps([_rounded(show["data"]) for show in exhibits])
    template = Environment(autoescape=True, trim_blocks=True).from_string(texts["html"])
    phases = {
        key.phase for show in shows for key in show.profile.typical.record.plan.partition.bodies
    }
    kinds = [(phase, words) for phase, words in PHASE_NAMES.items() if phase in phases]
    page = template.render(
        title=title,
        about=about,
        verdict=verdict,
        css=texts["css"],
        js=texts["js"],
        exhibits=exhibits,
        ranking=ranking,
        data=data.replace("<", "\\u003c"),
        parts=list(PARTS.items()),
        note=column_note,
        kinds=[*kinds, (OTHER, "updates and reductions"), (MESSAGE, "messages")],
    )
    return visible_lines(page)


def _exhibit(show: Show) -> dict[str, Any]:
    profile = show.profile
    plan = profile.typical.record.plan
    found: dict[str, Any] = {
        "name": show.name,
        "full": show.full,
        "config": show.config,
        "change": show.change,
        "cards": _cards(profile),
        "data": exhibit(profile),
        "bars": _bars(profile),
        "parts": _parts(profile),
        "mixtures": _mixtures(profile) if several(profile) else None,
    }
    if show.full:
        found |= {
            "operators": _operators(profile),
            "bodies": _bodies(profile),
            "messages": _messages(profile),
            "memory": _memory(show),
            "graph": svg(plan.network.first, plan.placement),
        }
    return found


def _cards(profile: Profile) -> list[tuple[str, str, str]]:
    """Return the figures that come first: each with its name and a note."""
    low, high = np.percentile(profile.every(), (25, 75))
    devices = [str(device) for device in profile.typical.record.plan.devices]
    shown = ", ".join(devices) if len(devices) <= FEW else f"{devices[0]} to {devices[-1]}"
    between = f"half of them {seconds_text(float(low))} to {seconds_text(float(high))}"
    what = f"of {count_text(profile.steps, 'step')}, {between}"
    found = [
        ("measured step", seconds_text(profile.step), what),
        ("predicted step", seconds_text(profile.predicted_step), f"{profile.error:+.1%}"),
        ("bubble", f"{profile.bubble_fraction:.1%}", "of all devices' time, idle"),
        (
            count_text(len(devices), "device"),
            shown,
            f"{profile.count / profile.step:,.0f} {profile.unit}/s",
        ),
    ]
    if profile.pace is not None:
        stream, alone = seconds_text(profile.pace.every), seconds_text(profile.pace.latency)
        found[:0] = [
            ("a batch every", stream, "while batches stream"),
            ("latency", alone, "of one"),
        ]
    return found


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value


# -- tables ----------------------------------------------------------------------------------------


def _seconds(seconds: float) -> Cell:
    return seconds_text(seconds), seconds


def _values(profile: Profile) -> list[tuple[float, ...]]:
    """Return each rank's seconds of PARTS."""
    return [(*astuple(own.time), own.between) for own in profile.parts]


def _bars(profile: Profile) -> list[dict[str, Any]]:
    devices = profile.typical.record.plan.devices
    return [
        {
            "name": f"rank {rank} {devices[rank]}",
            "parts": [
                (part, f"{seconds / sum(values):.2%}", f"{words}: {seconds_text(seconds)}")
                for (part, words), seconds in zip(PARTS.items(), values, strict=True)
            ],
        }
        for rank, values in enumerate(_values(profile))
    ]


def _parts(profile: Profile) -> Rows:
    rows: list[Sequence[Cell]] = [
        (f"rank {rank}", *map(_seconds, values), _seconds(sum(values)))
        for rank, values in enumerate(_values(profile))
    ]
    return ("", *PARTS.values(), "step"), rows


def _mixtures(profile: Profile) -> Rows:
    rows: list[Sequence[Cell]] = []
    for m, (name, *texts) in zip(profile.mixtures, mixture_rows(profile), strict=True):
        values = (
            m.record.steps,
            float(m.record.counts.mean()),
            m.seconds,
            m.predicted.makespan,
            m.error,
            m.measured.bubble_fraction,
        )
        rows.append((name, *zip(texts, values, strict=True)))
    return MIXTURES, rows


def _operators(profile: Profile) -> Rows:
    rows: list[Sequence[Cell]] = [
        (
            row.name,
            (f"{row.calls:,.0f}", row.calls),
            _seconds(row.median),
            _seconds(row.spread),
            _seconds(row.seconds),
            (f"{row.share:.1%}", row.share),
            (si_text(row.flops_per_second, "FLOP/s") if row.flops else "-", row.flops_per_second),
            (f"{row.roofline:.0%}" if row.nbytes else "-", row.roofline),
            (bytes_text(row.nbytes) if row.nbytes else "-", row.nbytes),
        )
        for row in profile.operators
    ]
    return OPERATOR_HEAD, rows


def _bodies(profile: Profile) -> Rows:
    head = ("body", "rank", "runs", "median", "spread", "predicted", "error a step", "share")
    rows: list[Sequence[Cell]] = []
    for row in profile.bodies:
        error = row.calls * (row.predicted - row.median)
        rows.append(
            (
                row.name,
                str(row.rank),
                f"{row.calls:.3g}",
                _seconds(row.median),
                _seconds(row.spread),
                _seconds(row.predicted),
                (f"{error * 1e3:+.3f} ms", error),
                (f"{row.share:.1%}", row.share),
            )
        )
    return head, rows


def _messages(profile: Profile) -> Rows:
    """The cut edges of a micro-batch (of a typical step's first batch), the largest first."""
    partition = profile.typical.record.plan.partition
    crossing = [edge for edge in partition.edges if partition.crosses(edge)]
    rows: list[Sequence[Cell]] = [
        (
            str(edge.value),
            str(edge.type),
            f"{edge.src} → {edge.dst}",
            f"rank {partition.rank(edge.src)} → {partition.rank(edge.dst)}",
            (bytes_text(edge.type.nbytes), edge.type.nbytes),
        )
        for edge in sorted(crossing, key=lambda edge: -edge.type.nbytes)
    ]
    return ("value", "type", "bodies", "ranks", "size"), rows


def _memory(show: Show) -> Rows:
    """Return the predicted and measured bytes of each rank."""
    head = (
        "rank",
        "parameters",
        "optimizer",
        "scratch",
        "gradients",
        "activations",
        "transient",
        "predicted peak",
        "measured",
    )
    rows: list[Sequence[Cell]] = []
    for rank, memory in enumerate(show.profile.memory):
        parts = (
            memory.parameters,
            memory.optimizer,
            memory.scratch,
            memory.gradients,
            memory.activations,
            memory.transient,
            memory.peak,
            show.memory[rank],
        )
        rows.append((f"rank {rank}", *((bytes_text(part), float(part)) for part in parts)))
    return head, rows
