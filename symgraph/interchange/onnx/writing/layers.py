"""Layers with weights: products, convolutions, normalisation, look-ups and gates of cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symgraph.interchange.onnx.writing.call import Call, Table, all_fixed
from symgraph.ops.attention import scale_of
from symgraph.ops.conv import widened
from symgraph.ops.normalize import normal_axes
from symgraph.ops.windows import windows_of

# -- matrix products -------------------------------------------------------------------------------


def fully_connected(call: Call) -> str:
    """Write one product of all rows; ONNX's Gemm has the weight as it is here."""
    data, *rest = call.x
    if call.rank == 2:
        return call.op("Gemm", data, *rest, transB=1)
    if call.attrs["flatten"]:
        return call.op("Gemm", call.op("Flatten", data, axis=1), *rest, transB=1)
    rows = call.op("Reshape", data, call.ints(-1, call.fixed(call.dims()[-1])))
    return call.reshape(call.op("Gemm", rows, *rest, transB=1), call.out_dims())


def dot(call: Call) -> str:
    lhs, rhs = call.x
    if call.attrs["transpose_a"] and call.rank > 1:
        lhs = call.op("Transpose", lhs, perm=[*range(1, call.rank), 0])
    rank, first = len(call.ins[1].shape), call.dims(1)[0]
    if call.attrs["transpose_b"] and rank > 1:
        rhs, first = call.op("Transpose", rhs, perm=[rank - 1, *range(rank - 1)]), call.dims(1)[-1]
    if rank > 2:
        rhs = call.op("Reshape", rhs, call.ints(call.fixed(first), -1))
    product = call.op("MatMul", lhs, rhs)
    scalar = call.rank == rank == 1
    return call.reshape(product, call.out_dims()) if scalar or rank > 2 else product


def batch_dot(call: Call) -> str:
    order = [*range(call.rank - 2), call.rank - 1, call.rank - 2]
    sides = [
        call.op("Transpose", x, perm=order) if call.attrs[key] else x
        for x, key in zip(call.x, ("transpose_a", "transpose_b"), strict=True)
    ]
    return call.op("MatMul", *sides)


def attention(call: Call) -> str:
    query, key, value, *masks = call.x
    order = [*range(call.rank - 2), call.rank - 1, call.rank - 2]
    query = call.op("Mul", query, call.const(scale_of(call.attrs, call.fixed(call.dims()[-1]))))
    scores = call.op("MatMul", query, call.op("Transpose", key, perm=order))
    for index, mask in enumerate(masks, 3):
        scores = call.op("Add", scores, call.cast(mask, call.ins[index].dtype, call.dtype))
    if call.attrs["causal"]:
        lengths = all_fixed((call.dims()[-2], call.dims(1)[-2]))
        if lengths is None:
            call.refuse("which keys are hidden depends on lengths that are left open")
        scores = call.op(
            "Add", scores, call.const(np.where(np.tri(lengths[0], lengths[1]), 0, -np.inf))
        )
    return call.op("MatMul", call.op("Softmax", scores, axis=-1), value)


# -- convolutions ----------------------------------------------------------------------------------


def convolution(call: Call) -> str:
    windows = windows_of(call.attrs)
    return call.op(
        "Conv",
        *call.x,
        kernel_shape=[*windows.kernel],
        strides=[*windows.stride],
        dilations=[*windows.dilate],
        pads=[*windows.pad, *windows.pad],
        group=call.attrs["num_group"],
    )


def deconvolution(call: Call) -> str:
    """Where `adj` is as long as the stride, the padding at the end is shorter by it instead."""
    spatial = all_fixed(call.dims()[2:])
    if spatial is None:
        call.refuse("its output's lengths depend on lengths that are left open")
    windows, lengths = widened(call.attrs, (1, 1, *spatial))
    fields = zip(lengths, spatial, windows.extent, windows.stride, windows.pad, strict=True)
    more = [n - (s * (d - 1) + e - 2 * p) for n, d, e, s, p in fields]
    ends = [*windows.pad]
    for i, (extra, stride) in enumerate(zip(more, windows.stride, strict=True)):
        if extra >= stride:
            ends[i], more[i] = ends[i] - extra, 0
    if min(ends) < 0:
        call.refuse(f"target_shape={call.attrs['target_shape']} reaches beyond the last window")
    return call.op(
        "ConvTranspose",
        *call.x,
        kernel_shape=[*windows.kernel],
        strides=[*windows.stride],
        dilations=[*windows.dilate],
        pads=[*windows.pad, *ends],
        output_padding=more,
        group=call.attrs["num_group"],
    )


# -- normalisation ---------------------------------------------------------------------------------


def batch_norm(call: Call) -> str:
    """Normalise by the moving mean and variance, as evaluation does."""
    x, gamma, *rest = call.x
    axis = call.axis()
    if call.attrs["fix_gamma"]:
        gamma = call.const(np.ones(call.ins[1].shape), call.ins[1].dtype)
    front = call.moved(x, call.rank, axis, 1)
    more = {"momentum": call.attrs["momentum"]} if "momentum" in call.attrs else {}
    y = call.op("BatchNormalization", front, gamma, *rest, epsilon=call.attrs["eps"], **more)
    return call.moved(y, call.rank, 1, axis)


def layer_norm(call: Call) -> str:
    x, *vectors = call.x
    axis = call.axis()
    last = call.moved(x, call.rank, axis, call.rank - 1)
    y = call.op("LayerNormalization", last, *vectors, axis=-1, epsilon=call.attrs["eps"])
    return call.moved(y, call.rank, call.rank - 1, axis)


def instance_norm(call: Call) -> str:
    return call.op("InstanceNormalization", *call.x, epsilon=call.attrs["eps"])


def group_norm(call: Call) -> str:
    """Normalise each group as a channel: gamma and beta have one number for each, as in MXNet."""
    x, *vectors = call.x
    shape = call.ints(0, call.attrs["num_groups"], -1)  # 0: as many samples as there are
    groups = call.op("Reshape", x, shape)
    y = call.op("InstanceNormalization", groups, *vectors, epsilon=call.attrs["eps"])
    return call.reshape(y, call.out_dims())


def l2_normalization(call: Call) -> str:
    axes = call.ints(*normal_axes(call.attrs, call.rank))
    squares = call.op("ReduceSumSquare", call.x[0], axes, keepdims=1)
    norm = call.op("Sqrt", call.op("Add", squares, call.const(call.attrs["eps"])))
    return call.op("Div", call.x[0], norm)


def lrn(call: Call) -> str:
    """ONNX Runtime's has four axes only, so others are merged to as many."""
    a, x = call.attrs, call.x[0]
    if call.rank != 4:
        x = call.op("Reshape", x, call.ints(0, 0, -1, 1))
    y = call.op("LRN", x, alpha=a["alpha"], beta=a["beta"], bias=a["knorm"], size=a["nsize"])
    return y if call.rank == 4 else call.reshape(y, call.dims())


def moments(call: Call) -> Sequence[str]:
    axes = call.ints(*[i for i in range(call.rank) if i != call.axis()])
    mean = call.op("ReduceMean", call.x[0], axes, keepdims=1)
    apart = call.op("Sub", call.x[0], mean)
    var = call.op("ReduceMean", call.op("Mul", apart, apart), axes, keepdims=0)
    return [call.op("Squeeze", mean, axes), var]


# -- look-ups --------------------------------------------------------------------------------------


def ids(call: Call, index: int) -> str:
    """Return an input as numbers that can index."""
    dtype = call.ins[index].dtype
    wanted = dtype if dtype in ("int32", "int64") else "int64"
    return call.cast(call.x[index], dtype, wanted)


def embedding(call: Call) -> str:
    if call.attrs["classes"]:
        call.refuse("it is a shard")
    return call.op("Gather", call.x[1], ids(call, 0))


def bounded(call: Call, index: int, count: int, mode: str) -> str:
    """Return indices that are clipped, wrapped around, or left as they are."""
    at = call.cast(call.x[index], call.ins[index].dtype, "int64")
    if mode == "clip":
        return call.op("Clip", at, call.const(0, "int64"), call.const(count - 1, "int64"))
    return call.op("Mod", at, call.const(count, "int64")) if mode == "wrap" else at


def take(call: Call) -> str:
    axis = call.axis()
    count = call.fixed(call.dims()[axis])
    at = bounded(call, 1, count, call.attrs["mode"])
    return call.op("Gather", call.x[0], at, axis=axis)


def pick(call: Call) -> str:
    axis = call.axis()
    at = bounded(call, 1, call.fixed(call.dims()[axis]), call.attrs["mode"])
    if len(call.ins[1].shape) < call.rank:
        at = call.op("Unsqueeze", at, call.ints(axis))
    chosen = call.op("GatherElements", call.x[0], at, axis=axis)
    if call.attrs["keepdims"]:
        return chosen
    return call.reshape(chosen, (1,)) if call.rank == 1 else squeezed(call, chosen, axis)


def squeezed(call: Call, x: str, axis: int) -> str:
    return call.op("Squeeze", x, call.ints(axis))


def one_hot(call: Call) -> str:
    """Compare with all classes: ONNX's OneHot counts negative ids from the end."""
    a, dtype = call.attrs, call.out.dtype
    rows = call.op("Unsqueeze", call.cast(call.x[0], call.dtype, "int64"), call.ints(-1))
    hot = call.op("Equal", rows, call.ints(*range(a["depth"])))
    on, off = (call.const(a[key], dtype) for key in ("on_value", "off_value"))
    return call.op("Where", hot, on, off)


def where(call: Call) -> str:
    condition, x, y = call.x
    chosen = call.cast(condition, call.dtype, "bool")
    missing = len(call.out.shape) - call.rank
    if missing:
        chosen = call.op("Unsqueeze", chosen, call.ints(*range(1, 1 + missing)))
    return call.op("Where", chosen, x, y)


# -- gates -----------------------------------------------------------------------------------------


def lstm_gates(call: Call) -> Sequence[str]:
    i2h, h2h, old = call.x
    gates = call.ops("Split", 4, call.op("Add", i2h, h2h), axis=1, num_outputs=4)
    kinds = ("Sigmoid", "Sigmoid", "Tanh", "Sigmoid")
    i, f, new, o = (call.op(kind, gate) for kind, gate in zip(kinds, gates, strict=True))
    low, high = call.ins[0].dtype, call.ins[2].dtype
    f, kept = (call.cast(v, low, high) for v in (f, call.op("Mul", i, new)))
    state = call.op("Add", call.op("Mul", f, old), kept)
    output = call.op("Mul", o, call.op("Tanh", call.cast(state, high, low)))
    return [output, state]


def gru_gates(call: Call) -> str:
    i2h, h2h, old = call.x
    i_r, i_z, i_o = call.ops("Split", 3, i2h, axis=1, num_outputs=3)
    h_r, h_z, h_o = call.ops("Split", 3, h2h, axis=1, num_outputs=3)
    r = call.op("Sigmoid", call.op("Add", i_r, h_r))
    z = call.op("Sigmoid", call.op("Add", i_z, h_z))
    new = call.op("Tanh", call.op("Add", i_o, call.op("Mul", r, h_o)))
    fresh = call.op("Mul", call.op("Sub", call.const(1), z), new)
    return call.op("Add", fresh, call.op("Mul", z, old))


CONVERTERS: Table = {
    "FullyConnected": fully_connected,
    "dot": dot,
    "batch_dot": batch_dot,
    "scaled_dot_product_attention": attention,
    "Convolution": convolution,
    "Deconvolution": deconvolution,
    "BatchNorm": batch_norm,
    "_normalize": batch_norm,
    "_batch_or_moving": lambda call: call.op("Identity", call.x[1]),
    "_moving_average": lambda call: call.op("Identity", call.x[1]),
    "_moments": moments,
    "LayerNorm": layer_norm,
    "InstanceNorm": instance_norm,
    "GroupNorm": group_norm,
    "L2Normalization": l2_normalization,
    "LRN": lrn,
    "Embedding": embedding,
    "take": take,
    "pick": pick,
    "one_hot": one_hot,
    "where": where,
    "_lstm_gates": lstm_gates,
    "_gru_gates": gru_gates,
}
