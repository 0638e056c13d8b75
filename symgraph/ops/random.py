"""Dropout: random masks that do not depend on how the batch or the graph is cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from symgraph.core import params
from symgraph.core.batch_layout import Layouts, Split, elementwise, refuse_mixing
from symgraph.core.params import Attrs, Param, Site, literal
from symgraph.core.rand import key, uniform
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, Env, Partial, Shapes, register
from symgraph.core.shapes import axes_of, same
from symgraph.core.types import Array, Shape, Types
from symgraph.ops.elementwise import floats

PLACE = {  # in the whole batch's random stream
    "stream": Param(str, "", "str", type="str"),
    "axis": params.integer(-1),
    "outer": params.integer(1),
    "inner": params.integer(1),
    "first": params.integer(0),
}


def fraction(raw: Any) -> float:
    value = float(literal(raw))
    if not 0 <= value <= 1:
        raise ValueError
    return value


def mask_shape(shape: Shape, axes: Sequence[int]) -> Shape:
    """Return the shape of the random numbers; one serves all elements along `axes`."""
    shared = {a % len(shape) for a in axes}
    return tuple(1 if a in shared else d for a, d in enumerate(shape))


def dropout_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, out = same(site, ins, outs[:1])
    mask: Partial = None
    if data[0] is not None:
        axes = site.attrs["axes"]
        mask = mask_shape(data[0], axes_of(site, axes, len(data[0])) if axes else ())
    return data, [*out, mask]


def dropout_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    if isinstance(ins[0], Split) and ins[0].axis in (
        a % len(in_types[0].shape) for a in site.attrs["axes"]
    ):
        refuse_mixing(site, f"has one mask for all of axis {ins[0].axis}, where the batch lies")
    return elementwise(site, ins, in_types, outs)


def stream_grid(a: Attrs, shape: Shape) -> tuple[int, int, int]:
    """Return (outer, samples, inner): how a random stream numbers an array, see `counters`."""
    axis = a["axis"]
    if axis < 0:
        return 1, 1, math.prod(shape)
    outer = math.prod(shape[:axis]) * a["outer"]
    inner = a["inner"] * math.prod(shape[axis + 1 :])
    return outer, shape[axis] // (a["outer"] * a["inner"]), inner


def mask_numbers(a: Attrs, shape: Shape) -> tuple[int, float, tuple[int, int, int]]:
    """Return what a kernel of Dropout needs: threshold, scale and `stream_grid`.

    An element is kept if 24 random bits are at least the threshold; it is then scaled.
    """
    p = a["p"]
    threshold = math.ceil(float(np.float32(p)) * 2**24)
    return threshold, 1 / (1 - p) if p < 1 else 0.0, stream_grid(a, shape)


def counters(env: Env, a: Attrs, shape: Shape) -> Any:
    """Return the number of each element in the whole batch's random stream, sample by sample.

    A sample's elements have consecutive numbers, in memory order, so they are the same whichever
    micro-batch the sample is in. Without a batch axis these are plain element numbers.
    """
    xp, axis = env.xp, a["axis"]
    if axis < 0:
        return xp.arange(math.prod(shape)).reshape(shape)
    outer, count, inner = stream_grid(a, shape)
    first = env.sample + a["first"]
    samples = xp.arange(first, first + count)
    starts = samples[:, None] * (outer * inner) + xp.arange(outer)[:, None, None] * inner
    return (starts + xp.arange(inner)).reshape(shape)


def dropout(env: Env, a: Attrs, x: Array) -> tuple[Any, Any]:
    """Draw the mask in float32 for every dtype, so that all dtypes have the same mask."""
    shape = mask_shape(x.shape, a["axes"])
    if not (env.train or a["mode"] == "always"):
        return x, env.xp.ones(shape, x.dtype)
    stream = key(env.seed, a["stream"], env.step)
    kept = uniform(env.xp, stream, counters(env, a, shape), "float32") >= a["p"]
    mask = kept.astype(x.dtype)
    mask *= 1 / (1 - a["p"]) if a["p"] < 1 else 0
    return x * mask, mask


def dropout_grad(c: Call) -> Sequence[Ref | None]:
    if c.g[0] is None:  # in a second derivative, where only the mask is used again
        return (None,)
    return (apply("broadcast_mul", c.gy, c.y[1]) if c.attrs["axes"] else c.gy * c.y[1],)


register(
    name="Dropout",
    inputs=("data",),
    outputs=("output", "mask"),
    visible=1,
    shape=dropout_shape,
    compute=dropout,
    grad=dropout_grad,
    dtype=floats,
    batch=dropout_batch,
    params={
        "p": Param(fraction, 0.5, "float from 0 to 1", type="float"),
        "mode": params.choice("training", "always", default="training"),
        "axes": params.integers(()),
        "cudnn_off": params.boolean(False),
        **PLACE,
    },
    random=True,
    doc="In training (or always, with mode='always'), zero for a share p of the elements and 1 / "
    "(1 - p) times the data for the others. axes: one draw for all elements along them. The "
    "mask is a function of seed, step, `stream` (the node's name) and the sample; axis, outer "
    "and inner say where the batch lies (batch_layout.Split; axis -1: nowhere); first: "
    "samples of the micro-batch before these. cudnn_off is accepted and ignored. MXNet "
    "Dropout.",
)
