"""Excerpts: some calls of a graph by themselves, bound on synthetic inputs, so as to be timed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

import numpy as np

from partitioner import Placement
from partitioner.costs.cost import touched_bytes
from partitioner.cutting.cut import cut
from partitioner.memory.memory_layout import lay_out
from partitioner.memory.packing import ALIGN
from runtime.backends.bodies import Binder, BoundBody, Packs
from runtime.backends.cuda_graphs import CapturedRun
from runtime.backends.device.arrays import HOST, Device
from runtime.backends.device.table import CallContext
from symgraph.core.context import cpu
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import VARIABLE, Env
from symgraph.core.types import Array, TensorType, Value, is_float
from symgraph.passes.number_ranges import Range, number_range, usual_range

# Period of the random numbers: rows of usual sizes all differ, and processors that predict branches
# do not learn their signs, as they do of 50,000: `where` took half as long.
DIFFERENT_NUMBERS = 100_003
# Bytes of the arrays of a kind, read in turn, that no cache keeps: more of them tell nothing new.
ENOUGH = 128 << 20
CHUNK = 16 << 20  # bytes that hold small arrays
# The type of an array, and the range of its numbers; None: any.
_Kind = tuple[TensorType, Range | None]


class SyntheticInputs:
    """Arrays of random numbers on a device, which the excerpts of a worker read in turn.

    They also share the memory of what they compute, since they run one after another.

    Attributes:
        packs: The arrays that products of few rows read packed.
    """

    def __init__(self, device: Device = HOST) -> None:
        self.device, self.packs = device, Packs()
        self._arrays: dict[_Kind, list[Array]] = defaultdict(list)
        self._rng = np.random.default_rng(0)
        self._memory = self._free = device.bytes(0)

    def memory(self, nbytes: int) -> Array:
        """Return memory for what an excerpt computes; less than before is part of the same."""
        if self._memory.nbytes < nbytes:
            self._memory = self.device.bytes(nbytes)
        return self._memory[:nbytes]

    def array(self, kind: _Kind, index: int) -> Array:
        """Return one of the arrays of a kind; large ones repeat."""
        arrays = self._arrays[kind]
        index %= max(2, ENOUGH // max(1, kind[0].nbytes))
        while index >= len(arrays):
            numbers = _random(self._rng, *kind)
            place = self._placed if self.device.is_host else self.device.put
            arrays.append(place(numbers))
        return arrays[index]

    def _placed(self, numbers: Array) -> Array:
        """Return the numbers in memory of large pages, such as a worker's values have.

        Pages of 4 KiB that have not been read for long made calls of 50 µs take 290.
        """
        if self._free.nbytes < numbers.nbytes:
            self._free = self.device.bytes(max(CHUNK, numbers.nbytes))
        array = self._free[: numbers.nbytes].view(numbers.dtype).reshape(numbers.shape)
        array[...] = numbers
        self._free = self._free[-(-numbers.nbytes // ALIGN) * ALIGN :]
        return array


def _random(rng: np.random.Generator, type_: TensorType, limits: Range | None) -> Array:
    if limits is None and is_float(type_.dtype):
        numbers = rng.standard_normal(min(type_.size, DIFFERENT_NUMBERS), np.float32)
        numbers *= 0.1  # so that products of many stay in range
        return np.resize(numbers.astype(type_.dtype, copy=False), type_.shape)
    return rng.integers(*limits or (0, 2), type_.shape).astype(type_.dtype)


class Excerpt:
    """Some calls of a graph alone, in their order, as in training.

    What other calls make is read from synthetic inputs; what others read is kept. Inputs of a kind
    that are read a moment after they are made are a few arrays in turn, which stay in a cache;
    others are as many as hold the bytes that are read and written in between.
    """

    def __init__(self, graph: Graph, names: Sequence[str]) -> None:
        """Cut these calls out of a graph, without binding them."""
        inside = set(names)
        kept = {v for n in graph if n.name not in inside for v in n.inputs} | {*graph.outputs}
        moved = dict(zip(graph.nodes, accumulate(_moved(n, graph) for n in graph), strict=True))
        used, found = Counter[_Kind](), dict[tuple[Value, Range | None], str]()
        #: Which synthetic array each variable is.
        self._reads: dict[str, tuple[_Kind, int]] = {}
        calls = []
        for name in names:
            node = graph[name]
            types = graph.types_of(node.inputs)
            reads = []
            for position, (value, type_) in enumerate(zip(node.inputs, types, strict=True)):
                limits = number_range(node, position, types)
                if value.node in inside and limits is None:
                    reads.append(value)
                    continue
                limits = limits or usual_range(node, position)
                if (value, limits) not in found:
                    kind, since = (type_, limits), moved[name] - moved[value.node]
                    count = since // max(1, type_.nbytes)  # arrays of the kind, read in turn
                    if graph[value.node].is_variable:
                        count = len(graph.nodes)  # one each
                    index = used[kind] % max(len(types), count)
                    used[kind] += 1
                    found[value, limits] = variable = f"synthetic {type_} {limits} {index}"
                    self._reads[variable] = kind, index
                reads.append(Value(found[value, limits]))
            calls.append(Node(name, node.op, tuple(reads), node.attrs, node.types))
        results = [v for n in calls for i in range(len(n.types)) if (v := Value(n.name, i)) in kept]
        read = [Node(name, VARIABLE, types=(k[0],)) for name, (k, _) in self._reads.items()]
        self._body = _Whole(Graph.of([*read, *calls], results), self._reads)

    @property
    def nbytes(self) -> int:
        """The bytes of what the calls compute."""
        return self._body.nbytes

    def bind(self, inputs: SyntheticInputs, context: CallContext | None = None) -> BoundBody:
        """Bind the calls on the device of the inputs."""
        arrays = {name: inputs.array(*read) for name, read in self._reads.items()}
        context = context or CallContext()
        context.env = Env(train=True)
        packs, packed = inputs.packs, len(inputs.packs.buffers)
        memory = inputs.memory(self.nbytes)
        body = self._body.bind(arrays, context, inputs.device, memory, packs)
        packs.refresh(packed)
        return body


def _moved(node: Node, graph: Graph) -> int:
    return 0 if node.is_variable else touched_bytes(node, graph)


class _Whole:
    """A forward graph as one body, laid out."""

    def __init__(self, graph: Graph, variables: Collection[str]) -> None:
        self._partition = cut(graph, Placement(dict.fromkeys(graph.nodes, 0), (0,), (cpu(0),)))
        (self._body,) = self._partition.bodies.values()
        self._layout = lay_out(self._partition, 0, variables)

    @property
    def nbytes(self) -> int:
        return self._layout.scratch[self._body.key]

    def bind(
        self,
        arrays: Mapping[str, Array],
        context: CallContext,
        device: Device,
        memory: Array,
        packs: Packs,
    ) -> BoundBody:
        context.set(context.env._replace(xp=device.xp))
        names = frozenset(arrays)
        binder = Binder(self._layout, arrays, names, memory, packs, context, device)
        return binder.bind(self._body, {}, 0)


def bound(
    graph: Graph,
    arrays: Mapping[str, Array],
    context: CallContext | None = None,
    device: Device = HOST,
) -> BoundBody:
    """Bind a whole forward graph as one body, as the worker does it.

    Args:
        graph: the graph.
        arrays: the arrays of its variables.
        context: what its calls read.
        device: the device, which this thread uses.
    """
    whole, packs = _Whole(graph, arrays), Packs()
    context = context or CallContext()
    body = whole.bind(arrays, context, device, device.bytes(whole.nbytes), packs)
    packs.refresh()
    return body


def captured(body: BoundBody, context: CallContext, device: Device, times: int = 1) -> CapturedRun:
    """Return a body, or several equal ones in a row, as a GPU runs it after the first two runs."""
    replay = CapturedRun(device, context, body.steps * times)
    replay()  # compiles, and touches all memory
    replay()  # captures
    return replay
