"""The network of a plan: graphs of all micro-batch sizes with gradients, not placed yet.

Symbol ─lower→ shard ─micro_batch→ replicate ─fold→ fuse_attention ─→ reduced ─→ gradients
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from partitioner import Placement
from runtime.planning.options import NetworkOptions
from symgraph.core.batch_layout import Layout
from symgraph.core.errors import PlacementError
from symgraph.core.graph import Graph
from symgraph.core.types import TensorType, Value
from symgraph.frontend.lower import lower
from symgraph.frontend.symbol import Symbol
from symgraph.passes.attention import fuse_attention
from symgraph.passes.batching import (
    Feed,
    MicroBatched,
    batch_size,
    micro_batch,
    prologue,
    split_sizes,
)
from symgraph.passes.gradients import gradients
from symgraph.passes.precision import reduced, require_precision
from symgraph.passes.replicate import REPLICATE, Replicated, replica_counts, replicate
from symgraph.passes.shard import Sharded, shard
from symgraph.passes.shards import Shard, mark, regroup
from symgraph.passes.simplify import fold


@dataclass(frozen=True)
class PlanRequest:
    """The network to plan: everything but the options."""

    symbol: Symbol
    feeds: Mapping[str, Feed]
    """The variables that get new values every step."""
    wrt: tuple[str, ...]
    """The variables to differentiate by, as the symbol names them; (): forward only."""
    heads: bool
    """Whether outputs have head gradients that are fed."""
    shapes: Mapping[str, Any]
    """Shapes of other variables, where they cannot be inferred."""
    dtypes: Mapping[str, Any]
    groups: Mapping[str, str] = field(default_factory=dict)
    """Operator -> the ctx_group that it is put in, in place of its own."""

    def lowered(self, size: int) -> Graph:
        """Return the forward graph for a batch of that many samples."""
        shapes = {name: feed.part(size).shape for name, feed in self.feeds.items()}
        dtypes = {name: feed.type.dtype for name, feed in self.feeds.items()}
        graph = lower(self.symbol, {**self.shapes, **shapes}, {**self.dtypes, **dtypes})
        return regroup(graph, self.groups)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Graphs with gradients, and the names and types of what goes in and comes out."""

    feeds: Mapping[str, Feed]
    """The variables that get new values every step."""
    graphs: Mapping[int, Graph]
    """Micro-batch size -> forward and backward graph."""
    sizes: tuple[int, ...]
    """Samples of each micro-batch, the largest first."""
    prologue: Graph
    """The part to compute on the whole batch before its first micro-batch."""
    outputs: tuple[Value, ...]
    """The forward outputs."""
    names: tuple[str, ...]
    """The outputs' names."""
    layouts: Mapping[Value, Layout]
    """The layouts by which the outputs' micro-batches make up the whole batch's."""
    states: Mapping[str, Value]
    """Variable -> the value that it takes in the next step."""
    grads: Mapping[str, Value]
    """Variable -> the value of its gradient."""
    heads: Mapping[int, str]
    """Output index -> its head gradient."""
    shards: Mapping[str, Shard]
    """Variable -> the part of a parameter that it is; it replaces that parameter in `grads`."""
    parameters: frozenset[str]
    """Variables that stay for the whole run: parameters and auxiliary states."""
    scales: Mapping[str, TensorType]
    """Variables that are fed the loss scale, with their types."""

    @property
    def first(self) -> Graph:
        """The graph of the first (largest) micro-batch."""
        return self.graphs[self.sizes[0]]

    @property
    def even(self) -> bool:
        """Whether all micro-batches have the same size; planning takes all for the largest."""
        return len(self.graphs) == 1

    def require_states_in_place(self, placement: Placement) -> None:
        """Raise PlacementError for a state whose next value is made on another device."""
        for variable, value in self.states.items():
            home, maker = (placement.device_of(n) for n in (variable, value.node))
            if home != maker:
                output = self.names[self.outputs.index(value)]
                raise PlacementError(
                    f"state {variable!r} is on {home}, but its next value {output!r} is made on "
                    f"{maker}; give both the same ctx_group"
                )


def make_network(
    request: PlanRequest, options: NetworkOptions, group_sizes: Mapping[str, int]
) -> Network:
    """Lower a symbol, split its batch into micro-batches and differentiate.

    Args:
        group_sizes: the number of devices of each group.

    Raises what the steps raise.
    """
    feeds = request.feeds
    batch = batch_size(feeds) if feeds else 1
    axes = {name: feed.axis for name, feed in feeds.items()}

    @cache
    def lowered(size: int) -> Sharded:
        graph = mark(mark(request.lowered(size), options.shards), options.replicas, REPLICATE)
        require_precision(graph, options.precision, feeds)
        names = request.symbol.list_outputs()
        return shard(graph, names, feeds, devices=group_sizes, whole=options.whole)

    @cache
    def micro_batched(size: int) -> MicroBatched:
        return micro_batch(lowered(size).graph, axes, size, batch)

    assert isinstance(options.micro_batches, int)  # planning has chosen
    full, sizes = lowered(batch), split_sizes(batch, options.micro_batches)
    early = prologue(full.graph, axes)
    fixed = {*feeds, *(v.node for v in early.outputs)}
    counts = replica_counts(full.graph, group_sizes) if feeds else {}
    forward = {
        size: replicate(counts, size, micro_batched, fixed, sizes, whole=options.whole)
        for size in dict.fromkeys(sizes)
    }
    return _differentiated(request, options, full, forward, sizes, early)


def _differentiated(
    request: PlanRequest,
    options: NetworkOptions,
    full: Sharded,
    forward: Mapping[int, Replicated],
    sizes: tuple[int, ...],
    early: Graph,
) -> Network:
    """Return the network of forward graphs by micro-batch size.

    Args:
        full: the graph of the whole batch.
        early: its prologue.
    """
    fixed = {*request.feeds, *(v.node for v in early.outputs)}
    first = forward[sizes[0]]
    wrt = first.variables(full.variables(request.wrt))
    simple = {n: fuse_attention(fold(f.graph)) for n, f in forward.items()}
    graphs = {n: reduced(graph, options.precision, fixed) for n, graph in simple.items()}
    scaled = options.loss_scale.scales
    both = {n: gradients(g, wrt, heads=request.heads, scaled=scaled) for n, g in graphs.items()}
    graph, grads, heads, scales = both[sizes[0]]
    outputs, names = graphs[sizes[0]].outputs, tuple(first.named(full.names))
    pieces = zip(full.graph.outputs, first.pieces, strict=True)
    layouts = [first.layouts[v] for v, count in pieces for _ in range(count)]
    fed = {*fixed, *heads.values(), *scales}
    return Network(
        feeds=dict(request.feeds),
        graphs={size: b.graph for size, b in both.items()},
        sizes=sizes,
        prologue=early,
        outputs=outputs,
        names=names,
        layouts=dict(zip(outputs, layouts, strict=True)),
        states={v: outputs[names.index(name)] for v, name in options.states.items()},
        grads=grads,
        heads=heads,
        shards={**full.shards, **first.copies},
        parameters=frozenset(n.name for n in graph.variables if n.name not in fed),
        scales={name: graph[name].types[0] for name in scales},
    )
