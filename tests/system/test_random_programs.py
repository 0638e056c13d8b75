"""Random runs of schedules, and random programs that are in no schedule, on the fake cluster.

What the check accepts ends with the same bits, whoever is late and whatever channels hold; what
it rejects as a deadlock hangs, at instructions that the check names, which is found at once.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pytest

from partitioner.base.types import BodyKey
from runtime.engine.worker import Worker
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import Collective, Free, Recv, Run, Send
from runtime.schedule.program import Program, Schedule
from runtime.schedule.replay import check
from runtime.transports import Transport
from symgraph.core.context import cpu
from symgraph.core.errors import PeerFailed, ScheduleError
from tests.fakes.fake_cluster import FakeCluster
from tests.helpers.networks import random_case, random_groups
from tests.helpers.pipelines import (
    Case,
    Result,
    assert_same_bits,
    local_result,
    make_plan,
    merged,
    on_threads,
    run_step,
)
from tests.helpers.recurrent import lstm_case

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")

CAPACITIES = (0, 1, 2, None)
NAMES = tuple(SCHEDULES)


class Sample(NamedTuple):
    """A network, a plan for it on several ranks, and what one rank alone computes."""

    case: Case
    plan: Plan
    alone: Result


@cache
def sample(number: int) -> Sample:
    """Network, placement, micro-batches and time segments at random; schedules take turns."""
    rng = random.Random(number)
    devices = rng.randint(2, 4)
    if number % 2:
        layers, steps = rng.randint(2, 3), rng.randint(2, 4)
        case = lstm_case(layers, steps, batch=5, hidden=2, seed=number)
        names = [*(f"layer{layer}" for layer in range(layers)), "head"]
        groups = {name: cpu(rng.randrange(devices)) for name in names}
    else:
        case, groups = random_case(number), random_groups(number, devices)
    mbs, segment = rng.choice([1, 2, 3, 5]), rng.choice([None, 1, 2])
    ranks, name = tuple(map(cpu, range(devices))), NAMES[number % len(NAMES)]
    made = make_plan(case, Options(groups, cpu(0), ranks, name, mbs, time_segment=segment))
    alone = Options(micro_batches=mbs, time_segment=segment)
    return Sample(case, made, on_threads(case, alone))


@pytest.mark.every(21)
@pytest.mark.parametrize("number", range(64))
def test_delays_and_capacities_change_no_bit(number):
    """512 runs in all (PiPPy#1088: results changed with who was late)."""
    case, plan, alone = sample(number)
    for run in range(8):
        capacity = CAPACITIES[run % len(CAPACITIES)]
        with FakeCluster(plan.partition.placement.ranks, capacity, seed=run) as cluster:
            assert_same_bits(merged(run_step(plan, case, cluster)), alone)


# -- random programs -----------------------------------------------------------------------------


def verdict(schedule: Schedule, plan: Plan, capacity: int | None) -> str | None:
    """What the check says: "" of a good one, where all stand in a deadlock, None of others."""
    try:
        check(schedule, plan.partition, len(plan.sizes), capacity=capacity)
    except ScheduleError as error:
        return str(error) if "no rank can continue" in str(error) else None
    return ""


def moved(schedule: Schedule, rng: random.Random) -> Schedule:
    """A few instructions of one rank are elsewhere, near or far."""
    rank, length = some_rank(schedule, rng)
    start, count = rng.randrange(length), rng.choice([1, 1, 1, 2, 4, 8])
    near = max(0, start + rng.randint(-2, 2))
    return put(
        schedule, rank, slice(start, start + count), rng.choice([near, rng.randrange(length)])
    )


def hastened(schedule: Schedule, rng: random.Random) -> Schedule:
    """One rank waits for others sooner."""
    rank, _ = some_rank(schedule, rng)
    waits = [
        step
        for step, instruction in enumerate(schedule.programs[rank])
        if isinstance(instruction, (Recv, Free, Collective))
    ]
    step = rng.choice(waits)
    return put(schedule, rank, slice(step, step + 1), rng.randint(0, step))


def some_rank(schedule: Schedule, rng: random.Random) -> tuple[int, int]:
    """A rank that does more than a collective, and how much."""
    lengths = {rank: len(program) for rank, program in enumerate(schedule.programs)}
    return rng.choice([(rank, length) for rank, length in lengths.items() if length > 1])


def put(schedule: Schedule, rank: int, part: slice, at: int) -> Schedule:
    """A part of one rank's program is elsewhere: at that step of the rest."""
    programs = list(schedule.programs)
    program = list(programs[rank])
    taken = program[part]
    del program[part]
    program[at:at] = taken
    programs[rank] = Program.of(program)
    return Schedule(tuple(programs))


def exchanged(schedule: Schedule, rng: random.Random) -> Schedule:
    """Two messages of one rank are in each other's place, at both ends."""
    programs = [list(program) for program in schedule.programs]
    sends = [i for i in rng.choice(programs) if isinstance(i, Send)]
    if len(sends) < 2:
        return schedule
    a, b = rng.sample(sends, 2)
    for one, other in ((a, b), (Recv(a.tag, a.mb), Recv(b.tag, b.mb))):
        for program in programs:
            if one in program and other in program:
                i, j = program.index(one), program.index(other)
                program[i], program[j] = other, one
    return Schedule.of(programs)


def eager(plan: Plan, schedule: Schedule, rng: random.Random) -> Schedule:
    """One rank frees as soon as it may, and so waits soonest for its messages to be taken."""
    partition, programs = plan.partition, list(schedule.programs)
    rank = rng.randrange(len(programs))
    sends: dict[BodyKey, list[int]] = {}
    for edge in partition.edges:
        if partition.crosses(edge):
            sends.setdefault(edge.src, []).append(edge.tag)
    frees = [i for i in programs[rank] if isinstance(i, Free)]
    program = [i for i in programs[rank] if not isinstance(i, Free)]
    for free in reversed(frees):
        needs = [Run(free.stage, free.phase, free.mb, free.segment)]
        needs += [Send(tag, free.mb) for tag in sends.get(free.key, ())]
        program.insert(1 + max(map(program.index, needs)), free)
    programs[rank] = Program.of(program)
    return Schedule(tuple(programs))


def random_schedule(plan: Plan, capacity: int | None, rng: random.Random) -> tuple[Schedule, str]:
    """The plan's schedule, changed over and over; what the check says of it.

    Now and then all ranks meet once besides. Changes that the check refuses are undone. So are
    those that hang, but for one that is wished for, after which nothing is changed.
    """
    meeting = [Collective()] * (rng.random() < 0.2)
    schedule = Schedule.of([*program, *meeting] for program in plan.schedule.programs)
    may_hang, for_room_only = rng.random() < 0.8, rng.random() < 0.5
    for _ in range(rng.randint(20, 80)):
        change = rng.choice([moved, moved, hastened, exchanged, partial(eager, plan)])
        new = change(schedule, rng)
        text = verdict(new, plan, capacity)
        if text == "":
            schedule = new
        elif text and may_hang and (wants_room(new, plan) or not for_room_only):
            return new, text
    return schedule, ""


def wants_room(schedule: Schedule, plan: Plan) -> bool:
    """Whether it would end if channels held more."""
    return verdict(schedule, plan, None) == ""


class Reducer:
    """An updater that lets collectives wait for all ranks."""

    groups = ()

    def reduce(self, worker: Worker) -> None:
        total = np.ones(1)
        worker.transport.allreduce(total)
        assert total[0] == worker.transport.size

    def update(self, worker: Worker, stage: int) -> None:
        raise AssertionError("the programs have no updates")


def run_schedule(schedule: Schedule, plan: Plan, case: Case, cluster: FakeCluster) -> Result:
    found: dict[int, Result] = {}

    def work(transport: Transport) -> None:
        worker = Worker(plan, transport.rank, case.arrays, schedules=[schedule])
        worker.step(transport, case.feeds, updater=Reducer())
        found[transport.rank] = local_result(worker.plan, worker)

    cluster.run(work)
    return merged(found)


def stands(text: str) -> dict[str, str]:
    """Rank -> the instruction at which it stands, from the check's error or the cluster's."""
    patterns = (
        r"  rank (\d+), step \d+: (\S+) waits",
        r"  rank (\d+) waits .* \((\S+) \(step",
        r"  rank (\d+) has (?:ended|finished)()",
    )
    return {rank: at for pattern in patterns for rank, at in re.findall(pattern, text)}


@pytest.mark.slow
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_programs_hang_if_and_only_if_the_check_says_so(capacity):
    """The random schedules have at least eight of each outcome."""
    outcomes = Counter[str]()
    rng = random.Random(f"{capacity}")
    for case, plan, alone in map(sample, range(24, 44)):
        ranks = plan.partition.placement.ranks
        for seed in range(8):
            schedule, text = random_schedule(plan, capacity, rng)
            with FakeCluster(ranks, capacity, seed) as cluster:
                if text:
                    with pytest.raises(PeerFailed, match="ranks that wait for ever") as caught:
                        run_schedule(schedule, plan, case, cluster)
                    found, wanted = stands(str(caught.value)), stands(text)
                    assert len(found) > 1  # not all: others may be at work when it is found
                    assert found.items() <= wanted.items()
                    assert len(wanted) == ranks
                    outcomes["wants room" if wants_room(schedule, plan) else "hangs"] += 1
                else:
                    assert_same_bits(run_schedule(schedule, plan, case, cluster), alone)
                    outcomes["ends"] += 1
    kinds = ["ends", "hangs", *([] if capacity is None else ["wants room"])]
    assert min(outcomes[outcome] for outcome in kinds) >= 8, outcomes
