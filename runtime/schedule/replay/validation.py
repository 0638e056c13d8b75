"""The check: a proof that a schedule is complete, in order and cannot hang.

Completeness and order are properties of the programs as they stand. That they cannot hang is shown
by a run of all of them in which nothing takes time, by the rules of `runtime.schedule.replay.walk`,
which the worker follows as well.

One run with channels of capacity 0 (rendezvous) stands for all runs at any capacity. Programs are
straight lines, and a receive names its source and takes the next message of a channel that has one
sender and one receiver. So what a rank can do next, it still can whatever the others do first:
steps of different ranks can be exchanged, and all runs end, or none does. Buffering only delivers
earlier. Siegel and Avrunin prove it for MPI: without MPI_ANY_SOURCE and MPI_ANY_TAG, it suffices
for freedom from deadlock to consider synchronous executions (Modeling wildcard-free MPI programs
for verification, PPoPP 2005). docs/reliability.md says how our programs fit their model, and
tests/runtime/schedule/test_interleavings.py tries all interleavings of small ones.
"""

from __future__ import annotations

from itertools import pairwise, zip_longest
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from partitioner.base.types import BACKWARD, FORWARD, WEIGHT, BodyKey, Topology
from runtime.schedule.instructions import (
    COLLECTIVE,
    SEND,
    Collective,
    Free,
    Instruction,
    Recv,
    Run,
    Send,
    Update,
)
from runtime.schedule.program import Schedule
from runtime.schedule.replay import tape, validation_walk
from runtime.schedule.replay.facts import Facts, Lists
from runtime.schedule.replay.walk import DONE, Carriers, State, Ticks, start, walk
from symgraph.core.errors import ScheduleError
from symgraph.core.units import but_only

Ints = npt.NDArray[Any]


def check(
    schedule: Schedule,
    topology: Topology,
    mbs: int,
    *,
    capacity: int | None = 0,
    runs: npt.NDArray[np.bool_] | None = None,
) -> None:
    """Prove that the schedule is complete, ordered and cannot hang, or raise ScheduleError.

    Complete: every body runs every micro-batch once and is freed once, on its stage's rank, and
    every edge that crosses ranks is sent and received once per micro-batch; if any stage is
    updated, all that have parameter gradients are. Ordered: a body runs after what it reads is
    made or received, sends come after their body, its free after them, the frees of a stage in
    the order of its runs, its update last; messages of a channel are received as they are sent,
    and all ranks do the same collectives. Cannot hang: a run of all programs, with channels of
    this capacity, comes to their ends. Time and memory are linear in the instructions.

    Args:
        mbs: The number of micro-batches.
        capacity: The number of messages that a channel buffers; None: any number.
        runs: [stage, micro-batch], whether the micro-batch runs there; by default all run
            everywhere.

    Raises:
        ScheduleError: The first violation; it names rank, step and edge. If the programs would
            hang, it lists what every rank waits for.
    """
    if mbs < 1:
        raise ScheduleError(f"{mbs} micro-batches: there must be one or more")
    if capacity is not None and capacity < 0:
        raise ScheduleError(f"channels of capacity {capacity}: it must be 0 or more, or None")
    _Check(schedule, Facts.of(topology), mbs, runs).run(capacity)


class _Check:
    """One check: its arrays, the rules without kernels, and the messages of violations."""

    def __init__(
        self, schedule: Schedule, facts: Facts, mbs: int, runs: npt.NDArray[np.bool_] | None
    ) -> None:
        self.programs, self.facts, self.mbs, self.runs = schedule.programs, facts, mbs, runs
        self.tape = tape.Tape(schedule, facts, mbs)
        self.needs = validation_walk.Needs.of(facts)
        self.steps = validation_walk.Steps.none(facts, mbs)
        self.sent = np.empty_like(self.steps.send)

    def run(self, capacity: int | None) -> None:
        words, first = self.tape.words, self.tape.first
        self._read()
        if self.runs is not None:
            self._leave_out(self.runs)
        self._complete()
        channels, count = self.facts.edge_channel, np.zeros(len(self.facts.channel_src), np.int32)
        for rule, rank, step, other in (
            validation_walk.order(words, first, self.needs, self.steps),
            validation_walk.fifo(words, first, channels, count, self.sent),
        ):
            if rule != tape.OK:
                self._fail(rank, step, self._early(rule, self.programs[rank][step], other))
        self._updates(self._collectives())
        alone = Carriers(np.arange(len(count)), np.zeros_like(count))
        ticks = Ticks.none(self.facts)
        state = start(self.facts, self.tape, capacity, ticks, alone, Lists.of(()))
        if walk(state) != DONE:
            raise ScheduleError(self._stuck(state))

    def _read(self) -> None:
        """Write down the step of every instruction; each belongs to its rank, and is there once."""
        rule = rank = step = 0
        for rank in range(len(self.programs)):
            rule, step = self.tape.read(rank)
            if rule != tape.OK:
                break
        end = self.tape.first[rank] + step
        twice, *where = validation_walk.stamp(self.tape.words, self.tape.first, end, self.steps)
        if twice != tape.OK:
            self._fail(where[0], where[1], f"already stands at step {where[2]}")
        if rule != tape.OK:
            self._fail(rank, step, self._misplaced(rule, self.programs[rank][step]))

    def _fail(self, rank: int, step: int, why: str) -> NoReturn:
        raise ScheduleError(f"rank {rank}, step {step}: {self.programs[rank][step]} {why}")

    def _edge(self, tag: int) -> str:
        return f"edge {tag} ({self.facts.edges[tag]})"

    def _ends(self, tag: int) -> tuple[int, int]:
        """Return the ranks of an edge."""
        edge, rank_of = self.facts.edges[tag], self.facts.rank_of
        return rank_of[edge.src.stage], rank_of[edge.dst.stage]

    # -- what may be there, and must -------------------------------------------------------------

    def _misplaced(self, rule: int, instruction: Instruction) -> str:
        """Say why an instruction that `Tape.read` refused cannot stand there."""
        facts = self.facts
        assert not isinstance(instruction, Collective)
        if rule == tape.NO_MICRO_BATCH:
            assert not isinstance(instruction, Update)
            return f"refers to micro-batch {instruction.mb}, {but_only(self.mbs, 'micro-batch')}"
        if isinstance(instruction, (Send, Recv)):
            tag, side = instruction.tag, int(isinstance(instruction, Recv))
            if rule == tape.NO_EDGE:
                return f"refers to edge {tag}, {but_only(len(facts.edges), 'edge')}"
            owner = self._ends(tag)[side]
            if rule == tape.WITHIN_RANK:
                return f"belongs to {self._edge(tag)}, whose ends are both on rank {owner}"
            return f"belongs to rank {owner}, where {self._edge(tag)} {('begins', 'ends')[side]}"
        stage = instruction.stage
        if rule == tape.NO_STAGE:
            return f"refers to stage {stage}, {but_only(len(facts.rank_of), 'stage')}"
        if rule == tape.NO_BODY:
            assert isinstance(instruction, (Run, Free))
            bodies = ", ".join(str(key) for key in facts.keys if key.stage == stage)
            return f"refers to body {instruction.key}, but the bodies of stage {stage} are {bodies}"
        owner = facts.rank_of[stage]
        columns = self.programs[owner].columns
        if ((columns.at == stage) & (columns.code < SEND)).any():
            return f"belongs to rank {owner}: stage {stage} cannot be on two ranks"
        return f"belongs to rank {owner}"

    def _leave_out(self, runs: npt.NDArray[np.bool_]) -> None:
        """Refuse instructions of micro-batches that do not run a stage; none of them is missing."""
        facts, steps = self.facts, self.steps
        source, target = ([getattr(e, end).stage for e in facts.edges] for end in ("src", "dst"))
        for table, stages in (
            (steps.run, self.needs.body_stage),
            (steps.free, self.needs.body_stage),
            (steps.send, source),
            (steps.recv, target),
        ):
            absent = ~runs[stages]
            for row, mb in np.argwhere(absent & (table >= 0)).tolist():
                stage = int(stages[row])
                why = f"belongs to a micro-batch that does not run stage {stage}"
                self._fail(facts.rank_of[stage], int(table[row, mb]), why)
            table[absent] = 0

    def _complete(self) -> None:
        send, recv = self.steps.send, self.steps.recv
        within = self.facts.edge_channel < 0
        send[within] = recv[within] = 0  # there is no message, so none is missing
        self._complete_bodies(Run, self.steps.run)
        index = _first_missing(np.minimum(send, recv))
        if index >= 0:
            tag, mb = divmod(index, self.mbs)
            source, target = self._ends(tag)
            if send[tag, mb] >= 0:
                why = f"of {self._edge(tag)} is never received: rank {target} lacks {Recv(tag, mb)}"
                self._fail(source, send[tag, mb], why)
            if recv[tag, mb] >= 0:
                why = f"of {self._edge(tag)} is never sent: rank {source} lacks {Send(tag, mb)}"
                self._fail(target, recv[tag, mb], why)
            raise ScheduleError(f"rank {source} never does {Send(tag, mb)} for {self._edge(tag)}")
        self._complete_bodies(Free, self.steps.free)

    def _complete_bodies(self, kind: type[Run | Free], table: Ints) -> None:
        index = _first_missing(table)
        if index >= 0:
            body, mb = divmod(index, self.mbs)
            stage, phase, segment = key = self.facts.keys[body]
            rank, missing = self.facts.rank_of[stage], kind(stage, phase, mb, segment)
            raise ScheduleError(f"rank {rank} never does {missing} for body {key}")

    # -- what comes before what ------------------------------------------------------------------

    def _early(self, rule: int, instruction: Instruction, other: int) -> str:
        """Say what an instruction that `order` or `fifo` found comes before."""
        assert not isinstance(instruction, (Collective, Update))
        if rule == validation_walk.FIFO:
            assert isinstance(instruction, Recv)
            return self._overtaken(instruction.tag, other)
        if rule == validation_walk.RECEIVE:
            receive = Recv(other, instruction.mb)
            return f"needs {self._edge(other)}, but {receive} does not come before it"
        if rule == validation_walk.FREE_UNSENT:
            send = Send(other, instruction.mb)
            return f"comes before {send}, so {self._edge(other)} is freed while needed"
        key = self.facts.keys[other]
        run = Run(key.stage, key.phase, instruction.mb, key.segment)
        if isinstance(instruction, Send):
            edge = self._edge(instruction.tag)
            if rule == validation_walk.SEND_EARLY:
                return f"comes before {run} makes {edge}"
            return (
                f"comes after {run}, which may drop {edge}: a body must send before its stage "
                "runs the micro-batch again"
            )
        assert isinstance(instruction, (Run, Free))
        if rule == validation_walk.BODY:
            return f"needs {self._needed(instruction.key, key)}, but {run} does not come before it"
        if rule == validation_walk.FREE_EARLY:
            return f"comes before {run}"
        free = Free(key.stage, key.phase, instruction.mb, key.segment)
        return f"comes before {free}: a stage must free a micro-batch in the order of its runs"

    def _needed(self, key: BodyKey, earlier: BodyKey) -> str:
        """Say what a body needs of an earlier one of its rank."""
        for edge in self.facts.edges:
            if (edge.src, edge.dst) == (earlier, key):
                return self._edge(edge.tag)
        if earlier.phase == key.phase:
            way = "rise" if key.phase == FORWARD else "fall"
            return f"segment {earlier.segment} first, as {key.phase} segments {way}"
        if earlier.phase == FORWARD:
            return "what its forward run keeps"
        return "what its input-gradient run keeps"

    def _overtaken(self, tag: int, index: int) -> str:
        """Say which message a receive overtakes: that of this index on its channel."""
        channels = self.facts.edge_channel
        tags = np.flatnonzero(channels == channels[tag])
        row, mb = (int(i[0]) for i in np.nonzero(self.sent[tags] == index))
        first = Send(int(tags[row]), mb)
        source, target = self._ends(tag)
        return (
            f"of {self._edge(tag)} is out of order: of the messages from rank {source} to rank "
            f"{target}, {first} of {self._edge(first.tag)} is next"
        )

    def _collectives(self) -> list[list[tuple[int, Collective]]]:
        """Return the collectives of every rank, each after its step; all ranks have the same."""
        words, starts = self.tape.words, self.tape.first
        places = np.flatnonzero(words & tape.KINDS == COLLECTIVE)
        ends = np.searchsorted(places, starts)
        steps = places - np.repeat(starts[:-1], np.diff(ends))
        tags = words[places] >> tape.KIND & tape.NAMES
        rows = list(zip(steps.tolist(), map(Collective, tags.tolist()), strict=True))
        by_rank = [rows[begin:end] for begin, end in pairwise(ends.tolist())]
        for rank, collectives in enumerate(by_rank):
            for at, (first, other) in enumerate(zip_longest(by_rank[0], collectives)):
                if first is None:
                    self._fail(rank, other[0], f"is one too many: rank 0 does {at} collectives")
                if other is None:
                    self._fail(0, first[0], f"is one too many: rank {rank} does {at} collectives")
                if first[1] != other[1]:
                    why = f"meets {first[1]} of rank 0, step {first[0]}: all ranks must do"
                    self._fail(rank, other[0], f"{why} the same collectives in the same order")
        return by_rank

    def _updates(self, collectives: list[list[tuple[int, Collective]]]) -> None:
        """Check that updates come last, after a reduction of gradients, in all stages or none."""
        updates = self.steps.update[:, 0]
        updated = np.flatnonzero(updates >= 0)
        if not len(updated):
            return
        runs, frees = self.steps.run.max(1), self.steps.free.max(1)
        for body, key in enumerate(self.facts.keys):
            rank, step = self.facts.rank_of[key.stage], int(updates[key.stage])
            if step >= 0:
                reductions = [at for at, what in collectives[rank] if what == Collective()]
                self._update(rank, step, reductions, int(runs[body]), int(frees[body]))
            elif key.phase in (BACKWARD, WEIGHT):
                raise ScheduleError(
                    f"rank {rank} never does {Update(key.stage)} for the gradients of body {key}, "
                    f"but rank {self.facts.rank_of[updated[0]]} does {Update(int(updated[0]))}"
                )

    def _update(self, rank: int, step: int, reductions: list[int], run: int, free: int) -> None:
        """Check an update at this step against a body of its stage.

        Args:
            reductions: The steps of the rank's reductions.
            run: The step of the body's last run.
            free: The step of its last free.
        """
        program = self.programs[rank]
        before = [at for at in reductions if at < step]
        if not before:
            self._fail(rank, step, f"comes before {Collective()}")
        for last in (run, free):
            if last > step:
                self._fail(rank, step, f"comes before {program[last]}")
        if run > before[-1]:
            why = f"comes before {program[run]}, whose gradients {program[step]} uses"
            self._fail(rank, before[-1], why)

    # -- where all stand -------------------------------------------------------------------------

    def _stuck(self, state: State) -> str:
        lines = ["no rank can continue:"]
        steps = (state.board.ranks["step"] - self.tape.first[:-1]).tolist()
        for rank, (program, step) in enumerate(zip(self.programs, steps, strict=True)):
            if step == len(program):
                lines.append(f"  rank {rank} has finished")
            else:
                why = self._waits_for(program[step], state, steps)
                lines.append(f"  rank {rank}, step {step}: {program[step]} waits {why}")
        return "\n".join(lines)

    def _waits_for(self, instruction: Instruction, state: State, steps: list[int]) -> str:
        if isinstance(instruction, Recv):
            return "for " + ", ".join(
                f"{Send(tag, instruction.mb)} of rank {self._ends(tag)[0]} "
                f"({self.facts.edges[tag].value})"
                for tag in self._awaited(instruction, steps)
            )
        if isinstance(instruction, Free):
            facts, taken = self.facts, state.board.channels["taken"]
            return "until " + ", ".join(
                f"rank {self._ends(tag)[1]} takes {Send(tag, instruction.mb)}"
                for tag in facts.outgoing[facts.keys.index(instruction.key)]
                if facts.channel_exchange[facts.edge_channel[tag]] < 0
                and self.sent[tag, instruction.mb]
                >= taken[facts.edge_channel[tag]] + state.capacity
            )
        return "for the other ranks"

    def _awaited(self, receive: Recv, steps: list[int]) -> list[int]:
        """Return the edges whose sends a receive waits for: of an exchange, all that are missing.

        steps: where each rank stands.
        """
        edges = self.facts.edges
        name = edges[receive.tag].exchange
        tags = [e.tag for e in edges if name and e.exchange == name] or [receive.tag]
        return [
            tag
            for tag in tags
            if self.facts.edge_channel[tag] >= 0
            and self.steps.send[tag, receive.mb] >= steps[self._ends(tag)[0]]
        ]


def _first_missing(table: Ints) -> int:
    """Return the first flat index of a table at which there is no step, or -1."""
    index = int(table.argmin()) if table.size else -1
    return index if index >= 0 and table.flat[index] < 0 else -1
