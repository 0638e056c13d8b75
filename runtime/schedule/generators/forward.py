"""The forward-only schedule, for evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.schedule.generators.columns import F, Ints, program, stages_by_rank, sweep
from runtime.schedule.program import Program


def forward_only(rank_of: Sequence[int], mbs: int) -> list[Program]:
    """Run the micro-batches in order on every stage.

    rank 0   0F0 0F1 0F2
    rank 1       1F0 1F1 1F2
    """
    return [program(sweep(F, blocks(stages), np.arange(mbs))) for stages in stages_by_rank(rank_of)]


def blocks(stages: Ints) -> list[Ints]:
    """Split the stages of a rank into blocks of neighbours, each of which works as one stage."""
    return np.split(stages, 1 + np.flatnonzero(np.diff(stages) > 1))


def turned(down: Sequence[Ints]) -> list[Ints]:
    """Return the blocks of a rank in the order in which its backward phase runs them."""
    return [block[::-1] for block in reversed(down)]
