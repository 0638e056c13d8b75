"""Schedules: which rank runs which body when, one pure function per file.

Each takes `rank_of` (stage -> rank, in any shape) and the number of micro-batches (1 or more) and
returns the compute lists of all ranks, including those without stages. A schedule knows nothing of
tensors, devices or messages; `runtime.schedule.lowering.lower` adds those. Every list keeps, for
each micro-batch, the order of a chain: F of stage s after F of s - 1, B or I of s after that of
s + 1 and after its own F, W after its I. Edges that skip stages need no more than that; where
stages share a weight, `lower` puts Ws off that would wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from runtime.schedule.generators.dualpipe_v import dualpipe_v
from runtime.schedule.generators.gpipe import gpipe
from runtime.schedule.generators.gpipe_2bp import gpipe_2bp
from runtime.schedule.generators.interleaved import interleaved
from runtime.schedule.generators.looped_bfs import looped_bfs
from runtime.schedule.generators.one_f_one_b import one_f_one_b
from runtime.schedule.generators.wavefront import wavefront
from runtime.schedule.generators.zb_h1 import zb_h1
from runtime.schedule.generators.zb_h2 import zb_h2
from runtime.schedule.generators.zb_v import zb_v
from runtime.schedule.instructions import Run
from runtime.schedule.program import Program
from symgraph.core.errors import ConfigError, nearest

ComputeLists = Sequence[Program | Iterable[Run]]

SCHEDULES: dict[str, Callable[[Sequence[int], int], ComputeLists]] = {
    "gpipe": gpipe,
    "gpipe-2bp": gpipe_2bp,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "looped-bfs": looped_bfs,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "dualpipe-v": dualpipe_v,
    "wavefront": wavefront,
}


def find_schedule(name: str, *others: str) -> Callable[[Sequence[int], int], ComputeLists]:
    """Return the schedule of that name.

    Args:
        others: Further names that the caller accepts, for the error message.

    Raises:
        ConfigError: There is no such schedule; lists the names.
    """
    if name not in SCHEDULES:
        raise ConfigError(f"no schedule {name!r}; {nearest(name, (*others, *SCHEDULES))}")
    return SCHEDULES[name]
