"""Gate kernels: an LSTM or GRU step's arithmetic and its gradient, row by row.

Every kernel works in place on the rows of gates that it returns, which may be the memory of its
pre-activation (or, backward, of the gates): each inner loop then has few arrays, so that LLVM,
which wants to check that they do not overlap, makes vector code of it. Otherwise the rows are
copied first. A row stays in the first-level cache over its loops. Formulas: symgraph/ops/gates.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime.backends.cpu.rounding import as_stored, narrow, widen
from runtime.backends.cpu.table import TAKES_LOW, kernel
from runtime.backends.cpu.vector import sigmoid, tanh
from runtime.backends.device.arrays import one_place
from runtime.backends.device.compile import jit, jit_inner
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import BFLOAT16, Array, TensorType

FLOAT = "float32"
COMPILED = (FLOAT, "float64")


def low_dtypes(attrs: Mapping[str, Any]) -> list[str]:
    """Return the dtypes of an LSTM's gates in bfloat16, whose states are float32, as a node's."""
    if "has_dh" not in attrs:
        return [BFLOAT16, BFLOAT16, FLOAT, BFLOAT16, FLOAT, BFLOAT16]
    grads = [BFLOAT16] * attrs["has_dh"] + [FLOAT] * attrs["has_dc"]
    return [*grads, BFLOAT16, FLOAT, FLOAT, BFLOAT16, FLOAT]


def takes_low(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> bool:
    return [t.dtype for t in types] == low_dtypes(attrs)


def is_low(call: KernelCall) -> bool:
    return [a.dtype.name for a in (*call.ins, *call.outs)] == low_dtypes(call.attrs)


TAKES_LOW |= dict.fromkeys(("_lstm_gates", "_lstm_gates_grad"), takes_low)


@jit_inner
def copy(source: Array, target: Array) -> None:
    for j in range(target.shape[0]):
        target[j] = source[j]


@jit_inner
def clear(target: Array) -> None:
    for j in range(target.shape[0]):
        target[j] = 0


@jit
def add_sigmoid(gates: Array, other: Array) -> None:
    for j in range(gates.shape[0]):
        gates[j] = sigmoid(gates[j] + other[j])


@jit
def add_tanh(gates: Array, other: Array) -> None:
    for j in range(gates.shape[0]):
        gates[j] = tanh(gates[j] + other[j])


# -- LSTM ----------------------------------------------------------------------------------------


@jit
def next_state(i: Array, f: Array, new: Array, c: Array, state: Array) -> None:
    for j in range(state.shape[0]):
        state[j] = f[j] * c[j] + i[j] * new[j]


@jit
def lstm_output(o: Array, state: Array, output: Array) -> None:
    for j in range(output.shape[0]):
        output[j] = o[j] * tanh(state[j])


@jit
def lstm_row(g: Array, more: Array, c: Array, state: Array, output: Array) -> None:
    size = c.size
    add_sigmoid(g[: 2 * size], more[: 2 * size])
    add_tanh(g[2 * size : 3 * size], more[2 * size : 3 * size])
    add_sigmoid(g[3 * size :], more[3 * size :])
    next_state(g[:size], g[size : 2 * size], g[2 * size : 3 * size], c, state)
    lstm_output(g[3 * size :], state, output)


@jit
def lstm(
    pre: Array, other: Array, c: Array, output: Array, state: Array, gates: Array, apart: bool
) -> None:
    for row in range(c.shape[0]):
        if apart:
            copy(pre[row], gates[row])
        lstm_row(gates[row], other[row], c[row], state[row], output[row])


@jit
def lstm_low(pre: Array, other: Array, c: Array, output: Array, state: Array, gates: Array) -> None:
    """Do as `lstm` on bfloat16, as uint16, but for the states; rows are widened one by one."""
    size = c.shape[1]
    g, more = np.empty(4 * size, np.float32), np.empty(4 * size, np.float32)
    out = more[:size]
    for row in range(c.shape[0]):
        widen(pre[row], g.view(np.uint32))
        widen(other[row], more.view(np.uint32))
        lstm_row(g, more, c[row], state[row], out)
        narrow(g.view(np.uint32), gates[row])
        narrow(out.view(np.uint32), output[row])


@kernel("_lstm_gates")
def lstm_kernel(call: KernelCall) -> BoundCall | None:
    """Bind the gates of a step; `gates` may share memory with i2h or h2h."""
    i2h, h2h, c = call.ins
    output, state, gates = call.outs
    if is_low(call):
        return BoundCall(lstm_low, tuple(map(as_stored, (i2h, h2h, c, output, state, gates))))
    if gates.dtype not in COMPILED:
        return None
    pre, other = (h2h, i2h) if one_place(gates, h2h) else (i2h, h2h)
    apart = not one_place(gates, pre)
    return BoundCall(lstm, (pre, other, c, output, state, gates, apart))


@jit
def from_output(dh: Array, state: Array, o: Array, dc: Array) -> None:
    """Replace o by its gradient; add that of the state to dc."""
    one = o.dtype.type(1)
    for j in range(o.shape[0]):
        t = tanh(state[j])
        gate = o[j]
        part = dh[j] * gate
        dc[j] += part * (one - t * t)
        o[j] = part * t * (one - gate)


@jit
def to_new(i: Array, new: Array, dc: Array) -> None:
    """Replace i and new by their gradients."""
    one = i.dtype.type(1)
    for j in range(i.shape[0]):
        gate, fresh = i[j], new[j]
        part = dc[j] * gate
        i[j] = part * fresh * (one - gate)
        new[j] = part * (one - fresh * fresh)


@jit
def to_old(f: Array, c: Array, dc: Array) -> None:
    """Replace f by its gradient, and dc, the state's, by that of c."""
    one = f.dtype.type(1)
    for j in range(f.shape[0]):
        gate = f[j]
        part = dc[j] * gate
        f[j] = part * c[j] * (one - gate)
        dc[j] = part


@jit
def lstm_grad_row(
    dh: Array, c: Array, state: Array, g: Array, d: Array, has_dh: bool, has_dc: bool
) -> None:
    """Replace gates g by their gradients, and d, the state's gradient, by that of c."""
    size = c.size
    if not has_dc:
        clear(d)
    if has_dh:
        from_output(dh, state, g[3 * size :], d)
    else:
        clear(g[3 * size :])
    to_new(g[:size], g[2 * size : 3 * size], d)
    to_old(g[size : 2 * size], c, d)


@jit
def lstm_grad(
    dh: Array,
    dc: Array,
    gates: Array,
    c: Array,
    state: Array,
    d_pre: Array,
    d_c: Array,
    has_dh: bool,
    has_dc: bool,
    copy_gates: bool,
    copy_dc: bool,
) -> None:
    for row in range(c.shape[0]):
        if copy_gates:
            copy(gates[row], d_pre[row])
        if copy_dc:
            copy(dc[row], d_c[row])
        lstm_grad_row(dh[row], c[row], state[row], d_pre[row], d_c[row], has_dh, has_dc)


@jit
def lstm_grad_low(
    dh: Array,
    dc: Array,
    gates: Array,
    c: Array,
    state: Array,
    d_pre: Array,
    d_c: Array,
    has_dh: bool,
    has_dc: bool,
    copy_dc: bool,
) -> None:
    """Do as `lstm_grad` on bfloat16, as uint16, but for the states."""
    size = c.shape[1]
    g, d = np.empty(4 * size, np.float32), np.empty(size, np.float32)
    for row in range(c.shape[0]):
        widen(gates[row], g.view(np.uint32))
        if has_dh:
            widen(dh[row], d.view(np.uint32))
        if copy_dc:
            copy(dc[row], d_c[row])
        lstm_grad_row(d, c[row], state[row], g, d_c[row], has_dh, has_dc)
        narrow(g.view(np.uint32), d_pre[row])


@kernel("_lstm_gates_grad")
def lstm_grad_kernel(call: KernelCall) -> BoundCall | None:
    """Bind the gradient; `d_pre` may share memory with the gates, `d_c` with dc."""
    *grads, gates, c, state = call.ins
    d_pre, d_c = call.outs
    has_dh, has_dc = call.attrs["has_dh"], call.attrs["has_dc"]
    dh = grads[0] if has_dh else gates  # not read
    dc = grads[-1] if has_dc else c
    copy_dc = has_dc and not one_place(d_c, dc)
    if is_low(call):
        arrays = tuple(map(as_stored, (dh, dc, gates, c, state, d_pre, d_c)))
        return BoundCall(lstm_grad_low, (*arrays, has_dh, has_dc, copy_dc))
    if gates.dtype not in COMPILED:
        return None
    how = (has_dh, has_dc, not one_place(d_pre, gates), copy_dc)
    return BoundCall(lstm_grad, (dh, dc, gates, c, state, d_pre, d_c, *how))


# -- GRU -----------------------------------------------------------------------------------------


@jit
def reset_new(r: Array, inner: Array, new: Array) -> None:
    for j in range(new.shape[0]):
        new[j] = tanh(new[j] + r[j] * inner[j])


@jit
def mix(z: Array, new: Array, h: Array, output: Array) -> None:
    one = z.dtype.type(1)
    for j in range(output.shape[0]):
        output[j] = (one - z[j]) * new[j] + z[j] * h[j]


IN_I2H, IN_H2H, APART = 0, 1, 2  # the memory in which the gates lie


@jit
def gru(
    i2h: Array, h2h: Array, h: Array, output: Array, gates: Array, inner: Array, where: int
) -> None:
    size = h.shape[1]
    for row in range(h.shape[0]):
        g, other, h2h_new = gates[row], h2h[row], inner[row]
        copy(other[2 * size :], h2h_new)
        if where == IN_H2H:
            other = i2h[row]
            copy(other[2 * size :], g[2 * size :])
        elif where == APART:
            copy(i2h[row], g)
        add_sigmoid(g[: 2 * size], other[: 2 * size])
        reset_new(g[:size], h2h_new, g[2 * size :])
        mix(g[size : 2 * size], g[2 * size :], h[row], output[row])


@kernel("_gru_gates")
def gru_kernel(call: KernelCall) -> BoundCall | None:
    """Bind the gates of a step; `gates` may share memory with i2h or h2h."""
    i2h, h2h, h = call.ins
    output, gates, inner = call.outs
    if h.dtype not in COMPILED:
        return None
    where = IN_I2H if one_place(gates, i2h) else IN_H2H if one_place(gates, h2h) else APART
    return BoundCall(gru, (i2h, h2h, h, output, gates, inner, where))


@jit
def unmix(z: Array, new: Array, h: Array, dh: Array) -> None:
    """Replace z and new by their gradients, and dh by that of h."""
    one = z.dtype.type(1)
    for j in range(z.shape[0]):
        d, gate, fresh = dh[j], z[j], new[j]
        part = d * (one - gate)
        z[j] = part * gate * (h[j] - fresh)
        new[j] = part * (one - fresh * fresh)
        dh[j] = d * gate


@jit
def unreset(r: Array, inner: Array, d_new: Array, d_inner: Array) -> None:
    """Replace r by its gradient; write that of inner to d_inner."""
    one = r.dtype.type(1)
    for j in range(r.shape[0]):
        part = d_new[j] * r[j]
        r[j] = part * inner[j] * (one - r[j])
        d_inner[j] = part


@jit
def gru_grad(
    dh: Array,
    gates: Array,
    inner: Array,
    h: Array,
    d_i2h: Array,
    d_h2h: Array,
    d_h: Array,
    copy_gates: bool,
    copy_dh: bool,
) -> None:
    size = h.shape[1]
    for row in range(h.shape[0]):
        g, other, d = d_i2h[row], d_h2h[row], d_h[row]
        if copy_gates:
            copy(gates[row], g)
        if copy_dh:
            copy(dh[row], d)
        unmix(g[size : 2 * size], g[2 * size :], h[row], d)
        unreset(g[:size], inner[row], g[2 * size :], other[2 * size :])
        copy(g[: 2 * size], other[: 2 * size])


@kernel("_gru_gates_grad")
def gru_grad_kernel(call: KernelCall) -> BoundCall | None:
    """Bind the gradient; `d_i2h` may share memory with the gates, `d_h` with dh."""
    dh, gates, inner, h = call.ins
    d_i2h, d_h2h, d_h = call.outs
    if h.dtype not in COMPILED:
        return None
    how = (not one_place(d_i2h, gates), not one_place(d_h, dh))
    return BoundCall(gru_grad, (dh, gates, inner, h, d_i2h, d_h2h, d_h, *how))
