"""Convolution: the windows of many images are laid out as columns and multiplied by cuBLAS.

Deconvolution is the gradient of its data, and so is bilinear UpSampling.

As many images are taken together as have room for their columns in a limited scratch. A sequence
counts as an image of one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from runtime.backends.cuda.base import (
    each_of_rows,
    floating,
    function,
    in_turn,
    kernel,
    launch,
    module,
)
from runtime.backends.cuda.blas import product, times
from runtime.backends.cuda.rank_memory import scratch
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Array, Shape, TensorType, wide
from symgraph.ops.conv import widened
from symgraph.ops.resize import bilinear_windows, is_bilinear
from symgraph.ops.windows import Windows, windows_of

LIMIT = 32 << 20  # bytes of scratch, unless one image takes more; they stay in the card's cache


class Part(NamedTuple):
    """Images that are computed together.

    The columns and the turned output are matrices, one for each group if there are several.
    """

    data: Array  # (images, channels, rows, width)
    output: Array  # (images, filters, down, across)
    columns: Array  # (channels * kernel, images * windows)
    turned: Array  # (filters, images * windows)
    windows: Shape  # kernel, stride, dilation and padding, of two axes each

    def read(self) -> BoundCall:
        """Bind the copy of the images' windows to the columns."""
        return self._launch("columns_of", self.output, self.data, self.columns)

    def spread(self, bias: Array | None) -> BoundCall:
        """Bind the sum of the columns' elements, and a channel's bias, for each pixel."""
        given = self.columns if bias is None else bias
        return self._launch(
            "images_of", self.data, self.columns, self.data, given, bias is not None
        )

    def _launch(self, name: str, along: Array, *given: Any) -> BoundCall:
        """Bind a kernel with blocks for channels and threads for places in all images."""
        count, channels, rows, width = self.data.shape
        shape = each_of_rows(channels, along.size // along.shape[1])
        sizes = count, channels, rows, width, *self.output.shape[2:]
        return launch(self._run(name), *shape, *given, *sizes, *self.windows)

    def by_filter(self) -> BoundCall:
        """Bind the copy of the output, by filters, to `turned`."""
        return self._turn("by_filter", self.output, self.turned)

    def by_image(self, bias: Array | None) -> BoundCall:
        """Bind the copy of `turned`, with a bias for each filter, to the output."""
        given = self.turned if bias is None else bias
        return self._turn("by_image", self.turned, self.output, given, bias is not None)

    def _turn(self, name: str, *given: Any) -> BoundCall:
        count, filters, down, across = self.output.shape
        shape = each_of_rows(filters, count * down * across)
        return launch(self._run(name), *shape, *given, count, filters, down * across)

    def _run(self, name: str) -> Any:
        return function("conv", name, real=self.data.dtype.name)


# Binds the calls of a part from it, the weights as matrices, and the bias.
Binding = Callable[[Part, Array, Array | None], tuple[BoundCall, ...]]


def parts(
    call: KernelCall, spec: Windows, data: Array, output: Array, weight: Array, total: str = ""
) -> tuple[list[Part], Array, Array] | None:
    """Return a convolution's parts, its weights as matrices, and where these are summed up.

    None if there is no kernel.

    Args:
        call: The call of the operator.
        spec: The windows.
        data: The data, or its gradient.
        output: The output, or its gradient.
        weight: The weights, or their gradient.
        total: The dtype of sums over parts; by default that of the weights.
    """
    missing = 2 - len(spec.kernel)
    if missing < 0 or not floating(*call.ins, *call.outs) or not data.size * output.size:
        return None
    fields = zip(spec, (1, 1, 1, 0), strict=True)  # of an axis with one row
    windows = tuple(size for field, one in fields for size in ((one,) * missing + field))
    data, output = (a.reshape(*a.shape[:2], *(1,) * missing, *a.shape[2:]) for a in (data, output))
    groups, dtype = data.shape[1] // weight.shape[1], data.dtype
    filters, depth = len(weight), weight.size // len(weight)
    heights = groups * depth, filters
    places = output.shape[2] * output.shape[3]
    most = max(1, LIMIT // (sum(heights) * places * dtype.itemsize))
    rounds = -(-len(data) // most)
    together = -(-len(data) // rounds)
    types = [TensorType((height * places * together,), dtype.name) for height in heights]
    apart = rounds > 1 and total not in ("", dtype.name)
    *rooms, sums = [
        *scratch(call.context, [*types, *[TensorType((weight.size,), total)] * apart]),
        *[weight] * (not apart),
    ]

    def matrices(array: Array, height: int) -> Array:
        return array.reshape(*[groups] * (groups > 1), height // groups, -1)

    def part(start: int) -> Part:
        some = slice(start, start + together)
        line = places * len(data[some])
        columns, turned = (
            matrices(room[: height * line], height)
            for room, height in zip(rooms, heights, strict=True)
        )
        return Part(data[some], output[some], columns, turned, windows)

    made = [part(start) for start in range(0, len(data), together)]
    return made, matrices(weight, filters), matrices(sums, filters)


def each_part(
    call: KernelCall, windows: Windows, data: Array, output: Array, bind: Binding
) -> BoundCall | None:
    """Bind what each part of a call does, whose inputs are (array, weights, [bias])."""
    _, weight, *biases = call.ins
    made = parts(call, windows, data, output, weight)
    if made is None:
        return None
    images, filters, _ = made
    bias = biases[0] if biases else None
    return in_turn(*[bound for part in images for bound in bind(part, filters, bias)])


@kernel("Convolution")
def convolution(call: KernelCall) -> BoundCall | None:
    def bind(part: Part, filters: Array, bias: Array | None) -> tuple[BoundCall, ...]:
        return part.read(), times(filters, part.columns, part.turned), part.by_image(bias)

    return each_part(call, windows_of(call.attrs), call.ins[0], call.outs[0], bind)


def spread(call: KernelCall, windows: Windows) -> BoundCall | None:
    """Bind the gradient of a convolution's data, plus a bias if there is a third input."""

    def bind(part: Part, filters: Array, bias: Array | None) -> tuple[BoundCall, ...]:
        columns = times(filters.swapaxes(-1, -2), part.turned, part.columns)
        return part.by_filter(), columns, part.spread(bias)

    return each_part(call, windows, call.outs[0], call.ins[0], bind)


@kernel("_conv_grad_data")
def grad_data(call: KernelCall) -> BoundCall | None:
    return spread(call, windows_of(call.attrs))


@kernel("Deconvolution")
def deconvolution(call: KernelCall) -> BoundCall | None:
    windows, _ = widened(call.attrs, call.ins[0].shape)
    return spread(call, windows)


@kernel("UpSampling")
def upsampling(call: KernelCall) -> BoundCall | None:
    if not is_bilinear(call.attrs):
        return None
    return spread(call, bilinear_windows(call.attrs["scale"]))


@kernel("_conv_grad_weight")
def grad_weight(call: KernelCall) -> BoundCall | None:
    """Bind the parts' products, whose sum has float32 if they have 16 bits."""
    (grad, data), (out,) = call.ins, call.outs
    made = parts(call, windows_of(call.attrs), data, grad, out, wide(out.dtype.name))
    if made is None:
        return None
    images, gradient, total = made
    calls: list[BoundCall] = []
    for number, part in enumerate(images):
        bound = product(part.turned, part.columns.swapaxes(-1, -2), total, adds=number > 0)
        assert bound is not None
        calls += [part.read(), part.by_filter(), bound]
    if total.dtype != gradient.dtype:
        calls.append(BoundCall(module().copyto, (gradient, total, "unsafe")))
    return in_turn(*calls)
