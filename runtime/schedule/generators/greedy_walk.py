"""Kernel of the greedy scheduler, see greedy.py. All arrays but the columns are int64."""

from __future__ import annotations

import numpy as np

from partitioner.base.compiled import compiled, inner
from runtime.schedule.generators.columns import B, F, I, Ints, W
from runtime.schedule.program import Columns

NONE = -1


@compiled(nogil=True)
def walk(
    first: Ints, stages: Ints, mbs: int, split: bool, in_flight: Ints, limit: Ints, out: Columns
) -> None:
    """Fill the columns of all ranks.

    What a free rank runs depends on itself and on what the neighbours of its stages have ended: it
    chooses again when one of them ends a run, and not at every tick.

    Args:
        stages: The stages of rank r, rising, are stages[first[r] : first[r + 1]].
        out: 2 runs (3 with `split`) for each of them and each micro-batch, in the same order.
    """
    ranks, back = len(first) - 1, I if split else B
    ended = np.zeros((4, len(stages)), np.int64)  # micro-batches, by phase and stage
    held, until = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    code, stage = np.full(ranks, NONE), np.full(ranks, NONE)  # what runs, if anything
    forward_last = np.zeros(ranks, np.bool_)
    fill = first[:-1] * (mbs * (3 if split else 2))
    rank_of = _ranks(first, stages)
    busy, running, tick = np.empty(ranks, np.int64), 0, 0
    asked, waiting, called = np.arange(ranks), ranks, np.ones(ranks, np.bool_)
    while waiting > 0 or running > 0:
        for rank in asked[:waiting]:
            called[rank] = False
            if code[rank] != NONE:
                continue
            here = stages[first[rank] : first[rank + 1]]
            room = limit[rank] - held[rank]
            phase, at = _choose(here, mbs, back, ended, in_flight, room, forward_last[rank])
            if phase == NONE:
                continue
            code[rank], stage[rank] = phase, at
            until[rank] = tick + (2 if phase == B else 1)
            busy[running], running = rank, running + 1
            if phase != I:
                held[rank] += 1 if phase == F else -1
            if phase != W:
                forward_last[rank] = phase == F
            out.code[fill[rank]], out.at[fill[rank]] = phase, at
            out.mb[fill[rank]] = ended[phase, at]
            fill[rank] += 1
        tick += 1
        before, running, waiting = running, 0, 0
        for rank in busy[:before]:
            if until[rank] > tick:
                busy[running], running = rank, running + 1
            else:
                ended[code[rank], stage[rank]] += 1
                code[rank] = NONE
                waiting = _ask(stage[rank], rank_of, called, asked, waiting)


@inner()
def _ask(stage: int, rank_of: Ints, called: Ints, asked: Ints, waiting: int) -> int:
    """Have the ranks of a stage that ended a run, and its neighbours, choose at the next tick."""
    for near in range(max(stage - 1, 0), min(stage + 2, len(rank_of))):
        rank = rank_of[near]
        if not called[rank]:
            called[rank] = True
            asked[waiting] = rank
            waiting += 1
    return waiting


@inner()
def _ranks(first: Ints, stages: Ints) -> Ints:
    """Return the rank of each stage."""
    rank_of = np.empty(len(stages), np.int64)
    for rank in range(len(first) - 1):
        for at in range(first[rank], first[rank + 1]):
            rank_of[stages[at]] = rank
    return rank_of


@inner()
def _choose(
    stages: Ints, mbs: int, back: int, ended: Ints, in_flight: Ints, room: int, forward_last: bool
) -> tuple[int, int]:
    """Return the phase and stage that a free rank runs, or NONE."""
    backward = _backward(stages, back, ended)
    if forward_last and backward != NONE:
        return back, backward
    forward, full = _forward(stages, mbs, back, ended, in_flight, room)
    if forward != NONE:
        return F, forward
    if back == I and (full or backward == NONE):
        weight = _weight(stages, ended)
        if weight != NONE:
            return W, weight
    return (back, backward) if backward != NONE else (NONE, NONE)


@inner()
def _backward(stages: Ints, back: int, ended: Ints) -> int:
    """Return the stage whose next backward can run; the lowest has the oldest micro-batch."""
    last = ended.shape[1] - 1
    for stage in stages:
        behind = ended[F, stage] if stage == last else ended[back, stage + 1]
        if ended[back, stage] < behind:
            return int(stage)
    return NONE


@inner()
def _forward(
    stages: Ints, mbs: int, back: int, ended: Ints, in_flight: Ints, room: int
) -> tuple[int, bool]:
    """Return the stage whose next forward can run, and whether one has no room.

    The highest stage has the oldest micro-batch; a forward leaves room for the stages above.
    """
    full = False
    for later in range(len(stages)):
        stage = stages[len(stages) - 1 - later]
        mb = ended[F, stage]
        ready = mb < mbs if stage == 0 else mb < ended[F, stage - 1]
        if ready and mb - ended[back, stage] < in_flight[stage]:
            if room > later:
                return int(stage), False
            full = True
    return NONE, full


@inner()
def _weight(stages: Ints, ended: Ints) -> int:
    """Return the stage with the oldest W that can run; the highest of several."""
    best = NONE
    for stage in stages:
        if ended[W, stage] < ended[I, stage] and (
            best == NONE or ended[W, stage] <= ended[W, best]
        ):
            best = stage
    return best
