"""Kernels that read labels: heads' gradients, cross entropy and picks of probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from runtime.backends.cuda.base import (
    PACK,
    WIDE,
    Shape,
    by_id,
    each,
    each_of_rows,
    function,
    in_turn,
    kernel,
    launch,
    module,
    packed_rows,
)
from runtime.backends.cuda.rank_memory import error_place, scratch
from runtime.backends.cuda.softmax import figures_of
from runtime.backends.device.operands import ignored_label
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Array, TensorType, wide
from symgraph.ops.loss import head_divisor

ONE_BLOCK: Shape = ((1,), (WIDE,))


def run(name: str, values: Array, label: Array) -> Any:
    return function("labels", name, real=values.dtype.name, number=label.dtype.name)


def checked(
    call: KernelCall, name: str, shape: Shape, inputs: tuple[Array, ...], out: Array
) -> BoundCall:
    """Bind a kernel on `inputs`: values (..., columns), their labels and maybe figures."""
    values, label, a = inputs[0], inputs[1], call.attrs
    columns = values.shape[-1]
    classes = a.get("classes") or columns
    wrong = error_place(call.context, "label", classes)
    sizes = label.size, columns, a.get("begin", 0), classes
    compiled = run(name, values, label)
    return launch(compiled, *shape, *inputs, out, wrong, *sizes, ignored_label(call.attrs, label))


# -- heads -------------------------------------------------------------------------------------


@kernel("_softmax_output_grad")
def softmax_output_grad(call: KernelCall) -> BoundCall | None:
    (prob, label, *valid), (out,), a = call.ins, call.outs, call.attrs
    if a["multi_output"] or a["smooth_alpha"] or not by_id(label, prob, out):
        return None
    divisor = valid[0] if valid else module().full(1, head_divisor(a, label), "float64")
    shape = each_of_rows(label.size, -(-prob.shape[-1] // PACK))
    bound = checked(call, "head_grad", shape, (prob, label, divisor), out)
    (grid, block, args), aligned = bound.args, packed_rows(prob, out)
    return launch(bound.function, grid, block, *args, float(a["grad_scale"]), aligned)


@kernel("_shard_residual")
def residual(call: KernelCall) -> BoundCall | None:
    (x, label, figures), (out,) = call.ins, call.outs
    if not by_id(label, x, out, calc=[figures]):
        return None
    return checked(call, "residual", each_of_rows(label.size, x.shape[-1]), call.ins, out)


# -- cross entropy -----------------------------------------------------------------------------


@kernel("softmax_cross_entropy")
def softmax_cross_entropy(call: KernelCall) -> BoundCall | None:
    (x, label), (out,) = call.ins, call.outs
    if not by_id(label, x, out):
        return None
    (figures,) = scratch(call.context, [TensorType((2, label.size), wide(x.dtype.name))])
    losses = checked(call, "sum_losses", ONE_BLOCK, (x, label, figures), out)
    return in_turn(figures_of(x, figures), losses)


@kernel("_shard_cross_entropy")
def shard_cross_entropy(call: KernelCall) -> BoundCall | None:
    (x, label, figures), (out,) = call.ins, call.outs
    if not by_id(label, x, out, calc=[figures]):
        return None
    return checked(call, "sum_losses", ONE_BLOCK, call.ins, out)


# -- picks -------------------------------------------------------------------------------------


@kernel("_shard_pick")
def pick(call: KernelCall) -> BoundCall | None:
    (prob, label), (out,) = call.ins, call.outs
    if not by_id(label, prob, out):
        return None
    return checked(call, "pick_rows", each(label.size), call.ins, out)


@kernel("_picked_nll")
def picked_nll(call: KernelCall) -> BoundCall | None:
    picked, label = call.ins
    return sum_picked(call, picked) if by_id(label, picked) else None


@kernel("_nll")
def nll(call: KernelCall) -> BoundCall | None:
    prob, label = call.ins
    if not by_id(label, prob):
        return None
    (picked,) = scratch(call.context, [TensorType((label.size,), prob.dtype.name)])
    picks = checked(call, "pick_rows", each(label.size), (prob, label), picked)
    return in_turn(picks, sum_picked(call, picked))


def sum_picked(call: KernelCall, picked: Array) -> BoundCall:
    label = call.ins[1]
    tiny = float(np.finfo(wide(picked.dtype)).tiny)
    compiled = run("sum_picked", picked, label)
    return launch(
        compiled,
        *ONE_BLOCK,
        picked,
        label,
        *call.outs,
        label.size,
        ignored_label(call.attrs, label),
        tiny,
    )
