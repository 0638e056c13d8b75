"""The memory account: every byte by hand, and the same as a slow count of random schedules."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from partitioner.base.chain import chain
from partitioner.base.types import BodyKey
from partitioner.memory.memory_plan import BodyMemory, MemoryPlan
from runtime.planning.memory.tree_sum import TreeSum
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import Free, Instruction, Recv, Run
from runtime.schedule.lowering.lower import lower
from runtime.schedule.program import Schedule
from runtime.schedule.replay.memory import memory_profile, peak_in_flight
from runtime.schedule.text import parse
from symgraph.core.errors import ScheduleError
from tests.runtime.schedule.slow_simulator import RandomCase, random_case

PAIR = chain((0, 1), nbytes=100)  # edge 0 forward, edge 1 back
PLAN = MemoryPlan(
    {
        BodyKey(0, "F"): BodyMemory(top=10, kept=3, sending=5),
        BodyKey(0, "B"): BodyMemory(top=20, kept=-103, sending=0, sums=1000),
        BodyKey(1, "F"): BodyMemory(top=40, kept=7, sending=0),
        BodyKey(1, "B"): BodyMemory(top=80, kept=-107, sending=2, sums=2000),
    },
    parameters=(10_000, 20_000),
    optimizer=(30_000, 40_000),
    scratch=(100_000, 0),
)
LINES = [
    "0F0 S0.0 0F1 S0.1 R1.0 D0F0 0B0 D0B0 R1.1 D0F1 0B1 D0B1",
    "R0.0 1F0 D1F0 1B0 S1.0 R0.1 1F1 D1F1 D1B0 1B1 S1.1 D1B1",
]


# -- by hand --------------------------------------------------------------------------------------


def test_what_is_held_after_every_instruction():
    first, second = memory_profile(parse(LINES), PAIR, PLAN, 2)
    assert (first.profile - 140_000).tolist() == [
        8,
        8,
        16,
        16,
        116,
        111,
        1008,
        1008,
        1108,
        1103,
        1000,
        1000,
    ]
    assert (second.profile - 60_000).tolist() == [
        100,
        107,
        107,
        2002,
        2002,
        2102,
        2109,
        2109,
        2107,
        2002,
        2002,
        2000,
    ]


def test_the_worst_moment_and_what_it_is_made_of():
    """The first backward run: its gradients, and the partial sums that begin as their copies."""
    first, second = memory_profile(parse(LINES), PAIR, PLAN, 2)
    assert (first.at, second.at) == (Run(0, "B", 0), Run(1, "B", 0))
    assert (first.parameters, first.optimizer, first.scratch) == (10_000, 30_000, 100_000)
    assert (first.gradients, first.activations, first.transient) == (1000, 6, 100 + 5 + 20)
    assert (second.gradients, second.activations, second.transient) == (2000, 107, 80)
    assert first.peak == 140_000 + 1131
    assert second.peak == 60_000 + 2187


def test_early_messages_are_held_since_the_run_before():
    plan = replace(PLAN, early=frozenset([0, 1]))
    first, second = memory_profile(parse(LINES), PAIR, plan, 2)
    assert (first.profile - 140_000).tolist() == [
        8,
        8,
        116,
        116,
        116,
        111,
        1108,
        1108,
        1108,
        1103,
        1000,
        1000,
    ]
    assert (second.profile - 60_000).tolist() == [
        100,
        107,
        107,
        2102,
        2102,
        2102,
        2109,
        2109,
        2107,
        2002,
        2002,
        2000,
    ]
    assert first.at == Run(0, "B", 0)
    assert first.transient == 100 + 5 + 20 + 100
    assert memory_profile(parse(LINES), PAIR, replace(PLAN, early=frozenset([0])), 2) == (
        memory_profile(parse(LINES), PAIR, PLAN, 2)[0],
        second,
    )


def test_a_receive_or_the_end_of_a_run_can_be_the_worst_moment():
    bodies = {key: BodyMemory(0, 0) for key in PAIR.bodies}
    bodies[BodyKey(0, "F")] = BodyMemory(1, 50)
    plan = MemoryPlan(bodies, (0, 0), (0, 0), (0, 0))
    first, second = memory_profile(parse(["0F0", "R0.0 1F0"]), PAIR, plan, 1)
    assert (first.at, first.peak, first.activations) == (Run(0, "F", 0), 50, 50)
    assert (second.at, second.peak, second.transient) == (Recv(0, 0), 100, 100)


def test_the_first_of_equal_moments_is_named():
    bodies = {key: BodyMemory(5, 0) for key in PAIR.bodies}
    plan = MemoryPlan(bodies, (1, 2), (3, 4), (0, 1))
    found = memory_profile(parse(["0F0 0F1", "1F0"]), PAIR, plan, 2)
    assert [(m.at, m.peak) for m in found] == [(Run(0, "F", 0), 9), (Run(1, "F", 0), 12)]


def test_an_idle_rank_holds_its_parameters():
    found = memory_profile(Schedule.of([[], []]), PAIR, PLAN, 1)
    assert [(m.at, m.peak) for m in found] == [(None, 140_000), (None, 60_000)]
    assert not any(len(m.profile) for m in found)


@pytest.mark.parametrize("mbs", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("seed", range(4))
def test_partial_sums_are_counted_as_they_are_summed(mbs, seed):
    """Backward runs in any order leave as many sums waiting as TreeSum does."""
    order = random.Random(seed).sample(range(mbs), mbs)
    topology = chain([0])
    key = BodyKey(0, "B")
    plan = MemoryPlan(
        {BodyKey(0, "F"): BodyMemory(0, 0), key: BodyMemory(0, 0, sums=1)}, (0,), (0,), (0,)
    )
    sums, waiting = TreeSum(mbs), []
    for mb in order:
        sums.add(mb)
        waiting.append(len(sums.waiting))
    (found,) = memory_profile(Schedule.of([[Run(0, "B", mb) for mb in order]]), topology, plan, mbs)
    assert found.profile.tolist() == waiting
    assert found.gradients == found.peak == max(waiting)


# -- the same as a slow count ---------------------------------------------------------------------


def slow_profile(case: RandomCase, plan: MemoryPlan, rank: int) -> tuple[list[int], list[int]]:
    """What is held after each instruction, and the most at or during each."""
    static = plan.parameters[rank] + plan.optimizer[rank] + plan.scratch[rank]
    held, after, most = static, [], []
    sums = {key: TreeSum(case.mbs) for key in plan.bodies}
    partial = dict.fromkeys(plan.bodies, 0)
    edges, program, ran = case.topology.edges, case.programs[rank], False
    for place, now in enumerate(program):
        running = 0
        if isinstance(now, Recv):
            held += 0 if ran and now.tag in plan.early else edges[now.tag].type.nbytes
        elif isinstance(now, Run):
            ran = True
            came = [recv.tag for recv in received(program[place + 1 :])]
            held += sum(edges[tag].type.nbytes for tag in came if tag in plan.early)
            body = plan.bodies[now.key]
            sums[now.key].add(now.mb)
            count = len(sums[now.key].waiting)
            copied = max(0, count - partial[now.key]) if case.mbs > 1 else 0
            running = held + body.top + copied * body.sums
            held += body.kept + body.sending + (count - partial[now.key]) * body.sums
            partial[now.key] = count
        elif isinstance(now, Free):
            held -= plan.bodies[now.key].sending
        after.append(held)
        most.append(max(held, running))
    return after, most


def received(program: Sequence[Instruction]) -> list[Recv]:
    """The receives before the next run."""
    until = next((i for i, now in enumerate(program) if isinstance(now, Run)), len(program))
    return [now for now in program[:until] if isinstance(now, Recv)]


@pytest.mark.slow
def test_random_schedules_hold_what_a_slow_count_says():
    for seed in range(150):
        rng = random.Random(seed)
        case = random_case(rng)
        plan = MemoryPlan(
            {
                key: BodyMemory(
                    rng.randint(0, 99),
                    rng.randint(-20, 30),
                    rng.randint(0, 9),
                    rng.choice([0, rng.randint(1, 50)]),
                )
                for key in case.topology.bodies
            },
            *[tuple(rng.randint(0, 99) for _ in range(case.topology.ranks)) for _ in range(3)],
            frozenset(e.tag for e in case.topology.edges if rng.random() < 0.5),
        )
        found = memory_profile(Schedule.of(case.programs), case.topology, plan, case.mbs)
        for rank, memory in enumerate(found):
            after, most = slow_profile(case, plan, rank)
            assert memory.profile.tolist() == after
            if most:
                assert memory.peak == max(most)
                assert memory.at == case.programs[rank][most.index(max(most))]


# -- micro-batches in flight ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ranks", "mbs", "peaks"),
    [
        ("gpipe", 4, 8, [8, 8, 8, 8]),
        ("1f1b", 4, 8, [4, 3, 2, 1]),
        ("1f1b", 4, 2, [2, 2, 2, 1]),
        ("1f1b", 8, 32, [8, 7, 6, 5, 4, 3, 2, 1]),
    ],
)
def test_most_in_flight(name, ranks, mbs, peaks):
    """Pipelines 6: gpipe holds all micro-batches, 1f1b as many as there are stages to the end."""
    topology = chain(range(ranks))
    assert peak_in_flight(lower(topology, SCHEDULES[name](range(ranks), mbs)), topology) == peaks


def test_zb_h1_holds_as_many_everywhere_as_1f1b_at_its_worst():
    """Until the weight gradients are there: [4, 4, 4, 4] for p=4, m=8."""
    topology = chain(range(4), split=True)
    schedule = lower(topology, SCHEDULES["zb-h1"](range(4), 8))
    assert peak_in_flight(schedule, topology) == [4, 4, 4, 4]


def test_segments_of_a_micro_batch_are_one():
    topology = chain((0, 1), segments=2)
    lines = ["0F0 0F0.1 0F1 0F1.1 0B0.1 0B0 0F2 0B1.1 0B1", "1F0 1F0.1 1B0.1 1B0 1F1 1B1.1 1B1"]
    assert peak_in_flight(parse(lines), topology) == [2, 1]


def test_several_stages_of_a_rank_add_up():
    """Chunks of a looped pipeline: (stage, micro-batch) pairs."""
    topology = chain((0, 0))
    assert peak_in_flight(parse(["0F0 1F0 0F1 1B0 0B0 1F1 1B1 0B1"]), topology) == [3]


def test_forward_alone_holds_nothing():
    topology = chain((0, 1), train=False)
    assert peak_in_flight(parse(["0F0 0F1", "1F0 1F1"]), topology) == [0, 0]


def test_random_schedules_have_in_flight_what_a_slow_count_says():
    for seed in range(100):
        case = random_case(random.Random(seed))
        bodies = {key for key in case.topology.bodies if key.phase != "F"}
        wanted = []
        for program in case.programs:
            runs = [now for now in program if isinstance(now, Run)]
            forward: set[tuple[int, int]] = set()
            most = 0
            for at, now in enumerate(runs):
                if now.phase == "F":
                    forward.add((now.stage, now.mb))
                left = {(r.stage, r.mb) for r in runs[at + 1 :] if r.key in bodies}
                most = max(most, len(forward & left))
            wanted.append(most)
        assert peak_in_flight(Schedule.of(case.programs), case.topology) == wanted


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["1F0", "2F0", "0F0.1", "0I0", "0F2", "D1F0", "R9.0"])
def test_instructions_that_are_not_the_ranks(bad):
    with pytest.raises(
        ScheduleError,
        match=f"rank 0, step 1: {bad} cannot stand there; `check` the schedule of 2 micro-b",
    ):
        memory_profile(parse([f"0F0 {bad}", "1F0"]), PAIR, PLAN, 2)


def test_other_numbers_of_ranks_and_stages():
    with pytest.raises(ScheduleError, match="1 program for 2 ranks"):
        memory_profile(parse(["0F0"]), PAIR, PLAN, 1)
    with pytest.raises(
        ScheduleError, match="rank 1 runs a stage or micro-batch that does not exist"
    ):
        peak_in_flight(parse(["0F0", "7F0"]), PAIR)
