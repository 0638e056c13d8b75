"""The choice of a placement: the best of what strategies find, by the step they would make.

The bottleneck alone does not say how long a step takes, so each placement's schedule is chosen and
simulated, and the shortest step is taken, unless the user wants something else to be short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from partitioner import Placement
from partitioner.costs.cost import CostTable
from partitioner.costs.machine import Device, Level, Machine
from partitioner.strategies import STRATEGIES, Constraints, Placed, find_strategy
from partitioner.strategies.types import LATENCY, STEP, THROUGHPUT
from runtime.planning.costs.prices import CostModel
from runtime.planning.draft import Draft, Made
from runtime.planning.schedule_choice import AUTO, Tried, Wish, choose, step_seconds
from runtime.planning.splits import Weight, weigh
from symgraph.core.context import Context
from symgraph.core.errors import PlacementError, ScheduleError
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup
from symgraph.passes.shards import place_of

NO_WEIGHTS: Mapping[str, Weight] = MappingProxyType({})


class Considered(NamedTuple):
    """A strategy's placement: predicted seconds of a step; None: no schedule kept to the limit.

    at_least: no schedule was looked for, since no step could be shorter than this.
    """

    placed: Placed
    seconds: float | None
    at_least: bool = False


class Decision(NamedTuple):
    """How a network is placed and run.

    made: the schedule and all that goes with it. tried: of schedules. considered: of strategies.
    prices: what was decided by; None if nothing was open. weights: of the network's groups.
    seconds: the predicted step of a strategy's placement.
    """

    placement: Placement
    made: Made
    tried: tuple[Tried, ...]
    prices: CostModel | None
    considered: tuple[Considered, ...] = ()
    weights: Mapping[str, Weight] = NO_WEIGHTS
    seconds: float = 0.0


def decide(
    draft: Callable[[Placement], Draft],
    graph: Graph,
    strategy: str,
    machine: Callable[[CostModel], Machine],
    constraints: Constraints,
    wish: Wish,
    pricing: Callable[[Graph], CostModel],
) -> Decision:
    """The placement of a strategy, or with `auto` the best by the constraints' objective.

    machine: the devices to place on, which may want prices to be known. Strategies that find the
    same placement share its schedule. Raises PlacementError or ScheduleError if nothing keeps to
    the limits.
    """
    prices = pricing(graph)
    devices = machine(prices)
    costs = prices.merged(graph, devices.contexts)
    placed: list[Placed] = []
    failed: PlacementError | ScheduleError | None = None
    for name, limits in _candidates(strategy, graph, constraints):
        try:
            placed.append(find_strategy(name)(graph, costs, devices, limits))
        except PlacementError as error:
            failed = error
    steps = _Steps(draft, wish, prices, hurry=constraints.objective == STEP)
    for number in sorted(range(len(placed)), key=lambda i: placed[i].load):
        steps.add(number, placed[number])
    if not steps.decisions:
        raise steps.failed or failed or PlacementError("no strategy found a placement")
    _, best = min(
        steps.decisions, key=lambda d: _score(d[0], d[1], constraints.objective, draft, wish)
    )
    considered = tuple([steps.considered[i] for i in range(len(placed))])
    return best._replace(considered=considered, weights=weigh(graph, costs))


class _Steps:
    """The schedules of placements, as they come.

    considered: by the placement's number. decisions: those that keep to the limits. hurry: leave
    out what cannot be the shortest step: a device is busy for its load in every micro-batch.
    """

    def __init__(
        self, draft: Callable[[Placement], Draft], wish: Wish, prices: CostModel, *, hurry: bool
    ) -> None:
        self.draft, self.wish, self.prices, self.hurry = draft, wish, prices, hurry
        self.considered: dict[int, Considered] = {}
        self.decisions: list[tuple[Placed, Decision]] = []
        self.shortest = math.inf
        self.failed: ScheduleError | None = None

    def add(self, number: int, found: Placed) -> None:
        """Choose a placement's schedule, unless another has the same or it cannot be the best."""
        for known in self.considered.values():
            if known.placed.placement == found.placement and not known.at_least:
                self.considered[number] = known._replace(placed=found)
                return
        draft = self.draft(found.placement)
        least = found.load * len(draft.sizes)
        if self.hurry and least > self.shortest:
            self.considered[number] = Considered(found, least, at_least=True)
            return
        try:
            made, tried, _ = choose(draft, self.wish, lambda graph: self.prices)
        except ScheduleError as error:
            self.failed = error
            self.considered[number] = Considered(found, None)
            return
        seconds = step_seconds(draft, made, self.wish, self.prices)
        decision = Decision(found.placement, made, tried, self.prices, seconds=seconds)
        self.decisions.append((found, decision))
        self.considered[number] = Considered(found, seconds)
        self.shortest = min(self.shortest, seconds)


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
    if objective == THROUGHPUT:
        return placed.load
    if objective == LATENCY:
        prices = decision.prices
        assert prices is not None
        whole = draft(placed.placement)
        alone = replace(whole, sizes=whole.sizes[:1])
        made, _, _ = choose(alone, wish, lambda graph: prices)
        return step_seconds(alone, made, wish, prices)
    return decision.seconds


def machine_at_hand(contexts: tuple[Context, ...], prices: CostModel) -> Machine:
    """The devices as prices know them, for who has no machine file.

    CPUs are in one socket, GPUs in one node but in sockets of their own, so that each pair of kinds
    has its own links.
    """
    devices = []
    for context in contexts:
        bodies = prices.of(context)
        speed = bodies.speed if isinstance(bodies, CostTable) else bodies
        node, socket = ("1", str(context.index)) if context.kind == "gpu" else ("0", "0")
        devices.append(
            Device(context, speed.flops, speed.call, speed.bandwidth, node=node, socket=socket)
        )
    kinds = {"socket": ("cpu", "cpu"), "node": ("gpu", "gpu"), "rack": ("cpu", "gpu")}
    links = {level: prices.links.get(pair, prices.link) for level, pair in kinds.items()}
    return Machine(
        tuple(devices),
        {level: Level(float(link.latency), float(link.bandwidth)) for level, link in links.items()},
    )
