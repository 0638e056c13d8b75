"""The candidates for a placement: what strategies find, on all devices or on some of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from partitioner import Placement
from partitioner.base.segments import time_steps
from partitioner.costs.machine import Machine
from partitioner.strategies import STRATEGIES, Constraints, Placed, Strategy, find_strategy
from partitioner.strategies.assignments import as_placement, place_on_one, place_smallest
from partitioner.strategies.coarse import Coarse, coarsen, memory_limits
from partitioner.strategies.problem import floor
from partitioner.strategies.rules import NOT_ON, PIN, Rule
from partitioner.strategies.user_groups import least_load
from runtime.planning.costs.prices import CostModel
from runtime.planning.network import Network
from runtime.planning.options import AUTO, SCHEDULE_FILES, Options
from runtime.planning.placement_bound import PlacementBound
from runtime.planning.placement_search import PlacementSearch
from runtime.planning.placement_sketch import Sketch
from symgraph.core.context import Context
from symgraph.core.errors import PlacementError
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup
from symgraph.core.units import count_text
from symgraph.passes.shards import place_of

LOG = logging.getLogger(__name__)
FEW_DEVICES = 8  # of more, only the first 2, 4, 8, ... are tried besides all
MANY_NODES = 2_000  # of a graph of which only promising placements and grids are scheduled
LARGE_NODES = 20_000  # the same of an unrolled graph
MOST_NODES = 100_000  # of a graph that is searched
LIGHT = "chain"  # the strategy for fewer devices, where there are many nodes
MOST_ESTIMATES, EFFORT = 2000, 400_000  # of a search: estimates, and estimates times their work
NEAR_BEST, MOST_LISTED = 1.1, 40  # placements to rank: those that take so many times the best
FINALISTS = 3  # to simulate
MOST_LIMITED = 120  # the same with a memory limit: to rank, as estimates say little of what fits
RANKED_NODES = 20_000  # nodes of all these graphs together
MOST_CHOICES, MOST_ITEMS = 128, 500  # of a search for bounds: parts times devices, and items
BOUNDS, LOWEST = 30_000, 64  # to compute, and the placements to keep


class Candidates:
    """Placements of a graph on a machine."""

    def __init__(
        self, graph: Graph, prices: CostModel, machine: Machine, constraints: Constraints
    ) -> None:
        self.graph, self.prices, self.machine = graph, prices, machine
        self.constraints = constraints
        self.failed: PlacementError | None = None
        self.kernels = prices.merged(graph, machine.contexts)

    def coarse(self, *, contiguous: bool) -> Coarse:
        """Return the coarse graph, on all devices."""
        return coarsen(
            self.graph, self.kernels, self.machine, self.constraints, contiguous=contiguous
        )

    @property
    def levels(self) -> list[Constraints]:
        """The constraints with estimates of memory that hold less and less.

        Strategies count what is kept for the backward phase of some micro-batches. How many a
        device really holds depends on its place and on the schedule, down to hardly anything where
        it runs its forward nodes again; a schedule's own account then decides.
        """
        if not self.limited:
            return [self.constraints]
        counts = dict.fromkeys((self.constraints.in_flight, 1, 0))
        return [replace(self.constraints, in_flight=count) for count in counts]

    def roomy(self, constraints: Constraints) -> bool:
        """Tell whether all that strategies count fits on any one device, so that no limit binds."""
        coarse = coarsen(self.graph, self.kernels, self.machine, constraints, contiguous=False)
        return all(x is None or coarse.memory.sum() <= x for x in coarse.limits)

    @property
    def limited(self) -> bool:
        """Whether a device has a memory limit."""
        return any(x is not None for x in memory_limits(self.machine, self.constraints))

    @property
    def rankable(self) -> int:
        """The number of placements that may be ranked by named schedules under a memory limit."""
        return max(FINALISTS, min(MOST_LIMITED, RANKED_NODES // len(self.graph)))

    @property
    def frugal(self) -> bool:
        """Whether a memory limit makes it worthwhile to try few schedules of most placements."""
        return self.limited and self.rankable < MOST_LIMITED

    @property
    def counts(self) -> list[int]:
        """The numbers of devices, fewer than all, that several strategies may be confined to."""
        k = len(self.machine.devices)
        if k <= FEW_DEVICES:
            return [*range(k - 1, 1, -1)]
        return [1 << power for power in reversed(range(1, (k - 1).bit_length()))]

    @property
    def many(self) -> bool:
        """Whether scheduling a placement takes seconds."""
        return len(self.graph) > MANY_NODES

    def large(self, options: Options) -> bool:
        """Tell whether all placements are compared by estimates, as planning one takes seconds.

        Estimates know nothing of time segments, of the user's demands and of schedules in files,
        and too little of memory.
        """
        known = self.constraints
        demands = known.pins or known.rules or known.spread or self.limited
        in_file = Path(options.schedule).suffix in SCHEDULE_FILES
        unrolled = not self.many or time_steps(self.graph) > 0
        most = LARGE_NODES if unrolled else MANY_NODES
        return len(self.graph) > most and not demands and not in_file

    @property
    def estimated(self) -> bool:
        """Whether estimates decide which placements of many nodes are scheduled.

        They know nothing of time segments, and too little of memory where it is limited.
        """
        return self.many and not self.limited and not time_steps(self.graph)

    def of_strategy(self, strategy: str, constraints: Constraints) -> Iterator[Placed]:
        """Yield what a strategy finds, or with `auto` all of them."""
        yield from self._found(strategy, self.machine, constraints)

    def alone(self) -> Iterator[Placed]:
        """Yield all on one device, once for each speed."""
        speeds, pinned = set(), set(self.constraints.pins.values())
        for number, device in enumerate(self.machine.devices):
            if pinned <= {number} and (pinned or device.speed not in speeds):
                speeds.add(device.speed)
                place = partial(place_on_one, device=number)
                yield from self._placed(place, self.machine, self.constraints)

    def least(self, count: int) -> float:
        """Bound the load of any placement on the first devices."""
        first = self.machine.only(self.machine.contexts[:count])
        return least_load(self.graph, self.kernels, first)

    def on_first(self, count: int) -> Iterator[Placed]:
        """Yield what strategies find on the first devices, unless something is pinned elsewhere.

        For all numbers of devices together they take about as much effort as for all devices. Of
        many nodes, only the strategy LIGHT is tried.
        """
        held = [*self.constraints.pins.values(), *sum(self.constraints.spread.values(), ())]
        first = self.machine.only(self.machine.contexts[:count])
        rules = _rules_within(self.constraints.rules, first.contexts)
        if max(held, default=0) >= count or rules is None:
            return
        steps = self.constraints.steps / len(self.counts)
        known = replace(self.constraints, rules=rules, steps=steps)
        for placed in self._found(LIGHT if self.many else AUTO, first, known):
            placement = replace(placed.placement, devices=self.machine.contexts)
            name = f"{placed.strategy}, {count} devices"
            yield replace(placed, placement=placement, strategy=name)

    def searched(
        self,
        network: Network,
        options: Options,
        starts: Iterable[Placement],
        peaks: Iterable[tuple[Placement, int]],
        *,
        for_memory: bool = False,
    ) -> Iterator[Placed]:
        """Yield the best that a search by estimates finds from these placements.

        Args:
            peaks: bytes of the fullest device of some placements, by their programs' account.
            for_memory: whether to look for the least memory, not for the shortest step.
        """
        graph = self.graph
        if len(graph) > MOST_NODES or Path(options.schedule).suffix in SCHEDULE_FILES:
            return
        coarse = self.coarse(contiguous=False)
        sketch = Sketch(network, options, coarse, self.kernels, self.prices)
        estimates = min(MOST_ESTIMATES, EFFORT // sketch.work)
        found = PlacementSearch(sketch, estimates, for_memory=for_memory)

        def devices_of(placement: Placement) -> list[int]:
            return [placement.rank_of[placement.stage_of[name]] for name in coarse.names]

        if self.limited:
            sketch.calibrate([(devices_of(placement), peak) for placement, peak in peaks])
        found.run(map(devices_of, starts))
        free = coarse.unlimited()
        near = math.inf if self.limited else NEAR_BEST
        most = MOST_LISTED if for_memory or not self.limited else MOST_LIMITED
        count = min(self.rankable, most) if self.limited else FINALISTS
        finalists = [*islice(found.within(near), most)]
        if not self.limited and options.schedule == AUTO and not options.named_only:
            finalists.sort(key=lambda d: min(sketch.seconds(d), sketch.listed(d)))
        for devices in finalists[:count]:
            yield as_placement(graph, free, devices, floor(free), "search")

    def lowest(
        self, network: Network, options: Options, upper: float
    ) -> tuple[list[tuple[float, Placed]], float] | None:
        """Find the placements whose steps may be the shortest, by what they take at least.

        Args:
            upper: seconds; placements that cannot take less are left out.

        Returns:
            placements with these bounds, the lowest first, and a bound of all others; None for
            networks that are too large, or whose bounds would not hold.
        """
        coarse = self.coarse(contiguous=False)
        large = len(coarse.parts) * len(coarse.limits) > MOST_CHOICES
        if large or not network.even or self.constraints.spread or time_steps(self.graph):
            return None
        kernels = self.prices.least().merged(self.graph, self.machine.contexts)
        bound = PlacementBound(network, options, coarse, kernels, self.prices)
        if not 0 < bound.items <= MOST_ITEMS:
            return None
        LOG.debug("proving what no placement of %s can beat", count_text(len(coarse.parts), "part"))
        found = bound.lowest(upper, LOWEST, BOUNDS)
        free = coarse.unlimited()
        placed = [
            (seconds, as_placement(self.graph, free, devices, floor(free), "bound"))
            for seconds, devices in zip(found.seconds.tolist(), found.rows.tolist(), strict=True)
            if coarse.keeps(devices)
        ]
        return placed, found.others

    def smallest(self) -> Iterator[Placed]:
        """Yield placements that hold as little as can be, whatever the limit."""
        for level in self.levels:
            yield from self._placed(place_smallest, self.machine, level)

    def _found(self, strategy: str, machine: Machine, constraints: Constraints) -> Iterator[Placed]:
        for name, limits in self._limits(strategy, constraints):
            LOG.debug(
                "placing by strategy %s on %s", name, count_text(len(machine.devices), "device")
            )
            yield from self._placed(find_strategy(name), machine, limits)

    def _placed(self, place: Strategy, machine: Machine, limits: Constraints) -> list[Placed]:
        """Return what a strategy finds, or nothing if it fails."""
        try:
            return [place(self.graph, self.kernels, machine, limits)]
        except PlacementError as error:
            self.failed = self.failed or error
            return []

    def _limits(self, strategy: str, constraints: Constraints) -> list[tuple[str, Constraints]]:
        """Return the strategies to try, each with its constraints.

        All pieces of a split operator on one device may make no slower bottleneck than one on each,
        but a longer step where nothing else fills the wait; so both are tried.
        """
        if strategy != AUTO:
            return [(strategy, constraints)]
        tries = [(name, constraints) for name in STRATEGIES]
        first: dict[tuple[str, int], str] = {}  # of each piece, which the others stay near
        for node in self.graph:
            group, place = lookup(node.tags, "ctx_group") or "", place_of(node)
            whole = node.origin is not None or node.is_variable
            if group in constraints.spread and place and not whole:
                first.setdefault((group, place[0]), node.name)
        on = {name: constraints.spread[group][i] for (group, i), name in first.items()}
        if on:
            tries.append(("noncontiguous", replace(constraints, pins={**constraints.pins, **on})))
        return tries


def _rules_within(rules: Sequence[Rule], contexts: Sequence[Context]) -> tuple[Rule, ...] | None:
    """Return the rules for a placement on some devices; None: one needs another device."""
    kept: list[Rule] = []
    for rule in rules:
        devices = tuple([d for d in rule.devices if d in contexts])
        if rule.kind == PIN and not devices:
            return None
        if rule.kind != NOT_ON or devices:
            kept.append(replace(rule, devices=devices))
    return tuple(kept)
