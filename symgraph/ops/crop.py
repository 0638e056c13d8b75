"""Crop: a window of an image's height and width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import Layouts, Split, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, Env, Shapes, no_flops, register
from symgraph.core.shapes import unify
from symgraph.core.types import Array, Shape, Types
from symgraph.ops.elementwise import arg_names


def begins(site: Site, data: Shape, out: Shape) -> Shape:
    """Return where the window starts; ShapeError if it does not lie in the data."""
    size, window = data[2:], out[2:]
    offset = site.attrs["offset"]
    if site.attrs["center_crop"]:
        offset = tuple((n - w) // 2 for n, w in zip(size, window, strict=True))
    if len(offset) != 2 or any(
        b < 0 or b + w > n for b, w, n in zip(offset, window, size, strict=True)
    ):
        site.fail(f"a window of {window} at {offset} does not lie in data of shape {data}")
    return tuple(offset)


def crop_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    a, data = site.attrs, ins[0]
    if a["num_args"] not in (1, 2) or len(a["h_w"]) != 2:
        site.fail(
            f"takes one input or two and h_w of two numbers, not {a['num_args']} and {a['h_w']}"
        )
    if a["num_args"] == 1 and 0 in a["h_w"]:
        site.fail("needs h_w, or a second input that has the height and width to crop to")
    window = a["h_w"] if a["num_args"] == 1 else (ins[1] or (0,) * 4)[2:]
    if data is None:
        return ins, [unify(site, (0, 0, *window), outs[0], "output shapes")]
    if len(data) != 4 or len(window) != 2:
        site.fail(f"works on (batch, channel, height, width), not {' and '.join(map(str, ins))}")
    out = unify(site, (*data[:2], *window), outs[0], "output shapes")
    assert out is not None
    if 0 not in data[2:] and 0 not in out[2:]:
        begins(site, data, out)
    return [(*out[:2], *data[2:]), *ins[1:]], [out]


def window(a: Attrs, data: Shape, out: Shape) -> dict[str, Any]:
    """Return the same part as parameters of `slice`."""
    first = begins(Site("Crop", "", a), data, out)
    last = tuple(b + w for b, w in zip(first, out[2:], strict=True))
    return {"begin": (None, None, *first), "end": (None, None, *last)}


def crop(env: Env, a: Attrs, x: Array, *like: Array) -> Any:
    size = like[0].shape[2:] if like else a["h_w"]
    part = window(a, x.shape, (*x.shape[:2], *size))
    return x[tuple(slice(b, e) for b, e in zip(part["begin"], part["end"], strict=True))]


def crop_grad(c: Call) -> Sequence[Ref | None]:
    shape = c.x[0].shape
    part = window(c.attrs, shape, c.y[0].shape)
    return [apply("_slice_grad", c.gy, shape=shape, **part), *[None] * len(c.x[1:])]


def crop_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    for layout in ins:
        if isinstance(layout, Split) and layout.axis > 1:
            refuse_mixing(site, f"works along axis {layout.axis}, where the batch lies")
    return [ins[0]]


register(
    name="Crop",
    inputs=arg_names,
    shape=crop_shape,
    compute=crop,
    grad=crop_grad,
    flops=no_flops,
    batch=crop_batch,
    params={
        "num_args": params.count(1, most=params.MAX_PARTS),
        "offset": params.integers((0, 0)),
        "h_w": params.integers((0, 0)),
        "center_crop": params.boolean(False),
    },
    variadic="num_args",
    doc="A window of (batch, channel, height, width) data, as large as a second input or h_w, "
    "that begins at `offset` or lies in the middle (center_crop). MXNet Crop.",
)
