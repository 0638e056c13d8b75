"""The solver on devices of several kinds: other speeds, limits and links; and its budget."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from partitioner.solve import (
    STRATEGIES,
    Budget,
    InfeasibleError,
    Kind,
    Problem,
    Transfer,
    solve,
    violations,
)
from partitioner.solve.bounds import lower_bound
from partitioner.solve.budget import Stopped
from partitioner.solve.prices import best_prices, priced
from tests.partitioner.solve.test_solve import brute_force, diamonds, found


def random_problem(seed: int) -> Problem:
    """A small DAG on two or three kinds of device; on some kinds some nodes cannot run."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    order = rng.permutation(n)
    transfers = []
    for i, v in enumerate(order):
        targets = [int(w) for w in order[i + 1 :] if rng.random() < 0.45]
        if targets:
            transfers.append(Transfer(int(v), tuple(targets), float(rng.integers(0, 6))))
    memory = rng.integers(0, 5, n).astype(float)
    base = rng.integers(0, 9, n).astype(float)
    kinds = []
    for name in ("fast", "slow", "odd")[: int(rng.integers(2, 4))]:
        times = base * float(rng.choice([1, 2, 10]))
        if name == "odd":
            times = rng.integers(0, 20, n).astype(float)
        times = np.where(rng.random(n) < 0.1, np.inf, times)
        moves = None if rng.random() < 0.4 else rng.integers(0, 6, len(transfers)).astype(float)
        limit = math.inf if rng.random() < 0.5 else float(rng.integers(1, memory.sum() + 2))
        kinds.append(Kind(name, int(rng.choice([0, 1, 1, 2])), times, moves, limit))
    if not any(kind.count for kind in kinds):
        kinds[0] = replace(kinds[0], count=1)
    colours = tuple(int(c) for c in np.where(rng.random(n) < 0.2, rng.integers(0, 2, n), -1))
    backward = tuple((rng.random(n) < 0.3) & (rng.random() < 0.3))
    return Problem(
        tuple(f"n{v}" for v in range(n)), tuple(kinds), memory, tuple(transfers), colours, backward
    )


def small_problems(count: int) -> list[Problem]:
    problems = (random_problem(seed) for seed in range(2 * count))
    return [p for p in problems if p.devices ** len(p.names) <= 2_200][:count]


@pytest.mark.slow
def test_the_contiguous_optimum_on_several_kinds_is_what_trying_everything_finds():
    infeasible = several = 0
    problems = small_problems(220)
    assert len(problems) >= 200
    for problem in problems:
        best = brute_force(problem, contiguous=True)
        infeasible += math.isinf(best)
        several += sum(kind.count > 0 for kind in problem.kinds) > 1
        assert found(problem, "downsets") == pytest.approx(best, abs=1e-9), problem
        assert found(problem, "chain") >= best - 1e-9
        if not math.isinf(best):
            assert solve(problem).optimal
            assert lower_bound(problem) <= best + 1e-9
    assert 5 < infeasible < 110
    assert several > 100


@pytest.mark.slow
def test_placements_without_order_on_several_kinds_are_what_trying_everything_finds():
    for problem in small_problems(20):
        best = brute_force(problem, contiguous=False)
        assert found(problem, "noncontiguous") == pytest.approx(best, abs=1e-9), problem


def test_an_element_that_one_device_alone_can_run_needs_no_count_of_devices():
    """Ten pinned devices of ten kinds: 2^10 sets of them would be counted otherwise."""
    n = 30
    times = [np.where(np.arange(n) % 3 == 0, np.inf, 1.0 + d % 4) for d in range(10)]
    for d, row in enumerate(times):
        row[3 * ((d * 7) % 10)] = 2.0
    kinds = tuple(Kind(f"k{d}", 1, row) for d, row in enumerate(times))
    chain = Problem(
        tuple(map(str, range(n))),
        kinds,
        np.zeros(n),
        tuple(Transfer(v, (v + 1,), 0.25) for v in range(n - 1)),
    )
    placed = solve(chain)
    assert placed.optimal
    assert not violations(chain, placed.assignment, contiguous=True)
    for d in range(10):
        assert placed.assignment[3 * ((d * 7) % 10)] == d


@pytest.mark.parametrize("seed", range(20))
def test_prices_give_the_load_of_a_fractional_placement(seed):
    """No two kinds of proportional times: the bound is above that of equal prices, and right for
    one node cut in shares."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 4, 3).astype(float)
    times = rng.random((3, 12)) + 0.1
    best = best_prices(times, counts)

    def bound(price: np.ndarray) -> float:
        return float(priced(times, price).sum() / (counts * price).sum())

    assert bound(best) >= max(bound(np.ones(3)), bound(rng.random(3) + 0.1)) - 1e-9
    one = times[:, :1]
    shares = best_prices(one, counts)
    assert float(priced(one, shares).sum() / (counts * shares).sum()) == pytest.approx(
        1 / float((counts / one[:, 0]).sum())
    )


@pytest.mark.slow
def test_a_search_that_steps_end_ends_at_the_same_placement_and_says_what_it_proved():
    rng = np.random.default_rng(4)
    problem = diamonds(4, 4, rng, cost=0.3)
    whole = solve(problem)
    assert whole.optimal
    for steps in (1, 1_000, 30_000):
        few = [STRATEGIES["downsets"](problem, Budget(steps=steps)) for _ in range(2)]
        assert few[0] == few[1]
        assert few[0].lower_bound <= whole.max_load <= few[0].max_load
    assert not STRATEGIES["downsets"](problem, Budget(steps=1)).optimal
    for steps in (10, 1e6):
        anywhere = [STRATEGIES["noncontiguous"](problem, Budget(steps=steps)) for _ in range(2)]
        assert anywhere[0] == anywhere[1]


def test_a_budget_is_spent_by_steps_or_by_the_clock():
    budget = Budget(steps=10)
    budget.take(4)
    assert not budget.spent
    assert budget.part(0.5).steps == 3
    with pytest.raises(Stopped):
        budget.take(6)
    assert budget.spent
    assert Budget(seconds=0.0).spent
    assert not Budget().spent


def test_memory_is_each_kinds_own():
    """The second node fits on the slow device alone."""
    kinds = (
        Kind("fast", 1, np.array([1.0, 1.0]), memory_limit=5.0),
        Kind("slow", 1, np.array([10.0, 10.0]), memory_limit=50.0),
    )
    problem = Problem(("a", "b"), kinds, np.array([4.0, 20.0]), ())
    assert solve(problem).assignment == (0, 1)
    heavier = replace(problem, memory=np.array([4.0, 60.0]))
    with pytest.raises(InfeasibleError, match="the smallest limit that works is 60 bytes"):
        solve(heavier)


def test_there_and_back_again_is_placed_though_no_row_of_devices_holds_it():
    """The ends of a chain run on one device only, and its middle on the other only."""
    never = math.inf
    kinds = (
        Kind("left", 1, np.array([1.0, never, 1.0])),
        Kind("right", 1, np.array([never, 1.0, never])),
    )
    row = Transfer(0, (1,), 0.25), Transfer(1, (2,), 0.25)
    problem = Problem(("a", "b", "c"), kinds, np.zeros(3), row)
    assert STRATEGIES["downsets"](problem, Budget()) is None
    found = STRATEGIES["noncontiguous"](problem, Budget())
    assert found is not None
    assert tuple(found.assignment) == (0, 1, 0)
    assert found.max_load == found.lower_bound == 2.5
