"""The DualPipeV schedule: a V, forwards next to backwards of the rank's other stage."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.schedule.generators.v_shape import is_v, programs_of_moves
from runtime.schedule.generators.zb_v import zb_v
from runtime.schedule.program import Program


def dualpipe_v(rank_of: Sequence[int], mbs: int) -> list[Program]:
    """Run in the order of DualPipeV (DeepSeek-AI 2025, README of DualPipe; "cut in half" from
    the DualPipe of DeepSeek-V3 by Sea AI Lab).

        rank 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3
        rank 1       1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3

    In the steady state a rank runs a forward of one of its stages beside a backward of the
    other, to hide their messages (here they run one after the other). Backwards are cut into I
    and W only where that shortens filling and draining. It needs 2 p micro-batches on p ranks; with
    fewer, or on other ranks, the result is ZB-V's, its nearest relative.
    """
    ranks = max(rank_of) + 1
    if not is_v(rank_of) or mbs < 2 * ranks:
        return zb_v(rank_of, mbs)
    return programs_of_moves(ranks, lambda rank: _moves(ranks, rank, mbs))


def _moves(p: int, r: int, mbs: int) -> str:
    above, uncut = p - 1 - r, (r + 1) // 2  # ranks above this; last pairs of B that are not cut
    return "".join(
        (
            "f" * (2 * above),
            "fF" * (r + 1),
            "IwF" * above,
            "fBFb" * (mbs - 2 * p + r + 1),
            "BFb" * above,
            "Bb" * uncut,
            ("" if r % 2 else "Bi") + "Ii" * uncut,
            "wi" * above,
            "w" * (r + 1),
        )
    )
