"""The ZB-H2 schedule: more forwards first, so that no rank waits once it has begun."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.schedule.generators.greedy import alternate
from runtime.schedule.program import Program


def zb_h2(rank_of: Sequence[int], mbs: int) -> list[Program]:
    """Avoid bubbles between a rank's first run and its last, with twice 1F1B's memory (Qi et al.
    2023, "Zero bubble pipeline parallelism", section 2).

        rank 0   F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4
        rank 1      F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4
        rank 2         F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4

    For F, I and W of equal length and 2 p - 1 micro-batches or more, with up to 2 p - 1 of them
    held by each of p ranks. The optimizer's step must not wait for all ranks, or the ranks'
    shifted starts are a bubble after all.
    """
    counts = np.bincount(rank_of)
    held = counts * (2 * np.count_nonzero(counts) - 1)
    return alternate(rank_of, mbs, 2 * np.arange(len(rank_of), 0, -1) - 1, held, split=True)
