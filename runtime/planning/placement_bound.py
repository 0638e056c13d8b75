"""Bounds on steps: what no schedule of any placement can beat, and the placements that come close.

Parts of the network are put on devices one after another, in the order of the graph, and ways that
cannot lead below the best known step are cut off (branch and bound). What remains open when the
search ends is bounded too, so there is always a bound of all placements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np

from partitioner.base.types import FORWARD, INPUT, WEIGHT
from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.solve.down_sets import rows
from partitioner.solve.prices import best_prices, priced
from partitioner.strategies.branch_and_bound import twins
from partitioner.strategies.coarse import Coarse
from runtime.planning.costs.prices import CostModel
from runtime.planning.network import Network
from runtime.planning.options import Options
from runtime.planning.outline import Outline, outline
from runtime.planning.placement_bound_walk import NOWHERE, Task, bounds, explore
from runtime.planning.placement_sketch import meeting_seconds_of, seconds_of
from symgraph.core.graph import Graph
from symgraph.core.orders import topological
from symgraph.core.types import Array

PHASES = (FORWARD, INPUT, WEIGHT)


class Lowest(NamedTuple):
    """The placements of the lowest bounds."""

    rows: Array
    """The device of each class: [placements, classes], the lowest bound first."""
    seconds: Array
    """Lower bounds on the seconds of their steps."""
    others: float
    """A lower bound on the seconds of the steps of all other placements."""


class PlacementBound:
    """A network in outline, whose steps are bounded for any placement on a machine.

    It is for networks whose nodes run as they are in any placement: without time steps, whose
    products are merged, and without operators in pieces.
    """

    def __init__(
        self, network: Network, options: Options, coarse: Coarse, costs: Costs, prices: CostModel
    ) -> None:
        """Take the classes to place; costs: those of nodes, which no body beats.

        Without `items` there is no bound, as some wait for each other.
        """
        graph = network.first
        names = [n.name for n in graph if n.origin is None and not n.is_variable]
        self._classes = [coarse.of[name] for name in names]
        of = _own_classes(graph, names)
        made = outline(graph, of, len(names))
        order = _after_sources(_sources(made))
        self.items = len(order) if len(order) == len(made.items) else 0
        if self.items:
            self._coarse = coarse
            self.task = _task(network, options, made, order, coarse, of, costs, prices)

    def of(self, placements: Array) -> Array:
        """Bound the steps of placements: class -> device."""
        given = placements[:, self._classes].astype(np.int64)
        found: Array = bounds(self.task, given)
        return found

    def lowest(self, upper: float, count: int, steps: int) -> Lowest:
        """Find the placements of the lowest bounds.

        Args:
            upper: seconds; what cannot take less is left out.
            count: the number of placements.
            steps: the most bounds to compute.
        """
        found = np.empty((count, len(self._classes)), np.int64)
        lows = np.empty(count)
        held, others, _ = explore(self.task, upper, steps, found, lows)
        order = np.argsort(lows[:held], kind="stable")
        first = {c: at for at, c in reversed([*enumerate(self._classes)])}
        columns = [first[c] for c in range(len(self._coarse))]
        return Lowest(found[order][:, columns], lows[order], float(others))


def _own_classes(graph: Graph, names: Sequence[str]) -> dict[str, int]:
    """Give each forward operator a class of its own; variables are with their first readers."""
    of = {name: number for number, name in enumerate(names)}
    readers: dict[str, int] = {}
    for name in names:
        for value in graph[name].inputs:
            readers.setdefault(value.node, of[name])
    for node in graph.variables:
        if node.origin is None:
            of[node.name] = readers.get(node.name, 0)
    return of


def _sources(made: Outline) -> list[list[tuple[int, int]]]:
    """List what each item waits for: other items, and the flows from them or NOWHERE.

    The phases of an atom run one after the other.
    """
    sources: list[dict[tuple[int, int], None]] = [{} for _ in made.items]
    for flow, (source, readers, _, _) in enumerate(made.flows):
        for reader in readers:
            sources[reader][source, flow] = None
    own = {(x.atom, x.phase): i for i, x in enumerate(made.items) if x.terms is None}
    for (atom, phase), number in own.items():
        for earlier in PHASES[: PHASES.index(phase)]:
            if (atom, earlier) in own:
                sources[number][own[atom, earlier], NOWHERE] = None
    return [[*held] for held in sources]


def _after_sources(sources: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """List the items after those that they wait for; without those that wait for each other."""
    before = [{source for source, _ in held} for held in sources]
    readers: list[list[int]] = [[] for _ in sources]
    for number, held in enumerate(before):
        for source in held:
            readers[source].append(number)
    return topological(before, readers, lambda item, step: item)


def _task(
    network: Network,
    options: Options,
    made: Outline,
    order: Sequence[int],
    coarse: Coarse,
    of: Mapping[str, int],
    costs: Costs,
    prices: CostModel,
) -> Task:
    machine, classes = coarse.machine, len(set(of.values()))
    times, updates = seconds_of(network, options, made, of, machine, costs, prices)
    place = np.argsort(order)
    items = [made.items[i] for i in order]
    terms = [[place[t] for t in x.terms] if x.terms else [NOWHERE, NOWHERE] for x in items]
    sources = _sources(made)
    starts, held = rows([[place[s] for s, _ in sources[i]] for i in order])
    _, flows = rows([[flow for _, flow in sources[i]] for i in order])
    times = times[:, order]
    parts, home = _parts(coarse, of)
    own = [i for i, x in enumerate(items) if x.terms is None]
    at = np.array([home[made.classes[items[i].atom]] for i in own])
    allowed = coarse.allowed[[part[0] for part in coarse.parts]]
    loads = np.stack([np.bincount(at, row[own], len(parts)) for row in times])
    loads = np.where(allowed.T, loads, np.inf)
    price = best_prices(loads, np.ones(len(loads)))
    rest = np.cumsum(priced(loads, price)[::-1])[::-1]
    alone = [all(b >= classes for b in before) for before in made.before]
    return Task(
        len(network.sizes),
        meeting_seconds_of(network, options, machine, prices),
        np.array([x.atom for x in items], np.int64),
        np.array([PHASES.index(x.phase) for x in items], np.int64),
        np.array(terms, np.int64),
        times,
        times.min(axis=0),
        (starts, held.astype(np.int64)),
        flows.astype(np.int64),
        *_wires(made, machine, prices),
        np.array(made.classes, np.int64),
        np.array(alone),
        rows(made.before),
        np.array(made.order, np.int64),
        updates,
        rows(parts),
        allowed,
        np.array(twins(coarse), np.int64),
        price,
        np.append(rest, 0.0),
    )


def _parts(coarse: Coarse, of: Mapping[str, int]) -> tuple[list[list[int]], dict[int, int]]:
    """Return the classes of each of the parts that are placed as one, and the part of each class.

    Args:
        of: forward node -> its class here.
    """
    part_of = {c: i for i, part in enumerate(coarse.parts) for c in part}
    parts: list[list[int]] = [[] for _ in coarse.parts]
    home: dict[int, int] = {}
    for name, c in of.items():
        if c not in home:
            home[c] = part_of[coarse.of[name]]
            parts[home[c]].append(c)
    return parts, home


def _wires(made: Outline, machine: Machine, prices: CostModel) -> tuple[Array, Array, Array]:
    """Return the seconds of flows from device to device, those on their links, and the links."""
    k = len(machine.contexts)
    wires, carried = np.zeros((2, len(made.flows), k, k))
    links = np.zeros((k, k), np.int64)
    number: dict[object, int] = {}
    sizes = np.array([flow.nbytes for flow in made.flows], np.float64)
    means = [flow.nbytes // flow.messages for flow in made.flows]
    for a, b in permutations(range(k), 2):
        link = prices.link_between(machine.contexts[a], machine.contexts[b])
        links[a, b] = number.setdefault(link.name or (a, b), len(number))
        carrying = sizes / float(link.bandwidth)
        wires[:, a, b] = carrying + [float(link.latency_of(mean)) for mean in means]
        carried[:, a, b] = 0.0 if link.by_receiver else carrying
    return wires, carried, links
