"""The simulator: exact times, links, capacities, and the same as a simulator written otherwise."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from partitioner.base.chain import chain
from partitioner.base.types import BodyKey, Topology
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import Free, Run
from runtime.schedule.lowering.lower import lower
from runtime.schedule.message_costs import Link, Number
from runtime.schedule.program import Schedule
from runtime.schedule.replay.simulation import Costs, Simulator, simulate
from runtime.schedule.text import parse
from runtime.schedule.timeline import Timeline
from symgraph.core.errors import ScheduleError
from tests.runtime.schedule.programs import sketch
from tests.runtime.schedule.slow_simulator import (
    RandomCase,
    SlowSimulator,
    Times,
    random_amounts,
    random_case,
)

FORWARD_BACKWARD = {"F": 1, "B": 2}


def by_phase(**seconds: Number) -> Costs:
    return Costs(lambda key: seconds[key.phase])


def times(timeline: Timeline) -> Times:
    """Start and end of all instructions in exact seconds."""
    return [
        [
            (s * timeline.unit, e * timeline.unit)
            for s, e in zip(track.start.tolist(), track.end.tolist(), strict=True)
        ]
        for track in timeline.tracks
    ]


def simulated(lines: list[str], topology: Topology, costs: Costs, **options: int) -> list[str]:
    """The timeline as words: instruction, start and end."""
    found = simulate(parse(lines), topology, costs, **options)
    return [f"{e.instruction} {e.start:g}-{e.end:g}" for e in found.events]


# -- the same as the slow simulator ---------------------------------------------------------------


def random_costs(case: RandomCase, rng: random.Random) -> Costs:
    """Few different numbers, so that many things happen at the same time."""
    whole = rng.random() < 0.5

    def number() -> Number:
        return rng.randint(0, 3) if whole else Fraction(rng.randint(0, 6), rng.randint(1, 4))

    return Costs(**random_amounts(case.topology, rng, number, Link))


@pytest.mark.every(9)
@pytest.mark.parametrize("batch", range(20))
def test_random_schedules_take_what_a_slow_simulator_says(batch):
    """Pipelines 6: every start and end, exactly; shared links, capacities and all."""
    for seed in range(20 * batch, 20 * batch + 20):
        rng = random.Random(seed)
        case = random_case(rng)
        costs = random_costs(case, rng)
        found = simulate(Schedule.of(case.programs), case.topology, costs, capacity=case.capacity)
        slow = SlowSimulator(case.programs, case.topology, costs, case.capacity).run()
        assert times(found) == slow, seed


@pytest.mark.slow
def test_the_random_schedules_are_not_all_of_one_kind():
    contended = waiting = longest = 0
    for seed in range(200):
        rng = random.Random(seed)
        case = random_case(rng)
        slow = SlowSimulator(case.programs, case.topology, random_costs(case, rng), case.capacity)
        spans = [
            (end - start, now)
            for row, program in zip(slow.run(), case.programs, strict=True)
            for (start, end), now in zip(row, program, strict=True)
        ]
        contended += slow.contended
        waiting += sum(span > 0 and isinstance(now, Free) for span, now in spans)
        longest = max(longest, len(spans))
    assert contended > 30
    assert waiting > 50
    assert longest > 200


# -- published figures ----------------------------------------------------------------------------


def run_schedule(name: str, ranks: int, mbs: int, costs: Costs) -> Timeline:
    topology = chain(range(ranks))
    return simulate(lower(topology, SCHEDULES[name](range(ranks), mbs)), topology, costs)


@pytest.mark.parametrize(
    ("latency", "gpipe", "one_f_one_b"),
    [("0", "33", "33"), ("0.1", "33.6", "34.6"), ("0.25", "34.5", "37"), ("0.5", "36", "41")],
)
def test_a_slow_link_costs_1f1b_more(latency, gpipe, one_f_one_b):
    """Finding 4 of the survey, p=4 and m=8: ranks receive just before they run, and wait then."""
    costs = Costs(lambda key: FORWARD_BACKWARD[key.phase], Link(Fraction(latency)))
    assert run_schedule("gpipe", 4, 8, costs).exact == Fraction(gpipe)
    assert run_schedule("1f1b", 4, 8, costs).exact == Fraction(one_f_one_b)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("ranks", "mbs", "makespan"), [(2, 4, 15), (4, 4, 21), (4, 8, 33), (8, 8, 45), (8, 32, 117)]
)
def test_makespans_of_equal_stages(name, ranks, mbs, makespan):
    """Pipelines 6: forward 1, backward 2: (m + p - 1) (F + B)."""
    found = run_schedule(name, ranks, mbs, by_phase(**FORWARD_BACKWARD))
    assert found.exact == makespan == (mbs + ranks - 1) * 3
    assert found.busy() == [3.0 * mbs] * ranks


def test_a_large_schedule():
    found = run_schedule("1f1b", 256, 300, by_phase(**FORWARD_BACKWARD))
    assert found.exact == (300 + 255) * 3


# -- every rule by hand ---------------------------------------------------------------------------

PAIR = chain((0, 1), nbytes=6)  # edge 0 forward, edge 1 back
TWO = ["0F0 S0.0 D0F0 0F1 S0.1 D0F1", "R0.0 1F0 D1F0 R0.1 1F1 D1F1"]


def test_a_send_posts_and_goes_on_and_a_link_carries_one_message_after_the_other():
    """6 bytes at 2 a second, a second more to arrive; the second message waits for the link."""
    costs = Costs(lambda key: 1, Link(1, 2))
    assert simulated(TWO, PAIR, costs) == [
        "0F0 0-1",
        "S0.0 1-1",
        "D0F0 1-1",
        "0F1 1-2",
        "S0.1 2-2",
        "D0F1 2-2",
        "R0.0 0-5",
        "1F0 5-6",
        "D1F0 6-6",
        "R0.1 6-8",
        "1F1 8-9",
        "D1F1 9-9",
    ]


def test_copying_is_the_receivers_time():
    costs = Costs(lambda key: 1, copy=3)
    assert simulated(TWO, PAIR, costs)[6:] == [
        "R0.0 0-3",
        "1F0 3-4",
        "D1F0 4-4",
        "R0.1 4-6",
        "1F1 6-7",
        "D1F1 7-7",
    ]


def test_overhead_comes_before_every_instruction():
    costs = Costs(lambda key: 1, overhead=Fraction(1, 2))
    assert simulated(TWO, PAIR, costs) == [
        "0F0 0.5-1.5",
        "S0.0 2-2",
        "D0F0 2.5-2.5",
        "0F1 3-4",
        "S0.1 4.5-4.5",
        "D0F1 5-5",
        "R0.0 0.5-2",
        "1F0 2.5-3.5",
        "D1F0 4-4",
        "R0.1 4.5-4.5",
        "1F1 5-6",
        "D1F1 6.5-6.5",
    ]
    found = simulate(parse(TWO), PAIR, costs)
    assert found.exact == Fraction(13, 2)


@pytest.mark.parametrize(
    ("capacity", "freed"), [(None, (2, 2)), (0, (4, 7)), (1, (2, 4)), (2, (2, 2))]
)
def test_a_free_waits_until_its_messages_are_delivered(capacity, freed):
    """Taken at 4 and at 7; with room for one, the second is delivered when the first is taken."""
    lines = ["0F0 S0.0 0F1 S0.1 D0F0 D0F1", "R0.0 1F0 D1F0 R0.1 1F1 D1F1"]
    costs = Costs(lambda key: 1, Link(1), copy=3)
    found = simulate(parse(lines), PAIR, costs, capacity=capacity)
    ends = {str(e.instruction): e.end for e in found.events}
    assert (ends["R0.0"], ends["R0.1"]) == (4, 7)
    assert (ends["D0F0"], ends["D0F1"]) == freed


FAN = sketch((0, 1, 2), "0F 1F 2F", ["a 0F->2F", "b 1F->2F"])  # 8 bytes each, to rank 2
FAN_IN = ["0F0 S0.0 D0F0", "1F0 S1.0 D1F0", "R0.0 R1.0 2F0 D2F0"]


def test_links_of_one_name_are_one_link():
    """Two ranks send 8 bytes at 4 a second; the one that comes first goes first."""
    seconds = {0: 3, 1: 2, 2: 1}
    bus, costs = Link(0, 4, "bus"), {"run": lambda key: seconds[key.stage]}
    apart = simulated(FAN_IN, FAN, Costs(**costs, link=Link(0, 4)))
    assert apart[6:8] == ["R0.0 0-5", "R1.0 5-5"]
    shared = simulated(FAN_IN, FAN, Costs(**costs, link=bus))
    assert shared[6:8] == ["R0.0 0-6", "R1.0 6-6"]
    one = simulated(FAN_IN, FAN, Costs(**costs, links={(0, 2): bus, (1, 2): Link(1, 4, "bus")}))
    assert one == shared
    other = simulated(FAN_IN, FAN, Costs(**costs, links={(0, 2): bus, (1, 2): Link(0, 4, "x")}))
    assert other == apart


def test_sends_of_one_time_go_in_the_order_of_ranks():
    taken = simulated(FAN_IN, FAN, Costs(lambda key: 1, Link(0, 4, "bus")))[6:8]
    assert taken == ["R0.0 0-3", "R1.0 3-5"]
    late = [FAN_IN[0], FAN_IN[1], "R1.0 R0.0 2F0 D2F0"]
    assert simulated(late, FAN, Costs(lambda key: 1, Link(0, 4, "bus")))[6:8] == [
        "R1.0 0-5",
        "R0.0 5-5",
    ]


def test_the_collective_waits_for_the_slowest_and_updates_follow():
    costs = Costs(lambda key: 1 + 2 * key.stage, update=lambda stage: 10)
    lines = ["0F0 D0F0 C U0", "1F0 D1F0 C U1"]
    found = simulated(lines, sketch((0, 1), "0F 1F"), costs)
    assert found == [
        "0F0 0-1",
        "D0F0 1-1",
        "C 1-3",
        "U0 3-13",
        "1F0 0-3",
        "D1F0 3-3",
        "C 3-3",
        "U1 3-13",
    ]


# -- contention -----------------------------------------------------------------------------------


def half_alone(seconds: dict[str, int], **others: object) -> Costs:
    """Costs of bodies by name, which take half as long while no other rank works."""
    return Costs(lambda k: seconds[f"{k}"], alone=lambda k: Fraction(seconds[f"{k}"], 2), **others)


@pytest.mark.parametrize(
    ("seconds", "others", "ends"),
    [
        ({"0F": 4, "1F": 4}, {}, (4, 4)),
        ({"0F": 4, "1F": 4}, {"hosts": ("a", "b")}, (2, 2)),
        # Rank 1 shares 1 second of its 4, rank 0 all of its own.
        ({"0F": 1, "1F": 4}, {}, (1, 2.5)),
        # Updates are work, too: rank 0 works for 3 of the 4 seconds.
        ({"0F": 1, "1F": 4}, {"update": lambda stage: 2 * (stage == 0)}, (3, 3.5)),
    ],
)
def test_a_body_takes_less_in_the_time_that_it_shares_with_no_rank_of_its_host(
    seconds, others, ends
):
    update = " U0" if "update" in others else ""
    schedule, topology = parse([f"0F0{update}", "1F0"]), sketch((0, 1), "0F 1F")
    found = simulate(schedule, topology, half_alone(seconds, **others))
    assert tuple(float(track.end[-1] * found.unit) for track in found.tracks) == ends


def test_stages_that_take_turns_work_alone_but_searches_compare_them_as_if_together():
    topology = chain((0, 1))
    schedule = lower(topology, SCHEDULES["gpipe"]((0, 1), 1))
    costs = Costs(lambda key: 4, alone=lambda key: 3)
    assert simulate(schedule, topology, costs).makespan == 12
    assert Simulator(topology, costs).makespan(schedule) == 16
    assert Simulator(topology, costs).timeline(schedule).makespan == 16


def test_one_of_three_ranks_shares_half_of_what_all_share():
    costs = half_alone({"0F": 4, "1F": 4})
    schedule, topology = parse(["0F0", "1F0", "U2"]), sketch((0, 1, 2), "0F 1F")
    assert simulate(schedule, topology, costs).makespan == 3


# -- properties -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_longer_times_never_end_anything_sooner():
    """Pipelines 6: without shared links the order is fixed, so every end is monotone in costs."""
    for seed in range(100):
        rng = random.Random(seed)
        case = random_case(rng)
        amounts = random_amounts(
            case.topology, rng, lambda rng=rng: rng.randint(0, 3), lambda a, b, *_: Link(a, b)
        )
        schedule = Schedule.of(case.programs)
        base = simulate(schedule, case.topology, Costs(**amounts), capacity=case.capacity)
        slow = rng.choice(case.topology.bodies)
        run = amounts["run"]
        more = [
            {"run": lambda key, run=run, slow=slow: run(key) + (key == slow)},
            {"overhead": amounts["overhead"] + 1},
            {"link": replace(amounts["link"], latency=amounts["link"].latency + 1)},
        ]
        for change in more:
            costs = Costs(**{**amounts, **change})
            later = simulate(schedule, case.topology, costs, capacity=case.capacity)
            for a, b in zip(base.tracks, later.tracks, strict=True):
                assert (a.end <= b.end).all()


@pytest.mark.slow
def test_no_schedule_beats_its_longest_chain_or_its_fullest_rank():
    """Pipelines 6."""
    for seed in range(100):
        rng = random.Random(seed)
        case = random_case(rng)
        costs = Costs(**random_amounts(case.topology, rng, lambda r=rng: r.randint(0, 9), Link))
        topology, seconds = case.topology, costs.run
        found = simulate(Schedule.of(case.programs), topology, costs, capacity=case.capacity)

        chains: dict[BodyKey, Number] = {}

        def longest(key, chains=chains, topology=topology, seconds=seconds):
            if key not in chains:
                before = max((longest(need) for need in topology.needs(key)), default=0)
                chains[key] = before + seconds(key)
            return chains[key]

        loads = [
            sum(seconds(now.key) for now in program if isinstance(now, Run))
            for program in case.programs
        ]
        assert found.exact >= max(*loads, *map(longest, topology.bodies))


def test_instructions_of_a_rank_never_overlap():
    found = run_schedule("1f1b", 3, 4, Costs(lambda key: 1.0, Link(0.3, 2.5)))
    for rank in range(3):
        own = [e for e in found.events if e.rank == rank]
        assert all(a.end <= b.start for a, b in pairwise(own))


# -- ticks ----------------------------------------------------------------------------------------


def test_rational_costs_are_exact_and_floats_are_picoseconds():
    third = simulate(parse(TWO), PAIR, by_phase(F=Fraction(1, 3), B=0))
    assert (third.unit, third.exact) == (Fraction(1, 3), 1)
    tenth = simulate(parse(TWO), PAIR, by_phase(F=0.1, B=0))
    assert (tenth.unit, tenth.exact) == (Fraction(1, 10**12), Fraction(3, 10))
    mixed = simulate(parse(TWO), PAIR, Costs(lambda key: 1, Link(np.float32(0.5), 3)))
    assert (mixed.unit, mixed.exact) == (Fraction(1, 10**12), Fraction(13, 2))
    assert simulate(parse(TWO), PAIR, Costs(lambda key: np.int64(2))).exact == 6


def test_fractions_too_fine_for_64_bits_are_rounded_to_picoseconds():
    short = simulate(parse(TWO), PAIR, Costs(lambda key: 1, Link(Fraction(1, 10**9 + 7))))
    assert short.exact == 3 + Fraction(1, 10**9 + 7)
    fine = Costs(lambda key: 1 + Fraction(1, 10**9 + 7), Link(Fraction(1, 10**9 + 9)))
    found = simulate(parse(TWO), PAIR, fine)
    assert found.unit == Fraction(1, 10**12)
    assert found.exact == 3 + 4 * Fraction(1, 10**9)


@pytest.mark.parametrize(
    "costs",
    [
        Costs(lambda key: 10**400),  # one run
        Costs(lambda key: 2.5e5),  # all runs of a rank
        Costs(lambda key: 0, Link(0, 6 / 2.5e5)),  # all messages of a link
        Costs(lambda key: 0, overhead=1e5),
        Costs(lambda key: 0, copy=6 / 2.5e5),
    ],
)
def test_a_step_longer_than_all_ticks(costs):
    lines = [
        " ".join(f"0F{i} S0.{i} D0F{i}" for i in range(30)),
        " ".join(f"R0.{i} 1F{i} D1F{i}" for i in range(30)),
    ]
    with pytest.raises(ScheduleError, match=r"too large: the step does not fit into 2\*\*62 ticks"):
        simulate(parse(lines), PAIR, costs)
    weeks = simulate(parse(lines), PAIR, Costs(lambda key: 10**6))
    assert weeks.exact == 31 * 10**6


# -- what is refused ------------------------------------------------------------------------------


def refused(lines: list[str], why: str, topology: Topology = PAIR, **options: int) -> None:
    with pytest.raises(ScheduleError, match=why):
        simulate(parse(lines), topology, by_phase(**FORWARD_BACKWARD), **options)


@pytest.mark.parametrize(
    "lines",
    [
        ["0F0", "R0.0 1F0"],  # no send
        ["0F0 S0.0 0F1 S0.1", "R0.1 1F1 R0.0 1F0"],  # another order
        ["0F0 S0.0 C", "R0.0 1F0"],  # a collective that one rank does not come to
    ],
)
def test_schedules_that_cannot_end(lines):
    refused(lines, r"the schedule cannot end: rank \d waits for ever .* `check` it first")


def test_a_schedule_that_ends_with_room_for_messages_only():
    crossed = [
        "0F0 S0.0 0F1 S0.1 D0F0 D0F1 R1.0 0B0 R1.1 0B1",
        "R0.0 1F0 1B0 S1.0 D1B0 R0.1 1F1 1B1 S1.1",
    ]
    refused(crossed, "rank 0 waits for ever at step 5, D0F1;", capacity=0)
    simulate(parse(crossed), PAIR, by_phase(**FORWARD_BACKWARD), capacity=1)


@pytest.mark.parametrize("bad", ["1F0", "2F0", "0F0.1", "0I0", "R0.0", "S1.0", "S2.0", "U1", "0F9"])
def test_instructions_that_are_not_the_ranks(bad):
    refused([f"0F0 {bad}", "1F0"], f"rank 0, step 1: {bad} cannot stand there")


def test_another_number_of_ranks():
    refused(["0F0"], "1 program for 2 ranks")


@pytest.mark.parametrize(
    ("costs", "why"),
    [
        (Costs(lambda key: -1), "run of 0F is -1; it must be finite and not negative"),
        (Costs(lambda key: float("nan")), "run of 0F is nan"),
        (Costs(lambda key: 1, overhead=float("inf")), "overhead is inf"),
        (Costs(lambda key: 1, Link(latency=-0.5)), "latency is -0.5"),
        (Costs(lambda key: 1, Link(bandwidth=0)), "bandwidth is 0 bytes a second; it must be more"),
        (Costs(lambda key: 1, copy=-2), "copy is -2 bytes a second"),
    ],
)
def test_costs_that_make_no_sense(costs, why):
    with pytest.raises(ScheduleError, match=why):
        simulate(parse(TWO), PAIR, costs)
