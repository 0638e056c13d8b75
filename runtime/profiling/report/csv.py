"""The tables of a profile as CSV files; nodes and instructions are those of a typical step."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from runtime.profiling.analysis.profile import Profile
from runtime.profiling.report.result import Table
from runtime.profiling.report.views import typical_seconds
from symgraph.core.visible import visible


def write_tables(profile: Profile, folder: Path) -> None:
    """Write a file for each table; seconds, bytes and operations are plain numbers."""
    for name, (head, rows) in tables(profile).items():
        write_table(folder / f"{name}.csv", head, rows)


def write_table(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write one as a CSV file, its columns' names first."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        for row in rows:
            writer.writerow([visible(cell) if isinstance(cell, str) else cell for cell in row])


def tables(profile: Profile) -> dict[str, Table]:
    """Name -> the names of the columns, and the rows."""
    operators, bodies = profile.operators, profile.bodies
    return {
        "operators": (operators[0]._fields, iter(operators)),
        "bodies": (bodies[0]._fields, iter(bodies)),
        "mixtures": _mixtures(profile),
        "ranks": _ranks(profile),
        "nodes": _nodes(profile),
        "instructions": _instructions(profile),
    }


def _ranks(profile: Profile) -> Table:
    rows = [
        asdict(own.time) | {"between": own.between, "total": own.total} for own in profile.parts
    ]
    return ["rank", *rows[0]], ([rank, *row.values()] for rank, row in enumerate(rows))


def _mixtures(profile: Profile) -> Table:
    head = ("buckets", "steps", "count", "median", "predicted", "bubble")
    return head, (
        (
            m.name,
            m.record.steps,
            m.record.counts.mean(),
            m.seconds,
            m.predicted.makespan,
            m.measured.bubble_fraction,
        )
        for m in profile.mixtures
    )


def _nodes(profile: Profile) -> Table:
    """A row for each call of a typical step."""
    head = ("rank", "body", "micro_batch", "node", "operator", "flops", "bytes", "median", "spread")

    def rows() -> Iterator[Sequence[Any]]:
        for call in profile.typical.calls:
            low, high = np.percentile(call.seconds, (25, 75))
            yield (
                call.rank,
                call.key,
                call.mb,
                call.node,
                call.op,
                call.flops,
                call.nbytes,
                call.median,
                high - low,
            )

    return head, rows()


def _instructions(profile: Profile) -> Table:
    """When each instruction began and ended in a typical step and in its prediction."""
    shown = profile.typical
    head = (
        "rank",
        "number",
        "instruction",
        "start",
        "end",
        "predicted_start",
        "predicted_end",
        "median",
        "predicted",
        "difference",
    )

    def rows() -> Iterator[Sequence[Any]]:
        for rank in range(shown.measured.ranks):
            typical = typical_seconds(shown, rank)
            for at, (measured, predicted) in enumerate(typical):
                _, now, start, end = shown.measured.event(rank, at)
                expected = shown.predicted.event(rank, at)
                yield (
                    rank,
                    at,
                    now,
                    start,
                    end,
                    expected.start,
                    expected.end,
                    measured,
                    predicted,
                    predicted - measured,
                )

    return head, rows()
