"""Normalisation on a GPU: BatchNorm, whole or in parts, and LRN.

Batch normalisation has a block per channel. Its parts are those of a batch that lies on several
devices, see symgraph/ops/moments.py. LRN has a thread per element, which reads its neighbours.
"""

from __future__ import annotations

import math
from typing import Any

from runtime.backends.cuda.base import (
    block_a_row,
    each,
    each_of_rows,
    floating,
    function,
    kernel,
    launch,
)
from runtime.backends.device.operands import by_channel
from runtime.backends.device.table import BoundCall, CallContext, KernelCall
from symgraph.core.types import Array


def by_phase(call: KernelCall, of_batch: BoundCall, of_moving: BoundCall) -> BoundCall:
    """Bind the choice of the batch's statistics in training, else of the moving averages."""
    return BoundCall(_choose, (call.context, of_batch, of_moving))


def _choose(context: CallContext, of_batch: BoundCall, of_moving: BoundCall) -> None:
    bound = of_batch if context.env.train else of_moving
    bound.function(*bound.args)


def on_channels(call: KernelCall, name: str, arrays: tuple[Array, ...], *more: Any) -> BoundCall:
    """Bind a kernel with a block for each channel; the data is the first of `arrays`."""
    data = by_channel(arrays[0], call.attrs["axis"])
    before, channels, after = data.shape
    run, count = function("norm", name, real=data.dtype.name), before * after
    return launch(run, *block_a_row(channels, count), *arrays, count, channels, after, *more)


# -- in one ------------------------------------------------------------------------------------


def in_one(call: KernelCall, name: str, *more: Any) -> BoundCall:
    arrays, a = (*call.ins, *call.outs), call.attrs
    of_batch, of_moving = (
        on_channels(call, name, arrays, by, a["fix_gamma"], float(a["eps"]), *more)
        for by in (True, False)
    )
    return of_moving if a["use_global_stats"] else by_phase(call, of_batch, of_moving)


@kernel("BatchNorm")
def batch_norm(call: KernelCall) -> BoundCall | None:
    (x, *vectors), (y, *figures), a = call.ins, call.outs, call.attrs
    if not floating(x, y, calc=[*vectors, *figures]):
        return None
    return in_one(call, "batch_norm", float(a["momentum"]))


@kernel("_batch_norm_grad")
def batch_norm_grad(call: KernelCall) -> BoundCall | None:
    (x, *vectors, g), (of_x, *sums) = call.ins, call.outs
    if not floating(x, g, of_x, calc=[*vectors, *sums]):
        return None
    return in_one(call, "batch_norm_grad")


# -- in parts ----------------------------------------------------------------------------------


@kernel("_moments")
def moments(call: KernelCall) -> BoundCall | None:
    (x,) = call.ins
    if not floating(x, calc=call.outs):
        return None
    return on_channels(call, "moments", (x, *call.outs))


@kernel("_moments_grad")
def moments_grad(call: KernelCall) -> BoundCall | None:
    (x, *vectors), (of_x,) = call.ins, call.outs
    if not floating(x, of_x, calc=vectors):
        return None
    return on_channels(call, "moments_grad", (*call.ins, of_x))


@kernel("_normalize")
def normalize(call: KernelCall) -> BoundCall | None:
    (x, *vectors), (y,), a = call.ins, call.outs, call.attrs
    if not floating(x, y, calc=vectors):
        return None
    return on_channels(call, "normalize", (*call.ins, y), a["fix_gamma"], float(a["eps"]))


@kernel("_normalize_grad")
def normalize_grad(call: KernelCall) -> BoundCall | None:
    (x, *vectors, g), (of_x, *sums), a = call.ins, call.outs, call.attrs
    if not floating(x, g, of_x, calc=[*vectors, *sums]):
        return None
    arrays = (*call.ins, *call.outs)
    return on_channels(call, "normalize_grad", arrays, a["fix_gamma"], float(a["eps"]))


@kernel("_moving_average")
def moving_average(call: KernelCall) -> BoundCall | None:
    arrays = (*call.ins, *call.outs)
    if not floating(*arrays):
        return None
    size, keep = arrays[0].size, float(call.attrs["momentum"])
    run = function("norm", "moving_average", real=arrays[0].dtype.name)
    of_batch, of_moving = (
        launch(run, *each(size), *arrays, size, by, keep) for by in (True, False)
    )
    return by_phase(call, of_batch, of_moving)


# -- LRN ---------------------------------------------------------------------------------------


def over_channels(name: str, call: KernelCall, *more: float) -> BoundCall | None:
    """Bind a kernel with a thread for each element of the data."""
    (x,) = call.ins
    if not floating(x, *call.outs):
        return None
    rows, rest = math.prod(x.shape[:2]), math.prod(x.shape[2:])
    run, reach = function("lrn", name, real=x.dtype.name), call.attrs["nsize"] // 2
    shape = each_of_rows(rows, rest)
    return launch(run, *shape, x, *call.outs, rows, rest, x.shape[1], reach, *more)


@kernel("_sum_neighbours")
def sum_neighbours(call: KernelCall) -> BoundCall | None:
    return over_channels("sum_neighbours", call)


@kernel("LRN")
def lrn(call: KernelCall) -> BoundCall | None:
    a = call.attrs
    return over_channels("lrn", call, a["alpha"] / a["nsize"], float(a["knorm"]), -float(a["beta"]))
