"""Time segments: compute lists multiplied into the segments of bodies that are cut along time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from runtime.schedule.generators.columns import F
from runtime.schedule.instructions import Run
from runtime.schedule.program import Columns, Program


def expand(lists: Sequence[Program | Iterable[Run]], segments: int) -> list[Program]:
    """Replace each F by its segments 0, 1, ..., and each B, I and W by its segments ..., 1, 0.

    `0F0 0B0` in three segments is `0F0 0F0.1 0F0.2 0B0.2 0B0.1 0B0`. The runs of the lists are of
    segment 0. If a body has fewer segments, `lower` leaves out the others.
    """
    programs = [Program.of(runs) for runs in lists]
    return programs if segments == 1 else [_expanded(p, segments) for p in programs]


def _expanded(program: Program, segments: int) -> Program:
    code, at, mb, _ = (np.repeat(column, segments) for column in program.columns)
    rising = np.tile(np.arange(segments, dtype=np.int32), len(program))
    return Program(Columns(code, at, mb, np.where(code == F, rising, segments - 1 - rising)))
