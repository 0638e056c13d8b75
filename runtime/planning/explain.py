"""Explanations: what a node or group would cost on every other device, and what idle devices cost.

The nodes are moved and everything else stays; the step is scheduled again as the options say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from partitioner import Placement
from partitioner.base.stages import form_stages
from partitioner.placement.group2ctx import require_states_with_readers
from partitioner.strategies.rules import require_kept
from runtime.planning.costs.prices import CostModel
from runtime.planning.draft import Draft
from runtime.planning.plan import Plan
from runtime.planning.schedule_choice import select_schedule, splits_backward, step_seconds
from runtime.schedule.program import Schedule
from symgraph.core.context import Context
from symgraph.core.errors import (
    ConfigError,
    LimitError,
    PlacementError,
    ScheduleError,
    nearest,
)
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup
from symgraph.core.units import bytes_text
from symgraph.passes.precision import is_parameter_cast
from symgraph.passes.shards import GROUP, place_of

CLOSE = 0.005  # steps that differ by less are called equal


@dataclass(frozen=True)
class Choice:
    """A plan with the explained nodes on some devices."""

    devices: tuple[Context, ...]
    """The devices: one, or in a grid one of each row; where the nodes are now, all of theirs."""
    seconds: float = math.inf
    """The predicted step; infinite if there is no such plan."""
    sent: int = 0
    """Bytes of the messages of a step."""
    peaks: tuple[int, ...] = ()
    """By rank: bytes at the worst moment."""
    reason: str = ""
    """Why it cannot be chosen; "": it can."""

    @property
    def where(self) -> str:
        """The devices in words."""
        return " and ".join(map(str, self.devices))


@dataclass(frozen=True)
class Explanation:
    """Why a node or group is where it is."""

    name: str
    """The node or ctx_group."""
    nodes: tuple[str, ...]
    """Its forward nodes, with the variables that only they read."""
    by: str
    """A phrase that says who placed it."""
    devices: tuple[Context, ...]
    """The device of each rank."""
    now: Choice
    """The plan as it is."""
    others: tuple[Choice, ...]
    """The plan with all these nodes on another device, for each."""

    @property
    def conclusion(self) -> str:
        """A sentence that says what the best other device would change."""
        here = f"{self.name} is on {self.now.where}, {self.by}"
        if not self.others:
            return f"{here}, the only one"
        best = min(self.others, key=lambda c: (c.reason != "", c.seconds))
        if best.reason:
            return f"{here}; it can be on no other: on {best.where}, {best.reason}"
        change = best.seconds / self.now.seconds - 1 if self.now.seconds else 0.0
        sent = _difference(best.sent - self.now.sent)
        if change > CLOSE:
            return f"{here}; on {best.where} the step would be {change:.1%} longer, with {sent}"
        if change < -CLOSE:
            return f"{here}; on {best.where} the step would be {-change:.1%} shorter, with {sent}"
        return f"{here}; on {best.where} the step would be as long, with {sent}"


def explain(plan: Plan, names: Iterable[str], costs: CostModel) -> list[Explanation]:
    """Predict a plan's step with each of these on every other device; nothing runs.

    Args:
        plan: the plan. Of its options, those that choose a schedule are used again.
        names: groups (`ctx_group`), or nodes of the plan's forward graph. A group in shards or
            replicas is moved with all its pieces.
        costs: of runs and messages on the plan's devices.

    Raises:
        ConfigError: a name that is neither a group nor a node; it names the nearest.
    """
    graph = plan.network.first
    found = [(name, _nodes_of(graph, name)) for name in dict.fromkeys(names)]
    return [_explained(plan, name, nodes, costs) for name, nodes in found]


def without_idle(plan: Plan, costs: CostModel) -> tuple[float, float] | None:
    """Predict a plan's step as it is, and with the same programs on no other devices than it uses.

    Args:
        costs: of runs and messages on the plan's devices.

    Returns:
        the seconds of both steps; None: no device is idle.
    """
    where, options = plan.placement, plan.options if plan.grads else plan.options.forward_only()
    used = sorted(set(where.rank_of))
    if len(used) == where.ranks:
        return None
    fewer = replace(
        where,
        rank_of=tuple([used.index(rank) for rank in where.rank_of]),
        devices=tuple([where.devices[rank] for rank in used]),
    )
    programs = Schedule(tuple([plan.schedule.programs[rank] for rank in used]))
    split, choice = splits_backward(plan.schedule), plan.choice
    draft = Draft(plan.network, fewer, options.unlimited())
    other = draft.plan(
        choice.schedule, split, lambda _: programs, choice.time_segment, choice.recompute
    )
    now = step_seconds(Draft(plan.network, where, options), plan, costs)
    return now, step_seconds(draft, other, costs)


def _difference(sent: int) -> str:
    """Describe a change of the bytes that are sent."""
    if not sent:
        return "messages of the same size"
    return f"{bytes_text(abs(sent))} {'more' if sent > 0 else 'less'} in messages"


def _nodes_of(graph: Graph, name: str) -> frozenset[str]:
    """Find the forward nodes of a group, or the node of that name, with variables of their own."""
    group_of = {n.name: lookup(n.tags, GROUP) for n in graph if n.origin is None}
    nodes = {node for node, group in group_of.items() if group == name}
    if not nodes:
        if name not in group_of:
            groups = {group for group in group_of.values() if group is not None}
            calls = {n for n in group_of if not graph[n].is_variable}
            raise ConfigError(f"no ctx_group or node {name!r}; {nearest(name, groups | calls)}")
        nodes = {name}
    readers: dict[str, list[str]] = {}
    for node in graph:
        for value in node.inputs if node.origin is None else ():
            readers.setdefault(value.node, []).append(node.name)
    for node in reversed([*graph]):
        own = node.is_variable or is_parameter_cast(graph, node.name)
        if node.name in readers and own and nodes.issuperset(readers[node.name]):
            nodes.add(node.name)
    return frozenset(nodes)


def _explained(plan: Plan, name: str, nodes: frozenset[str], costs: CostModel) -> Explanation:
    placed = {n: plan.placement.device_of(n) for n in nodes}
    computing = {d for n, d in placed.items() if not plan.network.first[n].is_variable}
    home = tuple(d for d in plan.devices if d in (computing or set(placed.values())))
    options = plan.options
    targets: Sequence[tuple[Context, ...]] = [(device,) for device in plan.devices]
    if options.rows > 1:
        targets = list(zip(*options.grid, strict=True))
    return Explanation(
        name=name,
        nodes=tuple(n.name for n in plan.network.first if n.name in nodes),
        by=_placer(plan, name),
        devices=plan.devices,
        now=_choice(home, plan, costs),
        others=tuple(_moved(plan, nodes, target, costs) for target in targets if target != home),
    )


def _placer(plan: Plan, name: str) -> str:
    """Say who placed a group or node."""
    options = plan.options
    node = plan.network.first.nodes.get(name)
    group = name if node is None else lookup(node.tags, GROUP)
    if options.rows > 1:
        return "a column of the grid"
    if group in (options.groups or {}):
        return "as group2ctx says"
    if options.strategy is not None:
        return f"where strategy {options.strategy} put it"
    return "the device of its inputs, or the first"


def _choice(devices: tuple[Context, ...], plan: Plan, costs: CostModel, reason: str = "") -> Choice:
    options = plan.options if plan.grads else plan.options.forward_only()
    seconds = step_seconds(Draft(plan.network, plan.placement, options), plan, costs)
    sent = sum(
        edge.type.nbytes
        for size in plan.sizes
        for edge in plan.partitions[size].edges
        if plan.partition.crosses(edge)
    )
    return Choice(devices, seconds, sent, tuple(m.peak for m in plan.account.step.packed), reason)


def _moved(
    plan: Plan, nodes: frozenset[str], target: tuple[Context, ...], costs: CostModel
) -> Choice:
    """Plan again with these nodes on these devices: piece i of a node on device i."""
    options = plan.options if plan.grads else plan.options.forward_only()
    try:
        placement = _placement(plan, nodes, target)
        draft = partial(Draft, plan.network, placement)
        try:
            return _choice(target, select_schedule(draft(options), lambda: costs), costs)
        except LimitError:
            other = select_schedule(draft(options.unlimited()), lambda: costs)
            peak = max(m.peak for m in other.account.step.packed)
            limits = options.limits(placement.devices)
            limit = bytes_text(min(x for x in limits if x is not None))
            reason = f"a device would need {bytes_text(peak)}, more than the limit of {limit}"
            return _choice(target, other, costs, reason)
    except (PlacementError, ScheduleError) as error:
        return Choice(target, reason=str(error))


def _placement(plan: Plan, nodes: frozenset[str], target: tuple[Context, ...]) -> Placement:
    """Return the plan's placement but for these nodes.

    Raises:
        PlacementError: a state is not where it is updated, or a constraint is broken.
    """
    graph, devices = plan.network.first, plan.devices
    device_of = {
        node.name: target[(place_of(node) or (0, 1))[0] % len(target)]
        if node.name in nodes
        else plan.placement.device_of(node.name)
        for node in graph
        if node.origin is None
    }
    require_states_with_readers(graph, device_of)
    require_kept(graph, plan.options.rules, device_of)
    rank_of_node = {name: devices.index(device) for name, device in device_of.items()}
    placement = Placement(*form_stages(graph, rank_of_node), devices)
    plan.network.require_states_in_place(placement)
    return placement
