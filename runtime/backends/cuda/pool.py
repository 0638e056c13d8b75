"""Pooling of images, in windows of any size: maxima, sums and averages, and their gradients."""

from __future__ import annotations

from typing import Any

from runtime.backends.cuda.base import each_of_rows, floating, function, kernel, launch
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.params import Attrs
from symgraph.core.types import Array
from symgraph.ops.pool import windows_over


def pooled(name: str, call: KernelCall, data: Array, pixels: Array, *more: Any) -> BoundCall | None:
    """Bind a kernel with a thread for each of `pixels`, of the output or of the data's gradient."""
    a = call.attrs
    if data.ndim != 4 or not floating(*call.ins, *call.outs):
        return None
    windows, counts = windows_over(a, data.shape)
    images = data.shape[0] * data.shape[1]
    sizes = (*data.shape[2:], *counts, *windows.kernel, *windows.stride, *windows.pad)
    shape = each_of_rows(images, pixels.size // images)
    run = function("pool", name, real=data.dtype.name)
    return launch(run, *shape, *call.ins, *call.outs, images, *sizes, *more)


def average(a: Attrs) -> tuple[bool, bool]:
    """Tell whether pooling is an average, and whether the average counts the padding."""
    return a["pool_type"] == "avg", a["count_include_pad"] is not False


@kernel("Pooling")
def pooling(call: KernelCall) -> BoundCall | None:
    (x,), (y,), kind = call.ins, call.outs, call.attrs["pool_type"]
    if kind == "lp":
        return None
    if kind == "max":
        return pooled("maxima", call, x, y)
    return pooled("sums", call, x, y, *average(call.attrs))


@kernel("_max_pool_grad")
def max_pool_grad(call: KernelCall) -> BoundCall | None:
    return pooled("maxima_grad", call, call.ins[1], call.outs[0])


@kernel("_pool_grad")
def pool_grad(call: KernelCall) -> BoundCall | None:
    return pooled("sums_grad", call, call.outs[0], call.outs[0], *average(call.attrs))
