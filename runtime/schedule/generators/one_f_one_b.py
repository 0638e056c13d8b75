"""The 1F1B schedule: one forward, one backward (PipeDream-Flush)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.schedule.generators.greedy import alternate
from runtime.schedule.program import Program


def one_f_one_b(rank_of: Sequence[int], mbs: int) -> list[Program]:
    """Alternate forwards and backwards, holding no more micro-batches than stages to the end.

        rank 0   F0 F1 F2             B0    F3 B1       B2       B3
        rank 1      F0 F1       B0    F2 B1    F3 B2       B3
        rank 2         F0 B0    F1 B1    F2 B2    F3 B3

    The flush of Narayanan et al. 2021 ("Memory-efficient pipeline-parallel DNN training") and of
    DAPPLE (Fan et al. 2021). Takes as long as GPipe, but a stage holds min(stages to the end,
    micro-batches). Several stages per rank work the same way.
    """
    return alternate(rank_of, mbs, np.arange(len(rank_of), 0, -1))
