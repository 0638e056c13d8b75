"""The interleaved 1F1B schedule: several stages per rank, in loops over the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.schedule.generators.columns import B, F, Ints, Part, program
from runtime.schedule.generators.greedy import alternate
from runtime.schedule.program import Program


def interleaved(rank_of: Sequence[int], mbs: int) -> list[Program]:
    """Run 1F1B with v stages per rank: 1/v of the bubble, for v times the messages.

        rank 0   0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3
        rank 1   1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3

    Narayanan et al. 2021 ("Efficient large-scale language model training on GPU clusters",
    section 2.2): stage s on rank s mod p. Each stage runs a round of p micro-batches, then the
    next stage of the rank does; rank r runs 2 (p - r - 1) + (v - 1) p forwards before it takes
    turns. The first rank holds up to v p + p - 1 micro-batches of one stage each. Where p does
    not divide their number, rounds are as equal as possible, but not under p unless all are.

    With one stage per rank it is 1F1B; on other ranks, 1F1B that holds as much: (stages of the
    rank + 1) p - 1.
    """
    ranks, stages = max(rank_of) + 1, len(rank_of)
    chunks = stages // ranks
    if chunks > 1 and list(rank_of) == [s % ranks for s in range(chunks * ranks)]:
        return _looped(ranks, chunks, mbs)
    counts = np.bincount(rank_of)
    held = (counts + 1) * np.count_nonzero(counts) - 1
    return alternate(rank_of, mbs, np.arange(stages, 0, -1), held)


def _looped(ranks: int, chunks: int, mbs: int) -> list[Program]:
    """Return the published lists; chunk c of rank r is stage c * ranks + r."""
    rounds = np.array_split(np.arange(mbs), max(1, mbs // ranks))
    chunk = np.concatenate([np.repeat(np.arange(chunks), len(mb)) for mb in rounds])
    mb = np.concatenate([np.tile(mb, chunks) for mb in rounds])
    lists = []
    for rank in range(ranks):
        there, back = chunk * ranks + rank, (chunks - 1 - chunk) * ranks + rank
        warm = min(len(mb), 2 * (ranks - rank - 1) + (chunks - 1) * len(rounds[0]))
        code = np.repeat((F, B), len(mb))
        lists.append(
            program(
                Part(
                    _turns(code[: len(mb)], code[len(mb) :], warm),
                    _turns(there, back, warm),
                    _turns(mb, mb, warm),
                )
            )
        )
    return lists


def _turns(first: Ints, second: Ints, warm: int) -> Ints:
    """Return `warm` of the first, then one of each in turns, then the rest of the second."""
    paired = len(first) - warm
    turns = np.stack((first[warm:], second[:paired]), axis=1).ravel()
    return np.concatenate((first[:warm], turns, second[paired:]))
