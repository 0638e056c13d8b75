"""The replay: the one place that knows what must precede what, and what follows from it.

`check` proves a schedule before it runs; `simulate` says how long it takes and `memory_profile`
what it holds. All read the programs from the same tape, and what ranks wait for stands once, in
walk.py; the worker follows the same rules.

May import schedule's instructions, programs and costs.
Start reading: walk.py; validation.py words what `check` finds.
"""

from __future__ import annotations

from runtime.schedule.message_costs import Link
from runtime.schedule.replay.facts import Facts
from runtime.schedule.replay.memory import RankMemory, memory_profile, peak_in_flight
from runtime.schedule.replay.simulation import Costs, Simulator, simulate
from runtime.schedule.replay.validation import check

__all__ = [
    "Costs",
    "Facts",
    "Link",
    "RankMemory",
    "Simulator",
    "check",
    "memory_profile",
    "peak_in_flight",
    "simulate",
]
