"""An exact timeline of compute lists on a chain, in fractions and without arrays.

It shares nothing with `runtime.schedule.replay`, so that each can be held against the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from runtime.schedule.instructions import Run

Lists = Sequence[Iterable[Run]]


class Ideal(NamedTuple):
    """span: of each rank, from the start of its first run to the end of its last."""

    makespan: Fraction
    spans: tuple[Fraction, ...]
    start: dict[Run, Fraction]


def ideal(
    lists: Lists, rank_of: Sequence[int], cost: dict[str, Fraction], hop: Fraction | int = 0
) -> Ideal:
    """Every rank runs its list in order, each run as soon as what it needs is there.

    cost: phase -> length of a run. hop: from one rank to another. Raises ValueError if the ranks
    stop before the end.
    """
    programs = [list(runs) for runs in lists]
    segments = 1 + max((run.segment for runs in programs for run in runs), default=0)
    start: dict[Run, Fraction] = {}
    end: dict[Run, Fraction] = {}
    now = [Fraction(0)] * len(programs)
    done = [0] * len(programs)
    going = True
    while going:
        going = False
        for rank, runs in enumerate(programs):
            for run in runs[done[rank] :]:
                needs = [_first(n, end) for n in _needs(run, len(rank_of), segments)]
                if any(n is None for n in needs):
                    break
                there = [end[n] + (hop if rank_of[n.stage] != rank else 0) for n in needs]
                start[run] = max([now[rank], *there])
                end[run] = now[rank] = start[run] + cost[run.phase]
                done[rank] += 1
                going = True
    if any(done[rank] < len(runs) for rank, runs in enumerate(programs)):
        stuck = [str(runs[n]) for n, runs in zip(done, programs, strict=True) if n < len(runs)]
        raise ValueError(f"no rank can continue: {', '.join(stuck)}")
    first = [start[runs[0]] if runs else Fraction(0) for runs in programs]
    return Ideal(max(now), tuple(n - f for n, f in zip(now, first, strict=True)), start)


def _needs(run: Run, stages: int, segments: int) -> list[list[Run]]:
    """What must have ended; each as the runs it may be."""
    stage, phase, mb, k = run.stage, run.phase, run.mb, run.segment
    if phase == "F":
        neighbour = [[Run(stage - 1, "F", mb, k)]] if stage else []
        return neighbour + ([[Run(stage, "F", mb, k - 1)]] if k else [])
    if phase == "W":
        return [[Run(stage, "I", mb, k)]]
    needs = [[Run(stage, "F", mb, segments - 1)]]
    if stage < stages - 1:
        needs.append([Run(stage + 1, p, mb, k) for p in "BI"])
    if k < segments - 1:
        needs.append([Run(stage, p, mb, k + 1) for p in "BI"])
    return needs


def _first(runs: list[Run], end: dict[Run, Fraction]) -> Run | None:
    return next((run for run in runs if run in end), None)


def costs(stages_a_rank: int = 1, forward: int = 1, backward: int = 1, weight: int = 1):
    """The lengths of runs when the stages of a rank share its work; B is I and W."""
    parts = {"F": forward, "B": backward + weight, "I": backward, "W": weight}
    return {phase: Fraction(length, stages_a_rank) for phase, length in parts.items()}


def peak(runs: Iterable[Run], ends: str = "B") -> int:
    """The most (stage, micro-batch) pairs of a list between F and a phase of `ends`."""
    held = most = 0
    for run in runs:
        held += (run.phase == "F") - (run.phase in ends)
        most = max(most, held)
    return most
