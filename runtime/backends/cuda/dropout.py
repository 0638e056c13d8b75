"""Dropout on a GPU: mask and product in one pass."""

from __future__ import annotations

from collections.abc import Callable

from runtime.backends.cuda.base import each, floating, function, kernel, launch, module
from runtime.backends.cuda.rank_memory import random_places
from runtime.backends.device.table import BoundCall, CallContext, KernelCall
from symgraph.ops.random import mask_numbers


@kernel("Dropout")
def dropout(call: KernelCall) -> BoundCall | None:
    (x,), (out, mask), a = call.ins, call.outs, call.attrs
    if a["axes"] or not floating(x, out, mask):
        return None
    least, scale, grid = mask_numbers(a, x.shape)
    first = a["first"] if a["axis"] >= 0 else -1  # -1: numbered without a batch
    draw = launch(
        function("dropout", "drop", real=x.dtype.name),
        *each(x.size),
        x,
        *random_places(call.context, a["stream"]),
        out,
        mask,
        x.size,
        *grid,
        first,
        least,
        float(scale),
    )
    copyto = module().copyto

    def leave() -> None:
        copyto(out, x)
        mask.fill(1)

    return draw if a["mode"] == "always" else BoundCall(_drop, (call.context, draw, leave))


def _drop(context: CallContext, draw: BoundCall, leave: Callable[[], None]) -> None:
    if context.env.train:
        draw.function(*draw.args)
    else:
        leave()
