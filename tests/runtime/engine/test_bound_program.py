"""Where early messages come in the arena, and from when on their places are free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from partitioner.base.types import Partition
from partitioner.memory.memory_plan import early_messages
from runtime.backends.device import arrays
from runtime.engine.bound_program import BoundProgram, Call, beside_work
from runtime.planning.memory.arena import Message, reserve
from runtime.planning.plan import Plan
from runtime.planning.step import StepBatches
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import Free, Instruction, Recv, Run
from runtime.schedule.program import Program
from symgraph import cpu, gpu
from symgraph.core.context import Context
from tests.helpers.pipelines import make_plan, on_devices
from tests.helpers.recurrent import lstm_case

Bytes = tuple[object, int, int]  # whose they are, where they begin and end
CASE = lstm_case(4, 6, batch=8)


def planned(schedule: str, **how) -> Plan:
    """For two ranks."""
    groups = {f"layer{i}": cpu(i // 2) for i in range(4)} | {"head": cpu(1)}
    return make_plan(CASE, on_devices(2, groups, schedule, 4, **how))


def moved(partition: Partition, *devices: Context) -> Partition:
    """To other devices, rank by rank."""
    return replace(partition, placement=replace(partition.placement, devices=devices))


class Rank:
    """The arena of a rank, as its worker makes it if the ranks have such devices."""

    def __init__(self, plan: Plan, rank: int, *devices: Context) -> None:
        self.parts = StepBatches((plan,))
        self.program = plan.schedule.programs[rank]
        cuts = {kind: moved(cut, *devices) for kind, cut in self.parts.partitions.items()}
        self.arena = reserve(
            [self.program], rank, cuts, self.parts.kinds, self.parts.grads, plan.parameters
        )

    def message(self, tag: int, mb: int) -> Bytes:
        kind = self.parts.kinds[mb]
        (edge,) = (e for e in self.parts.partitions[kind].edges if e.tag == tag)
        root, offset = self.arena.layouts[kind].places[edge.dst.stage, edge.value]
        begin = self.arena.at[mb, root] + offset
        return (mb, root), begin, begin + edge.type.nbytes

    def used(self, instruction: Instruction) -> Iterator[Bytes]:
        """What a run or free may use."""
        if not isinstance(instruction, (Run, Free)):
            return
        arena, key, mb = self.arena, instruction.key, instruction.mb
        layout = self.arena.layouts[self.parts.kinds[mb]]
        for number, root in enumerate(layout.roots):
            of = root.bodies if isinstance(instruction, Run) else root.sends
            if key in of and (mb, number) in arena.at:
                begin = arena.at[mb, number]
                yield (mb, number), begin, begin + root.nbytes
        if isinstance(instruction, Run):
            begin = arena.scratch[key, mb]
            yield "scratch", begin, begin + layout.scratch[key]
            sizes = dict(zip(arena.sums, arena.needs[0], strict=True))
            for name, step in arena.adding.get((key, mb), ()):
                for partial in {step.number, getattr(step, "into", step.number)}:
                    if (name, partial) in sizes:
                        begin = arena.sums[name, partial]
                        yield "sums", begin, begin + sizes[name, partial].nbytes


@pytest.mark.every(4)
@pytest.mark.parametrize("segment", [None, 2])
@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_a_place_is_free_when_nobody_else_uses_it_and_before_the_last_run(schedule, segment):
    plan = planned(schedule, time_segment=segment)
    count = 0
    for rank in range(2):
        here = Rank(plan, rank, gpu(0), gpu(1))
        used = np.zeros(here.arena.nbytes, np.int64)  # each byte's last instruction so far
        owners = np.zeros(here.arena.nbytes, np.int64)
        number: dict[object, int] = {}
        ran = 0
        for now, instruction in enumerate(here.program, 1):
            for owner, begin, end in here.used(instruction):
                used[begin:end] = now
                owners[begin:end] = number.setdefault(owner, len(number) + 1)
            if isinstance(instruction, Run):
                ran = now
            if isinstance(instruction, Recv):
                free = here.arena.free[instruction.tag, instruction.mb]
                owner, begin, end = here.message(instruction.tag, instruction.mb)
                own = number.setdefault(owner, len(number) + 1)
                others = used[begin:end][owners[begin:end] != own]
                assert others.max(initial=0) <= free < (ran or now)
                used[begin:end], owners[begin:end] = now, own
                count += free > 0
    assert count


def test_messages_of_cpus_come_when_they_are_taken():
    plan = planned("1f1b")
    first = plan.partition
    into = {rank: {e.tag for e in first.edges if first.rank(e.dst) == rank} for rank in range(2)}
    assert early_messages(first) == frozenset()
    assert early_messages(moved(first, cpu(0), gpu(0))) == into[1]
    assert early_messages(moved(first, gpu(0), cpu(0))) == into[0]
    host = Rank(plan, 1, gpu(0), cpu(0))
    assert host.arena.free == {}
    assert host.arena.nbytes <= Rank(plan, 1, cpu(0), gpu(0)).arena.nbytes
    assert arrays.HOST.receive_stream is None


def test_messages_of_an_exchange_come_when_it_is_taken():
    plan = planned("1f1b")
    edges = tuple(replace(edge, exchange="together") for edge in plan.partition.edges)
    assert early_messages(moved(replace(plan.partition, edges=edges), gpu(0), gpu(1))) == set()


class Stream:
    """Notes what is asked of a receive stream."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._events = 0

    def event(self) -> str:
        self._events += 1
        return f"e{self._events}"

    def record(self, event: str) -> None:
        self.done.append(event)

    def receive(self, call, free: str | None) -> None:
        call()
        self.done[-1] += f" after {free}" if free else " at once"


def asked(instructions: list[Instruction], free: dict[Message, int], *bundles: list[int]) -> list:
    """What is asked of the receive stream by a program that comes after ten other instructions."""
    stream = Stream()
    calls: list[Call | None] = [lambda text=str(i): stream.done.append(text) for i in instructions]
    for _, *others in bundles:
        for place in others:
            calls[place] = None
    by_first = {places[0]: places for places in bundles}
    bound = BoundProgram(Program.of(instructions), calls, by_first)
    for call in beside_work(stream, bound, free, begin=10).calls:
        if call is not None:
            call()
    return stream.done


def test_only_what_receives_wait_for_is_recorded():
    """The stream goes in order, so what an earlier receive has waited for needs no event."""
    program = [
        Run(0, "F", 0),
        Recv(5, 0),
        Run(0, "F", 1),
        Recv(5, 1),
        Recv(6, 1),
        Run(0, "F", 2),
        Recv(5, 2),
        Recv(7, 2),
    ]
    free: dict[Message, int] = {(5, 0): 0, (5, 1): 11, (6, 1): 11, (5, 2): 10}
    assert asked(program, free) == [
        "0F0",
        "e1",
        "R5.0 at once",
        "0F1",
        "R5.1 after e1",
        "R6.1 at once",
        "0F2",
        "R5.2 at once",
        "R7.2",
    ]


def test_messages_that_travel_together_wait_until_all_their_places_are_free():
    """Also where memory is freed, or another message comes, between them."""
    program = [
        Run(0, "F", 0),
        Run(0, "F", 1),
        Recv(5, 1),
        Free(0, "F", 0),
        Recv(8, 1),
        Recv(6, 1),
        Recv(7, 1),
    ]
    free: dict[Message, int] = {(5, 1): 0, (6, 1): 11, (7, 1): 8, (8, 1): 9}
    assert asked(program, free, [2, 5, 6]) == [
        "0F0",
        "e1",
        "0F1",
        "R5.1 after e1",
        "D0F0",
        "R8.1 at once",
    ]
