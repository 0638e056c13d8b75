"""The greedy scheduler that 1F1B and its relatives share: forwards and backwards in turns.

All ranks run the pipeline against one clock on which F, I and W take one tick, B two, and messages
none. A free rank that ran a forward last runs a backward (B or I), else a forward, if one is
ready; of several, that of the oldest micro-batch. W fills the ticks in which neither can run, and
those in which no forward can because too much is held.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.schedule.generators.columns import Ints, stages_by_rank
from runtime.schedule.generators.greedy_walk import walk
from runtime.schedule.program import Columns, Program, programs_of


def alternate(
    rank_of: Sequence[int],
    mbs: int,
    in_flight: Ints,
    held: Ints | None = None,
    *,
    split: bool = False,
) -> list[Program]:
    """Return the programs of all ranks, within limits.

    A forward leaves room for one more of each later stage of its rank. So the oldest micro-batch
    can always continue (those before it on its stages have ended, those behind it left it room)
    and the ranks never stop before the end, wherever the stages are.

    Args:
        in_flight: By stage, the most micro-batches whose F has begun and whose B (or I) has not
            ended, at least 1.
        held: By rank, the most pairs of stage and micro-batch whose F has begun and whose B (or W)
            has not ended, at least the rank's stages; None: no limit.
        split: Whether I and W run instead of B.
    """
    stages = stages_by_rank(rank_of)
    counts = np.array([len(own) for own in stages])
    start = np.concatenate(([0], np.cumsum(counts)))
    ends = start * (mbs * (3 if split else 2))
    out = Columns(np.empty(ends[-1], np.uint8), *(np.zeros(ends[-1], np.int32) for _ in range(3)))
    limit = counts * mbs if held is None else held
    walk(start, np.concatenate(stages), mbs, split, in_flight, limit, out)
    return list(programs_of(out, ends))
