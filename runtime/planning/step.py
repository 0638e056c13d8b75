"""The step: its batches, each with the plan of its bucket, their micro-batches and programs.

Most steps have one part. A step of several buckets has one for each batch, and the micro-batches
of all of them are numbered consecutively:

    part          0 (60 words)   1 (8 words)   2 (60 words)
    micro-batch   0    1         2    3        4    5

Micro-batches of one plan and size are of one kind: they run the same bodies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner import Partition
from partitioner.memory.packing import Need, to_cache_lines
from runtime.backends.bodies import PackedForm
from runtime.backends.scratch import PackedWeight, packed_weights, scratch_bytes
from runtime.planning.memory.arena import Arena, Kind, reserve
from runtime.planning.plan import Plan
from runtime.schedule.program import Program, Schedule
from runtime.schedule.replay import RankMemory
from symgraph.core.types import Array, Value
from symgraph.passes.batching import early_values

Feeds = Mapping[str, Array]
Ints = npt.NDArray[Any]


class MicroBatch(NamedTuple):
    """A micro-batch of a step."""

    part: int
    """The number of its batch."""
    kind: Kind
    start: int
    """Its first sample in its own batch."""
    sample: int
    """Its first sample in the whole step."""


@dataclass(frozen=True)
class StepBatches:
    """The plans of a step's batches."""

    plans: tuple[Plan, ...]

    @cached_property
    def mbs(self) -> tuple[MicroBatch, ...]:
        """All micro-batches in order."""
        mbs: list[MicroBatch] = []
        sample = 0
        for part, plan in enumerate(self.plans):
            first = next(i for i, other in enumerate(self.plans) if other is plan)
            start = 0
            for size in plan.sizes:
                mbs.append(MicroBatch(part, Kind(first, size), start, sample))
                start, sample = start + size, sample + size
        return tuple(mbs)

    @property
    def kinds(self) -> list[Kind]:
        """The kind of each micro-batch."""
        return [mb.kind for mb in self.mbs]

    @cached_property
    def partitions(self) -> Mapping[Kind, Partition]:
        """The cut graph of every kind."""
        return {k: self.plans[k.part].partitions[k.size] for k in dict.fromkeys(self.kinds)}

    @cached_property
    def outputs(self) -> Mapping[Kind, Mapping[Value, Value]]:
        """Kind -> output -> the first part's output in its place, under which it is reported."""
        known = self.plans[0].outputs
        return {
            kind: dict(zip(self.plans[kind.part].outputs, known, strict=True))
            for kind in self.partitions
        }

    @property
    def grads(self) -> Mapping[Kind, Mapping[str, Value]]:
        """Kind -> parameter -> the value of its gradient."""
        return {kind: self.plans[kind.part].grads for kind in self.partitions}

    @property
    def packed(self) -> list[dict[PackedForm, PackedWeight]]:
        """The parameters that each rank holds and reads packed."""
        return self.packed_if(self.plans[0].options.shares_weights)

    def packed_if(self, one_array: bool) -> list[dict[PackedForm, PackedWeight]]:
        """Return the same if copies of a parameter are one array, or if each is its own."""
        cut, *others = self.partitions.values()
        held = self.plans[0].network.parameters
        return packed_weights(cut, held, tuple(others), one_array=one_array)

    def early(self, feeds: Sequence[Feeds]) -> list[dict[str, Array]]:
        """Compute the prologue of all batches together; return its values for each part."""
        return early_values([plan.prologue for plan in self.plans], feeds)


@dataclass(frozen=True)
class StepPrograms:
    """The programs of a step of some batches."""

    parts: StepBatches
    schedule: Schedule

    @classmethod
    def of(cls, plan: Plan) -> StepPrograms:
        """Make the step of one batch."""
        return cls(StepBatches((plan,)), plan.schedule)

    @cached_property
    def zeros(self) -> list[dict[str, Array]]:
        """The first states of each batch; those of later steps stay on their ranks."""
        return [_zero_states(plan) for plan in self.parts.plans]

    @cached_property
    def memory(self) -> tuple[RankMemory, ...]:
        """The memory of each rank, instruction by instruction.

        A step of one batch has its plan's memory. The batches of a mixed step share an arena, so
        what is held is read off the arena: all but parameters, optimizer arrays and scratch.
        """
        parts, first = self.parts, self.parts.plans[0]
        if len(parts.plans) == 1:
            return first.memory
        (cut, *others), fixed = parts.partitions.values(), first.network.parameters
        scratch = scratch_bytes(cut, fixed, others, one_array=first.options.shares_weights)
        ranks = []
        for rank, program in enumerate(self.schedule.programs):
            arena = reserve([program], rank, parts.partitions, parts.kinds, parts.grads, fixed)
            alone = replace(first.memory[rank], scratch=scratch[rank])
            ranks.append(_rank_memory(program, arena, alone))
        return tuple(ranks)

    @property
    def digest(self) -> str:
        """A hash by which ranks compare what they run."""
        text = hashlib.sha256("".join(p.digest for p in self.parts.plans).encode())
        for program in self.schedule.programs:
            text.update(program.tobytes())
        return text.hexdigest()


def _zero_states(plan: Plan) -> dict[str, Array]:
    types = {name: plan.feeds[name].type for name in plan.states}
    return {name: np.zeros(type_.shape, type_.dtype) for name, type_ in types.items()}


def _rank_memory(program: Program, arena: Arena, alone: RankMemory) -> RankMemory:
    """Return what a rank holds in a mixed step.

    Args:
        alone: what stays for the run, as if the first batch were alone.
    """
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
    """Return the bytes needed at each instruction.

    Args:
        after: count only what is still needed when the instruction is done.
    """
    change = np.zeros(moments + 3, np.int64)
    for first, last, nbytes in needs:
        change[first] += to_cache_lines(nbytes)
        change[last + (not after)] -= to_cache_lines(nbytes)
    held: Ints = np.cumsum(change)[1 : moments + 1]
    return held
