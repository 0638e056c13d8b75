"""Images sampled along grids, and compared patch by patch: spatial transformers, Correlation.

A grid (N, 2, h, w) holds the x, then the y from which each pixel is taken, from -1 to 1 over the
data. In between, the four pixels around are weighted; outside the data there are zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from symgraph.core import params
from symgraph.core.batch_layout import Layouts, elementwise, not_along, refuse_mixing
from symgraph.core.params import Attrs, Param, Site
from symgraph.core.ref import Ref, apply, apply_all
from symgraph.core.registry import Call, Env, Shapes, complete, register
from symgraph.core.shapes import expect, unify
from symgraph.core.types import Array, Shape, Types
from symgraph.ops.elementwise import floats
from symgraph.ops.index import scatter_rows


def inner_axes(attrs: Attrs, rank: int) -> range:
    return range(1, rank)


images = not_along(inner_axes, elementwise)  # the batch lies along axis 0 of all inputs


def by_images(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """The batch lies along axis 0, in all inputs alike."""
    if any(layout != ins[0] for layout in ins):
        refuse_mixing(site, f"has inputs whose batch lies differently ({list(ins)})")
    images(site, ins[:1], in_types[:1], in_types[:1])
    return [ins[0]] * len(outs)


# -- grids -----------------------------------------------------------------------------------------

GRID = {
    "transform_type": params.choice("affine", "warp"),
    "target_shape": params.integers((0, 0)),
}


def lines(xp: Any, size: int, dtype: Any) -> Array:
    """Return the places of pixels along an axis, from -1 to 1."""
    numbers = xp.arange(size).astype(dtype)
    places: Array = numbers * dtype.type(2.0 / max(1, size - 1)) - dtype.type(1)
    return places


def base_grid(xp: Any, height: int, width: int, dtype: Any) -> Array:
    """Return x, y and 1 of each pixel: (3, height * width)."""
    x = xp.tile(lines(xp, width, dtype), height)
    y = xp.repeat(lines(xp, height, dtype), width)
    made: Array = xp.stack([x, y, xp.ones_like(x)])
    return made


def grid_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """(N, 6) to (N, 2, *target_shape), or one shape (N, 2, h, w) for warp."""
    if site.attrs["transform_type"] == "warp":
        shape = unify(site, ins[0], outs[0], "shapes of input and output")
        shape = expect(site, "data", shape, (0, 2, 0, 0), "(batch, x and y, height, width)")
        return [shape], [shape]
    target = site.attrs["target_shape"]
    if len(target) != 2 or min(target) < 1:
        site.fail(f"target_shape={target} must be the height and width of the output")
    data = expect(site, "data", ins[0], ((outs[0] or (0,))[0], 6), "(batch, 6)")
    assert data is not None
    return [data], [unify(site, (data[0], 2, *target), outs[0], "output shapes")]


def grid(env: Env, a: Attrs, x: Array) -> Array:
    xp = env.xp
    if a["transform_type"] == "affine":
        height, width = a["target_shape"]
        base = base_grid(xp, height, width, x.dtype)
        made: Array = xp.matmul(x.reshape(-1, 2, 3), base)
        return made.reshape(-1, 2, *a["target_shape"])
    height, width = x.shape[2:]
    steps = xp.asarray([2.0 / max(1, width - 1), 2.0 / max(1, height - 1)], x.dtype)
    base = base_grid(xp, height, width, x.dtype)[:2].reshape(1, 2, height, width)
    warped: Array = x * steps.reshape(1, 2, 1, 1) + base
    return warped


def grid_gradient(env: Env, a: Attrs, g: Array) -> Array:
    xp = env.xp
    height, width = g.shape[2:]
    if a["transform_type"] == "affine":
        base = base_grid(xp, height, width, g.dtype)
        made: Array = xp.matmul(g.reshape(-1, 2, height * width), base.T).reshape(-1, 6)
        return made
    steps = xp.asarray([2.0 / max(1, width - 1), 2.0 / max(1, height - 1)], g.dtype)
    scaled: Array = g * steps.reshape(1, 2, 1, 1)
    return scaled


register(
    name="GridGenerator",
    inputs=("data",),
    shape=grid_shape,
    compute=grid,
    grad=lambda c: (apply("_grid_generator_grad", c.gy, **c.attrs),),
    flops=lambda attrs, ins, outs: 6 * outs[0].size,
    dtype=floats,
    batch=by_images,
    params=GRID,
    reads_on_host=True,
    doc="The grid of a spatial transformer: (N, 2, h, w). affine: of target_shape (h, w), by a "
    "matrix of 2 rows and 3 columns for each sample, data (N, 6). warp: the place of each pixel, "
    "moved by data (N, 2, h, w) pixels. MXNet GridGenerator.",
)


def grid_gradient_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    shape = ins[0]
    if shape is None or site.attrs["transform_type"] == "warp":
        return ins, [shape]
    return ins, [(shape[0], 6)]


register(
    name="_grid_generator_grad",
    inputs=("grad",),
    shape=grid_gradient_shape,
    compute=grid_gradient,
    flops=lambda attrs, ins, outs: 6 * ins[0].size,
    dtype=floats,
    batch=by_images,
    params=GRID,
    reads_on_host=True,
    doc="Gradient of GridGenerator's data.",
)


# -- sampling --------------------------------------------------------------------------------------


class Corner(NamedTuple):
    """One of the four pixels around each place of a grid."""

    #: The index of the pixels in data whose channels come last.
    pixels: tuple[Array, ...]
    #: Its weight, and the weight's slopes along x and y, in pixels; 0 outside the data. (N, h, w).
    weight: Array
    by_x: Array
    by_y: Array


def corners(xp: Any, data: Shape, at: Array) -> Iterator[Corner]:
    height, width = data[2:]
    x = (at[:, 0] + 1) * at.dtype.type((width - 1) / 2)
    y = (at[:, 1] + 1) * at.dtype.type((height - 1) / 2)
    left, top = xp.floor(x), xp.floor(y)
    samples = xp.arange(data[0])[:, None, None]
    for down in (0, 1):
        for right in (0, 1):
            column, row = left + right, top + down
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            along_x, along_y = 1 - abs(x - column), 1 - abs(y - row)
            places = (
                xp.clip(row, 0, height - 1).astype("int64"),
                xp.clip(column, 0, width - 1).astype("int64"),
            )
            yield Corner(
                (samples, *places),
                along_x * along_y * inside,
                (2 * right - 1) * along_y * inside,
                (2 * down - 1) * along_x * inside,
            )


def sampled(xp: Any, data: Array, at: Array) -> Array:
    pixels = xp.moveaxis(data, 1, -1)
    total = xp.zeros((*at.shape[:1], *at.shape[2:], data.shape[1]), data.dtype)
    for corner in corners(xp, data.shape, at):
        total += pixels[corner.pixels] * corner.weight[..., None]
    made: Array = xp.moveaxis(total, -1, 1)
    return made


def sampler_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, at = ins
    data = expect(site, "data", data, (0, 0, 0, 0), "(batch, channels, height, width)")
    at = expect(site, "grid", at, (0, 2, 0, 0), "(batch, x and y, height, width)")
    out = expect(site, "output", outs[0], (0, 0, 0, 0))
    assert data is not None
    assert at is not None
    assert out is not None
    batch = unify(site, data[:1], at[:1], "batches of data and grid") or (0,)
    batch = unify(site, batch, out[:1], "batches") or (0,)
    channels = unify(site, data[1:2], out[1:2], "channels") or (0,)
    places = unify(site, at[2:], out[2:], "sizes of grid and output") or (0, 0)
    return (
        [(*batch, *channels, *data[2:]), (*batch, 2, *places)],
        [(*batch, *channels, *places)],
    )


def sampler_gradients(env: Env, a: Attrs, g: Array, data: Array, at: Array) -> tuple[Array, Array]:
    """Return the gradients of data and grid; pixels are added up by their numbers."""
    xp = env.xp
    count, channels, height, width = data.shape
    pixels, rows = xp.moveaxis(data, 1, -1), xp.moveaxis(g, 1, -1)
    size = count * height * width
    of_data = xp.zeros((size, channels), g.dtype)
    of_x, of_y = xp.zeros_like(at[:, 0]), xp.zeros_like(at[:, 0])
    for corner in corners(xp, data.shape, at):
        sample, row, column = corner.pixels
        numbers = ((sample * height + row) * width + column).reshape(-1)
        parts = (rows * corner.weight[..., None]).reshape(-1, channels)
        of_data += scatter_rows(xp, numbers, parts, size)
        each = (rows * pixels[corner.pixels]).sum(-1)
        of_x += each * corner.by_x
        of_y += each * corner.by_y
    of_x *= at.dtype.type((width - 1) / 2)
    of_y *= at.dtype.type((height - 1) / 2)
    whole = of_data.reshape(count, height, width, channels)
    return xp.moveaxis(whole, -1, 1), xp.stack([of_x, of_y], 1)


register(
    name="BilinearSampler",
    inputs=("data", "grid"),
    shape=sampler_shape,
    compute=lambda env, a, x, at: sampled(env.xp, x, at),
    grad=lambda c: apply_all("_bilinear_sampler_grad", c.gy, *c.x),
    flops=lambda attrs, ins, outs: 12 * outs[0].size,
    dtype=floats,
    batch=by_images,
    params={"cudnn_off": params.ignored()},
    temporaries=8,
    doc="The data (N, C, H, W) at the places of a grid (N, 2, h, w), from -1 to 1, by bilinear "
    "interpolation, with zeros outside: (N, C, h, w). MXNet BilinearSampler.",
)

register(
    name="_bilinear_sampler_grad",
    inputs=("grad", "data", "grid"),
    outputs=("grad_data", "grad_grid"),
    shape=lambda site, ins, outs: (ins, ins[1:]),
    compute=sampler_gradients,
    flops=lambda attrs, ins, outs: 30 * ins[0].size,
    dtype=floats,
    batch=by_images,
    reads_on_host=True,
    temporaries=8,
    doc="Gradients of BilinearSampler's data and grid.",
)


def transformer_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    a = {"transform_type": "affine", "target_shape": site.attrs["target_shape"]}
    (loc,), (places,) = grid_shape(site._replace(attrs=a), ins[1:], [None])
    (data, places), out = sampler_shape(site, [ins[0], places], outs)
    (loc,), _ = grid_shape(site._replace(attrs=a), [loc], [places])
    return [data, loc], out


def affine(c: Call) -> dict[str, Any]:
    return {"transform_type": "affine", "target_shape": c.attrs["target_shape"]}


def transformed(env: Env, a: Attrs, data: Array, loc: Array) -> Array:
    return sampled(env.xp, data, grid(env, {**a, "transform_type": "affine"}, loc))


def transformer_grad(c: Call) -> Sequence[Ref]:
    places = apply("GridGenerator", c.x[1], **affine(c))
    of_data, of_grid = apply_all("_bilinear_sampler_grad", c.gy, c.x[0], places)
    return of_data, apply("_grid_generator_grad", of_grid, **affine(c))


register(
    name="SpatialTransformer",
    inputs=("data", "loc"),
    shape=transformer_shape,
    compute=transformed,
    grad=transformer_grad,
    flops=lambda attrs, ins, outs: 12 * outs[0].size,
    dtype=floats,
    batch=by_images,
    params={
        "target_shape": params.integers((0, 0)),
        "transform_type": params.only("affine"),
        "sampler_type": params.only("bilinear"),
        "cudnn_off": params.ignored(),
    },
    reads_on_host=True,
    temporaries=8,
    doc="BilinearSampler of the data (N, C, H, W) along GridGenerator's affine grid of loc (N, 6): "
    "(N, C, *target_shape) (Jaderberg et al. 2015). MXNet SpatialTransformer.",
)


# -- correlation -----------------------------------------------------------------------------------


def odd(raw: Any) -> int:
    size = params.count().parse(raw)
    if size % 2 == 0:
        raise ValueError
    return int(size)


CORRELATION = {
    "kernel_size": Param(odd, 1, "odd int", type="int"),
    "max_displacement": params.integer(1),
    "stride1": params.count(1),
    "stride2": params.count(1),
    "pad_size": params.integer(0),
    "is_multiply": params.boolean(True),
}


def displacements(a: Attrs) -> range:
    """Return the distances along an axis between the patches that are compared."""
    radius, stride = a["max_displacement"] // a["stride2"], a["stride2"]
    return range(-radius * stride, radius * stride + 1, stride)


def correlation_sizes(site: Site, data: Shape) -> Shape:
    a = site.attrs
    border = a["max_displacement"] + a["kernel_size"] // 2
    sizes = [-(-(n + 2 * a["pad_size"] - 2 * border) // a["stride1"]) for n in data[2:]]
    if min(sizes) < 1:
        site.fail(
            f"data of shape {data} with pad_size={a['pad_size']} is smaller than the patches and "
            f"displacements, {2 * border + 1}"
        )
    return tuple(sizes)


def correlation_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = unify(site, ins[0], ins[1], "shapes of data1 and data2")
    data = expect(site, "data1", data, (0, 0, 0, 0), "(batch, channels, height, width)")
    assert data is not None
    places = correlation_sizes(site, data) if complete(data[2:]) else (0, 0)
    made = (data[0], len(displacements(site.attrs)) ** 2, *places)
    return [data, data], [unify(site, made, outs[0], "output shapes")]


def pairs(a: Attrs, sizes: Shape) -> Iterator[tuple[int, Any, Any]]:
    """Yield each displacement's number with the pixels of one offset in its patches, twice."""
    stride, size = a["stride1"], a["kernel_size"]

    def along(start: int, count: int) -> slice:
        return slice(start, start + (count - 1) * stride + 1, stride)

    moves = [(down, right) for down in displacements(a) for right in displacements(a)]
    for number, (down, right) in enumerate(moves):
        for offset in range(size * size):
            row, column = (a["max_displacement"] + k for k in divmod(offset, size))
            here = (..., along(row, sizes[0]), along(column, sizes[1]))
            there = (..., along(row + down, sizes[0]), along(column + right, sizes[1]))
            yield number, here, there


def padded(xp: Any, a: Attrs, x: Array) -> Array:
    # A displacement that stride2 does not divide leaves pixels unread; an offset may pass the end.
    pad = a["pad_size"]
    made: Array = xp.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    return made


def correlation(env: Env, a: Attrs, x: Array, y: Array) -> Array:
    xp, x, y = env.xp, padded(env.xp, a, x), padded(env.xp, a, y)
    sizes = correlation_sizes(Site("Correlation", "", {**a, "pad_size": 0}), x.shape)
    made: Array = xp.zeros((x.shape[0], len(displacements(a)) ** 2, *sizes), x.dtype)
    for number, here, there in pairs(a, sizes):
        first, second = x[here], y[there]
        each = first * second if a["is_multiply"] else abs(first - second)
        made[:, number] += each.sum(1)
    made /= x.dtype.type(a["kernel_size"] ** 2 * x.shape[1])
    return made


def correlation_gradients(env: Env, a: Attrs, g: Array, x: Array, y: Array) -> tuple[Array, Array]:
    xp, x, y, sizes = env.xp, padded(env.xp, a, x), padded(env.xp, a, y), g.shape[2:]
    grads = xp.zeros_like(x), xp.zeros_like(y)
    g = g / x.dtype.type(a["kernel_size"] ** 2 * x.shape[1])
    for number, here, there in pairs(a, sizes):
        top, first, second = g[:, number, None], x[here], y[there]
        if a["is_multiply"]:
            grads[0][here] += top * second
            grads[1][there] += top * first
        else:
            signed = top * xp.where(first >= second, 1, -1).astype(g.dtype)
            grads[0][here] += signed
            grads[1][there] -= signed
    ends = [slice(a["pad_size"], n - a["pad_size"]) for n in x.shape[2:]]
    return grads[0][(..., *ends)], grads[1][(..., *ends)]


def correlation_flops(attrs: Attrs, ins: Types, outs: Types) -> int:
    return 2 * int(attrs["kernel_size"]) ** 2 * ins[-1].shape[1] * outs[0].size


register(
    name="Correlation",
    inputs=("data1", "data2"),
    shape=correlation_shape,
    compute=correlation,
    grad=lambda c: apply_all("_correlation_grad", c.gy, *c.x, **c.attrs),
    flops=correlation_flops,
    dtype=floats,
    batch=by_images,
    params=CORRELATION,
    temporaries=12,
    doc="The mean product (or, with is_multiply=False, distance) of patches of kernel_size squared "
    "pixels of data1 and of data2 (N, C, H, W), displaced by up to max_displacement in steps of "
    "stride2; a channel for each displacement, a place for every stride1 pixels (Dosovitskiy et "
    "al. 2015). pad_size: zeros around both. MXNet Correlation.",
)

register(
    name="_correlation_grad",
    inputs=("grad", "data1", "data2"),
    outputs=("grad_data1", "grad_data2"),
    shape=lambda site, ins, outs: (ins, ins[1:]),
    compute=correlation_gradients,
    flops=lambda attrs, ins, outs: 2 * correlation_flops(attrs, outs, ins),
    dtype=floats,
    batch=by_images,
    params=CORRELATION,
    temporaries=12,
    doc="Gradients of Correlation's inputs.",
)
