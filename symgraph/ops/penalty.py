"""Penalties that only gradients see: IdentityAttachKLSparseReg."""

from __future__ import annotations

from collections.abc import Sequence

from symgraph.core import params
from symgraph.core.batch_layout import WHOLE, Layouts, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import FULL, Call, Env, Shapes, register
from symgraph.core.shapes import expect, unify
from symgraph.core.types import Array, Types
from symgraph.ops.elementwise import floats


def sparse_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = unify(site, ins[0], outs[0], "shapes of data and output")
    if data is None:
        return ins, outs
    if len(data) != 2:
        site.fail(f"works on (batch, units) data, not on shape {data}")
    average = expect(site, "moving_avg", ins[1], data[1:], f"(data of shape {data})")
    return [data, average], [data, average]


def sparse_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    if any(layout is not WHOLE for layout in ins):
        refuse_mixing(site, "has a penalty on averages over the batch")
    return [WHOLE, WHOLE]


def sparse(env: Env, a: Attrs, x: Array, moving: Array) -> tuple[Array, Array]:
    if not env.train:
        return x, moving
    after = a["momentum"] * moving + (1 - a["momentum"]) * x.mean(axis=0)
    return x, after.astype(moving.dtype, copy=False)


def sparse_grad(c: Call) -> Sequence[Ref | None]:
    """Add the slope of KL(target || average), as if each sample's value were the average."""
    target, average = c.attrs["sparseness_target"], c.y[1]
    wrong = apply("reciprocal", 1.0 - average) * (1 - target)
    slope = (wrong - apply("reciprocal", average) * target) * c.attrs["penalty"]
    row = apply("expand_dims", slope, axis=0)
    return apply("broadcast_add", c.gy, row), None


register(
    name="IdentityAttachKLSparseReg",
    inputs=("data", "moving_avg"),
    outputs=("output", "moving_avg"),
    visible=1,
    aux=("moving_avg",),
    aux_outputs=(1,),
    shape=sparse_shape,
    compute=sparse,
    grad=sparse_grad,
    flops=lambda attrs, ins, outs: ins[0].size,
    dtype=floats,
    batch=sparse_batch,
    params={
        "sparseness_target": params.number(0.1),
        "penalty": params.number(0.001),
        "momentum": params.number(0.9),
    },
    precision=FULL,
    doc="The data (batch, units), which are outputs of a sigmoid; the gradient has penalty * ((1 - "
    "target) / (1 - average) - target / average) added, so that each unit is as seldom active as "
    "sparseness_target says. Training moves the average of each unit, moving_avg, to momentum * "
    "moving_avg + (1 - momentum) * the batch's mean; the gradient sees it moved. MXNet "
    "IdentityAttachKLSparseReg.",
)
