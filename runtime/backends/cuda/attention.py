"""Attention: products by cuBLAS, with kernels for rows of scores in between.

As many matrices are taken together as have room for their scores in a limited scratch: for short
sequences all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from runtime.backends.cuda.base import (
    block_a_row,
    floating,
    function,
    in_turn,
    kernel,
    launch,
    module,
    warp_a_row,
)
from runtime.backends.cuda.blas import times
from runtime.backends.cuda.flat import merge_axes
from runtime.backends.cuda.rank_memory import scratch
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Array, Shape, TensorType, wide
from symgraph.ops.attention import scale_of

SHORT = 1024  # columns of a row that has a warp
LIMIT = 64 << 20  # bytes of scratch, unless one matrix takes more


class Attention(NamedTuple):
    """The matrices of a call, and what its kernels are launched with."""

    query: Array  # (count, rows, d)
    key: Array  # (count, columns, d)
    value: Array  # (count, columns, units)
    mask: Array
    options: tuple[Any, ...]  # rows, columns, causal, scale
    steps: tuple[int, ...]  # of the mask
    rooms: list[Array]  # for matrices of scores and then of weights; the same unless of 16 bits

    def run(self, name: str) -> Any:
        return function("attention", name, real=self.query.dtype.name)

    def parts(self) -> Iterator[tuple[slice, list[Array]]]:
        """Yield the matrices that are computed together, and their rooms."""
        count, together = len(self.query), len(self.rooms[0])
        for start in range(0, count, together):
            stop = min(start + together, count)
            yield slice(start, stop), [room[: stop - start] for room in self.rooms]

    def scores(self, part: slice, out: Array) -> BoundCall:
        return times(self.query[part], self.key[part].swapaxes(1, 2), out)

    def on_rows(self, name: str, part: slice, *given: Any) -> BoundCall:
        """Bind a kernel with a block, or a warp, for each row of some matrices."""
        rows, columns, *_ = self.options
        count = (part.stop - part.start) * rows
        shape = warp_a_row(count) if columns <= SHORT else block_a_row(count, columns)
        more = count, *self.options, part.start, *self.steps
        return launch(self.run(name), *shape, *given, *more)


def by_matrix(array: Array, axes: int) -> Array:
    """View an array with that many axes before those of a matrix as (count, ...)."""
    return array.reshape(-1, *array.shape[axes:])


def prepared(call: KernelCall, given: int, matrices: int) -> Attention | None:
    """Return what the kernels need; None if there are none for this call.

    Args:
        call: The call.
        given: How many inputs come before the queries.
        matrices: How many matrices (rows, columns) are computed at once, of each.
    """
    (q, k, v), masks = call.ins[given : given + 3], call.ins[given + 3 :]
    sums = call.ins[2] if given else call.outs[1]
    values = [a for a in (*call.ins[: given + 3], *call.outs) if a is not sums]
    if not floating(*values, calc=[sums, *masks]) or not min(q.size, k.size, v.size):
        return None
    dtype, axes = q.dtype.name, q.ndim - 2
    mask = masks[0] if masks else module().zeros((1,) * q.ndim, wide(dtype))
    steps = steps_of(mask.shape, q.shape[:-2])
    if steps is None:
        return None
    q, k, v = (by_matrix(a, axes) for a in (q, k, v))
    rows, columns = q.shape[1], k.shape[1]
    kinds = list(dict.fromkeys([wide(dtype), dtype])) * matrices
    nbytes = sum(TensorType((rows, columns), kind).nbytes for kind in kinds)
    together = min(len(q), max(1, LIMIT // nbytes))
    rooms = scratch(call.context, [TensorType((together, rows, columns), kind) for kind in kinds])
    if len(rooms) == matrices:
        rooms = [room for room in rooms for _ in range(2)]
    scale = np.dtype(wide(dtype)).type(scale_of(call.attrs, q.shape[-1]))
    return Attention(q, k, v, mask, (rows, columns, call.attrs["causal"], scale), steps, rooms)


def steps_of(mask: Shape, lead: Shape) -> tuple[int, ...] | None:
    """Return a mask's steps as attention.cu takes them; None if it alternates along many axes.

    Args:
        mask: The mask's shape.
        lead: The axes before those of the matrices.
    """
    merged = merge_axes(lead, [mask[:-2]])
    if merged is None:
        return None
    (_, *lengths), (steps,) = merged
    down, across = mask[-2:]
    return (
        *lengths,
        *(step * math.prod(mask[-2:]) for step in steps),
        across if down > 1 else 0,
        int(across > 1),
    )


@kernel("scaled_dot_product_attention")
def forward(call: KernelCall) -> BoundCall | None:
    made = prepared(call, 0, 1)
    if made is None:
        return None
    out, sums = (by_matrix(a, call.ins[0].ndim - 2) for a in call.outs)
    calls: list[BoundCall] = []
    for part, (scores, weights) in made.parts():
        calls += [
            made.scores(part, scores),
            made.on_rows("attention_rows", part, scores, weights, made.mask, sums[part]),
            times(weights, made.value[part], out[part]),
        ]
    return in_turn(*calls)


@kernel("_attention_grad")
def gradient(call: KernelCall) -> BoundCall | None:
    made = prepared(call, 3, 2)
    if made is None:
        return None
    axes = call.ins[0].ndim - 2
    g, y, sums = (by_matrix(a, axes) for a in call.ins[:3])
    of_query, of_key, of_value = (by_matrix(a, axes) for a in call.outs)
    calls: list[BoundCall] = []
    for part, (scores, weights, grads, slopes) in made.parts():
        matrices = scores, weights, grads, slopes
        rows = made.mask, sums[part], g[part], y[part], g.shape[-1]
        calls += [
            made.scores(part, scores),
            times(g[part], made.value[part].swapaxes(1, 2), grads),
            made.on_rows("attention_grad_rows", part, *matrices, *rows),
            times(slopes, made.key[part], of_query[part]),
            times(slopes.swapaxes(1, 2), made.query[part], of_key[part]),
            times(weights.swapaxes(1, 2), g[part], of_value[part]),
        ]
    return in_turn(*calls)
