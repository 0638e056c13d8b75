"""Flat kernels: element by element, one or a pack a thread, by the formulas of formulas.py.

A call is one pass over its arrays, however many functions it takes; what broadcasts is not copied
first. For 16 bits all of a formula is computed in float and rounded once.
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
from runtime.backends.cuda.formulas import BY_PACKS, FORMULAS, LIMIT, MOST, added, kernels
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.shapes import reduced_shape
from symgraph.core.types import HALVES, Array, Shape
from symgraph.ops.formulas import FORMULAS as OPERATORS
from symgraph.ops.formulas import Formula
from symgraph.ops.leaky_relu import channels

WRITTEN["flat"] = "".join(kernels())
AXES = 4  # of arrays that broadcast, where neighbours that do so alike are one
ROWS = 1 << 31  # a kernel counts them in 32 bits, for the sake of its divisions


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
    found = merged(out.shape, [x.shape for x in ins])
    if found is None or math.prod(found[0][:-1]) > ROWS:
        return None
    (*above, columns), steps = found
    run, rows = function("flat", f"spread_{name}", real=out.dtype.name), math.prod(above)
    return launch(
        run, *each_of_rows(rows, columns), *ins, out, rows, columns, *above[1:], *chain(*steps)
    )


def merged(shape: Shape, ins: Sequence[Shape]) -> tuple[list[int], list[list[int]]] | None:
    """The axes of an output, and for each input its steps along them: 0 where it is repeated.

    Neighbours along which the same inputs are repeated are one axis; None: there are too many.
    """
    padded = [(1,) * (len(shape) - len(x)) + x for x in ins]
    lengths: list[int] = []
    kept: list[tuple[bool, ...]] = []  # by axis: the inputs that go along it
    for length, *own in zip(shape, *padded, strict=True):
        going = tuple([n == length for n in own])
        if length == 1:
            continue
        if kept and kept[-1] == going:
            lengths[-1] *= length
        else:
            lengths.append(length)
            kept.append(going)
    missing = AXES - len(lengths)
    if missing < 0:
        return None
    lengths, kept = [1] * missing + lengths, [(False,) * len(ins)] * missing + kept
    return lengths, [steps_of(lengths, [going[i] for going in kept]) for i in range(len(ins))]


def steps_of(lengths: Sequence[int], kept: Sequence[bool]) -> list[int]:
    steps, step = [], 1
    for length, goes in zip(reversed(lengths), reversed(kept), strict=True):
        steps.append(step if goes else 0)
        step *= length if goes else 1
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
    if condition.dtype != x.dtype:
        return choose(condition, x, y, call.outs[0])
    rows = condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim))
    return by_element("where", [rows, x, y], call.outs[0])


def choose(condition: Array, x: Array, y: Array, out: Array) -> BoundCall | None:
    """`where` by a condition of another dtype, of all elements or of rows."""
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
    """More terms than usual have a source for their number, which is compiled when it is met."""
    terms, (out,) = len(call.ins), call.outs
    if terms <= MOST:
        name = {1: "copy", 2: "add"}.get(terms, f"add_{terms}")
        return by_element(name, call.ins, out)
    if terms > LIMIT or not floating(*call.ins, out):
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
