"""GPipe with 2-stage backpropagation: all forwards, all input gradients, all weight gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.schedule.generators.columns import F, I, W, program, stages_by_rank, sweep
from runtime.schedule.generators.forward import blocks, turned
from runtime.schedule.program import Program


def gpipe_2bp(rank_of: Sequence[int], mbs: int) -> list[Program]:
    """Drain GPipe's pipeline by input gradients alone, and end with those of weights (Rae et al.
    2024, "2BP: 2-stage backpropagation").

        rank 0   F0 F1 F2                   I2    I1    I0 W2 W1 W0
        rank 1      F0 F1 F2          I2    I1    I0 W2 W1 W0
        rank 2         F0 F1 F2 I2    I1    I0 W2 W1 W0

    No rank waits for weight gradients of another one. Every stage holds what they need of all
    micro-batches until the end.
    """
    rising = np.arange(mbs)
    back, lists = rising[::-1], []
    for stages in stages_by_rank(rank_of):
        down = blocks(stages)
        up = turned(down)
        lists.append(program(sweep(F, down, rising), sweep(I, up, back), sweep(W, up, back)))
    return lists
