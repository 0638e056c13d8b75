"""The placement solver: what it finds is what trying all placements finds, and it says so."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from partitioner.solve import (
    STRATEGIES,
    Budget,
    InfeasibleError,
    Problem,
    Transfer,
    contiguous,
    evaluate,
    noncontiguous,
    published,
    solve,
    violations,
)
from partitioner.solve import down_sets as down_sets_module
from partitioner.solve.bounds import lower_bound
from partitioner.solve.down_sets import TooMany, down_sets
from partitioner.solve.elements import elements
from partitioner.solve.reduction import reduced
from symgraph.core.errors import PlacementError

# The whole definition is tried on each of these: colours, memory, kinds of device, free nodes.
SEEDS = range(240)


def random_problem(seed: int) -> Problem:
    """A small DAG in a random order of its nodes; now and then with everything that is allowed."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 8))
    order = rng.permutation(n)
    acc = rng.integers(0, 9, n) * (rng.random(n) < 0.8)
    cpu = acc * rng.integers(1, 4, n) if rng.random() < 0.7 else rng.integers(0, 20, n)
    memory = rng.integers(0, 5, n).astype(float)
    backward = (rng.random(n) < 0.35) & (rng.random() < 0.4)
    transfers = []
    for i, v in enumerate(order):
        targets = [w for w in order[i + 1 :] if rng.random() < 0.4]
        if backward[v] and rng.random() < 0.5:  # backward values may go any way
            targets = [w for w in order if w != v and backward[w] and rng.random() < 0.4]
        if targets:
            cost = float(rng.choice([0, 1, 2, 5, 20]))
            transfers.append(Transfer(int(v), tuple(map(int, targets)), cost))
    coloured = rng.random(n) < 0.5 * (rng.random() < 0.5)
    colours = np.where(coloured, rng.integers(0, 3, n), -1)
    return published(
        tuple(f"n{v}" for v in range(n)),
        np.where(rng.random(n) < 0.05, np.inf, acc),
        cpu.astype(float),
        memory,
        tuple(transfers),
        accelerators=int(rng.integers(1, 4)),
        cpus=int(rng.choice([0, 1, 1, 2])),
        memory_limit=math.inf if rng.random() < 0.5 else float(rng.integers(1, memory.sum() + 2)),
        colours=tuple(map(int, colours)),
        backward=tuple(backward),
    )


def limited_to(problem: Problem, limit: float) -> Problem:
    """The same with that much memory on each accelerator."""
    accelerator, *others = problem.kinds
    return replace(problem, kinds=(replace(accelerator, memory_limit=limit), *others))


def brute_force(problem: Problem, *, contiguous: bool) -> float:
    """The smallest largest load of all feasible placements; inf for none."""
    return min(
        (
            max(load.total for load in evaluate(problem, placed))
            for placed in itertools.product(range(problem.devices), repeat=len(problem.names))
            if not violations(problem, placed, contiguous=contiguous)
        ),
        default=math.inf,
    )


def found(problem: Problem, strategy: str) -> float:
    """The load a strategy reaches, after all that it claims has been checked."""
    try:
        solution = solve(problem, strategy, time_limit=30)
    except InfeasibleError:
        return math.inf
    contiguous = strategy != "noncontiguous"
    assert not violations(problem, solution.assignment, contiguous=contiguous)
    assert solution.loads == evaluate(problem, solution.assignment)
    assert solution.max_load == max(load.total for load in solution.loads)
    assert solution.lower_bound <= solution.max_load
    return solution.max_load


def small_problems() -> list[Problem]:
    problems = [random_problem(seed) for seed in SEEDS]
    return [p for p in problems if p.devices ** len(p.names) <= 2_200]


@pytest.mark.slow
def test_the_contiguous_optimum_is_what_trying_everything_finds():
    problems = small_problems()
    assert len(problems) >= 200
    infeasible = 0
    for problem in problems:
        best = brute_force(problem, contiguous=True)
        infeasible += math.isinf(best)
        assert found(problem, "downsets") == pytest.approx(best, abs=1e-9), problem
        if not math.isinf(best):
            assert lower_bound(problem) <= best + 1e-9
            assert solve(problem).optimal
    assert 5 < infeasible < len(problems) / 2, "the problems no longer try both"


@pytest.mark.slow
def test_placements_without_order_are_what_trying_everything_finds():
    for problem in small_problems()[:40]:
        best = brute_force(problem, contiguous=False)
        assert found(problem, "noncontiguous") == pytest.approx(best, abs=1e-9), problem


@pytest.mark.slow
def test_chains_of_every_small_length_over_every_number_of_devices():
    rng = np.random.default_rng(1)
    for n, k in itertools.product(range(1, 9), range(1, 5)):
        times = rng.integers(1, 20, n).astype(float)
        chain = published(
            tuple(map(str, range(n))),
            times,
            times,
            np.zeros(n),
            tuple(Transfer(v, (v + 1,), float(rng.integers(0, 6))) for v in range(n - 1)),
            k,
        )
        best = min(
            max(load.total for load in evaluate(chain, np.searchsorted(cut, range(n), "right")))
            for pieces in range(1, min(k, n) + 1)
            for cut in itertools.combinations(range(1, n), pieces - 1)
        )
        for strategy in ("chain", "downsets"):
            assert found(chain, strategy) == pytest.approx(best)
        placed = solve(chain).assignment
        assert len(placed) == n
        assert list(placed) == sorted(placed), "each kind is numbered along the chain"


def diamonds(
    count: int, width: int, rng: np.random.Generator, *, cost: float = 1.0, devices: int = 3
) -> Problem:
    """Diamonds in a row: from one node to `width` branches of two and together again."""
    names, arcs, last = ["s"], [], 0
    for _ in range(count):
        ends = []
        for _ in range(width):
            names += ["a", "b"]
            arcs += [(last, len(names) - 2), (len(names) - 2, len(names) - 1)]
            ends.append(len(names) - 1)
        names.append("j")
        arcs += [(v, len(names) - 1) for v in ends]
        last = len(names) - 1
    n = len(names)
    targets = {v: tuple(b for a, b in arcs if a == v) for v in range(n)}
    times = rng.lognormal(0, 1, n)
    return published(
        tuple(f"{x}{i}" for i, x in enumerate(names)),
        times,
        times * 5,
        rng.integers(1, 9, n),
        tuple(Transfer(v, to, cost * rng.lognormal(0, 1)) for v, to in targets.items() if to),
        devices,
    )


def permuted(problem: Problem, order: np.ndarray) -> Problem:
    """The same problem with node order[i] as its node i."""
    new = {int(v): i for i, v in enumerate(order)}
    transfers = [
        Transfer(new[t.source], tuple(new[v] for v in t.targets), t.cost) for t in problem.transfers
    ]
    return replace(
        problem,
        names=tuple(problem.names[v] for v in order),
        kinds=tuple(
            replace(k, times=k.times[order], moves=None if k.moves is None else k.moves[::-1])
            for k in problem.kinds
        ),
        memory=problem.memory[order],
        transfers=tuple(reversed(transfers)),
        colours=tuple(problem.colours[v] for v in order),
        backward=tuple(problem.backward[v] for v in order),
    )


@pytest.mark.slow
def test_the_optimum_does_not_depend_on_the_order_of_the_nodes():
    rng = np.random.default_rng(3)
    worse = 0
    for _ in range(8):
        problem = diamonds(5, 4, rng, cost=0.3)
        limited = limited_to(problem, float(problem.memory.sum()) / 3 * 1.1)
        best = solve(limited)
        assert best.optimal
        other = solve(permuted(limited, rng.permutation(len(problem.names))))
        assert other.max_load == pytest.approx(best.max_load, rel=1e-12)
        chain = found(limited, "chain")
        assert chain >= best.max_load * (1 - 1e-12)
        worse += chain > best.max_load * 1.0001
    assert worse > 0, "one order is enough for all of these: they test nothing"


def test_communication_decides_where_to_cut():
    """The even cut, after b, moves a large value; the optimum pays for a small one.

    a(2) --1-- b(2) --9-- c(2) --1-- d(2)
    """
    problem = published(
        tuple("abcd"),
        np.full(4, 2.0),
        np.full(4, 2.0),
        np.zeros(4),
        (Transfer(0, (1,), 1.0), Transfer(1, (2,), 9.0), Transfer(2, (3,), 1.0)),
        2,
    )
    assert solve(problem).max_load == 7.0
    silent = replace(problem, transfers=tuple(replace(t, cost=0.0) for t in problem.transfers))
    assert solve(silent).max_load == 4.0
    assert max(load.total for load in evaluate(problem, (0, 0, 1, 1))) == 13.0


def test_a_value_is_paid_once_by_each_device_however_many_nodes_read_it():
    problem = published(
        tuple("abcd"), np.ones(4), np.ones(4), np.full(4, 8.0), (Transfer(0, (1, 2, 3), 2.0),), 2, 1
    )
    loads = evaluate(problem, (0, 1, 1, 2))
    assert [(x.device, x.compute, x.incoming, x.outgoing, x.memory) for x in loads] == [
        ("acc:0", 1.0, 0.0, 2.0, 8.0),
        ("acc:1", 2.0, 2.0, 0.0, 16.0),
        ("cpu:0", 1.0, 0.0, 0.0, 8.0),
    ]


@pytest.mark.slow
def test_too_little_memory_is_told_with_the_smallest_limit_that_works():
    rng = np.random.default_rng(5)
    for strategy in ("downsets", "noncontiguous"):
        problem = limited_to(diamonds(2, 2, rng), 3.0)
        with pytest.raises(InfeasibleError, match="the smallest limit that works is") as caught:
            solve(problem, strategy, time_limit=5)
        limit = int(str(caught.value).split()[-2])
        solve(limited_to(problem, limit), strategy, time_limit=5)
        with pytest.raises(InfeasibleError):
            solve(limited_to(problem, limit - 1), strategy, time_limit=5)


def test_what_can_run_nowhere_is_named():
    problem = partial(published, ("a", "b"), np.array([1.0, np.inf]), np.ones(2), np.zeros(2), ())
    with pytest.raises(InfeasibleError, match="node b can run on none of 1 accelerators and 0 CPU"):
        solve(problem(1))
    assert solve(problem(1, cpus=1)).max_load == 1.0
    for backward in (False, True):
        with pytest.raises(InfeasibleError, match="there is no device"):
            solve(problem(0, backward=(backward, backward)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accelerator": np.ones(3)}, "acc: times"),
        ({"cpu": np.array([1.0, np.nan])}, "cpu: times of node b"),
        ({"memory": np.array([1.0, -1.0])}, "memory of node b"),
        ({"transfers": (Transfer(0, (2,), 1.0),)}, "refers to a node that does not exist"),
        (
            {"transfers": (Transfer(0, (1,), math.inf),)},
            "cost of a transfer must be finite and >= 0",
        ),
        ({"accelerators": -1}, "acc: the number of devices must be >= 0, not -1"),
        ({"colours": (1,)}, "one value for each of 2 nodes"),
        ({"memory_limit": -2.0}, "acc: the memory limit"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(change, message):
    given = {
        "names": ("a", "b"),
        "accelerator": np.ones(2),
        "cpu": np.ones(2),
        "memory": np.zeros(2),
        "transfers": (),
        "accelerators": 1,
    }
    with pytest.raises(PlacementError, match=message):
        published(**given | change)


def test_an_unknown_strategy_lists_the_known_ones():
    problem = published(("a",), np.ones(1), np.ones(1), np.zeros(1), (), 1)
    with pytest.raises(PlacementError, match="did you mean 'downsets'"):
        solve(problem, "downset")
    assert set(STRATEGIES) == {"chain", "downsets", "noncontiguous"}


@pytest.mark.parametrize("seed", range(5))
def test_down_sets_are_all_sets_that_hold_what_comes_before_their_members(seed):
    rng = np.random.default_rng(seed)
    n = 8
    arcs = frozenset((a, b) for a in range(n) for b in range(a + 1, n) if rng.random() < 0.3)
    closed = {
        some for some in range(1 << n) if all(some >> a & 1 for a, b in arcs if some >> b & 1)
    }
    family = down_sets(n, arcs)
    listed = family.bits[:, 0].tolist()
    assert sorted(listed) == sorted(closed)
    for i, some in enumerate(listed):
        steps = slice(family.starts[i], family.starts[i + 1])
        added = family.added[steps].tolist()
        ready = [v for v in range(n) if not some >> v & 1 and some | 1 << v in closed]
        assert added == ready
        assert [listed[j] for j in family.steps[steps]] == [some | 1 << v for v in ready]


def test_a_family_that_is_too_large_is_counted_once(monkeypatch):
    """All strategies, for all numbers of devices, counted to the limit again."""
    counted = []
    count = down_sets_module._enumerate
    monkeypatch.setattr(
        down_sets_module, "_enumerate", lambda *args: counted.append(1) or count(*args)
    )
    for _ in range(3):
        with pytest.raises(TooMany):
            down_sets(14, frozenset({(12, 13)}), 10_000)
    assert len(counted) == 2  # with 4,096 places and with 10,001
    assert len(down_sets(14, frozenset({(12, 13)}), 20_000)) == 3 << 12


def test_a_wide_level_tells_without_counting_that_a_family_is_too_large(monkeypatch):
    """Planning a seq2seq counted to three million eight times, for a tenth of its time."""
    monkeypatch.setattr(down_sets_module, "_enumerate", lambda *args: pytest.fail("counted"))
    fan = {(0, v) for v in range(1, 14)} | {(v, 14) for v in range(1, 14)}
    with pytest.raises(TooMany):
        down_sets(15, frozenset(fan), (1 << 13) + 1)
    monkeypatch.undo()
    assert len(down_sets(15, frozenset(fan), (1 << 13) + 2)) == (1 << 13) + 2


def test_dead_ends_and_masks_do_not_multiply_the_down_sets():
    """As in the published gnmt graph: every step has an output that nobody reads, and all read
    one mask. Each would double the family."""
    n = 40
    steps = [Transfer(v, (v + 1, n + v), 1.0) for v in range(n - 1)]
    mask = Transfer(2 * n, tuple(range(5, n)), 0.0)
    times = np.concatenate([np.ones(n), np.zeros(n + 1)])
    problem = published(
        tuple(map(str, range(2 * n + 1))),
        times,
        times * 10,
        np.ones(2 * n + 1),
        (*steps, mask),
        4,
        1,
    )
    core = elements(problem, contiguous=True)
    with pytest.raises(TooMany):
        down_sets(len(core), core.arcs, 100_000)
    small = reduced(core)
    assert len(down_sets(len(small), small.arcs)) <= 2 * n
    assert solve(problem).max_load == 11.0 + 1.0  # 11 + 9 + 9 + 11 with one or two cuts each
    assert solve(problem).optimal


@pytest.mark.slow
def test_a_graph_too_wide_to_enumerate_gets_a_placement_and_an_honest_bound():
    rng = np.random.default_rng(0)
    wide = diamonds(1, 40, rng, cost=0.05)
    solution = solve(wide, time_limit=5)
    assert not violations(wide, solution.assignment, contiguous=True)
    assert lower_bound(wide) <= solution.lower_bound <= solution.max_load
    assert solution.max_load <= found(wide, "chain") * (1 + 1e-12)


def test_a_graph_too_wide_even_for_bands_keeps_its_placement(monkeypatch):
    """Where no band could be enumerated, a name without a value ended the search."""
    monkeypatch.setattr(contiguous, "MAX_BAND_SETS", 2)
    core = elements(diamonds(1, 20, np.random.default_rng(0), cost=0.05), contiguous=True)
    start = contiguous._start(core)
    assert contiguous._banded(core, start, Budget(steps=1e6)) is start


@pytest.mark.slow
def test_without_order_is_never_worse_than_contiguous():
    rng = np.random.default_rng(9)
    for _ in range(3):
        problem = diamonds(3, 3, rng, cost=0.2)
        contiguous = solve(problem)
        anywhere = solve(problem, "noncontiguous", time_limit=2)
        assert anywhere.max_load <= contiguous.max_load
        assert anywhere.lower_bound <= contiguous.max_load


def test_the_start_is_the_best_if_what_must_be_together_has_no_device(monkeypatch):
    """As when rounding joins what the start itself cuts; all placements were tried, without end."""
    problem = diamonds(2, 3, np.random.default_rng(9), cost=0.2)
    start = solve(problem)
    monkeypatch.setattr(noncontiguous, "options", lambda core: [[0], []])
    anywhere = solve(problem, "noncontiguous")
    assert anywhere.max_load == pytest.approx(start.max_load)
    assert anywhere.optimal


SAME_PLAN = """
import numpy as np
from partitioner.solve import solve
from tests.partitioner.solve.test_solve import diamonds
problem = diamonds(1, 3, np.random.default_rng(2), cost=0.2)
print(solve(problem).assignment, solve(problem, "noncontiguous").assignment)
"""


@pytest.mark.slow
def test_another_process_with_another_hash_seed_finds_the_same_plan():
    plans = {
        subprocess.run(
            [sys.executable, "-c", SAME_PLAN],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(plans) == 1
