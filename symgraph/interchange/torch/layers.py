"""Converters of layers: products, convolutions, norms, pooling, attention, recurrent networks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from symgraph.frontend import sym
from symgraph.frontend.symbol import Symbol
from symgraph.interchange.torch.call import Call, Value, converts
from symgraph.interchange.torch.movement import constant, turned
from symgraph.interchange.torch.program import Free
from symgraph.interchange.torch.resizing import along

# -- products --------------------------------------------------------------------------------------


@converts("linear")
def linear(c: Call) -> Symbol:
    shape, bias = c.meta("input").shape, c.has("bias")
    x = c.x("input") if len(shape) > 1 else c.reshape(c.x("input"), (1, *shape))
    inputs = [c.x("weight"), *([c.x("bias")] if bias else [])]
    units = c.meta("weight").shape[0]
    if isinstance(units, Free):  # rows of the weight are samples
        made = sym.dot(x, inputs[0], transpose_b=True)
        made = sym.broadcast_add(made, inputs[1]) if bias else made
    else:
        made = sym.FullyConnected(x, *inputs, num_hidden=units, no_bias=not bias, flatten=False)
    return made if len(shape) > 1 else c.reshape(made, c.out.shape)


@converts("mm")
def mm(c: Call) -> Symbol:
    return sym.dot(c.x(), c.x("mat2"))


@converts("mv dot outer")
def product_of_vectors(c: Call) -> Symbol:
    x, y = c.x(), c.x({"mv": "vec", "dot": "tensor", "outer": "vec2"}[c.node.target.split(".")[1]])
    if "outer" in c.node.target:
        x, y = sym.expand_dims(x, axis=1), sym.expand_dims(y, axis=0)
        return sym.broadcast_mul(x, y)
    rank = len(c.meta("self").shape)
    return sym.sum(sym.broadcast_mul(x, sym.expand_dims(y, axis=0) if rank > 1 else y), axis=-1)


@converts("addmm baddbmm")
def addmm(c: Call) -> Symbol:
    if "baddbmm" in c.node.target:
        product = sym.batch_dot(c.x("batch1"), c.x("batch2"))
    else:
        product = sym.dot(c.x("mat1"), c.x("mat2"))
    alpha, beta = c.number("alpha", 1), c.number("beta", 1)
    product = product * alpha if alpha != 1 else product
    x = c.x() * beta if beta != 1 else c.x()
    return sym.broadcast_add(product, x)


@converts("bmm")
def bmm(c: Call) -> Symbol:
    return sym.batch_dot(c.x(), c.x("mat2"))


@converts("matmul")
def matmul(c: Call) -> Symbol:
    left, right = c.meta("self").shape, c.meta("other").shape
    x, y = c.x("self"), c.x("other")
    if len(left) == len(right) == 2:
        return sym.dot(x, y)
    if len(left) == 1:
        x, left = c.reshape(x, (1, *left)), (1, *left)
    if len(right) == 1:
        y, right = c.reshape(y, (*right, 1)), (*right, 1)
    if len(right) == 2:
        rows = sym.Reshape(x, shape=(-1, left[-1])) if len(left) > 2 else x
        return c.reshape(sym.dot(rows, y), c.out.shape)
    rank = max(len(left), len(right))
    lead = [_longer(left, right, rank, axis) for axis in range(rank - 2)]
    x = c.spread(x, left, (*lead, *left[-2:]), c.out.dtype)
    y = c.spread(y, right, (*lead, *right[-2:]), c.out.dtype)
    return c.reshape(sym.batch_dot(x, y), c.out.shape)


def _longer(left: tuple[int, ...], right: tuple[int, ...], rank: int, axis: int) -> int:
    """Return the length to which an axis before the matrices is broadcast."""
    d, e = ((1,) * (rank - len(s)) + tuple(s) for s in (left, right))
    return d[axis] if isinstance(d[axis], Free) or d[axis] != 1 else e[axis]


@converts("einsum")
def einsum(c: Call) -> Symbol:
    """One product of matrices: axes are shared by all, summed, or of one side alone."""
    equation, values = str(c.get("equation")).replace(" ", ""), c.values("tensors")
    match = re.fullmatch(r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]+)", equation)
    if (
        match is None
        or len(values) != 2
        or any(len({*part}) < len(part) for part in match.groups())
    ):
        c.fail(f"equation {equation!r} is not one of two tensors whose axes have different letters")
    left, right, out = match.groups()
    lengths = dict(zip(left + right, values[0].meta.shape + values[1].meta.shape, strict=True))
    both = [a for a in left if a in right and a in out]
    summed = [a for a in left if a in right and a not in out]
    rows, columns = ([a for a in side if a not in both + summed] for side in (left, right))
    if not {*rows, *columns} <= {*out}:
        c.fail(f"equation {equation!r} sums over an axis of one tensor alone")

    def arranged(value: Value, letters: str, *groups: list[str]) -> Symbol:
        order = [letters.index(a) for group in groups for a in group]
        x = turned(c.symbol(value, c.out.dtype), order)
        return c.reshape(x, tuple(_product(lengths[a] for a in group) for group in groups))

    product = sym.batch_dot(
        arranged(values[0], left, both, rows, summed),
        arranged(values[1], right, both, summed, columns),
    )
    made = both + rows + columns
    product = c.reshape(product, tuple(lengths[a] for a in made))
    return turned(product, [made.index(a) for a in out])


def _product(lengths: Iterable[int]) -> int:
    """Return the product of lengths, which depends on the batch if one of them does."""
    found = list(lengths)
    total = math.prod(found)
    return Free(total) if any(isinstance(d, Free) for d in found) else total


@converts("scaled_dot_product_attention")
def attention(c: Call) -> Symbol:
    lead = c.out.shape[:-2]
    q, k, v = (_as_rows(c, name, lead) for name in ("query", "key", "value"))
    query, key = (*lead, *c.meta("query").shape[-2:]), c.meta("key").shape
    if not lead:
        q, k, v = (sym.expand_dims(x, axis=0) for x in (q, k, v))
        query = (1, *query)
    scale = c.number("scale") if c.get("scale") is not None else 1 / math.sqrt(query[-1])
    scores = sym.batch_dot(q, k, transpose_b=True) * scale
    shape, hidden = (*query[:-1], key[-2]), None
    least = -3e4 if c.out.dtype == "float16" else -1e30
    if c.get("is_causal", False):
        c.bound(query[-2], key[-2])
        later = np.triu(np.full((query[-2], key[-2]), least, c.out.dtype), 1)
        scores = sym.broadcast_add(scores, _leading(c, constant(c, later), later.shape, shape))
    if c.has("attn_mask"):
        mask, old = c.symbol(c.value("attn_mask")), c.meta("attn_mask").shape
        if c.meta("attn_mask").dtype == "bool":
            mask = (1 - sym.Cast(mask, dtype=c.out.dtype)) * least
        mask = _leading(c, sym.maximum(mask, least), old, shape)
        scores = sym.broadcast_add(scores, mask)
        hidden = sym.max(mask, axis=-1, keepdims=True) <= least
    weights = sym.softmax(scores, axis=-1)
    if c.number("dropout_p", 0):
        weights = sym.Dropout(weights, p=c.number("dropout_p"))
    made = sym.batch_dot(weights, v)
    # A query that sees no key gets 0; the mask is finite, so its softmax is no NaN.
    made = made if hidden is None else sym.broadcast_mul(made, 1 - hidden)
    return made if lead else c.reshape(made, c.out.shape)


def _as_rows(c: Call, name: str, lead: tuple[int, ...]) -> Symbol:
    """Return queries, keys or values with the output's axes in front, its heads repeated."""
    x, shape = c.x(name), tuple(c.meta(name).shape)
    if c.get("enable_gqa", False) and 1 < shape[-3] != lead[-1]:
        x = sym.repeat(x, repeats=lead[-1] // shape[-3], axis=len(shape) - 3)
        shape = (*shape[:-3], lead[-1], *shape[-2:])
    return c.spread(x, shape, (*lead, *shape[-2:]), c.out.dtype)


def _leading(c: Call, x: Symbol, old: tuple[int, ...], new: tuple[int, ...]) -> Symbol:
    """Return x with axes of length 1 in front, so that it broadcasts."""
    return x if len(old) == len(new) else c.reshape(x, (1,) * (len(new) - len(old)) + tuple(old))


# -- convolutions and pooling ----------------------------------------------------------------------


def _all(values: tuple[int, ...], count: int) -> tuple[int, ...]:
    return values * count if len(values) == 1 else values


@converts("conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d")
def convolution(c: Call) -> Symbol:
    kernel = c.meta("weight").shape[2:]
    rank = len(kernel)
    turned = c.get("transposed", False) or "conv_transpose" in c.node.target
    groups = c.integer("groups", 1)
    options: dict[str, Any] = {
        "kernel": kernel,
        "stride": _all(c.integers("stride", (1,)), rank),
        "dilate": _all(c.integers("dilation", (1,)), rank),
        "num_group": groups,
        "no_bias": not c.has("bias"),
    }
    x = _with_batch(c, "input", rank)
    if isinstance(c.get("padding"), str):
        x, options["pad"] = _padded(c, x, kernel, options["dilate"])
    else:
        options["pad"] = _all(c.integers("padding", (0,)), rank)
    inputs = [x, c.x("weight"), *([c.x("bias")] if c.has("bias") else [])]
    if not turned:
        made = sym.Convolution(*inputs, num_filter=c.meta("weight").shape[0], **options)
        return _without_batch(c, made, rank)
    options["adj"] = _all(c.integers("output_padding", (0,)), rank)
    filters = c.meta("weight").shape[1] * groups
    return _without_batch(c, sym.Deconvolution(*inputs, num_filter=filters, **options), rank)


def _with_batch(c: Call, name: str, rank: int) -> Symbol:
    """Return an input with the batch's axis, which PyTorch lets be left out."""
    x = c.x(name)
    return x if len(c.meta(name).shape) == rank + 2 else sym.expand_dims(x, axis=0)


def _without_batch(c: Call, x: Symbol, rank: int) -> Symbol:
    return x if len(c.out.shape) == rank + 2 else c.reshape(x, c.out.shape)


def _padded(
    c: Call, x: Symbol, kernel: tuple[int, ...], dilate: tuple[int, ...]
) -> tuple[Symbol, tuple[int, ...]]:
    """Return the input and the padding of padding="same", which may have one more at the end."""
    if c.get("padding") == "valid":
        return x, (0,) * len(kernel)
    totals = [d * (k - 1) for k, d in zip(kernel, dilate, strict=True)]
    if any(total % 2 for total in totals):
        if len(kernel) == 1:
            c.fail("padding='same' with an even kernel is supported in 2 and 3 dimensions alone")
        widths = [0] * 4 + [w for t in totals for w in (t // 2, t - t // 2)]
        return sym.Pad(x, mode="constant", pad_width=widths), (0,) * len(kernel)
    return x, tuple(total // 2 for total in totals)


@converts(
    "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices "
    "max_pool3d_with_indices"
)
def pooling(c: Call) -> Any:
    rank = int(c.node.target.split("pool")[1][0])
    lengths = c.meta("self").shape[-rank:]
    kernel = _all(c.integers("kernel_size"), rank)
    stride = _all(c.integers("stride") or kernel, rank)
    pad = _all(c.integers("padding", (0,)), rank)
    if set(c.integers("dilation", (1,))) != {1}:
        c.fail("dilation is not supported")
    average, ceil = "avg" in c.node.target, bool(c.get("ceil_mode", False))
    options: dict[str, Any] = {"pool_type": "avg" if average else "max"}
    if average:
        options["count_include_pad"] = bool(c.get("count_include_pad", True))
        if c.get("divisor_override") is not None:
            c.fail("divisor_override is not supported")
    if ceil:
        options["pooling_convention"] = "full"
        for d, k, s, p, out in zip(lengths, kernel, stride, pad, c.out.shape[-rank:], strict=True):
            over = (out - 1) * s + k - d - 2 * p
            if -(-(d + 2 * p - k) // s) + 1 != out or (average and over > 0):
                c.fail("ceil_mode is not supported where a window passes the padded end")
    x = _with_batch(c, "self", rank)
    made = sym.Pooling(x, kernel=kernel, stride=stride, pad=pad, **options)
    made = _without_batch(c, made, rank)
    return [made] if "indices" in c.node.target else made


@converts(
    "adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool1d "
    "adaptive_max_pool2d"
)
def adaptive(c: Call) -> Any:
    rank = int(c.node.target.split("pool")[1][0])
    old, new = c.meta("self").shape[-rank:], c.out.shape[-rank:]
    x = _with_batch(c, "self", rank)
    average = "avg" in c.node.target
    if all(d % e == 0 for d, e in zip(old, new, strict=True)):
        window = tuple(d // e for d, e in zip(old, new, strict=True))
        kind = "avg" if average else "max"
        made = sym.Pooling(x, kernel=window, stride=window, pool_type=kind)
        made = _without_batch(c, made, rank)
        return made if average else [made]
    if not average:
        c.fail(f"an output of {new} from {old} is not supported, since windows overlap")
    for at, (d, e) in enumerate(zip(old, new, strict=True), 2):  # averages along each axis
        c.bound(d, e)
        matrix = np.zeros((d, e))
        for i in range(e):
            first, last = i * d // e, -(-(i + 1) * d // e)
            matrix[first:last, i] = 1 / (last - first)
        x = along(c, x, at, matrix, rank + 1)
    return _without_batch(c, x, rank)


# -- norms -----------------------------------------------------------------------------------------


def _affine(c: Call, name: str, number: float, shape: tuple[int, ...]) -> Symbol:
    """Return a factor or addend of a norm; a constant if there is none."""
    if c.has(name):
        return c.x(name)
    return sym.full(shape=shape, val=number, dtype=c.out.dtype)


@converts(
    "batch_norm _native_batch_norm_legit_functional _native_batch_norm_legit native_batch_norm "
    "_native_batch_norm_legit_no_training"
)
def batch_norm(c: Call) -> Any:
    training = c.get("training", False) if "no_training" not in c.node.target else False
    if not c.has("running_mean"):
        made = _by_the_batch(c)
        return made if len(c.node.outputs) == 1 else [made, None, None]
    channels = (c.meta("input").shape[1],)
    made = sym.BatchNorm(
        c.x("input"),
        _affine(c, "weight", 1, channels),
        _affine(c, "bias", 0, channels),
        c.state("running_mean"),
        c.state("running_var"),
        eps=c.number("eps", 1e-5),
        momentum=1 - c.number("momentum", 0.1),
        fix_gamma=False,
        use_global_stats=not training,
    )
    if len(c.node.outputs) == 1:
        return made
    states = [c.value("running_mean"), c.value("running_var")]
    return [made, None, None, *states]


def _by_the_batch(c: Call) -> Symbol:
    """Normalize by the batch's own mean and variance, without running ones."""
    x, shape = c.x("input"), c.meta("input").shape
    axes = tuple(axis for axis in range(len(shape)) if axis != 1)
    spread = sym.broadcast_sub(x, sym.mean(x, axis=axes, keepdims=True))
    variance = sym.mean(sym.square(spread), axis=axes, keepdims=True)
    made = sym.broadcast_mul(spread, sym.rsqrt(variance + c.number("eps", 1e-5)))
    across = (1, -1, *(1,) * (len(shape) - 2))
    for name, operator in (("weight", sym.broadcast_mul), ("bias", sym.broadcast_add)):
        if c.has(name):
            made = operator(made, sym.Reshape(c.x(name), shape=across))
    return made


@converts("layer_norm native_layer_norm")
def layer_norm(c: Call) -> Any:
    axes, shape = c.integers("normalized_shape"), c.meta("input").shape
    count = math.prod(axes)
    factor, addend = _affine(c, "weight", 1, axes), _affine(c, "bias", 0, axes)
    x = c.x("input")
    if len(axes) > 1:
        x = c.reshape(x, (*shape[: -len(axes)], count))
        factor, addend = (sym.Reshape(p, shape=(count,)) for p in (factor, addend))
    made = sym.LayerNorm(x, factor, addend, axis=-1, eps=c.number("eps", 1e-5))
    made = c.reshape(made, shape) if len(axes) > 1 else made
    return [made] if "native" in c.node.target else made


@converts("group_norm native_group_norm instance_norm")
def group_norm(c: Call) -> Any:
    shape = c.meta("input").shape
    groups = c.integer("num_groups" if "native" not in c.node.target else "group", shape[1])
    if "instance" in c.node.target:
        groups = shape[1]
        if not c.get("use_input_stats", True):
            return batch_norm(c)
    width = shape[1] // groups * math.prod(shape[2:])
    flat = c.reshape(c.x("input"), (shape[0], groups, width))
    ones, zeros = (sym.full(shape=(width,), val=v, dtype=c.out.dtype) for v in (1, 0))
    even = c.reshape(sym.LayerNorm(flat, ones, zeros, eps=c.number("eps", 1e-5)), shape)
    across = (1, shape[1], *(1,) * (len(shape) - 2))
    factor, addend = (_affine(c, n, v, shape[1:2]) for n, v in (("weight", 1), ("bias", 0)))
    made = sym.broadcast_mul(even, sym.Reshape(factor, shape=across))
    made = sym.broadcast_add(made, sym.Reshape(addend, shape=across))
    return [made] if "native" in c.node.target else made


@converts("rms_norm")
def rms_norm(c: Call) -> Symbol:
    x, axes = c.x("input"), len(c.integers("normalized_shape"))
    rank = len(c.out.shape)
    eps = c.get("eps")
    eps = float(np.finfo(c.out.dtype).eps) if eps is None else c.number("eps")
    mean = sym.mean(sym.square(x), axis=tuple(range(rank - axes, rank)), keepdims=True)
    made = sym.broadcast_mul(x, sym.rsqrt(mean + eps))
    return sym.broadcast_mul(made, c.x("weight")) if c.has("weight") else made


@converts("dropout feature_dropout alpha_dropout native_dropout")
def dropout(c: Call) -> Any:
    train, p = c.get("train", True), c.number("p", 0.5)
    name = "input" if c.has("input") else "self"
    if not train or not p:
        made: Any = c.value(name)
    elif "alpha" in c.node.target:
        c.fail("alpha dropout is not supported in train mode")
    else:
        rank = len(c.out.shape)
        axes = tuple(range(2, rank)) if "feature" in c.node.target else ()
        made = sym.Dropout(c.x(name), p=p, axes=axes)
    return [made, None] if "native" in c.node.target else made


# -- recurrent networks ----------------------------------------------------------------------------

MODES = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "rnn_tanh", "rnn_relu": "rnn_relu"}


@converts(*(f"{name}.input" for name in MODES))
def recurrent(c: Call) -> list[Symbol]:
    """Keep the network one node, which is unrolled once its shapes are known."""
    mode = MODES[c.node.target.split(".")[1]]
    biases, layers = bool(c.get("has_biases", True)), c.integer("num_layers", 1)
    both, first = bool(c.get("bidirectional", False)), bool(c.get("batch_first", False))
    weights = c.values("params")
    per_cell, cells = (4 if biases else 2), layers * (2 if both else 1)
    if len(weights) != per_cell * cells:
        c.fail("proj_size is not supported: export it with program.run_decompositions()")
    hidden = c.get("hx")
    states = c.values("hx") if isinstance(hidden, list) else [c.value("hx")]
    flat = len(c.meta("input").shape) == 2
    x = c.x("input")
    if flat:
        x = sym.expand_dims(x, axis=1)
    elif first:
        x = sym.SwapAxis(x, dim1=0, dim2=1)
    given = [] if all(map(_is_zero, states)) else [c.symbol(state) for state in states]
    if flat:
        given = [sym.expand_dims(state, axis=1) for state in given]
    network = sym._recurrent(
        x,
        *(c.symbol(w) for at in range(cells) for w in _of_cell(weights, at, per_cell)),
        *given,
        mode=mode,
        state_size=weights[1].meta.shape[1],
        num_layers=layers,
        direction="bidirectional" if both else "forward",
        p=c.number("dropout", 0) if c.get("train", False) else 0,
        no_bias=not biases,
        use_state=bool(given),
        state_outputs=True,
        name=c.node.name,
    )
    output, *ends = network
    if flat:
        return [c.reshape(v, m.shape) for v, m in zip((output, *ends), c.metas, strict=True) if m]
    return [sym.SwapAxis(output, dim1=0, dim2=1) if first else output, *ends]


def _of_cell(weights: list[Value], at: int, count: int) -> list[Value]:
    """Return a cell's parameters: both weights, then both biases."""
    return weights[at * count : (at + 1) * count]


def _is_zero(state: Value) -> bool:
    if state.array is not None:
        return not state.array.any()
    return state.zero


@converts("lstm.data gru.data rnn_tanh.data rnn_relu.data")
def packed(c: Call) -> Any:
    c.fail("a packed sequence is not supported: give the padded sequences")


@converts("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell")
def cell(c: Call) -> Any:
    """One step is a network of one step."""
    mode = c.node.target.split(".")[1].removesuffix("_cell")
    hidden = c.get("hx")
    states = c.values("hx") if isinstance(hidden, list) else [c.value("hx")]
    names = [n for n in ("w_ih", "w_hh", "b_ih", "b_hh") if c.has(n)]
    made = sym._recurrent(
        sym.expand_dims(c.x("input"), axis=0),
        *(c.x(name) for name in names),
        *(sym.expand_dims(c.symbol(state), axis=0) for state in states),
        mode=mode,
        state_size=c.meta("w_hh").shape[1],
        no_bias=len(names) == 2,
        use_state=True,
        state_outputs=True,
    )
    outputs = [c.reshape(state, c.out.shape) for state in list(made)[1:]]
    return outputs if mode == "lstm" else outputs[0]
