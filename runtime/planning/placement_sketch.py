"""Sketches: networks in outline, whose step is estimated for thousands of placements.

A placement's real step takes a cut graph, its bodies and its programs. A sketch derives bodies and
edges from an outline, and the list scheduler's clock times the orders of the named schedules. The
estimate differs from the simulation of the cut graph by little more than the dispatch of some
instructions, unless products over time merge differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from partitioner.base.stages import Unit, join_units
from partitioner.base.types import BACKWARD, FORWARD, INPUT, PHASES, WEIGHT
from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.solve.prices import priced
from partitioner.strategies.coarse import Coarse, node_times
from runtime.backends.cpu.gemm import packed_rows
from runtime.planning.costs.overheads import COPY_SECONDS, tree_passes
from runtime.planning.costs.prices import CostModel
from runtime.planning.memory_sketch import BothWays, MemorySketch
from runtime.planning.network import Network
from runtime.planning.options import AUTO, Options
from runtime.planning.outline import Outline, outline
from runtime.planning.schedule_choice import compute_lists, splits_backward
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import RUN
from runtime.schedule.message_costs import meeting_seconds
from runtime.schedule.program import Columns, Program
from runtime.schedule.replay import Link
from runtime.schedule.replay.facts import Lists
from runtime.schedule.search.list_scheduler import priorities
from runtime.schedule.search.list_scheduler_walk import build, replay
from runtime.schedule.search.problem import NEVER, Problem, unlimited
from symgraph.core.types import Array

TICK = 1e-12  # seconds
TIGHT_RULES = 2  # of the list scheduler, where memory is limited
MEMORY_WORK = 4  # times the work of an estimate without memory limits
EXCESS = 10.0  # times the step for each time that memory exceeds the limit
UNSPLIT = {FORWARD: FORWARD, INPUT: BACKWARD, WEIGHT: BACKWARD}
EARLIER = {BACKWARD: (FORWARD,), INPUT: (FORWARD,), WEIGHT: (INPUT, FORWARD), FORWARD: ()}

Key = tuple[int, str]  # of a body: stage and phase
Devices = Sequence[int]  # class -> device


class _Made(NamedTuple):
    """The bodies of a placement, and the named schedules' orders of them."""

    devices: Devices
    stage_of: Sequence[int]  # atom -> stage
    rank_of: tuple[int, ...]
    keys: Mapping[Key, int]
    problem: Problem
    orders: Sequence[Array]
    memory: BothWays | None


class Sketch:
    """A network in outline with what it costs on a machine."""

    def __init__(
        self, network: Network, options: Options, coarse: Coarse, costs: Costs, prices: CostModel
    ) -> None:
        self.coarse, self.mbs = coarse, len(network.sizes)
        self._names = tuple(SCHEDULES) if options.schedule == AUTO else (options.schedule,)
        self._order = options.order
        self._lists = options.schedule == AUTO and not options.named_only
        self._outline = outline(network.first, coarse.of, len(coarse))
        self._contexts = coarse.machine.contexts
        self._overhead = round(float(prices.overhead) / TICK)
        self._prices = prices
        machine = coarse.machine
        times, updates = seconds_of(
            network, options, self._outline, coarse.of, machine, costs, prices
        )
        self._ticks = np.rint(times / TICK).astype(np.int64)
        self._updates = updates
        self._links: dict[tuple[int, int], Link] = {}
        self._meeting = meeting_seconds_of(network, options, machine, prices)
        self._wires: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        limits = options.limits(self._contexts)
        self._limits = np.array([np.inf if x is None else x for x in limits], np.float64)
        self._memory: MemorySketch | None = None
        self._recompute = options.recompute
        if np.isfinite(self._limits).any():
            self._memory = MemorySketch(
                network, self._outline, options.slots, coarse.machine, costs
            )
        own = [i for i, item in enumerate(self._outline.items) if item.terms is None]
        homes = np.array([self._outline.classes[self._outline.items[i].atom] for i in own])
        self._work = np.stack([np.bincount(homes, row[own], len(coarse)) for row in self._ticks])
        self._orders: dict[object, list[Array]] = {}

    @cached_property
    def bound(self) -> float:
        """Seconds that no step is shorter than.

        They are those of all work spread evenly, and of the longest way through the graph if each
        item ran on its fastest device.
        """
        least = self._ticks.min(axis=0)
        total = self._ticks.sum(axis=1)
        price = total.min() / np.maximum(total, 1)
        spread = priced(self._ticks, price).sum() / price.sum() * self.mbs
        ends = least.copy()
        for source, readers, _, _ in self._outline.flows:
            for reader in readers:
                ends[reader] = max(ends[reader], ends[source] + least[reader])
        return float(max(spread, ends.max())) * TICK

    @property
    def work(self) -> int:
        """The number of items, values and runs that an estimate looks at, about."""
        made = self._outline
        work = len(made.items) + len(made.flows) + 4 * self.mbs * len(self._contexts)
        return work if self._memory is None else MEMORY_WORK * work

    def calibrate(self, peaks: Iterable[tuple[Devices, int]]) -> None:
        """Learn from the bytes of some placements by what share estimates of them are too low."""
        ratios = [peak / max(self.peak(devices), 1) for devices, peak in peaks]
        if ratios:
            self._limits /= max(float(np.median(ratios)), 1e-9)

    def busy(self, devices: Devices) -> float:
        """Return the seconds that the busiest device computes: no step is shorter."""
        rows = np.asarray(devices)
        held = np.bincount(rows, self._work[rows, np.arange(len(rows))])
        return float(held.max()) * self.mbs * TICK

    def seconds(self, devices: Devices) -> float:
        """Estimate the step of a placement with the best named schedule.

        What exceeds the memory limit counts as time, many times over, so that a search leads to
        placements that fit.
        """
        best = np.inf
        for made in self._made(devices):
            orders = chain(made.orders, self._tight(made))
            for order in orders:
                best = min(best, self._timed(made, order, best))
        return float(best) + self._after(devices)

    def _timed(self, made: _Made, order: Array, best: float) -> float:
        """Return the seconds of an order, with those for what it holds beyond the limits.

        Args:
            best: seconds; an order that takes longer anyway is not weighed.
        """
        start = np.empty((len(made.keys), self.mbs), np.int64)
        cause = np.empty_like(start)
        seconds = float(replay(made.problem, order, start, cause))
        if made.memory is not None and seconds * TICK < best:
            problem, excess = self._limited(made, made.memory, order)
            if problem is not made.problem:
                seconds = float(replay(problem, order, start, cause))
            seconds *= 1 + EXCESS * excess
        return seconds * TICK

    def _tight(self, made: _Made) -> Iterator[Array]:
        """Yield the list scheduler's orders within the memory limits."""
        if made.memory is None or not self._lists:
            return
        rules = [*priorities(made.problem, [phase for _, phase in made.keys])]
        for memory in made.memory.rooms(made.problem, self._limits):
            for rule in rules[:TIGHT_RULES]:
                yield build(made.problem, rule, 1.0, memory)

    def listed(self, devices: Devices) -> float:
        """Estimate the step of a placement with the list scheduler's orders."""
        best = NEVER
        for made in self._made(devices):
            memory = unlimited(made.problem)
            start = np.empty((len(made.keys), self.mbs), np.int64)
            cause = np.empty_like(start)
            for rule in priorities(made.problem, [phase for _, phase in made.keys]):
                order = build(made.problem, rule, 1.0, memory)
                best = min(best, int(replay(made.problem, order, start, cause)))
        return best * TICK + self._after(devices)

    def by_kind(self, devices: Devices) -> dict[bool, float]:
        """Estimate the step with any schedule, by whether its backward phase is cut in two."""
        seconds: dict[bool, float] = {}
        for made in self._made(devices):
            orders = [*made.orders]
            if self._lists:
                memory = unlimited(made.problem)
                rules = priorities(made.problem, [phase for _, phase in made.keys])
                orders += [build(made.problem, rule, 1.0, memory) for rule in rules]
            split = any(phase in (INPUT, WEIGHT) for _, phase in made.keys)
            seconds[split] = min(self._timed(made, order, np.inf) for order in orders)
        return {split: least + self._after(devices) for split, least in seconds.items()}

    def _after(self, devices: Devices) -> float:
        """Return the seconds from the end of the last run to that of the step."""
        update = np.zeros(len(self._contexts))
        np.add.at(update, list(devices), self._updates[list(devices), np.arange(len(devices))])
        return float(update.max()) + self._meeting

    def peak(self, devices: Devices) -> float:
        """Estimate the bytes of the fullest device with the schedule that holds the least."""
        least, none = np.inf, np.zeros(len(self._contexts))
        for made in self._made(devices):
            assert made.memory is not None
            for order in made.orders:
                least = min(least, made.memory.chosen(made.problem, order, none)[1].max())
        return float(least)

    def _made(self, devices: Devices) -> Iterator[_Made]:
        """Yield the bodies of a placement with one backward phase, then with two."""
        stage_of, rank_of = self._stages(devices)
        for split in (False, True):
            keys, body_of = self._bodies(stage_of, split)
            orders = self._ordered(rank_of, tuple(keys), split)
            if orders:
                problem, flows = self._problem(keys, body_of, rank_of)
                memory = None
                if self._memory is not None:
                    nbytes = np.array([self._outline.flows[f].nbytes for f in flows], np.int64)
                    memory = self._memory.of(keys, body_of, rank_of, len(self._contexts), nbytes)
                    memory = memory.allowing(self._recompute)
                yield _Made(devices, stage_of, rank_of, keys, problem, orders, memory)

    def _limited(self, made: _Made, memory: BothWays, order: Array) -> tuple[Problem, float]:
        """Let stages recompute where memory is short.

        Returns:
            the problem with the time that it takes, and what ranks hold beyond their limits, as a
            share of these.
        """
        stages, held = memory.chosen(made.problem, order, self._limits)
        excess = max(0.0, float((held / np.maximum(self._limits, 1.0)).max()) - 1)
        if not stages.any():
            return made.problem, excess
        more = np.where(stages[memory.stage_of], memory.seconds, 0.0)
        run = made.problem.run + np.rint(more / TICK).astype(np.int64)
        return made.problem._replace(run=run), excess

    # -- from devices to bodies ------------------------------------------------------------------

    def _stages(self, devices: Devices) -> tuple[list[int], tuple[int, ...]]:
        """Form the stages: atom -> stage, and stage -> rank."""
        homes = self._outline.classes
        units: list[Unit] = [(0, 0, None)] * len(homes)
        before: dict[Unit, set[Unit]] = {}
        for atom in self._outline.order:
            rank = devices[homes[atom]]
            level = 0
            for other in self._outline.before[atom]:
                at, source, _ = units[other]
                level = max(level, at + (source != rank))
            units[atom] = unit = (level, rank, None)
            held = before.setdefault(unit, set())
            held.update(units[o] for o in self._outline.before[atom] if units[o] != unit)
        stage_of_unit, rank_of = join_units(before)
        return [stage_of_unit[unit] for unit in units], rank_of

    def _bodies(self, stage_of: Sequence[int], split: bool) -> tuple[dict[Key, int], list[Key]]:
        """Number the bodies; return these numbers, and the body of each item."""
        stages: list[int] = []
        bodies: list[Key] = []
        for item in self._outline.items:
            stage = stage_of[item.atom]
            if item.terms is not None:
                left, right = item.terms
                stage = stages[left] if stages[left] == stages[right] else stage
            stages.append(stage)
            bodies.append((stage, item.phase if split else UNSPLIT[item.phase]))
        keys = sorted(set(bodies), key=_turn)
        return {key: number for number, key in enumerate(keys)}, bodies

    def _problem(
        self, keys: Mapping[Key, int], body_of: Sequence[Key], rank_of: Sequence[int]
    ) -> tuple[Problem, list[int]]:
        """Return the problem and the flow of each of its edges."""
        number = [keys[body] for body in body_of]
        rank = [rank_of[stage] for stage, _ in keys]
        run = np.zeros(len(keys), np.int64)
        held = [rank[body] for body in number]
        np.add.at(run, number, self._ticks[held, np.arange(len(held))])
        before: list[list[int]] = [[] for _ in keys]
        for (stage, phase), body in keys.items():
            before[body] += [keys[stage, p] for p in EARLIER[phase] if (stage, p) in keys]
        src: list[int] = []
        dst: list[int] = []
        links: list[int] = []
        number_of: dict[object, int] = {}  # of a link
        wires: list[tuple[int, int, int]] = []
        carried: list[int] = []
        for flow, (source, readers, _, _) in enumerate(self._outline.flows):
            maker = body_of[source]
            first: dict[int, int] = {}
            for reader in readers:
                stage = body_of[reader][0]
                if stage != maker[0]:
                    first[stage] = min(number[reader], first.get(stage, number[reader]))
            for stage in sorted(first):
                a, b = rank_of[maker[0]], rank_of[stage]
                if a == b:
                    before[first[stage]].append(number[source])
                    continue
                src.append(number[source])
                dst.append(first[stage])
                wires.append(self._wire(flow, a, b))
                carried.append(flow)
                links.append(number_of.setdefault(self._link(a, b).name or (a, b), len(number_of)))
        held_by = Lists.of(
            [body for body, at in enumerate(rank) if at == r] for r in range(len(self._contexts))
        )
        into = Lists.of([e for e, at in enumerate(dst) if at == body] for body in range(len(keys)))
        out = Lists.of([e for e, at in enumerate(src) if at == body] for body in range(len(keys)))
        lists = (held_by, Lists.of(before), into, out)
        columns = [rank, run, *chain.from_iterable((x.start, x.items) for x in lists)]
        columns += [src, dst, links, *np.array(wires, np.int64).reshape(-1, 3).T]
        arrays = (np.ascontiguousarray(column, np.int64) for column in columns)
        return Problem(self.mbs, self._overhead, *arrays), carried

    def _link(self, a: int, b: int) -> Link:
        if (a, b) not in self._links:
            ends = self._contexts[a], self._contexts[b]
            self._links[a, b] = self._prices.link_between(*ends)
        return self._links[a, b]

    def _wire(self, flow: int, a: int, b: int) -> tuple[int, int, int]:
        """Return the ticks of a flow's messages on the link from one rank to another.

        They are those on the link, from there to the arrival, and of the receiver.
        """
        key = flow, a, b
        if key not in self._wires:
            link = self._link(a, b)
            _, _, count, nbytes = self._outline.flows[flow]
            latency = float(link.latency_of(nbytes // count))
            carrying = nbytes / float(link.bandwidth)
            own, copy = (0.0, carrying) if link.by_receiver else (carrying, 0.0)
            more = (count - 1) * self._overhead
            ticks = [round(x / TICK) for x in (own, latency, copy)]
            self._wires[key] = ticks[0], ticks[1], ticks[2] + more
        return self._wires[key]

    def _ordered(self, rank_of: tuple[int, ...], keys: tuple[Key, ...], split: bool) -> list[Array]:
        """Return the orders of the named schedules whose backward phase is split, or is not."""
        known = rank_of, keys, split
        if known not in self._orders:
            number = np.full((len(PHASES), len(rank_of)), -1)
            for body, (stage, phase) in enumerate(keys):
                number[PHASES.index(phase), stage] = body
            orders = [
                np.concatenate([_numbers(program.columns, number, split) for program in lists])
                for lists in _distinct(self._names, self._order, rank_of, self.mbs)
                if splits_backward(lists) == split
            ]
            counts = [np.bincount(order, minlength=len(keys)) for order in orders]
            whole = [
                o for o, count in zip(orders, counts, strict=True) if (count == self.mbs).all()
            ]
            self._orders[known] = list({order.tobytes(): order for order in whole}.values())
        return self._orders[known]


@lru_cache(maxsize=1)  # a placement's lists are needed for one backward phase, then for two
def _distinct(
    names: tuple[str, ...], order: str | None, rank_of: tuple[int, ...], mbs: int
) -> list[tuple[Program, ...]]:
    """Return what ranks run by these schedules, each list once."""
    return [*dict.fromkeys(compute_lists(name, order, rank_of, mbs) for name in names)]


def _turn(key: Key) -> tuple[int, int]:
    """Return the place of a body among those that it needs and that need it."""
    stage, phase = key
    return PHASES.index(phase), stage if phase == FORWARD else -stage


def _numbers(columns: Columns, number: Array, split: bool) -> Array:
    """Return the bodies of a rank's runs; B of a phase in two is I and then W.

    number: [phase, stage] -> body, or -1.
    """
    phase = columns.code.astype(np.int64) - RUN
    bodies = np.stack([number[phase, columns.at], np.full(len(phase), -1)])
    if split:
        both = phase == PHASES.index(BACKWARD)
        bodies[0, both] = number[PHASES.index(INPUT), columns.at[both]]
        bodies[1, both] = number[PHASES.index(WEIGHT), columns.at[both]]
    row: Array = bodies.T.ravel()
    return row[row >= 0]


def meeting_seconds_of(
    network: Network, options: Options, machine: Machine, prices: CostModel
) -> float:
    """Return the seconds of the exchange of norms and figures."""
    if not options.update or prices.machine is None:
        return 0.0
    contexts, nbytes = machine.contexts, 8 * len(network.first.variables)

    def link(a: int, b: int) -> Link:
        return prices.link_between(contexts[a], contexts[b])

    return float(meeting_seconds(range(len(contexts)), nbytes, link))


def seconds_of(
    network: Network,
    options: Options,
    made: Outline,
    of: Mapping[str, int],
    machine: Machine,
    costs: Costs,
    prices: CostModel,
) -> tuple[Array, Array]:
    """Return the seconds of items, and of the update of classes: [devices, items or classes].

    Args:
        of: variable -> class.
    """
    graph = network.first
    times = node_times(graph, costs, machine, made.item_of, len(made.items))
    rates = [prices.of(context).rates for context in machine.contexts]
    passes = np.array([1 / rate.passes for rate in rates])
    packing = np.array([1 / rate.packing for rate in rates])
    mbs = len(network.sizes)
    moved = np.zeros(len(made.items))
    copies = np.zeros(len(made.items))
    for node in graph.variables:
        if node.name not in network.parameters:
            moved[made.item_of[node.name]] += 2 * node.types[0].nbytes
            copies[made.item_of[node.name]] += COPY_SECONDS
    for value in {*network.grads.values()}:
        moved[made.item_of[value.node]] += tree_passes(mbs) / mbs * graph.type_of(value).nbytes
    times = times + passes[:, None] * moved + copies
    updates = np.zeros((len(rates), 1 + max(of.values())))
    if options.update:
        forms = {
            form
            for node in graph
            if (form := packed_rows(node, graph)) is not None
            and of.get(node.name) == of[form[0]]  # other bodies import it
        }
        packs = Counter(name for name, _ in forms)
        for name in network.grads:
            nbytes, c = graph[name].types[0].nbytes, of[name]
            updates[:, c] += (3 + 2 * options.slots) * nbytes * passes
            updates[:, c] += 2 * packs[name] * nbytes * packing
    return times, updates
