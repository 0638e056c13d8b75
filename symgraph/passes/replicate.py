"""Replicas: a part of the network that several devices run, each on its own share of the samples.

Where one group outweighs what a device should do, and its operators are too many to be split one by
one, several devices run the whole group (data parallelism inside the pipeline, as PipeDream
replicates a stage). Each micro-batch's samples are dealt out, the first to replica 0:

                   ┌─ layer1[replica 0] ── samples 0-7 ──┐
    layer0 ─ deal ─┤                                     ├─ join ─ layer2
                   └─ layer1[replica 1] ── samples 8-15 ─┘

Every replica has its own copy of the group's parameters and adds up its own gradient; the copies'
gradients are summed once per step, in the order of the replicas, and all copies make the same
update. As with shards, only ordinary values pass between them, and a given number of replicas
computes the same numbers wherever they are placed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

from symgraph.core.batch_layout import PARTIAL, WHOLE, Layout, Split
from symgraph.core.build import typed_node
from symgraph.core.errors import GraphError, MicroBatchError
from symgraph.core.graph import Graph, Node, prune
from symgraph.core.registry import find
from symgraph.core.tags import hide, lookup
from symgraph.core.types import Shape, Value
from symgraph.passes.batching import MicroBatched, split_sizes
from symgraph.passes.shards import DEVICES, GROUP, KEY, NONE, Shard, place_of, stays_in_pieces

REPLICATE = "replicate"
COPY_OF = "__copy_of__"  # the tag of a parameter's copy: the parameter's name
Counts = Mapping[str, int]  # node -> number of replicas


@dataclass(frozen=True)
class Replicated:
    """A micro-batch's graph after the rewrite."""

    graph: Graph
    #: The layouts of all values of the original graph.
    layouts: Mapping[Value, Layout]
    #: Variable -> the parameter of which it is a copy.
    copies: Mapping[str, Shard]
    #: By output of the original graph, the number of outputs that it is now.
    pieces: tuple[int, ...]

    def named(self, names: Iterable[str]) -> list[str]:
        """Return the outputs' names, by those of the original graph's outputs."""
        return [
            _name(name, i) if count > 1 else name
            for name, count in zip(names, self.pieces, strict=True)
            for i in range(count)
        ]

    def variables(self, names: Iterable[str]) -> list[str]:
        """Return these variables, with its copies in place of a parameter that has some."""
        variables = []
        for name in names:
            copies = [v for v, copy in self.copies.items() if copy.parameter == name]
            variables += copies or [name]
        return variables


def copies_of(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return parameter -> the variables that are its copies, in order."""
    copies: dict[str, tuple[str, ...]] = {}
    for node in graph.variables:
        if COPY_OF in node.tags:
            parameter = node.tags[COPY_OF]
            copies[parameter] = (*copies.get(parameter, ()), node.name)
    return copies


def replica_counts(graph: Graph, devices: Mapping[str, int] = NONE) -> Counts:
    """Return the operators to replicate: those marked with the attribute `replicate`.

    replicate="2" means two replicas; "devices" means as many as the node's ctx_group has in
    `devices`. A group of several devices in which nothing is split into shards is replicated
    without a mark.

    Raises:
        GraphError: The attribute has another value, or the node is a shard as well.
    """
    sharded = {lookup(n.tags, GROUP) for n in graph if place_of(n)}
    counts = {}
    for node in graph:
        if node.is_variable:
            continue
        group = lookup(node.tags, GROUP)
        text = lookup(node.tags, REPLICATE)
        if text is None:
            count = 1 if group in sharded else devices.get(group or "", 1)
        elif text == DEVICES:
            count = devices.get(group or "", 1)
        elif text.isdecimal() and int(text):
            count = int(text)
        else:
            raise GraphError(
                f"{node.op} {node.name!r} has replicate={text!r}; write a number of replicas, as "
                f"in '2', or {DEVICES!r}"
            )
        if count > 1 and place_of(node):
            raise GraphError(
                f"{node.op} {node.name!r} is both split into shards and replicated; keep one "
                "of the attributes shard and replicate"
            )
        if count > 1:
            counts[node.name] = count
    return counts


def replicate(
    counts: Counts,
    size: int,
    micro_batch: Callable[[int], MicroBatched],
    fed: Iterable[str],
    sizes: Iterable[int],
    *,
    whole: bool = True,
) -> Replicated:
    """Replace operators of a micro-batch of `size` samples by their replicas.

    Args:
        counts: Node -> the number of its replicas.
        size: The number of samples.
        micro_batch: Number of samples -> the same graph, prepared for that many samples.
        fed: The variables that are not parameters.
        sizes: The sizes of all micro-batches, whose graphs have the same nodes.
        whole: Whether an output that is a replicated softmax is joined; otherwise its replicas
            become outputs, with names of their own.

    Raises:
        MicroBatchError: There are fewer samples than replicas.
    """
    given = micro_batch(size)
    graph, layouts = given
    if not counts:
        return Replicated(graph, layouts, {}, (1,) * len(graph.outputs))
    rewriter = _Rewriter(given, counts, fed)
    for count in dict.fromkeys(counts.values()):
        if count > size:
            name = next(n for n, c in counts.items() if c == count)
            raise MicroBatchError(
                f"a micro-batch of {size} samples cannot be dealt out to {count} replicas of "
                f"{name!r}; use fewer micro-batches or replicas"
            )
        shares = split_sizes(size, count)
        rewriter.shares[count] = shares
        rewriter.even[count] = not any(n % count for n in sizes)
        rewriter.parts[count] = [micro_batch(n).graph for n in shares]
    for node in graph:
        rewriter.rewrite(node)
    pieces = [
        rewriter.pieces_of(value)
        if stays_in_pieces(graph, value, whole)
        else (rewriter.whole_of(value),)
        for value in graph.outputs
    ]
    outputs = [value for some in pieces for value in some]
    made = prune(Graph.of(rewriter.nodes.values(), outputs), outputs)
    return Replicated(made, layouts, MappingProxyType(rewriter.copies), tuple(map(len, pieces)))


class _Rewriter:
    """The rewritten nodes so far."""

    def __init__(self, whole: MicroBatched, counts: Counts, fed: Iterable[str]) -> None:
        self.graph, self.layouts = whole
        # Nodes that must see the whole batch have become variables; see batching.prologue.
        self.counts = {
            n.name: counts[n.name] for n in self.graph if n.name in counts and not n.is_variable
        }
        #: Number of replicas -> the samples of each.
        self.shares: dict[int, tuple[int, ...]] = {}
        #: Number of replicas -> whether these are equal in all micro-batches.
        self.even: dict[int, bool] = {}
        #: Number of replicas -> the graph of each.
        self.parts: dict[int, list[Graph]] = {}
        self.nodes: dict[str, Node] = {}
        #: (value, number of replicas) -> the samples of each.
        self.dealt: dict[tuple[Value, int], tuple[Value, ...]] = {}
        #: Value of a replicated node -> all its samples.
        self.joined: dict[Value, Value] = {}
        self.copies: dict[str, Shard] = {}
        self.readers: dict[str, list[str]] = {}
        for value, users in self.graph.users().items():
            self.readers.setdefault(value.node, []).extend(users)
        self._fed = frozenset(fed)
        self._copied = self._parameters()

    def rewrite(self, node: Node) -> None:
        """Add a node, or its replicas."""
        count = self.counts.get(node.name, self._copied.get(node.name, 1))
        if node.is_variable and count > 1:
            self._parameter(node, count)
        elif count > 1:
            self._replicas(node, count)
        else:
            self._add(node, tuple(self.whole_of(v) for v in node.inputs))

    def whole_of(self, value: Value) -> Value:
        """Return a value with all samples of the micro-batch."""
        if value.node not in self.counts:
            return value
        if value not in self.joined:
            self.joined[value] = self._join(value)
        return self.joined[value]

    def pieces_of(self, value: Value) -> tuple[Value, ...]:
        """Return a value of a node by its replicas; the value itself if it has none."""
        count = self.counts.get(value.node, 1)
        if count == 1:
            return (value,)
        return tuple([Value(_name(value.node, i), value.index) for i in range(count)])

    def _parameters(self) -> dict[str, int]:
        """Return the parameters to copy: those that only replicas read."""
        copied = {}
        for node in self.graph.variables:
            counts = {self.counts.get(r, 1) for r in self.readers.get(node.name, ())}
            stays = node.name not in self._fed and self.layouts[Value(node.name)] is WHOLE
            if stays and len(counts) == 1 and counts != {1}:
                copied[node.name] = counts.pop()
        return copied

    def _add(self, node: Node, inputs: tuple[Value, ...]) -> None:
        if node.name in self.nodes:
            raise GraphError(f"node name {node.name!r} is reserved for a replica; rename the node")
        self.nodes[node.name] = Node(
            node.name, node.op, inputs, node.attrs, node.types, None, node.tags
        )

    def _call(
        self,
        name: str,
        op: str,
        inputs: tuple[Value, ...],
        tags: Mapping[str, str],
        /,
        **attrs: object,
    ) -> Value:
        types = [self.nodes[v.node].types[v.index] for v in inputs]
        self._add(typed_node(name, op, inputs, types, attrs, tags), inputs)
        return Value(name)

    def _parameter(self, node: Node, count: int) -> None:
        (type_,) = node.types
        rows = type_.shape[0] if type_.shape else 1
        names = []
        for i in range(count):
            name = _name(node.name, i)
            tags = MappingProxyType({**_tags(node, i, count), COPY_OF: node.name})
            self.nodes[name] = Node(name, node.op, types=node.types, tags=tags)
            self.copies[name] = Shard(node.name, 0, rows, rows, i)
            names.append(Value(name))
        self.dealt[Value(node.name), count] = tuple(names)

    def _replicas(self, node: Node, count: int) -> None:
        inputs = [self._deal(node, v, count) for v in node.inputs]
        starts = accumulate(self.shares[count], initial=0)
        for i, first in zip(range(count), starts, strict=False):
            part = self.parts[count][i][node.name]
            attrs = part.attrs
            if find(node.op).random:
                attrs = MappingProxyType({**attrs, "first": attrs["first"] + first})
            own = Node(
                _name(node.name, i), node.op, (), attrs, part.types, None, _tags(node, i, count)
            )
            self._add(own, tuple(values[i] for values in inputs))

    def _deal(self, node: Node, value: Value, count: int) -> tuple[Value, ...]:
        """Return what each replica of a node reads of one of its inputs."""
        if self.counts.get(value.node) == count:
            return self.pieces_of(value)
        layout = self.layouts[value]
        if layout is PARTIAL:
            raise MicroBatchError(
                f"{node.op} {node.name!r} is replicated, but its input {str(value)!r} is a sum "
                "over samples that is made outside; replicate what makes it as well"
            )
        key = value, count
        if key not in self.dealt:
            whole = self.whole_of(value)
            made = self._slices(whole, value, layout, count) if isinstance(layout, Split) else None
            self.dealt[key] = made or (whole,) * count
        return self.dealt[key]

    def _slices(self, whole: Value, value: Value, layout: Split, count: int) -> tuple[Value, ...]:
        """Return each replica's samples of a value, cut where it is produced to send less."""
        producer = self.nodes[whole.node]
        tags, shape = producer.tags, producer.types[whole.index].shape
        shares = self.shares[count]
        stem, size = f"{value}[deal {count}]", sum(shares)
        source, axis = whole, layout.axis
        if layout.outer > 1:
            source = self._reshape(f"{stem}[open]", whole, _opened(shape, layout, size), tags)
            axis += 1
        if self.even[count]:
            self._call(stem, "SliceChannel", (source,), tags, num_outputs=count, axis=axis)
            slices = [Value(stem, i) for i in range(count)]
        else:
            ends = [n * layout.inner for n in accumulate(shares, initial=0)]
            slices = [
                self._call(
                    f"{stem}[{i}]",
                    "slice_axis",
                    (source,),
                    tags,
                    axis=axis,
                    begin=ends[i],
                    end=ends[i + 1],
                )
                for i in range(count)
            ]
        if layout.outer > 1:
            slices = [
                self._reshape(f"{stem}[{i} closed]", v, _with_samples(shape, layout, n), tags)
                for i, (v, n) in enumerate(zip(slices, shares, strict=True))
            ]
        return tuple(slices)

    def _reshape(self, name: str, value: Value, shape: Shape, tags: Mapping[str, str]) -> Value:
        return self._call(name, "Reshape", (value,), tags, shape=shape)

    def _join(self, value: Value) -> Value:
        """Return all samples of a replicated output, joined where one group reads it."""
        node, count = self.graph[value.node], self.counts[value.node]
        pieces = self.pieces_of(value)
        tags, name = self._tags_of_join(node), str(value)
        layout = self.layouts[value]
        if layout is WHOLE:
            return pieces[0]
        if not isinstance(layout, Split):
            return self._call(name, "add_n", pieces, tags)
        op = "Concat" if self.even[count] else "_join_shares"
        shape = node.types[value.index].shape
        if layout.outer == 1:
            return self._call(name, op, pieces, tags, dim=layout.axis)
        shares = self.shares[count]
        opened = tuple(
            self._reshape(
                f"{name}[{i} open]", v, _opened(shape, layout, n), self.nodes[v.node].tags
            )
            for i, (v, n) in enumerate(zip(pieces, shares, strict=True))
        )
        joined = self._call(f"{name}[join]", op, opened, tags, dim=layout.axis + 1)
        return self._reshape(name, joined, shape, tags)

    def _tags_of_join(self, node: Node) -> Mapping[str, str]:
        readers = [r for r in self.readers.get(node.name, ()) if r not in self.counts]
        groups = {lookup(self.graph[r].tags, GROUP) for r in readers}
        if len(groups) != 1 or groups == {None}:
            return node.tags
        return MappingProxyType({**node.tags, hide(GROUP): str(groups.pop())})


def _name(name: str, index: int) -> str:
    return f"{name}[replica {index}]"


def _tags(node: Node, index: int, count: int) -> Mapping[str, str]:
    return MappingProxyType({**node.tags, hide(KEY): f"{index}/{count}"})


def _opened(shape: Shape, layout: Split, size: int) -> Shape:
    """Return the shape with the batch axis in two: outer, and samples * inner."""
    axis = layout.axis
    return (*shape[:axis], layout.outer, size * layout.inner, *shape[axis + 1 :])


def _with_samples(shape: Shape, layout: Split, size: int) -> Shape:
    """Return the shape with another number of samples."""
    axis = layout.axis
    return (*shape[:axis], layout.outer * size * layout.inner, *shape[axis + 1 :])
