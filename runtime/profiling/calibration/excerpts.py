"""Excerpts: some calls of a graph by themselves, bound on synthetic inputs, so as to be timed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from partitioner import Placement
from partitioner.cutting.cut import cut
from partitioner.memory.memory_layout import lay_out
from runtime.backends.bodies import Binder, BoundBody, Packs
from runtime.backends.cuda_graphs import CapturedRun
from runtime.backends.device.arrays import HOST, Device
from runtime.backends.device.table import CallContext
from symgraph.core.build import Builder
from symgraph.core.context import cpu
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import VARIABLE, Env, find
from symgraph.core.types import Array, TensorType, Types, Value, is_float

DIFFERENT_NUMBERS = 10_007  # period of the random numbers; rows of usual sizes all differ


class SyntheticInputs:
    """Arrays of random numbers on a device, which the excerpts of a worker read in turn.

    They also share the memory of what they compute, since they run one after another.
    """

    def __init__(self, device: Device = HOST) -> None:
        self.device = device
        self._arrays: dict[tuple[TensorType, int | None], list[Array]] = defaultdict(list)
        self._used: Counter[tuple[TensorType, int | None]] = Counter()
        self._rng = np.random.default_rng(0)
        self._memory = device.bytes(0)

    def begin(self) -> None:
        """Allow the next excerpt to read all arrays again."""
        self._used.clear()

    def memory(self, nbytes: int) -> Array:
        """Return memory for what an excerpt computes."""
        if self._memory.nbytes < nbytes:
            self._memory = self.device.bytes(nbytes)
        return self._memory[:nbytes]

    def next(self, type_: TensorType, id_count: int | None) -> Array:
        """Return an array that this excerpt does not read yet.

        Args:
            type_: its type.
            id_count: the number of ids that it may hold; None: any numbers.
        """
        key = type_, id_count
        arrays, used = self._arrays[key], self._used[key]
        if used == len(arrays):
            numbers = _random(self._rng, type_, id_count)
            arrays.append(numbers if self.device.is_host else self.device.put(numbers))
        self._used[key] += 1
        return arrays[used]


def _random(rng: np.random.Generator, type_: TensorType, id_count: int | None) -> Array:
    if id_count is None and is_float(type_.dtype):
        numbers = rng.standard_normal(min(type_.size, DIFFERENT_NUMBERS), np.float32)
        numbers *= 0.1  # so that products of many stay in range
        return np.resize(numbers.astype(type_.dtype, copy=False), type_.shape)
    return rng.integers(0, 2 if id_count is None else id_count, type_.shape).astype(type_.dtype)


def id_counts(node: Node, types: Types) -> list[int | None]:
    """Return for each input the number of ids that it may hold; None: any numbers."""
    op = find(node.op)
    counts = [op.ids.get(name) for name in op.input_names(node.attrs)]
    # A hidden input has no name among those of the users.
    counts += [None] * (len(types) - len(counts))
    return [None if count is None else count(node.attrs, types) for count in counts]


def cut_out(
    graph: Graph,
    names: Sequence[str],
    inputs: SyntheticInputs,
    context: CallContext | None = None,
) -> BoundBody:
    """Bind some calls alone, in their order, as in training, on the device of the inputs.

    What other calls make is read from synthetic inputs; what others read is kept.
    """
    inside = set(names)
    kept = {v for n in graph if n.name not in inside for v in n.inputs} | {*graph.outputs}
    fresh = Builder(graph).fresh
    variables: dict[tuple[Value, int | None], Node] = {}
    feeds: dict[str, Array] = {}
    calls = []
    inputs.begin()
    for name in names:
        node = graph[name]
        types = graph.types_of(node.inputs)
        reads = []
        for value, type_, count in zip(node.inputs, types, id_counts(node, types), strict=True):
            if value.node in inside and count is None:
                reads.append(value)
                continue
            if (value, count) not in variables:
                variable = Node(fresh("synthetic"), VARIABLE, types=(type_,))
                variables[value, count] = variable
                feeds[variable.name] = inputs.next(type_, count)
            reads.append(Value(variables[value, count].name))
        calls.append(Node(name, node.op, tuple(reads), node.attrs, node.types))
    results = [v for n in calls for i in range(len(n.types)) if (v := Value(n.name, i)) in kept]
    context = context or CallContext()
    context.env = Env(train=True)
    excerpt = Graph.of([*variables.values(), *calls], results)
    return bound(excerpt, feeds, context, inputs.device, inputs.memory)


def bound(
    graph: Graph,
    arrays: Mapping[str, Array],
    context: CallContext | None = None,
    device: Device = HOST,
    reserve: Callable[[int], Array] | None = None,
) -> BoundBody:
    """Bind a whole forward graph as one body, as the worker does it.

    Args:
        graph: the graph.
        arrays: the arrays of its variables.
        context: what its calls read.
        device: the device, which this thread uses.
        reserve: allocates the bytes for what the graph computes; None: the device does, anew.
    """
    partition = cut(graph, Placement(dict.fromkeys(graph.nodes, 0), (0,), (cpu(0),)))
    (body,) = partition.bodies.values()
    layout = lay_out(partition, 0, arrays)
    memory = (reserve or device.bytes)(layout.scratch[body.key])
    context = context or CallContext()
    context.set(context.env._replace(xp=device.xp))
    binder = Binder(layout, arrays, frozenset(arrays), memory, Packs(), context, device)
    return binder.bind(body, {}, 0)


def captured(body: BoundBody, context: CallContext, device: Device, times: int = 1) -> CapturedRun:
    """Return a body, or several equal ones in a row, as a GPU runs it after the first two runs."""
    replay = CapturedRun(device, context, body.steps * times)
    replay()  # compiles, and touches all memory
    replay()  # captures
    return replay
