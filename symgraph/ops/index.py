"""Selection by index: Embedding, take, pick and batch_take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import PARTIAL, WHOLE, Layouts, Split, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import INSIDE, Call, Env, Shapes, no_flops, register
from symgraph.core.shapes import axes_of, expect, reduced_shape, unify
from symgraph.core.types import Array, Types
from symgraph.ops.elementwise import DTypes


def integers(ids: Array) -> Array:
    """Return ids as an array that can index; fractions are cut off (MXNet)."""
    return ids if ids.dtype.kind in "iu" else ids.astype("int64")


def checked(ids: Array, count: int, what: str = "id") -> Array:
    """Return ids as integers; an id outside 0..count-1, or NaN, raises IndexError."""
    low, high = ids.min(), ids.max()
    if not (low >= 0 and high < count):
        wrong = high if low >= 0 else low
        raise IndexError(f"{what} {wrong} is outside 0..{count - 1}")
    return integers(ids)


def bounded(ids: Array, count: int, mode: str) -> Array:
    """Return ids within 0..count-1: clipped, wrapped around, or checked."""
    if mode == "raise":
        return checked(ids, count)
    ids = integers(ids)
    valid: Array = ids.clip(0, count - 1) if mode == "clip" else ids % count
    return valid


# A shard has the ids from `begin` on of `classes`; classes=0: it has all.
SHARD = {"begin": params.integer(0), "classes": params.integer(0)}


def inside(xp: Any, a: Attrs, ids: Array, count: int) -> tuple[tuple[Array, ...], Array]:
    """Return the places whose id is one of a shard's `count`, and these ids within the shard."""
    at = ids.astype("int64") - a["begin"]
    places = xp.nonzero((at >= 0) & (at < count))
    return places, at[places]


def id_count(attrs: Attrs, ins: Types) -> int:
    """Return the number of ids of the whole Embedding."""
    return int(attrs["classes"] or attrs["input_dim"])


def scatter_rows(xp: Any, ids: Array, rows: Array, count: int) -> Array:
    """Return (count, ...) zeros, to which row i of `rows` is added at ids[i].

    Equal ids are brought together by a stable sort and added up in a fixed order, so the result has
    the same bits in every run, unlike atomic additions on a GPU. For 1280 ids of 10000 and rows of
    200 floats this takes 0.5 to 1.3 ms, `np.add.at` 2.3 ms.
    """
    out: Array = xp.zeros((count, *rows.shape[1:]), rows.dtype)
    if not ids.size:
        return out
    order = xp.argsort(ids, kind="stable")
    ordered = ids[order]
    starts = xp.flatnonzero(xp.concatenate([xp.ones(1, bool), ordered[1:] != ordered[:-1]]))
    out[ordered[starts]] = xp.add.reduceat(rows[order], starts, axis=0)
    return out


def indexed_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    """The data's dtype; unknown dtypes of indices default to it."""
    data = ins[0] or "float32"
    return [data, ins[1] or data], [data]


def ids_first_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    """`indexed_dtype` for an operator whose ids come first; Embedding names a default dtype."""
    data = ins[1] or site.attrs.get("dtype", "float32")
    return [ins[0] or data, data], [data]


def embedding_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, weight = ins
    rows, width = site.attrs["input_dim"], site.attrs["output_dim"]
    weight = expect(site, "weight", weight, (rows, width), "(input_dim, output_dim)")
    if outs[0] is not None:
        data = expect(site, "data", data, outs[0][:-1], f"(output of shape {outs[0]})")
    return [data, weight], [None if data is None else unify(site, (*data, width), outs[0])]


def embedding_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    if ins[1] is not WHOLE:
        refuse_mixing(site, "has weights that depend on the samples")
    if ins[0] is PARTIAL:
        refuse_mixing(site, "looks up a sum over the batch")
    return [ins[0]]


def embedding(env: Env, a: Attrs, ids: Array, w: Array) -> Array:
    ids = checked(ids, id_count(a, ()))
    if not a["classes"]:
        return w[ids]
    rows: Array = env.xp.zeros((*ids.shape, w.shape[1]), w.dtype)
    places, at = inside(env.xp, a, ids, len(w))
    rows[places] = w[at]
    return rows


def embedding_grad(c: Call) -> Sequence[Ref | None]:
    attrs = {key: c.attrs[key] for key in ("input_dim", *SHARD)}
    return None, apply("_embedding_grad", c.x[0], c.gy, **attrs)


register(
    name="Embedding",
    inputs=("data", "weight"),
    shape=embedding_shape,
    compute=embedding,
    grad=embedding_grad,
    flops=no_flops,
    dtype=ids_first_dtype,
    batch=embedding_batch,
    params={
        "input_dim": params.count(),
        "output_dim": params.count(),
        "dtype": params.dtype("float32"),
        "sparse_grad": params.boolean(False),
        **SHARD,
    },
    precision=INSIDE,
    reads_on_host=True,
    ids={"data": id_count},
    reads_part=True,
    rowwise=lambda attrs: () if attrs["classes"] else (0,),
    doc="Rows of weight (input_dim, output_dim), selected by data of any shape that holds ids as "
    "integers or floats. An id outside 0..input_dim-1 raises IndexError (MXNet clips it). "
    "dtype: the weight's, if nothing else determines it. sparse_grad is accepted and ignored. "
    "begin, classes: for shards of the weight, which have the rows from `begin` on of "
    "`classes` and give zeros for other ids. MXNet Embedding.",
)


def embedding_grad_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    ids, grad = ins
    if grad is None:
        return ins, outs
    return [expect(site, "data", ids, grad[:-1]), grad], [(site.attrs["input_dim"], grad[-1])]


def embedding_grad_compute(env: Env, a: Attrs, ids: Array, g: Array) -> Array:
    ids, rows = checked(ids, id_count(a, ())).reshape(-1), g.reshape(ids.size, -1)
    if a["classes"]:
        (places,), ids = inside(env.xp, a, ids, a["input_dim"])
        rows = rows[places]
    return scatter_rows(env.xp, ids, rows, a["input_dim"])


register(
    name="_embedding_grad",
    inputs=("data", "grad"),
    shape=embedding_grad_shape,
    compute=embedding_grad_compute,
    grad=lambda c: (
        None,
        apply("Embedding", c.x[0], c.gy, output_dim=c.gy.shape[1], **c.attrs),
    ),
    flops=lambda attrs, ins, outs: ins[1].size,
    dtype=ids_first_dtype,
    params={"input_dim": params.integer(), **SHARD},
    reads_on_host=True,
    ids={"data": id_count},
    row_sums=lambda attrs: () if attrs["classes"] else (0, 1),
    doc="Gradient of Embedding's weight: the rows of grad, added up by id in a fixed order.",
)


def take_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, ids = ins
    if data is None or ids is None:
        return ins, outs
    (axis,) = axes_of(site, site.attrs["axis"], len(data))
    return ins, [unify(site, data[:axis] + ids + data[axis + 1 :], outs[0], "output shapes")]


def take(env: Env, a: Attrs, x: Array, ids: Array) -> Any:
    return env.xp.take(x, bounded(ids, x.shape[a["axis"]], a["mode"]), axis=a["axis"])


def take_grad(c: Call) -> Sequence[Ref | None]:
    axis, mode = c.attrs["axis"] % len(c.x[0].shape), c.attrs["mode"]
    size = c.x[0].shape[axis]
    return apply("_take_grad", c.x[1], c.gy, axis=axis, size=size, mode=mode), None


def take_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Linear in the data; the batch lies in the indices or on another axis of the data."""
    data, ids = ins
    axis = site.attrs["axis"] % len(in_types[0].shape)
    if ids is PARTIAL:
        refuse_mixing(site, "looks up a sum over the batch")
    if isinstance(ids, Split):
        if data is not WHOLE:
            refuse_mixing(site, "takes from values that depend on the samples")
        return [Split(axis + ids.axis, ids.outer, ids.inner)]
    if not isinstance(data, Split):
        return [data]
    if data.axis == axis:
        refuse_mixing(site, f"takes along axis {axis}, where the batch lies")
    shift = len(in_types[1].shape) - 1 if data.axis > axis else 0
    return [Split(data.axis + shift, data.outer, data.inner)]


MODE = params.choice("clip", "wrap", "raise", default="clip")

register(
    name="take",
    inputs=("a", "indices"),
    shape=take_shape,
    compute=take,
    grad=take_grad,
    flops=no_flops,
    dtype=indexed_dtype,
    batch=take_batch,
    params={"axis": params.integer(0), "mode": MODE},
    full_inputs=("indices",),
    ids={"indices": lambda attrs, ins: ins[0].shape[attrs["axis"]]},
    reads_part=True,
    doc="Slices of `a` along an axis by index; the shape of indices replaces that axis. mode: an "
    "index out of range is clipped, wrapped around, or raises IndexError. MXNet take.",
)


def take_grad_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    ids, grad = ins
    if ids is None or grad is None:
        return ins, outs
    axis = site.attrs["axis"]
    return ins, [(*grad[:axis], site.attrs["size"], *grad[axis + len(ids) :])]


def take_grad_compute(env: Env, a: Attrs, ids: Array, g: Array) -> Any:
    axis, size = a["axis"], a["size"]
    before, after = g.shape[:axis], g.shape[axis + ids.ndim :]
    flat = bounded(ids, size, a["mode"]).reshape(-1)
    slices = g.reshape(*before, flat.size, *after)
    total = scatter_rows(env.xp, flat, env.xp.moveaxis(slices, axis, 0), size)
    return env.xp.moveaxis(total, 0, axis)


register(
    name="_take_grad",
    inputs=("indices", "grad"),
    shape=take_grad_shape,
    compute=take_grad_compute,
    grad=lambda c: (
        None,
        apply("take", c.gy, c.x[0], axis=c.attrs["axis"], mode=c.attrs["mode"]),
    ),
    flops=lambda attrs, ins, outs: ins[1].size,
    dtype=ids_first_dtype,
    params={"axis": params.integer(), "size": params.integer(), "mode": MODE},
    reads_on_host=True,
    ids={"indices": lambda attrs, ins: attrs["size"]},
    doc="Gradient of take's data: slices of grad, added up by index in a fixed order.",
)


def pick_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """The index has the data's shape without the axis, or with length 1 there."""
    data, index = ins
    if data is None:
        return ins, outs
    axes = axes_of(site, site.attrs["axis"], len(data))
    flat, kept = (reduced_shape(data, axes, keepdims) for keepdims in (False, True))
    wanted = kept if index is not None and len(index) == len(data) else flat
    index = expect(site, "index", index, wanted, f"(data of shape {data})")
    out = kept if site.attrs["keepdims"] else flat
    return [data, index], [unify(site, out, outs[0], "output shapes")]


def pick(env: Env, a: Attrs, x: Array, index: Array) -> Any:
    axis = a["axis"] % x.ndim
    kept = reduced_shape(x.shape, (axis,), True)
    elements = env.xp.take_along_axis(
        x, bounded(index, x.shape[axis], a["mode"]).reshape(kept), axis
    )
    return elements.reshape(reduced_shape(x.shape, (axis,), a["keepdims"]))


def pick_grad(c: Call) -> Sequence[Ref | None]:
    (x, index), axis = c.x, c.attrs["axis"] % len(c.x[0].shape)
    shape, mode = x.shape, c.attrs["mode"]
    return apply("_pick_grad", index, c.gy, axis=axis, shape=shape, mode=mode), None


def pick_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    data, index = ins
    rank = len(in_types[0].shape)
    axis = site.attrs["axis"] % rank
    if index is WHOLE and not isinstance(data, Split):
        return [data]
    if not isinstance(data, Split) or not isinstance(index, Split):
        refuse_mixing(site, "has data and indices of which one alone depends on the samples")
    if data.axis == axis:
        refuse_mixing(site, f"picks along axis {axis}, where the batch lies")
    kept, flat = data, Split(data.axis - (data.axis > axis), data.outer, data.inner)
    if index != (kept if len(in_types[1].shape) == rank else flat):
        refuse_mixing(
            site, f"has data and indices whose batch lies differently ({data} and {index})"
        )
    return [kept if site.attrs["keepdims"] else flat]


register(
    name="pick",
    inputs=("data", "index"),
    shape=pick_shape,
    compute=pick,
    grad=pick_grad,
    flops=no_flops,
    dtype=indexed_dtype,
    batch=pick_batch,
    params={
        "axis": params.integer(-1),
        "keepdims": params.boolean(False),
        "mode": params.choice("clip", "wrap", default="clip"),
    },
    aliases=("choose_element_0index",),
    full_inputs=("index",),
    ids={"index": lambda attrs, ins: ins[0].shape[attrs["axis"]]},
    reads_part=True,
    copies_inputs=False,
    temporaries=4,  # places are numbers of 64 bits
    doc="One element along an axis for each index; index has the shape of data without that axis, "
    "or with length 1 there. mode: an index out of range is clipped or wrapped around. MXNet "
    "pick.",
)


PICK_OF_ROW = {"axis": -1, "keepdims": False, "mode": "clip"}

register(
    name="batch_take",
    inputs=("a", "indices"),
    shape=lambda site, ins, outs: pick_shape(site._replace(attrs=PICK_OF_ROW), ins, outs),
    compute=lambda env, a, x, index: pick(env, PICK_OF_ROW, x, index),
    grad=lambda c: pick_grad(c._replace(attrs=PICK_OF_ROW)),
    flops=no_flops,
    dtype=lambda site, ins: ([ins[0] or "float32", ins[1] or "int32"], [ins[0] or "float32"]),
    batch=lambda site, ins, in_types, outs: pick_batch(
        site._replace(attrs=PICK_OF_ROW), ins, in_types, outs
    ),
    full_inputs=("indices",),
    ids={"indices": lambda attrs, ins: ins[0].shape[-1]},
    reads_part=True,
    copies_inputs=False,
    doc="One element of each row of `a` (N, M), at indices (N,); an index out of range is clipped. "
    "MXNet batch_take.",
)


def pick_grad_compute(env: Env, a: Attrs, index: Array, g: Array) -> Any:
    xp, axis, shape = env.xp, a["axis"], a["shape"]
    before, count, after = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    out = xp.zeros((before, count, after), g.dtype)
    at = bounded(index, count, a["mode"]).reshape(before, after)
    rows, columns = xp.arange(before)[:, None], xp.arange(after)
    out[rows, at, columns] = g.reshape(before, after)
    return out.reshape(shape)


register(
    name="_pick_grad",
    inputs=("index", "grad"),
    shape=lambda site, ins, outs: (ins, [site.attrs["shape"]]),
    compute=pick_grad_compute,
    grad=lambda c: (
        None,
        apply(
            "pick",
            c.gy,
            c.x[0],
            axis=c.attrs["axis"],
            mode=c.attrs["mode"],
            keepdims=len(c.x[1].shape) == len(c.gy.shape),
        ),
    ),
    flops=no_flops,
    dtype=ids_first_dtype,
    params={"axis": params.integer(), "shape": params.integers(), "mode": MODE},
    ids={"index": lambda attrs, ins: attrs["shape"][attrs["axis"]]},
    doc="Gradient of pick's data: grad at the picked places, zero elsewhere.",
)
