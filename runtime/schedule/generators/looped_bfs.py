"""The looped breadth-first schedule: stage by stage, each with all micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.schedule.generators.columns import B, F, program, stages_by_rank, sweep
from runtime.schedule.program import Program


def looped_bfs(rank_of: Sequence[int], mbs: int) -> list[Program]:
    """Run GPipe in loops over the ranks (Lamy-Poirier 2022, "Breadth-first pipeline parallelism").

        rank 0   0F0 0F1 2F0 2F1             2B1     2B0     0B1     0B0
        rank 1       1F0 1F1 3F0 3F1 3B1     3B0     1B1     1B0

    With v stages per rank, filling and draining take v times less than GPipe's; the micro-batches
    go back in reverse, and each rank holds all of them. One stage at a time is also a valid order
    of the whole machine, so the lists come to their end on any ranks.
    """
    rising = np.arange(mbs)
    return [
        program(sweep(F, [*stages[:, None]], rising), sweep(B, [*stages[::-1, None]], rising[::-1]))
        for stages in stages_by_rank(rank_of)
    ]
