"""The memory account: what every rank holds, instruction by instruction, and its worst moment.

Recv    holds its message from here on; an early one (see MemoryPlan) from the run before on
Run     holds its body's `top` while it runs, and the partial sums over micro-batches that its
        gradients begin or join; then the body's `kept` and `sending`
Free    drops `sending`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from partitioner.base.types import FORWARD, Topology
from partitioner.memory.memory_plan import MemoryPlan
from runtime.schedule.instructions import Instruction
from runtime.schedule.program import Schedule
from runtime.schedule.replay.facts import Facts
from runtime.schedule.replay.memory_walk import Bodies, in_flight, profile
from runtime.schedule.replay.tape import Tape, require_program_per_rank
from symgraph.core.errors import ScheduleError

Ints = npt.NDArray[Any]


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank at its worst moment."""

    parameters: int
    #: Their partial sums over micro-batches.
    gradients: int
    optimizer: int
    #: See MemoryPlan.
    scratch: int
    #: What earlier runs left for later ones.
    activations: int
    #: Messages under way, what the running body holds beyond all that, and, of a plan, what packing
    #: leaves unused (see runtime.planning.memory.arena).
    transient: int
    #: The instruction of the worst moment; None if the program is empty.
    at: Instruction | None
    #: int64: all that is held after each instruction.
    profile: Ints = field(repr=False, compare=False)

    @property
    def peak(self) -> int:
        """Bytes at the worst moment."""
        static = self.parameters + self.optimizer + self.scratch
        return static + self.gradients + self.activations + self.transient


def memory_profile(
    schedule: Schedule, topology: Topology, plan: MemoryPlan, mbs: int
) -> tuple[RankMemory, ...]:
    """Return the memory of every rank under a schedule that `check` accepts for these arguments.

    Raises:
        ScheduleError: An instruction cannot stand in its rank's program.
    """
    facts = Facts.of(topology)
    tape, bodies = Tape.of(schedule, facts, mbs), _bodies(facts, plan)
    nbytes = np.array([edge.type.nbytes for edge in facts.edges], np.int64)
    early = np.array([tag in plan.early for tag in range(len(nbytes))], np.bool_)
    widths = [mbs]
    while widths[-1] > 1:
        widths.append((widths[-1] + 1) // 2)
    slots = np.bincount(facts.body_rank[bodies.slot >= 0], minlength=facts.ranks)
    ranks = []
    for rank, program in enumerate(schedule.programs):
        waiting = np.zeros((slots[rank], len(widths), mbs), np.bool_)
        worst, held = np.zeros(4, np.int64), np.zeros(len(program), np.int64)
        profile(tape.of_rank(rank), bodies, nbytes, early, np.array(widths), waiting, worst, held)
        step, gradients, activations, transient = worst.tolist()
        ranks.append(
            RankMemory(
                plan.parameters[rank],
                gradients,
                plan.optimizer[rank],
                plan.scratch[rank],
                activations,
                transient,
                program[step] if len(program) else None,
                held + plan.static[rank],
            )
        )
    return tuple(ranks)


def peak_in_flight(schedule: Schedule, topology: Topology) -> list[int]:
    """Return, by rank, the most micro-batches that are held for their backward phase.

    A micro-batch counts once for each stage of the rank, from its first forward run to the end of
    its last backward one. Stages without a backward phase hold nothing.

    Raises:
        ScheduleError: A run is of a stage or micro-batch that does not exist.
    """
    facts = Facts.of(topology)
    require_program_per_rank(schedule, facts)
    stages = [key.stage for key in facts.keys if key.phase != FORWARD]
    backward = np.bincount(np.array(stages, np.int64), minlength=len(facts.rank_of))
    mbs = max((1 + int(p.columns.mb.max(initial=0)) for p in schedule.programs), default=1)
    mbs = min(mbs, max(map(len, schedule.programs), default=0))
    left = np.zeros((len(facts.rank_of), mbs), np.int32)
    peaks = [in_flight(program.columns, backward, left) for program in schedule.programs]
    if min(peaks, default=0) < 0:
        raise ScheduleError(
            f"rank {peaks.index(-1)} runs a stage or micro-batch that does not exist; `check` the "
            "schedule first"
        )
    return peaks


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
        with_sums = np.flatnonzero((facts.body_rank == rank) & (sums > 0))
        slot[with_sums] = np.arange(len(with_sums))
    return Bodies(top, kept, sending, sums, np.array(received, np.int64), slot)
