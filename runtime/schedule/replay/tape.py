"""Tapes: the programs of all ranks as one array of words, which `check` and `simulate` walk."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from partitioner.base.compiled import compiled, inner
from runtime.schedule.instructions import COLLECTIVE, FREE, RECV, SEND
from runtime.schedule.program import Columns, Schedule
from runtime.schedule.replay.facts import Facts
from symgraph.core.errors import ScheduleError
from symgraph.core.units import count_text

Ints = npt.NDArray[Any]

KIND, NAME = 4, 28  # bits of a word
KINDS, NAMES = (1 << KIND) - 1, (1 << NAME) - 1
MB = KIND + NAME  # where a word's micro-batch begins

# Why an instruction cannot stand in a rank's program.
OK, NO_STAGE, NO_EDGE, NO_BODY, NO_MICRO_BATCH, WRONG_RANK, WITHIN_RANK = range(7)


class Tape:
    """The words of all ranks, one rank after the other."""

    #: int64. From the low end: the instruction's code in KIND bits; its body, edge, collective or
    #: stage in NAME bits; its micro-batch.
    words: Ints
    #: Rank r's words are words[first[r] : first[r + 1]].
    first: Ints
    #: The number of messages sent on each channel, by the ranks read so far.
    sends: Ints
    #: The number of micro-batches.
    mbs: int

    def __init__(self, schedule: Schedule, facts: Facts, mbs: int | None = None) -> None:
        """Make room for the programs of a schedule; without `mbs` they tell their micro-batches.

        Raises:
            ScheduleError: The number of programs is not the number of ranks.
        """
        require_program_per_rank(schedule, facts)
        self._programs, self._facts, self._limit = schedule.programs, facts, mbs
        self._rank_of = np.array(facts.rank_of, np.int32)
        self.first = np.cumsum([0, *map(len, self._programs)], dtype=np.int64)
        self.words = np.empty(self.first[-1], np.int64)
        self.sends = np.zeros(len(facts.channel_src), np.int64)
        batches = (int(p.columns.mb.max(initial=-1)) for p in self._programs)
        self.mbs = 1 + max(batches, default=-1) if mbs is None else mbs

    @classmethod
    def of(cls, schedule: Schedule, facts: Facts, mbs: int | None = None) -> Tape:
        """Return the tape of all programs of a schedule that `check` accepts.

        Raises:
            ScheduleError: An instruction cannot stand in its rank's program.
        """
        tape = cls(schedule, facts, mbs)
        for rank, program in enumerate(schedule.programs):
            rule, step = tape.read(rank)
            if rule != OK:
                raise ScheduleError(
                    f"rank {rank}, step {step}: {program[step]} cannot stand there; `check` the "
                    f"schedule of {count_text(tape.mbs, 'micro-batch')} first"
                )
        return tape

    def of_rank(self, rank: int) -> Ints:
        """Return a rank's words."""
        return self.words[self.first[rank] : self.first[rank + 1]]

    def read(self, rank: int) -> tuple[int, int]:
        """Write the words of a rank's program, up to an instruction that cannot stand there.

        Returns:
            Why it cannot and its step; OK and the number of instructions if there is none.
        """
        facts, program = self._facts, self._programs[rank]
        rule, step = _read(
            Columns(*map(np.ascontiguousarray, program.columns)),
            rank,
            len(program) if self._limit is None else self._limit,  # nobody has more micro-batches
            self._rank_of,
            facts.body_at,
            facts.edge_channel,
            facts.channel_src,
            facts.channel_dst,
            self.of_rank(rank),
            self.sends,
        )
        return int(rule), int(step)


def require_program_per_rank(schedule: Schedule, facts: Facts) -> None:
    """Raise ScheduleError unless there are as many programs as ranks."""
    if len(schedule.programs) != facts.ranks:
        programs = count_text(len(schedule.programs), "program")
        raise ScheduleError(f"{programs} for {count_text(facts.ranks, 'rank')}")


# Kernels take arrays out of their tuples before they loop, because numba counts references: in the
# loop, that takes ten times as long as all the rest.


@compiled(nogil=True)
def _read(
    columns: Columns,
    rank: int,
    mbs: int,
    rank_of: Ints,
    body_at: Ints,
    channel: Ints,
    source: Ints,
    target: Ints,
    words: Ints,
    sends: Ints,
) -> tuple[int, int]:
    """See Tape.read. source, target: rank at each end of a channel."""
    codes, ats, batches, segments = columns
    for step in range(len(codes)):
        kind, at, mb = int(codes[step]), int(ats[step]), int(batches[step])
        rule, name = OK, at
        if SEND <= kind <= RECV:
            rule = _misplaced_message(rank, at, channel, source if kind == SEND else target)
            if rule == OK and kind == SEND and 0 <= mb < mbs:
                sends[channel[at]] += 1
        elif kind != COLLECTIVE:
            rule = _misplaced_stage(rank, at, rank_of)
            if rule == OK and kind < SEND:
                rule, name = _number_of(kind % FREE, at, segments[step], body_at)
        if rule == OK and kind <= RECV and not 0 <= mb < mbs:
            rule = NO_MICRO_BATCH
        if rule != OK:
            return rule, step
        words[step] = kind | name << KIND | mb << MB
    return OK, len(codes)


@inner()
def _misplaced_stage(rank: int, stage: int, rank_of: Ints) -> int:
    if not 0 <= stage < len(rank_of):
        return NO_STAGE
    return OK if rank_of[stage] == rank else WRONG_RANK


@inner()
def _misplaced_message(rank: int, tag: int, channel: Ints, end: Ints) -> int:
    if not 0 <= tag < len(channel):
        return NO_EDGE
    if channel[tag] < 0:
        return WITHIN_RANK
    return OK if end[channel[tag]] == rank else WRONG_RANK


@inner()
def _number_of(phase: int, stage: int, segment: int, body_at: Ints) -> tuple[int, int]:
    """Number a body."""
    if not 0 <= segment < body_at.shape[2] or body_at[phase, stage, segment] < 0:
        return NO_BODY, 0
    return OK, body_at[phase, stage, segment]
