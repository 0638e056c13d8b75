"""The replay: each way a schedule can be wrong has its own words, and simulated times are right."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest

from partitioner import BodyKey, InFlight
from runtime.instructions import Run, parse
from runtime.lower import lower
from runtime.replay import Costs, check, in_flight, simulate
from runtime.schedules import SCHEDULES
from runtime.timeline import Timeline
from symgraph.errors import ScheduleError
from tests.runtime.chains import chain, criss_cross, scheduled

ONE = ["0F0 D0F0 0B0 D0B0"]
TWO = [  # edge 0: y0 forward, edge 1: its gradient back
    "0F0 S0.0 R1.0 D0F0 0B0 D0B0",
    "R0.0 1F0 D1F0 1B0 S1.0 D1B0",
]


def refused(lines: list[str], why: str, *ranks: int, mbs: int = 1) -> None:
    partition = chain(*(ranks or (0, 1)))
    with pytest.raises(ScheduleError) as error:
        check(parse(lines), partition, mbs)
    assert why in str(error.value)


# -- violations: pipelines 4 ---------------------------------------------------------------------


def test_the_schedules_that_the_others_are_made_from_are_valid():
    check(parse(ONE), chain(0), 1)
    check(parse(TWO), chain(0, 1), 1)


def test_missing_rank():
    refused(TWO[:1], "1 programs for 2 ranks")


def test_missing_run():
    refused(["0F0 D0F0"], "rank 0 never does 0B0 for body 0B", 0)


def test_missing_micro_batch():
    refused(ONE, "rank 0 never does 0F1 for body 0F", 0, mbs=2)


def test_duplicate_run():
    """PyTorch's validation keeps sets, so it does not see this one."""
    refused(["0F0 D0F0 0F0 0B0 D0B0"], "rank 0, step 2: 0F0 stands at step 0 already", 0)


def test_run_on_the_wrong_rank():
    refused([TWO[0] + " 1F0", TWO[1]], "rank 0, step 6: 1F0 belongs to rank 1")


def test_send_and_receive_on_the_wrong_rank():
    refused([TWO[0], "S0.0 " + TWO[1]], "rank 1, step 0: S0.0 belongs to rank 0")
    refused(["R0.0 " + TWO[0], TWO[1]], "rank 0, step 0: R0.0 belongs to rank 1")


def test_backward_before_forward():
    refused(
        ["0B0 0F0 D0F0 D0B0"],
        "rank 0, step 0: 0B0 needs what its forward run keeps, but 0F0 does not come before",
        0,
    )


def test_missing_receive():
    refused(
        [TWO[0], "1F0 D1F0 1B0 S1.0 D1B0"],
        "rank 1, step 0: 1F0 needs y0, but R0.0 does not come before",
    )


def test_receive_after_the_run_that_needs_it():
    refused([TWO[0], "1F0 R0.0 D1F0 1B0 S1.0 D1B0"], "needs y0, but R0.0 does not come before")


def test_missing_send():
    refused(["0F0 R1.0 D0F0 0B0 D0B0", TWO[1]], "rank 0, step 2: D0F0 comes before S0.0")


def test_send_before_the_run_that_makes_its_value():
    refused(
        ["S0.0 0F0 R1.0 D0F0 0B0 D0B0", TWO[1]], "rank 0, step 0: S0.0 comes before 0F0 makes y0"
    )


def test_free_before_the_run():
    refused(["D0F0 0F0 0B0 D0B0"], "rank 0, step 0: D0F0 comes before 0F0", 0)


def test_free_before_the_send():
    refused(["0F0 D0F0 S0.0 R1.0 0B0 D0B0", TWO[1]], "rank 0, step 1: D0F0 comes before S0.0")


def test_backward_free_before_the_forward_one():
    refused(["0F0 0B0 D0B0 D0F0"], "rank 0, step 2: D0B0 comes before D0F0", 0)


def test_missing_free():
    refused(["0F0 D0F0 0B0"], "rank 0 never does D0B0 for body 0B", 0)


def test_unknown_edge_and_stage():
    refused([TWO[0] + " S7.0", TWO[1]], "rank 0, step 6: S7.0 names edge 7, which there is not")
    refused([ONE[0] + " 5F0"], "rank 0, step 4: 5F0 names stage 5, which there is not", 0)
    refused([ONE[0] + " C U3"], "rank 0, step 5: U3 names stage 3, which there is not", 0)


def test_micro_batch_that_there_is_not():
    refused(
        ["0F0 D0F0 0B0 D0B0 0F1"],
        "rank 0, step 4: 0F1 is not part of 1 micro-batches of this partition",
        0,
    )


def test_message_within_a_rank():
    """Edge 1 joins stages 0 and 2, both of rank 0."""
    partition = chain(0, 1, 0, skip=True, train=False)
    assert not partition.crosses(partition.edges[1])
    lines = str(lower(partition, [[Run(0, "F", 0), Run(2, "F", 0)], [Run(1, "F", 0)]])).splitlines()
    check(parse(lines), partition, 1)
    with pytest.raises(ScheduleError, match=r"S1\.0 is not part of 1 micro-batches"):
        check(parse([lines[0].replace("0F0", "0F0 S1.0", 1), lines[1]]), partition, 1)


def test_update_before_the_reduction_or_before_its_stage_is_done():
    check(parse(["0F0 D0F0 0B0 D0B0 C U0"]), chain(0), 1)
    refused([ONE[0] + " U0 C"], "rank 0, step 4: U0 comes before C", 0)
    refused(["0F0 D0F0 C U0 0B0 D0B0"], "rank 0, step 3: U0 comes before 0B0", 0)
    refused(["0F0 D0F0 0B0 C U0 D0B0"], "rank 0, step 4: U0 comes before D0B0", 0)


def test_messages_of_a_channel_in_another_order_than_sent():
    lines = [
        "0F0 S0.0 0F1 S0.1 R1.1 D0F0 D0F1 0B1 D0B1 R1.0 0B0 D0B0",
        "R0.1 1F1 D1F1 R0.0 1F0 D1F0 1B1 S1.1 1B0 S1.0 D1B1 D1B0",
    ]
    refused(lines, "rank 1, step 0: R0.1 waits for S0.1 of rank 0 (y0), but S0.0 is next", mbs=2)


def test_crossed_waits_tell_where_every_rank_stands():
    """Each rank frees a message, which waits until it is taken, before it takes the other's."""
    lines = ["0F0 S0.0 D0F0 R1.0 0B0 D0B0", "R0.0 1F0 D1F0 1B0 S1.0 D1B0"]
    check(parse(lines), chain(0, 1), 1)
    partition = chain(0, 1)
    crossed = [
        "0F0 S0.0 0F1 S0.1 D0F0 D0F1 R1.0 0B0 D0B0 R1.1 0B1 D0B1",
        "R0.0 1F0 D1F0 1B0 S1.0 D1B0 R0.1 1F1 D1F1 1B1 S1.1 D1B1",
    ]
    with pytest.raises(ScheduleError) as error:
        check(parse(crossed), partition, 2)
    assert str(error.value).splitlines() == [
        "no rank can go on:",
        "  rank 0, step 5: D0F1 waits until rank 1 takes S0.1",
        "  rank 1, step 5: D1B0 waits until rank 0 takes S1.0",
    ]
    check(parse(crossed), partition, 2, capacity=1)  # buffered, it goes through
    check(parse(crossed), partition, 2, capacity=None)


def test_a_rank_that_is_done_cannot_be_met():
    lines = [TWO[0] + " C", TWO[1]]
    refused(lines, "rank 0, step 6: C waits for the other ranks\n  rank 1: is at its end")


# -- every schedule, every capacity: pipelines 1 and 7 ------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("mbs", range(1, 9))
def test_schedules_come_to_their_end(name, ranks, mbs):
    for stages in (range(ranks), [*range(ranks), *range(ranks)], [*range(ranks), 0]):
        partition = chain(*stages, skip=True)
        schedule = scheduled(name, partition, mbs, update=True)
        for capacity in (0, 1, None):
            check(schedule, partition, mbs, capacity=capacity)


# -- simulation ----------------------------------------------------------------------------------


def timeline(name: str, ranks: int, mbs: int, backward: float = 2.0, **costs: float) -> Timeline:
    partition = chain(*range(ranks))
    schedule = scheduled(name, partition, mbs)
    run = {"F": 1.0, "B": backward}
    return simulate(schedule, partition, Costs(lambda key: run[key.phase], **costs))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    ("ranks", "mbs", "makespan"), [(2, 4, 15), (4, 4, 21), (4, 8, 33), (8, 8, 45), (8, 32, 117)]
)
def test_makespans_of_equal_stages(name, ranks, mbs, makespan):
    """Pipelines 6: forward 1, backward 2, (m + p - 1) (F + B), as GPipe and PipeDream-2BW say."""
    found = timeline(name, ranks, mbs)
    assert found.makespan == makespan == (mbs + ranks - 1) * 3
    assert found.busy() == [3.0 * mbs] * ranks


@pytest.mark.parametrize(
    ("ranks", "mbs", "bubble"), [(2, 4, 0.2), (4, 8, 3 / 11), (4, 1, 0.75), (1, 5, 0.0)]
)
def test_bubble_is_the_share_of_all_time(ranks, mbs, bubble):
    """N3: (S - 1) / (M + S - 1) of 2 (M + S - 1) ticks with unit costs, whatever the schedule."""
    for name in SCHEDULES:
        found = timeline(name, ranks, mbs, backward=1.0)
        assert found.makespan == 2 * (mbs + ranks - 1)
        assert found.bubble_fraction == pytest.approx(bubble)


@pytest.mark.parametrize(
    ("latency", "gpipe", "one_f_one_b"),
    [(0.0, 33.0, 33.0), (0.1, 33.6, 34.6), (0.25, 34.5, 37.0), (0.5, 36.0, 41.0)],
)
def test_a_slow_link_costs_1f1b_more(latency, gpipe, one_f_one_b):
    """Finding 4 of the survey, p=4 and m=8: ranks receive just before they run, and wait then."""
    assert timeline("gpipe", 4, 8, latency=latency).makespan == pytest.approx(gpipe)
    assert timeline("1f1b", 4, 8, latency=latency).makespan == pytest.approx(one_f_one_b)


def test_messages_take_their_bytes():
    """8 bytes at 4 bytes a second: two hops of 2 seconds."""
    assert timeline("gpipe", 2, 1, bandwidth=4.0).makespan == 6.0 + 2 * 2.0
    assert Costs(lambda key: 0.0, 0.5, 4.0).message(chain(0, 1).edges[0]) == 2.5
    assert Costs(lambda key: 0.0).bandwidth == inf


def test_the_reduction_waits_for_the_slowest_and_updates_follow():
    partition = chain(0, 1)
    schedule = scheduled("gpipe", partition, 1, update=True)
    seconds = {BodyKey(0, "F"): 1.0, BodyKey(1, "F"): 5.0, BodyKey(1, "B"): 2.0}
    costs = Costs(lambda key: seconds.get(key, 3.0), update=10.0)
    found = simulate(schedule, partition, costs)
    assert found.makespan == 1 + 5 + 2 + 3 + 10
    assert {str(e.instruction): e.end for e in found.events}["U1"] == 21.0


def test_backward_goes_from_the_last_micro_batch_to_the_first():
    """N3: M-1 .. 0 on every rank."""
    for program in scheduled("gpipe", chain(0, 1, 2), 4).programs:
        backward = [i.mb for i in program if isinstance(i, Run) and i.phase == "B"]
        assert backward == [3, 2, 1, 0]


def test_events_are_in_order_and_never_overlap_on_a_rank():
    found = timeline("1f1b", 3, 4, latency=0.3)
    for rank in range(3):
        own = [e for e in found.events if e.rank == rank]
        assert all(a.end <= b.start for a, b in pairwise(own))
    first = str(found).splitlines()[0].split()
    assert first == ["0.000000", "1.000000", "rank", "0", "0F0"]


def test_longer_runs_never_end_sooner():
    """Pipelines 6: a program's order is fixed, so time is monotone in every cost."""
    partition = criss_cross()
    compute = [[Run(0, "F", 0), Run(2, "F", 0)], [Run(1, "F", 0), Run(3, "F", 0)]]
    schedule = lower(partition, compute)
    base = simulate(schedule, partition, Costs(lambda key: 1.0)).makespan
    for slow in partition.bodies:
        costs = Costs(lambda key, slow=slow: 1.5 if key == slow else 1.0)
        assert simulate(schedule, partition, costs).makespan >= base


# -- what the memory plan asks -------------------------------------------------------------------


def test_in_flight_reads_what_is_held_off_the_programs():
    lines = [
        "0F0 S0.0 0F1 S0.1 R1.0 D0F0 0B0 D0B0 R1.1 D0F1 0B1 D0B1",
        "R0.0 1F0 D1F0 1B0 S1.0 R0.1 1F1 D1F1 1B1 S1.1 D1B0 D1B1",
    ]
    check(parse(lines), chain(0, 1), 2)
    assert in_flight(parse(lines)) == {
        0: {
            InFlight("F", waiting=0),
            InFlight("F", waiting=1, sending=1),
            InFlight("B", waiting=2, sending=1),
            InFlight("B", waiting=1, sums=1),
        },
        1: {
            InFlight("F", waiting=0),
            InFlight("B", waiting=1),
            InFlight("F", waiting=0, returning=1, sums=1),
            InFlight("B", waiting=1, returning=1, sums=1),
        },
    }


@pytest.mark.parametrize(("name", "depths"), [("gpipe", [6, 6, 6]), ("1f1b", [3, 2, 1])])
def test_most_in_flight(name, depths):
    """Pipelines 6: gpipe holds all micro-batches, 1f1b as many as stages to the end."""
    found = in_flight(scheduled(name, chain(0, 1, 2), 6))
    assert [max(at.waiting for at in found[stage]) for stage in range(3)] == depths


def test_forward_alone_holds_nothing():
    found = in_flight(scheduled("gpipe", chain(0, 1, train=False), 3))
    assert {at.waiting for at in found[0]} == {0}
