"""Splits: the groups that a planner may give to several devices at once, where no cut balances.

A group that outweighs a device's even share leaves the others waiting, however the rest is placed.
Its operators can be split into shards (along classes, words or filters), or all of it replicated
(along samples); both are planned like any network, and the shortest predicted step is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from partitioner.costs.cost import Costs
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup
from symgraph.core.units import seconds_text
from symgraph.passes.shard import SPLIT
from symgraph.passes.shards import DEVICES, GROUP, place_of

SHARDS, REPLICAS = "shards", "replicas"
WORTH = 0.6  # of a device's even share: lighter groups find a place whole
GAIN = 0.97  # the predicted step must be this much shorter: whole groups send less


class Weight(NamedTuple):
    """A ctx_group's seconds a micro-batch, and whether its operators can be in shards."""

    seconds: float
    shards: bool


class Split(NamedTuple):
    """A group on several devices: `SHARDS` or `REPLICAS`."""

    group: str
    kind: str


class Compared(NamedTuple):
    """Splits that were tried, and the predicted seconds of a step with them."""

    splits: tuple[Split, ...]
    seconds: float

    def __str__(self) -> str:
        words = [f"{s.group} in {s.kind}" for s in self.splits]
        return f"{' and '.join(words) or 'no group split'}: {seconds_text(self.seconds)}"


def weigh(graph: Graph, costs: Costs) -> dict[str, Weight]:
    """The groups of a graph with gradients, those without a name as ""."""
    seconds: dict[str, float] = {}
    shards: dict[str, bool] = {}
    for node in graph:
        served = node if node.origin is None else graph[node.origin]
        group = "" if place_of(served) else lookup(served.tags, GROUP) or ""
        seconds[group] = seconds.get(group, 0.0) + costs.seconds_of(node, graph)
        shards[group] = shards.get(group, False) or served.op in SPLIT
    return {group: Weight(s, shards[group]) for group, s in seconds.items()}


def candidates(
    weights: Mapping[str, Weight], fixed: Sequence[str], devices: int
) -> list[tuple[Split, ...]]:
    """What to try besides no split at all; groups in `fixed` stay as the user says.

    The heaviest group in shards; the heaviest that is more than an even share replicated; both.
    """
    share = sum(w.seconds for w in weights.values()) / devices
    free = [(w.seconds, g) for g, w in weights.items() if g and g not in fixed]
    free.sort(key=lambda x: (-x[0], x[1]))
    heavy = [g for s, g in free if weights[g].shards and s > WORTH * share][:1]
    whole = [g for s, g in free if s > share and g not in heavy][:1]
    sharded = tuple([Split(g, SHARDS) for g in heavy])
    replicated = tuple([Split(g, REPLICAS) for g in whole])
    both = (*sharded, *replicated) if sharded and replicated else ()
    return [splits for splits in (sharded, replicated, both) if splits]


def marks(splits: Sequence[Split]) -> dict[str, str]:
    """The groups to mark for shards; others on several devices are replicated."""
    return {split.group: DEVICES for split in splits if split.kind == SHARDS}
