"""Shards: one big operator as a piece for each of several devices, a rewrite of the forward graph.

The decoder of a language model outweighs several recurrent layers, so no cut between operators
balances it. Marked with `AttrScope(shard="2")`, the operators that its classes go through fall in
two, each with the rows of weight and bias that it needs:

            ┌─ decode[0:5000] ───── row figures ─┐          ┌─ softmax[0:5000] ───── pick ─┐
    rows ───┤                                    ├─ joined ─┤                              ├─ nll
            └─ decode[5000:10000] ─ row figures ─┘          └─ softmax[5000:10000] ─ pick ─┘

Only ordinary values of a few numbers per row pass between the pieces, so placement, cutting and
schedules see nothing special, and gradients, which are built on this graph, add up the pieces'
parts of the input's gradient. A reader that cannot be split reads the pieces joined. A given
attribute gives the same numbers wherever the pieces are placed.

A convolution is split along its filters, and what works on each channel by itself stays in pieces
after it. Each device has its filters' rows of weight and bias and reads all of the data, or with
groups the channels of its groups:

    data ─┬─ conv[0:32] ── relu[0:32] ── pool[0:32] ───┐
          └─ conv[32:64] ─ relu[32:64] ─ pool[32:64] ──┴─ joined along the channels
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

from symgraph.core.build import typed_node
from symgraph.core.errors import GraphError
from symgraph.core.graph import Graph, Node, prune
from symgraph.core.registry import VARIABLE
from symgraph.core.tags import hide, lookup
from symgraph.core.types import TensorType, Value
from symgraph.ops.loss import IGNORE
from symgraph.passes.shards import DEVICES, GROUP, KEY, NONE, Shard, stays_in_pieces

Proportion = tuple[int, ...]
Bounds = tuple[tuple[int, int], ...]
SPLIT = {  # operator -> the parameter that counts what is split
    "FullyConnected": "num_hidden",
    "Embedding": "input_dim",
    "Convolution": "num_filter",
}


@dataclass(frozen=True)
class Sharded:
    """A graph after the rewrite."""

    graph: Graph
    #: The names of its outputs.
    names: tuple[str, ...]
    #: Variable -> its part of a parameter, in order; a split parameter is no longer a variable.
    shards: Mapping[str, Shard]

    def variables(self, names: Iterable[str]) -> list[str]:
        """Return these variables, with its shards in place of a parameter that is split."""
        return [v for n in names for v in self._shards_of(n) or [n]]

    def _shards_of(self, parameter: str) -> list[str]:
        return [v for v, shard in self.shards.items() if shard.parameter == parameter]


def shard(
    graph: Graph,
    names: Sequence[str],
    fed: Collection[str],
    *,
    devices: Mapping[str, int] = NONE,
    whole: bool = True,
) -> Sharded:
    """Split the operators that carry the attribute `shard`, and their parameters.

    shard="2" means two pieces, as equal as possible; "54:46" pieces in that proportion; "devices"
    as many as the node's ctx_group has in `devices`, one without an entry. FullyConnected is split
    along its outputs, Embedding along its vocabulary and Convolution along its filters. Readers
    that are split alike read the pieces: behind a FullyConnected, SoftmaxOutput over the last axis
    with its nll_stats, and softmax_cross_entropy; behind a Convolution, Activation and Pooling.

    Args:
        graph: A forward graph.
        names: The names of its outputs.
        fed: The variables that are not parameters.
        devices: ctx_group -> its number of devices.
        whole: Whether an output that is a split softmax is joined; otherwise its pieces become
            outputs, with names of their own.

    Raises:
        GraphError: The attribute has another value, there are more shards than rows, or a parameter
            would be split in two ways.
    """
    parts = {node.name: proportion for node in graph if (proportion := _parts(node, devices))}
    if not parts:
        return Sharded(graph, tuple(names), {})
    rewriter = _Rewriter(graph, fed, parts)
    for node in graph:
        rewriter.rewrite(node)
    if len(rewriter.nodes) == len(graph):
        marked = next(iter(parts))
        raise GraphError(
            f"{marked!r} is marked with shard={lookup(graph[marked].tags, KEY)!r}, but no operator "
            f"that is can be split: mark one of {', '.join(SPLIT)}"
        )
    listed: list[tuple[Value, str]] = []
    for value, name in zip(graph.outputs, names, strict=True):
        pieces = rewriter.pieces.get(value, ()) if stays_in_pieces(graph, value, whole) else ()
        listed += [(v, name + v.node.removeprefix(value.node)) for v in pieces] or [(value, name)]
    outputs = [value for value, _ in listed]
    pruned = prune(Graph.of(rewriter.nodes.values(), outputs), outputs)
    return Sharded(pruned, tuple(n for _, n in listed), MappingProxyType(rewriter.shards))


def _parts(node: Node, devices: Mapping[str, int]) -> Proportion:
    """Return the proportion of the pieces that an operator is split in; () if it stays whole."""
    text = None if node.is_variable else lookup(node.tags, KEY)
    if text is None:
        return ()
    if text == DEVICES:
        return (1,) * count if (count := devices.get(lookup(node.tags, GROUP) or "", 1)) > 1 else ()
    fields = text.split(":")
    if not all(f.isdecimal() and int(f) for f in fields):
        raise GraphError(
            f"{node.op} {node.name!r} has shard={text!r}; write a number of pieces, as in '2', "
            f"their proportion, as in '3:2', or {DEVICES!r}"
        )
    parts = (1,) * int(text) if len(fields) == 1 else tuple(map(int, fields))
    return parts if len(parts) > 1 else ()


def _bounds(node: Node, parts: Proportion, rows: int) -> Bounds:
    """Return where the pieces of `rows` rows begin and end."""
    total = sum(parts)
    ends = [(rows * done + total // 2) // total for done in accumulate(parts, initial=0)]
    bounds = tuple(pairwise(ends))
    if any(start == stop for start, stop in bounds):
        raise GraphError(
            f"{node.op} {node.name!r} has shard={lookup(node.tags, KEY)!r}, but only {rows} rows: "
            "a piece would be empty"
        )
    return bounds


def _parameters(
    graph: Graph, fed: Collection[str], parts: Mapping[str, Proportion]
) -> dict[str, Bounds]:
    """Return the parameters to split; all split operators that read one must agree how."""
    bounds_of: dict[str, tuple[Bounds, str]] = {}
    for node in graph:
        if node.op not in SPLIT or node.name not in parts:
            continue
        bounds = _bounds(node, parts[node.name], node.attrs[SPLIT[node.op]])
        for value in node.inputs[1:]:
            if graph[value.node].is_variable and value.node not in fed:
                known, reader = bounds_of.setdefault(value.node, (bounds, node.name))
                if known != bounds:
                    raise GraphError(
                        f"parameter {value.node!r} is split into {len(known)} for {reader!r} and "
                        f"into {len(bounds)} for {node.name!r}; give both the same shard"
                    )
    return {name: bounds for name, (bounds, _) in bounds_of.items()}


class _Rewriter:
    """The rewritten nodes so far.

    Every node keeps its name: the node of that name is the same value, joined from pieces, and is
    pruned later if nothing reads it whole.
    """

    def __init__(self, graph: Graph, fed: Collection[str], parts: Mapping[str, Proportion]) -> None:
        self.graph = graph
        self.parts = parts
        self.nodes: dict[str, Node] = {}
        #: Value that is split along its last axis -> its pieces; `bounds` has their ends.
        self.pieces: dict[Value, tuple[Value, ...]] = {}
        self.bounds: dict[Value, Bounds] = {}
        #: Value that is split along axis 1 -> its pieces and their ends.
        self.channels: dict[Value, tuple[tuple[Value, ...], Bounds]] = {}
        self.shards: dict[str, Shard] = {}
        self.parameters: dict[str, tuple[Value, ...]] = {}
        self.figures: dict[Value, Value] = {}
        self._wanted = _parameters(graph, fed, parts)

    def rewrite(self, node: Node) -> None:
        """Add a node, or its replacement."""
        rule = RULES.get(node.op) if node.name in self.parts else None
        if node.name in self._wanted:
            self._parameter(node, self._wanted[node.name])
        elif rule is None or not rule(self, node):
            self.add(node)

    def add(self, node: Node) -> Value:
        if node.name in self.nodes:
            raise GraphError(f"node name {node.name!r} is reserved for a shard; rename the node")
        self.nodes[node.name] = node
        return Value(node.name)

    def call(
        self,
        name: str,
        op: str,
        inputs: Iterable[Value],
        tags: Mapping[str, str],
        **attrs: Any,
    ) -> Value:
        values = tuple(inputs)
        types = [self.nodes[v.node].types[v.index] for v in values]
        return self.add(typed_node(name, op, values, types, attrs, tags))

    def piece_of(
        self,
        node: Node,
        bounds: Bounds,
        op: str,
        inputs: Sequence[Iterable[Value]],
        suffix: str = "",
        /,
        **attrs: Any,
    ) -> tuple[Value, ...]:
        """Add one call for each piece of a node, which reads its own of the inputs."""
        return tuple(
            self.call(
                _name(node.name, *ends) + suffix,
                op,
                own,
                _tags(node, i, bounds),
                **{k: a(*ends) if callable(a) else a for k, a in attrs.items()},
            )
            for i, (ends, own) in enumerate(zip(bounds, inputs, strict=True))
        )

    def rows_of(self, value: Value, bounds: Bounds) -> tuple[Value, ...]:
        """Return the pieces of a weight along its first axis: shards of a parameter, or slices."""
        if value.node in self.parameters:
            return self.parameters[value.node]
        slices = []
        for start, stop in bounds:
            name = f"{value}[rows {start}:{stop}]"
            if name not in self.nodes:
                self.call(name, "slice_axis", [value], {}, axis=0, begin=start, end=stop)
            slices.append(Value(name))
        return tuple(slices)

    def figures_of(self, scores: Value) -> Value:
        """Return the figures of whole rows of a value that is split."""
        if scores not in self.figures:
            parts = [
                self.call(f"{v.node}[figures]", "_shard_row_figures", [v], self.nodes[v.node].tags)
                for v in self.pieces[scores]
            ]
            tags = self.graph[scores.node].tags
            name = f"{scores.node}[figures]"
            self.figures[scores] = self.call(name, "_shard_join_figures", parts, tags)
        return self.figures[scores]

    def is_split_like(self, value: Value, node: Node) -> bool:
        """Tell whether a value is in the pieces that its reader is split in."""
        rows = self.graph.type_of(value).shape[-1]
        return value in self.pieces and self.bounds[value] == self.bounds_of(node, rows)

    def bounds_of(self, node: Node, rows: int) -> Bounds:
        return _bounds(node, self.parts[node.name], rows)

    def split(self, node: Node, pieces: tuple[Value, ...], bounds: Bounds) -> None:
        """Record the pieces of a node's output along its last axis."""
        self.pieces[Value(node.name)], self.bounds[Value(node.name)] = pieces, bounds

    def _parameter(self, node: Node, bounds: Bounds) -> None:
        (type_,) = node.types
        shards = []
        for i, (start, stop) in enumerate(bounds):
            name = _name(node.name, start, stop)
            own = TensorType((stop - start, *type_.shape[1:]), type_.dtype)
            tags = _tags(node, i, bounds)
            shards.append(self.add(Node(name, VARIABLE, types=(own,), tags=tags)))
            self.shards[name] = Shard(node.name, start, stop, type_.shape[0])
        self.parameters[node.name] = tuple(shards)
        self.call(node.name, "Concat", shards, node.tags, dim=0)


def _name(name: str, start: int, stop: int) -> str:
    return f"{name}[{start}:{stop}]"


def _tags(node: Node, index: int, bounds: Bounds) -> Mapping[str, str]:
    return MappingProxyType({**node.tags, hide(KEY): f"{index}/{len(bounds)}"})


# -- rules: how each operator is split, and whether it was ---------------------------------------


def _fully_connected(graph: _Rewriter, node: Node) -> bool:
    data, *rest = node.inputs
    bounds = graph.bounds_of(node, node.attrs["num_hidden"])
    inputs = zip([data] * len(bounds), *(graph.rows_of(v, bounds) for v in rest), strict=True)
    attrs = {**node.attrs, "num_hidden": lambda start, stop: stop - start}
    pieces = graph.piece_of(node, bounds, node.op, list(inputs), **attrs)
    graph.split(node, pieces, bounds)
    graph.call(node.name, "Concat", pieces, node.tags, dim=len(node.types[0].shape) - 1)
    return True


def _embedding(graph: _Rewriter, node: Node) -> bool:
    ids, weight = node.inputs
    rows = node.attrs["input_dim"]
    bounds = graph.bounds_of(node, rows)
    inputs = [(ids, w) for w in graph.rows_of(weight, bounds)]
    shard = {"input_dim": lambda start, stop: stop - start, "begin": _begin, "classes": rows}
    pieces = graph.piece_of(node, bounds, node.op, inputs, **{**node.attrs, **shard})
    graph.call(node.name, "add_n", pieces, node.tags)
    return True


def _softmax_output(graph: _Rewriter, node: Node) -> bool:
    data, label, *valid = node.inputs
    soft = graph.graph.type_of(label).shape == node.types[0].shape
    if node.attrs["multi_output"] or soft or not graph.is_split_like(data, node):
        return False
    bounds, figures = graph.bounds[data], graph.figures_of(data)
    inputs = [(v, label, figures, *valid) for v in graph.pieces[data]]
    attrs = {**node.attrs, "begin": _begin, "classes": bounds[-1][1]}
    pieces = graph.piece_of(node, bounds, "_shard_softmax_output", inputs, **attrs)
    graph.split(node, pieces, bounds)
    graph.call(node.name, "_shard_join", pieces, node.tags, dim=len(node.types[0].shape) - 1)
    return True


def _softmax_cross_entropy(graph: _Rewriter, node: Node) -> bool:
    data, label = node.inputs
    if not graph.is_split_like(data, node):
        return False
    bounds, figures = graph.bounds[data], graph.figures_of(data)
    inputs = [(v, label, figures) for v in graph.pieces[data]]
    attrs = {"begin": _begin, "classes": bounds[-1][1]}
    pieces = graph.piece_of(node, bounds, "_shard_cross_entropy", inputs, **attrs)
    graph.call(node.name, "add_n", pieces, node.tags)
    return True


def _nll(graph: _Rewriter, node: Node) -> bool:
    prob, label = node.inputs
    if graph.graph[prob.node].op != "SoftmaxOutput" or not graph.is_split_like(prob, node):
        return False
    bounds, ignore = graph.bounds[prob], {k: node.attrs[k] for k in IGNORE}
    inputs = [(v, label) for v in graph.pieces[prob]]
    attrs = {**ignore, "begin": _begin, "classes": bounds[-1][1]}
    pieces = graph.piece_of(node, bounds, "_shard_pick", inputs, **attrs)
    picked = graph.call(f"{node.name}[picked]", "add_n", pieces, node.tags)
    graph.call(node.name, "_picked_nll", [picked, label], node.tags, **ignore)
    return True


def _convolution(graph: _Rewriter, node: Node) -> bool:
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
    _join_channels(graph, node, graph.piece_of(node, bounds, node.op, list(own), **attrs), bounds)
    return True


def _channelwise(graph: _Rewriter, node: Node) -> bool:
    """Split a node like the convolution before it, if its own attribute says the same."""
    data, *slopes = node.inputs
    if slopes or data not in graph.channels:
        return False
    pieces, bounds = graph.channels[data]
    if graph.bounds_of(node, bounds[-1][1]) != bounds:
        return False
    own = [(v,) for v in pieces]
    _join_channels(graph, node, graph.piece_of(node, bounds, node.op, own, **node.attrs), bounds)
    return True


def _join_channels(graph: _Rewriter, node: Node, pieces: tuple[Value, ...], bounds: Bounds) -> None:
    """Join a node's pieces for readers of the whole; record them for others."""
    graph.channels[Value(node.name)] = pieces, bounds
    graph.call(node.name, "Concat", pieces, node.tags, dim=1)


def _begin(start: int, stop: int) -> int:
    return start


RULES: Mapping[str, Callable[[_Rewriter, Node], bool]] = {
    "FullyConnected": _fully_connected,
    "Embedding": _embedding,
    "SoftmaxOutput": _softmax_output,
    "softmax_cross_entropy": _softmax_cross_entropy,
    "_nll": _nll,
    "Convolution": _convolution,
    "Activation": _channelwise,
    "LeakyReLU": _channelwise,
    "Pooling": _channelwise,
}
