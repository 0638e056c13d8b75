"""The wavefront schedule: one micro-batch forward and immediately back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.schedule.generators.columns import B, F, Part, program, stages_by_rank
from runtime.schedule.program import Program


def wavefront(rank_of: Sequence[int], mbs: int) -> list[Program]:
    """Run one micro-batch at a time; made for time segments, see `expand`.

    Layers of a recurrent network on different ranks work on different time steps (Sutskever et
    al. 2014, section 3.5; so does MXNet's engine when layers are placed with group2ctx). Micro-
    batch 0 in three segments:

        rank 0   F0   F0.1 F0.2                               B0.2      B0.1      B0
        rank 1        F0   F0.1 F0.2                B0.2      B0.1      B0
        rank 2             F0   F0.1 F0.2 B0.2      B0.1      B0

    The bubble depends on the number of segments, not on that of micro-batches, and ranks hold
    one micro-batch only. Without segments it is model parallelism without a pipeline.
    """
    lists = []
    for stages in stages_by_rank(rank_of):
        code = np.repeat((F, B), len(stages))
        at = np.concatenate((stages, stages[::-1]))
        mb = np.repeat(np.arange(mbs), len(at))
        lists.append(program(Part(np.tile(code, mbs), np.tile(at, mbs), mb)))
    return lists
