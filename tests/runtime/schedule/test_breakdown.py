"""The breakdown: every tick of a rank in one column; and what the makespan comes from."""

from __future__ import annotations

import random
from dataclasses import astuple
from fractions import Fraction
from itertools import pairwise
from math import inf

import pytest

from partitioner.base.chain import chain
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import Collective, Recv, Run, Send
from runtime.schedule.lowering.lower import lower
from runtime.schedule.message_costs import Link
from runtime.schedule.program import Schedule
from runtime.schedule.replay.simulation import Costs, simulate
from runtime.schedule.text import parse
from runtime.schedule.timeline import EMPTY, Timeline
from runtime.schedule.views.breakdown import RankTime, breakdown, critical_path
from tests.runtime.schedule.slow_simulator import random_amounts, random_case
from tests.runtime.schedule.test_timeline import MILLI, PAIR, track

TWO = chain((0, 1), nbytes=6)


def rank_time(**seconds: float) -> RankTime:
    names = ("compute", "communication", "warm_up", "drain", "imbalance", "dispatch")
    return RankTime(**{name: pytest.approx(seconds.get(name, 0.0)) for name in names})


# -- by hand --------------------------------------------------------------------------------------


def test_a_simulated_pipeline():
    """Forward 1, backward 2, a message 1/4 on its way and 1/2 to copy.

    rank 0   F0 0-1, F1 1-2, R1.0 2-5.5 (posted at 4.75), B0 5.5-7.5, R1.1 7.5-9 (posted at 8.25),
             B1 9-11, U 11-14
    rank 1   R0.0 0-1.75, F0 1.75-2.75, B0 2.75-4.75, R0.1 4.75-5.25, F1 5.25-6.25, B1 6.25-8.25,
             C 8.25-11, U 11-14
    """
    lines = [
        "0F0 S0.0 0F1 S0.1 R1.0 0B0 D0F0 D0B0 R1.1 0B1 D0F1 D0B1 C U0",
        "R0.0 1F0 1B0 S1.0 R0.1 1F1 1B1 S1.1 D1F0 D1B0 D1F1 D1B1 C U1",
    ]
    seconds = lambda key: 1 if key.phase == "F" else 2  # noqa: E731
    costs = Costs(seconds, Link(Fraction(1, 4)), copy=12, update=lambda stage: 3)
    found = simulate(parse(lines), TWO, costs)
    assert found.exact == 14
    assert breakdown(found, TWO) == (
        rank_time(compute=9, communication=0.75 + 0.75, imbalance=2.75 + 0.75),
        rank_time(compute=9, warm_up=1.75, communication=0.5, drain=2.75),
    )


def test_overhead_is_dispatch_and_a_rank_that_ends_early_drains():
    lines = ["0F0 S0.0 D0F0", "R0.0 1F0 D1F0"]
    found = simulate(parse(lines), TWO, Costs(lambda key: 1, overhead=Fraction(1, 2)))
    # rank 0: 0F0 .5-1.5, S at 2, D at 2.5; rank 1: R .5-2, 1F0 2.5-3.5, D at 4
    assert breakdown(found, TWO) == (
        rank_time(compute=1, dispatch=1.5, drain=1.5),
        rank_time(compute=1, dispatch=1.5, warm_up=1.5),
    )


def test_a_measured_run():
    """Posting is dispatch too; the receive of 470 ms waits 430 ms until the gradient is posted."""
    assert breakdown(PAIR, TWO) == (
        rank_time(compute=0.444, communication=0.04, imbalance=0.43, dispatch=0.036),
        rank_time(compute=0.4, warm_up=0.225, drain=0.29, dispatch=0.035),
    )


def test_collectives_and_frees_that_wait_between_runs_are_imbalance():
    timeline = Timeline(
        (track("0F0 C0 D0F0 0F1", (0, 2), (2, 5), (5, 9), (9, 10)), track("C", (0, 5))), Fraction(1)
    )
    assert breakdown(timeline, TWO) == (
        rank_time(compute=3, imbalance=7),
        rank_time(warm_up=5, drain=5),
    )


def test_a_rank_of_another_process():
    """Nothing is known of it; what it sends counts as posted."""
    timeline = Timeline((track("0F0 R1.0 0B0", (0, 2), (2, 5), (5, 9)), EMPTY), MILLI)
    assert breakdown(timeline, TWO) == (
        rank_time(compute=0.006, communication=0.003),
        rank_time(drain=0.009),
    )


# -- properties -----------------------------------------------------------------------------------


def test_the_parts_of_every_rank_sum_to_the_makespan():
    """Costs are multiples of 1/64, so sums of floats are exact."""
    for seed in range(100):
        rng = random.Random(seed)
        case = random_case(rng)

        def number(rng: random.Random = rng) -> Fraction:
            return Fraction(rng.randint(0, 200), 64)

        amounts = random_amounts(
            case.topology, rng, number, lambda a, _, name, *on: Link(a, inf, name, (), on[-1])
        )
        costs = Costs(**{**amounts, "copy": 16})
        found = simulate(Schedule.of(case.programs), case.topology, costs, capacity=case.capacity)
        parts = breakdown(found, case.topology)
        assert len(parts) == case.topology.ranks
        for part, program in zip(parts, case.programs, strict=True):
            assert sum(astuple(part)) == found.makespan
            assert min(astuple(part)) >= 0
            assert part.dispatch == costs.overhead * len(program)


def test_a_pipeline_of_equal_stages_only_warms_up_and_drains():
    topology = chain(range(4))
    schedule = lower(topology, SCHEDULES["gpipe"](range(4), 8))
    found = simulate(schedule, topology, Costs(lambda key: 1 + (key.phase == "B")))
    assert [part.warm_up for part in breakdown(found, topology)] == [0, 1, 2, 3]
    assert [part.drain for part in breakdown(found, topology)] == [0, 2, 4, 6]
    assert [part.imbalance for part in breakdown(found, topology)] == [9, 6, 3, 0]


# -- the critical path ----------------------------------------------------------------------------


def words(timeline: Timeline, topology: object, **options: object) -> str:
    return " ".join(
        f"{e.rank}:{e.instruction}" for e in critical_path(timeline, topology, **options)
    )


def test_the_path_goes_back_over_messages_that_were_waited_for():
    lines = ["0F0 S0.0 R1.0 0B0", "R0.0 1F0 1B0 S1.0"]
    found = simulate(parse(lines), TWO, Costs(lambda key: 1, Link(1)))
    assert words(found, TWO) == "0:0F0 0:S0.0 1:R0.0 1:1F0 1:1B0 1:S1.0 0:R1.0 0:0B0"


def test_a_message_that_was_there_was_not_waited_for():
    """It is copied in one second: told that, the path stays on the rank."""
    lines = ["0F0 S0.0 0F1 S0.1", "R0.0 1F0 R0.1 1F1"]
    costs = Costs(lambda key: 1 + 4 * key.stage, copy=6)
    found = simulate(parse(lines), TWO, costs)
    assert words(found, TWO, copy=6) == "0:0F0 0:S0.0 1:R0.0 1:1F0 1:R0.1 1:1F1"


def test_a_message_under_way_was_waited_for():
    """Posted at 2, before the receive of it begins at 3; it arrives at 6."""
    lines = ["0F0 S0.0 0F1 S0.1", "R0.0 1F0 R0.1 1F1"]
    slow = Costs(lambda key: 1, Link(1, Fraction(3)))  # two seconds on the link, one to arrive
    found = simulate(parse(lines), TWO, slow)
    assert words(found, TWO) == "0:0F0 0:S0.0 0:0F1 0:S0.1 1:R0.1 1:1F1"


def test_a_collective_goes_back_to_the_rank_that_came_last():
    lines = ["0F0 C U0 C", "1F0 C U1 C"]
    costs = Costs(lambda key: 1 + 2 * key.stage, update=lambda stage: 1)
    topology = chain((0, 1), train=False)
    assert words(simulate(parse(lines), topology, costs), topology) == "1:1F0 1:C 0:C 0:U0 0:C"


def test_the_path_of_a_measured_run():
    """The receives of 225 and 470 ms waited; it goes back over both messages."""
    assert words(PAIR, TWO) == "0:0F0 0:S0.0 1:R0.0 1:1F0 1:1B0 1:S1.0 0:R1.0 0:0B0 0:U0"


def test_a_measured_receive_of_a_message_that_was_there():
    """It takes some time all the same; a simulated one would have waited for the link."""
    timeline = Timeline(
        (track("0F0 S0.0", (0, 10), (10, 11)), track("1F9 R0.0 1F0", (0, 30), (31, 33), (33, 40))),
        MILLI,
    )
    assert words(timeline, TWO) == "1:1F9 1:R0.0 1:1F0"


def test_nothing_has_no_path():
    assert critical_path(Timeline((EMPTY, EMPTY), MILLI), TWO) == []


@pytest.mark.slow
def test_paths_lead_from_the_begin_to_the_end_without_a_hole():
    """Each part follows from the one before; only messages on their way take time in between."""
    for seed in range(150):
        rng = random.Random(seed)
        case = random_case(rng)
        costs = Costs(**random_amounts(case.topology, rng, lambda r=rng: r.randint(0, 3), Link))
        found = simulate(Schedule.of(case.programs), case.topology, costs, capacity=case.capacity)
        path = critical_path(found, case.topology, copy=costs.copy)
        if not path:
            continue
        assert path[0].start == costs.overhead
        assert path[-1].end == found.makespan
        for before, now in pairwise(path):
            if before.rank == now.rank:
                assert now.start == pytest.approx(before.end + float(costs.overhead))
            elif isinstance(now.instruction, Recv):
                sent = Send(now.instruction.tag, now.instruction.mb)
                assert before.instruction == sent
                assert now.end >= before.end
            else:
                assert isinstance(before.instruction, Collective)
                assert isinstance(now.instruction, Collective)
                assert before.end == now.end


@pytest.mark.slow
def test_the_path_explains_the_whole_makespan():
    """With runs and latencies alone: those on the path sum to the makespan."""
    for seed in range(100):
        rng = random.Random(seed)
        case = random_case(rng)
        seconds, latency = {key: rng.randint(1, 9) for key in case.topology.bodies}, seed % 4
        found = simulate(
            Schedule.of(case.programs), case.topology, Costs(seconds.__getitem__, Link(latency))
        )
        path = critical_path(found, case.topology)
        runs = [e.instruction.key for e in path if isinstance(e.instruction, Run)]
        hops = [
            b for a, b in pairwise(path) if a.rank != b.rank and isinstance(b.instruction, Recv)
        ]
        assert sum(map(seconds.__getitem__, runs)) + latency * len(hops) == found.makespan
