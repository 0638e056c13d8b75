"""Attention and its gradient in blocks of queries and keys that stay in cache.

The scores of a block lie with the queries innermost:

    scores (keys, queries) = K (Q scale)^T      a row is a key: softmax works on whole vectors
    output (queries, units) += scores^T V       of queries, with a running maximum and sum of each

so only Q, and for the gradient that of the output, are ever transposed, a block at a time. With
`causal`, products leave out what lies behind the diagonal, in steps of STEP keys or queries.
Each matrix of keys is worked through by itself, in one order: bits depend on nothing else.

Source: Dao et al. 2022, "FlashAttention", arXiv:2205.14135.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from partitioner.base.compiled import overwrite
from runtime.backends.cpu.flat import FLOAT_TYPES
from runtime.backends.cpu.micro import available, multiply_small, turn
from runtime.backends.cpu.scratch import SCRATCH, whole_lines
from runtime.backends.cpu.table import kernel
from runtime.backends.cpu.vector import exp
from runtime.backends.device.compile import jit, jit_inside
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.graph import Graph, Node
from symgraph.core.types import Array, Shape, TensorType, wide
from symgraph.ops.attention import scale_of

BLOCK = 96  # queries, and keys, of a block
STEP = 12  # rows of a product between which the diagonal is looked at: whole tiles
WHOLE = 16  # numbers to whose multiples rows are filled up: whole vectors of any CPU
HIDDEN = -math.inf  # a score whose weight is 0


@jit
def copy_rows(x: Array, first: int, scale: Any, out: Array) -> None:
    """Copy rows of x from `first` on, times a number; what is missing is 0."""
    rows, columns = min(len(out), len(x) - first), x.shape[1]
    for i in range(rows):
        source, to = x[first + i], out[i]
        for j in range(columns):
            to[j] = source[j] * scale
        to[columns:] = 0
    out[rows:] = 0


@jit
def seen_from(key: int, first: int, causal: bool) -> int:
    """Return the first query of a block that may see a key of some step, down to whole vectors.

    Args:
        key: The first key of the step.
        first: The block's first query.
        causal: Whether a query sees only the keys before it, and its own.
    """
    return max(0, key - first) // WHOLE * WHOLE if causal else 0


@jit_inside
def address(x: Array, row: int, column: int) -> Any:
    """Return the address of an element."""
    return np.int64(x.ctypes.data + (row * x.shape[1] + column) * x.itemsize)


@jit_inside
def scores(x: Array, start: int, turned: Array, first: int, causal: bool, out: Array) -> None:
    """Compute rows of x from `start` on, as many as `out` has, times the turned block of queries.

    Where no query may look, `out` stays as it is.
    """
    size, width, inner = x.itemsize, out.shape[1], x.shape[1]
    steps = inner * size, width * size, width * size, size
    for at in range(0, len(out), STEP):
        low = seen_from(start + at, first, causal)
        ends = address(x, start + at, 0), address(turned, 0, low), address(out, at, low)
        multiply_small(out, ends, (min(STEP, len(out) - at), inner, width - low, 0), steps)


@jit_inside
def hide(start: int, first: int, out: Array) -> None:
    """Hide keys from queries before them, in what was computed of a block's scores."""
    for j in range(len(out)):
        low = seen_from(start + j // STEP * STEP, first, True)
        out[j, low : max(low, min(out.shape[1], start + j - first))] = HIDDEN


@jit_inside
def add_mask(mask: Any, place: Any, room: Array, turned: Array, out: Array) -> None:
    """Add a part of the mask to a block's scores.

    Args:
        mask: All of the mask, flat; where it begins for this matrix of scores; its steps from query
            to query and from key to key.
        place: The first query and the first key of the block, and the number of queries.
        room, turned: Memory for a block.
        out: The scores.
    """
    (flat, at, steps), (first, start, rows) = mask, place
    for i in range(rows):
        begin = at + (first + i) * steps[0] + start * steps[1]
        for j in range(len(out)):
            room[i, j] = flat[begin + j * steps[1]]
    room[rows:] = 0
    turn(room, turned)
    for j in range(len(out)):
        row, more = out[j], turned[j]
        for i in range(len(row)):
            row[i] += more[i]


@jit
def raise_to(row: Array, tops: Array) -> None:
    """Raise numbers to those of a row that are greater, or are not numbers."""
    for i in range(len(row)):
        tops[i] = tops[i] if row[i] <= tops[i] else row[i]


@jit
def weigh(row: Array, levels: Array) -> None:
    """Compute exp(row - levels) in place."""
    for i in range(len(row)):
        row[i] = exp(row[i] - levels[i])


@jit
def add_row(row: Array, sums: Array) -> None:
    """Add a row to sums."""
    for i in range(len(row)):
        sums[i] += row[i]


@jit
def begin_run(run: Array) -> None:
    """Set what `soften` keeps of each query, before the first key."""
    run[0], run[1] = HIDDEN, 0


@jit_inside
def soften(start: int, first: int, causal: bool, out: Array, run: Array) -> None:
    """Turn a block's scores into weights, less what goes to all keys so far.

    Args:
        start: The first key of the block.
        first: Its first query.
        causal: See `seen_from`.
        out: The scores.
        run: Of each query: the largest score so far, and the sum of weights; these two are brought
            up to date. Then what earlier weights are multiplied by, and room for two rows.
    """
    top, total, change, level, part = run[0], run[1], run[2], run[3], run[4]
    overwrite(change, top)
    for j in range(len(out)):
        low = seen_from(start + j // STEP * STEP, first, causal)
        raise_to(out[j, low:], top[low:])
    for i in range(len(top)):  # a query that has seen no key yet has no largest score
        level[i] = top[i] if top[i] != HIDDEN else 0
    weigh(change, level)
    part[:] = 0
    for j in range(len(out)):
        low = seen_from(start + j // STEP * STEP, first, causal)
        weigh(out[j, low:], level[low:])
        add_row(out[j, low:], part[low:])
        out[j, :low] = 0
    for i in range(len(total)):
        total[i] = total[i] * change[i] + part[i]


@jit_inside
def add_by_query(
    weights: Array, right: Array, place: Any, causal: bool, add: bool, out: Array
) -> None:
    """Compute out (queries, columns) = weights^T right, plus what it holds if `add`.

    Args:
        weights: (keys, queries).
        right: A row for each key of the block.
        place: The first query and the first key of the block, and the number of queries.
        causal: See `seen_from`; a weight that must not count is 0.
        add: Whether to add.
        out: The result.
    """
    first, start, queries = place
    size, width, columns = out.itemsize, weights.shape[1], out.shape[1]
    steps = size, columns * size, columns * size, width * size
    for at in range(0, queries, STEP):
        rows = min(STEP, queries - at)
        depth = min(len(weights), first + at + rows - start) if causal else len(weights)
        if depth > 0:
            ends = address(weights, 0, at), address(right, 0, 0), address(out, at, 0)
            multiply_small(out, ends, (rows, depth, columns, np.int64(add)), steps)


@jit_inside
def add_by_key(weights: Array, right: Array, place: Any, causal: bool, out: Array) -> None:
    """Add weights right to out (keys, columns).

    Args:
        weights: (keys, queries).
        right: A row for each query of the block.
        place, causal: See `add_by_query`.
        out: The result.
    """
    first, start, queries = place
    size, width, columns = out.itemsize, weights.shape[1], out.shape[1]
    steps = width * size, columns * size, columns * size, size
    for at in range(0, len(weights), STEP):
        low = seen_from(start + at, first, causal)
        ends = address(weights, at, low), address(right, low, 0), address(out, at, 0)
        sizes = min(STEP, len(weights) - at), queries - low, columns, 1
        multiply_small(out, ends, sizes, steps)


# -- forward -----------------------------------------------------------------------------------


@jit_inside
def attend_block(ins: Any, mask: Any, first: int, options: Any, outs: Any, rooms: Any) -> None:
    """Compute the output and the logarithms of sums of the queries from `first` on.

    Args:
        ins: Queries (queries, d), keys (keys, d), and values in whole vectors.
        mask: The mask, where this matrix's begins, and its steps; see `add_mask`.
        first: The first query.
        options: Scale; whether the attention is causal; whether there is a mask.
        outs: The output (queries, units) and the logarithms (queries,).
        rooms: Memory for a block; see `shapes_of`.
    """
    (q, k, values), (output, sums), (scale, causal, masked) = ins, outs, options
    lines, turned, weights, made, run, room, more = rooms
    rows = min(len(lines), len(q) - first)
    last = min(len(k), first + rows) if causal else len(k)
    copy_rows(q, first, scale, lines)
    turn(lines, turned)
    begin_run(run)
    for start in range(0, last, BLOCK):
        block, place = weights[: min(BLOCK, last - start)], (first, start, rows)
        scores(k, start, turned, first, causal, block)
        if masked:
            add_mask(mask, place, room, more, block)
        if causal:
            hide(start, first, block)
        soften(start, first, causal, block, run)
        if start > 0:
            for i in range(rows):
                for j in range(made.shape[1]):
                    made[i, j] *= run[2, i]
        add_by_query(block, values[start:], place, causal, start > 0, made)
    for i in range(rows):
        top, total = run[0, i], run[1, i]
        for j in range(output.shape[1]):
            output[first + i, j] = made[i, j] / total
        sums[first + i] = (top if top != HIDDEN else 0.0) + math.log(total)


@jit
def attend(ins: Any, masks: Any, options: Any, outs: Any, values: Array, rooms: Any) -> None:
    """Compute attention for each matrix of queries, keys and values.

    Args:
        ins: Queries, keys and values, each (matrices, rows, columns).
        masks: The mask, flat; where each matrix's begins; its steps from query to query and from
            key to key.
        options: See `attend_block`.
        outs: The output and the logarithms of sums.
        values: Memory for the values of a matrix, in whole vectors.
        rooms: Memory for a block.
    """
    (q, k, v), (output, sums), (flat, starts, steps) = ins, outs, masks
    for n in range(len(q)):
        copy_rows(v[n], 0, q.dtype.type(1), values)
        for first in range(0, q.shape[1], len(rooms[0])):
            mask, made = (flat, starts[n], steps), (output[n], sums[n])
            attend_block((q[n], k[n], values), mask, first, options, made, rooms)


# -- gradient ----------------------------------------------------------------------------------


@jit
def slope(weights: Array, means: Array, row: Array) -> None:
    """Turn the gradients of weights into those of scores, in place."""
    for i in range(len(row)):
        row[i] = weights[i] * (row[i] - means[i])


@jit_inside
def weigh_both(
    start: int, first: int, causal: bool, levels: Array, weights: Array, slopes: Array
) -> None:
    """Turn a block's scores into weights, and the gradients of weights into those of scores.

    Args:
        start, first, causal: See `soften`.
        levels: Of each query, the logarithm of its sum, and its output times that's gradient.
        weights: The scores.
        slopes: The gradients of weights.
    """
    for j in range(len(weights)):
        low = seen_from(start + j // STEP * STEP, first, causal)
        weigh(weights[j, low:], levels[0, low:])
        slope(weights[j, low:], levels[1, low:], slopes[j, low:])
        slopes[j, :low] = 0


@jit_inside
def set_levels(y: Array, sums: Array, first: int, rows: int, g: Array, levels: Array) -> None:
    """Fill the levels of `weigh` for some queries, from the output's gradient in whole vectors."""
    levels[:] = 0
    for i in range(rows):
        mean, row, other = levels.dtype.type(0), y[first + i], g[i]
        for j in range(len(row)):
            mean += row[j] * other[j]
        levels[0, i], levels[1, i] = sums[first + i], mean


@jit_inside
def gradient_block(ins: Any, mask: Any, first: int, options: Any, outs: Any, rooms: Any) -> None:
    """Compute the gradient of the queries from `first` on, and add what they give to the others.

    Args:
        ins: The output's gradient, the output, the logarithms of sums, queries, keys, values; and
            keys in whole vectors.
        mask, first, options: See `attend_block`.
        outs: The gradients of queries (queries, d), and of keys and values in whole vectors.
        rooms: Memory for a block; see `shapes_of`.
    """
    (g, y, sums, q, k, v, keys), (gq, gk, gv), (scale, causal, masked) = ins, outs, options
    lines, turned, grads, turned_grads, weights, slopes, made, levels, room, more = rooms
    rows = min(len(lines), len(q) - first)
    last = min(len(k), first + rows) if causal else len(k)
    copy_rows(q, first, scale, lines)
    turn(lines, turned)
    copy_rows(g, first, g.dtype.type(1), grads)
    turn(grads, turned_grads)
    set_levels(y, sums, first, rows, grads, levels)
    for start in range(0, last, BLOCK):
        end, place = min(start + BLOCK, last), (first, start, rows)
        block, grad = weights[: end - start], slopes[: end - start]
        for right, left, out in ((k, turned, block), (v, turned_grads, grad)):  # compiled once
            scores(right, start, left, first, causal, out)
        if masked:
            add_mask(mask, place, room, more, block)
        if causal:
            hide(start, first, block)
        weigh_both(start, first, causal, levels, block, grad)
        for left, right, out in ((block, grads, gv[start:end]), (grad, lines, gk[start:end])):
            add_by_key(left, right, place, causal, out)
        add_by_query(grad, keys[start:], place, causal, start > 0, made)
    for i in range(rows):
        for j in range(gq.shape[1]):
            gq[first + i, j] = made[i, j] * scale


@jit
def differentiate(ins: Any, masks: Any, options: Any, outs: Any, wholes: Any, rooms: Any) -> None:
    """Compute the gradient of attention for each matrix of queries, keys and values.

    Args:
        ins: The output's gradient, the output, the logarithms of sums, queries, keys, values.
        masks, options: See `attend`.
        outs: The gradients of queries, keys and values.
        wholes: Memory in whole vectors for the keys of a matrix, their gradient and that of values.
        rooms: Memory for a block.
    """
    (g, y, sums, q, k, v), (gq, gk, gv), (flat, starts, steps) = ins, outs, masks
    keys, grad_keys, grad_values = wholes
    one = q.dtype.type(1)
    for n in range(len(q)):
        copy_rows(k[n], 0, one, keys)
        grad_keys[:] = 0
        grad_values[:] = 0
        for first in range(0, q.shape[1], len(rooms[0])):
            mask, made = (flat, starts[n], steps), (gq[n], grad_keys, grad_values)
            given = g[n], y[n], sums[n], q[n], k[n], v[n], keys
            gradient_block(given, mask, first, options, made, rooms)
        copy_columns(grad_keys, gk[n])
        copy_columns(grad_values, gv[n])


@jit
def copy_columns(x: Array, out: Array) -> None:
    """Copy the first columns of x, as many as `out` has."""
    for i in range(len(out)):
        for j in range(out.shape[1]):
            out[i, j] = x[i, j]


# -- calls -------------------------------------------------------------------------------------


def to_whole(count: int) -> int:
    """Round up to whole vectors."""
    return -(-count // WHOLE) * WHOLE


def shapes_of(q: Shape, v: Shape, masked: bool, gradient: bool) -> list[Shape]:
    """Return the shapes of a call's workspace: matrices in whole vectors, then those of a block.

    Args:
        q, v: The shapes of queries and values.
        masked: Whether there is a mask.
        gradient: Whether it is the gradient's call.
    """
    queries, keys = q[-2], v[-2]
    inner, units = to_whole(q[-1]), to_whole(v[-1])
    width = to_whole(-(-queries // -(-queries // BLOCK)))  # blocks of about the same size
    block, mask = (min(BLOCK, keys), width), to_whole(min(BLOCK, keys)) if masked else 0
    masks = [(width if masked else 0, mask), (mask, width)]
    if not gradient:
        runs = (5, width)
        return [(keys, units), (width, inner), (inner, width), block, (width, units), runs, *masks]
    whole = [(keys, inner), (keys, inner), (keys, units)]
    lines = [(width, inner), (inner, width), (width, units), (units, width)]
    return [*whole, *lines, block, block, (width, inner), (2, width), *masks]


def masks_of(mask: Sequence[Array], scores: Shape, dtype: Any) -> tuple[Array, Array, Any]:
    """Return the mask, flat, where each matrix's begins, and its steps; see `attend`."""
    lead, count = scores[:-2], math.prod(scores[:-2])
    if not mask:
        return np.empty(0, dtype), np.zeros(count, np.int64), (0, 0)
    spread = np.broadcast_to(mask[0], scores)
    steps = [step // mask[0].itemsize for step in spread.strides]
    starts = np.zeros(lead, np.int64)
    for axis, step in enumerate(steps[:-2]):
        starts += step * np.arange(lead[axis]).reshape(-1, *[1] * (len(lead) - axis - 1))
    return mask[0].reshape(-1), starts.reshape(-1), (steps[-2], steps[-1])


def bound(call: KernelCall, given: int, function: Any, wholes: int) -> BoundCall | None:
    """Bind a call.

    Args:
        call: The call.
        given: How many inputs come before the queries.
        function: `attend` or `differentiate`.
        wholes: How many arrays of the workspace are for a matrix.
    """
    (q, k, v), mask = call.ins[given : given + 3], call.ins[given + 3 :]
    dtypes = {a.dtype for a in (*call.ins, *call.outs)}
    if not (available() and len(dtypes) == 1 and dtypes <= FLOAT_TYPES and min(q.size, v.size)):
        return None
    masks = masks_of(mask, (*q.shape[:-1], k.shape[-2]), q.dtype)
    scale = q.dtype.type(scale_of(call.attrs, q.shape[-1]))
    options = scale, call.attrs["causal"], bool(mask)
    shapes = shapes_of(q.shape, v.shape, bool(mask), bool(given))

    def by_matrix(array: Array) -> Array:
        return array.reshape(-1, *array.shape[q.ndim - 2 :])

    ins = tuple(map(by_matrix, call.ins[: given + 3]))
    outs = tuple(map(by_matrix, call.outs))

    def run() -> None:
        rooms = SCRATCH.arrays(q.dtype, *shapes)
        whole = rooms[0] if wholes == 1 else tuple(rooms[:wholes])
        function(ins, masks, options, outs, whole, tuple(rooms[wholes:]))

    return BoundCall(run, ())


@kernel("scaled_dot_product_attention")
def forward(call: KernelCall) -> BoundCall | None:
    return bound(call, 0, attend, 1)


@kernel("_attention_grad")
def gradient(call: KernelCall) -> BoundCall | None:
    return bound(call, 3, differentiate, 3)


def scratch_bytes(node: Node, graph: Graph) -> int:
    """Return the bytes of `SCRATCH` that a call uses."""
    types: list[TensorType] = graph.types_of(node.inputs)
    given = 0 if node.op == "scaled_dot_product_attention" else 3
    q, _, v = types[given : given + 3]
    kinds = {wide(t.dtype) for t in (*types, *node.types)}
    if not (available() and len(kinds) == 1 and min(q.size, v.size)):
        return 0
    shapes = shapes_of(q.shape, v.shape, node.attrs["use_mask"], bool(given))
    return sum(whole_lines(np.dtype(*kinds), shapes)) + 64
