"""Shards of convolutions: filters in pieces, and what works on each channel by itself after them.

    data ─┬─ conv[0:32] ── relu[0:32] ── pool[0:32] ───┐
          └─ conv[32:64] ─ relu[32:64] ─ pool[32:64] ──┴─ joined along the channels

Every device has its filters' rows of weight and bias and reads all of the data, or with groups the
channels of its groups. The rules are those of `symgraph/passes/shard.py`, which calls them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from symgraph.core.errors import GraphError
from symgraph.core.graph import Node
from symgraph.core.types import Value

if TYPE_CHECKING:
    from symgraph.passes.shard import Bounds, _Rewriter


def convolution(graph: _Rewriter, node: Node) -> bool:
    data, *rest = node.inputs
    filters, groups = node.attrs["num_filter"], node.attrs["num_group"]
    bounds, each = graph.bounds_of(node, filters), filters // groups
    sources: tuple[Value, ...] = (data,) * len(bounds)
    if groups > 1:
        if any(stop % each for _, stop in bounds):
            raise GraphError(
                f"{node.op} {node.name!r} with num_filter={filters}, num_group={groups} cannot be "
                f"split at filters {[stop for _, stop in bounds[:-1]]}: a piece has whole groups, "
                f"of {each} filters each"
            )
        channels = graph.graph.type_of(data).shape[1] // groups
        ends = {
            "begin": lambda a, b: a // each * channels,
            "end": lambda a, b: b // each * channels,
        }
        inputs = [(data,)] * len(bounds)
        sources = graph.piece_of(node, bounds, "slice_axis", inputs, "[data]", axis=1, **ends)
    attrs = {
        **node.attrs,
        "num_filter": lambda start, stop: stop - start,
        "num_group": lambda start, stop: (stop - start) // each if groups > 1 else 1,
    }
    own = zip(sources, *(graph.rows_of(v, bounds) for v in rest), strict=True)
    join(graph, node, graph.piece_of(node, bounds, node.op, list(own), **attrs), bounds)
    return True


def channelwise(graph: _Rewriter, node: Node) -> bool:
    """Follow a convolution in pieces, where the node is to be split as that is."""
    data, *slopes = node.inputs
    if slopes or data not in graph.channels:
        return False
    pieces, bounds = graph.channels[data]
    if graph.bounds_of(node, bounds[-1][1]) != bounds:
        return False
    own = [(v,) for v in pieces]
    join(graph, node, graph.piece_of(node, bounds, node.op, own, **node.attrs), bounds)
    return True


def join(graph: _Rewriter, node: Node, pieces: tuple[Value, ...], bounds: Bounds) -> None:
    """Put a node's pieces together for readers of the whole; remember them for others."""
    graph.channels[Value(node.name)] = pieces, bounds
    graph.call(node.name, "Concat", pieces, node.tags, dim=1)
