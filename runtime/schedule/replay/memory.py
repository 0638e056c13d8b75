"""The memory account: what every rank holds, instruction by instruction, and its worst moment.

Recv    the message is held from here on; an early one (see MemoryPlan) since the run before
Run     while it runs, its body's `top` besides, and the partial sums over micro-batches that its
        gradients begin or join; then `kept` and `sending` of the body
Free    `sending` is dropped
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from partitioner.base.types import FORWARD, Topology
from partitioner.memory.memory_plan import MemoryPlan
from runtime.schedule.instructions import Instruction
from runtime.schedule.program import Program, Schedule
from runtime.schedule.replay.facts import Facts
from runtime.schedule.replay.memory_walk import Bodies, in_flight, profile
from runtime.schedule.replay.tape import require_program_per_rank
from symgraph.core.errors import ScheduleError

Ints = npt.NDArray[Any]


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank at its worst moment.

    scratch: see MemoryPlan. gradients: their partial sums. activations: what runs before left for
    later ones. transient: messages under way, what the running body holds beyond all that, and, of
    a plan, what packing leaves unused (see runtime.planning.memory.arena). at: the instruction of
    the worst moment; None if the program is empty. profile: int64, all that is held after each
    instruction.
    """

    parameters: int
    gradients: int
    optimizer: int
    scratch: int
    activations: int
    transient: int
    at: Instruction | None
    profile: Ints = field(repr=False, compare=False)

    @property
    def peak(self) -> int:
        """Bytes at the worst moment."""
        static = self.parameters + self.optimizer + self.scratch
        return static + self.gradients + self.activations + self.transient


def memory_profile(
    schedule: Schedule, topology: Topology, plan: MemoryPlan, mbs: int
) -> tuple[RankMemory, ...]:
    """The memory of every rank under a schedule that `check` accepts for this many micro-batches.

    ScheduleError if it names what there is not.
    """
    facts = _facts(schedule, topology)
    bodies = _bodies(facts, plan)
    nbytes = np.array([edge.type.nbytes for edge in facts.edges], np.int64)
    early = np.array([tag in plan.early for tag in range(len(nbytes))], np.bool_)
    widths = [mbs]
    while widths[-1] > 1:
        widths.append((widths[-1] + 1) // 2)
    slots = np.bincount(facts.body_rank[bodies.slot >= 0], minlength=facts.ranks)
    found = []
    for rank, program in enumerate(schedule.programs):
        waiting = np.zeros((slots[rank], len(widths), mbs), np.bool_)
        held, worst, out = (np.zeros(n, np.int64) for n in (3, 4, len(program)))
        bad = profile(
            program.columns,
            rank,
            bodies,
            nbytes,
            early,
            np.array(widths),
            waiting,
            held,
            worst,
            out,
        )
        if bad >= 0:
            raise _unknown(rank, bad, program, mbs)
        step, gradients, activations, transient = worst.tolist()
        found.append(
            RankMemory(
                plan.parameters[rank],
                gradients,
                plan.optimizer[rank],
                plan.scratch[rank],
                activations,
                transient,
                program[step] if len(program) else None,
                out + plan.static[rank],
            )
        )
    return tuple(found)


def peak_in_flight(schedule: Schedule, topology: Topology) -> list[int]:
    """Per rank, the most micro-batches that are held for their backward phase.

    Counted once for each stage of the rank, from the first forward run to the end of the last
    backward one. Stages without a backward phase hold nothing. ScheduleError if a run names what
    there is not.
    """
    facts = _facts(schedule, topology)
    stages = [key.stage for key in facts.keys if key.phase != FORWARD]
    backward = np.bincount(np.array(stages, np.int64), minlength=len(facts.rank_of))
    mbs = max((1 + int(p.columns.mb.max(initial=0)) for p in schedule.programs), default=1)
    mbs = min(mbs, max(map(len, schedule.programs), default=0))
    left = np.zeros((len(facts.rank_of), mbs), np.int32)
    peaks = [in_flight(program.columns, backward, left) for program in schedule.programs]
    if min(peaks, default=0) < 0:
        raise ScheduleError(f"rank {peaks.index(-1)} runs what there is not; `check` it first")
    return peaks


def _facts(schedule: Schedule, topology: Topology) -> Facts:
    facts = Facts.of(topology)
    require_program_per_rank(schedule, facts)
    return facts


def _bodies(facts: Facts, plan: MemoryPlan) -> Bodies:
    rows = [plan.bodies[key] for key in facts.keys]
    columns = [[m.top, m.kept, m.sending, m.sums] for m in rows]
    top, kept, sending, sums = np.array(columns, np.int64).reshape(-1, 4).T.copy()
    received = [
        sum(facts.edges[tag].type.nbytes for tag in facts.incoming[body])
        for body in range(len(rows))
    ]
    slot = np.full(len(rows), -1, np.int64)
    for rank in range(facts.ranks):
        own = np.flatnonzero((facts.body_rank == rank) & (sums > 0))
        slot[own] = np.arange(len(own))
    return Bodies(
        top,
        kept,
        sending,
        sums,
        np.array(received, np.int64),
        slot,
        facts.body_rank,
        facts.body_at,
    )


def _unknown(rank: int, step: int, program: Program, mbs: int) -> ScheduleError:
    return ScheduleError(
        f"rank {rank}, step {step}: {program[step]} is not part of {mbs} micro-batches of this "
        "partition; `check` the schedule first"
    )
