"""The forward-only schedule, for evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.schedule.generators.columns import F, Ints, own_stages, program, sweep
from runtime.schedule.program import Program


def forward_only(rank_of: Sequence[int], mbs: int) -> list[Program]:
    """Every stage runs its micro-batches in order.

    rank 0   0F0 0F1 0F2
    rank 1       1F0 1F1 1F2
    """
    return [program(sweep(F, blocks(own), np.arange(mbs))) for own in own_stages(rank_of)]


def blocks(own: Ints) -> list[Ints]:
    """The stages of a rank in blocks of neighbours, each of which works as one stage."""
    return np.split(own, 1 + np.flatnonzero(np.diff(own) > 1))
