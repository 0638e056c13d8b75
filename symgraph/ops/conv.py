"""Convolution, Deconvolution and their gradients.

Once the data's shape and the windows are known, a convolution is bilinear in data and weight. So
the gradients of its three forms (the output, the data's gradient, the weight's gradient) are these
forms again, and a deconvolution is the second of them.

The computations here are plain sums over the positions in the kernel: the reference for the
kernels of runtime/backends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import PARTIAL, WHOLE, Layouts, not_along, refuse_mixing
from symgraph.core.params import Attrs, Param, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import LOW, Call, Env, Shapes, register
from symgraph.core.shapes import expect, unify
from symgraph.core.types import Array, Shape, Types
from symgraph.ops.elementwise import floats
from symgraph.ops.linear import fc_inputs, grad_data_shape
from symgraph.ops.windows import (
    CUDNN,
    WINDOW,
    Windows,
    checked,
    counts_of,
    sized,
    windows_of,
    with_rank,
)

FORM = {**WINDOW, "num_group": params.count(1)}


def form(attrs: Attrs) -> dict[str, Any]:
    """Return the parameters that all three forms share."""
    return {key: attrs[key] for key in FORM}


def layer_params(
    workspace: int, no_bias: bool, extra: Mapping[str, Param] | None = None
) -> Mapping[str, Param]:
    """Return a layer's parameters in MXNet's order; `own` are those of this layer alone."""
    return {
        **WINDOW,
        **(extra or {}),
        "num_filter": params.count(),
        "num_group": FORM["num_group"],
        "workspace": params.integer(workspace),
        "no_bias": params.boolean(no_bias),
        **CUDNN,
    }


def check_groups(site: Site, channels: int) -> None:
    """Raise ShapeError unless channels and filters can be cut into equal groups."""
    groups, filters = site.attrs["num_group"], site.attrs["num_filter"]
    if groups < 1 or filters < 1 or filters % groups or channels % groups:
        of = f" and {channels} channels" if channels else ""
        site.fail(f"num_filter={filters}{of} cannot be cut into num_group={groups} equal parts")


def channel_bias(site: Site, given: Shapes, because: str) -> Shapes:
    """Return the shapes of the inputs after the weight."""
    return [expect(site, "bias", b, (site.attrs["num_filter"],), because) for b in given]


# -- sums over the positions in the kernel -------------------------------------------------------


def last(place: Sequence[int | slice]) -> tuple[Any, ...]:
    """Index a place along the last axes."""
    return (..., *place)


def by_group(x: Array, groups: int) -> Array:
    """Return (n, channels, *spatial) as rows (groups, channels / groups, n * places)."""
    return x.swapaxes(0, 1).reshape(groups, x.shape[1] // groups, -1)


def surrounded(xp: Any, x: Array, windows: Windows) -> Array:
    """Return the data with zeros as padding."""
    around: Array = xp.zeros((*x.shape[:2], *windows.padded(x.shape[2:])), x.dtype)
    around[last(windows.inside(x.shape[2:]))] = x
    return around


def convolve(xp: Any, x: Array, weight: Array, windows: Windows, groups: int) -> Array:
    """Convolve (n, C, *spatial) data with (filters, C / groups, *kernel) weights."""
    around, counts = surrounded(xp, x, windows), windows.counts(x.shape[2:])
    rows = weight.reshape(groups, -1, *weight.shape[1:])
    y: Array = xp.zeros((*rows.shape[:2], len(x) * math.prod(counts)), x.dtype)
    for offset in windows.offsets():
        read = around[last(windows.at(offset, counts))]
        y += rows[last(offset)] @ by_group(read, groups)
    return y.reshape(len(weight), len(x), *counts).swapaxes(0, 1)


def weight_gradient(xp: Any, g: Array, x: Array, windows: Windows, groups: int) -> Array:
    """Return the weight's gradient from (n, filters, *windows) gradients and the data."""
    around, each = surrounded(xp, x, windows), by_group(g, groups)
    shape = (groups, g.shape[1] // groups, x.shape[1] // groups, *windows.kernel)
    total: Array = xp.empty(shape, x.dtype)
    for offset in windows.offsets():
        read = around[last(windows.at(offset, g.shape[2:]))]
        total[last(offset)] = each @ by_group(read, groups).swapaxes(1, 2)
    return total.reshape(g.shape[1], -1, *windows.kernel)


def data_gradient(
    xp: Any, g: Array, weight: Array, windows: Windows, groups: int, shape: Shape
) -> Array:
    """Return the gradient of data of this shape from the output's gradient and the weight."""
    around: Array = xp.zeros((*shape[:2], *windows.padded(shape[2:])), g.dtype)
    rows, each = weight.reshape(groups, -1, *weight.shape[1:]), by_group(g, groups)
    for offset in windows.offsets():
        spread = rows[last(offset)].swapaxes(1, 2) @ each
        read = spread.reshape(shape[1], len(g), *g.shape[2:]).swapaxes(0, 1)
        around[last(windows.at(offset, g.shape[2:]))] += read
    inside: Array = around[last(windows.inside(shape[2:]))]
    return inside


# -- Convolution -------------------------------------------------------------------------------


def conv_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """The batch, and lengths along axes of stride 1, also follow from the output."""
    windows = checked(site)
    rank = len(windows.kernel)
    data, out = (with_rank(site, *s, rank) for s in (("data", ins[0]), ("output", outs[0])))
    filters, groups = site.attrs["num_filter"], site.attrs["num_group"]
    channels = data[1] or (ins[1][1] * groups if ins[1] and len(ins[1]) > 1 else 0)
    check_groups(site, channels)
    lengths = [
        n or (o + e - 1 - 2 * p if o and s == 1 else 0)
        for n, o, e, p, s in zip(
            data[2:], out[2:], windows.extent, windows.pad, windows.stride, strict=True
        )
    ]
    data = (data[0] or out[0], channels, *lengths)
    counts = counts_of(site, windows, data)
    new = unify(site, (data[0], filters, *counts), out, "output shapes")
    because = f"(data of shape {data}, num_filter={filters}, num_group={groups})"
    weight = (filters, channels // groups, *windows.kernel)
    rest = [expect(site, "weight", ins[1], weight, because)]
    return [data, *rest, *channel_bias(site, ins[2:], because)], [new]


def conv_compute(env: Env, a: Attrs, x: Array, w: Array, b: Array | None = None) -> Array:
    return with_bias(convolve(env.xp, x, w, windows_of(a), a["num_group"]), b)


def with_bias(y: Array, bias: Array | None) -> Array:
    return y if bias is None else y + bias.reshape(-1, *[1] * (y.ndim - 2))


def bias_gradient(c: Call) -> list[Ref]:
    axes = (0, *range(2, len(c.gy.shape)))
    return [apply("sum", c.gy, axis=axes) for _ in c.x[2:]]


def conv_grad(c: Call) -> Sequence[Ref]:
    x, w = c.x[:2]
    same = form(c.attrs)
    of_x = apply("_conv_grad_data", c.gy, w, shape=x.shape, **same)
    return [of_x, apply("_conv_grad_weight", c.gy, x, **same), *bias_gradient(c)]


def window_flops(attrs: Attrs, values: int, weight: Shape) -> int:
    """Count a multiplication and an addition per element of a window and each of `values`."""
    return 2 * values * math.prod(weight[1:])


def conv_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    data, *rest = ins
    if any(layout is not WHOLE for layout in rest):
        refuse_mixing(site, "has weights that depend on the samples")
    if data is PARTIAL and len(ins) == 3:
        refuse_mixing(site, "adds a constant to a sum over the batch")
    return [data]


CONV_BATCH = not_along(
    lambda a, rank: range(1, rank), conv_batch, "sums over axis {axis}, where the batch lies"
)

register(
    name="Convolution",
    inputs=fc_inputs,
    shape=conv_shape,
    compute=conv_compute,
    grad=conv_grad,
    flops=lambda attrs, ins, outs: window_flops(attrs, outs[0].size, ins[1].shape),
    dtype=floats,
    batch=CONV_BATCH,
    params=layer_params(1024, False),
    precision=LOW,
    caption=lambda attrs: f"{sized(attrs)}, {attrs['num_filter']}",
    doc="Convolution of data (batch, channel, *spatial), with one to three spatial axes, with "
    "weight (num_filter, channel / num_group, *kernel), plus bias (num_filter,). An axis of "
    "length n becomes floor((n + 2 pad - dilate (kernel - 1) - 1) / stride) + 1. With groups, "
    "each group of filters reads its group of channels. workspace and cudnn_* are accepted "
    "and ignored. MXNet Convolution.",
)


# -- the forms of its gradients ------------------------------------------------------------------


def grad_weight_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    grad, x = ins
    if grad is None or x is None:
        return ins, outs
    return ins, [(grad[1], x[1] // site.attrs["num_group"], *site.attrs["kernel"])]


def again(c: Call, x: Ref, w: Ref) -> Ref:
    """Apply the convolution whose gradient the call is part of."""
    return apply("Convolution", x, w, num_filter=w.shape[0], no_bias=True, **form(c.attrs))


register(
    name="_conv_grad_data",
    inputs=("grad", "weight"),
    shape=grad_data_shape,
    compute=lambda env, a, g, w: data_gradient(
        env.xp, g, w, windows_of(a), a["num_group"], a["shape"]
    ),
    grad=lambda c: (
        again(c, c.gy, c.x[1]),
        apply("_conv_grad_weight", c.x[0], c.gy, **form(c.attrs)),
    ),
    flops=lambda attrs, ins, outs: window_flops(attrs, ins[0].size, ins[1].shape),
    params={**FORM, "shape": params.integers()},
    doc="Gradient of Convolution's data, which has the shape `shape`.",
)

register(
    name="_conv_grad_weight",
    inputs=("grad", "data"),
    shape=grad_weight_shape,
    compute=lambda env, a, g, x: weight_gradient(env.xp, g, x, windows_of(a), a["num_group"]),
    grad=lambda c: (
        again(c, c.x[1], c.gy),
        apply("_conv_grad_data", c.x[0], c.gy, shape=c.x[1].shape, **form(c.attrs)),
    ),
    flops=lambda attrs, ins, outs: window_flops(attrs, ins[0].size, outs[0].shape),
    params=FORM,
    doc="Gradient of Convolution's weight from the output's gradient and the data.",
)


# -- Deconvolution -----------------------------------------------------------------------------


def widened(attrs: Attrs, data: Shape) -> tuple[Windows, Shape]:
    """Return the windows and the output's lengths for known data; target_shape sets the padding."""
    windows = windows_of(attrs)
    grown = [
        s * (n - 1) + e for n, e, s in zip(data[2:], windows.extent, windows.stride, strict=True)
    ]
    target: Shape = attrs["target_shape"]
    if any(target):
        pad = tuple((n - t + 1) // 2 for n, t in zip(grown, target, strict=True))
        return windows._replace(pad=pad), target
    more = attrs["adj"] or (0,) * len(grown)
    return windows, tuple(n - 2 * p + a for n, p, a in zip(grown, windows.pad, more, strict=True))


def check_output(site: Site, windows: Windows, data: Shape) -> Shape:
    """Return the output's lengths; 0 where those of the data are unknown."""
    target, more = site.attrs["target_shape"], site.attrs["adj"]
    for key in ("target_shape", "adj"):
        if len(site.attrs[key]) not in (0, len(windows.kernel)):
            site.fail(
                f"{key}={site.attrs[key]} does not have one value for each axis of "
                f"kernel={windows.kernel}"
            )
    wrong = any(a < 0 or a >= s for a, s in zip(more, windows.stride, strict=False))
    if wrong and not any(target):
        site.fail(f"adj={more} must be 0 or more and less than stride={windows.stride}")
    resolved, lengths = widened(site.attrs, data)
    for known, length, pad in zip(data[2:], lengths, resolved.pad, strict=True):
        if known and (length < 1 or pad < 0):
            wanted = f"target_shape={target}" if any(target) else f"pad={windows.pad}"
            site.fail(
                f"{wanted} does not fit data of shape {data} with kernel={windows.kernel}, "
                f"stride={windows.stride}"
            )
    return tuple(
        n if known or any(target) else 0 for known, n in zip(data[2:], lengths, strict=True)
    )


def deconv_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    windows = checked(site)
    rank = len(windows.kernel)
    data, out = (with_rank(site, *s, rank) for s in (("data", ins[0]), ("output", outs[0])))
    filters, groups = site.attrs["num_filter"], site.attrs["num_group"]
    channels = data[1] or (ins[1][0] if ins[1] else 0)
    check_groups(site, channels)
    data = (data[0] or out[0], channels, *data[2:])
    new = (data[0], filters, *check_output(site, windows, data))
    because = f"(data of shape {data}, num_filter={filters}, num_group={groups})"
    weight = expect(site, "weight", ins[1], (channels, filters // groups, *windows.kernel), because)
    bias = channel_bias(site, ins[2:], because)
    return [data, weight, *bias], [unify(site, new, out, "output shapes")]


def deconv_compute(env: Env, a: Attrs, x: Array, w: Array, b: Array | None = None) -> Array:
    windows, lengths = widened(a, x.shape)
    shape = (len(x), a["num_filter"], *lengths)
    return with_bias(data_gradient(env.xp, x, w, windows, a["num_group"], shape), b)


def deconv_grad(c: Call) -> Sequence[Ref]:
    x, w = c.x[:2]
    windows, _ = widened(c.attrs, x.shape)
    same = {**windows._asdict(), "num_group": c.attrs["num_group"]}
    of_x = apply("Convolution", c.gy, w, num_filter=x.shape[1], no_bias=True, **same)
    return [of_x, apply("_conv_grad_weight", x, c.gy, **same), *bias_gradient(c)]


register(
    name="Deconvolution",
    inputs=fc_inputs,
    shape=deconv_shape,
    compute=deconv_compute,
    grad=deconv_grad,
    flops=lambda attrs, ins, outs: window_flops(attrs, ins[0].size, ins[1].shape),
    dtype=floats,
    batch=CONV_BATCH,
    params=layer_params(
        512, True, {"adj": params.integers(()), "target_shape": params.integers(())}
    ),
    precision=LOW,
    doc="The transpose of Convolution: data (batch, channel, *spatial), weight (channel, "
    "num_filter / num_group, *kernel). An axis of length n becomes stride (n - 1) + dilate "
    "(kernel - 1) + 1 - 2 pad + adj, or target_shape, which sets pad and adj. MXNet "
    "Deconvolution.",
)
