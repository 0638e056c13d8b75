"""Constants: zeros, ones, full, arange, and those shaped like another value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import PARTIAL, WHOLE, Layouts, Split, linear
from symgraph.core.params import Attrs, Site
from symgraph.core.registry import Env, Shapes, no_flops, register
from symgraph.core.shapes import same, unify
from symgraph.core.types import Types, is_float

SOURCE = {
    "shape": params.integers(),
    "ctx": params.ignored(),
    "dtype": params.dtype("float32"),
}


def given_dtype(
    site: Site, ins: Sequence[str | None]
) -> tuple[Sequence[str | None], Sequence[str]]:
    return ins, [site.attrs["dtype"]]


def given_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    return ins, [unify(site, site.attrs["shape"], outs[0], "output shapes")]


def source_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """The batch lies along the axis whose length was 0 in the symbol; see lower.py."""
    axis = site.attrs["axis"]
    return [WHOLE if axis < 0 else Split(axis)]


for name, alias, spec, compute, doc in (
    ("_zeros", "zeros", {}, lambda env, a: env.xp.zeros(a["shape"], a["dtype"]), "Zeros"),
    ("_ones", "ones", {}, lambda env, a: env.xp.ones(a["shape"], a["dtype"]), "Ones"),
    (
        "_full",
        "full",
        {"value": params.number()},
        lambda env, a: env.xp.full(a["shape"], a["value"], a["dtype"]),
        "The number `value`",
    ),
):
    register(
        name=name,
        inputs=(),
        shape=given_shape,
        compute=compute,
        flops=no_flops,
        dtype=given_dtype,
        batch=source_batch,
        params={**SOURCE, **spec, "axis": params.integer(-1)},
        aliases=(alias,),
        zeros=name == "_zeros",
        doc=f"{doc} in every element; one 0 in `shape` may stand for the batch, which is along "
        f"`axis` then. MXNet {name}.",
    )


def arange_length(site: Site) -> int:
    """Return the number of elements, repetitions included; ShapeError if there are none."""
    start, stop, step = (site.attrs[key] for key in ("start", "stop", "step"))
    span = start if stop is None else stop - start
    count = math.ceil(span / step) if step else 0
    if count < 1 or site.attrs["repeat"] < 1:
        site.fail(
            f"start={start}, stop={stop}, step={step}, repeat={site.attrs['repeat']} makes "
            "no elements"
        )
    return count * int(site.attrs["repeat"])


def arange(env: Env, a: Attrs) -> Any:
    count = arange_length(Site("_arange", "", a)) // a["repeat"]
    start, step = 0.0 if a["stop"] is None else a["start"], a["step"]
    if not is_float(a["dtype"]):  # as in MXNet and numpy
        start, step = int(start), int(step)
    numbers = start + step * env.xp.arange(count)
    return env.xp.repeat(numbers, a["repeat"]).astype(a["dtype"])


register(
    name="_arange",
    inputs=(),
    shape=lambda site, ins, outs: (
        ins,
        [unify(site, (arange_length(site),), outs[0], "output shapes")],
    ),
    compute=arange,
    flops=no_flops,
    dtype=given_dtype,
    params={
        "start": params.number(0.0),
        "stop": params.optional(params.number()),
        "step": params.number(1.0),
        "repeat": params.integer(1),
        "infer_range": params.only(False),
        "ctx": params.ignored(),
        "dtype": params.dtype("float32"),
    },
    aliases=("arange",),
    doc="start, start + step, ... up to but not including stop, each `repeat` times; from 0 up to "
    "start if stop is None. MXNet _arange.",
)


def ones_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Ones are never a sum over samples, whatever value they are shaped like."""
    return [WHOLE if layout is PARTIAL else layout for layout in ins]


register(
    name="zeros_like",
    inputs=("data",),
    shape=same,
    compute=lambda env, a, x: env.xp.zeros(x.shape, x.dtype),
    flops=no_flops,
    batch=linear,
    zeros=True,
    doc="Zeros of the data's shape and dtype. MXNet zeros_like.",
)

register(
    name="ones_like",
    inputs=("data",),
    shape=same,
    compute=lambda env, a, x: env.xp.ones(x.shape, x.dtype),
    flops=no_flops,
    batch=ones_batch,
    doc="Ones of the data's shape and dtype. MXNet ones_like.",
)
