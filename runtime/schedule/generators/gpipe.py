"""The GPipe schedule: all forwards, then all backwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.schedule.generators.columns import B, F, program, stages_by_rank, sweep
from runtime.schedule.generators.forward import blocks, turned
from runtime.schedule.program import Program
from symgraph.core.errors import ConfigError, nearest

ORDERS = ("reverse", "forward")


def gpipe(rank_of: Sequence[int], mbs: int, *, order: str = "reverse") -> list[Program]:
    """Fill the pipeline, then drain it backwards, newest micro-batch first (Huang et al. 2019).

        rank 0   F0 F1 F2                   B2    B1    B0
        rank 1      F0 F1 F2          B2    B1    B0
        rank 2         F0 F1 F2 B2    B1    B0

    Every stage holds all micro-batches at its turning point; a rank with several stages runs
    them one after the other, and back.

    Args:
        order: The order of the micro-batches in the backward phase: `reverse` is the paper's figure
            2c, `forward` what PyTorch does. They take the same time.

    Raises:
        ConfigError: `order` is neither.
    """
    if order not in ORDERS:
        raise ConfigError(f"gpipe has no order {order!r}; {nearest(order, ORDERS)}")
    rising = np.arange(mbs)
    back = rising[::-1] if order == "reverse" else rising
    lists = []
    for stages in stages_by_rank(rank_of):
        down = blocks(stages)
        lists.append(program(sweep(F, down, rising), sweep(B, turned(down), back)))
    return lists
