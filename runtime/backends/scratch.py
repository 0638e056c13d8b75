"""Scratch: memory used within calls, beside the arena, as planned and as held.

It includes the parameters that a CPU packs for its products, which stay packed for a step.

The calls of a rank use it one after another: on a CPU as much as the largest call needs. On a GPU
it consists of a piece for each size that kernels ask for, the workspace of cuBLAS, and temporaries
of operators that run by their own computation, which are set aside in one piece. The kernels' part
is known exactly, because the plan binds their calls as a run does; that of own computations is
estimated from their arrays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from partitioner.base.aliasing import is_view
from partitioner.base.remembered import remembered
from partitioner.base.types import Partition
from partitioner.cutting.replicas import shared_copies
from partitioner.memory.packing import to_cache_lines
from runtime.backends.bodies import LowParameters, PackedForm, packed_type
from runtime.backends.cpu import attention, conv, gemm, low
from runtime.backends.cpu.scratch import SCRATCH, WIDE
from runtime.backends.cuda import BESIDE, KERNELS, rank_memory
from runtime.backends.cuda.base import PLANNED, Needs, absent
from runtime.backends.cuda.blas import workspace_held
from runtime.backends.device.arrays import Device
from runtime.backends.device.table import CallContext, KernelCall
from symgraph.core.context import Context
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import OpDef, find
from symgraph.core.types import HALVES, TensorType, Value, dtype_name, wide
from symgraph.ops.windows import windows_of

CONVOLUTIONS = ("Convolution", "_conv_grad_data", "_conv_grad_weight")
ATTENTION = ("scaled_dot_product_attention", "_attention_grad")
PRODUCTS = ("FullyConnected", "_fc_grad_data", "_fc_grad_weight", "dot")
UNIT = 512  # bytes: what CuPy's pool rounds up to
ARRAYS = 3  # padded data is copied so often at most
SMALL_ARRAYS = 8 * UNIT  # and some of few numbers
COUNTERS = 8  # random operators also need this times their output: 64-bit counters


def scratch_bytes(
    partition: Partition,
    parameters: Collection[str],
    others: Sequence[Partition] = (),
    *,
    one_array: bool = False,
) -> tuple[int, ...]:
    """Return the scratch bytes of each rank.

    Args:
        partition: The cut graph of the largest micro-batch.
        parameters: The variables that are not fed.
        others: Those of micro-batches of other sizes, which the same ranks run.
        one_array: Whether copies of a parameter are one array, where their ranks can lend it.
    """
    calls: list[list[tuple[Node, Graph]]] = [[] for _ in range(partition.ranks)]
    for cut in (partition, *others):
        for key, body in cut.bodies.items():
            calls[cut.rank(key)] += [(node, body.graph) for node in body.graph]
    within = map(scratch_of, partition.placement.devices, calls)
    packed = packed_bytes(packed_weights(partition, parameters, tuple(others), one_array=one_array))
    return tuple(map(sum, zip(within, packed, strict=True)))


class PackedWeight(NamedTuple):
    """A parameter that is packed for the products of a dtype; see bodies.Packs."""

    #: Of replicas that have one array, the first copy.
    name: str
    transposed: bool
    dtype: str
    #: That of its buffer.
    type: TensorType
    #: The rank that packs it, in its own memory.
    owner: int
    #: A stage of that rank.
    stage: int
    #: How many bytes before the end of that memory it begins.
    place: int
    #: Whether other ranks read it too.
    shared: bool


@remembered
def packed_weights(
    partition: Partition,
    parameters: Collection[str],
    others: tuple[Partition, ...],
    *,
    one_array: bool = False,
) -> list[dict[PackedForm, PackedWeight]]:
    """Return the parameters that each rank holds and reads packed.

    For the arguments see `scratch_bytes`. Of ranks that have one array of a parameter, the one that
    packs the least so far packs it.
    """
    place = partition.placement
    first = shared_copies(partition, shared_memory=True) if one_array else {}
    casts = LowParameters.of(partition, parameters).casts
    reads: list[dict[PackedForm, PackedForm]] = [{} for _ in range(partition.ranks)]
    types: dict[PackedForm, TensorType] = {}
    stages: dict[PackedForm, dict[int, int]] = defaultdict(dict)  # of each rank that reads it
    for cut in (partition, *others):
        for key, body in cut.bodies.items():
            rank = cut.rank(key)
            for node in body.graph if place.devices[rank].kind == "cpu" else ():
                if (wanted := gemm.packed_rows(node, body.graph)) is not None:
                    (name, transposed), type_ = wanted, body.graph.type_of(node.inputs[1])
                    source = body.imports.get(name, Value(name)).node
                    source = casts.get(source, source)
                    if source in parameters and place.rank_of[place.stage_of[source]] == rank:
                        form = first.get(source, source), transposed, type_.dtype
                        reads[rank][source, transposed, type_.dtype] = form
                        types[form] = packed_type(type_.shape, transposed, type_.dtype)
                        stages[form].setdefault(rank, key.stage)
    known, held = dict[PackedForm, PackedWeight](), [0] * partition.ranks
    for form in sorted(stages, key=lambda form: len(stages[form])):
        owner = min(stages[form], key=lambda rank: (held[rank], rank))
        held[owner] += to_cache_lines(types[form].nbytes)
        at, shared = (owner, stages[form][owner], held[owner]), len(stages[form]) > 1
        known[form] = PackedWeight(*form, types[form], *at, shared)
    return [{own: known[form] for own, form in of_rank.items()} for of_rank in reads]


def packed_bytes(weights: Sequence[Mapping[PackedForm, PackedWeight]]) -> list[int]:
    """Return the bytes of the parameters that each rank packs; weights: see `packed_weights`."""
    return [
        max([w.place for w in of_rank.values() if w.owner == rank], default=0)
        for rank, of_rank in enumerate(weights)
    ]


def scratch_of(device: Context, calls: Sequence[tuple[Node, Graph]]) -> int:
    """Return the scratch bytes of a device that runs these nodes."""
    return _on_host(calls) if device.kind == "cpu" else sum(_on_card(calls))


def set_aside(partition: Partition, rank: int, here: Device) -> None:
    """Reserve the temporaries of a rank's own computations; LimitError if memory is short."""
    if not here.is_host:
        bodies = [b.graph for key, b in partition.bodies.items() if partition.rank(key) == rank]
        here.set_aside(_on_card([(node, graph) for graph in bodies for node in graph])[1])


def scratch_held(device: Device, context: CallContext) -> int:
    """Return the bytes that a rank holds so far; to be called on the rank's own thread."""
    if device.is_host:
        return SCRATCH.held + WIDE.held
    with device.use():
        held = rank_memory.scratch_held(context) + workspace_held() + device.set_aside_bytes
        with device.beside():
            return held + workspace_held()


def _on_host(calls: Sequence[tuple[Node, Graph]]) -> int:
    own = widened = 0
    for node, graph in calls:
        if node.is_variable:
            continue
        op = find(node.op).name
        if op in CONVOLUTIONS:
            sides = graph.types_of(node.inputs), node.types
            direct = _conv_bytes(node, sides, dtype_name)
            own = max(own, direct or _conv_bytes(node, sides, wide))
            if direct:
                continue
        elif op in PRODUCTS:
            own = max(own, gemm.scratch_bytes(node, graph))
        elif op in ATTENTION:
            own = max(own, attention.scratch_bytes(node, graph))
        widened = max(widened, low.wide_bytes(node, graph))
    return own + widened


def _conv_bytes(
    node: Node, sides: Sequence[Sequence[TensorType]], stored: Callable[[str], str]
) -> int:
    """Return the bytes of a convolution whose dtypes are stored as others."""
    ins, outs = (
        tuple([np.broadcast_to(np.zeros((), stored(t.dtype)), t.shape) for t in side])
        for side in sides
    )
    call = KernelCall(node.attrs, ins, outs, CallContext())
    return conv.scratch_bytes(find(node.op).name, call)


# -- GPUs ----------------------------------------------------------------------------------------


def _on_card(calls: Sequence[tuple[Node, Graph]]) -> tuple[int, int]:
    """Return the bytes of kernels and cuBLAS, and those of own computations."""
    streams = Needs(), Needs()  # of the work, and of what runs beside it
    own = 0
    for node, graph in calls:
        if node.is_variable or is_view(node, graph):
            continue
        op, ins = find(node.op), tuple(graph.types_of(node.inputs))
        needs = kernel_needs(op.name, tuple(node.attrs.items()), ins, node.types)
        if needs is None:
            own = max(own, own_bytes(op, node.attrs, ins, node.types))
        else:
            stream = streams[op.name in BESIDE]
            stream.pieces |= needs.pieces
            stream.workspace = max(stream.workspace, needs.workspace)
    return sum(sum(needs.pieces) + needs.workspace for needs in streams), own


@lru_cache(maxsize=1 << 14)
def kernel_needs(
    op: str,
    attrs: tuple[tuple[str, Hashable], ...],
    ins: tuple[TensorType, ...],
    outs: tuple[TensorType, ...],
) -> Needs | None:
    """Return what a call's kernel on a GPU needs; None if there is no kernel."""
    maker = KERNELS.get(op)
    if maker is None:
        return None
    needs = Needs()
    told = PLANNED.set(needs)
    try:
        call = KernelCall(
            dict(attrs), tuple(map(absent, ins)), tuple(map(absent, outs)), CallContext()
        )
        return None if maker(call) is None else needs
    finally:
        PLANNED.reset(told)


def own_bytes(
    op: OpDef, attrs: Mapping[str, Any], ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> int:
    """Estimate the temporaries of an own computation, with its outputs, which are copied."""
    sizes = [_bytes(type_) for type_ in (*ins, *outs)]
    found = op.temporaries * sum(sizes) + SMALL_ARRAYS
    if not op.copies_inputs:  # vocabularies are large
        copies = [_bytes(t) for t in ins if t.dtype in HALVES]
        found = op.temporaries * sum(map(_bytes, outs)) + sum(copies) + SMALL_ARRAYS
    if op.random:
        found += COUNTERS * sum(map(_bytes, outs))
    if "kernel" in op.params:  # data with its padding
        windows = windows_of(attrs)
        rank = len(windows.kernel) + 2
        around = [
            t._replace(shape=(*t.shape[:2], *windows.padded(t.shape[2:])))
            for t in (*ins, *outs)
            if len(t.shape) == rank
        ]
        found += ARRAYS * max(map(_bytes, around), default=0)
    return found


def _bytes(type_: TensorType) -> int:
    """With 16 bits in float32."""
    nbytes: int = type_.size * np.dtype(wide(type_.dtype)).itemsize
    return -(-nbytes // UNIT) * UNIT
