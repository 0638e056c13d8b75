"""The memory account of a step of any batches: what every rank holds, instruction by instruction.

A step of one batch has its plan's. The batches of a mixed step share an arena, so what is held is
read off the arena.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from partitioner.memory.packing import Need, to_cache_lines
from runtime.planning.memory.arena import Arena, reserve
from runtime.planning.step import StepPrograms
from runtime.schedule.program import Program
from runtime.schedule.replay import RankMemory

Ints = npt.NDArray[Any]


def step_memory(step: StepPrograms) -> tuple[RankMemory, ...]:
    """What each rank holds; all but parameters, optimizer arrays and scratch is its arena."""
    parts, first = step.parts, step.parts.plans[0]
    if len(parts.plans) == 1:
        return first.memory
    found = []
    for rank, program in enumerate(step.schedule.programs):
        fixed = first.parameters
        arena = reserve([program], rank, parts.partitions, parts.kinds, parts.grads, fixed)
        found.append(_rank_memory(program, arena, first.memory[rank]))
    return tuple(found)


def _rank_memory(program: Program, arena: Arena, alone: RankMemory) -> RankMemory:
    """alone: of the first batch by itself, which has what stays for the run."""
    moments = len(program)
    sums, kept, scratch = (_held(needs, moments) for needs in arena.needs)
    worst = int(np.argmax(sums + kept + scratch)) if moments else 0
    gradients, activations = (int(held[worst]) if moments else 0 for held in (sums, kept))
    after = _held(chain(*arena.needs), moments, after=True)
    return replace(
        alone,
        gradients=gradients,
        activations=activations,
        transient=arena.nbytes - gradients - activations,
        at=program[worst] if moments else None,
        profile=after + alone.parameters + alone.optimizer + alone.scratch,
    )


def _held(needs: Iterable[Need], moments: int, *, after: bool = False) -> Ints:
    """Bytes that are needed at each instruction; after: what is still needed when it is done."""
    change = np.zeros(moments + 3, np.int64)
    for first, last, nbytes in needs:
        change[first] += to_cache_lines(nbytes)
        change[last + (not after)] -= to_cache_lines(nbytes)
    held: Ints = np.cumsum(change)[1 : moments + 1]
    return held
