"""Micro-batching of a graph: what splitting the batch needs, computed once per graph.

A graph is lowered at the micro-batch's size and walked with every operator's batch rule
(core/batch_layout.py). Divisors that count samples are set to the whole batch's count; random
operators learn which of their elements belong to which sample; and nodes that must see the whole
batch (a count of valid labels) move to a prologue, which is computed on the whole batch's data
before the first micro-batch and fed as variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from symgraph.core.batch_layout import PARTIAL, WHOLE, Layout, Split, refuse_mixing
from symgraph.core.build import Builder
from symgraph.core.errors import MicroBatchError
from symgraph.core.graph import Graph, Node, prune
from symgraph.core.reference import PLAIN, evaluate
from symgraph.core.registry import VARIABLE, OpDef, find, run
from symgraph.core.types import Array, TensorType, Types, Value


class Feed(NamedTuple):
    """A variable that is fed in every step: its type for the whole batch and its batch axis."""

    type: TensorType
    axis: int = 0

    def part(self, size: int) -> TensorType:
        """Return its type for a micro-batch of `size` samples."""
        shape = list(self.type.shape)
        shape[self.axis] = size
        return TensorType(tuple(shape), self.type.dtype)


class MicroBatched(NamedTuple):
    """A graph for one micro-batch, with the divisors and random numbers of the whole batch."""

    graph: Graph
    #: By value, how the whole batch's value is assembled from those of the micro-batches.
    layouts: dict[Value, Layout]


def split_sizes(batch: int, parts: int) -> tuple[int, ...]:
    """Return micro-batch sizes, as equal as possible, larger first: 8 in 3 parts is (3, 3, 2)."""
    if not 1 <= parts <= batch:
        raise MicroBatchError(
            f"a batch of {batch} samples cannot be split into {parts} micro-batches; "
            f"use 1 to {batch}"
        )
    small, more = divmod(batch, parts)
    return (small + 1,) * more + (small,) * (parts - more)


def batch_size(feeds: Mapping[str, Feed]) -> int:
    """Return the length of the batch axis; MicroBatchError if feeds differ in it."""
    sizes = {name: feed.type.shape[feed.axis] for name, feed in feeds.items()}
    if len(set(sizes.values())) != 1:
        raise MicroBatchError(f"the batch axes of the inputs differ: {sizes}")
    return next(iter(sizes.values()))


def prologue(graph: Graph, feeds: Iterable[str]) -> Graph:
    """Return the nodes that must see the whole batch, with all that they need.

    Only nodes that depend on fed variables alone are taken; the graph is empty if there are none.

    Args:
        graph: A forward graph, typed for the whole batch.
        fed: The variables that are fed.
    """
    fed = set(feeds)
    wanted: list[Value] = []
    for node in graph:
        from_feeds = all(v.node in fed for v in node.inputs)
        if not node.is_variable and from_feeds:
            fed.add(node.name)
            if find(node.op).whole_batch:
                wanted += [Value(node.name, i) for i in range(len(node.types))]
    return prune(graph, wanted)


def early_values(
    prologues: Sequence[Graph], feeds: Sequence[Mapping[str, Array]]
) -> list[dict[str, Array]]:
    """Compute the prologues of a step's batches; return their values by name.

    Batches of several buckets differ in shape, so each prologue's inputs are computed from its own
    batch; then an operator, which only counts, sees those of all batches as one flat array.
    """
    if len(prologues) == 1:
        (early,), (values,) = prologues, feeds
        made = evaluate(early, {n.name: values[n.name] for n in early.variables})
        return [{v.node: a for v, a in zip(early.outputs, made, strict=True)}]
    read: list[list[list[Array]]] = []  # batch -> operator -> its inputs, flat
    for early, values in zip(prologues, feeds, strict=True):
        ins = prune(early, [v for out in early.outputs for v in early[out.node].inputs])
        made = evaluate(ins, {n.name: values[n.name] for n in ins.variables})
        flat = iter([array.reshape(-1) for array in made])
        read.append([[next(flat) for _ in early[out.node].inputs] for out in early.outputs])
    by_prologue: list[dict[str, Array]] = [{} for _ in prologues]
    for index, columns in enumerate(zip(*read, strict=True)):
        node = prologues[0][prologues[0].outputs[index].node]
        joined = [np.concatenate(arrays) for arrays in zip(*columns, strict=True)]
        (value,) = run(find(node.op), PLAIN, node.attrs, joined)
        for into, early in zip(by_prologue, prologues, strict=True):
            into[early.outputs[index].node] = value
    return by_prologue


def micro_batch(graph: Graph, axes: Mapping[str, int], size: int, whole: int) -> MicroBatched:
    """Prepare a forward graph that is typed for `size` of the `whole` batch's samples.

    Args:
        graph: The forward graph.
        size: The number of samples in the micro-batch.
        whole: The number of samples in the batch.
        axes: Variable name -> its batch axis.

    Raises:
        MicroBatchError: A node mixes samples, and the micro-batch is not the whole batch.
    """
    early = {v.node for v in prologue(graph, axes).outputs}
    builder = Builder()
    layouts: dict[Value, Layout] = {}
    mixed: set[str] = set()
    for node in graph:
        if node.is_variable or node.name in early:
            axis = axes.get(node.name)
            layouts[Value(node.name)] = WHOLE if axis is None else Split(axis)
            builder.add(Node(node.name, VARIABLE, types=node.types, tags=node.tags))
            continue
        builder.add(node)
        op = find(node.op)
        ins = [layouts[v] for v in node.inputs]
        try:
            outs = op.batch(node.site, ins, graph.types_of(node.inputs), node.types)
            _adjust(builder, graph, node, op, ins, list(outs), (size, whole))
        except MicroBatchError:
            if size != whole:
                raise
            outs = _of_one_batch(ins, graph.types_of(node.inputs), node.types)
            mixed.add(node.name)
        if not mixed.isdisjoint(v.node for v in node.inputs):
            mixed.add(node.name)
        layouts.update({Value(node.name, i): layout for i, layout in enumerate(outs)})
    for value in graph.outputs:  # one number of the only micro-batch is that of the whole batch
        if value.node in mixed and layouts[value] is WHOLE and graph.type_of(value).size == 1:
            layouts[value] = PARTIAL
    return MicroBatched(prune(builder.graph(graph.outputs), graph.outputs), layouts)


def _of_one_batch(ins: list[Layout], in_types: Types, outs: Types) -> list[Layout]:
    """Return the layouts of the outputs of a node that mixes samples.

    The only micro-batch is the whole batch, so nothing is assembled by them. Where shapes agree,
    outputs lie as the samples do; sums over samples are recognised later.
    """
    sample = next(
        ((at, t) for at, t in zip(ins, in_types, strict=True) if isinstance(at, Split)), None
    )
    return [sample[0] if sample and t.shape == sample[1].shape else WHOLE for t in outs]


def _adjust(
    builder: Builder,
    graph: Graph,
    node: Node,
    op: OpDef,
    ins: list[Layout],
    outs: list[Layout],
    sizes: tuple[int, int],
) -> None:
    """Set the parameters that depend on the whole batch."""
    size, whole = sizes
    first = outs[0]
    if not ins and isinstance(first, Split) and node.types[0].shape[first.axis] != size:
        refuse_mixing(
            node.site,
            f"has a 0 in its shape for an axis of length "
            f"{node.types[0].shape[first.axis]}, which is not the batch's",
        )
    split = any(isinstance(layout, Split) for layout in ins)
    if op.divisor is not None and split and (op.is_loss(node.attrs) or outs[0] is PARTIAL):
        count = op.divisor(node.attrs, graph.types_of(node.inputs))
        builder.replace(node.name, count=count * whole // size)
    if op.random and isinstance(outs[0], Split):
        at = outs[0]
        builder.replace(node.name, axis=at.axis, outer=at.outer, inner=at.inner)
    if op.is_loss(node.attrs) and not split and PARTIAL not in ins and size != whole:
        if "share" not in op.params:
            refuse_mixing(node.site, "is a loss that does not depend on the samples")
        builder.replace(node.name, share=size / whole)


def assemble(layout: Layout, parts: list[Array]) -> Array:
    """Assemble the whole batch's value from the micro-batches' values, in order."""
    if len(parts) == 1 or layout is WHOLE:
        return parts[0]
    if not isinstance(layout, Split):
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total
    axis, shape = layout.axis, parts[0].shape
    before, after = shape[:axis], shape[axis + 1 :]
    views = [p.reshape(*before, layout.outer, -1, layout.inner, *after) for p in parts]
    joined = np.concatenate(views, axis=axis + 1)
    return joined.reshape(*before, -1, *after)
