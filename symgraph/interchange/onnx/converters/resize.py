"""Converters of Resize and Upsample: along each axis a product with a matrix of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from symgraph.core.types import Array, is_float
from symgraph.interchange.onnx.converters.elementwise import choose
from symgraph.interchange.onnx.converters.movement import numbers, place
from symgraph.interchange.onnx.folding import bounded
from symgraph.interchange.onnx.node import OnnxNode
from symgraph.interchange.onnx.registry import converts
from symgraph.interchange.values import Traced, common


def sources(node: OnnxNode, size: int, count: int, scale: float, roi: Sequence[float]) -> Array:
    """Return where along an axis the elements of the result lie in the data.

    Args:
        node: The node, whose attribute says how places are counted.
        size: The axis's length in the data.
        count: Its length in the result.
        scale: The ratio of these before rounding.
        roi: The part of the axis that is resized, for tf_crop_and_resize.
    """
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    bounded([count])
    at: Array = np.arange(count, dtype=np.float64)
    if mode == "align_corners":
        wide = size * scale  # the result's length before it is rounded
        return at * (size - 1) / (wide - 1) if count > 1 else at
    if mode == "asymmetric":
        return at / scale
    if mode == "tf_crop_and_resize":
        start, end = roi
        if count == 1:
            return np.array([0.5 * (start + end) * (size - 1)])
        return start * (size - 1) + at * (end - start) * (size - 1) / (count - 1)
    half = (at + 0.5) / scale - 0.5
    if mode == "half_pixel":
        return half
    if mode == "pytorch_half_pixel":
        return half if count > 1 else np.zeros(1)
    if mode == "half_pixel_symmetric":
        return size / 2 * (1 - count / (size * scale)) + half
    node.fail(f"has coordinate_transformation_mode={mode!r}")


def cubic(distance: Array, a: float) -> Array:
    """Return the cubic convolution kernel (Keys 1981)."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def weights(node: OnnxNode, size: int, at: Array, scale: float) -> Array:
    """Return the matrix (places of the result, elements of the data) of an interpolation."""
    mode = node.attr("mode", "nearest")
    wide = min(scale, 1.0) if node.attr("antialias", 0) else 1.0
    reach = 2 if mode == "cubic" else 1
    below = np.ceil(at) - 1  # the ratio to the next element is in (0, 1]
    first = math.floor(-reach / wide) + 1
    matrix: Array = np.zeros((len(at), size))
    total: Array = np.zeros(len(at))
    coefficient = node.attr("cubic_coeff_a", -0.75)
    rows = np.arange(len(at))
    for step in range(first, 2 - first):
        index = below + step
        distance = (index - at) * wide
        part = cubic(distance, coefficient) if mode == "cubic" else 1 - np.abs(distance)
        part = np.clip(part, 0, 1) if mode == "linear" else part
        if node.attr("exclude_outside", 0):
            part = np.where((index >= 0) & (index < size), part, 0.0)
        matrix[rows, np.clip(index, 0, size - 1).astype(int)] += part
        total += part
    return matrix / total[:, None]


ROUNDED: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def plan(node: OnnxNode, x: Traced) -> list[tuple[int, int, float]]:
    """Return (axis, length in the result, scale) of the axes that are resized."""
    axes = [node.axis(a, x.rank) for a in node.attr("axes", range(x.rank))]
    scales, sizes = node.known(2), node.value(3)
    found = []
    if sizes is not None and sizes.dims[0] != (0,):
        wanted = common(*node.both(3))  # 0 for the batch, which keeps its length
        pairs = [(n, x.shape[a]) for n, a in zip(wanted, axes, strict=True)]
        whole = all(size or n in (0, node.fixed_batch) for n, size in pairs)
        node.require(whole, f"resizes the batch of {x.shape} to {wanted}")
        ratios = [n / size if size else 1.0 for n, size in pairs]
        policy = node.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            ratio = min(ratios) if policy == "not_larger" else max(ratios)
            ratios = [ratio] * len(axes)
            wanted = tuple(math.floor(ratio * x.shape[a] + 0.5) for a in axes)
        found = list(zip(axes, wanted, ratios, strict=True))
    elif scales is not None and scales.size:
        for axis, scale in zip(axes, scales.reshape(-1).tolist(), strict=True):
            found.append((axis, math.floor(x.shape[axis] * scale), float(scale)))
    else:
        node.fail("has neither scales nor sizes")
    kept = node.attr("coordinate_transformation_mode") != "tf_crop_and_resize"
    return [row for row in found if not (kept and row[2] == 1.0)]


@converts("Resize", first=11, known=(1, 2, 3))
def resize(node: OnnxNode) -> Traced:
    x = node.x
    mode = node.attr("mode", "nearest")
    node.require(mode in ("nearest", "linear", "cubic"), f"has mode={mode!r}")
    axes = plan(node, x)
    region = node.known(1)
    crops = node.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
    outside: Array | None = None
    order = [node.axis(a, x.rank) for a in node.attr("axes", range(x.rank))]
    data = x if is_float(x.dtype) or mode == "nearest" else x.cast("float32")
    for axis, count, scale in axes:
        size = x.shape[axis]
        node.require(size > 0 and count > 0, f"resizes axis {axis} of {x.shape} to {count}")
        roi = [0.0, 1.0]
        if crops and region is not None and region.size:
            numbers_ = region.reshape(-1).tolist()
            i = order.index(axis)
            roi = [numbers_[i], numbers_[i + len(order)]]
        at = sources(node, size, count, scale, roi)
        if crops:
            beyond = (at < 0) | (at > size - 1)
            shape = [-1 if a == axis else 1 for a in range(x.rank)]
            mask = beyond.reshape(shape)
            outside = mask if outside is None else outside | mask
        data = along(node, data, axis, at, scale)
    if outside is not None and outside.any():
        value = node.attr("extrapolation_value", 0.0)
        hidden = numbers(node, outside, "uint8", "outside")
        data = choose(hidden, data.call("zeros_like") + value, data)
    return data.cast(x.dtype)


def along(node: OnnxNode, x: Traced, axis: int, at: Array, scale: float) -> Traced:
    """Resize one axis."""
    size = x.shape[axis]
    bounded([len(at), size if node.attr("mode", "nearest") != "nearest" else 1])
    if node.attr("mode", "nearest") == "nearest":
        rounded = ROUNDED[node.attr("nearest_mode", "round_prefer_floor")](at)
        index = np.clip(rounded, 0, size - 1).astype(int)
        return x.call("take", place(node, index), axis=axis, axisless=False)
    matrix = numbers(node, weights(node, size, at, scale), x.dtype, f"weights{axis}")
    order = [a for a in range(x.rank) if a != axis] + [axis]
    moved = x.transposed(order).call(
        "FullyConnected", matrix, num_hidden=len(at), no_bias=True, flatten=False
    )
    return moved.transposed([order.index(a) for a in range(x.rank)])


@converts("Resize", first=10, last=10, known=(1,))
@converts("Upsample", first=9, known=(1,))
def resize_by_scales(node: OnnxNode) -> Traced:
    """Resize as these older operators do: places are counted from the first element's edge."""
    return _asymmetric(node, node.known(1))


@converts("Upsample", last=8)
def upsample(node: OnnxNode) -> Traced:
    return _asymmetric(node, np.array(node.attr("scales")))


def _asymmetric(node: OnnxNode, scales: Array | None) -> Traced:
    x, mode = node.x, node.attr("mode", "nearest")
    node.require(scales is not None, "has no scales")
    attrs = {
        "mode": "linear" if mode == "bilinear" else mode,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    older = OnnxNode(**{**vars(node), "attrs": attrs})
    for axis, scale in enumerate(np.asarray(scales).reshape(-1).tolist()):
        if scale == 1.0:
            continue
        size = x.shape[axis]
        node.require(size > 0, f"resizes axis {axis}, where the batch lies")
        count = math.floor(size * scale)
        x = along(older, x, axis, sources(older, size, count, scale, ()), scale)
    return x
