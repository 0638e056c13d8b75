"""Operators on shards of the class axis: SoftmaxOutput in pieces, and the figures that join them.

Shard i has the classes [begin, begin + its length) of `classes`. A softmax over all of them needs
two numbers a row from each shard, its maximum and its sum of exponentials; brought together they
let every shard make its own probabilities, and the whole row is nowhere. What the pieces of a
value add up to, with their gradients, is what the operator on the whole gives, to rounding:
`symgraph/passes/shard.py` puts them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import WHOLE, Layouts, Split, kept, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref
from symgraph.core.registry import FULL, Call, Env, Shapes, no_flops, register
from symgraph.core.shapes import expect, same
from symgraph.core.types import Array, Types, wide
from symgraph.ops.elementwise import DTypes, arg_names, floats
from symgraph.ops.index import SHARD, inside
from symgraph.ops.joins import concat_grad, concat_shape
from symgraph.ops.loss import HEAD, SMOOTH, classes_of, head_grad, labelled, targets
from symgraph.ops.softmax import flops_per_element


def own(xp: Any, a: Attrs, label: Array, count: int) -> tuple[tuple[Array, ...], Array]:
    """`inside` for labels, of which some may be ignored."""
    return inside(xp, a, targets(xp, a, label, a["classes"]), count)


# -- figures of rows ---------------------------------------------------------------------------


def row_figures_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    return ins, [None if ins[0] is None else (2, *ins[0][:-1])]


def row_figures_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    known, (dtype,) = floats(site, ins)
    return known, [wide(dtype)]


def row_figures_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    data = ins[0]
    if data is WHOLE:
        return [WHOLE]
    if not isinstance(data, Split) or data.axis == len(in_types[0].shape) - 1:
        refuse_mixing(site, "takes figures of rows that are not samples")
    return [Split(data.axis + 1, data.outer, data.inner)]


def row_figures(env: Env, a: Attrs, x: Array) -> Array:
    xp, dtype = env.xp, wide(x.dtype)
    top = xp.maximum(x.max(axis=-1), xp.finfo(x.dtype).min)  # of a row of -inf: finite
    total = xp.exp(x - top[..., None]).sum(axis=-1, dtype=dtype)
    figures: Array = xp.stack([top.astype(dtype), total])
    return figures


register(
    name="_shard_row_figures",
    inputs=("data",),
    shape=row_figures_shape,
    compute=row_figures,
    flops=flops_per_element(3),
    dtype=row_figures_dtype,
    batch=row_figures_batch,
    precision=FULL,
    doc="For data (..., V) the maximum m of each row and the sum of exp(data - m): (2, ...). "
    "No gradient flows: what reads it has the gradient of all shards' data.",
)


def joined_figures(env: Env, a: Attrs, *parts: Array) -> Array:
    tops = env.xp.stack([part[0] for part in parts])
    top = tops.max(axis=0)
    total = sum(part[1] * env.xp.exp(own - top) for part, own in zip(parts, tops, strict=True))
    joined: Array = env.xp.stack([top, total])
    return joined


register(
    name="_shard_join_figures",
    inputs=arg_names,
    shape=same,
    compute=joined_figures,
    flops=lambda attrs, ins, outs: 4 * sum(t.size for t in ins),
    dtype=floats,
    params={"num_args": params.integer()},
    variadic="num_args",
    precision=FULL,
    doc="The figures of whole rows (see `_shard_row_figures`) from those of their shards.",
)


def with_figures_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Data (..., classes of the shard), label (...), figures of rows (2, ...)."""
    data, label, figures, *valid = ins
    if data is None:
        return ins, outs
    label = expect(site, "label", label, data[:-1], f"(data of shape {data})")
    figures = expect(site, "figures", figures, (2, *data[:-1]), f"(data of shape {data})")
    return [data, label, figures, *(expect(site, "valid", v, (1,)) for v in valid)], [data]


def with_figures_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    data, label, figures, *rest = ins
    known = labelled(site, [data, label, *rest])
    return [*known[:2], figures or wide(known[0]), *known[2:]], [str(known[0])]


def with_figures_batch(site: Site, ins: Layouts) -> bool:
    """Whether the batch lies in the data, and so in labels and figures."""
    data, label, figures, *_ = ins
    if data is WHOLE and label is WHOLE and figures is WHOLE:
        return False
    if not isinstance(data, Split) or data != label:
        refuse_mixing(site, "needs data and labels whose batch lies alike")
    if figures != Split(data.axis + 1, data.outer, data.inner):
        refuse_mixing(site, "needs data and figures whose batch lies alike")
    return True


def probabilities(xp: Any, x: Array, figures: Array) -> Array:
    """The shard's part of softmax(x) over all classes, in x's dtype."""
    y: Array = x - figures[0][..., None].astype(x.dtype)
    xp.exp(y, out=y)
    y /= figures[1][..., None]
    return y


# -- SoftmaxOutput -----------------------------------------------------------------------------


def head_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    split = with_figures_batch(site, ins)
    if split and site.attrs["normalization"] == "valid" and ins[3:] != [WHOLE]:
        refuse_mixing(site, "divides by a count of labels that is not the whole batch's")
    return [ins[0]]


register(
    name="_shard_softmax_output",
    inputs=("data", "label", "figures"),
    shape=with_figures_shape,
    compute=lambda env, a, x, label, figures, *_: probabilities(env.xp, x, figures),
    grad=head_grad,
    flops=flops_per_element(3),
    dtype=with_figures_dtype,
    batch=head_batch,
    params={**HEAD, **SMOOTH, **SHARD, "out_grad": params.boolean(False)},
    divisor=lambda attrs, ins: ins[1].size,
    loss=True,
    precision=FULL,
    in_place=((0, 0),),
    ids={"label": classes_of},
    doc="One shard of SoftmaxOutput over the last axis, a head of the backward pass by itself. A "
    "fourth input holds the count of valid labels.",
)


def join_grad(c: Call) -> Sequence[Ref | None]:
    return [None] * len(c.x) if c.g[0] is None else concat_grad(c)


register(
    name="_shard_join",
    inputs=arg_names,
    shape=concat_shape,
    compute=lambda env, a, *xs: env.xp.concatenate(xs, a["dim"]),
    grad=join_grad,
    flops=no_flops,
    batch=kept,  # the layout of every shard of one head
    params={"num_args": params.integer(), "dim": params.integer(-1)},
    variadic="num_args",
    loss=True,
    doc="The output of a loss from those of its shards; needs no gradient, as the loss needs none.",
)
