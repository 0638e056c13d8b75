"""Elements by several indices and by order, in ONNX: gather_nd, scatter_nd, sort, topk."""

from __future__ import annotations

import math

from symgraph.interchange.onnx.writing.call import Call, Table
from symgraph.interchange.onnx.writing.layers import bounded


def last_indices(call: Call) -> str:
    """Return the second input, whose first axis ONNX has last, as integers."""
    rank = len(call.ins[1].shape)
    turned = call.op("Transpose", call.x[1], perm=[*range(1, rank), 0])
    return call.cast(turned, call.ins[1].dtype, "int64")


def gather_nd(call: Call) -> str:
    return call.op("GatherND", call.x[0], last_indices(call))


def scatter_nd(call: Call) -> str:
    zeros = call.full(0, call.attrs["shape"], call.dtype)
    return call.op("ScatterND", zeros, last_indices(call), call.x[0], reduction="add")


def batch_take(call: Call) -> str:
    at = bounded(call, 1, call.fixed(call.dims()[1]), "clip")
    chosen = call.op("GatherElements", call.x[0], call.op("Unsqueeze", at, call.ints(1)), axis=1)
    return call.op("Squeeze", chosen, call.ints(1))


def ordered(call: Call, count: int = 0) -> list[str]:
    """Return the first `count` elements in their order (0: all), and their indices."""
    x, dims, axis = call.x[0], call.dims(), 0
    if call.attrs["axis"] is None:
        x, length = call.op("Reshape", x, call.ints(-1)), math.prod(map(call.fixed, dims))
    else:
        axis = call.axis()
        length = call.fixed(dims[axis])
    largest = int(not call.attrs["is_ascend"])
    return call.ops("TopK", 2, x, call.ints(count or length), axis=axis, largest=largest, sorted=1)


def argsort(call: Call) -> str:
    return call.cast(ordered(call)[1], "int64", call.out.dtype)


def topk(call: Call) -> str | list[str]:
    kind, k = call.attrs["ret_typ"], max(0, call.attrs["k"])
    values, indices = ordered(call, k)
    if kind == "value":
        return values
    if kind != "mask":
        indices = call.cast(indices, "int64", call.attrs["dtype"])
        return indices if kind == "indices" else [values, indices]
    if call.attrs["axis"] is None:
        call.refuse("a mask of elements of the flattened data is not offered")
    zeros, ones = (call.op("Mul", x, call.const(0)) for x in (call.x[0], values))
    ones = call.op("Add", ones, call.const(1))
    return call.op("ScatterElements", zeros, indices, ones, axis=call.axis())


CONVERTERS: Table = {
    "gather_nd": gather_nd,
    "scatter_nd": scatter_nd,
    "batch_take": batch_take,
    "sort": lambda call: ordered(call)[0],
    "argsort": argsort,
    "topk": topk,
}
