"""LeakyReLU's kinds and the gradient of leaky, one pass each."""

from __future__ import annotations

import math
from typing import Any

from runtime.backends.cpu.flat import floating
from runtime.backends.cpu.table import kernel
from runtime.backends.cpu.vector import erf, expm1
from runtime.backends.device.compile import jit
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.ops.leaky_relu import SELU_ALPHA, SELU_SCALE

ROOT_HALF = math.sqrt(0.5)


@jit
def leaky_flat(x: Any, slope: Any, y: Any) -> None:
    zero = y.dtype.type(0)
    for j in range(len(y)):
        y[j] = x[j] if x[j] > zero else slope * x[j]


@jit
def leaky_grad_flat(g: Any, x: Any, slope: Any, out: Any) -> None:
    zero = out.dtype.type(0)
    for j in range(len(out)):
        out[j] = g[j] if x[j] > zero else g[j] * slope


@jit
def elu_flat(x: Any, slope: Any, scale: Any, y: Any) -> None:
    zero = y.dtype.type(0)
    for j in range(len(y)):
        low = slope * expm1(x[j])
        y[j] = scale * (x[j] if x[j] > zero else low)


@jit
def gelu_flat(x: Any, y: Any) -> None:
    half, one, root = y.dtype.type(0.5), y.dtype.type(1), y.dtype.type(ROOT_HALF)
    for j in range(len(y)):
        y[j] = x[j] * (half * (one + erf(x[j] * root)))


@kernel("LeakyReLU")
def leaky_relu(task: KernelCall) -> BoundCall | None:
    x, y, a = task.ins[0], task.outs[0], task.attrs
    if not floating(x, y) or a["act_type"] == "prelu":
        return None
    number, flat = y.dtype.type, (x.reshape(-1), y.reshape(-1))
    if a["act_type"] == "gelu":
        return BoundCall(gelu_flat, flat)
    if a["act_type"] == "leaky":
        return BoundCall(leaky_flat, (flat[0], number(a["slope"]), flat[1]))
    slope, scale = (a["slope"], 1.0) if a["act_type"] == "elu" else (SELU_ALPHA, SELU_SCALE)
    return BoundCall(elu_flat, (flat[0], number(slope), number(scale), flat[1]))


@kernel("_leaky_relu_grad")
def leaky_relu_grad(task: KernelCall) -> BoundCall | None:
    (g, x), (out,) = task.ins, task.outs
    if not floating(g, x, out):
        return None
    slope = out.dtype.type(task.attrs["slope"])
    return BoundCall(leaky_grad_flat, (g.reshape(-1), x.reshape(-1), slope, out.reshape(-1)))
