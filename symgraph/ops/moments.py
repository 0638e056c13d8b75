"""Moments: the parts of a batch normalisation whose batch lies on several devices.

BatchNorm takes statistics, moves its averages and normalises in one; here each is an operator, so
that sums over devices fit in between. `symgraph/chainermn/multi_node_norm.py` puts them together.
"""

from __future__ import annotations

from collections.abc import Sequence

from symgraph.core import params
from symgraph.core.batch_layout import WHOLE, Layouts, kept, refuse_mixing
from symgraph.core.errors import DTypeError
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply, apply_all
from symgraph.core.registry import Call, Env, Shapes, register
from symgraph.core.shapes import axes_of, same
from symgraph.core.types import Array, Types, is_float, wide
from symgraph.ops.nn import (
    batch_norm_dtype,
    column,
    first_order_only,
    norm_shape,
    normalized,
    other_axes,
)
from symgraph.ops.softmax import flops_per_element

AXIS = {"axis": params.integer(1)}
SCALED = {**AXIS, "eps": params.number(1e-3), "fix_gamma": params.boolean(True)}


def one_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Refuse micro-batches: statistics are those of the whole batch."""
    if any(layout is not WHOLE for layout in ins):
        refuse_mixing(site, "normalises by statistics of the batch")
    return [WHOLE] * len(outs)


# -- statistics ----------------------------------------------------------------------------------


def moments_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = ins[0]
    if data is None:
        return ins, outs
    (axis,) = axes_of(site, site.attrs["axis"], len(data))
    return ins, [(data[axis],), (data[axis],), (1,)]


def moments_dtype(site: Site, ins: Sequence[str | None]) -> tuple[Sequence[str | None], list[str]]:
    data = ins[0] or "float32"
    if not is_float(data):
        raise DTypeError(f"{site.op} {site.name!r}: works on floats, not {data}; add a Cast")
    return [data], [wide(data)]


def moments(env: Env, a: Attrs, x: Array) -> tuple[Array, ...]:
    dtype = env.xp.dtype(wide(x.dtype))
    mean = x.mean(axis=other_axes(x, a["axis"]), dtype=dtype)
    distance = x - mean.reshape(column(x, a["axis"]))
    var = env.xp.square(distance).mean(axis=other_axes(x, a["axis"]))
    return mean, var, env.xp.full(1, x.size // mean.size, dtype)


def moments_grad(c: Call) -> Sequence[Ref | None]:
    of_mean, of_var = (
        apply("zeros_like", y) if g is None else g for y, g in zip(c.y, c.g[:2], strict=False)
    )
    return (apply("_moments_grad", c.x[0], c.y[0], of_mean, of_var, axis=c.attrs["axis"]),)


register(
    name="_moments",
    inputs=("data",),
    outputs=("mean", "var", "count"),
    shape=moments_shape,
    compute=moments,
    grad=moments_grad,
    flops=lambda attrs, ins, outs: 4 * ins[0].size,
    dtype=moments_dtype,
    batch=one_batch,
    params=AXIS,
    doc="Mean and (biased) variance over all axes but `axis`, and the number of elements (1,).",
)


def moments_gradient(
    env: Env, a: Attrs, x: Array, mean: Array, of_mean: Array, of_var: Array
) -> Array:
    shape, count = column(x, a["axis"]), x.size // mean.size
    of_x = (x - mean.reshape(shape)) * (of_var * (2 / count)).reshape(shape)
    of_x += (of_mean / count).reshape(shape)
    return of_x.astype(x.dtype, copy=False)


register(
    name="_moments_grad",
    inputs=("data", "mean", "mean_grad", "var_grad"),
    shape=lambda site, ins, outs: (ins, [ins[0]]),
    compute=moments_gradient,
    grad=first_order_only,
    flops=flops_per_element(4),
    dtype=lambda site, ins: (ins, [str(ins[0])]),
    params=AXIS,
    doc="Gradient of _moments' data from those of mean and variance.",
)


# -- moving averages -------------------------------------------------------------------------------


def chosen(env: Env, batch: Array, moving: Array) -> Array:
    return batch if env.train else moving


def chosen_grad(c: Call) -> Sequence[Ref | None]:
    """In evaluation no gradient reaches the batch's statistic."""
    return apply("_batch_or_moving", c.gy, apply("zeros_like", c.gy)), None


def moved(env: Env, a: Attrs, batch: Array, moving: Array) -> tuple[Array, Array]:
    keep = a["momentum"]
    after = keep * moving + (1 - keep) * batch if env.train else moving
    return chosen(env, batch, moving), after.astype(moving.dtype, copy=False)


register(
    name="_batch_or_moving",
    inputs=("batch", "moving"),
    shape=same,
    compute=lambda env, a, batch, moving: chosen(env, batch, moving),
    grad=chosen_grad,
    batch=one_batch,
    doc="A statistic of the batch in training, its moving average in evaluation.",
)

register(
    name="_moving_average",
    inputs=("batch", "moving"),
    outputs=("output", "moving"),
    visible=1,
    aux=("moving",),
    aux_outputs=(1,),
    shape=same,
    compute=moved,
    grad=chosen_grad,
    batch=one_batch,
    params={"momentum": params.number(0.9)},
    doc="_batch_or_moving; training moves moving to momentum * moving + (1 - momentum) * batch.",
)


# -- normalisation -----------------------------------------------------------------------------


def normalize_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, vectors = norm_shape(site, ins[0], outs[0], ins[1:])
    return [data, *vectors], [data]


register(
    name="_normalize",
    inputs=("data", "gamma", "beta", "mean", "var"),
    shape=normalize_shape,
    compute=normalized,
    grad=lambda c: apply_all("_normalize_grad", c.x[0], c.x[1], *c.x[3:], c.gy, **c.attrs),
    flops=flops_per_element(3),
    dtype=lambda site, ins: (batch_norm_dtype(site, ins)[0], [ins[0] or "float32"]),
    batch=kept,
    params=SCALED,
    full_inputs=("gamma", "beta", "mean", "var"),
    doc="(data - mean) / sqrt(var + eps) * gamma + beta with vectors along `axis`. fix_gamma: "
    "gamma is 1 and its gradient 0.",
)


def normalize_gradient(
    env: Env, a: Attrs, x: Array, gamma: Array, mean: Array, var: Array, g: Array
) -> tuple[Array, ...]:
    shape, axes = column(x, a["axis"]), other_axes(x, a["axis"])
    rstd = 1 / env.xp.sqrt(var + a["eps"])
    normal = (x - mean.reshape(shape)) * rstd.reshape(shape)
    of_gamma = (g * normal).sum(axis=axes)
    of_beta = g.sum(axis=axes, dtype=gamma.dtype)
    scale = rstd if a["fix_gamma"] else rstd * gamma
    of_x = (g * scale.reshape(shape)).astype(x.dtype, copy=False)
    of_var = of_gamma * scale * rstd / -2
    own = env.xp.zeros_like(gamma) if a["fix_gamma"] else of_gamma
    return of_x, own, of_beta, -of_beta * scale, of_var


register(
    name="_normalize_grad",
    inputs=("data", "gamma", "mean", "var", "grad"),
    outputs=("data_grad", "gamma_grad", "beta_grad", "mean_grad", "var_grad"),
    shape=lambda site, ins, outs: (ins, [ins[0], *[ins[1]] * 4]),
    compute=normalize_gradient,
    grad=first_order_only,
    flops=flops_per_element(7),
    dtype=lambda site, ins: (ins, [str(ins[0]), *[str(ins[1])] * 4]),
    params=SCALED,
    doc="Gradients of _normalize.",
)
