"""Flat kernels: what unrolled networks in mixed precision hold most of, an element a thread.

Casts to and from 16 bits, sums of gradients, masks and loss scales; the rest of arithmetic runs by
the operators' own computation, which for 16 bits is several calls and arrays in between.
"""

from __future__ import annotations

from runtime.cuda.base import each, floating, function, kernel, launch
from runtime.native.base import Bound, Task
from symgraph.types import HALVES


@kernel("Cast")
def cast(task: Task) -> Bound | None:
    (x,), (out,) = task.ins, task.outs
    kinds = {x.dtype.name, out.dtype.name}
    if "float32" not in kinds or not kinds.intersection(HALVES):
        return None
    run = function("cast", "cast", real=out.dtype.name, given=x.dtype.name)
    return launch(run, *each(x.size), x, out, x.size)


def by_element(name: str, task: Task) -> Bound | None:
    if not floating(*task.ins, *task.outs):
        return None
    (out,) = task.outs
    run = function("flat", name, real=out.dtype.name)
    return launch(run, *each(out.size), *task.ins, out, out.size)


@kernel("elemwise_add")
def add(task: Task) -> Bound | None:
    return by_element("add", task)


@kernel("elemwise_mul")
def multiply(task: Task) -> Bound | None:
    return by_element("multiply", task)


@kernel("broadcast_mul")
def scale(task: Task) -> Bound | None:
    """By one number, as a loss scale is."""
    x, y = task.ins
    fits = y.size == 1 and x.shape == task.outs[0].shape
    return by_element("scale", task) if fits else None
