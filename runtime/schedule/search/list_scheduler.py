"""A list scheduler (`schedule: auto`): it weighs costs, messages and a memory limit.

Orders of runs come from the named schedules and from priority rules, the best are improved by
moving runs, and branch and bound ends the search if the problem is small. Candidates are lowered
and simulated as they will run; a lower bound says how much better the result could be at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from partitioner.base.types import BACKWARD, FORWARD, INPUT, WEIGHT, Topology
from partitioner.memory.memory_plan import MemoryPlan
from runtime.schedule.generators.gpipe import gpipe
from runtime.schedule.generators.segments import expand
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.lowering.lower import lower
from runtime.schedule.program import Program
from runtime.schedule.replay.memory import memory_profile
from runtime.schedule.replay.simulation import Costs, Simulator
from runtime.schedule.search.exact import lower_bound, solve
from runtime.schedule.search.exact_walk import tails
from runtime.schedule.search.list_scheduler_walk import build, improve, peak, replay
from runtime.schedule.search.problem import (
    NEVER,
    Array,
    Memory,
    Problem,
    memory_of,
    number,
    relaxed,
    unlimited,
)

MAX_SEARCH_RUNS = 1 << 16  # with more runs, only named schedules are tried
MAX_EXACT_RUNS = 1000  # with more runs, no branch and bound
MAX_WAITING_RUNS = 50  # with more runs, no branch and bound with ranks that wait for memory
MAX_NODE_RUNS = 5_000_000  # of branch and bound: nodes times runs
MAX_MOVES, MAX_MOVE_RUNS = 12_000, 40_000_000  # that improve an order: moves, and moves times runs
IMPROVED_ORDERS = 3
NEGLIGIBLE = 500  # this part of the makespan is not worth a search
MEMORY_ROUNDS = 6  # in each of which the list scheduler has less room
PATIENCE = (0.0, 0.5, 1.0)
FORWARD_LAST = {FORWARD: 1, BACKWARD: 2, INPUT: 2, WEIGHT: 0}
FORWARD_FIRST = {FORWARD: 2, BACKWARD: 1, INPUT: 1, WEIGHT: 0}


class ListSchedule(NamedTuple):
    """A schedule that the list scheduler found."""

    #: What each rank runs, in order, segments included.
    compute: list[Program]
    #: Seconds, simulated with the times of bodies while all ranks of a host work.
    makespan: Fraction
    #: Seconds; no schedule of these bodies that keeps to the memory limit is shorter, even where
    #: other ranks wait and bodies take less time.
    lower_bound: Fraction
    #: Whether no schedule has a shorter makespan.
    optimal: bool


class _Trial(NamedTuple):
    """Programs as they would run."""

    compute: list[Program]
    makespan: Fraction
    peak: int
    #: By rank: bytes beyond the limit.
    excess: Array

    @property
    def fits(self) -> bool:
        """Whether no rank exceeds the limit."""
        return not (self.excess > 0).any()

    @property
    def worth(self) -> tuple[bool, Fraction | int, Fraction | int]:
        """The key by which the least trial is the best."""
        if self.fits:
            return False, self.makespan, self.peak
        return True, self.peak, self.makespan


def list_schedule(
    topology: Topology,
    mbs: int,
    costs: Costs,
    *,
    memory: MemoryPlan | None = None,
    limit: int | Sequence[int | None] | None = None,
    beat: float = inf,
) -> ListSchedule:
    """Search for the shortest schedule; it is never longer than one of SCHEDULES within the limit.

    If no schedule that is found keeps to the limit, it is the one that needs the least memory. The
    same arguments give the same schedule.

    Args:
        memory: What bodies hold; needed for a limit.
        limit: Bytes that each rank may hold, one number for all or one of each; None: any number.
        beat: Seconds; schedules that take as long or longer need not be searched for.
    """
    bench = _Bench(topology, mbs, costs, memory, _limits(limit, topology.ranks))
    bound = lower_bound(bench.problem)
    enough = bench.enough(bound)
    below = NEVER if beat == inf else ceil(Fraction(beat) / bench.numbered.unit)
    for name in SCHEDULES:
        bench.try_named(name)
    pays = bound < below or not bench.best.fits
    if pays and bench.runs <= MAX_SEARCH_RUNS and bench.best_ticks > enough:
        _build(bench)
        _improve(bench, enough)
    if pays and bench.runs <= MAX_EXACT_RUNS and bench.best_ticks > enough:
        bound = max(bound, _solve(bench, below))
    best, lower = bench.best, bound * bench.numbered.unit
    proved = best.fits and best.makespan == lower
    if costs.alone is not None:
        lower = min(lower, bench.bound_of(replace(costs, run=costs.alone, alone=None)))
    return ListSchedule(best.compute, best.makespan, lower, proved)


class _Bench:
    """A bench for schedules, which are lowered and simulated, and their memory counted."""

    def __init__(
        self,
        topology: Topology,
        mbs: int,
        costs: Costs,
        plan: MemoryPlan | None,
        limit: Array | None,
    ) -> None:
        self.topology, self.mbs = topology, mbs
        self.plan, self.limit = plan, limit
        self.segments = 1 + max((key.segment for key in topology.bodies), default=0)
        first = lower(topology, expand(gpipe(topology.rank_of, mbs), self.segments))
        self.simulator = Simulator(topology, costs)
        unit = self.simulator.timeline(first).unit
        self.numbered = number(topology, mbs, costs, unit)
        self.problem = self.numbered.problem
        self.runs = len(self.numbered.keys) * mbs
        self.tried: list[tuple[_Trial, Array]] = []  # with their orders

    def bound_of(self, costs: Costs) -> Fraction:
        """Return a lower bound, in seconds, of all schedules with other costs."""
        numbered = number(self.topology, self.mbs, costs, self.numbered.unit)
        return lower_bound(numbered.problem) * numbered.unit

    @property
    def best(self) -> _Trial:
        """The best trial so far."""
        return min((trial for trial, _ in self.tried), key=lambda trial: trial.worth)

    @property
    def best_ticks(self) -> int:
        """The shortest makespan in ticks; NEVER if no trial keeps to the limit."""
        return self.ticks(self.best) if self.best.fits else NEVER

    def enough(self, bound: int) -> int:
        """Return the ticks beyond which a search pays; the bound leaves out receives and frees."""
        p = self.problem
        left_out = np.bincount(np.concatenate((p.rank, p.rank[p.dst]))) * p.mbs * p.overhead
        return bound + min(int(left_out.max()), bound // NEGLIGIBLE)

    def try_named(self, name: str) -> None:
        """Try a schedule of SCHEDULES, if it runs all bodies of this topology."""
        compute = expand(SCHEDULES[name](self.topology.rank_of, self.mbs), self.segments)
        order = self.numbered.order(compute)
        if order is not None and self._known(order) is None:
            self._try(compute, order)

    def try_order(self, order: Array) -> _Trial:
        """Try the schedule of an order, unless it was tried before."""
        return self._known(order) or self._try(self.numbered.programs(order), order)

    def _known(self, order: Array) -> _Trial | None:
        return next((trial for trial, other in self.tried if np.array_equal(order, other)), None)

    def _try(self, compute: list[Program], order: Array) -> _Trial:
        schedule = lower(self.topology, compute)
        makespan = self.simulator.timeline(schedule).exact
        peaks = [0]
        if self.plan is not None:
            memory = memory_profile(schedule, self.topology, self.plan, self.mbs)
            peaks = [rank.peak for rank in memory]
        excess = np.array(peaks, np.int64) - (max(peaks) if self.limit is None else self.limit)
        trial = _Trial(compute, makespan, max(peaks), np.maximum(excess, 0))
        self.tried.append((trial, order))
        return trial

    def memory(self) -> Memory:
        """Return what orders hold, and the limits."""
        if self.limit is None:
            return unlimited(self.problem)
        assert self.plan is not None, "a memory limit needs a memory plan"
        return memory_of(self.numbered, self.plan, self.limit)

    def ticks(self, trial: _Trial) -> int:
        """Return the makespan in ticks, rounded up."""
        return ceil(trial.makespan / self.numbered.unit)

    def length(self, order: Array) -> int:
        """Return the ticks of an order, without what only lowering and simulation know."""
        start = np.empty((len(self.numbered.keys), self.mbs), np.int64)
        return int(replay(self.problem, order, start, start.copy()))


def _limits(limit: int | Sequence[int | None] | None, ranks: int) -> Array | None:
    """Return the limit of each rank; None: none has one."""
    each = [limit] * ranks if limit is None or isinstance(limit, int) else [*limit]
    if all(x is None for x in each):
        return None
    return np.array([NEVER if x is None else x for x in each], np.int64)


def _build(bench: _Bench) -> None:
    """Try the best orders that follow from priorities, with less and less room until one fits."""
    p, memory = bench.problem, bench.memory()
    one = np.zeros_like(memory.room)
    for rank in range(p.ranks):
        bodies = p.bodies[p.bodies_first[rank] : p.bodies_first[rank + 1]]
        one[rank] = peak(memory, np.tile(bodies, p.mbs), np.zeros(len(p.run), np.int64))
    phases = [key.phase for key in bench.numbered.keys]
    rules = [(rule, patience) for rule in priorities(p, phases) for patience in PATIENCE]
    for _ in range(MEMORY_ROUNDS):
        memory = memory._replace(room=np.maximum(memory.room, one))
        orders = [build(p, rule, patience, memory) for rule, patience in rules]
        orders.sort(key=bench.length)
        trials = [bench.try_order(order) for order in _distinct(orders)[:IMPROVED_ORDERS]]
        least = min(trials, key=lambda trial: trial.worth)
        if least.fits or (memory.room[least.excess > 0] <= one[least.excess > 0]).all():
            return
        memory = memory._replace(room=memory.room - least.excess)


def priorities(problem: Problem, phases: Sequence[str]) -> Iterator[Array]:
    """Yield priorities [body, micro-batch]; of several runs that can begin, the highest does.

    One rule prefers the longest way to the end; the others backward phases before forward ones, or
    the reverse, then the oldest micro-batch, and weight gradients when nothing else can run.

    Args:
        phases: of the bodies.
    """
    easy = relaxed(problem)
    left = easy.run[:, None] + tails(easy)
    older = np.broadcast_to(-np.arange(easy.mbs), left.shape)
    yield _ranked(older, left)
    for turn in (FORWARD_LAST, FORWARD_FIRST):
        phase = np.array([turn[phase] for phase in phases])
        yield _ranked(left, older, np.broadcast_to(phase[:, None], left.shape))


def _ranked(*keys: Array) -> Array:
    """Return the rank of every entry, sorted by the last key, then by the one before it."""
    places = np.empty(keys[0].size, np.int64)
    places[np.lexsort([key.ravel() for key in keys])] = np.arange(places.size)
    return places.reshape(keys[0].shape)


def _distinct(orders: Iterable[Array]) -> list[Array]:
    return list({order.tobytes(): order for order in orders}.values())


def _improve(bench: _Bench, enough: int) -> None:
    """Improve the best orders by moving runs."""
    memory = bench.memory()
    fitting = sorted((t.worth, i) for i, (t, _) in enumerate(bench.tried) if t.fits)
    starts = _distinct(bench.tried[i][1] for _, i in fitting)[:IMPROVED_ORDERS]
    for order in starts:
        order = order.copy()
        improve(bench.problem, memory, order, min(MAX_MOVES, MAX_MOVE_RUNS // bench.runs), enough)
        bench.try_order(order)


def _solve(bench: _Bench, below: int) -> int:
    """Search all orders that take less than `below` ticks.

    Returns:
        A lower bound of the ticks of all orders, 0 if the search is cut off.
    """
    p = bench.problem

    def judge(order: Array) -> int:
        trial = bench.try_order(order)
        return bench.ticks(trial) if trial.fits else NEVER

    nodes, lower = MAX_NODE_RUNS // bench.runs, 0
    if bench.best.fits:  # or else what is short is not wanted, but what holds little
        lower = solve(p, min(bench.best_ticks, below), judge, nodes=nodes) or 0
    wanted = min(bench.best_ticks, below)
    if bench.limit is not None and lower < wanted and bench.runs <= MAX_WAITING_RUNS:
        within = solve(p, wanted, judge, nodes=nodes, memory=bench.memory()) or 0
        lower = max(lower, within) if bench.best.fits else lower
    return lower
