"""Other spatial axes: UpSampling, Pad, depth_to_space and space_to_depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import (
    PARTIAL,
    Layouts,
    Split,
    not_along,
    refuse_mixing,
)
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, Env, Names, Partial, ShapeRule, Shapes, no_flops, register
from symgraph.core.shapes import expect, unify
from symgraph.core.types import Array, Shape, Types
from symgraph.ops.conv import CONV_BATCH, data_gradient, window_flops
from symgraph.ops.elementwise import arg_names, floats
from symgraph.ops.windows import Windows

Pairs = Sequence[tuple[int, int]]

# -- UpSampling --------------------------------------------------------------------------------


def is_bilinear(attrs: Attrs) -> bool:
    return bool(attrs["sample_type"] == "bilinear")


def upsampling_inputs(attrs: Attrs) -> Names:
    return ("data", "weight") if is_bilinear(attrs) else arg_names(attrs)


def upsampling_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    scale, first = site.attrs["scale"], ins[0]
    if scale < 1 or (is_bilinear(site.attrs) and scale < 2):
        site.fail(f"scale={scale} is too small: 1 or more for nearest, 2 or more for bilinear")
    for known in (*(ins[:1] if is_bilinear(site.attrs) else ins), outs[0]):
        if known is not None and len(known) != 4:
            site.fail(f"works on (batch, channel, height, width), not on shape {known}")
    if first is None and (outs[0] is None or len(ins) > 1):
        return ins, outs
    given = first or (*(outs[0] or ())[:2], *[n // scale for n in (outs[0] or ())[2:]])
    size = tuple(n * scale for n in given[2:])
    channels = given[1]
    if is_bilinear(site.attrs):
        kernel = bilinear_windows(scale).kernel
        rest = [expect(site, "weight", ins[1], (channels, 1, *kernel), f"(data of shape {given})")]
    else:
        rest = [upsampled_input(site, given, size, x) for x in ins[1:]]
        if site.attrs["multi_input_mode"] == "concat" and len(ins) > 1:
            each = [channels, *(x[1] if x else 0 for x in rest)]
            channels = 0 if 0 in each else sum(each)
    out = unify(site, (given[0], channels, *size), outs[0], "output shapes")
    assert out is not None
    back = (out[0], given[1] if len(ins) > 1 else out[1], *[n // scale for n in out[2:]])
    return [expect(site, "data", given, back, f"(output of shape {out})"), *rest], [out]


def upsampled_input(site: Site, first: Shape, size: Shape, other: Partial) -> Partial:
    """Return the shape of a further input; ShapeError if it cannot grow to the output's size."""
    added = site.attrs["multi_input_mode"] == "sum"
    if other is None or 0 in other[2:] or 0 in size:
        return other
    factors = {divmod(n, d) for n, d in zip(size, other[2:], strict=True)}
    if len(factors) > 1 or next(iter(factors))[1]:
        site.fail(f"input of shape {other} does not grow to {size} by a whole factor")
    wanted = (first[0], first[1] if added else other[1], *other[2:])
    return expect(site, "input", other, wanted, f"(first input of shape {first})")


def repeated(xp: Any, x: Array, size: Shape) -> Any:
    """Repeat each element to a square, so that height and width become `size`."""
    n, c, h, w = x.shape
    scale = size[0] // h
    wide = xp.broadcast_to(x[:, :, :, None, :, None], (n, c, h, scale, w, scale))
    return wide.reshape(n, c, *size)


def bilinear_windows(scale: int) -> Windows:
    """Return the windows of the deconvolution that interpolates (MXNet)."""
    kernel, pad = 2 * scale - scale % 2, scale // 2
    return Windows(*[(n, n) for n in (kernel, scale, 1, pad)])


def upsampling(env: Env, a: Attrs, x: Array, *others: Array) -> Any:
    size = tuple(n * a["scale"] for n in x.shape[2:])
    if is_bilinear(a):
        windows, shape = bilinear_windows(a["scale"]), (*x.shape[:2], *size)
        return data_gradient(env.xp, x, others[0], windows, x.shape[1], shape)
    grown = [repeated(env.xp, each, size) for each in (x, *others)]
    if len(grown) == 1:
        return grown[0]
    return sum(grown) if a["multi_input_mode"] == "sum" else env.xp.concatenate(grown, 1)


def upsampling_grad(c: Call) -> Sequence[Ref]:
    if is_bilinear(c.attrs):
        x, weight = c.x
        windows = {**bilinear_windows(c.attrs["scale"])._asdict(), "num_group": x.shape[1]}
        of_x = apply("Convolution", c.gy, weight, num_filter=x.shape[1], no_bias=True, **windows)
        return of_x, apply("_conv_grad_weight", x, c.gy, **windows)
    parts, begin = [c.gy] * len(c.x), 0
    if c.attrs["multi_input_mode"] == "concat" and len(c.x) > 1:
        for i, x in enumerate(c.x):
            parts[i] = apply("slice_axis", c.gy, axis=1, begin=begin, end=begin + x.shape[1])
            begin += x.shape[1]
    scales = [c.y[0].shape[2] // x.shape[2] for x in c.x]
    return [
        apply("Pooling", part, pool_type="sum", kernel=(s, s), stride=(s, s))
        for part, s in zip(parts, scales, strict=True)
    ]


def upsampling_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    if is_bilinear(site.attrs):
        return CONV_BATCH(site, ins, in_types, outs)
    joined = site.attrs["multi_input_mode"] == "concat" and len(ins) > 1
    for layout in ins:
        if isinstance(layout, Split) and layout.axis > (0 if joined else 1):
            refuse_mixing(site, f"works along axis {layout.axis}, where the batch lies")
        if layout != ins[0]:
            refuse_mixing(site, f"joins values whose batch lies differently ({ins[0]}, {layout})")
    return ins[:1]


register(
    name="UpSampling",
    inputs=upsampling_inputs,
    shape=upsampling_shape,
    compute=upsampling,
    grad=upsampling_grad,
    flops=lambda attrs, ins, outs: (
        window_flops(attrs, ins[0].size, ins[1].shape) if is_bilinear(attrs) else 0
    ),
    dtype=floats,
    batch=upsampling_batch,
    params={
        "scale": params.integer(),
        "num_filter": params.integer(0),
        "sample_type": params.choice("nearest", "bilinear"),
        "multi_input_mode": params.choice("concat", "sum", default="concat"),
        "num_args": params.count(1, most=params.MAX_PARTS),
        "workspace": params.integer(512),
    },
    variadic="num_args",
    doc="Images (batch, channel, height, width) made `scale` times as high and wide. nearest: each "
    "element repeated to a square; of several inputs the first one is scaled, the others grow to "
    "its new size, and all are joined along the channels (concat) or added (sum). bilinear: the "
    "Deconvolution of data with weight (channel, 1, k, k), k = 2 scale - scale % 2, one filter "
    "for each channel; init.Bilinear makes it interpolate. num_filter and workspace are accepted "
    "and ignored. MXNet UpSampling.",
)

# -- channels to blocks of height and width ----------------------------------------------------


def deep(block: int, shape: Shape) -> Shape:
    """Return the shape after blocks became channels; 0 where unknown."""
    return (shape[0], shape[1] * block**2, *[n // block for n in shape[2:]])


def flat(block: int, shape: Shape) -> Shape:
    """Return the shape after channels became blocks; 0 where unknown."""
    return (shape[0], shape[1] // block**2, *[n * block for n in shape[2:]])


def blocks_shape(
    forth: Callable[[int, Shape], Shape], back: Callable[[int, Shape], Shape]
) -> ShapeRule:
    def rule(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
        block, data = site.attrs["block_size"], ins[0]
        for known in (data, outs[0]):
            if known is not None and len(known) != 4:
                site.fail(f"works on (batch, channel, height, width), not on shape {known}")
        if data is None:
            data = None if outs[0] is None else back(block, outs[0])
        if data is None:
            return ins, outs
        out = unify(site, forth(block, data), outs[0], "output shapes")
        assert out is not None
        if any(n and not made for n, made in zip(data, out, strict=True)):
            site.fail(f"data of shape {data} does not fit whole blocks (block_size={block})")
        again = back(block, out)
        return [expect(site, "data", data, again, f"(block_size={block})")], [out]

    return rule


def depth_to_space(env: Env, a: Attrs, x: Array) -> Any:
    n, c, h, w = flat(a["block_size"], x.shape)
    b = a["block_size"]
    parts = x.reshape(n, b, b, c, h // b, w // b)
    return parts.transpose(0, 3, 4, 1, 5, 2).reshape(n, c, h, w)


def space_to_depth(env: Env, a: Attrs, x: Array) -> Any:
    n, c, h, w = x.shape
    b = a["block_size"]
    parts = x.reshape(n, c, h // b, b, w // b, b)
    return parts.transpose(0, 3, 5, 1, 2, 4).reshape(deep(b, x.shape))


def register_blocks(name: str, other: str, rule: ShapeRule, compute: Any, doc: str) -> None:
    register(
        name=name,
        inputs=("data",),
        shape=rule,
        compute=compute,
        grad=lambda c: (apply(other, c.gy, block_size=c.attrs["block_size"]),),
        flops=no_flops,
        batch=not_along(lambda a, rank: range(1, rank)),
        params={"block_size": params.count()},
        doc=f"{doc}; b = block_size. MXNet {name}.",
    )


register_blocks(
    "depth_to_space",
    "space_to_depth",
    blocks_shape(flat, deep),
    depth_to_space,
    "Images (n, b * b * c, h, w) as (n, c, h * b, w * b): every b * b channels become a block of "
    "height and width",
)
register_blocks(
    "space_to_depth",
    "depth_to_space",
    blocks_shape(deep, flat),
    space_to_depth,
    "Images (n, c, h * b, w * b) as (n, b * b * c, h, w): the places in a block become channels",
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
