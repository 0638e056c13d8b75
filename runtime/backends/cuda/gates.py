"""Gate kernels: an LSTM or GRU step's arithmetic, or its gradient, in one launch each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.backends.cuda.base import each_of_rows, floating, function, kernel, launch
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Array


def by_element(
    name: str, arrays: Sequence[Array], state: Array, *more: Any, cells: Sequence[Array] = ()
) -> BoundCall | None:
    """Bind a kernel with a thread per element of `state` (rows, units); `cells`: LSTM states."""
    others = [a for a in arrays if all(a is not cell for cell in cells)]
    if not floating(*others, calc=cells):
        return None
    run = function("gates", name, real=others[0].dtype.name)
    return launch(run, *each_of_rows(*state.shape), *arrays, *state.shape, *more)


@kernel("_lstm_gates")
def lstm(call: KernelCall) -> BoundCall | None:
    """Bind the gates of a step. More inputs are h2h's bias, then i2h's: see joins.py."""
    (i2h, h2h, c, *biases), (output, state, gates) = call.ins, call.outs
    arrays = i2h, h2h, c, *[*biases, h2h, i2h][:2], output, state, gates
    return by_element("lstm", arrays, c, len(biases), cells=(c, state))


@kernel("_lstm_gates_grad")
def lstm_grad(call: KernelCall) -> BoundCall | None:
    """Bind the gradient. If there is one more input, it is added to dh: see joins.py."""
    has_dh, has_dc = call.attrs["has_dh"], call.attrs["has_dc"]
    count = 3 + has_dh + has_dc
    (*grads, gates, c, state), more = call.ins[:count], call.ins[count:]
    dh = grads[0] if has_dh else gates  # not read
    dc = grads[-1] if has_dc else c
    arrays = dh, *(more or [dh]), dc, gates, c, state, *call.outs
    cells = dc, c, state, call.outs[1]
    return by_element("lstm_grad", arrays, c, has_dh, bool(more), has_dc, cells=cells)


@kernel("_gru_gates")
def gru(call: KernelCall) -> BoundCall | None:
    return by_element("gru", (*call.ins, *call.outs), call.ins[2])


@kernel("_gru_gates_grad")
def gru_grad(call: KernelCall) -> BoundCall | None:
    return by_element("gru_grad", (*call.ins, *call.outs), call.ins[3])
