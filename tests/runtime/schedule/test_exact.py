"""Branch and bound and lower bounds against every order that there is."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from math import inf

import pytest

from partitioner.base.chain import Chain, chain
from partitioner.base.types import BACKWARD, FORWARD, INPUT, WEIGHT, BodyKey
from partitioner.memory.memory_plan import BodyMemory, MemoryPlan
from runtime.schedule.instructions import Run
from runtime.schedule.lowering.lower import lower
from runtime.schedule.message_costs import Link
from runtime.schedule.replay.facts import Facts
from runtime.schedule.replay.memory import memory_profile
from runtime.schedule.replay.simulation import Costs, simulate
from runtime.schedule.search.exact import lower_bound, solve
from runtime.schedule.search.list_scheduler import list_schedule
from runtime.schedule.search.list_scheduler_walk import replay
from runtime.schedule.search.problem import NEVER, Array, Memory, Problem, memory_of, number

TINY = {  # as many orders as can be tried one by one
    "two stages": (chain([0, 1]), 2),
    "three micro-batches": (chain([0, 1]), 3),
    "three ranks": (chain([0, 1, 2]), 2),
    "I and W": (chain([0, 1], split=True), 2),
    "there and back": (chain([0, 1, 0]), 2),
    "V": (chain([0, 1, 1, 0], split=True), 1),
    "segments": (chain([0, 1], segments=2), 2),
    "segments, I and W": (chain([0, 1], segments=2, split=True), 1),
    "forward only": (chain([0, 1, 0, 1], train=False), 2),
}
Order = tuple[Run, ...]


def orders(runs: Sequence[Run], before: dict[BodyKey, list[BodyKey]]) -> Iterator[Order]:
    """All orders in which each run follows those of its micro-batch that it must."""

    def longer(done: Order, left: Sequence[Run]) -> Iterator[Order]:
        if not left:
            yield done
        for run in left:
            if not any(r.mb == run.mb and r.key in before[run.key] for r in left):
                yield from longer((*done, run), [r for r in left if r != run])

    return longer((), runs)


def all_schedules(topology: Chain, mbs: int) -> list[tuple[Order, ...]]:
    """Every schedule that comes to its end, micro-batches in any order."""
    facts = Facts.of(topology)
    before = {k: [facts.keys[a] for a in facts.before[i]] for i, k in enumerate(facts.keys)}
    ranks = [
        list(
            orders(
                [
                    Run(key.stage, key.phase, mb, key.segment)
                    for key in sorted(topology.bodies)
                    for mb in range(mbs)
                    if topology.rank_of[key.stage] == rank
                ],
                before,
            )
        )
        for rank in range(topology.ranks)
    ]
    return [lists for lists in product(*ranks) if length(lists, topology, dict.fromkeys(before, 1))]


def length(
    lists: Sequence[Order], topology: Chain, cost: dict[BodyKey, int], hop: int = 0
) -> int | None:
    """When all has run, by going through the lists again and again; None if they do not end."""
    needs: dict[BodyKey, list[BodyKey]] = {key: [] for key in topology.bodies}
    for edge in topology.edges:
        if topology.rank_of[edge.src.stage] != topology.rank_of[edge.dst.stage]:
            needs[edge.dst].append(edge.src)
    end: dict[tuple[BodyKey, int], int] = {}
    clock, at, before = [0] * len(lists), [0] * len(lists), -1
    while before != len(end):
        before = len(end)
        for rank, runs in enumerate(lists):
            for run in runs[at[rank] :]:
                if any((key, run.mb) not in end for key in needs[run.key]):
                    break
                there = [end[key, run.mb] + hop for key in needs[run.key]]
                clock[rank] = max([clock[rank], *there]) + cost[run.key]
                end[run.key, run.mb] = clock[rank]
                at[rank] += 1
    return max(clock) if len(end) == sum(map(len, lists)) else None


@cache
def every_schedule(name: str) -> list[tuple[Order, ...]]:
    return all_schedules(*TINY[name])


def uneven(topology: Chain, seed: object) -> tuple[dict[BodyKey, int], int]:
    """Costs of bodies, and a latency."""
    rng = random.Random(str(seed))
    return {key: rng.randint(0, 6) for key in sorted(topology.bodies)}, rng.choice([0, 1, 3])


def searched(p: Problem, memory: Memory | None = None, nodes: int = 10**6) -> int | None:
    """What branch and bound alone says, which is what the last order that it found takes."""
    found = []

    def judge(order: Array) -> int:
        start = order.reshape(len(p.run), p.mbs).copy()
        found.append(int(replay(p, order, start, start.copy())))
        return found[-1]

    lower = solve(p, NEVER, judge, nodes=nodes, memory=memory)
    assert lower is None or found == [] or lower == found[-1] == min(found)
    return lower


@pytest.mark.every(6)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", TINY)
def test_branch_and_bound_finds_the_shortest_of_all_schedules(name, seed):
    topology, mbs = TINY[name]
    cost, hop = uneven(topology, (name, seed))
    best = min(length(lists, topology, cost, hop) for lists in every_schedule(name))
    costs = Costs(cost.__getitem__, Link(hop))
    assert searched(number(topology, mbs, costs, Fraction(1)).problem) == best
    listed = list_schedule(topology, mbs, costs)
    assert (listed.makespan, listed.lower_bound, listed.optimal) == (best, best, True)
    # What takes no longer than another plan is found; where nothing does, no bound is claimed.
    assert list_schedule(topology, mbs, costs, beat=float(best) + 0.5).makespan == best
    other = list_schedule(topology, mbs, costs, beat=float(best))
    assert other.lower_bound <= best <= other.makespan


def holding(topology: Chain, seed: object) -> MemoryPlan:
    """What forward bodies keep for backward ones, and a little more; nothing is on its way."""
    rng = random.Random(str(seed))
    bodies = {}
    for stage in range(len(topology.rank_of)):
        kept, half = rng.randint(3, 9), rng.randint(0, 3)
        change = {FORWARD: kept, BACKWARD: -kept, INPUT: half - kept, WEIGHT: -half}
        for key in sorted(topology.bodies):
            if key.stage == stage:
                top = max(0, change[key.phase]) + rng.randint(0, 4)
                bodies[key] = BodyMemory(top, change[key.phase])
    static = tuple(rng.randint(0, 5) for _ in range(topology.ranks))
    return MemoryPlan(bodies, static, static, static)


@pytest.mark.every(9)
@pytest.mark.parametrize("name", [name for name in TINY if name != "forward only"])
def test_with_a_memory_limit_it_finds_the_shortest_that_keeps_to_it(name):
    topology, mbs = TINY[name]
    cost, hop = uneven(topology, name)
    costs, plan = Costs(cost.__getitem__, Link(hop)), holding(topology, name)

    def peak(lists):
        profile = memory_profile(lower(topology, lists), topology, plan, mbs)
        return max(rank.peak for rank in profile)

    every = [(length(lists, topology, cost, hop), peak(lists)) for lists in every_schedule(name)]
    least, most = min(p for _, p in every), max(p for _, p in every)
    for limit in sorted({least, (2 * least + most) // 3, (least + most) // 2}):
        best = min(time for time, p in every if p <= limit)
        listed = list_schedule(topology, mbs, costs, memory=plan, limit=limit)
        assert (listed.makespan, listed.optimal, peak(listed.compute) <= limit) == (
            best,
            True,
            True,
        )
        numbered = number(topology, mbs, costs, Fraction(1))
        assert searched(numbered.problem, memory_of(numbered, plan, limit)) == best
    assert peak(list_schedule(topology, mbs, costs, memory=plan, limit=0).compute) == least


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", TINY)
def test_no_schedule_falls_short_of_the_bound_whatever_takes_time(name, seed):
    plain, mbs = TINY[name]
    topology = chain(
        plain.rank_of,
        nbytes=4,
        train=len(plain.bodies) > len(plain.rank_of),
        split=any(key.phase == WEIGHT for key in plain.bodies),
        segments=1 + max(key.segment for key in plain.bodies),
    )
    assert topology.bodies == plain.bodies
    rng = random.Random(f"{name} {seed}")
    shared = rng.choice(["", "bus"])
    pairs = [(a, b) for a in range(topology.ranks) for b in range(topology.ranks)]
    costs = Costs(
        uneven(topology, seed)[0].__getitem__,
        links={ends: Link(rng.randint(0, 3), rng.choice([1, 2, inf]), shared) for ends in pairs},
        overhead=rng.choice([0, Fraction(1, 2), 1]),
        copy=rng.choice([inf, 2, 8]),
    )
    every = every_schedule(name)[:: 1 + len(every_schedule(name)) // 200]
    best = min(simulate(lower(topology, lists), topology, costs).exact for lists in every)
    listed = list_schedule(topology, mbs, costs)
    bound = lower_bound(number(topology, mbs, costs, Fraction(1, 2)).problem) / Fraction(2)
    assert bound <= listed.lower_bound <= listed.makespan
    assert listed.lower_bound <= best
    if len(every) == len(every_schedule(name)):
        assert listed.makespan <= best


@pytest.mark.parametrize("mbs", [2, 3, 4])
def test_two_ranks_with_equal_f_i_and_w_wait_for_the_first_forward_only(mbs):
    """Zero-bubble's bound: the second rank begins after one F and never waits again."""
    problem = number(chain([0, 1], split=True), mbs, Costs(lambda key: 1), Fraction(1)).problem
    assert searched(problem) == lower_bound(problem) == 1 + 3 * mbs


@pytest.mark.parametrize(("ranks", "mbs"), [(2, 4), (3, 3), (4, 4)])
def test_nothing_beats_1f1b_and_gpipe_without_latency(ranks, mbs):
    costs = Costs(lambda key: 1 if key.phase == FORWARD else 2)
    assert searched(number(chain(range(ranks)), mbs, costs, Fraction(1)).problem) == 3 * (
        mbs + ranks - 1
    )


def test_a_search_that_is_cut_off_proves_nothing():
    costs = Costs(lambda key: 1 + key.stage)
    problem = number(chain([0, 1, 2, 0, 1, 2]), 4, costs, Fraction(1)).problem
    assert searched(problem, nodes=10) is None
