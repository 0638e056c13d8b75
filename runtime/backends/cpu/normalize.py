"""Normalisation by channels (BatchNorm) or rows (LayerNorm), and sums of channels.

Passes over a row find it in cache. Each contiguous row, or some rows together, are summed in the
data's dtype; these sums are added up in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partitioner.base.compiled import overwrite
from runtime.backends.cpu.flat import floating
from runtime.backends.cpu.rounding import as_stored, number_of, stored_in
from runtime.backends.cpu.rows import by_row
from runtime.backends.cpu.table import TAKES_LOW, kernel
from runtime.backends.device.compile import jit, jit_inner, jit_inner_reassoc
from runtime.backends.device.operands import by_channel
from runtime.backends.device.table import BoundCall, CallContext, KernelCall
from symgraph.core.types import BFLOAT16, Array, Shape, TensorType
from symgraph.ops.reduce import axes_in

MIN_RUN = 4  # contiguous elements of a channel; with fewer numpy is faster
TOGETHER = 64  # rows whose gradients of gamma and beta are summed in the data's dtype


@jit_inner_reassoc
def run_sum(row: Array) -> float:
    total = number_of(row.dtype.type(0))
    for j in range(len(row)):
        total += number_of(row[j])
    return float(total)


@jit_inner_reassoc
def run_squares(row: Array, mean: Any) -> float:
    """Sum (row - mean) ** 2."""
    total = number_of(row.dtype.type(0))
    for j in range(len(row)):
        distance = number_of(row[j]) - mean
        total += distance * distance
    return float(total)


@jit_inner_reassoc
def run_products(g: Array, row: Array, mean: Any) -> float:
    """Sum g * (row - mean)."""
    total = number_of(row.dtype.type(0))
    for j in range(len(row)):
        total += number_of(g[j]) * (number_of(row[j]) - mean)
    return float(total)


# -- channels ----------------------------------------------------------------------------------


@jit_inner
def moments(x: Array, c: int, mean: Array, var: Array) -> None:
    """Compute mean and variance of channel c of x (samples, channels, rest)."""
    count = x.shape[0] * x.shape[2]
    total = 0.0
    for n in range(x.shape[0]):
        total += run_sum(x[n, c])
    mean[c] = total / count
    total = 0.0
    for n in range(x.shape[0]):
        total += run_squares(x[n, c], mean[c])
    var[c] = total / count


@jit
def normalize(
    x: Array,
    gamma: Array,
    beta: Array,
    eps: float,
    fixed: bool,
    of_batch: bool,
    y: Array,
    mean: Array,
    var: Array,
) -> None:
    """Normalise x by `mean` and `var`, which are first computed from x if `of_batch`."""
    for c in range(x.shape[1]):
        if of_batch:
            moments(x, c, mean, var)
        scale = 1 / math.sqrt(var[c] + eps)
        factor = mean.dtype.type(scale if fixed else scale * gamma[c])
        center, shift = mean[c], beta[c]
        for n in range(x.shape[0]):
            row, to = x[n, c], y[n, c]
            for j in range(len(to)):
                to[j] = stored_in(to, (number_of(row[j]) - center) * factor + shift)


@jit
def gradients(
    x: Array,
    gamma: Array,
    mean: Array,
    var: Array,
    g: Array,
    eps: float,
    fixed: bool,
    of_batch: bool,
    of_x: Array,
    of_gamma: Array,
    of_beta: Array,
) -> None:
    """Compute the gradients; `of_batch`: mean and var depend on x."""
    count = x.shape[0] * x.shape[2]
    for c in range(x.shape[1]):
        rstd = 1 / math.sqrt(var[c] + eps)
        total = along = 0.0
        for n in range(x.shape[0]):
            total += run_sum(g[n, c])
            along += run_products(g[n, c], x[n, c], mean[c])
        of_beta[c], of_gamma[c] = total, 0 if fixed else along * rstd
        scale = rstd if fixed else rstd * gamma[c]
        factor, center = mean.dtype.type(scale), mean[c]
        shift = slope = mean.dtype.type(0)
        if of_batch:
            shift = mean.dtype.type(total / count)
            slope = mean.dtype.type(along * rstd * rstd / count)
        for n in range(x.shape[0]):
            row, grad, to = x[n, c], g[n, c], of_x[n, c]
            for j in range(len(to)):
                distance = number_of(row[j]) - center
                to[j] = stored_in(to, (number_of(grad[j]) - shift - distance * slope) * factor)


class States(NamedTuple):
    """The moving averages of a call."""

    old: tuple[Array, ...]  # mean and variance before the call
    after: tuple[Array, ...]  # mean and variance after it
    keep: float  # the momentum


def normalize_by_phase(
    context: CallContext,
    frozen: bool,
    inputs: tuple[Any, ...],
    states: States,
    outs: tuple[Array, ...],
) -> None:
    """Normalise by the batch's statistics in training, else by the moving averages.

    Args:
        context: Tells whether the call belongs to training.
        frozen: Whether to use the moving averages in training, too.
        inputs: Data, gamma, beta, eps and whether gamma is fixed.
        states: The moving averages.
        outs: Output, mean and variance.
    """
    of_batch, (y, *statistics) = context.env.train and not frozen, outs
    if not of_batch:
        for to, moving in zip(statistics, states.old, strict=True):
            to[...] = moving
    normalize(*inputs, of_batch, y, *statistics)
    keep = states.keep if of_batch else 1.0
    for to, moving, batch in zip(states.after, states.old, statistics, strict=True):
        to[...] = keep * moving + (1 - keep) * batch


def fits(vector: Array, *images: Array) -> bool:
    """Tell whether there are loops for these dtypes: of images beside vectors of channels."""
    low = {x.dtype.name for x in images} == {BFLOAT16} and vector.dtype == np.float32
    return low or floating(vector, *images)


def takes_low_images(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> bool:
    """Tell whether the kernels below take these arrays, whose data is of bfloat16."""
    data = types[0]
    rest = math.prod(data.shape[attrs["axis"] % len(data.shape) + 1 :])
    images = {t.dtype for t in types if t.shape == data.shape}
    return images == {BFLOAT16} and rest >= MIN_RUN


TAKES_LOW |= dict.fromkeys(("BatchNorm", "_batch_norm_grad"), takes_low_images)


@kernel("BatchNorm")
def batch_norm(call: KernelCall) -> BoundCall | None:
    (x, gamma, beta, *old), (y, mean, var, *after), a = call.ins, call.outs, call.attrs
    data, out = (as_stored(by_channel(v, a["axis"])) for v in (x, y))
    if not fits(gamma, x, y) or data.shape[2] < MIN_RUN:
        return None
    inputs = data, gamma, beta, a["eps"], a["fix_gamma"]
    states, outs = States(tuple(old), tuple(after), a["momentum"]), (out, mean, var)
    return BoundCall(
        normalize_by_phase, (call.context, a["use_global_stats"], inputs, states, outs)
    )


def gradients_by_phase(context: CallContext, frozen: bool, args: tuple[Any, ...]) -> None:
    *inputs, of_x, of_gamma, of_beta = args
    gradients(*inputs, context.env.train and not frozen, of_x, of_gamma, of_beta)


@kernel("_batch_norm_grad")
def batch_norm_grad(call: KernelCall) -> BoundCall | None:
    (x, gamma, mean, var, g), (of_x, of_gamma, of_beta), a = call.ins, call.outs, call.attrs
    data, grad, out = (as_stored(by_channel(v, a["axis"])) for v in (x, g, of_x))
    if not fits(gamma, x, g, of_x) or data.shape[2] < MIN_RUN:
        return None
    args = data, gamma, mean, var, grad, a["eps"], a["fix_gamma"], out, of_gamma, of_beta
    return BoundCall(gradients_by_phase, (call.context, a["use_global_stats"], args))


@jit
def sum_channels(x: Array, out: Array) -> None:
    """Sum x (samples, channels, rest) to out (channels,)."""
    for c in range(x.shape[1]):
        total = 0.0
        for n in range(x.shape[0]):
            total += run_sum(x[n, c])
        out[c] = stored_in(out, total)


def channels(attrs: Mapping[str, Any], shape: Shape) -> Shape | None:
    """Reshape data that is summed to (samples, channels, rest); None if it cannot be done."""
    axes = axes_in(attrs, len(shape))
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    if not kept or kept[-1] - kept[0] >= len(kept) or not math.prod(shape):
        return None
    rest = math.prod(shape[kept[-1] + 1 :])
    middle = math.prod(shape[kept[0] : kept[-1] + 1])
    return (math.prod(shape[: kept[0]]), middle, rest) if rest >= MIN_RUN else None


def sums_low(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> bool:
    """Tell whether the kernel below takes these arrays, all of bfloat16."""
    return {t.dtype for t in types} == {BFLOAT16} and channels(attrs, types[0].shape) is not None


TAKES_LOW["sum"] = sums_low


@kernel("sum")
def sum_around(call: KernelCall) -> BoundCall | None:
    """Bind the sum over all axes but some between the first and the last, as of a bias."""
    (x,), (out,) = call.ins, call.outs
    shape = channels(call.attrs, x.shape)
    low = x.dtype.name == out.dtype.name == BFLOAT16
    if shape is None or not (low or floating(x)):
        return None
    return BoundCall(sum_channels, (as_stored(x).reshape(shape), as_stored(out).reshape(-1)))


# -- rows --------------------------------------------------------------------------------------


@jit
def normalize_rows(
    x: Array, gamma: Array, beta: Array, eps: float, y: Array, mean: Array, std: Array
) -> None:
    for i in range(len(x)):
        row, to, count = x[i], y[i], x.shape[1]
        mean[i] = run_sum(row) / count
        center = mean[i]
        width = math.sqrt(run_squares(row, center) / count + eps)
        std[i] = width
        narrow = to.dtype.type(1 / width)
        for j in range(len(to)):
            to[j] = (row[j] - center) * narrow * gamma[j] + beta[j]


@kernel("LayerNorm")
def layer_norm(call: KernelCall) -> BoundCall | None:
    (x, gamma, beta), (y, mean, std), a = call.ins, call.outs, call.attrs
    if not floating(x) or a["axis"] % x.ndim != x.ndim - 1:
        return None
    rows = mean.size
    inputs = by_row(x, rows), gamma, beta, a["eps"]
    return BoundCall(normalize_rows, (*inputs, by_row(y, rows), mean.reshape(-1), std.reshape(-1)))


@jit_inner_reassoc
def run_slopes(g: Array, gamma: Array, row: Array, mean: Any) -> tuple[float, float]:
    """Sum g * gamma, and g * gamma * (row - mean)."""
    total = along = row.dtype.type(0)
    for j in range(len(row)):
        h = g[j] * gamma[j]
        total += h
        along += h * (row[j] - mean)
    return float(total), float(along)


@jit
def gradients_of_rows(
    x: Array,
    gamma: Array,
    mean: Array,
    std: Array,
    g: Array,
    of_x: Array,
    of_gamma: Array,
    of_beta: Array,
) -> None:
    totals = np.zeros((2, x.shape[1]))
    for first in range(0, len(x), TOGETHER):
        of_gamma[:] = 0
        of_beta[:] = 0
        for i in range(first, min(first + TOGETHER, len(x))):
            row, grad, to, center, count = x[i], g[i], of_x[i], mean[i], x.shape[1]
            total, along = run_slopes(grad, gamma, row, center)
            rstd = 1 / float(std[i])
            narrow, shift = to.dtype.type(rstd), to.dtype.type(total / count)
            slope = to.dtype.type(along * rstd * rstd / count)
            for j in range(len(to)):
                to[j] = (grad[j] * gamma[j] - shift - (row[j] - center) * slope) * narrow
            for j in range(len(of_gamma)):
                of_gamma[j] += grad[j] * ((row[j] - center) * narrow)
            for j in range(len(of_beta)):
                of_beta[j] += grad[j]
        for j in range(len(of_gamma)):
            totals[0, j] += of_gamma[j]
            totals[1, j] += of_beta[j]
    overwrite(of_gamma, totals[0])
    overwrite(of_beta, totals[1])


@kernel("_layer_norm_grad")
def layer_norm_grad(call: KernelCall) -> BoundCall | None:
    (x, gamma, mean, std, g), (of_x, *vectors), a = call.ins, call.outs, call.attrs
    if not floating(x) or a["axis"] % x.ndim != x.ndim - 1:
        return None
    data, grad, out = (by_row(v, mean.size) for v in (x, g, of_x))
    figures = mean.reshape(-1), std.reshape(-1)
    return BoundCall(gradients_of_rows, (data, gamma, *figures, grad, out, *vectors))
