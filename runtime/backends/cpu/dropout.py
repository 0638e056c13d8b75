"""Dropout on a CPU: the mask is drawn in a compiled loop, without an array of random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from runtime.backends.cpu.flat import floating
from runtime.backends.cpu.table import kernel
from runtime.backends.device.compile import jit
from runtime.backends.device.table import BoundCall, CallContext, KernelCall
from symgraph.core.params import Attrs
from symgraph.core.rand import key
from symgraph.core.types import Array
from symgraph.ops.random import mask_numbers

GAMMA, MIX, MIX_AGAIN = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(40)


@jit
def draw_mask(
    stream: Any, least: Any, scale: Any, grid: tuple[int, int, int], first: int, mask: Array
) -> None:
    """Fill a mask: `scale` where 24 random bits of symgraph.core.rand reach `least`, else 0.

    Args:
        stream: The key of the random stream.
        least: The smallest number that keeps an element.
        scale: The mask of the elements that are kept.
        grid: See symgraph.ops.random.stream_grid.
        first: The index of the first sample.
        mask: The flat mask.
    """
    outer, samples, inner = grid
    by_inner = mask.reshape(outer * samples, inner)
    for row in range(len(by_inner)):
        block, sample = row // samples, row % samples
        start = np.uint64((first + sample) * (outer * inner) + block * inner)
        to = by_inner[row]
        for j in range(inner):
            z = (start + np.uint64(j)) * GAMMA + stream
            z = (z ^ (z >> SHIFTS[0])) * MIX
            z = (z ^ (z >> SHIFTS[1])) * MIX_AGAIN
            z ^= z >> SHIFTS[2]
            to[j] = scale if z >> SHIFTS[3] >= least else to.dtype.type(0)


def drop(
    context: CallContext,
    a: Attrs,
    least: Any,
    scale: Any,
    grid: tuple[int, int, int],
    data: tuple[Array, Array, Array],
) -> None:
    x, out, mask = data
    env = context.env
    if env.train or a["mode"] == "always":
        stream = (key(env.seed, a["stream"], env.step) + int(GAMMA)) % (1 << 64)
        first = env.sample + a["first"] if a["axis"] >= 0 else 0
        draw_mask(np.uint64(stream), least, scale, grid, first, mask.reshape(-1))
        np.multiply(x, mask, out)
    else:
        np.copyto(out, x)
        mask.fill(1)


@kernel("Dropout")
def dropout(call: KernelCall) -> BoundCall | None:
    (x,), (out, mask), a = call.ins, call.outs, call.attrs
    if a["axes"] or not floating(x, out, mask):
        return None
    least, scale, grid = mask_numbers(a, x.shape)
    return BoundCall(
        drop, (call.context, a, np.uint64(least), x.dtype.type(scale), grid, (x, out, mask))
    )
