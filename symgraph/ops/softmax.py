"""The softmax family: softmax, log_softmax, SoftmaxActivation, and the arithmetic they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import axiswise, elementwise, not_along
from symgraph.core.params import Attrs
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import FULL, Call, Env, register
from symgraph.core.shapes import axis_shape
from symgraph.core.types import Array, Types, wide
from symgraph.ops.elementwise import floats


def flops_per_element(count: int) -> Callable[[Attrs, Types, Types], int]:
    """Return a rule of `count` operations per element of the first input."""
    return lambda attrs, ins, outs: count * ins[0].size


def softmax(xp: Any, x: Array, axis: int) -> Array:
    """Compute exp(x) / sum(exp(x)) along an axis, without overflow, in x's dtype."""
    y: Array = x - x.max(axis=axis, keepdims=True)
    xp.exp(y, out=y)
    y /= y.sum(axis=axis, keepdims=True, dtype=wide(y.dtype))
    return y


def log_softmax(xp: Any, x: Array, axis: int) -> Array:
    """Compute log(softmax(x)) along an axis, finite where softmax(x) underflows."""
    y: Array = x - x.max(axis=axis, keepdims=True)
    y -= xp.log(xp.exp(y).sum(axis=axis, keepdims=True, dtype=wide(y.dtype)))
    return y


def scaled(x: Any, temperature: float | None) -> Any:
    return x if temperature is None else x / temperature


def sum_along(x: Ref, axis: int) -> Ref:
    return apply("sum", x, axis=axis, keepdims=True)


def softmax_grad(env: Env, a: Attrs, y: Array, g: Array) -> Array:
    grad: Array = y * g
    grad -= y * grad.sum(axis=a["axis"], keepdims=True, dtype=wide(y.dtype))
    return grad


def softmax_second_grad(c: Call) -> Sequence[Ref]:
    """y * (g - sum(y * g)) is bilinear except for the sum: differentiate both places of y."""
    (y, g), h, axis = c.x, c.gy, c.attrs["axis"]
    centred = apply("broadcast_sub", g, sum_along(y * g, axis))
    of_y = h * centred - apply("broadcast_mul", g, sum_along(y * h, axis))
    return of_y, apply("_softmax_grad", y, h, axis=axis)


register(
    name="_softmax_grad",
    inputs=("output", "grad"),
    shape=axis_shape,
    compute=softmax_grad,
    grad=softmax_second_grad,
    flops=flops_per_element(4),
    dtype=floats,
    batch=axiswise,
    params={"axis": params.integer(-1)},
    doc="Gradient of softmax at its output y: y * (g - sum(y * g)) along the axis.",
)

AXIS_AND_TEMPERATURE = {
    "axis": params.integer(-1),
    "temperature": params.optional(params.number()),
    "dtype": params.only(None),
    "use_length": params.only(False),
}

register(
    name="softmax",
    inputs=("data",),
    shape=axis_shape,
    compute=lambda env, a, x: softmax(env.xp, scaled(x, a["temperature"]), a["axis"]),
    grad=lambda c: (
        scaled(apply("_softmax_grad", c.y[0], c.gy, axis=c.attrs["axis"]), c.attrs["temperature"]),
    ),
    flops=flops_per_element(4),
    dtype=floats,
    batch=axiswise,
    params=AXIS_AND_TEMPERATURE,
    precision=FULL,
    doc="exp(data / temperature) divided by its sum along the axis. MXNet softmax.",
)


register(
    name="softmin",
    inputs=("data",),
    shape=axis_shape,
    compute=lambda env, a, x: softmax(env.xp, scaled(-x, a["temperature"]), a["axis"]),
    grad=lambda c: (
        -scaled(apply("_softmax_grad", c.y[0], c.gy, axis=c.attrs["axis"]), c.attrs["temperature"]),
    ),
    flops=flops_per_element(5),
    dtype=floats,
    batch=axiswise,
    params=AXIS_AND_TEMPERATURE,
    precision=FULL,
    doc="softmax(-data), along the axis: exp(-data / temperature) divided by its sum. MXNet "
    "softmin.",
)


def log_softmax_grad(env: Env, a: Attrs, y: Array, g: Array) -> Array:
    grad: Array = env.xp.exp(y)
    grad *= -g.sum(axis=a["axis"], keepdims=True, dtype=wide(y.dtype))
    grad += g
    return grad


def log_softmax_second_grad(c: Call) -> Sequence[Ref]:
    (y, g), h, axis = c.x, c.gy, c.attrs["axis"]
    weighted = h * apply("exp", y)
    of_y = -apply("broadcast_mul", weighted, sum_along(g, axis))
    return of_y, apply("broadcast_sub", h, sum_along(weighted, axis))


register(
    name="_log_softmax_grad",
    inputs=("output", "grad"),
    shape=axis_shape,
    compute=log_softmax_grad,
    grad=log_softmax_second_grad,
    flops=flops_per_element(4),
    dtype=floats,
    batch=axiswise,
    params={"axis": params.integer(-1)},
    doc="Gradient of log_softmax at its output y: g - exp(y) * sum(g) along the axis.",
)

register(
    name="log_softmax",
    inputs=("data",),
    shape=axis_shape,
    compute=lambda env, a, x: log_softmax(env.xp, scaled(x, a["temperature"]), a["axis"]),
    grad=lambda c: (
        scaled(
            apply("_log_softmax_grad", c.y[0], c.gy, axis=c.attrs["axis"]),
            c.attrs["temperature"],
        ),
    ),
    flops=flops_per_element(4),
    dtype=floats,
    batch=axiswise,
    params=AXIS_AND_TEMPERATURE,
    precision=FULL,
    doc="The logarithm of softmax(data / temperature) along the axis. MXNet log_softmax.",
)


def mode_axis(attrs: Attrs) -> int:
    return 1 if attrs["mode"] == "channel" else -1


register(
    name="SoftmaxActivation",
    inputs=("data",),
    shape=lambda site, ins, outs: axis_shape(
        site._replace(attrs={"axis": mode_axis(site.attrs)}), ins, outs
    ),
    compute=lambda env, a, x: softmax(env.xp, x, mode_axis(a)),
    grad=lambda c: (apply("_softmax_grad", c.y[0], c.gy, axis=mode_axis(c.attrs)),),
    flops=flops_per_element(4),
    dtype=floats,
    batch=not_along(lambda a, rank: (mode_axis(a) % rank,), elementwise),
    params={"mode": params.choice("instance", "channel", default="instance")},
    precision=FULL,
    doc="Softmax along the last axis (mode='instance') or axis 1 (mode='channel'). MXNet "
    "SoftmaxActivation.",
)
