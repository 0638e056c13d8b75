"""Splits: the groups that a planner may give to several devices at once, where no cut balances.

A group that outweighs a device's even share leaves the others waiting, however the rest is placed.
Its operators can be split into shards (along classes, words or filters), or all of it replicated
(along samples); both are planned like any network, and the shortest predicted step is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from partitioner.costs.cost import Costs
from partitioner.strategies.rules import CLASSES, SAMPLES, Rule, may_split
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup
from symgraph.passes.shard import SPLIT
from symgraph.passes.shards import DEVICES, GROUP, place_of

SHARDS, REPLICAS = "shards", "replicas"
WORTH_SPLITTING = 0.6  # share of a device's even load; lighter groups are placed whole
GAIN = 0.97  # the predicted step must be this much shorter: whole groups send less


class Weight(NamedTuple):
    """The work of a ctx_group."""

    seconds: float
    """Its nodes' time per micro-batch."""
    shards: int
    """The most shards that its operators can be split into; 0 if there are none to split."""


class GroupSplit(NamedTuple):
    """A group on several devices."""

    group: str
    kind: str
    """SHARDS or REPLICAS."""


def weigh(graph: Graph, costs: Costs) -> dict[str, Weight]:
    """Weigh the groups of a graph with gradients; nodes without a group count as group ""."""
    seconds: dict[str, float] = {}
    rows: dict[str, list[int]] = {}
    for node in graph:
        served = node if node.origin is None else graph[node.origin]
        group = "" if place_of(served) else lookup(served.tags, GROUP) or ""
        seconds[group] = seconds.get(group, 0.0) + costs.seconds_of(node, graph)
        if served.op in SPLIT:
            rows.setdefault(group, []).append(served.attrs[SPLIT[served.op]])
    return {group: Weight(s, min(rows.get(group, [0]))) for group, s in seconds.items()}


def splits_to_try(
    weights: Mapping[str, Weight], fixed: Sequence[str], devices: int, rules: Sequence[Rule] = ()
) -> list[tuple[GroupSplit, ...]]:
    """Return the splits to try besides none.

    That is the heaviest group in shards, the heaviest that is more than an even share replicated,
    and both.

    Args:
        fixed: groups that the user has placed.
        devices: the number of devices.
        rules: the user's; some say along which axis a group may be split.
    """
    share = sum(w.seconds for w in weights.values()) / devices
    free = [(w.seconds, g) for g, w in weights.items() if g and g not in fixed]
    free.sort(key=lambda x: (-x[0], x[1]))
    sharded = [g for s, g in free if weights[g].shards >= devices and s > WORTH_SPLITTING * share]
    heavy = [g for g in sharded if may_split(rules, g, CLASSES)][:1]
    others = [g for s, g in free if s > share and g not in heavy]
    whole = [g for g in others if may_split(rules, g, SAMPLES)][:1]
    in_shards = tuple([GroupSplit(g, SHARDS) for g in heavy])
    replicated = tuple([GroupSplit(g, REPLICAS) for g in whole])
    both = (*in_shards, *replicated) if in_shards and replicated else ()
    return [splits for splits in (in_shards, replicated, both) if splits]


def shard_marks(splits: Sequence[GroupSplit]) -> dict[str, str]:
    """Return the groups to mark for shards; others on several devices are replicated."""
    return {split.group: DEVICES for split in splits if split.kind == SHARDS}
