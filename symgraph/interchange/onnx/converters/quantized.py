"""Converters of quantization: integers of 8 bits that stand for floats."""

from __future__ import annotations

import numpy as np

from symgraph.core.types import is_float
from symgraph.interchange.onnx.converters.elementwise import round_half_even
from symgraph.interchange.onnx.converters.movement import with_ones
from symgraph.interchange.onnx.converters.products import matmul
from symgraph.interchange.onnx.converters.windows import convolve
from symgraph.interchange.onnx.node import OnnxNode
from symgraph.interchange.onnx.reader import dtype_of
from symgraph.interchange.onnx.registry import converts
from symgraph.interchange.values import Traced


def aligned(node: OnnxNode, x: Traced, scale: Traced) -> Traced:
    """Return a scale or zero point, repeated so that it broadcasts to the data."""
    block = node.attr("block_size", 0)
    if scale.rank == 1 and scale.shape != (1,):
        axis = node.axis(node.attr("axis", 1), x.rank)
        return with_ones(scale, [a for a in range(x.rank) if a != axis])
    if block:
        axis = node.axis(node.attr("axis", 1), x.rank)
        wide = scale.call("repeat", repeats=block, axis=axis)
        return wide if wide.shape[axis] == x.shape[axis] else wide.sliced(axis, 0, x.shape[axis])
    return scale


def integers(node: OnnxNode, dtype: str) -> tuple[float, float]:
    """Return the least and the largest of the integers that stand for floats."""
    node.require(dtype in ("uint8", "int8"), f"makes {dtype}, but is here for uint8 and int8")
    info = np.iinfo(dtype)
    return float(info.min), float(info.max)


def quantized(node: OnnxNode, x: Traced, scale: Traced, zero: Traced | None, dtype: str) -> Traced:
    """Round x / scale + zero to integers of the dtype."""
    low, high = integers(node, dtype)
    made = round_half_even(x.cast("float32") / scale.cast("float32"))
    if zero is not None:
        made = made + zero.cast("float32")
    return made.call("clip", a_min=low, a_max=high).cast(dtype)


def restored(x: Traced, scale: Traced, zero: Traced | None) -> Traced:
    """Return the floats that integers stand for."""
    dtype = scale.dtype
    made = x.cast("float32")
    if zero is not None:
        made = made - zero.cast("float32")
    return (made * scale.cast("float32")).cast(dtype)


@converts("QuantizeLinear", first=10)
def quantize(node: OnnxNode) -> Traced:
    x, scale, zero = node.x, node.tensor(1), node.optional(2)
    dtype = "uint8" if zero is None else zero.dtype
    if zero is None and node.attr("output_dtype"):
        dtype = dtype_of(node.attr("output_dtype"), "the result")
    node.require(is_float(x.dtype), f"quantizes {x.dtype}")
    points = None if zero is None else aligned(node, x, zero)
    return quantized(node, x, aligned(node, x, scale), points, dtype)


@converts("DequantizeLinear", first=10)
def dequantize(node: OnnxNode) -> Traced:
    x, scale, zero = node.x, node.tensor(1), node.optional(2)
    node.require(x.dtype in ("uint8", "int8", "int32"), f"restores floats from {x.dtype}")
    return restored(x, aligned(node, x, scale), None if zero is None else aligned(node, x, zero))


def shifted(node: OnnxNode, index: int, zero: int, rows: bool) -> Traced:
    """Return integers without their zero point, as float64, which holds their products exactly.

    Args:
        node: The node.
        index: The input.
        zero: The input that holds the zero point.
        rows: Whether a vector of zero points is for rows, not for columns.
    """
    x, point = node.tensor(index).cast("float64"), node.optional(zero)
    if point is None:
        return x
    point = point.cast("float64")
    return x - (with_ones(point, [1]) if rows and point.rank == 1 else point)


@converts("MatMulInteger")
def integer_product(node: OnnxNode) -> Traced:
    return matmul(node, shifted(node, 0, 2, True), shifted(node, 1, 3, False)).cast("int32")


@converts("ConvInteger")
def integer_convolution(node: OnnxNode) -> Traced:
    weight = filters(node, 1, 3)
    return convolve(node, shifted(node, 0, 2, False), weight, None).cast("int32")


def filters(node: OnnxNode, index: int, zero: int) -> Traced:
    """Return the filters of a convolution without their zero points."""
    weight, point = node.tensor(index).cast("float64"), node.optional(zero)
    if point is None:
        return weight
    point = point.cast("float64")
    return weight - (with_ones(point, range(1, weight.rank)) if point.rank == 1 else point)


def factor(node: OnnxNode, weight: int, out: int, data: int) -> Traced:
    """Return scale of data * scale of weight / scale of the result, in float64."""
    scales = [node.tensor(i).cast("float64") for i in (data, weight, out)]
    return scales[0] * scales[1] / scales[2]


@converts("QLinearMatMul")
def quantized_product(node: OnnxNode) -> Traced:
    """Inputs are a, its scale and zero point, the same for b, then those of the result."""
    made = matmul(node, shifted(node, 0, 2, True), shifted(node, 3, 5, False))
    return requantized(node, made * factor(node, 4, 6, 1), 7)


@converts("QLinearConv")
def quantized_convolution(node: OnnxNode) -> Traced:
    """Inputs are as for QLinearMatMul, with a bias of int32 behind them."""
    weight, bias = filters(node, 3, 5), node.optional(8)
    whole = None if bias is None else bias.cast("float64")
    made = convolve(node, shifted(node, 0, 2, False), weight, whole)
    ratio = factor(node, 4, 6, 1)
    if ratio.rank == 1 and ratio.shape != (1,):
        ratio = with_ones(ratio, [0, *range(2, made.rank)])
    return requantized(node, made * ratio, 7)


def requantized(node: OnnxNode, x: Traced, zero: int) -> Traced:
    """Round to integers around a zero point."""
    point = node.tensor(zero)
    low, high = integers(node, point.dtype)
    made = round_half_even(x) + point.cast("float64")
    return made.call("clip", a_min=low, a_max=high).cast(point.dtype)
