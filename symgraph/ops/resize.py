"""More elements along spatial axes: UpSampling by repetition, and Pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import (
    PARTIAL,
    Layouts,
    not_along,
    refuse_mixing,
    spatial_axes,
)
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import apply
from symgraph.core.registry import Env, Shapes, no_flops, register
from symgraph.core.shapes import expect, unify
from symgraph.core.types import Array, Types
from symgraph.ops.elementwise import arg_names, floats

Pairs = Sequence[tuple[int, int]]

# -- UpSampling --------------------------------------------------------------------------------


def upsampling_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    scale = site.attrs["scale"]
    if site.attrs["sample_type"] != "nearest":
        site.fail(
            "sample_type='bilinear' is not offered; use Deconvolution with a weight of "
            "initializer Bilinear (help(init.Bilinear) tells its arguments)"
        )
    if len(ins) != 1 or scale < 1:
        site.fail(f"takes one input and a scale of 1 or more, not {len(ins)} and {scale}")
    given = outs[0] if ins[0] is None else ins[0]
    if given is None:
        return ins, outs
    if len(given) != 4:
        site.fail(f"works on (batch, channel, height, width), not on shape {given}")
    data = ins[0] or (*given[:2], *[n // scale for n in given[2:]])
    scaled = (*data[:2], *[n * scale for n in data[2:]])
    out = unify(site, scaled, outs[0], "output shapes")
    assert out is not None
    back = (*out[:2], *[n // scale for n in out[2:]])
    return [expect(site, "data", data, back, f"(output of shape {out})")], [out]


def upsampling(env: Env, a: Attrs, x: Array) -> Any:
    n, c, h, w = x.shape
    scale = a["scale"]
    wide = env.xp.broadcast_to(x[:, :, :, None, :, None], (n, c, h, scale, w, scale))
    return wide.reshape(n, c, h * scale, w * scale)


register(
    name="UpSampling",
    inputs=arg_names,
    shape=upsampling_shape,
    compute=upsampling,
    grad=lambda c: (
        apply(
            "Pooling",
            c.gy,
            pool_type="sum",
            kernel=(c.attrs["scale"],) * 2,
            stride=(c.attrs["scale"],) * 2,
        ),
    ),
    flops=no_flops,
    dtype=floats,
    batch=not_along(spatial_axes),
    params={
        "scale": params.integer(),
        "num_filter": params.integer(0),
        "sample_type": params.choice("nearest", "bilinear"),
        "multi_input_mode": params.choice("concat", "sum", default="concat"),
        "num_args": params.count(1, most=params.MAX_PARTS),
        "workspace": params.integer(512),
    },
    variadic="num_args",
    doc="Each element of (batch, channel, height, width) repeated to a square of scale x scale "
    "(nearest neighbours of one input). num_filter, multi_input_mode and workspace are "
    "accepted and ignored. MXNet UpSampling.",
)

# -- Pad ---------------------------------------------------------------------------------------


def pairs(attrs: Attrs) -> Pairs:
    """Return (before, after) for each axis."""
    widths = attrs["pad_width"]
    return list(zip(widths[::2], widths[1::2], strict=True))


def pad_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    widths = site.attrs["pad_width"]
    if len(widths) % 2 or min(widths, default=0) < 0:
        site.fail(f"pad_width={widths} is not a pair of numbers from 0 up for each axis")
    around = pairs(site.attrs)
    given = outs[0] if ins[0] is None else ins[0]
    if given is None:
        return ins, outs
    if len(given) != len(around):
        site.fail(
            f"pad_width={widths} has {len(around)} pairs for a shape of {len(given)} axes: {given}"
        )
    data = ins[0] or (0,) * len(around)
    if site.attrs["mode"] == "reflect" and any(
        n and max(both) >= n for n, both in zip(data, around, strict=True)
    ):
        site.fail(f"pad_width={widths} reflects more than data of shape {data} has")
    padded = tuple(n and n + sum(both) for n, both in zip(data, around, strict=True))
    out = unify(site, padded, outs[0], "output shapes")
    assert out is not None
    back = tuple(n and n - sum(both) for n, both in zip(out, around, strict=True))
    return [expect(site, "data", data, back, f"(output of shape {out})")], [out]


def pad(env: Env, a: Attrs, x: Array) -> Any:
    more = {"constant_values": a["constant_value"]} if a["mode"] == "constant" else {}
    return env.xp.pad(x, pairs(a), mode=a["mode"], **more)


def pad_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    if ins[0] is PARTIAL and site.attrs["constant_value"]:
        refuse_mixing(site, "adds a constant to a sum over the batch")
    return ins


PAD = {
    "mode": params.choice("constant", "edge", "reflect"),
    "pad_width": params.integers(),
    "constant_value": params.number(0.0),
}

register(
    name="Pad",
    inputs=("data",),
    shape=pad_shape,
    compute=pad,
    grad=lambda c: (
        apply("_pad_grad", c.gy, mode=c.attrs["mode"], pad_width=c.attrs["pad_width"]),
    ),
    flops=no_flops,
    dtype=floats,
    batch=not_along(
        lambda a, rank: [axis for axis, around in enumerate(pairs(a)) if any(around)],
        pad_batch,
        "pads axis {axis}, where the batch lies",
    ),
    params=PAD,
    aliases=("pad",),
    doc="Data with more elements at both ends of each axis, pad_width=(before, after, ...): "
    "constant_value, copies of the outermost element (edge), or the elements mirrored "
    "(reflect). MXNet Pad.",
)


def fold(g: Array, axis: int, before: int, after: int, mode: str) -> Array:
    """Add the gradients of the padding along one axis to those of the elements it repeats."""
    x = g.swapaxes(0, axis)
    end = len(x) - after
    core = x[before:end].copy()
    if mode == "edge":
        core[0] += x[:before].sum(axis=0)
        core[-1] += x[end:].sum(axis=0)
    elif mode == "reflect":
        core[1 : before + 1] += x[:before][::-1]
        core[len(core) - 1 - after : -1] += x[end:][::-1]
    return core.swapaxes(0, axis)


def pad_grad(env: Env, a: Attrs, g: Array) -> Array:
    for axis, (before, after) in enumerate(pairs(a)):
        if before or after:
            g = fold(g, axis, before, after, a["mode"])
    return g.copy()


register(
    name="_pad_grad",
    inputs=("grad",),
    shape=lambda site, ins, outs: (
        ins,
        [
            None
            if ins[0] is None
            else tuple(n - sum(both) for n, both in zip(ins[0], pairs(site.attrs), strict=True))
        ],
    ),
    compute=pad_grad,
    grad=lambda c: (apply("Pad", c.gy, mode=c.attrs["mode"], pad_width=c.attrs["pad_width"]),),
    params={"mode": PAD["mode"], "pad_width": PAD["pad_width"]},
    doc="Gradient of Pad.",
)
