"""Batch normalisation on a GPU: a block a channel, statistics and data in one launch."""

from __future__ import annotations

from typing import Any

from runtime.cuda.base import block_a_row, floating, function, kernel, launch
from runtime.native.base import Bound, Clock, Task
from runtime.native.normalize import by_channel
from symgraph.types import Array


def by_clock(task: Task, name: str, given: tuple[Array, ...], *more: Any) -> Bound:
    """The call by the batch's statistics in training, by those given else. given: data first."""
    data, a = by_channel(given[0], task.attrs["axis"]), task.attrs
    before, channels, after = data.shape
    run = function("norm", name, real=data.dtype.name)
    shape = block_a_row(channels, before * after)
    sizes = before * after, channels, after
    of_batch, of_given = (
        launch(run, *shape, *given, *sizes, by, a["fix_gamma"], float(a["eps"]), *more)
        for by in (True, False)
    )
    if a["use_global_stats"]:
        return of_given
    return Bound(_normalize, (task.clock, of_batch, of_given))


def _normalize(clock: Clock, of_batch: Bound, of_given: Bound) -> None:
    call = of_batch if clock.env.train else of_given
    call.function(*call.args)


@kernel("BatchNorm")
def batch_norm(task: Task) -> Bound | None:
    (x, *vectors), (y, *figures), a = task.ins, task.outs, task.attrs
    if not floating(x, y, calc=[*vectors, *figures]):
        return None
    return by_clock(task, "batch_norm", (*task.ins, *task.outs), float(a["momentum"]))


@kernel("_batch_norm_grad")
def batch_norm_grad(task: Task) -> Bound | None:
    (x, *vectors, g), (of_x, *sums) = task.ins, task.outs
    if not floating(x, g, of_x, calc=[*vectors, *sums]):
        return None
    return by_clock(task, "batch_norm_grad", (*task.ins, *task.outs))
