"""Contention: how much of its time a body shares the caches and the memory with other ranks.

Kernels are timed while all devices work (runtime.profiling), as in a full pipeline. Where ranks
wait for each other, those that work have more of the machine to themselves. So a step is walked
twice: the first walk tells during what share of each body's runs others of its host work, and in
the second one a body takes what lies in between its times among others and alone, by that share.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.schedule.instructions import FREE, UPDATE
from runtime.schedule.replay.facts import Facts
from runtime.schedule.replay.tape import KIND, KINDS, NAMES, Tape
from runtime.schedule.replay.walk import State

Array = npt.NDArray[Any]


def shared_time(facts: Facts, tape: Tape, state: State, hosts: Sequence[Hashable]) -> Array:
    """Return of each body, from 0 to 1, the part of its host's other ranks that work as it runs.

    Args:
        facts: the topology.
        tape: the programs.
        state: that after a walk.
        hosts: the host of each rank; empty: all are on one.
    """
    kinds, names = tape.words & KINDS, tape.words >> KIND & NAMES
    is_run, is_update = kinds < FREE, kinds == UPDATE
    takes = np.zeros(len(kinds))
    takes[is_run] = state.ticks.run[names[is_run]]
    takes[is_update] = state.ticks.update[names[is_update]]
    end = state.end.astype(float)
    begin = end - takes
    bounds = [slice(*pair) for pair in zip(tape.first[:-1], tape.first[1:], strict=True)]
    shared, most = np.zeros((2, len(facts.keys)))
    for rank, own in enumerate(bounds):
        others = [
            part
            for other, part in enumerate(bounds)
            if other != rank and (not hosts or hosts[other] == hosts[rank])
        ]
        runs = is_run[own]
        spans, bodies = (begin[own][runs], end[own][runs]), names[own][runs]
        for other in others:
            together = _worked(*spans, begin[other], end[other])
            shared += np.bincount(bodies, together, len(shared))
        most += len(others) * np.bincount(bodies, takes[own][runs], len(most))
    return np.divide(shared, most, out=np.zeros_like(shared), where=most > 0)


def _worked(since: Array, until: Array, begin: Array, end: Array) -> Array:
    """Return how long a rank works in each of some spans; begin, end: of its instructions."""
    if not len(begin):
        return np.zeros(len(since))
    times = np.stack((begin, end), axis=1).ravel()
    worked = np.repeat(np.cumsum(end - begin), 2)
    worked[::2] -= end - begin
    together: Array = np.interp(until, times, worked) - np.interp(since, times, worked)
    return together
