"""Plans as ONNX models: the network of a config with the stage and devices of each node.

    python -m symgraph.run CONFIG --plan --onnx FILE

The weights are those that training would begin with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from runtime.planning.plan import Plan
from runtime.training.job import Planned
from runtime.training.models import initializer_of
from symgraph.app.config import Config
from symgraph.core.batch_layout import WHOLE, Layout, Split
from symgraph.core.errors import ConfigError, GraphError
from symgraph.core.graph import Graph, Node
from symgraph.core.types import Array, Value
from symgraph.frontend.lower import lower
from symgraph.frontend.model import Model
from symgraph.interchange.onnx.plans import NAME, Cut, DevicePlan, NodePlace, Spread, add_plan
from symgraph.interchange.onnx.writing.inputs import BATCH, Inputs
from symgraph.interchange.onnx.writing.lengths import NamedShape
from symgraph.interchange.onnx.writing.model import network_graph, write_model
from symgraph.interchange.onnx.writing.nodes import OnnxGraph, OnnxNode
from symgraph.passes.batching import batch_size, micro_batch
from symgraph.passes.shards import place_of

PIECE = re.compile(r"(.*)\[(?:\d+:\d+|replica \d+)\]")  # the name of a shard or replica


def write_onnx(planned: Planned, path: str) -> None:
    """Write the model of a plan. Raises ConfigError or GraphError for what ONNX cannot express."""
    if planned.model is None:
        raise ConfigError("--onnx: a model has one shape, but data.buckets has several")
    model, plan = planned.model, planned.training
    weights = initial_weights(plan, model, planned.config)
    graph = _opened(model, weights)
    places = _Places(plan, model, {name: str(a.dtype) for name, a in weights.items()})
    found = DevicePlan(NAME, tuple(map(repr, plan.devices)), places.of_nodes(graph))
    write_model(graph, path, finish=lambda message: add_plan(message, found))


def initial_weights(plan: Plan, model: Model, config: Config) -> dict[str, Array]:
    """Return the parameters and states that training begins with, by their names in the symbol."""
    initializer, seed = initializer_of(model, config), config.train.seed
    found: dict[str, Array] = {}
    for name in plan.parameters:
        variable, shard = plan.partition.graph[name], plan.shards.get(name)
        (type_,) = variable.types
        shape = type_.shape
        if shard is not None:
            name = shard.parameter
            shape = shape if shard.is_whole else (shard.rows, *shape[1:])
        if name not in found:
            found[name] = initializer(name, shape, type_.dtype, seed, variable.tags)
    return found


def _opened(model: Model, weights: Mapping[str, Array]) -> OnnxGraph:
    """Return the graph with the batch's length left open, if the network allows that."""
    feeds = model.feeds
    fixed = {name: feed.type.shape for name, feed in feeds.items()}
    dtypes = {name: feed.type.dtype for name, feed in feeds.items()}
    shapes: dict[str, NamedShape] = {
        name: (*shape[: feeds[name].axis], BATCH, *shape[feeds[name].axis + 1 :])
        for name, shape in fixed.items()
    }
    try:
        inputs = Inputs(shapes, {BATCH: batch_size(feeds)}, dtypes)
        return network_graph(model.symbol, weights, inputs)
    except GraphError:
        return network_graph(model.symbol, weights, Inputs({**fixed}, {}, dtypes))


class _Placed(NamedTuple):
    """The place of a node of the symbol's graph."""

    stage: int
    #: The rank of each piece; one, if it is whole.
    ranks: tuple[int, ...]
    #: The nodes that it became, by name.
    pieces: tuple[str, ...]
    #: Whether the pieces are replicas, which deal out samples.
    replicas: bool = False


class _Places:
    """The places of the nodes and values of a symbol's graph, from the plan's."""

    def __init__(self, plan: Plan, model: Model, dtypes: Mapping[str, str]) -> None:
        self.plan, self.graph = plan, plan.network.first
        axes = {name: feed.axis for name, feed in model.feeds.items()}
        size, batch = plan.sizes[0], batch_size(model.feeds) if model.feeds else 1
        shapes = {name: feed.part(size).shape for name, feed in model.feeds.items()}
        fed = {name: feed.type.dtype for name, feed in model.feeds.items()}
        #: The symbol's graph for a micro-batch.
        self.whole: Graph = lower(model.symbol, shapes, {**dtypes, **fed})
        self.layouts: Mapping[Value, Layout] = {}
        pieces = self._pieces()
        if any("[replica " in names[0] for names in pieces.values()):
            self.layouts = micro_batch(self.whole, axes, size, batch).layouts
        self.placed: dict[str, _Placed] = {}
        for node in self.whole:
            found = self._placed(node, pieces.get(node.name, ()))
            if found is not None:
                self.placed[node.name] = found

    def of_nodes(self, graph: OnnxGraph) -> dict[str, NodePlace]:
        """Return the places of ONNX nodes, by name."""
        values = {name: value for value, name in graph.names.items()}
        return {
            node.name: NodePlace(self.placed[node.origin].stage, self._tensors(node, values))
            for node in graph.nodes
            if node.origin in self.placed
        }

    def _pieces(self) -> dict[str, list[str]]:
        """Return node -> the shards or replicas that it became."""
        found: dict[str, list[str]] = {}
        for node in self.graph:
            if node.origin is None and place_of(node) is not None:
                match = PIECE.fullmatch(node.name)
                if match is not None and match[1] in self.whole.nodes:
                    found.setdefault(match[1], []).append(node.name)
        return found

    def _placed(self, node: Node, pieces: Sequence[str]) -> _Placed | None:
        """Return a node's place; that of its input if planning has removed it."""
        stage_of, rank_of = self.plan.placement.stage_of, self.plan.placement.rank_of
        names = pieces or ([node.name] if node.name in stage_of else [])
        if not names:
            inputs = [self.placed[v.node] for v in node.inputs if v.node in self.placed]
            return _Placed(inputs[0].stage, inputs[0].ranks[:1], ()) if inputs else None
        stages = [stage_of[name] for name in names]
        replicas = bool(pieces) and pieces[0].startswith(f"{node.name}[replica ")
        return _Placed(min(stages), tuple(rank_of[s] for s in stages), tuple(names), replicas)

    def _tensors(self, node: OnnxNode, values: Mapping[str, Value]) -> dict[str, Spread]:
        """Return where the tensors of an ONNX node are.

        Of the nodes that make up a shard, only those that read or make pieces say so.
        """
        placed = self.placed[node.origin]
        found: dict[str, Spread | None] = {}
        for name in node.inputs:
            if name in values:
                found[name] = self._read(values[name], placed)
        for name in node.outputs:
            if name in values:
                found[name] = self._made(values[name])
            elif len(placed.ranks) == 1:
                found[name] = Spread(placed.ranks)
        known = {name: spread for name, spread in found.items() if spread is not None}
        shards = len(placed.ranks) > 1 and not placed.replicas
        return {} if shards and not any(spread.cut for spread in known.values()) else known

    def _read(self, value: Value, reader: _Placed) -> Spread | None:
        """Return where a node's input is; None for what is sent to it, and goes without saying."""
        maker = self.placed.get(value.node)
        if maker is None:
            return None
        if len(reader.ranks) == 1:
            is_home = self.whole[value.node].is_variable and maker.ranks == reader.ranks
            return Spread(maker.ranks) if is_home else None
        if maker.ranks == reader.ranks and maker.replicas == reader.replicas:
            return self._made(value)
        layout = self.layouts.get(value)
        if reader.replicas and isinstance(layout, Split):
            return Spread(reader.ranks, self._dealt(value, layout, len(reader.ranks)))
        return Spread(reader.ranks)

    def _made(self, value: Value) -> Spread | None:
        """Return where a value is made; a sum of pieces is where they are added up."""
        placed = self.placed[value.node]
        if len(placed.ranks) == 1:
            return Spread(placed.ranks)
        layout = self.layouts.get(value)
        if placed.replicas and layout is WHOLE:
            return Spread(placed.ranks)
        if placed.replicas and isinstance(layout, Split):
            return Spread(placed.ranks, self._dealt(value, layout, len(placed.ranks)))
        cut = None if placed.replicas else self._cut(value, placed)
        if cut is not None:
            return Spread(placed.ranks, cut)
        stage = self.plan.placement.stage_of.get(str(value))
        return None if stage is None else Spread((self.plan.placement.rank_of[stage],))

    def _cut(self, value: Value, placed: _Placed) -> Cut | None:
        """Return how a value is cut into the shards' outputs; None if it is made of them all."""
        shape = self.whole.type_of(value).shape
        types = [self.graph[name].types for name in placed.pieces]
        if any(len(t) <= value.index or len(t[value.index].shape) != len(shape) for t in types):
            return None
        parts = [t[value.index].shape for t in types]
        for axis, length in enumerate(shape):
            lengths = [part[axis] for part in parts]
            if lengths[0] != length and sum(lengths) == length:
                if max(lengths) - min(lengths) > 1:
                    raise ConfigError(
                        f"--onnx: {value.node!r} is cut into pieces of {lengths}, but ONNX cuts an "
                        "axis into equal ones: give `shard` a number, not a proportion"
                    )
                return Cut(axis, ((length, len(parts)),))
        return None

    def _dealt(self, value: Value, layout: Split, count: int) -> Cut:
        """Return the cut of a value whose samples are dealt out."""
        factors = ((layout.outer, 1), (BATCH, count), (layout.inner, 1))
        return Cut(layout.axis, tuple(f for f in factors if f[0] != 1))
