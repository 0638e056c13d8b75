"""Scratch: memory that kernels take within a call, beside the arena, as planned and as held.

Calls of a rank have it one after another: on a CPU as much as the largest needs, on a GPU a piece
for each size that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from partitioner.types import Partition
from runtime.cuda import conv as on_gpu
from runtime.cuda import lines
from runtime.cuda import scratch as pieces
from runtime.native import Clock, Task
from runtime.native import conv as on_host
from symgraph.arrays import Device
from symgraph.graph import Graph, Node
from symgraph.ops.registry import find
from symgraph.types import Array, TensorType

Taken = Mapping[str, Callable[[str, Task], int]]  # by operator: the bytes of one of its calls

CONVOLUTIONS = ("Convolution", "_conv_grad_data", "_conv_grad_weight")
ON_HOST: Taken = dict.fromkeys(CONVOLUTIONS, on_host.scratch_bytes)
ON_GPU: Taken = {
    **dict.fromkeys(CONVOLUTIONS, on_gpu.scratch_bytes),
    "_layer_norm_grad": lines.scratch_bytes,
}


def scratch_bytes(partition: Partition) -> tuple[int, ...]:
    """What the calls of each rank take."""
    devices = partition.placement.devices
    needs: list[set[int]] = [set() for _ in devices]
    for key, body in partition.bodies.items():
        rank = partition.rank(key)
        taken = ON_HOST if devices[rank].kind == "cpu" else ON_GPU
        for node in body.graph:
            op = find(node.op).name if not node.is_variable else ""
            if op in taken:
                needs[rank].add(taken[op](op, _task(body.graph, node)))
    return tuple([
        max(sizes, default=0) if device.kind == "cpu" else sum(sizes)
        for device, sizes in zip(devices, needs, strict=True)
    ])  # fmt: skip


def scratch_held(device: Device, clock: Clock) -> int:
    """Bytes that a rank has taken so far; it is asked on the rank's own thread."""
    return on_host.SCRATCH.held if device.is_host else pieces.held(clock)


def _task(graph: Graph, node: Node) -> Task:
    """A call of the node on arrays that take no memory."""
    ins, outs = (tuple(map(_like, types)) for types in (graph.types_of(node.inputs), node.types))
    return Task(node.attrs, ins, outs, Clock())


def _like(type_: TensorType) -> Array:
    return np.broadcast_to(np.zeros((), type_.dtype), type_.shape)
