"""The check: a proof that a schedule is complete, in order and cannot hang.

Rules of a step of all ranks, which the worker follows as well:

    Run    when the instructions before it are done
    Send   posts at once and never blocks
    Recv   when its message is the next undelivered one of its channel (source rank -> own rank)
    Free   when the sends of its body and micro-batch are delivered
    C      when every rank stands at it
    U      at once

With capacity None a message is delivered as soon as it is posted (buffered sends). With capacity
n a channel buffers n messages; with 0 a message is delivered when it is received (rendezvous). A
schedule that ends at capacity 0 ends at any: buffering only delivers earlier.
"""

from __future__ import annotations

from itertools import zip_longest
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
from runtime.schedule.program import Columns, Schedule
from runtime.schedule.replay import validation_walk as walk
from runtime.schedule.replay.facts import Facts
from symgraph.core.errors import ScheduleError

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
    every edge that crosses ranks is sent and received once a micro-batch; if any stage is
    updated, all that have parameter gradients are. Ordered: a body runs after what it reads is
    made or received, sends come after their body, its free after them, the frees of a stage in
    the order of its runs, its update last; messages of a channel are received as they are sent,
    and all ranks do the same collectives. Cannot hang: a walk through all programs, with
    channels of this capacity, comes to their ends. The first violation found is raised; it names
    rank, step and edge. Time and memory are linear in the instructions.

    runs: [stage, micro-batch], whether the micro-batch runs there; by default all run everywhere.
    """
    if mbs < 1:
        raise ScheduleError(f"{mbs} micro-batches: there must be one or more")
    if capacity is not None and capacity < 0:
        raise ScheduleError(f"channels of capacity {capacity}: it is 0 or more, or None")
    facts = Facts.of(topology)
    if len(schedule.programs) != facts.ranks:
        raise ScheduleError(f"{len(schedule.programs)} programs for {facts.ranks} ranks")
    _Check(schedule, facts, mbs, runs).run(walk.UNBOUNDED if capacity is None else capacity)


class _Check:
    """One check: its arrays, what kernels do not look at, and the words for what is found."""

    def __init__(
        self, schedule: Schedule, facts: Facts, mbs: int, runs: npt.NDArray[np.bool_] | None
    ) -> None:
        self.programs, self.facts, self.mbs, self.runs = schedule.programs, facts, mbs, runs
        before, incoming, outgoing = facts.before, facts.incoming, facts.outgoing
        self.net = walk.Net(
            np.array(facts.rank_of, np.int32),
            facts.body_at,
            np.array([key.stage for key in facts.keys], np.int32),
            before.start,
            before.items,
            incoming.start,
            incoming.items,
            outgoing.start,
            outgoing.items,
            facts.edge_src,
            facts.edge_channel,
            facts.channel_src,
            facts.channel_dst,
            facts.channel_exchange,
        )
        sizes = [len(facts.keys) * mbs] * 2 + [len(facts.edges) * mbs] * 2 + [len(facts.rank_of)]
        self.steps = walk.Steps(*(np.full(size, -1, np.int32) for size in sizes))
        lengths = [len(program) for program in self.programs]
        start = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self.tape = walk.Tape(start, np.empty(start[-1], np.uint8), np.empty(start[-1], np.int32))
        self.sent = np.empty(len(self.steps.send), np.int32)

    def run(self, capacity: int) -> None:
        net, mbs, steps, tape = self.net, self.mbs, self.steps, self.tape
        for rank, program in enumerate(self.programs):
            columns = Columns(*map(np.ascontiguousarray, program.columns))
            rule, *where = walk.read(rank, columns, net, mbs, steps, tape)
            if rule != walk.OK:
                self._fail(where[0], where[1], self._misplaced(rule, *where))
        if self.runs is not None:
            self._leave_out(self.runs)
        self._complete()
        for rule, rank, step, other in (
            walk.order(tape, net, mbs, steps),
            walk.fifo(tape, net, mbs, self.sent),
        ):
            if rule != walk.OK:
                self._fail(rank, step, self._early(rule, self.programs[rank][step], other))
        self._updates(self._collectives())
        ranks, channels = len(self.programs), len(net.source)
        state = walk.State(
            tape.start[:-1].copy(),
            np.zeros(channels, np.int32),
            np.zeros(channels, np.int32),
            np.full(ranks, -1, np.int32),
            np.zeros(ranks, np.int32),
            np.repeat(self.facts.exchange_sizes, mbs),
        )
        walk.walk(tape, net, mbs, self.sent, capacity, state)
        if (state.at < tape.start[1:]).any():
            raise ScheduleError(self._stuck(capacity, state))

    def _fail(self, rank: int, step: int, why: str) -> NoReturn:
        raise ScheduleError(f"rank {rank}, step {step}: {self.programs[rank][step]} {why}")

    def _edge(self, tag: int) -> str:
        return f"edge {tag} ({self.facts.edges[tag]})"

    def _ends(self, tag: int) -> tuple[int, int]:
        """The ranks of an edge."""
        edge, rank_of = self.facts.edges[tag], self.facts.rank_of
        return rank_of[edge.src.stage], rank_of[edge.dst.stage]

    # -- what may be there, and must -------------------------------------------------------------

    def _misplaced(self, rule: int, rank: int, step: int, other: int) -> str:
        """Why an instruction that `walk.read` found must not be there."""
        now, facts = self.programs[rank][step], self.facts
        if rule == walk.TWICE:
            return f"stands at step {other} already"
        if rule == walk.NO_MICRO_BATCH:
            assert not isinstance(now, (Collective, Update))
            return f"names micro-batch {now.mb}, which there is not (micro-batches: {self.mbs})"
        if isinstance(now, (Send, Recv)):
            if rule == walk.NO_EDGE:
                return f"names edge {now.tag}, which there is not (edges: {len(facts.edges)})"
            end = isinstance(now, Recv)
            owner = self._ends(now.tag)[end]
            if rule == walk.WITHIN_RANK:
                return f"is of {self._edge(now.tag)}, both ends of which are on rank {owner}"
            side = "ends" if end else "begins"
            return f"belongs to rank {owner}, where {self._edge(now.tag)} {side}"
        assert not isinstance(now, Collective)
        if rule == walk.NO_STAGE:
            return f"names stage {now.stage}, which there is not (stages: {len(facts.rank_of)})"
        if rule == walk.NO_BODY:
            assert isinstance(now, (Run, Free))
            own = " ".join(str(key) for key in facts.keys if key.stage == now.stage)
            return f"names body {now.key}, which there is not (bodies of the stage: {own})"
        owner = facts.rank_of[now.stage]
        there = self.programs[owner].columns
        if ((there.at == now.stage) & (there.code < SEND)).any():
            return f"belongs to rank {owner}: stage {now.stage} cannot be on two ranks"
        return f"belongs to rank {owner}"

    def _leave_out(self, runs: npt.NDArray[np.bool_]) -> None:
        """What stages that a micro-batch does not run would do is not missing, and not there."""
        facts, steps = self.facts, self.steps
        home = self.net.body_stage
        source, target = ([getattr(e, end).stage for e in facts.edges] for end in ("src", "dst"))
        for table, stages in (
            (steps.run, home),
            (steps.free, home),
            (steps.send, source),
            (steps.recv, target),
        ):
            steps_of, absent = table.reshape(-1, self.mbs), ~runs[stages]
            for row, mb in np.argwhere(absent & (steps_of >= 0)).tolist():
                stage = int(stages[row])
                why = f"is of a micro-batch that does not run stage {stage}"
                self._fail(facts.rank_of[stage], int(steps_of[row, mb]), why)
            steps_of[absent] = 0

    def _complete(self) -> None:
        send, recv = self.steps.send, self.steps.recv
        within = self.net.channel < 0
        for table in (send, recv):
            table.reshape(len(within), self.mbs)[within] = 0  # no message, so none is missing
        self._complete_bodies(Run, self.steps.run)
        index = _first_missing(np.minimum(send, recv))
        if index >= 0:
            tag, mb = divmod(index, self.mbs)
            source, target = self._ends(tag)
            if send[index] >= 0:
                why = f"of {self._edge(tag)} is never received: rank {target} lacks {Recv(tag, mb)}"
                self._fail(source, send[index], why)
            if recv[index] >= 0:
                why = f"of {self._edge(tag)} is never sent: rank {source} lacks {Send(tag, mb)}"
                self._fail(target, recv[index], why)
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

    def _early(self, rule: int, now: Instruction, other: int) -> str:
        """What an instruction that `walk.order` or `walk.fifo` found comes before."""
        assert not isinstance(now, (Collective, Update))
        if rule == walk.FIFO:
            assert isinstance(now, Recv)
            return self._overtaken(now.tag, other)
        if rule == walk.SEND_LATE:
            assert isinstance(now, Send)
            return (
                f"comes after {_run(now, self.facts.keys[other])}, which may drop "
                f"{self._edge(now.tag)}: a body sends before its stage runs the micro-batch again"
            )
        if isinstance(now, Send):
            return f"comes before {_run(now, self.facts.keys[other])} makes {self._edge(now.tag)}"
        if rule == walk.RECEIVE:
            return f"needs {self._edge(other)}, but {Recv(other, now.mb)} does not come before"
        if rule == walk.FREE_UNSENT:
            send = Send(other, now.mb)
            return f"comes before {send}, so {self._edge(other)} is freed while needed"
        assert isinstance(now, (Run, Free))
        key = self.facts.keys[other]
        if rule == walk.BODY:
            what = self._needed(now.key, key)
            return f"needs {what}, but {_run(now, key)} does not come before"
        if rule == walk.FREE_EARLY:
            return f"comes before {_run(now, key)}"
        first = Free(key.stage, key.phase, now.mb, key.segment)
        return f"comes before {first}: a stage frees a micro-batch in the order of its runs"

    def _needed(self, now: BodyKey, earlier: BodyKey) -> str:
        """What a body needs of an earlier one of its rank."""
        for edge in self.facts.edges:
            if (edge.src, edge.dst) == (earlier, now):
                return self._edge(edge.tag)
        if earlier.phase == now.phase:
            way = "rise" if now.phase == FORWARD else "fall"
            return f"segment {earlier.segment} first, as {now.phase} segments {way}"
        if earlier.phase == FORWARD:
            return "what its forward run keeps"
        return "what its input-gradient run keeps"

    def _overtaken(self, tag: int, index: int) -> str:
        """Why a receive is wrong where its channel's message of this index is to be received."""
        tags = np.flatnonzero(self.net.channel == self.net.channel[tag])
        sent = self.sent.reshape(-1, self.mbs)[tags]
        row, mb = (int(i[0]) for i in np.nonzero(sent == index))
        first = Send(int(tags[row]), mb)
        source, target = self._ends(tag)
        return (
            f"of {self._edge(tag)} is out of order: of the messages from rank {source} to rank "
            f"{target}, {first} of {self._edge(first.tag)} is next"
        )

    def _collectives(self) -> list[list[tuple[int, Collective]]]:
        """The collectives of every rank, each after its step; they are the same on all ranks."""
        start, codes, tags = self.tape
        places = np.flatnonzero(codes == COLLECTIVE)
        own = [
            [(int(place - begin), Collective(int(tags[place]))) for place in here]
            for begin, here in zip(
                start, np.split(places, np.searchsorted(places, start[1:-1])), strict=False
            )
        ]
        for rank, here in enumerate(own):
            for at, (first, mine) in enumerate(zip_longest(own[0], here)):
                if first is None:
                    self._fail(rank, mine[0], f"is one too many: rank 0 does {at} collectives")
                if mine is None:
                    self._fail(0, first[0], f"is one too many: rank {rank} does {at} collectives")
                if first[1] != mine[1]:
                    why = f"meets {first[1]} of rank 0, step {first[0]}: all ranks do the same ones"
                    self._fail(rank, mine[0], f"{why}, in one order")
        return own

    def _updates(self, collectives: list[list[tuple[int, Collective]]]) -> None:
        """A stage's update comes last, after a reduction of its gradients; all stages or none."""
        updates = self.steps.update
        updated = np.flatnonzero(updates >= 0)
        if not len(updated):
            return
        runs, frees = (
            table.reshape(-1, self.mbs).max(1) for table in (self.steps.run, self.steps.free)
        )
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
        """An update at this step, and the steps of the last run and free of a body of its stage."""
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

    def _stuck(self, capacity: int, state: walk.State) -> str:
        lines = ["no rank can go on:"]
        for rank, program in enumerate(self.programs):
            step = int(state.at[rank] - self.tape.start[rank])
            if step == len(program):
                lines.append(f"  rank {rank}: is at its end")
            else:
                now = program[step]
                why = self._waits_for(now, capacity, state)
                lines.append(f"  rank {rank}, step {step}: {now} waits {why}")
        return "\n".join(lines)

    def _waits_for(self, now: Instruction, capacity: int, state: walk.State) -> str:
        if isinstance(now, Recv):
            return "for " + ", ".join(
                f"{Send(tag, now.mb)} of rank {self._ends(tag)[0]} ({self.facts.edges[tag].value})"
                for tag in self._awaited(now, state)
            )
        if isinstance(now, Free):
            body = self.facts.keys.index(now.key)
            return "until " + ", ".join(
                f"rank {self._ends(tag)[1]} takes {Send(tag, now.mb)}"
                for tag in self.facts.outgoing[body]
                if self.net.exchange[self.net.channel[tag]] < 0
                and self.sent[tag * self.mbs + now.mb]
                >= state.taken[self.net.channel[tag]] + capacity
            )
        return "for the other ranks"

    def _awaited(self, now: Recv, state: walk.State) -> list[int]:
        """The edges whose sends a receive waits for: all that are missing of an exchange."""
        edges = self.facts.edges
        name = edges[now.tag].exchange
        tags = [e.tag for e in edges if name and e.exchange == name] or [now.tag]
        return [
            tag
            for tag in tags
            if self.net.channel[tag] >= 0
            and self.steps.send[tag * self.mbs + now.mb]
            >= state.at[self._ends(tag)[0]] - self.tape.start[self._ends(tag)[0]]
        ]


def _first_missing(table: Ints) -> int:
    """Where something has no step; -1 if nowhere."""
    index = int(table.argmin()) if len(table) else -1
    return index if index >= 0 and table[index] < 0 else -1


def _run(now: Run | Free | Send | Recv, key: BodyKey) -> Run:
    """The run of a body on the micro-batch of an instruction."""
    return Run(key.stage, key.phase, now.mb, key.segment)
