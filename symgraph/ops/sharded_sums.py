"""Operators on shards of the class axis that are summed: cross entropy and perplexity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgraph.core.batch_layout import PARTIAL, WHOLE, Layouts, Split, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import FULL, Call, Env, Shapes, no_flops, register
from symgraph.core.shapes import expect, same
from symgraph.core.types import Array, Types, wide
from symgraph.ops.cross_entropy import figures_batch, picked_nll
from symgraph.ops.index import SHARD
from symgraph.ops.loss import IGNORE, classes_of, labelled, labelled_dtype
from symgraph.ops.sharded import (
    own,
    probabilities,
    with_figures_batch,
    with_figures_dtype,
    with_figures_shape,
)
from symgraph.ops.softmax import flops_per_element


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
    doc="The shard's part of softmax_cross_entropy: the sum over samples whose label is in it. "
    "Its gradient is that of the sum over all shards.",
)


def residual(env: Env, a: Attrs, x: Array, label: Array, figures: Array) -> Array:
    found = probabilities(env.xp, x, figures)
    places, at = own(env.xp, a, label, x.shape[-1])
    found[(*places, at)] -= 1
    return found


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
    doc="softmax(data) - onehot(label): the shard's part of them.",
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
    found: Array = env.xp.zeros(label.shape, prob.dtype)
    places, at = own(env.xp, a, label, prob.shape[-1])
    found[places] = prob[(*places, at)]
    return found


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
    doc="The probability of each label that is in the shard, 0 for the others: the sum over "
    "shards is the probability of the label.",
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
    doc="nll_stats of probabilities that are picked already.",
)
