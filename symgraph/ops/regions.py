"""Maxima over regions of images whose corners are data: ROIPooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from symgraph.core import params
from symgraph.core.batch_layout import WHOLE, Layouts, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, Env, Shapes, register
from symgraph.core.shapes import expect, unify
from symgraph.core.types import Array, Types
from symgraph.ops.elementwise import floats
from symgraph.ops.index import checked

REGIONS = {"pooled_size": params.integers(), "spatial_scale": params.number()}


class Bin(NamedTuple):
    """A part of a region, which becomes one pixel of the output."""

    #: The number of the region, and the bin's row and column in it.
    region: int
    row: int
    column: int
    #: The number of the image, and the bin's rows and columns there.
    image: int
    rows: slice
    columns: slice


def bins(env: Env, a: Attrs, data: Array, rois: Array) -> Iterator[Bin]:
    """Yield the bins that hold a pixel. Corners are rounded, halves away from zero, as in C."""
    regions = rois if env.xp is np else env.xp.asnumpy(rois)
    images = checked(np.trunc(regions[:, 0]), data.shape[0], "image of a region")
    scaled = regions[:, 1:] * regions.dtype.type(a["spatial_scale"])
    corners = (np.sign(scaled) * np.floor(abs(scaled) + 0.5)).astype("int64")
    for region, (left, top, right, bottom) in enumerate(corners.tolist()):
        rows = _cut(top, bottom, a["pooled_size"][0], data.shape[2], regions.dtype)
        columns = _cut(left, right, a["pooled_size"][1], data.shape[3], regions.dtype)
        for i, down in enumerate(rows):
            for j, across in enumerate(columns):
                if down.stop > down.start and across.stop > across.start:
                    yield Bin(region, i, j, int(images[region]), down, across)


def _cut(first: int, last: int, count: int, size: int, dtype: Any) -> list[slice]:
    """Cut a region along one axis; parts overlap if they do not come out even."""
    # In the data's precision, as MXNet: it decides where a part that is nearly whole ends.
    step = dtype.type(max(last - first + 1, 1)) / dtype.type(count)
    numbers = np.arange(count).astype(dtype)
    starts = np.floor(numbers * step).astype("int64") + first
    stops = np.ceil((numbers + dtype.type(1)) * step).astype("int64") + first
    ends = zip(starts.clip(0, size).tolist(), stops.clip(0, size).tolist(), strict=True)
    return [slice(start, stop) for start, stop in ends]


def roi_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    size = site.attrs["pooled_size"]
    if len(size) != 2 or min(size) < 1:
        site.fail(f"pooled_size={size} must be a height and a width")
    data = expect(site, "data", ins[0], (0, 0, 0, 0), "(batch, channels, height, width)")
    rois = expect(site, "rois", ins[1], (0, 5), "(regions, image and corners)")
    assert data is not None
    assert rois is not None
    out = unify(site, (rois[0], data[1], *size), outs[0], "output shapes")
    assert out is not None
    return [(data[0], out[1], *data[2:]), (out[0], 5)], [out]


def roi_pooling(env: Env, a: Attrs, data: Array, rois: Array) -> Array:
    made: Array = env.xp.zeros((len(rois), data.shape[1], *a["pooled_size"]), data.dtype)
    for b in bins(env, a, data, rois):
        made[b.region, :, b.row, b.column] = data[b.image, :, b.rows, b.columns].max((1, 2))
    return made


def roi_gradient(env: Env, a: Attrs, g: Array, data: Array, rois: Array) -> Array:
    """Return what goes to the first maximum of each bin."""
    grad: Array = env.xp.zeros_like(data)
    channels = env.xp.arange(data.shape[1])
    for b in bins(env, a, data, rois):
        window = data[b.image, :, b.rows, b.columns]
        width = window.shape[2]
        at = window.reshape(len(channels), -1).argmax(1)
        place = (b.image, channels, at // width + b.rows.start, at % width + b.columns.start)
        grad[place] += g[b.region, :, b.row, b.column]
    return grad


def roi_grad(c: Call) -> Sequence[Ref | None]:
    return apply("_roi_pooling_grad", c.gy, *c.x, **c.attrs), None


def roi_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    if any(layout is not WHOLE for layout in ins):
        refuse_mixing(site, "has regions that name images by their number in the whole batch")
    return [WHOLE]


register(
    name="ROIPooling",
    inputs=("data", "rois"),
    shape=roi_shape,
    compute=roi_pooling,
    grad=roi_grad,
    flops=lambda attrs, ins, outs: 4 * outs[0].size,
    dtype=floats,
    batch=roi_batch,
    params=REGIONS,
    reads_on_host=True,
    doc="The maxima of pooled_size (rows, columns) parts of regions: (R, C, *pooled_size). data "
    "(N, C, H, W); rois (R, 5): the number of an image and the corners x1, y1, x2, y2, which are "
    "multiplied by spatial_scale and rounded, and belong to the region. A part outside the image "
    "is 0. An image's number out of range raises IndexError (Girshick 2015). MXNet ROIPooling.",
)

register(
    name="_roi_pooling_grad",
    inputs=("grad", "data", "rois"),
    shape=lambda site, ins, outs: (ins, [ins[1]]),
    compute=roi_gradient,
    flops=lambda attrs, ins, outs: 4 * ins[0].size,
    dtype=floats,
    batch=roi_batch,
    params=REGIONS,
    reads_on_host=True,
    doc="Gradient of ROIPooling's data.",
)
