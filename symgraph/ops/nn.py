"""Normalisation by mean and variance: BatchNorm, LayerNorm, InstanceNorm and GroupNorm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from symgraph.core import params
from symgraph.core.batch_layout import (
    PARTIAL,
    WHOLE,
    Layouts,
    axiswise,
    not_along,
    refuse_mixing,
)
from symgraph.core.errors import DTypeError, GraphError
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply_all
from symgraph.core.registry import INSIDE, Call, Env, Partial, Shapes, register
from symgraph.core.shapes import axes_of, expect, unify
from symgraph.core.types import Array, Shape, Types, is_float, wide
from symgraph.ops.elementwise import floats
from symgraph.ops.softmax import flops_per_element


def first_order_only(c: Call) -> NoReturn:
    raise GraphError(
        f"{c.y[0].value.node!r} is a gradient that cannot be differentiated again: "
        "second derivatives of BatchNorm, LayerNorm, InstanceNorm and GroupNorm are not offered"
    )


def norm_shape(site: Site, data: Partial, out: Partial, vectors: Shapes) -> tuple[Partial, Shapes]:
    """Return the shapes of the data and of the vectors along its axis `axis`."""
    data = unify(site, data, out, "shapes of data and output")
    if data is None:
        return data, vectors
    (axis,) = axes_of(site, site.attrs["axis"], len(data))
    length: Partial = (data[axis],)
    names = ("gamma", "beta", "moving_mean", "moving_var")
    for name, vector in zip(names, vectors, strict=False):
        length = expect(site, name, vector, length, f"(axis {axis} of data of shape {data})")
    assert length is not None
    return (*data[:axis], *length, *data[axis + 1 :]), [length] * len(vectors)


def refuse_visible_statistics(site: Site) -> None:
    if site.attrs["output_mean_var"]:
        site.fail("output_mean_var=True is not offered: its mean and variance are hidden outputs")


def other_axes(x: Array, axis: int) -> tuple[int, ...]:
    return tuple(i for i in range(x.ndim) if i != axis % x.ndim)


def column(x: Array, axis: int) -> tuple[int, ...]:
    """Return the shape in which a vector along `axis` broadcasts against x."""
    return tuple(d if i == axis % x.ndim else 1 for i, d in enumerate(x.shape))


def batch_norm_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    refuse_visible_statistics(site)
    data, vectors = norm_shape(site, ins[0], outs[0], ins[1:])
    return [data, *vectors], [data, *vectors]


def batch_norm_dtype(site: Site, ins: Sequence[str | None]) -> tuple[list[str | None], list[str]]:
    """float16 data goes with float32 parameters and statistics (MXNet)."""
    known = [d for d in ins[1:] if d is not None]
    data = ins[0] or (known[0] if known else "float32")
    vector = wide(data)
    if not is_float(data) or any(d != vector for d in known):
        raise DTypeError(
            f"{site.op} {site.name!r}: data of {data} needs float data and parameters of {vector}, "
            f"not {', '.join(known)}; add a Cast"
        )
    return [data, *[vector] * (len(ins) - 1)], [data, *[vector] * 4]


def uses_batch(env: Env, attrs: Attrs) -> bool:
    return env.train and not attrs["use_global_stats"]


def batch_norm(
    env: Env, a: Attrs, x: Array, gamma: Array, beta: Array, old_mean: Array, old_var: Array
) -> tuple[Array, ...]:
    xp, shape, axes = env.xp, column(x, a["axis"]), other_axes(x, a["axis"])
    mean, var, next_mean, next_var = old_mean, old_var, old_mean, old_var
    if uses_batch(env, a):
        mean = x.mean(axis=axes, dtype=gamma.dtype)
        var = xp.square(x - mean.reshape(shape)).mean(axis=axes)
        keep = a["momentum"]
        next_mean = keep * old_mean + (1 - keep) * mean
        next_var = keep * old_var + (1 - keep) * var
    return normalized(env, a, x, gamma, beta, mean, var), mean, var, next_mean, next_var


def normalized(
    env: Env, a: Attrs, x: Array, gamma: Array, beta: Array, mean: Array, var: Array
) -> Array:
    """Normalise data by given statistics, in the data's dtype."""
    shape = column(x, a["axis"])
    scale = 1 / env.xp.sqrt(var + a["eps"])
    if not a["fix_gamma"]:
        scale = scale * gamma
    y: Array = (x - mean.reshape(shape)) * scale.reshape(shape)
    y += beta.reshape(shape)
    return y.astype(x.dtype, copy=False)


def batch_norm_grad(c: Call) -> Sequence[Ref | None]:
    kept = {k: c.attrs[k] for k in ("axis", "eps", "fix_gamma", "use_global_stats")}
    return *apply_all("_batch_norm_grad", c.x[0], c.x[1], c.y[1], c.y[2], c.gy, **kept), None, None


def batch_norm_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    data, *vectors = ins
    if any(layout is not WHOLE for layout in vectors):
        refuse_mixing(site, "has parameters that depend on the samples")
    if data is not WHOLE and not site.attrs["use_global_stats"]:
        refuse_mixing(site, "normalises by statistics of the batch")
    (first,) = axiswise(site, ins[:1], in_types[:1], outs[:1])
    return [first, WHOLE, WHOLE, WHOLE, WHOLE]


register(
    name="BatchNorm",
    inputs=("data", "gamma", "beta", "moving_mean", "moving_var"),
    outputs=("output", "mean", "var", "moving_mean", "moving_var"),
    visible=1,
    aux=("moving_mean", "moving_var"),
    aux_outputs=(3, 4),
    shape=batch_norm_shape,
    compute=batch_norm,
    grad=batch_norm_grad,
    flops=flops_per_element(6),
    dtype=batch_norm_dtype,
    batch=batch_norm_batch,
    params={
        "eps": params.number(1e-3),
        "momentum": params.number(0.9),
        "fix_gamma": params.boolean(True),
        "use_global_stats": params.boolean(False),
        "output_mean_var": params.boolean(False),
        "axis": params.integer(1),
        "cudnn_off": params.boolean(False),
        "min_calib_range": params.ignored(),
        "max_calib_range": params.ignored(),
    },
    full_inputs=("gamma", "beta", "moving_mean", "moving_var"),
    doc="(data - mean) / sqrt(var + eps) * gamma + beta over all axes but `axis`; gamma, beta and "
    "the moving mean and variance are vectors along `axis`. Training uses the mean and "
    "(biased) variance of the batch and updates moving to momentum * moving + (1 - momentum) "
    "* batch; evaluation and use_global_stats use the moving ones. fix_gamma: gamma is 1 and "
    "its gradient 0. cudnn_off is accepted and ignored. MXNet BatchNorm.",
)


def batch_norm_grad_compute(
    env: Env, a: Attrs, x: Array, gamma: Array, mean: Array, var: Array, g: Array
) -> tuple[Array, ...]:
    xp, shape, axes = env.xp, column(x, a["axis"]), other_axes(x, a["axis"])
    rstd = 1 / xp.sqrt(var + a["eps"])
    normal = (x - mean.reshape(shape)) * rstd.reshape(shape)
    of_gamma = (g * normal).sum(axis=axes)
    of_beta = g.sum(axis=axes, dtype=gamma.dtype)
    scale = rstd if a["fix_gamma"] else rstd * gamma
    of_x = g
    if uses_batch(env, a):
        count = x.size // gamma.size
        of_x = g - (of_beta / count).reshape(shape) - normal * (of_gamma / count).reshape(shape)
    of_x = (of_x * scale.reshape(shape)).astype(x.dtype, copy=False)
    return of_x, xp.zeros_like(gamma) if a["fix_gamma"] else of_gamma, of_beta


register(
    name="_batch_norm_grad",
    inputs=("data", "gamma", "mean", "var", "grad"),
    outputs=("data_grad", "gamma_grad", "beta_grad"),
    shape=lambda site, ins, outs: (ins, [ins[0], ins[1], ins[1]]),
    compute=batch_norm_grad_compute,
    grad=first_order_only,
    flops=flops_per_element(9),
    dtype=lambda site, ins: (ins, [str(ins[0]), str(ins[1]), str(ins[1])]),
    params={
        "axis": params.integer(1),
        "eps": params.number(1e-3),
        "fix_gamma": params.boolean(True),
        "use_global_stats": params.boolean(False),
    },
    doc="Gradients of BatchNorm with the mean and variance that it used.",
)


def layer_norm_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    refuse_visible_statistics(site)
    data, vectors = norm_shape(site, ins[0], outs[0], ins[1:])
    if data is None:
        return ins, outs
    axis = site.attrs["axis"] % len(data)
    each = (*data[:axis], 1, *data[axis + 1 :])
    return [data, *vectors], [data, each, each]


def layer_norm(env: Env, a: Attrs, x: Array, gamma: Array, beta: Array) -> tuple[Array, ...]:
    axis, shape = a["axis"], column(x, a["axis"])
    mean = x.mean(axis=axis, keepdims=True, dtype=wide(x.dtype))
    y = x - mean
    std = env.xp.sqrt(env.xp.square(y).mean(axis=axis, keepdims=True) + a["eps"])
    y *= gamma.reshape(shape) / std
    y += beta.reshape(shape)
    return tuple(v.astype(x.dtype, copy=False) for v in (y, mean, std))


def layer_norm_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    if any(layout is not WHOLE for layout in ins[1:]):
        refuse_mixing(site, "has parameters that depend on the samples")
    return axiswise(site, ins[:1], in_types[:1], outs)


register(
    name="LayerNorm",
    inputs=("data", "gamma", "beta"),
    outputs=("output", "mean", "std"),
    visible=1,
    shape=layer_norm_shape,
    compute=layer_norm,
    grad=lambda c: apply_all(
        "_layer_norm_grad", c.x[0], c.x[1], c.y[1], c.y[2], c.gy, axis=c.attrs["axis"]
    ),
    flops=flops_per_element(7),
    dtype=floats,
    batch=layer_norm_batch,
    params={
        "axis": params.integer(-1),
        "eps": params.number(1e-5),
        "output_mean_var": params.boolean(False),
    },
    precision=INSIDE,
    doc="(data - mean) / sqrt(var + eps) * gamma + beta with mean and (biased) variance along "
    "`axis`; gamma and beta are vectors along it. MXNet LayerNorm.",
)


def layer_norm_grad(
    env: Env, a: Attrs, x: Array, gamma: Array, mean: Array, std: Array, g: Array
) -> tuple[Array, ...]:
    axis, axes, dtype = a["axis"], other_axes(x, a["axis"]), wide(x.dtype)
    normal = (x.astype(dtype, copy=False) - mean) / std
    of_gamma = (g * normal).sum(axis=axes)
    of_beta = g.sum(axis=axes, dtype=dtype)
    h = g * gamma.astype(dtype, copy=False).reshape(column(x, axis))
    along_normal = normal * (h * normal).mean(axis=axis, keepdims=True)
    of_x = (h - h.mean(axis=axis, keepdims=True) - along_normal) / std
    return tuple(v.astype(x.dtype, copy=False) for v in (of_x, of_gamma, of_beta))


register(
    name="_layer_norm_grad",
    inputs=("data", "gamma", "mean", "std", "grad"),
    outputs=("data_grad", "gamma_grad", "beta_grad"),
    shape=lambda site, ins, outs: (ins, [ins[0], ins[1], ins[1]]),
    compute=layer_norm_grad,
    grad=first_order_only,
    flops=flops_per_element(10),
    dtype=floats,
    params={"axis": params.integer(-1)},
    doc="Gradients of LayerNorm with the mean and standard deviation that it used.",
)


# -- InstanceNorm and GroupNorm ------------------------------------------------------------------
#
# Both normalise (batch, channel, ...) data as (batch, group, elements): InstanceNorm's groups are
# the channels. gamma and beta have one number for each group, in GroupNorm too (MXNet 1.9.1).


def group_count(attrs: Attrs, data: Shape) -> int:
    return int(attrs.get("num_groups", data[1]))


def group_norm_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    if site.attrs.get("output_mean_var"):
        refuse_visible_statistics(site)
    data, *vectors = ins
    data = unify(site, data, outs[0], "shapes of data and output")
    if data is None:
        return ins, outs
    if len(data) < 3:
        site.fail(f"works on (batch, channel, ...) data of 3 axes or more, not on shape {data}")
    groups = group_count(site.attrs, data)
    if groups < 1 <= data[1] or (groups and data[1] % groups):
        site.fail(f"num_groups={groups} does not divide the {data[1]} channels of shape {data}")
    length: Partial = (groups,)
    for name, vector in zip(("gamma", "beta"), vectors, strict=True):
        length = expect(site, name, vector, length, f"(data of shape {data})")
    assert length is not None
    if "num_groups" not in site.attrs:
        data = (data[0], *length, *data[2:])
    statistics = unify(site, (data[0], *length), outs[1])
    return [data, length, length], [data, statistics, statistics]


def group_norm(env: Env, a: Attrs, x: Array, gamma: Array, beta: Array) -> tuple[Array, ...]:
    rows = x.reshape(*x.shape[:1], group_count(a, x.shape), -1)
    mean = rows.mean(axis=2, dtype=wide(x.dtype))
    y = rows - mean[:, :, None]
    std = env.xp.sqrt(env.xp.square(y).mean(axis=2) + a["eps"])
    y *= (gamma / std)[:, :, None]
    y += beta[:, None]
    return tuple(v.astype(x.dtype, copy=False) for v in (y.reshape(x.shape), mean, std))


def group_norm_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    data, *vectors = ins
    if any(layout is not WHOLE for layout in vectors):
        refuse_mixing(site, "has parameters that depend on the samples")
    if data is PARTIAL:
        refuse_mixing(site, "applies a nonlinear function to a sum over the batch")
    return not_along(lambda a, rank: range(1, rank))(site, [data], in_types[:1], outs)


def group_norm_grad(
    env: Env, a: Attrs, x: Array, gamma: Array, mean: Array, std: Array, g: Array
) -> tuple[Array, ...]:
    shape, dtype = (*mean.shape, -1), wide(x.dtype)
    centred = x.reshape(shape).astype(dtype, copy=False) - mean[:, :, None]
    normal = centred / std[:, :, None]
    g = g.reshape(shape)
    of_gamma = (g * normal).sum(axis=(0, 2))
    of_beta = g.sum(axis=(0, 2), dtype=dtype)
    h = g * gamma.astype(dtype, copy=False)[:, None]
    along_normal = normal * (h * normal).mean(axis=2, keepdims=True)
    of_x = (h - h.mean(axis=2, keepdims=True) - along_normal) / std[:, :, None]
    return tuple(v.astype(x.dtype, copy=False) for v in (of_x.reshape(x.shape), of_gamma, of_beta))


register(
    name="_group_norm_grad",
    inputs=("data", "gamma", "mean", "std", "grad"),
    outputs=("data_grad", "gamma_grad", "beta_grad"),
    shape=lambda site, ins, outs: (ins, [ins[0], ins[1], ins[1]]),
    compute=group_norm_grad,
    grad=first_order_only,
    flops=flops_per_element(10),
    dtype=floats,
    doc="Gradients of InstanceNorm and GroupNorm with the mean and standard deviation that they "
    "used.",
)

for name, spec, doc in (
    (
        "InstanceNorm",
        {"eps": params.number(1e-3)},
        "of each sample and channel; gamma and beta have one number for each channel",
    ),
    (
        "GroupNorm",
        {
            "num_groups": params.count(1),
            "eps": params.number(1e-5),
            "output_mean_var": params.boolean(False),
        },
        "of each sample and group of channels; gamma and beta have one number for each group",
    ),
):
    register(
        name=name,
        inputs=("data", "gamma", "beta"),
        outputs=("output", "mean", "std"),
        visible=1,
        shape=group_norm_shape,
        compute=group_norm,
        grad=lambda c: apply_all("_group_norm_grad", *c.x[:2], *c.y[1:], c.gy),
        flops=flops_per_element(7),
        dtype=floats,
        batch=group_norm_batch,
        params=spec,
        precision=INSIDE,
        doc="(data - mean) / sqrt(var + eps) * gamma + beta with mean and (biased) variance "
        f"{doc}. data: (batch, channel, ...). MXNet {name}.",
    )
