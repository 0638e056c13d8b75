"""The choice of a placement: the best of what strategies find, by the step they would make.

The bottleneck alone does not say how long a step takes, so each placement's schedule is chosen and
simulated, and the shortest step is taken, unless the user wants something else to be short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from partitioner import Placement
from partitioner.cost import CostTable
from partitioner.machine import Machine
from partitioner.merging import MergedCosts
from partitioner.strategies import STRATEGIES, Constraints, Placed, find_strategy
from partitioner.strategies.types import LATENCY, THROUGHPUT
from runtime.choose import AUTO, Tried, Wish, choose, step_seconds
from runtime.draft import Draft, Made
from runtime.prices import Prices, Pricing
from runtime.splits import Weight, weigh
from symgraph.attribute import lookup
from symgraph.context import Context
from symgraph.errors import PlacementError, ScheduleError
from symgraph.graph import Graph
from symgraph.pieces import place_of

NO_WEIGHTS: Mapping[str, Weight] = MappingProxyType({})


class Considered(NamedTuple):
    """A strategy's placement: predicted seconds of a step; None: no schedule kept to the limit."""

    placed: Placed
    seconds: float | None


class Decision(NamedTuple):
    """How a network is placed and run.

    made: the schedule and all that goes with it. tried: of schedules. considered: of strategies.
    prices: what was decided by; None if nothing was open. weights: of the network's groups.
    """

    placement: Placement
    made: Made
    tried: tuple[Tried, ...]
    prices: Prices | None
    considered: tuple[Considered, ...] = ()
    weights: Mapping[str, Weight] = NO_WEIGHTS

    @property
    def seconds(self) -> float:
        """The predicted step."""
        return step_seconds(self.made, self.prices) if self.prices else 0.0


def decide(
    draft: Callable[[Placement], Draft],
    graph: Graph,
    strategy: str,
    machine: Callable[[Prices], Machine],
    constraints: Constraints,
    wish: Wish,
    pricing: Pricing,
) -> Decision:
    """The placement of a strategy, or with `auto` the best by the constraints' objective.

    machine: the devices to place on, which may want prices to be known. Strategies that find the
    same placement share its schedule. Raises PlacementError or ScheduleError if nothing keeps to
    the limits.
    """
    prices = pricing(graph)
    devices = machine(prices)
    costs = MergedCosts(prices.bodies, graph)
    decisions: list[tuple[Placed, Decision]] = []
    considered: list[Considered] = []
    failed: PlacementError | ScheduleError | None = None
    for name, limits in _candidates(strategy, graph, constraints):
        try:
            found = find_strategy(name)(graph, costs, devices, limits)
        except PlacementError as error:
            failed = error
            continue
        decision = next((d for _, d in decisions if d.placement == found.placement), None)
        if decision is None:
            try:
                made, tried, _ = choose(draft(found.placement), wish, lambda graph: prices)
            except ScheduleError as error:
                failed = error
                considered.append(Considered(found, None))
                continue
            decision = Decision(found.placement, made, tried, prices)
            decisions.append((found, decision))
        considered.append(Considered(found, step_seconds(decision.made, prices)))
    if not decisions:
        assert failed is not None
        raise failed

    objective = constraints.objective
    _, best = min(decisions, key=lambda d: _score(d[0], d[1], objective, draft, wish))
    return best._replace(considered=tuple(considered), weights=weigh(graph, costs))


def _candidates(
    strategy: str, graph: Graph, constraints: Constraints
) -> list[tuple[str, Constraints]]:
    """The strategies that are tried, with what they keep to.

    All pieces of a split operator on one device may make no slower bottleneck than one on each, but
    a longer step where nothing else fills the wait; so both are tried.
    """
    if strategy != AUTO:
        return [(strategy, constraints)]
    found = [(name, constraints) for name in STRATEGIES]
    first: dict[tuple[str, int], str] = {}  # of each piece, which the others stay near
    for node in graph:
        group, place = lookup(node.tags, "ctx_group") or "", place_of(node)
        if group in constraints.spread and place and node.origin is None and not node.is_variable:
            first.setdefault((group, place[0]), node.name)
    on = {name: constraints.spread[group][i] for (group, i), name in first.items()}
    if on:
        found.append(("noncontiguous", replace(constraints, pins={**constraints.pins, **on})))
    return found


def _score(
    placed: Placed,
    decision: Decision,
    objective: str,
    draft: Callable[[Placement], Draft],
    wish: Wish,
) -> float:
    """What is to be small."""
    prices = decision.prices
    assert prices is not None
    if objective == THROUGHPUT:
        return placed.load
    if objective == LATENCY:
        whole = draft(placed.placement)
        alone = replace(whole, sizes=whole.sizes[:1])
        return step_seconds(choose(alone, wish, lambda graph: prices)[0], prices)
    return step_seconds(decision.made, prices)


def uniform_machine(devices: tuple[Context, ...], prices: Prices) -> Machine:
    """Equal devices as fast as this one, for who has no machine file."""
    speed = prices.bodies.speed if isinstance(prices.bodies, CostTable) else prices.bodies
    link = prices.link
    return Machine.uniform(devices, speed, float(link.latency), float(link.bandwidth))
