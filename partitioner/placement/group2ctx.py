"""Placement by the user's groups: `ctx_group` attributes and a `group2ctx` map (MXNet)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from partitioner.base.stages import form_stages
from partitioner.base.types import Placement
from symgraph.core.context import Context
from symgraph.core.errors import PlacementError, nearest
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find
from symgraph.core.tags import lookup
from symgraph.passes.shards import place_of

Groups = Mapping[str, Context | Sequence[Context]]  # ctx_group -> one device, or one per shard


def group2ctx(
    graph: Graph,
    groups: Groups | None,
    default: Context,
    devices: Sequence[Context] = (),
) -> Placement:
    """Place every forward node of the graph on a device.

    A node goes to its group's device, else to that of its first placed input, else to that of a
    consumer, else to `default` (MXNet's PlaceDevice, except for the last step).

    Args:
        graph: the graph, with or without gradients.
        groups: ctx_group -> its device, or several: shard i goes to the i-th, unsplit nodes go to
            the first. None: everything goes to `default`. A group without nodes is a warning.
        default: the device of nodes that nothing places.
        devices: devices to count as ranks even if nothing is placed on them.

    Raises:
        PlacementError: for a group that `groups` does not map, or maps to a number of devices that
            is neither 1 nor that of its shards; for an auxiliary state on another device than the
            node that updates it.
    """
    device_of = assign(graph, groups, default)
    require_states_with_readers(graph, device_of)
    used = set(device_of.values())
    ranks = [*dict.fromkeys(devices), *sorted(used - set(devices))] or [default]
    rank = {device: i for i, device in enumerate(ranks)}
    stage_of, rank_of = form_stages(graph, {name: rank[d] for name, d in device_of.items()})
    return Placement(stage_of, rank_of, tuple(ranks))


def devices_of(target: Context | Sequence[Context]) -> tuple[Context, ...]:
    """List the devices that a group is mapped to."""
    return (target,) if isinstance(target, Context) else tuple(target)


def assign(graph: Graph, groups: Groups | None, default: Context) -> dict[str, Context]:
    """Find the device of every forward node."""
    forward = [n for n in graph if n.origin is None]
    if groups is None:
        return {n.name: default for n in forward}
    device_of: dict[str, Context] = {}
    met: set[str] = set()
    split: set[str] = set()
    for node in forward:
        group = lookup(node.tags, "ctx_group")
        if group is not None:
            if group not in groups:
                raise PlacementError(
                    f"node {node.name!r} is in group {group!r}, which group2ctx does not map to "
                    f"a device; {nearest(group, groups)}"
                )
            met.add(group)
            split.update([group] if place_of(node) else ())
            device_of[node.name] = _in_group(node, group, devices_of(groups[group]))
        else:
            placed = (device_of[v.node] for v in node.inputs if v.node in device_of)
            device = next(placed, None)
            if device is not None:
                device_of[node.name] = device
    for node in reversed(forward):
        if node.name in device_of:
            for value in node.inputs:
                device_of.setdefault(value.node, device_of[node.name])
    for group in sorted(met - split):
        if len(devices_of(groups[group])) > 1:
            raise PlacementError(
                f"group {group!r} is mapped to several devices, but nothing in it is split: mark "
                f'its operators with AttrScope(shard="{len(devices_of(groups[group]))}")'
            )
    unused = sorted(set(groups) - met)
    if unused:
        warnings.warn(f"group2ctx maps groups that no node is in: {unused}", stacklevel=3)
    return {n.name: device_of.get(n.name, default) for n in forward}


def _in_group(node: Node, group: str, devices: tuple[Context, ...]) -> Context:
    """Choose a node's device among those of its group."""
    if not devices:
        raise PlacementError(f"group {group!r} is mapped to an empty list of devices")
    index, shards = place_of(node) or (0, len(devices))
    if len(devices) == 1:
        return devices[0]
    if shards != len(devices):
        raise PlacementError(
            f"node {node.name!r} is shard {index} of {shards}, but group {group!r} is mapped to "
            f"{len(devices)} devices; give it one device, or one for each shard"
        )
    return devices[index]


def require_states_with_readers(graph: Graph, device_of: Mapping[str, Context]) -> None:
    """Raise PlacementError for an auxiliary state on another device than a node that updates it."""
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
