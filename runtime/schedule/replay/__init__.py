"""The replay: the one place that knows what must precede what, and what follows from it.

`check` proves a schedule before it runs; `simulate` says how long it takes and `memory_profile`
what it holds. All walk the same instruction lists, by the same rules, as the worker.
"""

from __future__ import annotations

from runtime.schedule.links import Link
from runtime.schedule.replay.check import check
from runtime.schedule.replay.facts import Facts
from runtime.schedule.replay.memory import RankMemory, memory_profile, peak_in_flight
from runtime.schedule.replay.simulate import Costs, simulate

__all__ = [
    "Costs",
    "Facts",
    "Link",
    "RankMemory",
    "check",
    "memory_profile",
    "peak_in_flight",
    "simulate",
]
