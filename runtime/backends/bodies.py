"""Bound bodies: every call of a body, bound to its arrays.

Arrays are views of a rank's arena at offsets from the layout and the programs, so a body is bound
once for each set of offsets that its micro-batches use, and a run makes one Python call per node.
Nodes whose outputs are in place already (views, joined time steps) have no call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from partitioner.base.aliasing import is_join, is_view
from partitioner.base.types import AGAIN, Body, BodyKey, Partition
from partitioner.memory.memory_layout import MemoryLayout
from runtime.backends import cuda
from runtime.backends.calls import Call, make
from runtime.backends.cpu import CASTING, KERNELS
from runtime.backends.cpu.chains import Chain
from runtime.backends.cpu.flat import BY_ELEMENT
from runtime.backends.cpu.gemm import pack, pack_all, packed_rows, packed_shape
from runtime.backends.cpu.low import through_float32
from runtime.backends.cpu.pairs import pairs_shape
from runtime.backends.cuda.joins import NO_JOINS, joins
from runtime.backends.device.arrays import HOST, Device, address, overlap
from runtime.backends.device.table import BoundCall, CallContext, KernelCall, Maker, noop
from runtime.backends.native import joined
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import computation, find
from symgraph.core.types import BFLOAT16, Array, Shape, TensorType, Value
from symgraph.passes.precision import is_parameter_cast

Key = tuple[int, Value]
#: A parameter, whether it is transposed, and the dtype of the products that it is packed for.
PackedForm = tuple[str, bool, str]


class BoundBody(NamedTuple):
    """A body bound to its arrays."""

    key: BodyKey
    #: Variables whose values are copied in before it runs.
    fed: tuple[tuple[str, Array], ...]
    steps: tuple[Call, ...]
    #: Outputs of the whole graph.
    results: tuple[tuple[Value, Array], ...]
    #: Gradients to add to partial sums before the next step, and how many steps come before.
    added: tuple[tuple[Value, int], ...]
    #: Auxiliary states and their next values.
    states: tuple[tuple[str, Array], ...]

    def run(self) -> None:
        """See `make`."""
        make(self.steps)


class Watch(Protocol):
    """Looks at values when a step is run once more; see runtime.engine.divergence."""

    def before(self, variables: Mapping[str, Array]) -> None:
        """Look at the variables that the next node reads."""
        ...

    def after(self, node: str, outs: Sequence[Array]) -> None:
        """Look at the values that a node has made."""
        ...


class Packed(NamedTuple):
    """A packed parameter, and whether this rank packs it; else a replica's rank does."""

    weight: Array
    buffer: Array
    transposed: bool
    own: bool


class Packs:
    """Parameters packed for products of few rows, anew at the start of every step.

    A parameter that arrives as a message is packed when the body that reads it runs.
    """

    def __init__(self, rooms: Mapping[PackedForm, tuple[Array, bool]] | None = None) -> None:
        """rooms: Buffers, and whether this rank packs them; other parameters get new ones."""
        self._rooms = rooms or {}
        self.buffers: dict[object, Packed] = {}

    def refresh(self, first: int = 0) -> None:
        """Pack this rank's parameters, but for the first ones."""
        forms: dict[object, tuple[Array, dict[bool, Array]]] = {}
        for weight, buffer, transposed, own in islice(self.buffers.values(), first, None):
            if own:
                of = address(weight), weight.shape, buffer.dtype
                forms.setdefault(of, (weight, {}))[1][transposed] = buffer
        for weight, buffers in forms.values():
            pack_all(weight, buffers)

    def resident(self, name: str, weight: Array, transposed: bool, dtype: Any) -> Array:
        """Return the buffer of a parameter, for products in that dtype."""
        key = address(weight), weight.shape, transposed, str(dtype)
        if key not in self.buffers:
            room, own = self._rooms.get((name, transposed, str(dtype)), (None, True))
            buffer = packed_buffer(weight, transposed, dtype) if room is None else room
            self.buffers[key] = Packed(weight, buffer, transposed, own)
        return self.buffers[key].buffer


def packed_buffer(weight: Array, transposed: bool, dtype: Any) -> Array:
    """Return memory for a weight packed for products in a dtype."""
    type_ = packed_type(weight.shape, transposed, str(dtype))
    if str(dtype) == BFLOAT16:
        return np.zeros(type_.shape, type_.dtype)
    return HOST.view(HOST.bytes(type_.nbytes), 0, type_)


def packed_type(shape: Shape, transposed: bool, dtype: str) -> TensorType:
    """Return the type of a weight of this shape that is packed for products in a dtype."""
    units, inner = shape if transposed else shape[::-1]
    if dtype == BFLOAT16:
        return TensorType(pairs_shape(inner, units), "uint32")
    return TensorType(packed_shape(inner, units), dtype)


def read_as_arrays(graph: Graph) -> set[Value]:
    """Return the values that are read other than as packed weights."""
    return {
        value
        for node in graph
        for index, value in enumerate(node.inputs)
        if index != 1 or packed_rows(node, graph) is None
    }


class LowParameters(NamedTuple):
    """A rank's parameters that are read in 16 bits and may be packed as they are."""

    #: The parameters, by their casts.
    casts: Mapping[str, str] = MappingProxyType({})
    #: Casts that need not be made, because their readers take the parameter packed.
    unread: frozenset[str] = frozenset()

    @classmethod
    def of(cls, partition: Partition, arrays: Collection[str]) -> LowParameters:
        """Find those of a rank on a CPU, which holds these variables."""
        casts: dict[str, str] = {}
        for body in partition.bodies.values():
            for node in body.graph:
                if is_parameter_cast(body.graph, node.name):
                    source = body.imports.get(node.inputs[0].node, node.inputs[0]).node
                    if source in arrays:
                        casts[node.name] = source
        unread = {*casts} - {edge.value.node for edge in partition.edges}
        for body in partition.bodies.values() if casts else ():
            unread -= {body.imports.get(v.node, v).node for v in body.results}
            read = read_as_arrays(body.graph)
            unread -= {body.imports.get(v.node, v).node for v in read}
        return cls(casts, frozenset(unread))


NONE_LOW = LowParameters()


class Binder:
    """Binds the bodies of one rank and micro-batch size.

    Attributes:
        arrays: The variables of this rank, by name.
        parameters: Names whose values change between steps only.
        memory: The rank's arena.
    """

    def __init__(
        self,
        layout: MemoryLayout,
        arrays: Mapping[str, Array],
        parameters: frozenset[str],
        memory: Array,
        packs: Packs,
        context: CallContext,
        device: Device = HOST,
        watch: Watch | None = None,
        low: LowParameters = NONE_LOW,
    ) -> None:
        """Prepare to bind.

        Args:
            layout, arrays, parameters, memory, packs, context, device: see the class.
            watch: looks at each node's values; None: nobody does.
            low: the parameters of this rank that are read in 16 bits.
        """
        self.watch = watch
        self.casts = low.casts
        self.unread = low.unread if watch is None else frozenset()
        self.layout, self.arrays, self.parameters = layout, arrays, parameters
        self.memory, self.packs, self.context = memory, packs, context
        self.device = device
        self.makers = KERNELS if device.is_host else cuda.KERNELS

    def array(self, key: Key, type_: TensorType, bases: Mapping[int, int], scratch: int) -> Array:
        """Return the array of a value. bases: root -> its first byte; scratch: that of the run."""
        root, offset = self.layout.places[key]
        name = self.layout.roots[root].fixed
        if name is not None:
            whole = self.arrays[name]
            if type_.shape == whole.shape:
                return whole
            return self.device.view(whole.reshape(-1).view(np.uint8), offset, type_)
        inside = self.layout.scratch_at.get(root)
        base = bases[root] if inside is None else scratch + inside
        return self.device.view(self.memory, base + offset, type_)

    def bind(self, body: Body, bases: Mapping[int, int], scratch: int) -> BoundBody:
        """Bind a body to the arrays at these places."""
        stage = body.key.stage
        found: dict[str, list[Array]] = {}
        for node in body.graph:
            outside = body.imports.get(node.name)
            values = [outside] if outside else [Value(node.name, i) for i in range(len(node.types))]
            found[node.name] = [
                self.array((stage, value), type_, bases, scratch)
                for value, type_ in zip(values, node.types, strict=True)
            ]

        fed = [
            (n.name, found[n.name][0])
            for n in body.graph.variables
            if n.name not in body.imports and n.name not in self.arrays
        ]
        passing = [v for v in body.results if v in self.layout.added]
        steps: list[Call] = []
        added: list[tuple[Value, int]] = []
        unjoined: list[Call] = []
        for node, made in self._calls(body, found):
            unjoined += made
            if there := [v for v in passing if v.node == node.name]:
                steps += self._joined(unjoined)
                unjoined = []
                added += [(v, len(steps)) for v in there]
        return BoundBody(
            body.key,
            tuple(fed),
            (*steps, *self._joined(unjoined)),
            tuple([(v, found[v.node][v.index]) for v in body.results]),
            tuple(added),
            tuple([(name, found[v.node][v.index]) for name, v in next_states(body)]),
        )

    def _calls(
        self, body: Body, found: Mapping[str, list[Array]]
    ) -> Iterator[tuple[Node, Iterable[Call]]]:
        """Yield the nodes of a body with their calls; found: the arrays of each node."""

        def arrays_of(values: Sequence[Value]) -> tuple[Array, ...]:
            return tuple([found[v.node][v.index] for v in values])

        direct = {} if self.watch or not self.device.is_host else direct_casts(body.graph, found)
        done, joined = {*self.unread}, NO_JOINS
        if not (self.device.is_host or self.watch):
            joined = joins(body.graph, found, body.results)
            done |= joined.done
        for node in body.graph:
            made: Iterable[Call] = ()
            if not node.is_variable and node.name not in done:
                ins = arrays_of(joined.inputs.get(node.name, node.inputs))
                outs = tuple(found[node.name])
                if cast := direct.get(node.name, ""):
                    made = [*self._steps(body, node, ins, tuple(found[cast]), rounds=True)]
                if made:
                    done.add(cast)
                else:
                    made = self._steps(body, node, ins, outs)
                if self.watch is not None:
                    made = watched(self.watch, body, node, made, ins, outs)
            yield node, made

    def _joined(self, steps: Sequence[Call]) -> tuple[Call, ...]:
        if self.watch is not None:
            return tuple(steps)
        return joined(chained(steps)) if self.device.is_host else chained(steps)

    def _steps(
        self,
        body: Body,
        node: Node,
        ins: tuple[Array, ...],
        outs: tuple[Array, ...],
        rounds: bool = False,
    ) -> Iterator[Call]:
        """Yield a node's calls.

        Args:
            body, node, ins, outs: The node and its arrays.
            rounds: Whether the outputs are a cast's, by a kernel of `CASTING`; then there is no
                call where it has none for that.
        """
        if is_view(node, body.graph) or (is_join(node) and _side_by_side(ins, outs[0])):
            return
        if not self.device.is_host:
            yield from self._on_card(node, ins, outs)
            return
        named = [body.imports.get(v.node, v) for v in node.inputs]
        weights = tuple([v.node in self.parameters or v.node in self.casts for v in named])
        packing: list[Call] = []

        def packed(index: int, transposed: bool) -> Array:
            dtype, name = ins[index].dtype, named[index].node
            if (parameter := self.casts.get(name)) is not None:
                weight = self.arrays[parameter]
                return self.packs.resident(parameter, weight, transposed, dtype)
            place = self.layout.places[body.key.stage, named[index]]
            if self.layout.roots[place.root].fixed is not None:
                return self.packs.resident(name, ins[index], transposed, dtype)
            buffer = packed_buffer(ins[index], transposed, dtype)
            packing.append(Call(node.name, pack, (ins[index], buffer, transposed)))
            return buffer

        call = KernelCall(node.attrs, ins, outs, self.context, weights, packed)
        if rounds:
            direct = self.makers[find(node.op).name](call)
            if direct is None:
                return
            bound = direct
        else:
            bound = bind_call(node.op, call, self.makers)
        yield from packing
        if bound.function is not noop:
            yield Call(node.name, *bound, True, (ins, outs))

    def _on_card(
        self, node: Node, ins: tuple[Array, ...], outs: tuple[Array, ...]
    ) -> Iterator[Call]:
        """Yield a node's call on a GPU."""
        op = find(node.op)
        self.context.beside = op.name in cuda.BESIDE
        bound = bind_call(op.name, KernelCall(node.attrs, ins, outs, self.context), self.makers)
        beside, self.context.beside = self.context.beside, False
        computed = bound.function is _compute
        if computed:
            bound = BoundCall(_making, (self.device, *bound))
        if bound.function is not noop:
            fixed = not (computed and (op.random or op.reads_on_host))
            yield Call(node.name, *bound, fixed, (ins, outs), beside and not computed)


def direct_casts(graph: Graph, found: Mapping[str, list[Array]]) -> dict[str, str]:
    """Return the nodes whose kernels write their rounded result in the dtype of a cast, and these.

    The cast is the only reader, and what it writes is not the memory of anything read or written
    from the node to the cast.

    Args:
        graph: A body's graph.
        found: The arrays of its nodes.
    """
    nodes = [*graph]
    casts = [n for n in nodes if n.op == "Cast" and graph[n.inputs[0].node].op in CASTING]
    if not casts:
        return {}
    order = {node.name: at for at, node in enumerate(nodes)}
    readers = Counter(value for node in nodes for value in node.inputs)
    direct = {}
    for cast in casts:
        made = graph[cast.inputs[0].node]
        if readers[cast.inputs[0]] > 1 or cast.inputs[0] in graph.outputs:
            continue
        between = nodes[order[made.name] + 1 : order[cast.name]]
        used = [*made.inputs, *[v for n in between for v in n.inputs]]
        arrays = [found[v.node][v.index] for v in used] + [
            a for n in between for a in found[n.name]
        ]
        (target,) = found[cast.name]
        if not any(overlap(target, a) for a in arrays):
            direct[made.name] = cast.name
    return direct


def watched(
    watch: Watch,
    body: Body,
    node: Node,
    made: Iterable[Call],
    ins: tuple[Array, ...],
    outs: tuple[Array, ...],
) -> Iterator[Call]:
    """Put looks at a node's variables and values around its calls."""
    variables = {
        body.imports.get(value.node, value).node: array
        for value, array in zip(node.inputs, ins, strict=True)
        if body.graph[value.node].is_variable
    }
    yield Call(node.name, watch.before, (variables,))
    yield from made
    yield Call(node.name, watch.after, (node.name, outs))


def chained(steps: Sequence[Call]) -> tuple[Call, ...]:
    """Join neighbouring element-wise steps over large arrays into one call each."""
    calls: list[Call] = []
    chain, names = Chain(BY_ELEMENT), list[str]()

    def end() -> None:
        if chain.calls:
            calls.append(Call(names[0], *chain.bound()))

    for step in steps:
        call = BoundCall(step.function, step.args)
        if not chain.takes(call):
            end()
            chain, names = Chain(BY_ELEMENT), []
            if not chain.takes(call):
                calls.append(step)
                continue
        names.append(step.name)
    end()
    return tuple(calls)


def bind_call(op: str, call: KernelCall, makers: Mapping[str, Maker] = KERNELS) -> BoundCall:
    """Bind a call to its kernel, or else to the operator's own computation and a copy."""
    maker = makers.get(find(op).name)
    if maker is not None:
        bound = maker(call)
        if bound is None and makers is KERNELS:
            bound = through_float32(maker, call)
        if bound is not None:
            return bound
    compute = computation(find(op), call.ins)
    return BoundCall(_compute, (compute, call.context, call.attrs, call.ins, call.outs))


def _compute(
    compute: Callable[..., Any],
    context: CallContext,
    attrs: Mapping[str, Any],
    ins: tuple[Array, ...],
    outs: tuple[Array, ...],
) -> None:
    result = compute(context.env, attrs, *ins)
    if not isinstance(result, tuple):
        result = (result,)
    for out, made in zip(outs, result, strict=True):
        if made is not out:
            out[...] = made


def _making(device: Device, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Run the operator's own computation on a GPU, with temporaries from the reserved pool."""
    with device.making():
        function(*args)


def _side_by_side(ins: Sequence[Array], out: Array) -> bool:
    """Return whether a join's inputs lie in its output already."""
    at = address(out)
    for array in ins:
        if address(array) != at:
            return False
        at += array.nbytes
    return True


def next_states(body: Body) -> Iterator[tuple[str, Value]]:
    """Yield auxiliary states of a body's calls and their values after a training run."""
    for node in body.graph:
        if not node.is_variable and AGAIN not in node.tags:
            op = find(node.op)
            if op.aux:
                states = node.inputs[-len(op.aux) :]
                for v, index in zip(states, op.aux_outputs, strict=True):
                    yield body.imports.get(v.node, v).node, Value(node.name, index)
