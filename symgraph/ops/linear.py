"""Matrix products: FullyConnected, dot and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import PARTIAL, WHOLE, Layouts, Split, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import LOW, Call, Env, Shapes, register
from symgraph.core.shapes import expect, unify
from symgraph.core.types import Array, Types


def fc_inputs(attrs: Attrs) -> tuple[str, ...]:
    return ("data", "weight") if attrs["no_bias"] else ("data", "weight", "bias")


def fc_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, weight, *bias = ins
    units, flatten = site.attrs["num_hidden"], site.attrs["flatten"]
    inner = weight[1] if weight is not None and len(weight) == 2 else 0
    if data is not None:
        rest = data[1:] if flatten else data[-1:]
        inner = math.prod(rest)
        rows = data[:1] if flatten else data[:-1]
        outs = [unify(site, (*rows, units), outs[0], "output shapes")]
        if outs[0] is not None and not flatten:
            data = (*outs[0][:-1], data[-1] or (weight[1] if weight else 0))
        elif outs[0] is not None:
            data = (outs[0][0], *data[1:])
    weight = expect(site, "weight", weight, (units, inner), f"(data of shape {data})")
    return [data, weight, *(expect(site, "bias", b, (units,)) for b in bias)], outs


def fc_compute(env: Env, a: Attrs, x: Array, w: Array, b: Array | None = None) -> Array:
    leading = x.shape[:1] if a["flatten"] else x.shape[:-1]
    rows = x.reshape(-1, w.shape[1])  # one product, not one per leading index
    y: Array = rows @ w.T
    if b is not None:
        y += b
    return y.reshape(*leading, w.shape[0])


def fc_grad(c: Call) -> Sequence[Ref]:
    x, w = c.x[:2]
    gx = apply("_fc_grad_data", c.gy, w, shape=x.shape)
    gw = apply("_fc_grad_weight", c.gy, x)
    return [gx, gw, *(apply("_sum_rows", c.gy) for _ in c.x[2:])]


def fc_flops(attrs: Attrs, ins: Types, outs: Types) -> int:
    return 2 * outs[0].size * ins[1].shape[1]


def fc_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    data, *rest = ins
    if any(layout is not WHOLE for layout in rest):
        refuse_mixing(site, "has weights that depend on the samples")
    if data is PARTIAL and len(ins) == 3:
        refuse_mixing(site, "adds a constant to a sum over the batch")
    rows = 1 if site.attrs["flatten"] else len(in_types[0].shape) - 1
    if isinstance(data, Split) and data.axis >= rows:
        refuse_mixing(site, "sums over the batch axis")
    return [data]


register(
    name="FullyConnected",
    inputs=fc_inputs,
    shape=fc_shape,
    compute=fc_compute,
    grad=fc_grad,
    flops=fc_flops,
    batch=fc_batch,
    params={
        "num_hidden": params.count(),
        "no_bias": params.boolean(False),
        "flatten": params.boolean(True),
    },
    precision=LOW,
    rowwise=(0,),
    caption=lambda attrs: str(attrs["num_hidden"]),
    doc="y = x W^T + b with data (B, ...), weight (num_hidden, inputs) and bias (num_hidden,). "
    "With flatten=False only the last axis is the input axis. MXNet FullyConnected.",
)


def grad_data_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    return ins, [site.attrs["shape"]]


register(
    name="_fc_grad_data",
    inputs=("grad", "weight"),
    shape=grad_data_shape,
    compute=lambda env, a, g, w: (g.reshape(-1, w.shape[0]) @ w).reshape(a["shape"]),
    grad=lambda c: (
        apply(
            "FullyConnected",
            c.gy,
            c.x[1],
            num_hidden=c.x[1].shape[0],
            no_bias=True,
            flatten=c.x[0].shape[:-1] != c.gy.shape[:-1],
        ),
        apply("_fc_grad_weight", c.x[0], c.gy),
    ),
    flops=lambda attrs, ins, outs: 2 * ins[0].size * ins[1].shape[1],
    params={"shape": params.integers()},
    rowwise=(0,),
    doc="Gradient of FullyConnected's data: grad (..., num_hidden) times weight.",
)


def grad_weight_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    grad, x = ins
    if grad is None or x is None or 0 in grad + x:
        return ins, outs
    return ins, [(grad[-1], math.prod(x) // math.prod(grad[:-1]))]


def grad_weight(env: Env, a: Attrs, g: Array, x: Array) -> Array:
    g = g.reshape(-1, g.shape[-1])
    return g.T @ x.reshape(g.shape[0], -1)


register(
    name="_fc_grad_weight",
    inputs=("grad", "data"),
    shape=grad_weight_shape,
    compute=grad_weight,
    grad=lambda c: (
        apply(
            "FullyConnected",
            c.x[1],
            c.gy,
            num_hidden=c.gy.shape[0],
            no_bias=True,
            flatten=c.x[0].shape[:-1] != c.x[1].shape[:-1],
        ),
        apply("_fc_grad_data", c.x[0], c.gy, shape=c.x[1].shape),
    ),
    flops=lambda attrs, ins, outs: 2 * ins[0].size * outs[0].shape[1],
    row_sums=(0, 1),
    doc="Gradient of FullyConnected's weight: grad^T times data, both as rows.",
)

register(
    name="_sum_rows",
    inputs=("data",),
    shape=lambda site, ins, outs: (ins, [None if ins[0] is None else ins[0][-1:]]),
    compute=lambda env, a, x: x.reshape(-1, x.shape[-1]).sum(axis=0),
    grad=lambda c: (apply("_broadcast_rows", c.gy, shape=c.x[0].shape),),
    flops=lambda attrs, ins, outs: ins[0].size,
    row_sums=(0,),
    doc="The sum over all axes but the last: (..., N) to (N,). Gradient of a bias.",
)

register(
    name="_broadcast_rows",
    inputs=("data",),
    shape=grad_data_shape,
    compute=lambda env, a, x: env.xp.broadcast_to(x, a["shape"]).copy(),
    grad=lambda c: (apply("_sum_rows", c.gy),),
    params={"shape": params.integers()},
    doc="One row repeated: (N,) to (..., N).",
)


def dot_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    lhs, rhs = ins
    if lhs is None or rhs is None:
        return ins, outs
    (*left, inner), (other, *right) = lhs, rhs
    if site.attrs["transpose_a"]:
        inner, *left = lhs
    if site.attrs["transpose_b"]:
        *right, other = rhs
    if inner != other and inner and other:
        site.fail(f"inner sizes differ: {inner} and {other} (shapes {lhs} and {rhs})")
    return ins, [unify(site, (*left, *right) or (1,), outs[0], "output shapes")]


def dot_compute(env: Env, a: Attrs, x: Array, y: Array) -> Any:
    x = env.xp.moveaxis(x, 0, -1) if a["transpose_a"] else x
    y = env.xp.moveaxis(y, -1, 0) if a["transpose_b"] else y
    return env.xp.tensordot(x, y, axes=1).reshape(x.shape[:-1] + y.shape[1:] or (1,))


def dot_grad(c: Call) -> Sequence[Ref]:
    (x, y), g = c.x, c.gy
    ta, tb = c.attrs["transpose_a"], c.attrs["transpose_b"]
    if len(x.shape) == 1 and len(y.shape) == 1:
        g = apply("broadcast_to", g, shape=x.shape)
        return g * y, g * x
    if (len(x.shape), len(y.shape)) == (2, 2):
        return matrix_grad(x, y, g, ta, tb)
    inner = x.shape[0 if ta else -1]
    rows, columns = math.prod(x.shape) // inner, math.prod(y.shape) // inner
    xm = apply("Reshape", x, shape=(inner, rows) if ta else (rows, inner))
    ym = apply("Reshape", y, shape=(columns, inner) if tb else (inner, columns))
    gx, gy = matrix_grad(xm, ym, apply("Reshape", g, shape=(rows, columns)), ta, tb)
    return apply("Reshape", gx, shape=x.shape), apply("Reshape", gy, shape=y.shape)


def matrix_grad(x: Ref, y: Ref, g: Ref, ta: bool, tb: bool) -> tuple[Ref, Ref]:
    """Return dot's gradients for two matrices, which `ta` and `tb` transpose."""
    gx = (
        apply("dot", y, g, transpose_a=tb, transpose_b=True)
        if ta
        else apply("dot", g, y, transpose_b=not tb)
    )
    gy = (
        apply("dot", g, x, transpose_a=True, transpose_b=ta)
        if tb
        else apply("dot", x, g, transpose_a=not ta)
    )
    return gx, gy


def dot_flops(attrs: Attrs, ins: Types, outs: Types) -> int:
    x = ins[0].shape
    return 2 * outs[0].size * (x[0] if attrs["transpose_a"] else x[-1])


def dot_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Linear in each argument; the batch lies on a free axis of one, or is summed over."""
    x, y = ins
    free = {WHOLE: 0, PARTIAL: 1}
    if not isinstance(x, Split) and not isinstance(y, Split):
        if free[x] + free[y] > 1:
            refuse_mixing(site, "multiplies sums over the batch")
        return [PARTIAL if free[x] + free[y] else WHOLE]
    if PARTIAL in (x, y):
        refuse_mixing(site, "multiplies a sum over the batch with samples")
    ranks = [len(t.shape) for t in in_types]
    inner = (
        0 if site.attrs["transpose_a"] else ranks[0] - 1,
        ranks[1] - 1 if site.attrs["transpose_b"] else 0,
    )
    if isinstance(x, Split) and isinstance(y, Split):
        if (x.axis, y.axis) == inner and (x.outer, x.inner) == (y.outer, y.inner):
            return [PARTIAL]
        refuse_mixing(site, "multiplies samples with one another")
    if isinstance(x, Split):
        if x.axis == inner[0]:
            refuse_mixing(site, "sums samples with constant weights")
        axis = x.axis - (1 if site.attrs["transpose_a"] else 0)
        return [Split(axis, x.outer, x.inner)]
    assert isinstance(y, Split)
    if y.axis == inner[1]:
        refuse_mixing(site, "sums samples with constant weights")
    axis = ranks[0] - 1 + y.axis - (0 if site.attrs["transpose_b"] else 1)
    return [Split(axis, y.outer, y.inner)]


register(
    name="dot",
    inputs=("lhs", "rhs"),
    shape=dot_shape,
    compute=dot_compute,
    grad=dot_grad,
    flops=dot_flops,
    batch=dot_batch,
    params={
        "transpose_a": params.boolean(False),
        "transpose_b": params.boolean(False),
        "forward_stype": params.ignored(),
    },
    precision=LOW,
    rowwise=lambda attrs: () if attrs["transpose_a"] else (0,),
    row_sums=lambda attrs: (0, 1) if attrs["transpose_a"] and not attrs["transpose_b"] else (),
    doc="The sum over the last axis of lhs (the first with transpose_a) and the first of rhs (the "
    "last with transpose_b). MXNet dot.",
)
