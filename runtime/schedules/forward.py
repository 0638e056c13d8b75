"""The forward-only schedule, for evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.instructions import Run


def forward_only(rank_of: Sequence[int], mbs: int) -> list[list[Run]]:
    """Every stage runs its micro-batches in order.

    rank 0   0F0 0F1 0F2
    rank 1       1F0 1F1 1F2
    """
    ranks: list[list[Run]] = [[] for _ in range(max(rank_of) + 1)]
    for stage, rank in enumerate(rank_of):
        ranks[rank] += [Run(stage, "F", m) for m in range(mbs)]
    return ranks
