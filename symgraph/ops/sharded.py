"""Operators on shards of the class axis: SoftmaxOutput, cross entropy and nll_stats in pieces.

Shard i has the classes [begin, begin + its length) of `classes`. A softmax over all of them needs
two numbers per row from each shard, its maximum and its sum of exponentials ("figures"); once they
are joined, every shard can compute its own probabilities, and no device holds a whole row. The
pieces, joined or summed by `symgraph/passes/shard.py`, and their gradients equal those of the whole
operator up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import PARTIAL, WHOLE, Layouts, Split, kept, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import FULL, Call, Env, Shapes, no_flops, register
from symgraph.core.shapes import expect, same
from symgraph.core.types import Array, Types, wide
from symgraph.ops.cross_entropy import figures_batch, picked_nll
from symgraph.ops.elementwise import DTypes, arg_names, floats
from symgraph.ops.index import SHARD, inside
from symgraph.ops.joins import concat_grad, concat_shape
from symgraph.ops.loss import (
    HEAD,
    IGNORE,
    SMOOTH,
    classes_of,
    head_grad,
    labelled,
    labelled_dtype,
    targets,
)
from symgraph.ops.softmax import flops_per_element


def own(xp: Any, a: Attrs, label: Array, count: int) -> tuple[tuple[Array, ...], Array]:
    """`inside` for labels, some of which may be ignored."""
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
    doc="For data (..., V) the maximum m of each row and the sum of exp(data - m): (2, ...). No "
    "gradient flows: its readers have the gradient of all shards' data.",
)


def joined_figures(env: Env, a: Attrs, *parts: Array) -> Array:
    tops = env.xp.stack([part[0] for part in parts])
    top = tops.max(axis=0)
    total = sum(
        part[1] * env.xp.exp(own_top - top) for part, own_top in zip(parts, tops, strict=True)
    )
    joined: Array = env.xp.stack([top, total])
    return joined


register(
    name="_shard_join_figures",
    inputs=arg_names,
    shape=same,
    compute=joined_figures,
    flops=lambda attrs, ins, outs: 4 * sum(t.size for t in ins),
    dtype=floats,
    params={"num_args": params.count(most=params.MAX_PARTS)},
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
    """Return the shard's part of softmax(x) over all classes, in x's dtype."""
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
    params={"num_args": params.count(most=params.MAX_PARTS), "dim": params.integer(-1)},
    variadic="num_args",
    loss=True,
    doc="The output of a loss, joined from its shards; it needs no gradient, as a loss needs none.",
)


# -- cross entropy and perplexity, which are summed over shards -----------------------------------


def sum_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    return [PARTIAL if with_figures_batch(site, ins) else WHOLE]


def cross_entropy(env: Env, a: Attrs, x: Array, label: Array, figures: Array) -> Any:
    places, at = own(env.xp, a, label, x.shape[-1])
    top, total = figures[0][places], figures[1][places]
    chosen = x[(*places, at)] - top.astype(x.dtype) - env.xp.log(total).astype(x.dtype)
    return -chosen.sum(dtype=wide(x.dtype)).astype(x.dtype).reshape(1)


def cross_entropy_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    return with_figures_shape(site, ins, outs)[0], [(1,)]


def cross_entropy_grad(c: Call) -> Sequence[Ref | None]:
    residual = apply("_shard_residual", *c.x, **c.attrs)
    return apply("broadcast_mul", residual, c.gy), None, None


register(
    name="_shard_cross_entropy",
    inputs=("data", "label", "figures"),
    shape=cross_entropy_shape,
    compute=cross_entropy,
    grad=cross_entropy_grad,
    flops=lambda attrs, ins, outs: 4 * ins[1].size,
    dtype=with_figures_dtype,
    batch=sum_batch,
    params={**IGNORE, **SHARD},
    precision=FULL,
    reads_on_host=True,
    ids={"label": classes_of},
    doc="The shard's part of softmax_cross_entropy: the sum over samples whose label is in the "
    "shard. Its gradient is that of the sum over all shards.",
)


def residual(env: Env, a: Attrs, x: Array, label: Array, figures: Array) -> Array:
    rest = probabilities(env.xp, x, figures)
    places, at = own(env.xp, a, label, x.shape[-1])
    rest[(*places, at)] -= 1
    return rest


register(
    name="_shard_residual",
    inputs=("data", "label", "figures"),
    shape=with_figures_shape,
    compute=residual,
    flops=flops_per_element(3),
    dtype=with_figures_dtype,
    params={**IGNORE, **SHARD},
    reads_on_host=True,
    ids={"label": classes_of},
    doc="The shard's part of softmax(data) - onehot(label).",
)


def pick_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    prob, label = ins
    if prob is not None:
        label = expect(site, "label", label, prob[:-1], f"(prob of shape {prob})")
    return [prob, label], [label]


def pick_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    prob, label = ins
    if prob is not WHOLE and (not isinstance(prob, Split) or prob != label):
        refuse_mixing(site, "needs data and labels whose batch lies alike")
    return [label]


def pick(env: Env, a: Attrs, prob: Array, label: Array) -> Array:
    picked: Array = env.xp.zeros(label.shape, prob.dtype)
    places, at = own(env.xp, a, label, prob.shape[-1])
    picked[places] = prob[(*places, at)]
    return picked


register(
    name="_shard_pick",
    inputs=("prob", "label"),
    shape=pick_shape,
    compute=pick,
    flops=no_flops,
    dtype=labelled_dtype,
    batch=pick_batch,
    params={**IGNORE, **SHARD},
    precision=FULL,
    reads_on_host=True,
    ids={"label": classes_of},
    reads_part=True,
    doc="The probability of each label in the shard, 0 for other labels; summed over shards, the "
    "probability of the label.",
)


def picked_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    return same(site, ins, [])[0], [(1,)] * len(outs)


register(
    name="_picked_nll",
    inputs=("picked", "label"),
    outputs=("nll", "count"),
    shape=picked_shape,
    compute=picked_nll,
    flops=lambda attrs, ins, outs: 2 * ins[1].size,
    dtype=lambda site, ins: (labelled(site, ins), ["float64"]),
    batch=figures_batch,
    params=IGNORE,
    precision=FULL,
    doc="nll_stats of probabilities that have been picked.",
)
