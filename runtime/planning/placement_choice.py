"""The choice of a placement: the best of what strategies find, by the step they would make.

The bottleneck alone does not say how long a step takes, so each placement's schedule is chosen and
simulated, and the shortest step is taken, unless the objective says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from partitioner import Placement
from partitioner.strategies import STRATEGIES, Constraints, Placed, find_strategy
from partitioner.strategies.types import LATENCY, STEP, THROUGHPUT
from runtime.planning.costs.prices import CostModel
from runtime.planning.draft import Draft
from runtime.planning.network import Network
from runtime.planning.options import AUTO, PlacementOptions
from runtime.planning.plan import Plan, PlanCandidate
from runtime.planning.schedule_choice import select_schedule, step_seconds
from symgraph.core.context import Context
from symgraph.core.errors import PlacementError, ScheduleError
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup
from symgraph.passes.shards import place_of

Drafting = Callable[[Placement], Draft]


def select_placement(
    draft: Drafting, network: Network, options: PlacementOptions, costs: CostModel
) -> Plan:
    """Return the plan with a strategy's placement, or with `auto` the best by the objective.

    Strategies that find the same placement share its schedule.

    Raises:
        PlacementError, ScheduleError: nothing keeps to the limits.
    """
    assert options.strategy is not None
    graph, machine = network.first, options.machine_of(costs)
    kernels = costs.merged(graph, machine.contexts)
    placed: list[Placed] = []
    failed: PlacementError | ScheduleError | None = None
    for name, limits in _limits(options.strategy, graph, _constraints(options, network)):
        try:
            placed.append(find_strategy(name)(graph, kernels, machine, limits))
        except PlacementError as error:
            failed = error
    tries = _Tries(draft, costs, hurry=options.objective == STEP)
    for number in sorted(range(len(placed)), key=lambda i: placed[i].load):
        tries.add(number, placed[number])
    if not tries.plans:
        raise tries.failed or failed or PlacementError("no strategy found a placement")
    _, best = min(tries.plans, key=lambda p: _score(p[0], p[1], options.objective, draft, costs))
    placements = tuple([tries.candidates[i] for i in range(len(placed))])
    return replace(best, placements=placements, prices=costs)


def _constraints(options: PlacementOptions, network: Network) -> Constraints:
    """Return the constraints of a strategy."""
    devices, groups = options.ranks, options.groups or {}
    pins = {
        group: devices.index(device)
        for group, device in groups.items()
        if isinstance(device, Context)
    }
    spread = {
        group: tuple(map(devices.index, pieces))
        for group, pieces in groups.items()
        if not isinstance(pieces, Context)
    }
    return Constraints(
        memory=options.memory,
        parameters=network.parameters,
        grads=network.grads,
        slots=options.slots,
        in_flight=min(len(network.sizes), len(devices)),
        keep_groups=options.keep_groups,
        together=[(variable, value.node) for variable, value in network.states.items()],
        pins=pins,
        spread=spread,
        objective=options.objective,
        split_tied=options.split_tied,
        steps=options.solver_steps,
    )


class _Tries:
    """The schedules of placements that have been tried.

    A device is busy for its load in every micro-batch, so a placement whose load is longer than
    the shortest step need not be scheduled.
    """

    def __init__(self, draft: Drafting, costs: CostModel, *, hurry: bool) -> None:
        """Take as `hurry` whether to skip placements that cannot make the shortest step."""
        self.draft, self.costs, self.hurry = draft, costs, hurry
        self.candidates: dict[int, PlanCandidate] = {}  # placement's number -> candidate
        self.plans: list[tuple[Placed, Plan]] = []  # those within the limits
        self.shortest = math.inf  # seconds of the shortest step
        self.failed: ScheduleError | None = None

    def add(self, number: int, placed: Placed) -> None:
        """Select a placement's schedule, unless another has the same or it cannot be the best."""
        for known in self.candidates.values():
            same = known.placed is not None and known.placed.placement == placed.placement
            if same and known.bound is None:
                self.candidates[number] = replace(known, placed=placed)
                return
        draft = self.draft(placed.placement)
        least = placed.load * draft.micro_batches
        if self.hurry and least > self.shortest:
            self.candidates[number] = PlanCandidate(placed=placed, bound=least)
            return
        try:
            plan = _timed(draft, self.costs)
        except ScheduleError as error:
            self.failed = error
            self.candidates[number] = PlanCandidate(placed=placed)
            return
        seconds = plan.choice.seconds
        assert seconds is not None
        self.plans.append((placed, plan))
        self.candidates[number] = PlanCandidate(placed=placed, seconds=seconds)
        self.shortest = min(self.shortest, seconds)


def _timed(draft: Draft, costs: CostModel) -> Plan:
    """Return the plan with the best schedule, simulated even if only one is allowed."""
    plan = select_schedule(draft, lambda: costs)
    if plan.choice.seconds is not None:
        return plan
    return replace(plan, choice=replace(plan.choice, seconds=step_seconds(draft, plan, costs)))


def _limits(strategy: str, graph: Graph, constraints: Constraints) -> list[tuple[str, Constraints]]:
    """Return the strategies to try, each with its constraints.

    All pieces of a split operator on one device may make no slower bottleneck than one on each, but
    a longer step where nothing else fills the wait; so both are tried.
    """
    if strategy != AUTO:
        return [(strategy, constraints)]
    tries = [(name, constraints) for name in STRATEGIES]
    first: dict[tuple[str, int], str] = {}  # of each piece, which the others stay near
    for node in graph:
        group, place = lookup(node.tags, "ctx_group") or "", place_of(node)
        if group in constraints.spread and place and node.origin is None and not node.is_variable:
            first.setdefault((group, place[0]), node.name)
    on = {name: constraints.spread[group][i] for (group, i), name in first.items()}
    if on:
        tries.append(("noncontiguous", replace(constraints, pins={**constraints.pins, **on})))
    return tries


def _score(placed: Placed, plan: Plan, objective: str, draft: Drafting, costs: CostModel) -> float:
    """Return the quantity to minimise for this objective."""
    if objective == THROUGHPUT:
        return placed.load
    if objective == LATENCY:
        alone = replace(plan.network, sizes=plan.sizes[:1])
        plan = _timed(replace(draft(placed.placement), network=alone), costs)
    assert plan.choice.seconds is not None
    return plan.choice.seconds
