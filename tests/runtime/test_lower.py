"""Lowering: compute lists become programs with messages, frees and updates."""

from __future__ import annotations

import pytest

from runtime.instructions import Free, Recv, Run, Send
from runtime.lower import lower
from runtime.pipeline import Options
from runtime.replay import check
from runtime.schedules import SCHEDULES, forward_only
from symgraph.context import cpu
from tests.networks import random_case, random_groups
from tests.pipelines import make_plan
from tests.runtime.chains import chain, criss_cross, scheduled

SHAPES = [(0,), (0, 1), (0, 1, 2), (0, 1, 0), (1, 0, 1, 0), (0, 1, 2, 0, 1, 2)]


def lines(name: str, mbs: int, *ranks: int, update: bool = False) -> list[str]:
    return str(scheduled(name, chain(*ranks), mbs, update=update)).splitlines()


def test_gpipe_two_stages():
    """S0 goes forward and S1 back; D0F0 waits for the news that S0.0 was taken: R1.1."""
    assert lines("gpipe", 2, 0, 1) == [
        "rank 0: 0F0 S0.0 0F1 S0.1 R1.1 D0F0 D0F1 0B1 D0B1 R1.0 0B0 D0B0",
        "rank 1: R0.0 1F0 D1F0 R0.1 1F1 D1F1 1B1 S1.1 1B0 S1.0 D1B1 D1B0",
    ]


def test_1f1b_two_stages():
    assert lines("1f1b", 2, 0, 1) == [
        "rank 0: 0F0 S0.0 0F1 S0.1 R1.0 D0F0 0B0 D0B0 R1.1 D0F1 0B1 D0B1",
        "rank 1: R0.0 1F0 D1F0 1B0 S1.0 R0.1 1F1 D1F1 1B1 S1.1 D1B0 D1B1",
    ]


def test_one_stage_sends_nothing():
    assert lines("1f1b", 2, 0) == ["rank 0: 0F0 D0F0 0B0 D0B0 0F1 D0F1 0B1 D0B1"]


def test_a_training_step_ends_with_norms_and_updates():
    first, second = lines("gpipe", 1, 0, 1, update=True)
    assert first.endswith(" D0B0 C U0")
    assert second.endswith(" D1B0 C U1")
    assert lines("gpipe", 1, 0, 1, 0, update=True)[0].endswith(" C U0 U2")


def test_frees_follow_a_reply_that_was_sent_after_the_message_was_taken():
    """With one reply for two messages, both are known to be taken."""
    rank0, rank1 = str(scheduled("1f1b", chain(0, 1), 4)).splitlines()
    assert rank0 == (
        "rank 0: 0F0 S0.0 0F1 S0.1 R1.0 D0F0 0B0 D0B0 0F2 S0.2 R1.1 D0F1 0B1 D0B1 0F3 S0.3 "
        "R1.2 D0F2 0B2 D0B2 R1.3 D0F3 0B3 D0B3"
    )
    assert "S1.0 R0.1 1F1 D1F1 1B1 S1.1 R0.2 D1B0" in rank1  # S0.2 came after R1.0, S0.1 before


def test_messages_of_a_channel_are_received_in_the_order_they_are_sent():
    """a goes to stages 1 and 3 of rank 1, as S0 and S1: R1.0 comes before R0.1 is wanted."""
    partition = criss_cross()
    schedule = lower(partition, forward_only(partition.placement.rank_of, 2))
    assert [str(e) for e in partition.edges] == [
        "a 0F->1F float32[2]", "a 0F->3F float32[2]", "b 1F->2F float32[2]", "c 2F->3F float32[2]",
    ]  # fmt: skip
    assert str(schedule).splitlines() == [
        "rank 0: 0F0 S0.0 S1.0 0F1 S0.1 S1.1 R2.0 2F0 S3.0 R2.1 D0F0 2F1 S3.1 D0F1 D2F0 D2F1",
        "rank 1: R0.0 1F0 S2.0 R1.0 R0.1 1F1 S2.1 R1.1 R3.0 D1F0 3F0 D3F0 R3.1 D1F1 3F1 D3F1",
    ]
    check(schedule, partition, 2)


def test_runs_of_bodies_that_there_are_not_are_left_out():
    partition = chain(0, 1, train=False)
    compute = SCHEDULES["gpipe"]((0, 1), 1)
    assert str(lower(partition, compute)).splitlines() == [
        "rank 0: 0F0 S0.0 D0F0",
        "rank 1: R0.0 1F0 D1F0",
    ]


def test_idle_ranks_take_part_in_the_reduction_alone():
    options = Options(None, cpu(0), (cpu(0), cpu(1), cpu(2)), update=True)
    made = make_plan(random_case(0), options)
    assert [str(i) for i in made.schedule.programs[2]] == ["C"]
    assert len(made.schedule.programs) == 3


@pytest.mark.parametrize("mbs", [1, 2, 5])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("ranks", SHAPES)
@pytest.mark.parametrize("skip", [False, True])
def test_every_message_is_sent_right_after_its_body_and_received_once(ranks, name, mbs, skip):
    """Pipelines 14: edges between stages of one rank send nothing."""
    partition = chain(*ranks, skip=skip)
    schedule = scheduled(name, partition, mbs)
    for rank, program in enumerate(schedule.programs):
        for step, now in enumerate(program):
            if isinstance(now, Send):
                makers = [i for i in program[:step] if not isinstance(i, Send)]
                assert makers[-1] == Run(*partition.edges[now.tag].src, now.mb)
        for edge in partition.edges:
            here = partition.rank(edge.src) == rank, partition.rank(edge.dst) == rank
            for kind, mine in zip((Send, Recv), here, strict=True):
                count = sum(kind(edge.tag, mb) in program for mb in range(mbs))
                assert count == (mbs if mine and partition.crosses(edge) else 0)
        own = [k for k in partition.bodies if partition.rank(k) == rank]
        frees = [i for i in program if isinstance(i, Free)]
        assert len(frees) == len(own) * mbs
        assert set(frees) == {Free(*k, mb) for k in own for mb in range(mbs)}


@pytest.mark.filterwarnings("ignore:group2ctx maps groups")
@pytest.mark.parametrize("seed", range(10))
def test_programs_of_random_nets_are_proved(seed):
    """At every capacity of the channels, zero first: `make_plan` itself checks that one."""
    case = random_case(seed)
    for name in SCHEDULES:
        made = make_plan(case, Options(random_groups(seed, 3), cpu(0), (), name, 5, update=True))
        for capacity in (0, 1, None):
            check(made.schedule, made.partition, 5, capacity=capacity)
