"""Attention: softmax(query key^T scale + mask) value, without keeping the weights.

    weights = exp(query key^T scale + mask - logsumexp)      (queries, keys)
    output  = weights value                                  (queries, units)

What is kept for the backward pass is the inputs, the output and the logarithm of each query's sum;
the weights are made again from these. So memory grows with the number of queries, not with its
square. The computations here take some queries at a time, for the same reason.

Source: Vaswani et al. 2017, "Attention is all you need"; Dao et al. 2022, "FlashAttention".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import PARTIAL, Layouts, Split, merge, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply, apply_all
from symgraph.core.registry import LOW, Call, Env, Names, Partial, Shapes, register
from symgraph.core.shapes import unify
from symgraph.core.types import Array, Types, wide
from symgraph.ops.elementwise import DTypes, floats

LEAST_ROWS = 16  # queries that are computed together, at least
ATTENTION = {
    "use_mask": params.boolean(False),
    "causal": params.boolean(False),
    "scale": params.optional(params.number()),
}


def attention_inputs(a: Attrs) -> Names:
    return ("query", "key", "value", *(["mask"] if a["use_mask"] else []))


def scale_of(attrs: Attrs, units: int) -> float:
    """Return what scores are multiplied by; `units` is the length of a query."""
    return float(units**-0.5 if attrs["scale"] is None else attrs["scale"])


# -- types ---------------------------------------------------------------------------------------


def attention_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Complete (..., queries, d), (..., keys, d), (..., keys, units) and the outputs' shapes."""
    matrices = [*ins[:3], outs[0]]
    rank = next((len(s) for s in matrices if s is not None), None)
    if rank is None:
        return ins, outs
    query, key, value, out = (s or (0,) * rank for s in matrices)
    if rank < 3 or {len(query), len(key), len(value), len(out)} != {rank}:
        site.fail(
            "takes queries, keys and values of 3 axes or more, as many in each, not "
            f"{query}, {key} and {value}"
        )
    sums = (0,) * (rank - 1) if outs[1] is None else outs[1]
    lead: Partial = query[:-2]
    for other in (key[:-2], value[:-2], out[:-2], sums[:-1]):
        lead = unify(site, lead, other, "the axes before the matrices")
    assert lead is not None
    inner = _one(site, query[-1:], key[-1:], "lengths of queries and keys")
    keys = _one(site, key[-2:-1], value[-2:-1], "numbers of keys and values")
    queries = _one(site, query[-2:-1], out[-2:-1], "numbers of queries")
    queries = _one(site, (queries,), sums[-1:], "numbers of queries")
    units = _one(site, value[-1:], out[-1:], "lengths of values")
    known: list[Partial] = [
        (*lead, queries, inner),
        (*lead, keys, inner),
        (*lead, keys, units),
        *ins[3:],
    ]
    for mask in ins[3:]:
        _require_mask(site, mask, (*lead, queries, keys))
    return known, [(*lead, queries, units), (*lead, queries)]


def _one(site: Site, first: Partial, second: Partial, what: str) -> int:
    (found,) = unify(site, first, second, what) or (0,)
    return found


def _require_mask(site: Site, mask: Partial, scores: Sequence[int]) -> None:
    """Fail if a mask does not broadcast to the scores."""
    if mask is not None and (
        len(mask) != len(scores)
        or any(m not in (0, 1, s) and s for m, s in zip(mask, scores, strict=True))
    ):
        site.fail(f"mask of shape {mask} does not broadcast to scores {tuple(scores)}")


def attention_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    """One float dtype, but for the mask and the sums, which are of 32 bits at least."""
    known, (dtype,) = floats(site, ins[:3])
    masks = [mask or wide(dtype) for mask in ins[3:]]
    floats(site, [*masks, wide(dtype)])
    return [*known, *masks], [dtype, wide(dtype)]


def attention_flops(attrs: Attrs, ins: Types, outs: Types, products: Sequence[int]) -> int:
    """Count the multiplications and additions of products over all pairs of query and key.

    Args:
        attrs, ins, outs: The call.
        products: The inner sizes, or output sizes, of the products.
    """
    query, key = ins[0].shape, ins[1].shape
    pairs = ins[0].size // query[-1] * key[-2] if query[-1] else 0
    return pairs * (2 * sum(products) + 6) // (2 if attrs["causal"] else 1)


def attention_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Samples are matrices of their own; refuses to let them attend to each other."""
    if PARTIAL in ins:
        refuse_mixing(site, "applies softmax to a sum over the batch")
    first = ins[0]
    if any(layout != first for layout in ins[1:3]):
        refuse_mixing(site, "has queries, keys and values whose batch lies differently")
    for layout, type_ in zip(ins, in_types, strict=True):
        if isinstance(layout, Split) and layout.axis >= len(type_.shape) - 2:
            refuse_mixing(site, "lets samples attend to one another")
    merged = merge(site, ins, in_types, (*in_types[0].shape[:-1], in_types[1].shape[-2]))
    if merged != first:
        refuse_mixing(site, "masks values that do not depend on the samples")
    return [first] * len(outs)


# -- computation ---------------------------------------------------------------------------------


def parts_of(queries: int, units: int) -> Iterator[slice]:
    """Yield the queries that are computed together: their scores are about as large as the keys."""
    rows = max(LEAST_ROWS, units)
    for start in range(0, queries, rows):
        yield slice(start, min(queries, start + rows))


def scores_of(xp: Any, a: Attrs, q: Array, k: Array, mask: Sequence[Array], part: slice) -> Array:
    """Return the scores of some queries (..., rows, keys), with -inf where none may be seen."""
    scores: Array = xp.matmul(q[..., part, :], k.swapaxes(-1, -2))
    scores *= q.dtype.type(scale_of(a, q.shape[-1]))
    for more in mask:
        scores += more if more.shape[-2] == 1 else more[..., part, :]
    if a["causal"]:
        rows, columns = xp.arange(part.start, part.stop), xp.arange(k.shape[-2])
        zero, hidden = q.dtype.type(0), q.dtype.type(-xp.inf)
        scores += xp.where(columns > rows[:, None], hidden, zero)
    return scores


def attention(
    env: Env, a: Attrs, q: Array, k: Array, v: Array, *mask: Array
) -> tuple[Array, Array]:
    xp, mask = env.xp, tuple([m.astype(q.dtype, copy=False) for m in mask])
    out = xp.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    sums = xp.empty(q.shape[:-1], q.dtype)
    for part in parts_of(q.shape[-2], q.shape[-1]):
        weights = scores_of(xp, a, q, k, mask, part)
        top = weights.max(-1, keepdims=True)
        weights -= top
        xp.exp(weights, out=weights)
        total = weights.sum(-1, keepdims=True)
        out[..., part, :] = xp.matmul(weights, v) / total
        sums[..., part] = (top + xp.log(total))[..., 0]
    return out, sums


def weights_and_slopes(
    env: Env, a: Attrs, g: Array, y: Array, sums: Array, q: Array, k: Array, v: Array, *mask: Array
) -> Iterator[tuple[slice, Array, Array]]:
    """Yield, of some queries at a time, the weights and the gradient of the scores."""
    xp, mask = env.xp, tuple([m.astype(q.dtype, copy=False) for m in mask])
    for part in parts_of(q.shape[-2], q.shape[-1]):
        weights = scores_of(xp, a, q, k, mask, part)
        weights -= sums[..., part, None]
        xp.exp(weights, out=weights)
        slopes: Array = xp.matmul(g[..., part, :], v.swapaxes(-1, -2))
        slopes -= (g[..., part, :] * y[..., part, :]).sum(-1, keepdims=True)
        slopes *= weights
        yield part, weights, slopes


def attention_gradient(env: Env, a: Attrs, *arrays: Array) -> tuple[Array, ...]:
    """Return the gradients of queries, keys and values."""
    xp, (g, _, _, q, k, v) = env.xp, arrays[:6]
    scale = q.dtype.type(scale_of(a, q.shape[-1]))
    gq, gk, gv = (xp.zeros(x.shape, x.dtype) for x in (q, k, v))
    for part, weights, slopes in weights_and_slopes(env, a, *arrays):
        slopes *= scale
        gq[..., part, :] = xp.matmul(slopes, k)
        gk += xp.matmul(slopes.swapaxes(-1, -2), q[..., part, :])
        gv += xp.matmul(weights.swapaxes(-1, -2), g[..., part, :])
    return gq, gk, gv


def mask_gradient(env: Env, a: Attrs, *arrays: Array) -> Array:
    """Return the gradient of the mask: that of the scores, summed where it was broadcast."""
    mask = arrays[6]
    made: Array = env.xp.zeros(mask.shape, mask.dtype)
    lead = tuple([i for i, d in enumerate(mask.shape) if d == 1 and i != mask.ndim - 2])
    for part, _, slopes in weights_and_slopes(env, a, *arrays):
        total = slopes.sum(lead, keepdims=True)
        if mask.shape[-2] == 1:
            made += total.sum(-2, keepdims=True)
        else:
            made[..., part, :] = total
    return made


# -- gradients -----------------------------------------------------------------------------------


def attention_grad(c: Call) -> Sequence[Ref]:
    known = (c.gy, *c.y, *c.x)
    grads = apply_all("_attention_grad", *known, **c.attrs)
    return [*grads, *[apply("_attention_grad_mask", *known, **c.attrs) for _ in c.x[3:]]]


def gradient_inputs(a: Attrs) -> Names:
    return ("grad", "output", "logsumexp", *attention_inputs(a))


def gradient_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    known, made = attention_shape(site, ins[3:], ins[1:3])
    return [made[0], *made, *known], known[:3]


def gradient_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    known, (dtype, sums) = attention_dtype(site, ins[3:])
    return [dtype, dtype, sums, *known], [str(dtype)]


def gradient_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Make gradients of samples from samples; a mask that all samples share gets a sum of them."""
    (made, *_) = attention_batch(site, ins[3:], in_types[3:], outs)
    if ins[0] is PARTIAL:
        refuse_mixing(site, "multiplies sums over the batch with samples")
    return [made] * len(outs)


def mask_gradient_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    known, _ = gradient_dtype(site, ins)
    return known, [str(known[6])]


def mask_gradient_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    (made,) = gradient_batch(site, ins, in_types, outs)
    shared = isinstance(made, Split) and not isinstance(ins[6], Split)
    return [PARTIAL if shared else ins[6]]


register(
    name="scaled_dot_product_attention",
    inputs=attention_inputs,
    outputs=("output", "logsumexp"),
    visible=1,
    shape=attention_shape,
    compute=attention,
    grad=attention_grad,
    flops=lambda a, ins, outs: attention_flops(a, ins, outs, (ins[0].shape[-1], ins[2].shape[-1])),
    dtype=attention_dtype,
    batch=attention_batch,
    params=ATTENTION,
    precision=LOW,
    full_inputs=("mask",),
    doc="softmax(query key^T scale + mask) value, along the keys: (..., queries, d), (..., keys, "
    "d) and (..., keys, units) make (..., queries, units); the axes in front, such as (batch * "
    "heads) or (batch, heads), are the same in all. The weights (queries, keys) are never all in "
    "memory, and not kept for the gradient. scale: d ** -0.5 by default. causal: whether query i "
    "sees keys 0 to i only. use_mask: one more input, added to the scores, to whose shape it "
    "broadcasts with as many axes; use -inf or a large negative number to hide a key. A second "
    "derivative is not there. PyTorch scaled_dot_product_attention, ONNX Attention.",
)

register(
    name="_attention_grad",
    inputs=gradient_inputs,
    outputs=("query_grad", "key_grad", "value_grad"),
    shape=gradient_shape,
    compute=attention_gradient,
    flops=lambda a, ins, outs: attention_flops(
        a, ins[3:], outs, (*[ins[3].shape[-1]] * 3, *[ins[5].shape[-1]] * 2)
    ),
    dtype=gradient_dtype,
    batch=gradient_batch,
    params=ATTENTION,
    doc="Gradients of scaled_dot_product_attention's queries, keys and values.",
)

register(
    name="_attention_grad_mask",
    inputs=gradient_inputs,
    shape=lambda site, ins, outs: (gradient_shape(site, ins, outs)[0], [ins[6]]),
    compute=mask_gradient,
    flops=lambda a, ins, outs: attention_flops(
        a, ins[3:], outs, (ins[3].shape[-1], ins[5].shape[-1])
    ),
    dtype=mask_gradient_dtype,
    batch=mask_gradient_batch,
    params=ATTENTION,
    doc="Gradient of scaled_dot_product_attention's mask.",
)
