"""Operators on shards of the class axis that are summed: cross entropy, perplexity, look-ups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import PARTIAL, WHOLE, Layouts, Split, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import FULL, INSIDE, Call, Env, Shapes, no_flops, register
from symgraph.core.shapes import expect, same
from symgraph.core.types import Array, Types, wide
from symgraph.ops.cross_entropy import figures_batch, picked_nll
from symgraph.ops.index import checked, embedding_batch, ids_first_dtype, scatter_rows
from symgraph.ops.loss import IGNORE, labelled, labelled_dtype
from symgraph.ops.sharded import (
    LABEL_OF_ALL,
    SHARD,
    inside,
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
    ids=LABEL_OF_ALL,
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
    ids=LABEL_OF_ALL,
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
    ids=LABEL_OF_ALL,
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


# -- Embedding ---------------------------------------------------------------------------------


def embedding_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    ids, weight = ins
    return ins, [None if ids is None or weight is None else (*ids, weight[-1])]


def embedding(env: Env, a: Attrs, ids: Array, w: Array) -> Array:
    found: Array = env.xp.zeros((*ids.shape, w.shape[1]), w.dtype)
    places, at = inside(env.xp, a, checked(ids, a["classes"]), len(w))
    found[places] = w[at]
    return found


def embedding_grad(c: Call) -> Sequence[Ref | None]:
    rows = c.x[1].shape[0]
    return None, apply("_shard_embedding_grad", c.x[0], c.gy, rows=rows, **c.attrs)


register(
    name="_shard_embedding",
    inputs=("data", "weight"),
    shape=embedding_shape,
    compute=embedding,
    grad=embedding_grad,
    flops=no_flops,
    dtype=ids_first_dtype,
    batch=embedding_batch,
    params=SHARD,
    precision=INSIDE,
    reads_on_host=True,
    ids={"data": lambda attrs, ins: attrs["classes"]},
    reads_part=True,
    doc="Embedding's rows for the ids that are in the shard, zeros for the others.",
)


def embedding_grad_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    grad = ins[1]
    return ins, [None if grad is None else (site.attrs["rows"], grad[-1])]


def embedding_grad_compute(env: Env, a: Attrs, ids: Array, g: Array) -> Array:
    places, at = inside(env.xp, a, checked(ids, a["classes"]), a["rows"])
    if not at.size:
        none: Array = env.xp.zeros((a["rows"], g.shape[-1]), g.dtype)
        return none
    return scatter_rows(env.xp, at, g[places], a["rows"])


register(
    name="_shard_embedding_grad",
    inputs=("data", "grad"),
    shape=embedding_grad_shape,
    compute=embedding_grad_compute,
    grad=lambda c: (
        None,
        apply("_shard_embedding", c.x[0], c.gy, **{k: c.attrs[k] for k in SHARD}),
    ),
    flops=lambda attrs, ins, outs: ins[1].size,
    dtype=ids_first_dtype,
    params={"rows": params.integer(), **SHARD},
    reads_on_host=True,
    ids={"data": lambda attrs, ins: attrs["classes"]},
    doc="Gradient of `_shard_embedding`'s weight of that many rows.",
)
