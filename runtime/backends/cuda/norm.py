"""Batch normalisation on a GPU: a block a channel, statistics and data in one launch, or in parts.

Parts are those of a batch that lies on several devices, see symgraph/ops/moments.py.
"""

from __future__ import annotations

from typing import Any

from runtime.backends.cpu.normalize import by_channel
from runtime.backends.cuda.base import block_a_row, each, floating, function, kernel, launch
from runtime.backends.device.table import BoundCall, CallContext, KernelCall
from symgraph.core.types import Array


def by_clock(task: KernelCall, of_batch: BoundCall, of_given: BoundCall) -> BoundCall:
    """The call by the batch's statistics in training, by those given else."""
    return BoundCall(_choose, (task.clock, of_batch, of_given))


def _choose(clock: CallContext, of_batch: BoundCall, of_given: BoundCall) -> None:
    call = of_batch if clock.env.train else of_given
    call.function(*call.args)


def on_channels(task: KernelCall, name: str, given: tuple[Array, ...], *more: Any) -> BoundCall:
    """The call of a kernel with a block for each channel. given: data first."""
    data = by_channel(given[0], task.attrs["axis"])
    before, channels, after = data.shape
    run, count = function("norm", name, real=data.dtype.name), before * after
    return launch(run, *block_a_row(channels, count), *given, count, channels, after, *more)


# -- in one ------------------------------------------------------------------------------------


def in_one(task: KernelCall, name: str, *more: Any) -> BoundCall:
    given, a = (*task.ins, *task.outs), task.attrs
    of_batch, of_given = (
        on_channels(task, name, given, by, a["fix_gamma"], float(a["eps"]), *more)
        for by in (True, False)
    )
    return of_given if a["use_global_stats"] else by_clock(task, of_batch, of_given)


@kernel("BatchNorm")
def batch_norm(task: KernelCall) -> BoundCall | None:
    (x, *vectors), (y, *figures), a = task.ins, task.outs, task.attrs
    if not floating(x, y, calc=[*vectors, *figures]):
        return None
    return in_one(task, "batch_norm", float(a["momentum"]))


@kernel("_batch_norm_grad")
def batch_norm_grad(task: KernelCall) -> BoundCall | None:
    (x, *vectors, g), (of_x, *sums) = task.ins, task.outs
    if not floating(x, g, of_x, calc=[*vectors, *sums]):
        return None
    return in_one(task, "batch_norm_grad")


# -- in parts ----------------------------------------------------------------------------------


@kernel("_moments")
def moments(task: KernelCall) -> BoundCall | None:
    (x,) = task.ins
    if not floating(x, calc=task.outs):
        return None
    return on_channels(task, "moments", (x, *task.outs))


@kernel("_moments_grad")
def moments_grad(task: KernelCall) -> BoundCall | None:
    (x, *vectors), (of_x,) = task.ins, task.outs
    if not floating(x, of_x, calc=vectors):
        return None
    return on_channels(task, "moments_grad", (*task.ins, of_x))


@kernel("_normalize")
def normalize(task: KernelCall) -> BoundCall | None:
    (x, *vectors), (y,), a = task.ins, task.outs, task.attrs
    if not floating(x, y, calc=vectors):
        return None
    return on_channels(task, "normalize", (*task.ins, y), a["fix_gamma"], float(a["eps"]))


@kernel("_normalize_grad")
def normalize_grad(task: KernelCall) -> BoundCall | None:
    (x, *vectors, g), (of_x, *sums), a = task.ins, task.outs, task.attrs
    if not floating(x, g, of_x, calc=[*vectors, *sums]):
        return None
    given = (*task.ins, *task.outs)
    return on_channels(task, "normalize_grad", given, a["fix_gamma"], float(a["eps"]))


@kernel("_moving_average")
def moving_average(task: KernelCall) -> BoundCall | None:
    given = (*task.ins, *task.outs)
    if not floating(*given):
        return None
    size, keep = given[0].size, float(task.attrs["momentum"])
    run = function("norm", "moving_average", real=given[0].dtype.name)
    of_batch, of_given = (launch(run, *each(size), *given, size, by, keep) for by in (True, False))
    return by_clock(task, of_batch, of_given)
