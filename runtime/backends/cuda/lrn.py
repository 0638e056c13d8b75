"""Local response normalisation on a GPU: an element a thread, which reads its neighbours."""

from __future__ import annotations

import math

from runtime.backends.cuda.base import each_of_rows, floating, function, kernel, launch
from runtime.backends.device.table import BoundCall, KernelCall


def over_channels(name: str, task: KernelCall, *more: float) -> BoundCall | None:
    """The call of a kernel with a thread for each element of the data."""
    (x,) = task.ins
    if not floating(x, *task.outs):
        return None
    rows, rest = math.prod(x.shape[:2]), math.prod(x.shape[2:])
    run, reach = function("lrn", name, real=x.dtype.name), task.attrs["nsize"] // 2
    shape = each_of_rows(rows, rest)
    return launch(run, *shape, x, *task.outs, rows, rest, x.shape[1], reach, *more)


@kernel("_sum_neighbours")
def sum_neighbours(task: KernelCall) -> BoundCall | None:
    return over_channels("sum_neighbours", task)


@kernel("LRN")
def lrn(task: KernelCall) -> BoundCall | None:
    a = task.attrs
    return over_channels("lrn", task, a["alpha"] / a["nsize"], float(a["knorm"]), -float(a["beta"]))
