"""Pooling over windows of the spatial axes: maximum, average, sum and Lp norm.

The computations here go over the positions in the windows one by one: the reference for the
kernels of runtime/backends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from symgraph.core import params
from symgraph.core.batch_layout import (
    PARTIAL,
    Layouts,
    not_along,
    refuse_mixing,
    spatial_axes,
)
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, Env, Shapes, register
from symgraph.core.shapes import unify
from symgraph.core.types import Array, Shape, Types, wide
from symgraph.ops.elementwise import floats
from symgraph.ops.linear import grad_data_shape
from symgraph.ops.windows import (
    CUDNN,
    LAYOUTS,
    Windows,
    checked,
    counts_of,
    sized,
    windows_of,
    with_rank,
)

FORM = {
    "kernel": params.integers(()),
    "pool_type": params.choice("max", "avg", "sum", "lp", default="max"),
    "global_pool": params.boolean(False),
    "pooling_convention": params.choice("valid", "full", "same", default="valid"),
    "stride": params.integers(()),
    "pad": params.integers(()),
    "p_value": params.optional(params.integer()),
    "count_include_pad": params.optional(params.boolean()),
}


POOLING = {  # in MXNet's order
    **{key: FORM[key] for key in ("kernel", "pool_type", "global_pool")},
    "cudnn_off": params.boolean(False),
    **FORM,
    "layout": CUDNN["layout"],
}


def form(attrs: Attrs) -> dict[str, Any]:
    """Return the parameters that say what is pooled, and how."""
    return {key: attrs[key] for key in FORM if attrs[key] is not None}


def windows_over(attrs: Attrs, data: Shape) -> tuple[Windows, Shape]:
    """Return the windows, and their number along each spatial axis of known data."""
    lengths = data[2:]
    if attrs["global_pool"]:
        ones, zeros = (1,) * len(lengths), (0,) * len(lengths)
        return Windows(lengths, ones, ones, zeros), ones
    windows, convention = windows_of(attrs), attrs["pooling_convention"]
    counts = []
    for n, k, s in zip(windows.padded(lengths), windows.kernel, windows.stride, strict=True):
        left = n if convention == "same" else n - k
        counts.append(left // s + 1 if convention == "valid" else -(-left // s))
    if convention == "full":
        counts = [n + 1 for n in counts]
    return windows, tuple(counts)


def check_windows(site: Site, data: Shape) -> None:
    """Raise ShapeError unless every window holds an element of the data."""
    windows = checked(site)
    if any(p >= k for p, k in zip(windows.pad, windows.kernel, strict=True)):
        site.fail(f"pad={windows.pad} must be less than kernel={windows.kernel}")
    if site.attrs["pooling_convention"] == "same" and any(windows.pad):
        site.fail(f"pad={windows.pad} does not go with pooling_convention='same'")
    counts_of(site, windows, data)
    _, counts = windows_over(site.attrs, data)
    fields = zip(data[2:], counts, windows.stride, windows.pad, strict=True)
    for axis, (length, count, stride, pad) in enumerate(fields, 2):
        if length and (count - 1) * stride - pad >= length:
            site.fail(
                f"the last window along axis {axis} of data of shape {data} lies in the "
                f"padding alone (kernel={windows.kernel}, stride={windows.stride}, "
                f"pad={windows.pad}, pooling_convention='full')"
            )


def pool_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    if site.attrs["pool_type"] == "lp" and site.attrs["p_value"] not in (1, 2, 3):
        site.fail(f"pool_type='lp' needs p_value 1, 2 or 3, not {site.attrs['p_value']}")
    everything = site.attrs["global_pool"]
    given = outs[0] if ins[0] is None else ins[0]
    if everything and given is None:
        return ins, outs
    rank = len(given or ()) - 2 if everything else len(checked(site).kernel)
    if not 1 <= rank <= len(LAYOUTS):
        site.fail(f"pools (batch, channel) data with one to three spatial axes, not shape {given}")
    data, out = (with_rank(site, *s, rank) for s in (("data", ins[0]), ("output", outs[0])))
    data = (data[0] or out[0], data[1] or out[1], *data[2:])
    if not everything:
        check_windows(site, data)
    _, counts = windows_over(site.attrs, data)
    known = [n if (n and d) or everything else 0 for n, d in zip(counts, data[2:], strict=True)]
    return [data], [unify(site, (*data[:2], *known), out, "output shapes")]


# -- passes over the positions in the windows ----------------------------------------------------


class Span(NamedTuple):
    """Everything that the windows cover: the data, and the padding around it."""

    windows: Windows
    counts: Shape
    data: Shape

    @classmethod
    def of(cls, attrs: Attrs, data: Shape) -> Span:
        return cls(*windows_over(attrs, data), data)

    @property
    def inside(self) -> tuple[Any, ...]:
        """The place of the data."""
        return (..., *self.windows.inside(self.data[2:]))

    def places(self) -> Iterator[tuple[Any, ...]]:
        """Yield the elements at each position in the windows, row by row."""
        for offset in self.windows.offsets():
            yield (..., *self.windows.at(offset, self.counts))

    def full(self, xp: Any, fill: float, dtype: Any) -> Array:
        fields = zip(self.data[2:], self.counts, *self.windows, strict=True)
        lengths = [max(n + 2 * p, (c - 1) * s + k) for n, c, k, s, _, p in fields]
        array: Array = xp.full((*self.data[:2], *lengths), fill, dtype)
        return array

    def around(self, xp: Any, x: Array, fill: float) -> Array:
        array = self.full(xp, fill, x.dtype)
        array[self.inside] = x
        return array

    def sizes(self, padding: bool) -> list[list[int]]:
        """Return by axis how many elements each window has, with its padding or without."""
        sizes = []
        fields = zip(self.data[2:], self.counts, *self.windows, strict=True)
        for n, count, kernel, stride, _, pad in fields:
            low, high = (-pad, n + pad) if padding else (0, n)
            starts = [i * stride - pad for i in range(count)]
            sizes.append([min(s + kernel, high) - max(s, low) for s in starts])
        return sizes


def sums(xp: Any, x: Array, span: Span) -> Array:
    around = span.around(xp, x, 0.0)
    total: Array = xp.zeros((*x.shape[:2], *span.counts), x.dtype)
    for place in span.places():
        total += around[place]
    return total


def maxima(xp: Any, x: Array, span: Span) -> Array:
    around = span.around(xp, x, -xp.inf)
    top: Array = xp.full((*x.shape[:2], *span.counts), -xp.inf, x.dtype)
    for place in span.places():
        xp.maximum(top, around[place], out=top)
    return top


def first_maxima(xp: Any, x: Array, span: Span) -> Iterator[tuple[tuple[Any, ...], Array]]:
    """Yield each position in the windows, and the windows with their first maximum there."""
    around, top = span.around(xp, x, -xp.inf), maxima(xp, x, span)
    free = xp.ones(top.shape, bool)
    for place in span.places():
        hit = (around[place] == top) & free
        free &= ~hit
        yield place, hit


def max_gradient(xp: Any, g: Array, x: Array, span: Span) -> Array:
    total = span.full(xp, 0.0, g.dtype)
    for place, hit in first_maxima(xp, x, span):
        total[place] += g * hit
    inside: Array = total[span.inside]
    return inside


def at_maxima(xp: Any, h: Array, x: Array, span: Span) -> Array:
    """Return h at the first maximum of each window of x: transposes `max_gradient`."""
    values = span.around(xp, h, 0.0)
    total: Array = xp.zeros((*x.shape[:2], *span.counts), h.dtype)
    for place, hit in first_maxima(xp, x, span):
        total += values[place] * hit
    return total


def sums_gradient(xp: Any, g: Array, span: Span) -> Array:
    total = span.full(xp, 0.0, g.dtype)
    for place in span.places():
        total[place] += g
    inside: Array = total[span.inside]
    return inside


# -- Pooling -------------------------------------------------------------------------------------


def pooling(env: Env, a: Attrs, x: Array) -> Array:
    span = Span.of(a, x.shape)
    if a["pool_type"] == "max":
        return maxima(env.xp, x, span)
    return mean_or_norm(env.xp, a, x, lambda each: sums(env.xp, each, span))


def mean_or_norm(xp: Any, a: Attrs, x: Array, sums: Callable[[Array], Array]) -> Array:
    """Pool by sums over the windows, which `sums` computes; 16-bit floats in float32."""
    kind, each = a["pool_type"], x.astype(wide(x.dtype), copy=False)
    total = sums(each ** a["p_value"] if kind == "lp" else each)
    if kind == "lp":
        (xp.positive, xp.sqrt, xp.cbrt)[a["p_value"] - 1](total, out=total)
    elif kind == "avg":
        total /= divisors(xp, a, x.shape, total)
    return total.astype(x.dtype, copy=False)


def divisors(xp: Any, a: Attrs, data: Shape, like: Array) -> Array:
    """Return the divisors of each window's sum, in the dtype of `like`."""
    total: Array = xp.ones((), "int64")
    for sizes in Span.of(a, data).sizes(a["count_include_pad"] is not False):
        total = total[..., None] * xp.asarray(sizes)
    return total.astype(like.dtype)


def per_element(xp: Any, a: Attrs, g: Array) -> Array:
    """Return the gradient per element of a window of a sum or an average; 16 bits in float32."""
    each = g.astype(wide(g.dtype), copy=False)
    return each / divisors(xp, a, a["shape"], each) if a["pool_type"] == "avg" else each


def pool_grad(c: Call) -> Sequence[Ref]:
    x, y = c.x[0], c.y[0]
    attrs = form(c.attrs)
    kind, p = c.attrs["pool_type"], c.attrs["p_value"]
    if kind == "max":
        return (apply("_max_pool_grad", c.gy, x, **attrs),)
    if kind != "lp":
        return (apply("_pool_grad", c.gy, shape=x.shape, **attrs),)
    zero = apply("_equal_scalar", y, scalar=0.0)
    each = c.gy * (1.0 - zero) * apply("_power_scalar", y + zero, scalar=1.0 - p)
    spread = apply("_pool_grad", each, shape=x.shape, **{**attrs, "pool_type": "sum"})
    return (spread * apply("_power_scalar", x, scalar=p - 1.0),)


def pool_flops(attrs: Attrs, ins: Types, outs: Types) -> int:
    windows, _ = windows_over(attrs, ins[0].shape)
    return outs[0].size * math.prod(windows.kernel)


def pool_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    data = ins[0]
    if data is PARTIAL and site.attrs["pool_type"] in ("max", "lp"):
        refuse_mixing(site, "applies a nonlinear function to a sum over the batch")
    return [data]


register(
    name="Pooling",
    inputs=("data",),
    shape=pool_shape,
    compute=pooling,
    grad=pool_grad,
    flops=pool_flops,
    dtype=floats,
    batch=not_along(spatial_axes, pool_batch, "pools along axis {axis}, where the batch lies"),
    params=POOLING,
    reads_on_host=True,
    caption=lambda attrs: f"{attrs['pool_type']}, {sized(attrs)}",
    doc="Windows of data (batch, channel, *spatial) reduced to their max, avg, sum or lp norm "
    "(the p_value-th root of the sum of powers). With x = n + 2 pad - kernel an axis becomes "
    "floor(x / stride) + 1 long (pooling_convention valid), ceil(x / stride) + 1 (full: the "
    "last windows may reach over the end), or ceil(n / stride) (same, without pad). "
    "global_pool: one window over everything. An average divides by the size of the window, "
    "including its padding unless count_include_pad=False. The gradient of a maximum goes to "
    "the first of equal elements. MXNet Pooling.",
)


def pool_gradient(env: Env, a: Attrs, g: Array) -> Array:
    each = per_element(env.xp, a, g)
    return sums_gradient(env.xp, each, Span.of(a, a["shape"])).astype(g.dtype, copy=False)


register(
    name="_pool_grad",
    inputs=("grad",),
    shape=grad_data_shape,
    compute=pool_gradient,
    grad=lambda c: (apply("Pooling", c.gy, **form(c.attrs)),),
    flops=lambda attrs, ins, outs: pool_flops(attrs, outs, ins),
    params={**FORM, "shape": params.integers()},
    reads_on_host=True,
    doc="Gradient of Pooling's data, which has the shape `shape`, for sums and averages.",
)

register(
    name="_max_pool_grad",
    inputs=("grad", "data"),
    shape=lambda site, ins, outs: (ins, [ins[1]]),
    compute=lambda env, a, g, x: max_gradient(env.xp, g, x, Span.of(a, x.shape)),
    grad=lambda c: (apply("_at_maxima", c.gy, c.x[1], **form(c.attrs)), None),
    flops=lambda attrs, ins, outs: 2 * pool_flops(attrs, outs, ins),
    params=FORM,
    doc="Gradient of a maximum's data: each window's gradient at its first maximum.",
)


def at_maxima_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    _, pooled = pool_shape(site, ins[1:], outs)
    return ins, pooled


register(
    name="_at_maxima",
    inputs=("values", "data"),
    shape=at_maxima_shape,
    compute=lambda env, a, h, x: at_maxima(env.xp, h, x, Span.of(a, x.shape)),
    grad=lambda c: (apply("_max_pool_grad", c.gy, c.x[1], **form(c.attrs)), None),
    flops=lambda attrs, ins, outs: 2 * pool_flops(attrs, ins, outs),
    params=FORM,
    doc="The values at the first maximum of each window of the data.",
)
