"""Converters of what is computed by matrices of weights: GridSample, DFT and Col2Im."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from symgraph.core.types import Array
from symgraph.interchange.onnx.converters.elementwise import round_half_even
from symgraph.interchange.onnx.converters.index import without_axis
from symgraph.interchange.onnx.converters.movement import joined, numbers, with_ones
from symgraph.interchange.onnx.folding import bounded
from symgraph.interchange.onnx.node import OnnxNode
from symgraph.interchange.onnx.registry import converts
from symgraph.interchange.values import Traced, pair, spread

CUBIC = -0.75  # the coefficient of GridSample's cubic kernel


# -- GridSample ------------------------------------------------------------------------------------


def pixels(node: OnnxNode, at: Traced, size: int) -> Traced:
    """Return places in pixels from those between -1 and 1."""
    if node.attr("align_corners", 0):
        return (at + 1.0) * ((size - 1) / 2)
    return ((at + 1.0) * float(size) - 1.0) * 0.5


def mirrored(node: OnnxNode, at: Traced, size: int) -> Traced:
    """Reflect places outside the data at its borders."""
    low, high = (0.0, size - 1.0) if node.attr("align_corners", 0) else (-0.5, size - 0.5)
    span = high - low
    if span <= 0:
        return at.call("zeros_like")
    back = ((at - low).call("abs")).call("_mod_scalar", scalar=2 * span)
    folded = (back - span).call("abs")
    return folded * -1.0 + (span + low)


def padded_places(node: OnnxNode, at: Traced, size: int) -> Traced:
    """Return whole places with those outside the data treated as `padding_mode` says."""
    mode = node.attr("padding_mode", "zeros")
    if mode == "border":
        return at.call("clip", a_min=0.0, a_max=float(size - 1))
    return mirrored(node, at, size) if mode == "reflection" else at


def tap_weights(mode: str, at: Traced, below: Traced) -> list[tuple[int, Traced]]:
    """Return (step from the place below, its weight) of an interpolation."""
    ratio = at - below
    if mode == "linear":
        return [(0, ratio * -1.0 + 1.0), (1, ratio)]
    found = []
    for step in (-1, 0, 1, 2):
        d = (ratio - float(step)).call("abs")
        if step in (0, 1):
            weight = (d * (CUBIC + 2) - (CUBIC + 3)) * d * d + 1.0
        else:
            weight = ((d * CUBIC - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC
        found.append((step, weight))
    return found


def sampling_matrix(node: OnnxNode, at: Traced, size: int, mode: str) -> Traced:
    """Return (batch, places, size) weights of the data along one axis.

    Args:
        node: The node.
        at: (batch, places): where along the axis is sampled, between -1 and 1.
        size: The axis's length.
        mode: nearest, linear or cubic.
    """
    place = pixels(node, at, size)
    bounded([size])
    line = numbers(node, np.arange(size)[None, None], place.dtype, f"line{size}")

    def hot(index: Traced) -> Traced:
        return pair("equal", with_ones(padded_places(node, index, size), [2]), line)

    if node.attr("padding_mode", "zeros") != "zeros" and mode != "cubic":
        place = padded_places(node, place, size)
    if mode == "nearest":
        return hot(round_half_even(place))
    below = place.call("floor")
    parts = [
        hot(below + float(step)) * with_ones(weight, [2])
        for step, weight in tap_weights(mode, place, below)
    ]
    return parts[0].call("add_n", *parts[1:])


@converts("GridSample", first=16)
def grid_sample(node: OnnxNode) -> Traced:
    """Contract one spatial axis after another with a matrix of weights for each place."""
    x, grid = node.x, node.tensor(1)
    rank = x.rank - 2
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        node.attr("mode", "linear"), node.attr("mode", "linear")
    )
    node.require(mode in ("nearest", "linear", "cubic"), f"has mode={mode!r}")
    sizes, channels = x.shape[2:], x.shape[1]
    places = math.prod(grid.shape[1:-1])
    node.require(all(x.shape[1:]) and places > 0, "samples axes that go along with the batch")
    batches = [d[0] for d in x.dims]
    made = x
    for axis in range(rank):  # the grid's last axis begins with the innermost spatial axis
        size = sizes[rank - 1 - axis]
        column = without_axis(grid.sliced(grid.rank - 1, axis, axis + 1), grid.rank - 1)
        at = column.reshaped(((batches[0], places), (batches[1], places)))
        matrix = sampling_matrix(node, at, size, mode)
        rows = channels * math.prod(sizes[: rank - 1 - axis])
        if axis == 0:
            flat = made.reshaped(tuple((b, rows, size) for b in batches))  # type: ignore[arg-type]
            made = flat.call("batch_dot", matrix, transpose_b=True)
            continue
        cube = made.reshaped(tuple((b, rows, size, places) for b in batches))  # type: ignore[arg-type]
        weights = with_ones(matrix.transposed([0, 2, 1]), [1])
        made = (cube * weights).call("sum", axis=2)
    dims = [(b, channels, *grid.shape[1:-1]) for b in batches]
    return made.reshaped((dims[0], dims[1]))


# -- DFT -------------------------------------------------------------------------------------------


def fourier(count: int, size: int, sign: float, scale: float) -> tuple[Array, Array]:
    """Return the real and imaginary parts of the matrix (count, size) of a Fourier transform."""
    bounded([count, size])
    angle = sign * 2 * np.pi * np.outer(np.arange(count), np.arange(size)) / max(size, 1)
    return np.cos(angle) * scale, np.sin(angle) * scale


@converts("DFT", first=17, known=(1, 2))
def discrete_fourier(node: OnnxNode) -> Traced:
    """Multiply by the matrices of cosines and sines."""
    x, length = node.x, node.known(1)
    given = node.known(2) if node.opset >= 20 else None
    axis = node.attr("axis", 1) if node.opset < 20 else -2
    axis = axis if given is None else int(given.reshape(-1)[0])
    at = node.axis(axis, x.rank)
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    size = x.shape[at]
    node.require(size > 0, "transforms along the batch")
    whole = size if length is None else int(length.reshape(-1)[0])
    real_result = inverse and onesided
    if real_result and length is None:
        whole = 2 * (size - 1)
    complex_input = x.shape[-1] == 2
    parts = [without_axis(x.sliced(x.rank - 1, i, i + 1), x.rank - 1) for i in range(x.shape[-1])]
    rank = x.rank - 1
    order = [a for a in range(rank) if a != at] + [at]
    rows = [p.transposed(order) for p in parts]
    used = min(whole, size)
    rows = [r if used == size else r.sliced(rank - 1, 0, used) for r in rows]
    count = whole // 2 + 1 if onesided and not inverse else whole
    cosine, sine = fourier(count, whole, 1.0 if inverse else -1.0, 1 / whole if inverse else 1.0)
    if real_result:
        fold = np.full(used, 2.0)
        fold[0] = 1.0
        if whole % 2 == 0 and used > whole // 2:
            fold[whole // 2] = 1.0
        cosine, sine = cosine[:, :used] * fold, sine[:, :used] * fold
    matrices = [
        numbers(node, m[:, :used], x.dtype, f"wave{i}") for i, m in enumerate((cosine, sine))
    ]

    def times(row: Traced, matrix: Traced) -> Traced:
        return row.call("FullyConnected", matrix, num_hidden=count, no_bias=True, flatten=False)

    real = times(rows[0], matrices[0])
    imaginary = times(rows[0], matrices[1])
    if complex_input:
        real = real - times(rows[1], matrices[1])
        imaginary = imaginary + times(rows[1], matrices[0])
    back = [order.index(a) for a in range(rank)]
    outs = [real] if real_result else [real, imaginary]
    return joined([with_ones(v.transposed(back), [rank]) for v in outs], rank)


# -- Col2Im ----------------------------------------------------------------------------------------


@converts("Col2Im", known=(1, 2))
def column_to_image(node: OnnxNode) -> Traced:
    """Put blocks where they came from: a transposed convolution with filters of a single 1."""
    x, image, block = node.x, node.ints(1, "image_shape") or [], node.ints(2, "block_shape") or []
    rank = len(image)
    stride, dilate = node.attr("strides") or [1] * rank, node.attr("dilations") or [1] * rank
    pads = node.attr("pads") or [0] * (2 * rank)
    places = math.prod(block)
    channels = x.shape[1] // places
    bounded([places, places, channels])
    fields = zip(image, block, stride, dilate, pads[:rank], pads[rank:], strict=True)
    counts = [(n + a + b - (k - 1) * d - 1) // s + 1 for n, k, s, d, a, b in fields]
    dims = [(d[0], x.shape[1], *counts) for d in x.dims]
    ones = np.eye(places).reshape(places, 1, *block)
    weight = numbers(node, np.tile(ones, (channels, *[1] * (rank + 1))), x.dtype, "places")
    made = x.reshaped((dims[0], dims[1])).call(
        "Deconvolution",
        weight,
        kernel=block,
        stride=stride,
        dilate=dilate,
        num_filter=channels,
        num_group=channels,
    )
    return cropped(made, pads[:rank], image)


def cropped(x: Traced, begin: Sequence[int], shape: Sequence[int]) -> Traced:
    """Return a part of the spatial axes; what the data lacks at the end is zeros."""
    for axis, (first, size) in enumerate(zip(begin, shape, strict=True), 2):
        length = x.shape[axis]
        if length < first + size:
            dims = list(x.dims)
            more = [
                tuple(first + size - length if a == axis else n for a, n in enumerate(d))
                for d in dims
            ]
            zeros = spread(x.sliced(axis, 0, 1).call("zeros_like"), (more[0], more[1]))
            x = x.call("Concat", zeros, dim=axis)
        if (first, size) != (0, x.shape[axis]):
            x = x.sliced(axis, first, first + size)
    return x
