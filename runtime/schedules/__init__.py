"""Schedules: which rank runs which body when, one pure function a file.

Each takes `rank_of` (stage -> rank) and the number of micro-batches and returns the compute list
of every rank. A schedule knows nothing of tensors, devices or messages; `runtime.lower` adds
those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.instructions import Run
from runtime.schedules.forward import forward_only
from runtime.schedules.gpipe import gpipe
from runtime.schedules.one_f_one_b import one_f_one_b
from symgraph.errors import ConfigError, nearest

ComputeLists = list[list[Run]]
SCHEDULES: dict[str, Callable[[Sequence[int], int], ComputeLists]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
}


def find_schedule(name: str) -> Callable[[Sequence[int], int], ComputeLists]:
    """The schedule of that name; an unknown one raises ConfigError listing those there are."""
    if name not in SCHEDULES:
        raise ConfigError(f"no schedule {name!r}; {nearest(name, SCHEDULES)}")
    return SCHEDULES[name]


__all__ = ["SCHEDULES", "ComputeLists", "find_schedule", "forward_only", "gpipe", "one_f_one_b"]
