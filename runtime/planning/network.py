"""The network of a plan: graphs of all micro-batch sizes with gradients, not placed yet.

Symbol ─lower→ shard ─micro_batch→ replicate ─fold→ reduced ─→ gradients
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from partitioner import Placement
from symgraph.core.batch_layout import Layout
from symgraph.core.errors import PlacementError
from symgraph.core.graph import Graph
from symgraph.core.types import TensorType, Value
from symgraph.frontend.lower import lower
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import (
    Feed,
    MicroBatched,
    batch_size,
    micro_batch,
    prologue,
    split_sizes,
)
from symgraph.passes.gradients import gradients
from symgraph.passes.precision import FLOAT32, reduced, require_precision
from symgraph.passes.replicate import REPLICATE, replica_counts, replicate
from symgraph.passes.shard import Sharded, shard
from symgraph.passes.shards import Shard, mark, regroup
from symgraph.passes.simplify import fold


@dataclass(frozen=True)
class PlanRequest:
    """What is to be planned: see runtime.planning.plan.plan. wrt: variables, by their users' names.

    groups: operator -> the ctx_group that it is put in, in the place of its own.
    """

    symbol: Symbol
    feeds: Mapping[str, Feed]
    wrt: tuple[str, ...]
    heads: bool
    shapes: Mapping[str, Any]
    dtypes: Mapping[str, Any]
    groups: Mapping[str, str] = field(default_factory=dict)

    def lowered(self, size: int) -> Graph:
        """The forward graph for a batch of that many samples."""
        fed = {name: feed.part(size).shape for name, feed in self.feeds.items()}
        kinds = {name: feed.type.dtype for name, feed in self.feeds.items()}
        graph = lower(self.symbol, {**self.shapes, **fed}, {**self.dtypes, **kinds})
        return regroup(graph, self.groups)


@dataclass(frozen=True)
class Network:
    """What a plan is made of.

    graphs: micro-batch size -> forward and backward graph. sizes: samples of each micro-batch.
    prologue: see symgraph.passes.batching. outputs, names, layouts: of the forward outputs. grads:
    variable -> the value of its gradient. heads: output index -> its head gradient. shards:
    variable -> the part of a parameter that it is; it stands in that one's place in `grads`.
    parameters: variables that stay for the whole run, auxiliary states too. scales: variables that
    are fed the loss scale, with their types.
    """

    feeds: Mapping[str, Feed]
    graphs: Mapping[int, Graph]
    sizes: tuple[int, ...]
    prologue: Graph
    outputs: tuple[Value, ...]
    names: tuple[str, ...]
    layouts: Mapping[Value, Layout]
    grads: Mapping[str, Value]
    heads: Mapping[int, str]
    shards: Mapping[str, Shard]
    parameters: frozenset[str]
    scales: Mapping[str, TensorType]

    @property
    def first(self) -> Graph:
        """The graph of the first (largest) micro-batch."""
        return self.graphs[self.sizes[0]]

    def output(self, name: str) -> Value:
        """The output of that name."""
        return self.outputs[self.names.index(name)]

    def next_states(self, named: Mapping[str, str], place: Placement) -> dict[str, Value]:
        """The value of each state in the next step; PlacementError if it is made elsewhere."""
        found = {}
        for variable, output in named.items():
            value = self.output(output)
            here, there = (place.device_of(n) for n in (variable, value.node))
            if here != there:
                raise PlacementError(
                    f"state {variable!r} is on {here}, but its next value {output!r} is made on "
                    f"{there}; give both the same ctx_group"
                )
            found[variable] = value
        return found


def make_network(
    asked: PlanRequest,
    micro_batches: int,
    devices: Mapping[str, int],
    shards: Mapping[str, str],
    replicas: Mapping[str, str],
    *,
    whole: bool,
    precision: str = FLOAT32,
    scaled: bool = False,
) -> Network:
    """Lower, split and differentiate.

    devices: group -> on how many devices it is. shards, replicas: group -> the value of that
    attribute for its operators. whole: see symgraph.passes.shard. precision: see
    symgraph.passes.precision. scaled: whether losses' gradients are multiplied by a fed scale.
    Raises what the steps raise.
    """
    feeds = asked.feeds
    batch = batch_size(feeds) if feeds else 1
    axes = {name: feed.axis for name, feed in feeds.items()}

    @cache
    def lowered(size: int) -> Sharded:
        graph = mark(mark(asked.lowered(size), shards), replicas, REPLICATE)
        require_precision(graph, precision, feeds)
        return shard(graph, asked.symbol.list_outputs(), feeds, devices=devices, whole=whole)

    @cache
    def ready(size: int) -> MicroBatched:
        return micro_batch(lowered(size).graph, axes, size, batch)

    full, sizes = lowered(batch), split_sizes(batch, micro_batches)
    early = prologue(full.graph, axes)
    fixed = {*feeds, *(v.node for v in early.outputs)}
    counts = replica_counts(full.graph, devices) if feeds else {}
    dealt = {size: replicate(counts, size, ready, fixed, sizes) for size in dict.fromkeys(sizes)}
    first = dealt[sizes[0]]
    wrt = first.variables(full.variables(asked.wrt))
    forward = {n: reduced(fold(d.graph), precision, fixed) for n, d in dealt.items()}
    both = {n: gradients(f, wrt, heads=asked.heads, scaled=scaled) for n, f in forward.items()}
    graph, grads, heads, scales = both[sizes[0]]
    outputs = forward[sizes[0]].outputs
    layouts = [first.layouts[v] for v in full.graph.outputs]
    fed = {*fixed, *heads.values(), *scales}
    parameters = frozenset(n.name for n in graph.variables if n.name not in fed)
    return Network(
        dict(feeds),
        {size: b.graph for size, b in both.items()},
        sizes,
        early,
        outputs,
        full.names,
        dict(zip(outputs, layouts, strict=True)),
        grads,
        heads,
        {**full.shards, **first.copies},
        parameters,
        {name: graph[name].types[0] for name in scales},
    )
