"""The ZB-V schedule: two stages per rank in a V, no bubble in the memory of 1F1B."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.schedule.generators.v_shape import is_v, programs_of_moves
from runtime.schedule.generators.zb_h1 import zb_h1
from runtime.schedule.program import Program


def zb_v(rank_of: Sequence[int], mbs: int) -> list[Program]:
    """Keep every rank busy once it has begun, for equal F, I and W (Qi et al. 2023, "Zero bubble
    pipeline parallelism", section 6).

        rank 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
        rank 1       1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2

    Stages go down the ranks and up again, so that the first rank also has the last stage and no
    backward comes late; at most 2 p halves of micro-batches are held by each of p ranks. It needs
    2 p - 1 micro-batches; with fewer, or on other ranks, it is ZB-H1, which holds no more.
    """
    ranks = max(rank_of) + 1
    if not is_v(rank_of) or mbs < 2 * ranks - 1:
        return zb_h1(rank_of, mbs)
    return programs_of_moves(ranks, lambda rank: _moves(ranks, rank, mbs))


def _moves(p: int, r: int, mbs: int) -> str:
    return "".join(
        (
            "f" * (2 * (p - r) - 1),  # until the first micro-batch is back
            "Ff" * r,
            "FIw" * (p - r),
            "fiwFIw"
            * (mbs - 2 * p + r + 1),  # nothing more to hold: each run makes room for another
            "iwFIw" * (p - r - 1),
            "iI" * r,
            "iw" * (p - r),
            "w" * (2 * r),
        )
    )
