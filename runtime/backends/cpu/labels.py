"""Kernels that read labels: heads' gradients, cross entropy, picked probabilities; of shards, too.

The figures of a row are its maximum and the sum of exp(x - maximum).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from runtime.backends.cpu.flat import floating
from runtime.backends.cpu.rounding import as_words, narrow
from runtime.backends.cpu.rows import by_row, spare_ids, whole_numbers
from runtime.backends.cpu.softmax import exp_sum, greater, greatest, scaled, scaled_exp
from runtime.backends.cpu.table import CASTING, kernel
from runtime.backends.cpu.vector import exp
from runtime.backends.device.compile import jit
from runtime.backends.device.operands import ignored_label, is_id_array, lowest
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.params import Attrs
from symgraph.core.types import BFLOAT16, Array
from symgraph.ops.loss import head_divisor, targets

BLOCK = 2048  # numbers that are rounded together


class Labels:
    """Labels, read as class numbers into `ids`; those to ignore are -1."""

    def __init__(self, attrs: Attrs, label: Array, classes: int) -> None:
        self.ids = spare_ids(label)
        self.raw, self.classes = label.reshape(-1), classes
        self.ignore = ignored_label(attrs, label)
        self._attrs = {"use_ignore": False, **attrs}

    def read(self) -> None:
        """Read the labels; raise IndexError for one that is neither a class nor ignored."""
        if not whole_numbers(self.raw, self.ignore, self.classes, self.ids):
            targets(np, self._attrs, self.raw, self.classes)


def has_labels(label: Array, *values: Array) -> bool:
    return is_id_array(label) and floating(*values)


# -- the head's gradient -----------------------------------------------------------------------


@jit
def head_grad_rows(
    prob: Array, ids: Array, begin: int, grad_scale: float, divisor: Array, out: Array
) -> None:
    scale = out.dtype.type(grad_scale / divisor[0])
    for i in range(len(prob)):
        row, at = out[i], ids[i] - begin
        if ids[i] < 0:
            row[:] = 0
            continue
        inside = 0 <= at < len(row)
        chosen = prob[i, at if inside else 0]
        scaled(prob[i], row, scale)
        if inside:
            row[at] = (chosen - 1) * scale


def head_grad(
    labels: Labels, prob: Array, begin: int, grad_scale: float, divisor: Array, out: Array
) -> None:
    labels.read()
    head_grad_rows(prob, labels.ids, begin, grad_scale, divisor, out)


@jit
def head_grad_low_rows(
    prob: Array, ids: Array, begin: int, grad_scale: float, divisor: Array, room: Array, out: Array
) -> None:
    scale = prob.dtype.type(grad_scale / divisor[0])
    for i in range(len(prob)):
        at = ids[i] - begin
        for start in range(0, prob.shape[1], room.size):
            row = prob[i, start : start + room.size]
            part = room[: row.size]
            scaled(row, part, scale)
            if ids[i] >= 0 and 0 <= at - start < row.size:
                part[at - start] = (row[at - start] - 1) * scale
            if ids[i] < 0:
                part[:] = 0
            narrow(part.view(np.uint32), out[i, start : start + row.size])


def head_grad_low(
    labels: Labels,
    prob: Array,
    begin: int,
    grad_scale: float,
    divisor: Array,
    room: Array,
    out: Array,
) -> None:
    """Compute the gradient rounded to bfloat16, a part of a row at a time."""
    labels.read()
    head_grad_low_rows(prob, labels.ids, begin, grad_scale, divisor, room, out)


CASTING.add("_softmax_output_grad")


@kernel("_softmax_output_grad")
def softmax_output_grad(call: KernelCall) -> BoundCall | None:
    (prob, label, *valid), (out,), a = call.ins, call.outs, call.attrs
    if a["multi_output"] or a["smooth_alpha"] or not has_labels(label, prob):
        return None
    low = (prob.dtype.name, out.dtype.name) == ("float32", BFLOAT16)
    if out.dtype != prob.dtype and not low:
        return None
    labels = Labels(a, label, a["classes"] or prob.shape[-1])
    divisor = valid[0] if valid else np.array([head_divisor(a, label)], "float64")
    rows = by_row(prob, label.size), by_row(out, label.size)
    numbers = labels, rows[0], a["begin"], a["grad_scale"], divisor
    if low:
        room = np.empty(BLOCK, prob.dtype)
        return BoundCall(head_grad_low, (*numbers, room, as_words(rows[1])))
    return BoundCall(head_grad, (*numbers, rows[1]))


# -- cross entropy -----------------------------------------------------------------------------


@jit
def figures_of_rows(x: Array, least: Any, out: Array) -> None:
    for i in range(len(x)):
        top = greater(greatest(x[i]), least)  # finite also for a row of -inf
        out[0, i], out[1, i] = top, exp_sum(x[i], top)


@jit
def sum_losses(x: Array, ids: Array, figures: Array, begin: int, out: Array) -> None:
    """Sum -log of the probabilities of the labels that are classes of the shard."""
    loss = 0.0
    for i in range(len(x)):
        at = max(ids[i], 0) - begin
        if 0 <= at < x.shape[1]:
            loss += math.log(figures[1, i]) - (x[i, at] - figures[0, i])
    out[0] = loss


def cross_entropy(labels: Labels, x: Array, least: Any, figures: Array, out: Array) -> None:
    labels.read()
    figures_of_rows(x, least, figures)
    sum_losses(x, labels.ids, figures, 0, out)


@kernel("softmax_cross_entropy")
def softmax_cross_entropy(call: KernelCall) -> BoundCall | None:
    (x, label), (out,) = call.ins, call.outs
    if not has_labels(label, x):
        return None
    labels, figures = Labels(call.attrs, label, x.shape[-1]), np.empty((2, len(x)), x.dtype)
    return BoundCall(cross_entropy, (labels, x, lowest(x), figures, out))


@jit
def pick_rows(prob: Array, ids: Array, begin: int, out: Array) -> None:
    """Pick each row's number at its id, the first if ignored; 0 for a class of another shard."""
    for i in range(len(prob)):
        at = max(ids[i], 0) - begin
        out[i] = prob[i, at] if 0 <= at < prob.shape[1] else 0


@jit
def sum_picked(
    picked: Array, raw: Array, ignore: float, tiny: float, nll: Array, count: Array
) -> None:
    """Sum -log(picked) over the labels that are not ignored, and count these labels."""
    total, counted = 0.0, 0
    for i in range(len(picked)):
        if raw[i] != ignore:
            chosen = np.float64(picked[i])
            total -= math.log(tiny if chosen < tiny else chosen)
            counted += 1
    nll[0], count[0] = total, counted


def pick(labels: Labels, prob: Array, begin: int, out: Array) -> None:
    labels.read()
    pick_rows(prob, labels.ids, begin, out)


def pick_and_sum(
    labels: Labels, prob: Array, picked: Array, tiny: float, nll: Array, count: Array
) -> None:
    pick(labels, prob, 0, picked)
    sum_picked(picked, labels.raw, labels.ignore, tiny, nll, count)


@kernel("_nll")
def nll(call: KernelCall) -> BoundCall | None:
    prob, label = call.ins
    if not has_labels(label, prob):
        return None
    labels, picked = Labels(call.attrs, label, prob.shape[-1]), np.empty(label.size, prob.dtype)
    tiny = float(np.finfo(prob.dtype).tiny)
    return BoundCall(pick_and_sum, (labels, by_row(prob, label.size), picked, tiny, *call.outs))


@kernel("_picked_nll")
def picked_nll(call: KernelCall) -> BoundCall | None:
    picked, label = call.ins
    if not has_labels(label, picked):
        return None
    labels, tiny = Labels(call.attrs, label, 0), float(np.finfo(picked.dtype).tiny)
    return BoundCall(sum_picked, (picked.reshape(-1), labels.raw, labels.ignore, tiny, *call.outs))


@kernel("_shard_pick")
def shard_pick(call: KernelCall) -> BoundCall | None:
    (prob, label), (out,), a = call.ins, call.outs, call.attrs
    if not has_labels(label, prob):
        return None
    rows = by_row(prob, label.size)
    return BoundCall(pick, (Labels(a, label, a["classes"]), rows, a["begin"], out.reshape(-1)))


# -- shards of rows ----------------------------------------------------------------------------


@kernel("_shard_row_figures")
def row_figures(call: KernelCall) -> BoundCall | None:
    (x,), (out,) = call.ins, call.outs
    if not floating(x, out):
        return None
    return BoundCall(figures_of_rows, (x.reshape(-1, x.shape[-1]), lowest(x), by_row(out, 2)))


@jit
def join_two(one: Array, other: Array, out: Array) -> None:
    for i in range(one.shape[1]):
        top = greater(one[0, i], other[0, i])
        of_one = one[1, i] * exp(one[0, i] - top)
        total = of_one + other[1, i] * exp(other[0, i] - top)
        out[0, i], out[1, i] = top, total


@kernel("_shard_join_figures")
def join_figures(call: KernelCall) -> BoundCall | None:
    """Bind the join of two shards' figures; those of more shards have no kernel."""
    if len(call.ins) != 2 or not floating(*call.ins):
        return None
    return BoundCall(join_two, tuple(by_row(x, 2) for x in (*call.ins, *call.outs)))


@jit
def probability_rows(x: Array, figures: Array, y: Array) -> None:
    for i in range(len(x)):
        scaled_exp(x[i], y[i], figures[0, i], y.dtype.type(1 / figures[1, i]))


@jit
def less_one(ids: Array, begin: int, y: Array) -> None:
    for i in range(len(y)):
        at = max(ids[i], 0) - begin
        if 0 <= at < y.shape[1]:
            y[i, at] -= 1


def residual(labels: Labels, x: Array, figures: Array, begin: int, out: Array) -> None:
    labels.read()
    probability_rows(x, figures, out)
    less_one(labels.ids, begin, out)


def shard_cross_entropy(labels: Labels, x: Array, figures: Array, begin: int, out: Array) -> None:
    labels.read()
    sum_losses(x, labels.ids, figures, begin, out)


@kernel("_shard_softmax_output")
def shard_softmax_output(call: KernelCall) -> BoundCall | None:
    (x, label, figures, *_), (out,) = call.ins, call.outs
    if not floating(x, figures):
        return None
    rows = by_row(x, label.size), by_row(figures, 2), by_row(out, label.size)
    return BoundCall(probability_rows, rows)


@kernel("_shard_residual")
def shard_residual(call: KernelCall) -> BoundCall | None:
    return with_figures(residual, call, by_row(call.outs[0], call.ins[1].size))


@kernel("_shard_cross_entropy")
def shard_softmax_cross_entropy(call: KernelCall) -> BoundCall | None:
    return with_figures(shard_cross_entropy, call, call.outs[0])


def with_figures(function: Any, call: KernelCall, out: Array) -> BoundCall | None:
    (x, label, figures), a = call.ins, call.attrs
    if not has_labels(label, x, figures):
        return None
    labels = Labels(a, label, a["classes"])
    return BoundCall(function, (labels, by_row(x, label.size), by_row(figures, 2), a["begin"], out))
