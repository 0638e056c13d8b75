"""The ZB-H1 schedule: 1F1B with weight gradients deferred into its bubbles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.schedule.generators.greedy import alternate
from runtime.schedule.program import Program


def zb_h1(rank_of: Sequence[int], mbs: int) -> list[Program]:
    """Cut 1F1B's bubble to a third with 1F1B's memory (Qi et al. 2023, "Zero bubble pipeline
    parallelism", section 2).

        rank 0   F0 F1 F2       I0 W0 F3 I1 W1 I2 W2 I3 W3
        rank 1      F0 F1    I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
        rank 2         F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

    The backward phase is cut in two: I, the gradients of inputs, which the stage before waits
    for, and W, those of parameters, which no stage waits for. Forwards and Is are 1F1B's; each of p
    ranks holds p micro-batches (of every stage it has) until their Ws have run.
    """
    counts = np.bincount(rank_of)
    held = counts * np.count_nonzero(counts)
    return alternate(rank_of, mbs, np.arange(len(rank_of), 0, -1), held, split=True)
