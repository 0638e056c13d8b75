"""V-shaped placements: two stages per rank, down the ranks and up again.

    rank 0   0     5
    rank 1    1   4
    rank 2     2 3

Compute lists on them are written as strings of moves, one letter per run: f, b, i, w for the phases
F, B, I, W of the rank's stage on the way down, F, B, I for the one on the way up. Each stage takes
its micro-batches in order; w is the W of the rank's oldest I, of whichever stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from runtime.schedule.generators.columns import B, F, I, Part, W, program
from runtime.schedule.program import Program


def is_v(rank_of: Sequence[int]) -> bool:
    """Whether stages s and 2 p - 1 - s are on rank s, for all p ranks."""
    down = range(max(rank_of) + 1)
    return list(rank_of) == [*down, *reversed(down)]


def programs_of_moves(ranks: int, moves: Callable[[int], str]) -> list[Program]:
    """Return the programs of the moves of every rank."""
    return [_program(rank, 2 * ranks - 1 - rank, moves(rank)) for rank in range(ranks)]


def _program(down: int, up: int, moves: str) -> Program:
    """Return the program of a rank with these two stages."""
    letters = np.frombuffer(moves.encode(), np.uint8)
    phase = letters | 0x20  # in lower case
    code = np.select([phase == ord(letter) for letter in "fbiw"], [F, B, I, W])
    at = np.where(letters == phase, down, up)
    mb = np.empty(len(code), np.int32)
    for stage in (down, up):
        for phases in ((F,), (B, I)):
            runs = np.flatnonzero((at == stage) & np.isin(code, phases))
            mb[runs] = np.arange(len(runs))
    inputs, weights = np.flatnonzero(code == I), np.flatnonzero(code == W)
    at[weights], mb[weights] = at[inputs], mb[inputs]
    return program(Part(code, at, mb))
