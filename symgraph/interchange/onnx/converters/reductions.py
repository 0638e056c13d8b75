"""Converters of reductions, softmax, normalizations, and places of extremes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from symgraph.core.types import is_float
from symgraph.interchange.onnx.converters.movement import with_ones
from symgraph.interchange.onnx.node import OnnxNode
from symgraph.interchange.onnx.registry import converts
from symgraph.interchange.values import Known, Traced, pair


class Axes:
    """The axes of a reduction."""

    def __init__(self, node: OnnxNode, x: Traced) -> None:
        given = node.ints(1, "axes")
        self.rank = x.rank
        self.keep = bool(node.attr("keepdims", 1))
        self.none = not given and bool(node.attr("noop_with_empty_axes", 0))
        chosen = given or range(x.rank)
        self.axes = tuple(sorted({node.axis(a, x.rank) for a in chosen}))
        if not x.rank:
            self.axes = (0,)

    @property
    def axisless(self) -> bool:
        """Whether the result has no axes."""
        return not self.rank or (not self.keep and len(self.axes) == self.rank)

    def over(self, x: Traced, op: str, keep: bool | None = None) -> Traced:
        """Reduce by an operator of symgraph."""
        keepdims = self.keep if keep is None else keep
        axisless = not self.rank or (not keepdims and len(self.axes) == self.rank)
        return x.call(op, axis=self.axes, keepdims=keepdims, axisless=axisless)


def log_sum_exp(axes: Axes, x: Traced) -> Traced:
    """Subtract the largest element first; where it is not finite, 0 instead."""
    largest = axes.over(x, "max", keep=True).call("BlockGrad")
    bounded = largest.call("clip", a_min=-3e38, a_max=3e38)
    total = axes.over((x - bounded).call("exp"), "sum")
    shift = axes.over(bounded, "sum") if not axes.keep else bounded
    return total.call("log") + shift


def product(axes: Axes, x: Traced) -> Traced:
    """Multiply the elements along the axes, half of them with the other half at a time."""
    kept = [a for a in range(x.rank) if a not in axes.axes]
    moved = x.transposed([*kept, *axes.axes]) if x.rank else x
    lead = [tuple(d[: len(kept)]) for d in moved.dims]
    count = math.prod(moved.types[0].shape[len(kept) :])
    flat = moved.reshaped(((*lead[0], count), (*lead[1], count)))
    axis = len(kept)
    while count > 1:
        half = count // 2
        both = pair("mul", flat.sliced(axis, 0, half), flat.sliced(axis, half, 2 * half))
        if count % 2:
            both = both.call("Concat", flat.sliced(axis, 2 * half, count), dim=axis)
        flat, count = both, half + count % 2
    dims = [
        [1 if a in axes.axes else d[a] for a in range(x.rank) if axes.keep or a not in axes.axes]
        for d in x.dims
    ]
    return flat.reshaped((dims[0], dims[1]))


REDUCTIONS: dict[str, Callable[[Axes, Traced], Traced]] = {
    "Sum": lambda axes, x: axes.over(x, "sum"),
    "Mean": lambda axes, x: axes.over(x, "mean"),
    "Max": lambda axes, x: axes.over(x, "max"),
    "Min": lambda axes, x: axes.over(x, "min"),
    "Prod": product,
    "L1": lambda axes, x: axes.over(x.call("abs"), "sum"),
    "L2": lambda axes, x: axes.over(x.call("square"), "sum").call("sqrt"),
    "SumSquare": lambda axes, x: axes.over(x.call("square"), "sum"),
    "LogSum": lambda axes, x: axes.over(x, "sum").call("log"),
    "LogSumExp": log_sum_exp,
}


@converts(*[f"Reduce{word}" for word in REDUCTIONS], known=(1,))
def reduction(node: OnnxNode) -> Traced:
    x, word = node.x, node.op.removeprefix("Reduce")
    axes = Axes(node, x)
    if axes.none:
        alone = {"L1": "abs", "L2": "abs", "SumSquare": "square", "LogSum": "log"}
        return x.call(alone[word]) if word in alone else x
    dtype = x.dtype
    if dtype == "bool":
        x = x.cast("uint8")
    elif not is_float(dtype) and word == "Mean":
        node.fail(f"averages {dtype}")
    made: Traced = REDUCTIONS[word](axes, x)
    return made.cast(dtype)


# -- softmax ---------------------------------------------------------------------------------------

SOFTMAX = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax"}


@converts(*SOFTMAX, first=13)
def softmax(node: OnnxNode) -> Traced:
    x = node.x
    return along(node, x, node.axis(node.attr("axis", -1), x.rank))


def along(node: OnnxNode, x: Traced, axis: int) -> Traced:
    if node.op == "Hardmax":
        node.require(x.shape[axis] > 0, "works along the batch")
        hot = first_extreme(x, axis, "argmax")
        dims = list(range(x.rank))
        wide = hot.call("one_hot", depth=x.shape[axis], dtype=x.dtype, axisless=False)
        order = [*dims[:axis], x.rank - 1, *dims[axis:-1]]
        return wide.transposed(order)
    return x.call(SOFTMAX[node.op], axis=axis)


@converts(*SOFTMAX, last=12)
def softmax_of_rows(node: OnnxNode) -> Traced:
    """Before opset 13 all axes from `axis` on were one."""
    x = node.x
    axis = node.axis(node.attr("axis", 1), x.rank)
    if axis == x.rank - 1:
        return along(node, x, axis)
    dims = [(*d[:axis], math.prod(d[axis:])) for d in x.dims]
    return along(node, x.reshaped((dims[0], dims[1])), axis).reshaped(x.dims)


# -- places of extremes ----------------------------------------------------------------------------


def first_extreme(x: Traced, axis: int, op: str) -> Traced:
    """Return the first place of the largest or smallest element, without the axis."""
    scalar = x.rank == 1
    wide = x if x.dtype in ("float32", "float64", "int32", "int64") else x.cast("float32")
    return wide.call(op, axis=axis, keepdims=False, axisless=scalar).cast("int64")


@converts("ArgMax", "ArgMin")
def place_of_extreme(node: OnnxNode) -> Traced:
    x = node.x
    axis = node.axis(node.attr("axis", 0), x.rank)
    last = bool(node.attr("select_last_index", 0))
    size = x.shape[axis]
    node.require(size > 0, "works along the batch")
    data = x.call("reverse", axis=(axis,)) if last else x
    found = first_extreme(data, axis, node.op.lower())
    if last:
        found = found.call("_rminus_scalar", scalar=float(size - 1))
    return with_ones(found, [axis]) if node.attr("keepdims", 1) else found


# -- normalizations --------------------------------------------------------------------------------


@converts("BatchNormalization")
def batch_normalization(node: OnnxNode) -> list[Traced]:
    x, eps = node.x, node.attr("epsilon", 1e-5)
    weights = [node.tensor(i, learned=True) for i in (1, 2)]
    if node.attr("training_mode", 0):
        return of_this_batch(node, x, weights, eps)
    node.require(not any(node.outputs[1:]), "gives its statistics")
    states = [node.value(i) for i in (3, 4)]
    if x.rank >= 2 and all(isinstance(s, Known) for s in states):
        moving = [state(node, s) for s in states if isinstance(s, Known)]
        return [
            x.call(
                "BatchNorm",
                *weights,
                *moving,
                eps=eps,
                momentum=node.attr("momentum", 0.9),
                fix_gamma=False,
            )
        ]
    scale, bias, mean, var = (channelwise(node.tensor(i), x.rank) for i in range(1, 5))
    return [(x - mean) * (scale * (var + eps).call("rsqrt")) + bias]


def state(node: OnnxNode, known: Known) -> Traced:
    """Return an auxiliary state, which training updates without a gradient."""
    value = node.network.constant(known)
    if known.name in node.network.args:
        node.network.aux[known.name] = node.network.args.pop(known.name)
    return value


def channelwise(vector: Traced, rank: int) -> Traced:
    """Return a vector of the channels, along axis 1 of as many axes."""
    if vector.rank != 1:
        return vector
    return with_ones(vector, range(1, rank - 1)) if rank > 1 else vector


def of_this_batch(node: OnnxNode, x: Traced, weights: Sequence[Traced], eps: float) -> list[Traced]:
    """Normalize by the statistics of this batch, and return the next running ones."""
    axes = tuple(a for a in range(x.rank) if a != 1)
    mean = x.call("mean", axis=axes, keepdims=True)
    var = (x - mean).call("square").call("mean", axis=axes, keepdims=True)
    scale, bias = (channelwise(w, x.rank) for w in weights)
    y = (x - mean) * (scale * (var + eps).call("rsqrt")) + bias
    momentum = node.attr("momentum", 0.9)
    size = (x.shape[1],)
    moved = [
        node.tensor(3 + i) * momentum + now.reshaped((size, size)) * (1 - momentum)
        for i, now in enumerate((mean, var))
    ]
    return [y, *moved]


def normalized(x: Traced, axes: Sequence[int], eps: float) -> tuple[Traced, Traced, Traced]:
    """Return (the value with mean 0 and variance 1 over axes, mean, 1 / deviation)."""
    mean = x.call("mean", axis=tuple(axes), keepdims=True)
    centred = x - mean
    inverse = (centred.call("square").call("mean", axis=tuple(axes), keepdims=True) + eps).call(
        "rsqrt"
    )
    return centred * inverse, mean, inverse


@converts("InstanceNormalization")
def instance_normalization(node: OnnxNode) -> Traced:
    x = node.x
    y, _, _ = normalized(x, range(2, x.rank), node.attr("epsilon", 1e-5))
    scale, bias = (channelwise(node.tensor(i, learned=True), x.rank) for i in (1, 2))
    return y * scale + bias


@converts("LayerNormalization")
def layer_normalization(node: OnnxNode) -> list[Traced | None]:
    x, eps = node.x, node.attr("epsilon", 1e-5)
    axis = node.axis(node.attr("axis", -1), x.rank)
    scale, bias = node.tensor(1, learned=True), node.optional(2, learned=True)
    plain = axis == x.rank - 1 and scale.shape == (x.shape[-1],) and bias is not None
    if plain and bias is not None and bias.shape == scale.shape and not any(node.outputs[1:]):
        return [x.call("LayerNorm", scale, bias, axis=-1, eps=eps)]
    y, mean, inverse = normalized(x, range(axis, x.rank), eps)
    y = y * scale
    return [y if bias is None else y + bias, mean, inverse]


@converts("RMSNormalization")
def rms_normalization(node: OnnxNode) -> Traced:
    x = node.x
    axis = node.axis(node.attr("axis", -1), x.rank)
    axes = tuple(range(axis, x.rank))
    square = x.call("square").call("mean", axis=axes, keepdims=True)
    eps: float = node.attr("epsilon", 1e-5)
    return x * (square + eps).call("rsqrt") * node.tensor(1, learned=True)


@converts("GroupNormalization", first=21)
def group_normalization(node: OnnxNode) -> Traced:
    x, groups = node.x, node.attr("num_groups")
    channels = x.shape[1]
    node.require(channels > 0 and channels % groups == 0, f"{groups} groups of {channels} channels")
    dims = [(d[0], groups, channels // groups, *d[2:]) for d in x.dims]
    split = x.reshaped((dims[0], dims[1]))
    y, _, _ = normalized(split, range(2, split.rank), node.attr("epsilon", 1e-5))
    scale, bias = (channelwise(node.tensor(i, learned=True), x.rank) for i in (1, 2))
    return y.reshaped(x.dims) * scale + bias


@converts("MeanVarianceNormalization")
def mean_variance_normalization(node: OnnxNode) -> Traced:
    x = node.x
    axes = [node.axis(a, x.rank) for a in node.attr("axes", [0, 2, 3])]
    mean = x.call("mean", axis=tuple(axes), keepdims=True)
    centred = x - mean
    deviation = centred.call("square").call("mean", axis=tuple(axes), keepdims=True).call("sqrt")
    return centred / (deviation + 1e-9)


@converts("LpNormalization")
def lp_normalization(node: OnnxNode) -> Traced:
    x, power = node.x, node.attr("p", 2)
    axis = node.axis(node.attr("axis", -1), x.rank)
    if power == 1:
        size = x.call("abs").call("sum", axis=axis, keepdims=True)
    else:
        size = x.call("square").call("sum", axis=axis, keepdims=True).call("sqrt")
    return x / (size + size.call("_equal_scalar", scalar=0.0))


@converts("LRN")
def local_response(node: OnnxNode) -> Traced:
    size = node.attr("size")
    node.require(size % 2 == 1, f"has size={size}; here it must be odd")
    return node.x.call(
        "LRN",
        alpha=node.attr("alpha", 1e-4),
        beta=node.attr("beta", 0.75),
        knorm=node.attr("bias", 1.0),
        nsize=size,
    )
