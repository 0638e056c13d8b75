"""The GPipe schedule: all forwards, then all backwards in reverse order."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.instructions import Run
from runtime.schedules.forward import forward_only


def gpipe(rank_of: Sequence[int], mbs: int) -> list[list[Run]]:
    """Fill the pipeline, then drain it backwards, newest micro-batch first (Huang et al. 2019).

        rank 0   F0 F1 F2                      B2 B1 B0
        rank 1      F0 F1 F2             B2 B1 B0
        rank 2         F0 F1 F2 B2 B1 B0

    Every stage holds all micro-batches at its turning point; a rank with several stages runs
    them one after the other, and back.
    """
    ranks = forward_only(rank_of, mbs)
    for stage, rank in reversed(list(enumerate(rank_of))):
        ranks[rank] += [Run(stage, "B", m) for m in reversed(range(mbs))]
    return ranks
