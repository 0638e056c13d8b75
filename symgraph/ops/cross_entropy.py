"""Cross entropy: softmax_cross_entropy, and the sums behind a perplexity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symgraph.core.batch_layout import PARTIAL, WHOLE, Layouts, Split, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import FULL, Call, Env, Shapes, register
from symgraph.core.shapes import expect, unify
from symgraph.core.types import Array, Types, wide
from symgraph.ops.index import checked
from symgraph.ops.loss import IGNORE, classes_of, ignored, labelled, labelled_dtype, targets
from symgraph.ops.softmax import flops_per_element, log_softmax


def figures_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Class numbers for the last axis of the data; sums of shape (1,)."""
    data, label = ins
    if data is not None:
        label = expect(site, "label", label, data[:-1], f"(data of shape {data})")
    if label is not None:
        data = expect(site, "data", data, (*label, 0), f"(label of shape {label})")
    return [data, label], [(1,)] * len(outs)


def figures_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    data, label = ins
    if data is WHOLE and label is WHOLE:
        return [WHOLE] * len(outs)
    if not isinstance(data, Split) or data != label:
        refuse_mixing(site, "needs data and labels whose batch lies alike")
    return [PARTIAL] * len(outs)


def cross_entropy(env: Env, a: Attrs, x: Array, label: Array) -> Any:
    xp, at = env.xp, checked(label, x.shape[1], "label")
    chosen = log_softmax(xp, x, -1)[xp.arange(at.size), at]
    return -chosen.sum(dtype=wide(x.dtype)).astype(x.dtype).reshape(1)


def cross_entropy_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, label = ins
    data = unify(site, data, (0, 0), "shape of data and (samples, classes)")
    return figures_shape(site, [data, label], outs)


def cross_entropy_grad(c: Call) -> Sequence[Ref | None]:
    data, label = c.x
    hot = apply("one_hot", label, depth=data.shape[1], dtype=data.dtype)
    return apply("broadcast_mul", apply("softmax", data) - hot, c.gy), None


register(
    name="softmax_cross_entropy",
    inputs=("data", "label"),
    shape=cross_entropy_shape,
    compute=cross_entropy,
    grad=cross_entropy_grad,
    flops=flops_per_element(4),
    dtype=labelled_dtype,
    batch=figures_batch,
    precision=FULL,
    reads_on_host=True,
    ids={"label": classes_of},
    doc="The sum over samples of -log softmax(data)[label]: data (B, V), label (B,), output (1,). "
    "It does not start the backward pass by itself. MXNet softmax_cross_entropy.",
)


def nll(env: Env, a: Attrs, prob: Array, label: Array) -> tuple[Any, Any]:
    at = (*env.xp.indices(label.shape), targets(env.xp, a, label, prob.shape[-1]))
    return picked_nll(env, a, prob[at], label)


def picked_nll(env: Env, a: Attrs, picked: Array, label: Array) -> tuple[Any, Any]:
    """Return the sums of -log p and of 1 over the labels that are not ignored."""
    xp, tiny = env.xp, float(np.finfo(picked.dtype).tiny)
    losses = -xp.log(xp.maximum(picked, tiny).astype("float64"))
    counted = ~ignored(a, label) if a["use_ignore"] else xp.ones(label.shape, bool)
    total = xp.where(counted, losses, 0.0).sum()
    return total.reshape(1), counted.sum(dtype="float64").reshape(1)


register(
    name="_nll",
    inputs=("prob", "label"),
    outputs=("nll", "count"),
    shape=figures_shape,
    compute=nll,
    flops=lambda attrs, ins, outs: 2 * ins[1].size,
    dtype=lambda site, ins: (labelled(site, ins), ["float64"]),
    batch=figures_batch,
    params=IGNORE,
    aliases=("nll_stats",),
    precision=FULL,
    reads_on_host=True,
    ids={"label": classes_of},
    doc="Two float64 sums of shape (1,) over the labels that are not ignored: -log of the "
    "probability (last axis) of the label, and their number. exp of their quotient is the "
    "perplexity. A probability below the smallest normal number counts as that number. No "
    "gradient flows, so it may stand beside a loss.",
)
