"""Placement by the user's groups: `ctx_group` attributes and a `group2ctx` map (MXNet)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from partitioner.stages import form_stages
from partitioner.types import Placement
from symgraph.attribute import lookup
from symgraph.context import Context
from symgraph.errors import PlacementError, nearest
from symgraph.graph import Graph
from symgraph.ops.registry import find


def group2ctx(
    graph: Graph,
    groups: Mapping[str, Context] | None,
    default: Context,
    devices: Sequence[Context] = (),
) -> Placement:
    """Place every forward node of the graph on a device.

    A node goes to its own group's device, else to that of its first placed input, else to that
    of a consumer, else to `default` (MXNet's PlaceDevice, but for the last). Without `groups`
    everything goes to `default`. devices: those to count as ranks even if nothing is placed on
    them. PlacementError: a group that `groups` does not map; an auxiliary state on another device
    than the node that updates it. A group that no node is in is a warning.
    """
    device_of = assign(graph, groups, default)
    _check_states(graph, device_of)
    used = set(device_of.values())
    ranks = [*dict.fromkeys(devices), *sorted(used - set(devices))] or [default]
    rank = {device: i for i, device in enumerate(ranks)}
    stage_of, rank_of = form_stages(graph, {name: rank[d] for name, d in device_of.items()})
    return Placement(stage_of, rank_of, tuple(ranks))


def assign(
    graph: Graph, groups: Mapping[str, Context] | None, default: Context
) -> dict[str, Context]:
    """The device of every forward node."""
    forward = [n for n in graph if n.origin is None]
    if groups is None:
        return {n.name: default for n in forward}
    found: dict[str, Context] = {}
    met = set()
    for node in forward:
        group = lookup(node.tags, "ctx_group")
        if group is not None:
            if group not in groups:
                raise PlacementError(
                    f"node {node.name!r} is in group {group!r}, which group2ctx does not map to "
                    f"a device; {nearest(group, groups)}"
                )
            met.add(group)
            found[node.name] = groups[group]
        else:
            placed = (found[v.node] for v in node.inputs if v.node in found)
            device = next(placed, None)
            if device is not None:
                found[node.name] = device
    for node in reversed(forward):
        if node.name in found:
            for value in node.inputs:
                found.setdefault(value.node, found[node.name])
    unused = sorted(set(groups) - met)
    if unused:
        warnings.warn(f"group2ctx maps groups that no node is in: {unused}", stacklevel=3)
    return {n.name: found.get(n.name, default) for n in forward}


def _check_states(graph: Graph, device_of: Mapping[str, Context]) -> None:
    for node in graph:
        if node.origin is None and not node.is_variable:
            states = node.inputs[len(node.inputs) - len(find(node.op).aux) :]
            for state in states:
                here, there = device_of[node.name], device_of[state.node]
                if here != there:
                    raise PlacementError(
                        f"{node.op} {node.name!r} on {here} updates its state {state.node!r} on "
                        f"{there}; give both the same ctx_group"
                    )
