"""Flat kernels: element by element, by formulas.py; a thread computes one element or a pack.

A call is one pass over its arrays, however many functions the formula calls; inputs that broadcast
are not copied first. 16-bit values are computed in float, and the result is rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from runtime.backends.cuda.base import (
    PACK,
    WRITTEN,
    by_id,
    each,
    each_of_rows,
    floating,
    function,
    kernel,
    launch,
    module,
    packed,
)
from runtime.backends.cuda.formulas import (
    BY_PACKS,
    COMPILED_TERMS,
    FORMULAS,
    MAX_TERMS,
    added,
    kernels,
)
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.shapes import reduced_shape
from symgraph.core.types import HALVES, Array, Shape
from symgraph.ops.formulas import FORMULAS as OPERATORS
from symgraph.ops.formulas import Formula
from symgraph.ops.leaky_relu import channels

WRITTEN["flat"] = "".join(kernels())
MAX_AXES = 4  # of arrays that broadcast; neighbours that broadcast alike count as one axis
MAX_ROWS = 1 << 31  # kernels count rows in 32 bits, since divisions of 64 bits are slow


@kernel("Cast")
def cast(call: KernelCall) -> BoundCall:
    (x,), (out,) = call.ins, call.outs
    kinds = {x.dtype.name, out.dtype.name}
    if "float32" not in kinds or not kinds.intersection(HALVES):
        return BoundCall(module().copyto, (out, x, "unsafe"))
    name, count = ("cast_packs", x.size // PACK) if packed(x, out) else ("cast", x.size)
    run = function("cast", name, real=out.dtype.name, given=x.dtype.name)
    return launch(run, *each(count), x, out, count)


# -- launches ----------------------------------------------------------------------------------


def by_element(name: str, ins: Sequence[Array], out: Array, *numbers: float) -> BoundCall | None:
    """Launch the formula `name` on arrays that broadcast to the output, with its numbers."""
    if not floating(*ins, out):
        return None
    if all(x.shape == out.shape for x in ins):
        by_packs = name in BY_PACKS and packed(*ins, out)
        kind, count = ("packs", out.size // PACK) if by_packs else ("flat", out.size)
        run = function("flat", f"{kind}_{name}", real=out.dtype.name)
        return launch(run, *each(count), *ins, out, count, *map(float, numbers))
    merged = merge_axes(out.shape, [x.shape for x in ins])
    if merged is None or math.prod(merged[0][:-1]) > MAX_ROWS:
        return None
    (*above, columns), steps = merged
    run, rows = function("flat", f"spread_{name}", real=out.dtype.name), math.prod(above)
    return launch(
        run, *each_of_rows(rows, columns), *ins, out, rows, columns, *above[1:], *chain(*steps)
    )


def merge_axes(shape: Shape, ins: Sequence[Shape]) -> tuple[list[int], list[list[int]]] | None:
    """Merge neighbouring axes of an output along which the same inputs are repeated.

    Returns:
        The lengths of MAX_AXES axes, and for each input its steps along them, 0 where it is
        repeated; None if more axes are left.
    """
    padded = [(1,) * (len(shape) - len(x)) + x for x in ins]
    lengths: list[int] = []
    moves: list[tuple[bool, ...]] = []  # by axis: whether each input moves along it
    for length, *sizes in zip(shape, *padded, strict=True):
        if length == 1:
            continue
        moving = tuple([size == length for size in sizes])
        if moves and moves[-1] == moving:
            lengths[-1] *= length
        else:
            lengths.append(length)
            moves.append(moving)
    missing = MAX_AXES - len(lengths)
    if missing < 0:
        return None
    lengths, moves = [1] * missing + lengths, [(False,) * len(ins)] * missing + moves
    return lengths, [_steps(lengths, [moving[i] for moving in moves]) for i in range(len(ins))]


def _steps(lengths: Sequence[int], moves: Sequence[bool]) -> list[int]:
    steps, step = [], 1
    for length, moving in zip(reversed(lengths), reversed(moves), strict=True):
        steps.append(step if moving else 0)
        step *= length if moving else 1
    return steps[::-1]


# -- operators ---------------------------------------------------------------------------------

REPEATS = ("broadcast_to", "broadcast_axis", "broadcast_like", "_broadcast_rows")


def register(op: str, formula: Formula) -> None:
    @kernel(op)
    def on_arrays(call: KernelCall) -> BoundCall | None:
        numbers = formula.values(call.attrs)
        if op == "_power_scalar" and numbers == [2]:
            return by_element("square", call.ins, call.outs[0])
        return by_element(formula.name, call.ins, call.outs[0], *numbers)


for op, formula in OPERATORS.items():
    register(op, formula)


@kernel("Activation")
def activation(call: KernelCall) -> BoundCall | None:
    return by_element(call.attrs["act_type"], call.ins, call.outs[0])


@kernel("LeakyReLU")
def leaky_relu(call: KernelCall) -> BoundCall | None:
    (x, *gamma), a = call.ins, call.attrs
    slopes = [g.reshape(channels(g.shape, x.ndim)) for g in gamma]
    numbers = FORMULAS[a["act_type"]].values(a)
    return by_element(a["act_type"], [x, *slopes], call.outs[0], *numbers)


@kernel("LogisticRegressionOutput")
def logistic(call: KernelCall) -> BoundCall | None:
    return by_element("sigmoid", call.ins[:1], call.outs[0])


@kernel("where")
def where(call: KernelCall) -> BoundCall | None:
    condition, x, y = call.ins
    if condition.dtype != x.dtype and condition.size > 1:
        return choose(condition, x, y, call.outs[0])
    rows = condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim))
    return by_element("where", [rows, x, y], call.outs[0])


def choose(condition: Array, x: Array, y: Array, out: Array) -> BoundCall | None:
    """Launch `where` with a condition of another dtype, for each element or for each row."""
    if not by_id(condition, x, y, out):
        return None
    kinds = {"real": out.dtype.name, "number": condition.dtype.name}
    if condition.shape == out.shape:
        run = function("choose", "choose", **kinds)
        return launch(run, *each(out.size), condition, x, y, out, out.size)
    run, sizes = function("choose", "choose_rows", **kinds), (len(out), out.size // len(out))
    return launch(run, *each_of_rows(*sizes), condition, x, y, out, *sizes)


@kernel("add_n")
def add_n(call: KernelCall) -> BoundCall | None:
    """Launch a sum; for more than COMPILED_TERMS terms a kernel is compiled at the first use."""
    terms, (out,) = len(call.ins), call.outs
    if terms <= COMPILED_TERMS:
        name = {1: "copy", 2: "add"}.get(terms, f"add_{terms}")
        return by_element(name, call.ins, out)
    if terms > MAX_TERMS or not floating(*call.ins, out):
        return None
    source = f"add_{terms}"
    WRITTEN.setdefault(source, added(terms))
    run = function(source, f"flat_{source}", real=out.dtype.name)
    return launch(run, *each(out.size), *call.ins, out, out.size)


@kernel(*REPEATS)
def repeat(call: KernelCall) -> BoundCall | None:
    return by_element("copy", call.ins[:1], call.outs[0])


@kernel("_broadcast_axes")
def repeat_reduced(call: KernelCall) -> BoundCall | None:
    a = call.attrs
    small = call.ins[0].reshape(reduced_shape(a["shape"], a["axes"], True))
    return by_element("copy", [small], call.outs[0])


@kernel("_zeros", "zeros_like")
def zeros(call: KernelCall) -> BoundCall | None:
    return by_element("full", [], call.outs[0], 0.0)


@kernel("_ones", "ones_like")
def ones(call: KernelCall) -> BoundCall | None:
    return by_element("full", [], call.outs[0], 1.0)


@kernel("_full")
def full(call: KernelCall) -> BoundCall | None:
    return by_element("full", [], call.outs[0], call.attrs["value"])
