"""The choice among placements of a large graph: all are estimated, only the best are planned whole.

To cut, lower and simulate a placement takes time by the node; to estimate its step takes time by
the class of the coarse graph, of which there are a thousand at most. So what strategies find on all
devices and on the first few, devices alone and what a search finds from these are compared by
estimates, as many of them as the time for large graphs allows are planned, and the others are
listed with what they would take, about.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from partitioner.strategies import STRATEGIES
from partitioner.strategies.assignments import as_placement, assigned, numbered_in_a_row
from partitioner.strategies.coarse import Coarse
from partitioner.strategies.loads import Loads
from partitioner.strategies.problem import floor
from runtime.planning.costs.prices import CostModel
from runtime.planning.network import Network
from runtime.planning.options import Options
from runtime.planning.placement_candidates import Candidates
from runtime.planning.placement_search import PlacementSearch
from runtime.planning.placement_sketch import Sketch
from runtime.planning.plan import Estimate
from runtime.planning.schedule_choice import BOTH, Kinds
from symgraph.core.errors import PlacementError

LOG = logging.getLogger(__name__)
ANYWHERE = "noncontiguous"  # the strategy that does not place in one row
BY_GROUPS = "group2ctx"  # the strategy that follows the user's map; without one, all on one device
PLANNED_NODES = 40_000  # to plan whole: of so many nodes together, or one placement
MOST_PLANNED = 3  # placements to plan whole
ESTIMATES, EFFORT = 400, 400_000  # of the search: estimates, and estimates times their work

Devices = tuple[int, ...]  # class -> device


class Estimates:
    """Placements of a large graph by the steps that they would take, about."""

    def __init__(
        self, candidates: Candidates, network: Network, options: Options, prices: CostModel
    ) -> None:
        self.candidates, self.graph = candidates, network.first
        self.coarse, self.row = (candidates.coarse(contiguous=row) for row in (False, True))
        self.sketch = Sketch(network, options, self.coarse, candidates.kernels, prices)
        self._seconds: dict[Devices, dict[bool, float]] = {}  # by the kind of schedule
        self.rows: list[tuple[Estimate, Devices]] = []

    def run(self) -> None:
        """Estimate what strategies find, devices alone, and what a search finds from these."""
        for name, devices, bound in self._found():
            self._add(name, devices, bound)
        estimates = min(ESTIMATES, EFFORT // self.sketch.work)
        found = PlacementSearch(self.sketch, estimates)
        found.run([devices for _, devices in self.rows])
        for devices in [*found.within(1.0)][:1]:
            self._add("search", devices, floor(self.coarse))

    def best(self) -> Iterator[tuple[Estimate, Kinds]]:
        """Yield the placements to plan whole with the kinds of schedules, the best first."""
        count = max(1, min(MOST_PLANNED, PLANNED_NODES // len(self.graph)))
        planned: set[Devices] = set()
        for estimate, devices in sorted(self.rows, key=lambda row: row[0].seconds):
            if len(planned) < count and devices not in planned:
                planned.add(devices)
                kinds = self._seconds[devices]
                yield estimate, BOTH if count > 1 else (min(kinds, key=kinds.__getitem__),)

    def _add(self, name: str, devices: Sequence[int], bound: float) -> None:
        row = tuple(numbered_in_a_row(self.coarse, devices))
        if row not in self._seconds:
            self._seconds[row] = self.sketch.by_kind(row)
        load = Loads(self.coarse, row).largest
        seconds = min(self._seconds[row].values())
        placed = partial(as_placement, self.graph, self.coarse, row, bound, name)
        used = tuple(sorted({*row}))
        self.rows.append((Estimate(name, load, min(load, bound), seconds, used, placed), row))

    def _found(self) -> Iterator[tuple[str, Sequence[int], float]]:
        """Yield what strategies find, by name, with the bounds of the largest load."""
        yield from self._on(self.coarse, self.row, "")
        machine, counts = self.coarse.machine, self.candidates.counts
        speeds = [device.speed for device in machine.devices]
        for number in sorted({speeds.index(speed) for speed in speeds}):
            load = float(self.coarse.times[number].sum())
            yield f"{machine.contexts[number]} alone", [number] * len(self.coarse), load
        steps = self.coarse.constraints.steps / max(1, len(counts))
        for count in counts:
            few, row = (coarse.on_first(count, steps) for coarse in (self.coarse, self.row))
            yield from self._on(few, row, f", {count} devices")

    def _on(
        self, coarse: Coarse, row: Coarse, where: str
    ) -> Iterator[tuple[str, Sequence[int], float]]:
        """Yield what strategies find; row: the coarse graph of those that place in one row."""
        for name in STRATEGIES:
            if name == BY_GROUPS:
                continue
            LOG.debug("placing by strategy %s%s", name, where)
            with suppress(PlacementError):
                given = coarse if name == ANYWHERE else row
                devices, bound = assigned(given, name)
                yield name + where, [devices[given.of[n]] for n in coarse.names], bound


def estimated(
    candidates: Candidates, network: Network, options: Options, prices: CostModel
) -> Estimates:
    """Return the estimates of all placements that are worth one."""
    estimates = Estimates(candidates, network, options, prices)
    estimates.run()
    return estimates
