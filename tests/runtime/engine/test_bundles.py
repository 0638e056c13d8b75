"""Which messages travel together: both ends say the same, and nobody computes in between."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from runtime.engine.bundles import Channel, Message, bundled
from runtime.planning.plan import Plan
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import Collective, Free, Recv, Run, Send, Update
from runtime.schedule.program import Schedule
from symgraph import cpu, gpu
from symgraph.core.context import Context
from tests.helpers.networks import random_case, random_groups
from tests.helpers.pipelines import make_plan, on_devices
from tests.helpers.recurrent import lstm_case

STEPS = 6


def made(schedule: str, devices: int = 2, **how) -> Plan:
    groups = {f"layer{i}": cpu(i * devices // 4) for i in range(4)} | {"head": cpu(devices - 1)}
    case = lstm_case(4, STEPS, batch=8)
    return make_plan(case, on_devices(devices, groups, schedule, **how))


def channel_in(plan: Plan, message: Message) -> Channel | None:
    (edge,) = (e for e in plan.partition.edges if e.tag == message[0])
    if edge.exchange:
        return None
    return plan.partition.rank(edge.src), plan.partition.rank(edge.dst)


def found(plan: Plan, rank: int, devices: Sequence[Context]) -> list[list[int]]:
    return bundled(plan.schedule, rank, devices, lambda m: channel_in(plan, m))


def texts(plan: Plan, rank: int, devices: Sequence[Context]) -> list[str]:
    program = plan.schedule.programs[rank]
    return [" ".join(str(program[at]) for at in places) for places in found(plan, rank, devices)]


def steps(letter: str, first: int) -> str:
    return " ".join(f"{letter}{tag}.0" for tag in range(first, first + STEPS))


def test_a_cut_between_layers_is_one_message_each_way():
    plan = made("gpipe", micro_batches=1)
    on_cards = [gpu(0), gpu(1)]
    assert texts(plan, 0, on_cards) == [steps("S", 0), steps("R", STEPS)]
    assert texts(plan, 1, on_cards) == [steps("S", STEPS), steps("R", 0)]


def test_what_is_freed_between_two_receives_may_be_the_place_of_the_second_on_a_cpu():
    plan = made("gpipe", micro_batches=1)
    (first, *others) = steps("R", STEPS).split()
    assert f"{first} D0F0 {others[0]}" in str(plan.schedule.programs[0])
    on_cpus = [cpu(0), cpu(1)]
    assert texts(plan, 0, on_cpus) == [steps("S", 0), first, " ".join(others)]
    (sent, *rest) = steps("S", STEPS).split()
    assert texts(plan, 1, on_cpus) == [sent, " ".join(rest), steps("R", 0)]
    assert texts(plan, 0, [cpu(0), gpu(0)]) == texts(plan, 0, on_cpus)
    assert texts(plan, 0, [gpu(0), cpu(0)]) == [steps("S", 0), steps("R", STEPS)]


def check(plan: Plan, devices: Sequence[Context]) -> int:
    """What holds for any plan; how many messages travel with another one."""
    ends: dict[Channel, list[list[list[Message]]]] = {}
    saved = 0
    for rank, program in enumerate(plan.schedule.programs):
        grouped = found(plan, rank, devices)
        every = sorted(at for places in grouped for at in places)
        assert every == [
            at
            for at, i in enumerate(program)
            if isinstance(i, Send | Recv) and channel_in(plan, (i.tag, i.mb)) is not None
        ]
        own: dict[tuple[Channel, type], list[list[Message]]] = {}
        for places in grouped:
            messages = [(program[at].tag, program[at].mb) for at in places]
            (channel,) = {channel_in(plan, m) for m in messages}
            (kind,) = {type(program[at]) for at in places}
            own.setdefault((channel, kind), []).append(messages)
            between = [program[at] for at in range(places[0], places[-1])]
            assert not any(isinstance(i, (Run, Collective, Update)) for i in between)
            if kind is Recv and devices[rank].kind == "cpu":
                assert not any(isinstance(i, Free) for i in between)
            saved += len(places) - 1
        for (channel, _), bundles in own.items():
            ends.setdefault(channel, []).append(bundles)
    assert all(one == other for one, other in ends.values())
    return saved


@pytest.mark.every(4)
@pytest.mark.parametrize("segment", [None, 2])
@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_both_ends_of_a_channel_bundle_alike(schedule, segment):
    plan = made(schedule, 4, micro_batches=4, time_segment=segment)
    mixed = [cpu(0), gpu(0), gpu(1), cpu(1)]
    saved = [check(plan, devices) for devices in (mixed, [*map(cpu, range(4))])]
    assert min(saved) > 0


@pytest.mark.every(3)
@pytest.mark.filterwarnings("ignore:group2ctx maps groups")
@pytest.mark.parametrize("number", range(20))
def test_random_networks_and_placements(number):
    rng = random.Random(number)
    count = rng.randint(2, 4)
    how = on_devices(
        count, random_groups(number, count), rng.choice(sorted(SCHEDULES)), rng.choice([1, 2, 3])
    )
    plan = make_plan(random_case(number), how)
    check(plan, [rng.choice([cpu, gpu])(i) for i in range(count)])


def test_messages_that_the_other_end_takes_in_another_order_travel_alone():
    """So that the error is the transport's, which names both tags."""
    plan = made("gpipe", micro_batches=1)
    first, second = ([*program] for program in plan.schedule.programs)
    at = second.index(Recv(2, 0))
    second[at : at + 2] = second[at : at + 2][::-1]
    wrong = Schedule.of([first, second])
    given = bundled(wrong, 0, [gpu(0), gpu(1)], lambda m: channel_in(plan, m))
    sends = [
        [str(first[i]) for i in places] for places in given if isinstance(first[places[0]], Send)
    ]
    assert sends == [["S0.0", "S1.0"], ["S2.0"], ["S3.0"], ["S4.0", "S5.0"]]
