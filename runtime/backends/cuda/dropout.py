"""Dropout on a GPU: mask and product in one pass."""

from __future__ import annotations

from collections.abc import Callable

from runtime.backends.cpu.flat import numbering
from runtime.backends.cuda.base import each, floating, function, kernel, launch, module
from runtime.backends.cuda.draws import places
from runtime.backends.device.table import BoundCall, CallContext, KernelCall


@kernel("Dropout")
def dropout(task: KernelCall) -> BoundCall | None:
    (x,), (out, mask), a = task.ins, task.outs, task.attrs
    if a["axes"] or not floating(x, out, mask):
        return None
    least, scale, grid = numbering(a, x)
    first = a["first"] if a["axis"] >= 0 else -1  # -1: numbered without a batch
    draw = launch(
        function("dropout", "drop", real=x.dtype.name),
        *each(x.size),
        x,
        *places(task.clock, a["stream"]),
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

    return draw if a["mode"] == "always" else BoundCall(_drop, (task.clock, draw, leave))


def _drop(clock: CallContext, draw: BoundCall, leave: Callable[[], None]) -> None:
    if clock.env.train:
        draw.function(*draw.args)
    else:
        leave()
