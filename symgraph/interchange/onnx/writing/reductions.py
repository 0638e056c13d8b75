"""Reductions, softmax, pooling, losses, and operators on sequences of different lengths."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from symgraph.interchange.onnx.writing.call import Call, Converter, Table, all_fixed
from symgraph.interchange.onnx.writing.layers import ids
from symgraph.interchange.onnx.writing.movement import identity, sliced
from symgraph.ops.pool import divisors, windows_over
from symgraph.ops.reduce import axes_in
from symgraph.ops.softmax import mode_axis

# -- reductions ------------------------------------------------------------------------------------


def reduced(call: Call, op: str, x: str) -> str:
    """Reduce over the call's axes; a full reduction has one axis."""
    axes = axes_in(call.attrs, call.rank)
    if not axes:
        return x
    keep = bool(call.attrs["keepdims"])
    y = call.op(op, x, call.ints(*axes), keepdims=int(keep))
    return y if keep or len(axes) < call.rank else call.reshape(y, (1,))


def reduction(op: str) -> Converter:
    def convert(call: Call) -> str:
        y = reduced(call, op, call.x[0])
        return identity(call) if y == call.x[0] else y

    return convert


def without_nan(op: str, neutral: float) -> Converter:
    """Return the converter of a reduction of what is not NaN."""

    def convert(call: Call) -> str:
        nan = call.op("IsNaN", call.x[0])
        x = call.op("Where", nan, call.const(neutral), call.x[0])
        return reduced(call, op, x)

    return convert


def argmax_channel(call: Call) -> str:
    at = call.op("ArgMax", call.x[0], axis=1, keepdims=0)
    return call.cast(at, "int64", call.dtype)


def cumsum(call: Call) -> str:
    x, axis = call.x[0], call.attrs["axis"]
    if axis is None:
        x, axis = call.op("Reshape", x, call.ints(-1)), 0
    return call.op("CumSum", call.cast(x, call.dtype, call.out.dtype), call.const(axis, "int64"))


def mean(call: Call) -> str:
    if not call.attrs["count"]:
        return reduction("ReduceMean")(call)  # type: ignore[return-value]
    total = reduced(call, "ReduceSum", call.x[0])
    return call.op("Div", total, call.const(call.attrs["count"]))


def norm(call: Call) -> str:
    y = reduced(call, f"ReduceL{call.attrs['ord']}", call.x[0])
    return call.op("Abs", y) if y == call.x[0] else y


def index_of(op: str) -> Converter:
    """Return the converter of ArgMax or ArgMin, whose results are in the data's dtype here."""

    def convert(call: Call) -> str:
        x, axis, keep = call.x[0], call.attrs["axis"], int(call.attrs["keepdims"])
        if axis is None:
            x, axis, keep = call.op("Reshape", x, call.ints(-1)), 0, 1
        at = call.op(op, x, axis=axis, keepdims=keep)
        at = call.cast(at, "int64", call.dtype)
        full = call.attrs["axis"] is None or (call.rank == 1 and not keep)
        return call.reshape(at, call.out_dims()) if full else at

    return convert


def sum_to(call: Call) -> str:
    dims, out = call.dims(), call.out_dims()
    lead = len(dims) - len(out)
    wide = [lead + i for i, d in enumerate(out) if d == 1 and dims[lead + i] != 1]
    axes = [*range(lead), *wide]
    if not axes:
        return identity(call)
    return call.reshape(call.op("ReduceSum", call.x[0], call.ints(*axes), keepdims=1), out)


# -- softmax ---------------------------------------------------------------------------------------


def softmax(op: str, *, negative: bool = False) -> Converter:
    def convert(call: Call) -> str:
        x, temperature = call.x[0], call.attrs["temperature"]
        if temperature is not None:
            x = call.op("Div", x, call.const(temperature))
        return call.op(op, call.op("Neg", x) if negative else x, axis=call.attrs["axis"])

    return convert


def loss_softmax(call: Call) -> str:
    return call.op("Softmax", call.x[0], axis=1 if call.attrs["multi_output"] else -1)


def cross_entropy(call: Call) -> str:
    total = call.op("SoftmaxCrossEntropyLoss", call.x[0], ids(call, 1), reduction="sum")
    return call.reshape(total, (1,))


def nll(call: Call) -> Sequence[str]:
    """Write the sums of -log p and of 1 over the labels that are not ignored."""
    prob, label = call.x
    a, labels = call.attrs, call.ins[1]
    counted = call.op("Equal", label, label)
    at = call.cast(label, labels.dtype, "int64")
    if a["use_ignore"]:
        ignored = call.op("Equal", label, call.const(a["ignore_label"], labels.dtype))
        counted = call.op("Not", ignored)
        at = call.op("Mul", at, call.cast(counted, "bool", "int64"))
    picked = call.op("GatherElements", prob, call.op("Unsqueeze", at, call.ints(-1)), axis=-1)
    tiny = call.const(np.finfo(call.dtype).tiny)
    bounded = call.cast(call.op("Clip", picked, tiny), call.dtype, "float64")
    losses = call.op("Neg", call.op("Log", call.op("Squeeze", bounded, call.ints(-1))))
    ones = call.cast(counted, "bool", "float64")
    terms = [call.op("Mul", losses, ones), ones]
    return [call.reshape(call.op("ReduceSum", v, keepdims=0), (1,)) for v in terms]


# -- pooling ---------------------------------------------------------------------------------------


def pooling(call: Call) -> str:
    a = call.attrs
    kind = "sum" if a["pool_type"] == "lp" and a["p_value"] == 1 else a["pool_type"]
    if a["global_pool"] and kind in GLOBAL:
        return call.op(GLOBAL[kind], call.x[0])
    spatial = all_fixed(call.dims()[2:])
    if spatial is None:
        call.refuse("it pools over lengths that are left open")
    return POOLS[kind](Pool(call, spatial))


class Pool:
    """A pooling call with its windows, and how far they reach over the end of the padded data."""

    def __init__(self, call: Call, spatial: tuple[int, ...]) -> None:
        self.call, self.spatial = call, spatial
        self.windows, self.counts = windows_over(call.attrs, (1, 1, *spatial))
        fields = zip(
            self.windows.padded(spatial),
            self.counts,
            self.windows.kernel,
            self.windows.stride,
            strict=True,
        )
        self.over = [max(0, (count - 1) * s + k - n) for n, count, k, s in fields]

    @property
    def size(self) -> int:
        """The number of positions in a window."""
        return math.prod(self.windows.kernel)

    def op(self, op: str, x: str, *, padded: bool = True, **attrs: int) -> str:
        """Write a pooling operator; `padded`: with the call's own padding and convention."""
        same = self.call.attrs["pooling_convention"] == "same"
        ends = self.over if same else self.windows.pad
        pads = [*self.windows.pad, *ends] if padded else [0] * (2 * len(self.spatial))
        ceil = {"ceil_mode": 1} if padded and not same and any(self.over) else {}
        return self.call.op(
            op,
            x,
            kernel_shape=[*self.windows.kernel],
            strides=[*self.windows.stride],
            pads=pads,
            **ceil,
            **attrs,
        )

    def sums(self, x: str) -> str:
        """Write the sum of each window, with zeros as padding."""
        call, pad = self.call, self.windows.pad
        if any(pad) or any(self.over):
            ends = [p + over for p, over in zip(pad, self.over, strict=True)]
            x = call.op("Pad", x, call.ints(0, 0, *pad, 0, 0, *ends), call.const(0))
        means = self.op("AveragePool", x, padded=False)
        return call.op("Mul", means, call.const(self.size))


def max_pool(pool: Pool) -> str:
    return pool.op("MaxPool", pool.call.x[0])


def average_pool(pool: Pool) -> str:
    """Windows that reach over the end count their part of the padding alone, unlike ONNX's."""
    call, a = pool.call, pool.call.attrs
    padding = a["count_include_pad"] is not False
    if padding and any(pool.over) and a["pooling_convention"] == "full":
        like = np.ones((), call.dtype)
        counts = divisors(np, a, (1, 1, *pool.spatial), like)
        return call.op("Div", pool.sums(call.x[0]), call.const(counts))
    same = a["pooling_convention"] == "same"
    include = int(padding and any(pool.windows.pad) and not same)
    return pool.op("AveragePool", call.x[0], count_include_pad=include)


def sum_pool(pool: Pool) -> str:
    return pool.sums(pool.call.x[0])


def lp_pool(pool: Pool) -> str:
    """Write the root of the sum of powers: of signed ones, unlike ONNX's LpPool."""
    call, p = pool.call, pool.call.attrs["p_value"]
    total = pool.sums(call.op("Pow", call.x[0], call.const(p)))
    if p == 2:
        return call.op("Sqrt", total)
    root = call.op("Pow", call.op("Abs", total), call.const(1 / 3))
    return call.op("Mul", call.op("Sign", total), root)


GLOBAL = {"max": "GlobalMaxPool", "avg": "GlobalAveragePool"}
POOLS: dict[str, Callable[[Pool], str]] = {
    "max": max_pool,
    "avg": average_pool,
    "sum": sum_pool,
    "lp": lp_pool,
}

# -- sequences -------------------------------------------------------------------------------------


def sequence_mask(call: Call) -> str:
    x, *lengths = call.x
    if not lengths:
        return identity(call)
    time = call.attrs["axis"]
    steps = call.fixed(call.dims()[time])
    dtype = call.ins[1].dtype
    wide = dtype if dtype in ("int32", "int64", "float32", "float64") else "float32"
    of_sample = [i for i in range(call.rank) if i != 1 - time]
    each = call.op("Unsqueeze", call.cast(lengths[0], dtype, wide), call.ints(*of_sample))
    places = np.arange(steps).reshape([-1 if i == time else 1 for i in range(call.rank)])
    inside = call.op("Less", call.const(places, wide), each)
    return call.op("Where", inside, x, call.const(call.attrs["value"]))


def sequence_last(call: Call) -> str:
    x, *lengths = call.x
    time = call.attrs["axis"]
    if not lengths:
        return call.op("Gather", x, call.const(-1, "int64"), axis=time)
    ends = call.cast(lengths[0], call.ins[1].dtype, "int64")
    of_sample = [i for i in range(call.rank) if i != 1 - time]
    at = call.op("Sub", call.op("Unsqueeze", ends, call.ints(*of_sample)), call.const(1, "int64"))
    wide = tuple(1 if i < 2 else d for i, d in enumerate(call.dims()))
    steps = call.op("Expand", at, call.shape(wide))
    return call.op("Squeeze", call.op("GatherElements", x, steps, axis=time), call.ints(time))


def sequence_reverse(call: Call) -> str:
    x, *lengths = call.x
    time = call.attrs["axis"]
    if not lengths:
        return sliced(call, x, {time: slice(None, None, -1)})
    ends = call.cast(lengths[0], call.ins[1].dtype, "int64")
    return call.op("ReverseSequence", x, ends, time_axis=time, batch_axis=1 - time)


# -- random values ---------------------------------------------------------------------------------


def dropout(call: Call) -> str:
    """Write ONNX's Dropout, which changes nothing outside training."""
    always = [call.const(True, "bool")] if call.attrs["mode"] == "always" else []
    return call.op("Dropout", call.x[0], call.const(call.attrs["p"], "float32"), *always)


def drawn(op: str, **names: str) -> Converter:
    """Return the converter of an operator that draws numbers; ONNX draws other ones."""

    def convert(call: Call) -> str:
        parameters = {key: call.attrs[name] for key, name in names.items()}
        zeros = call.full(0, call.out_dims(), call.out.dtype)
        return call.op(op, zeros, **parameters)

    return convert


UNIFORM = drawn("RandomUniformLike", low="low", high="high")
NORMAL = drawn("RandomNormalLike", mean="loc", scale="scale")
CONVERTERS: Table = {
    "sum": reduction("ReduceSum"),
    "prod": reduction("ReduceProd"),
    "nansum": without_nan("ReduceSum", 0),
    "nanprod": without_nan("ReduceProd", 1),
    "argmax_channel": argmax_channel,
    "cumsum": cumsum,
    "mean": mean,
    "max": reduction("ReduceMax"),
    "min": reduction("ReduceMin"),
    "norm": norm,
    "argmax": index_of("ArgMax"),
    "argmin": index_of("ArgMin"),
    "_sum_to": sum_to,
    "softmax": softmax("Softmax"),
    "softmin": softmax("Softmax", negative=True),
    "log_softmax": softmax("LogSoftmax"),
    "SoftmaxActivation": lambda call: call.op("Softmax", call.x[0], axis=mode_axis(call.attrs)),
    "SoftmaxOutput": loss_softmax,
    "LinearRegressionOutput": identity,
    "MAERegressionOutput": identity,
    "LogisticRegressionOutput": lambda call: call.op("Sigmoid", call.x[0]),
    "MakeLoss": identity,
    "IdentityAttachKLSparseReg": identity,
    "SVMOutput": identity,
    "softmax_cross_entropy": cross_entropy,
    "_nll": nll,
    "Pooling": pooling,
    "SequenceMask": sequence_mask,
    "SequenceLast": sequence_last,
    "SequenceReverse": sequence_reverse,
    "Dropout": dropout,
    "_random_uniform": UNIFORM,
    "_random_uniform_like": UNIFORM,
    "_random_normal": NORMAL,
    "_random_normal_like": NORMAL,
}
