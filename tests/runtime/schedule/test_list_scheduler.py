"""The list scheduler against the named schedules, published figures and lower bounds."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import inf

import pytest

from partitioner.base.chain import Chain, chain
from partitioner.base.types import BACKWARD, FORWARD, INPUT, WEIGHT, BodyKey, CommEdge
from partitioner.memory.memory_plan import BodyMemory, MemoryPlan
from runtime.schedule.generators.segments import expand
from runtime.schedule.generators.table import SCHEDULES, ComputeLists
from runtime.schedule.lowering.lower import lower
from runtime.schedule.message_costs import Link
from runtime.schedule.replay.memory import memory_profile
from runtime.schedule.replay.simulation import Costs, simulate
from runtime.schedule.replay.validation import check
from runtime.schedule.search.list_scheduler import ListSchedule, list_schedule

SPLIT_ONLY = {"gpipe-2bp", "zb-h1", "zb-h2", "zb-v", "dualpipe-v"}
MESSAGE = 2  # bytes


def skipping(topology: Chain) -> Chain:
    """The first stage's value is also read by the last one, which sends a gradient back."""
    last, tag = len(topology.rank_of) - 1, len(topology.edges)
    back = INPUT if any(key.phase == INPUT for key in topology.bodies) else BACKWARD
    like = topology.edges[0]
    there = CommEdge(tag, like.value, like.type, BodyKey(0, FORWARD), BodyKey(last, FORWARD))
    again = CommEdge(tag + 1, like.value, like.type, BodyKey(last, back), BodyKey(0, back))
    return replace(topology, edges=(*topology.edges, there, again))


CASES = {
    "one stage a rank": (chain(range(4), nbytes=MESSAGE), 6),
    "fewer micro-batches than ranks": (chain(range(5), nbytes=MESSAGE), 2),
    "I and W": (chain(range(4), split=True, nbytes=MESSAGE), 6),
    "loops": (chain([0, 1, 2] * 2, nbytes=MESSAGE), 5),
    "V": (chain([0, 1, 2, 2, 1, 0], split=True, nbytes=MESSAGE), 7),
    "unbalanced": (chain([0, 0, 1, 1, 0], nbytes=MESSAGE), 4),
    "backwards": (chain([3, 2, 1, 0], nbytes=MESSAGE), 4),
    "a rank without stages": (chain([0, 2, 0], split=True, nbytes=MESSAGE), 3),
    "one rank": (chain([0, 0], nbytes=MESSAGE), 3),
    "skip": (skipping(chain(range(4), nbytes=MESSAGE)), 5),
    "skip, I and W": (skipping(chain([0, 1, 2, 0], split=True, nbytes=MESSAGE)), 4),
    "segments": (chain(range(3), segments=4, nbytes=MESSAGE), 2),
    "segments, I and W": (chain([0, 1, 0, 1], segments=3, split=True, nbytes=MESSAGE), 2),
    "forward only": (chain([0, 1, 2], train=False, nbytes=MESSAGE), 4),
}


def named(topology: Chain, mbs: int) -> dict[str, ComputeLists]:
    """The named schedules that run all bodies of a topology."""
    segments = 1 + max(key.segment for key in topology.bodies)
    whole = any(key.phase == BACKWARD for key in topology.bodies)
    return {
        name: expand(make(topology.rank_of, mbs), segments)
        for name, make in SCHEDULES.items()
        if not (whole and name in SPLIT_ONLY)
    }


def makespan(topology: Chain, compute: ComputeLists, costs: Costs) -> Fraction:
    return simulate(lower(topology, compute), topology, costs).exact


def peak(topology: Chain, compute: ComputeLists, plan: MemoryPlan, mbs: int) -> int:
    profile = memory_profile(lower(topology, compute), topology, plan, mbs)
    return max(rank.peak for rank in profile)


def uneven(topology: Chain, rng: random.Random) -> Costs:
    """Whatever can take time."""
    run = {key: rng.randint(1, 9) for key in sorted(topology.bodies)}
    link = Link(rng.choice([0, 1, 4]), rng.choice([inf, inf, 1]), rng.choice(["", "", "bus"]))
    return Costs(
        run.__getitem__,
        link,
        overhead=rng.choice([0, 0, Fraction(1, 8)]),
        copy=rng.choice([inf, 4]),
    )


def one_each(topology: Chain) -> MemoryPlan:
    """One byte from each forward run to its backward run."""
    change = {key: 1 if key.phase == FORWARD else -1 for key in topology.bodies}
    none = (0,) * topology.ranks
    return MemoryPlan({k: BodyMemory(max(0, c), c) for k, c in change.items()}, *[none] * 3)


def plan_of(topology: Chain, rng: random.Random) -> MemoryPlan:
    """Forward bodies keep their values and what they received until the backward ones."""
    received = Counter(
        edge.dst
        for edge in topology.edges
        if topology.rank_of[edge.src.stage] != topology.rank_of[edge.dst.stage]
    )
    sent = {edge.src for edge in topology.edges if edge.src.phase != FORWARD}
    bodies = {}
    kept = [rng.randint(4, 20) for _ in topology.rank_of]
    split = any(key.phase == WEIGHT for key in topology.bodies)
    for key in sorted(topology.bodies):
        stage, phase, segment = key
        back = BodyKey(stage, INPUT if split else BACKWARD, segment)
        messages = MESSAGE * (received[BodyKey(stage, FORWARD, segment)] + received[back])
        half = kept[stage] // 2 if split else kept[stage]
        change = {
            FORWARD: kept[stage],
            BACKWARD: -kept[stage] - messages,
            INPUT: -half,
            WEIGHT: half - kept[stage] - messages,
        }[phase]
        bodies[key] = BodyMemory(
            max(change, 0) + rng.randint(0, 5),
            change,
            MESSAGE if key in sent else 0,
            3 if phase in (BACKWARD, WEIGHT) else 0,
        )
    static = tuple(rng.randint(0, 9) for _ in range(topology.ranks))
    return MemoryPlan(bodies, static, static, static)


def assert_sound(listed: ListSchedule, topology: Chain, mbs: int, costs: Costs) -> None:
    """It runs everything once, in an order that is proved, and takes what it says."""
    schedule = lower(topology, listed.compute)
    check(schedule, topology, mbs, capacity=0)
    runs = [run for program in listed.compute for run in program]
    assert len(set(runs)) == len(runs)
    assert simulate(schedule, topology, costs).exact == listed.makespan
    assert listed.lower_bound <= listed.makespan
    assert listed.optimal == (listed.lower_bound == listed.makespan)


@pytest.mark.every(4)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CASES)
def test_it_is_never_longer_than_a_named_schedule(name, seed):
    topology, mbs = CASES[name]
    costs = uneven(topology, random.Random(f"{name} {seed}"))
    listed = list_schedule(topology, mbs, costs)
    assert_sound(listed, topology, mbs, costs)
    for other, compute in named(topology, mbs).items():
        assert listed.lower_bound <= makespan(topology, compute, costs), other
        assert listed.makespan <= makespan(topology, compute, costs), other


@pytest.mark.parametrize("name", CASES)
def test_its_bound_holds_where_bodies_are_faster_while_others_wait(name):
    """The bound was that of bodies that always run beside others: 141 ms of a step of 111."""
    topology, mbs = CASES[name]
    costs = uneven(topology, random.Random(name))
    costs = replace(costs, alone=lambda key: Fraction(costs.run(key)) / 3)
    bound = list_schedule(topology, mbs, costs).lower_bound
    for other, compute in named(topology, mbs).items():
        assert bound <= simulate(lower(topology, compute), topology, costs).exact, other


@pytest.mark.every(5)
@pytest.mark.parametrize("name", [name for name in CASES if name != "forward only"])
def test_it_keeps_to_a_memory_limit_whenever_a_named_schedule_does(name):
    topology, mbs = CASES[name]
    rng = random.Random(name)
    costs, plan = uneven(topology, rng), plan_of(topology, rng)
    others = [
        (makespan(topology, compute, costs), peak(topology, compute, plan, mbs))
        for compute in named(topology, mbs).values()
    ]
    low, high = min(p for _, p in others), max(p for _, p in others)
    for limit in (low, (low + high) // 2):
        listed = list_schedule(topology, mbs, costs, memory=plan, limit=limit)
        assert_sound(listed, topology, mbs, costs)
        assert peak(topology, listed.compute, plan, mbs) <= limit
        assert listed.makespan <= min(time for time, p in others if p <= limit)
    # Nothing keeps to no memory at all: the least is returned.
    listed = list_schedule(topology, mbs, costs, memory=plan, limit=0)
    assert not listed.optimal
    assert peak(topology, listed.compute, plan, mbs) <= low


def test_a_limit_between_two_schedules_gives_something_between_them():
    """1F1B holds 4 of 8 micro-batches and pays for latency, GPipe holds all and does not."""
    topology = chain(range(4))
    costs = Costs(lambda key: 1 if key.phase == FORWARD else 2, Link(Fraction(1, 2)))
    lengths = {
        limit: list_schedule(topology, 8, costs, memory=one_each(topology), limit=limit).makespan
        for limit in (1, 2, 4, 5, 6, 7, 8)
    }
    assert lengths[8] == 36 <= lengths[7] <= lengths[6] <= lengths[5] <= lengths[4] <= 41
    assert lengths[4] < lengths[2] < lengths[1] == 8 * (4 * 3 + 6 * Fraction(1, 2))


# Finding 4 of the survey: F = 1, B = 2 (I = W = 1), 4 ranks, 8 micro-batches, latency a hop.
LATENCY = {
    "0": ("33", "33", "27"),
    "1/10": ("33.6", "34.6", "27.3"),
    "1/4": ("34.5", "37", "27.75"),
    "1/2": ("36", "41", "28.5"),
}


@pytest.mark.parametrize("hop", LATENCY)
def test_latency_decides_between_gpipe_and_1f1b(hop):
    gpipe, one_f_one_b, zero_bubble = map(Fraction, LATENCY[hop])
    unit = {FORWARD: 1, BACKWARD: 2, INPUT: 1, WEIGHT: 1}
    costs = Costs(lambda key: unit[key.phase], Link(Fraction(hop)))
    topology = chain(range(4))
    others = named(topology, 8)
    assert makespan(topology, others["gpipe"], costs) == gpipe
    assert makespan(topology, others["1f1b"], costs) == one_f_one_b
    listed = list_schedule(topology, 8, costs)
    assert (listed.makespan, listed.lower_bound, listed.optimal) == (gpipe, gpipe, True)
    split = list_schedule(chain(range(4), split=True), 8, costs)
    assert (split.makespan, split.optimal) == (zero_bubble, True)


@pytest.mark.parametrize(("ranks", "segments"), [(2, 3), (3, 4), (4, 10)])
def test_one_micro_batch_in_segments_runs_as_a_wavefront(ranks, segments):
    costs = Costs(lambda key: 1 if key.phase == FORWARD else 2)
    listed = list_schedule(chain(range(ranks), segments=segments), 1, costs)
    assert listed.makespan == 3 * (segments + ranks - 1)
    assert listed.optimal


def test_uneven_costs_are_where_no_named_schedule_will_do():
    topology = chain([0, 1, 2, 2, 1, 0], split=True)
    length = {FORWARD: (1, 2, 3, 3, 2, 3), INPUT: (6, 2, 1, 3, 4, 2), WEIGHT: (3, 1, 1, 6, 5, 1)}
    costs = Costs(lambda key: length[key.phase][key.stage], Link(1))
    best = min(makespan(topology, compute, costs) for compute in named(topology, 6).values())
    listed = list_schedule(topology, 6, costs)
    assert listed.optimal
    assert listed.makespan < Fraction(95, 100) * best


def test_of_two_that_take_as_long_the_one_that_holds_less_is_returned():
    """GPipe and 1F1B take the same time without latency, and nothing takes less."""
    topology, mbs = chain(range(3)), 6
    plan = one_each(topology)
    costs = Costs(lambda key: 1)
    listed = list_schedule(topology, mbs, costs, memory=plan)
    assert peak(topology, listed.compute, plan, mbs) == 3


def test_measured_costs_are_floats():
    topology, rng = chain([0, 1, 2] * 2, split=True, nbytes=MESSAGE), random.Random(7)
    run = {key: rng.uniform(1e-4, 9e-4) for key in sorted(topology.bodies)}
    costs = Costs(run.__getitem__, Link(2e-5, 1e6), overhead=2e-6)
    listed = list_schedule(topology, 4, costs)
    assert_sound(listed, topology, 4, costs)
    work = max(sum(t for key, t in run.items() if key.stage % 3 == r) for r in range(3))
    assert 4 * work < listed.lower_bound <= listed.makespan < 1.2 * listed.lower_bound


def test_times_too_long_for_the_finest_tick():
    """Added up they are more ticks than 64 bits hold; the bound is rounded down, not wrong."""
    topology = chain(range(4))
    for length in (2**40, 2**56 + 1):
        costs = Costs(lambda key, length=length: length + key.stage)
        listed = list_schedule(topology, 6, costs)
        assert_sound(listed, topology, 6, costs)
        assert listed.makespan * Fraction(99, 100) < listed.lower_bound <= 18 * (length + 3)


SCRIPT = """
from partitioner.base.chain import chain
from runtime.schedule.message_costs import Link
from runtime.schedule.replay.simulation import Costs
from runtime.schedule.search.list_scheduler import list_schedule
costs = Costs(lambda key: 1 + (5 * key.stage + 3 * ord(key.phase)) % 7, Link(2))
print(*list_schedule(chain([0, 1, 2, 0, 1, 2]), 5, costs).compute, sep="\\n")
"""


@pytest.mark.slow
def test_every_process_finds_the_same_schedule():
    found = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in "12"
    }
    assert [text.count("F") for text in found] == [30]
