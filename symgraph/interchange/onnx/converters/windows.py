"""Converters of convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import product
from typing import NamedTuple

import numpy as np

from symgraph.core.types import Array, is_float
from symgraph.interchange.onnx.converters.movement import numbers, padded
from symgraph.interchange.onnx.folding import bounded
from symgraph.interchange.onnx.node import OnnxNode
from symgraph.interchange.onnx.registry import converts
from symgraph.interchange.values import Traced, pair

MOST_PLACES = 512  # in a kernel that is taken apart into its places
Ints = list[int]


class Window(NamedTuple):
    """The windows of a node, one entry for each spatial axis."""

    kernel: Ints
    stride: Ints
    dilate: Ints
    before: Ints
    after: Ints

    @property
    def extent(self) -> Ints:
        """The elements that a window spans."""
        return [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilate, strict=True)]

    @property
    def symmetric(self) -> bool:
        """Whether as much is padded before the data as behind it."""
        return self.before == self.after


def window_of(node: OnnxNode, lengths: Sequence[int], kernel: Sequence[int] | None) -> Window:
    """Return the windows over spatial axes of these lengths.

    Args:
        node: The node.
        lengths: The data's spatial axes.
        kernel: The kernel, if the attribute is not there.
    """
    rank = len(lengths)
    size = [int(k) for k in node.attr("kernel_shape") or kernel or []]
    stride = node.attr("strides") or [1] * rank
    dilate = node.attr("dilations") or [1] * rank
    pads = node.attr("pads") or [0] * (2 * rank)
    fits = len(size) == len(stride) == len(dilate) == rank and len(pads) == 2 * rank
    node.require(fits and 1 <= rank <= 3, f"has {rank} spatial axes and kernel_shape={size}")
    node.require(min(*size, *stride, *dilate) >= 1, "has a size or step below 1")
    node.require(all(lengths), "has a spatial axis that goes along with the batch")
    window = Window(size, stride, dilate, pads[:rank], pads[rank:])
    auto = node.attr("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        node.require(min(pads, default=0) >= 0, f"has pads={pads}")
        return window
    if auto == "VALID":
        return window._replace(before=[0] * rank, after=[0] * rank)
    node.require(auto in ("SAME_UPPER", "SAME_LOWER"), f"has auto_pad={auto!r}")
    totals = [
        max(0, (-(-n // s) - 1) * s + e - n)
        for n, s, e in zip(lengths, stride, window.extent, strict=True)
    ]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    upper = auto == "SAME_UPPER"
    return window._replace(before=small if upper else large, after=large if upper else small)


def grown(node: OnnxNode, x: Traced, before: Ints, after: Ints, value: float = 0.0) -> Traced:
    """Pad the spatial axes."""
    return padded(node, x, [(0, 0), (0, 0), *zip(before, after, strict=True)], value=value)


@converts("Conv")
def convolution(node: OnnxNode) -> Traced:
    return convolve(node, node.x, node.tensor(1, learned=True), node.optional(2, learned=True))


def convolve(node: OnnxNode, x: Traced, weight: Traced, bias: Traced | None) -> Traced:
    """Convolve with the node's windows."""
    node.require(x.rank == weight.rank >= 3, f"has data of {x.shape}, weight of {weight.shape}")
    window = window_of(node, x.shape[2:], weight.shape[2:])
    pads = window.before
    if not window.symmetric:
        x, pads = grown(node, x, window.before, window.after), [0] * len(window.kernel)
    inputs = [weight] if bias is None else [weight, bias]
    return x.call(
        "Convolution",
        *inputs,
        kernel=window.kernel,
        stride=window.stride,
        dilate=window.dilate,
        pad=pads,
        num_filter=weight.shape[0],
        num_group=node.attr("group", 1),
        no_bias=bias is None,
    )


@converts("ConvTranspose")
def transposed_convolution(node: OnnxNode) -> Traced:
    x, weight, bias = node.x, node.tensor(1, learned=True), node.optional(2, learned=True)
    node.require(x.rank == weight.rank >= 3, f"has data of {x.shape}, weight of {weight.shape}")
    lengths, rank = x.shape[2:], x.rank - 2
    unpadded = OnnxNode(**{**vars(node), "attrs": {**node.attrs, "auto_pad": "NOTSET"}})
    window = window_of(unpadded, lengths, weight.shape[2:])
    extra = node.attr("output_padding") or [0] * rank
    before, after = crops(node, lengths, window, extra)
    plain = before == after and min(before) >= 0
    plain = plain and all(o < s for o, s in zip(extra, window.stride, strict=True))
    inputs = [weight, bias] if plain and bias is not None else [weight]
    y = x.call(
        "Deconvolution",
        *inputs,
        kernel=window.kernel,
        stride=window.stride,
        dilate=window.dilate,
        pad=before if plain else [0] * rank,
        adj=extra if plain else [0] * rank,
        num_filter=weight.shape[1] * node.attr("group", 1),
        num_group=node.attr("group", 1),
        no_bias=len(inputs) == 1,
    )
    if plain:
        return y
    sides = [(-b, o - a) for b, o, a in zip(before, extra, after, strict=True)]
    y = padded(node, y, [(0, 0), (0, 0), *sides])
    shape = (1, y.shape[1], *[1] * rank)
    return y if bias is None else y + bias.reshaped((shape, shape))


def crops(node: OnnxNode, lengths: Sequence[int], window: Window, extra: Ints) -> tuple[Ints, Ints]:
    """Return how much ConvTranspose cuts off before and behind each axis."""
    auto, wanted = node.attr("auto_pad", "NOTSET"), node.attr("output_shape")
    if auto == "VALID" or not (wanted or auto not in ("NOTSET", "")):
        return window.before, window.after
    fields = list(zip(lengths, window.stride, window.extent, extra, strict=True))
    full = [(n - 1) * s + e + o for n, s, e, o in fields]
    shape = wanted[-len(lengths) :] if wanted else [n * s for n, s, _, _ in fields]
    totals = [f - n for f, n in zip(full, shape, strict=True)]
    small, large = [max(t, 0) // 2 for t in totals], [t - max(t, 0) // 2 for t in totals]
    if auto == "SAME_UPPER":
        return small, large
    ahead = [max(n, 0) for n in large]
    return ahead, [t - a for t, a in zip(totals, ahead, strict=True)]


# -- pooling ---------------------------------------------------------------------------------------

KINDS = {"MaxPool": "max", "AveragePool": "avg", "LpPool": "lp"}


@converts(*KINDS)
def pooling(node: OnnxNode) -> list[Traced]:
    x = node.x
    node.require(x.rank >= 3, f"takes 3 dimensions or more, not {x.rank}")
    node.require(
        len(node.outputs) < 2 or not node.outputs[1], "gives the places of maxima (Indices)"
    )
    node.require(not node.attr("storage_order", 0), "has storage_order=1")
    window = window_of(node, x.shape[2:], None)
    kind, ceil = KINDS[node.op], bool(node.attr("ceil_mode", 0))
    count_pads = bool(node.attr("count_include_pad", 0)) or kind == "lp"
    power = node.attr("p", 2)
    plain = window.symmetric and all(d == 1 for d in window.dilate) and is_float(x.dtype)
    plain = (
        plain and not ceil and all(p < k for p, k in zip(window.before, window.kernel, strict=True))
    )
    if kind == "lp":
        plain = plain and power in (1, 2, 3)
    if not plain:
        return [by_places(node, x, window, kind, ceil, count_pads, power)]
    more = {"p_value": power} if kind == "lp" else {}
    x = x.call("abs") if kind == "lp" and power % 2 else x
    if kind == "avg":
        more["count_include_pad"] = count_pads
    return [
        x.call(
            "Pooling",
            kernel=window.kernel,
            stride=window.stride,
            pad=window.before,
            pool_type=kind,
            **more,
        )
    ]


def counts(window: Window, lengths: Sequence[int], ceil: bool) -> Ints:
    """Return the number of windows along each axis; none begins in the padding behind the data."""
    found = []
    for n, e, s, b, a in zip(
        lengths, window.extent, window.stride, window.before, window.after, strict=True
    ):
        room = n + b + a - e
        count = (-(-room // s) if ceil else room // s) + 1
        if ceil and (count - 1) * s >= n + b:
            count -= 1
        found.append(count)
    return found


def by_places(
    node: OnnxNode,
    x: Traced,
    window: Window,
    kind: str,
    ceil: bool,
    count_pads: bool,
    power: int,
) -> Traced:
    """Pool windows of any form: one strided part of the data for each place in the kernel."""
    node.require(math.prod(window.kernel) <= MOST_PLACES, f"has kernel_shape={window.kernel}")
    lengths = x.shape[2:]
    number = counts(window, lengths, ceil)
    node.require(min(number) >= 1, f"has a window larger than data of {x.shape}")
    spans = [(n - 1) * s + e for n, s, e in zip(number, window.stride, window.extent, strict=True)]
    after = [span - n - b for span, n, b in zip(spans, lengths, window.before, strict=True)]
    fill = 0.0
    if kind == "max":
        fill = -math.inf if is_float(x.dtype) else float(np.iinfo(x.dtype).min)
    data = x if kind != "lp" else x.call("abs").call("_power_scalar", scalar=float(power))
    dtype = data.dtype
    wide = grown(node, data, window.before, after, fill)
    parts = [
        strided(wide, offset, window, number) for offset in product(*map(range, window.kernel))
    ]
    if kind == "max":
        return reduce(lambda a, b: pair("maximum", a, b), parts).cast(dtype)
    total = parts[0].call("add_n", *parts[1:]) if len(parts) > 1 else parts[0]
    if kind == "lp":
        return total.call("_power_scalar", scalar=1 / power)
    divisors = numbers(node, _divisors(window, lengths, number, count_pads), dtype, "counts")
    return total / divisors


def strided(x: Traced, offset: Sequence[int], window: Window, number: Ints) -> Traced:
    """Return the elements at one place of all windows."""
    begin = [o * d for o, d in zip(offset, window.dilate, strict=True)]
    end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, number, window.stride, strict=True)]
    steps = (None, None, *window.stride)
    return x.call("slice", begin=(None, None, *begin), end=(None, None, *end), step=steps)


def _divisors(window: Window, lengths: Sequence[int], number: Ints, count_pads: bool) -> Array:
    """Return how many elements each window averages."""
    bounded([n + b + a for n, b, a in zip(lengths, window.before, window.after, strict=True)])
    inside = np.ones(tuple(lengths))
    spans = [(n - 1) * s + e for n, s, e in zip(number, window.stride, window.extent, strict=True)]
    sides = []
    for n, b, a, span in zip(lengths, window.before, window.after, spans, strict=True):
        sides.append((b, a, max(0, span - n - b - a)))
    counted = np.pad(
        inside, [(b, a) for b, a, _ in sides], constant_values=1.0 if count_pads else 0.0
    )
    counted = np.pad(counted, [(0, more) for _, _, more in sides])
    total = np.zeros(tuple(number))
    for offset in product(*map(range, window.kernel)):
        place = tuple(
            slice(o * d, o * d + (n - 1) * s + 1, s)
            for o, d, n, s in zip(offset, window.dilate, number, window.stride, strict=True)
        )
        total += counted[place]
    return np.asarray(total[None, None])


@converts("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
def global_pooling(node: OnnxNode) -> Traced:
    x = node.x
    kind = {"GlobalMaxPool": "max", "GlobalAveragePool": "avg", "GlobalLpPool": "lp"}[node.op]
    more = {"p_value": node.attr("p", 2)} if kind == "lp" else {}
    if 3 <= x.rank <= 5:
        x = x.call("abs") if kind == "lp" else x
        return x.call("Pooling", global_pool=True, pool_type=kind, **more)
    node.require(kind != "lp" and x.rank > 5, f"has data of {x.rank} dimensions")
    axes = tuple(range(2, x.rank))
    return x.call({"max": "max", "avg": "mean"}[kind], axis=axes, keepdims=True)
