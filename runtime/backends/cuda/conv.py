"""Convolution of images: each image's windows are laid out as columns and multiplied by cuBLAS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from runtime.backends.cuda.blas import times
from runtime.backends.cuda.rank_memory import scratch
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Array, Shape, TensorType, wide
from symgraph.ops.windows import windows_of


class Images(NamedTuple):
    """A convolution's data and output, and the columns of one image in between."""

    data: Array  # (n, channels, rows, columns)
    output: Array  # (n, filters, windows down, windows across)
    columns: Array  # (channels * kernel, windows)
    spare: list[Array]
    windows: Shape

    def run(self, name: str) -> Any:
        return function("conv", name, real=self.data.dtype.name)

    @property
    def sizes(self) -> Shape:
        return *self.data.shape[2:], *self.output.shape[2:], *self.windows

    def read(self, image: Array) -> BoundCall:
        """Bind the copy of an image's windows to the columns."""
        shape = each_of_rows(*self.columns.shape)
        depth = len(self.columns)
        return launch(self.run("columns_of"), *shape, image, self.columns, depth, *self.sizes)

    def spread(self, image: Array) -> BoundCall:
        """Bind the sum of the columns' elements for each pixel of an image."""
        channels = len(image)
        shape = each_of_rows(channels, image.size // channels)
        return launch(self.run("image_of"), *shape, self.columns, image, channels, *self.sizes)

    def each(self) -> Iterator[tuple[Array, Array]]:
        """Yield each image's data, and its output as (filters, windows)."""
        for data, output in zip(self.data, self.output, strict=True):
            yield data, output.reshape(len(output), -1)


def images(
    call: KernelCall, data: Array, output: Array, spare: Sequence[TensorType] = ()
) -> Images | None:
    """Describe a convolution; None unless it has two spatial axes and one group.

    Args:
        call: The call of the operator.
        data: The data, or its gradient.
        output: The output, or its gradient.
        spare: The types of further scratch arrays.
    """
    columns = columns_of(call, data, output)
    if columns is None:
        return None
    spec = windows_of(call.attrs)
    windows = (*spec.kernel, *spec.stride, *spec.dilate, *spec.pad)
    between, *more = scratch(call.context, [columns, *spare])
    return Images(data, output, between, more, windows)


def columns_of(call: KernelCall, data: Array, output: Array) -> TensorType | None:
    """Return the type of one image's columns; None if there is no kernel."""
    kernel_shape = windows_of(call.attrs).kernel
    supported = call.attrs["num_group"] == 1 and len(kernel_shape) == 2
    if not supported or not floating(*call.ins, *call.outs):
        return None
    depth = data.shape[1] * kernel_shape[0] * kernel_shape[1]
    return TensorType((depth, output.shape[2] * output.shape[3]), data.dtype.name)


def spare_of(out: Array) -> list[TensorType]:
    """Return types for one image's gradient of a weight and, if its dtype is wider, for the sum."""
    shape, dtype = (len(out), out.size // len(out)), out.dtype.name
    return [TensorType(shape, name) for name in dict.fromkeys([dtype, wide(dtype)])]


@kernel("Convolution")
def convolution(call: KernelCall) -> BoundCall | None:
    (data, weight, *bias), (out,) = call.ins, call.outs
    layout = images(call, data, out)
    if layout is None:
        return None
    filters = weight.reshape(len(weight), -1)
    calls = [
        bound
        for image, output in layout.each()
        for bound in (layout.read(image), times(filters, layout.columns, output))
    ]
    if bias:
        sizes = out.shape[0] * out.shape[1], out.shape[2] * out.shape[3]
        add = layout.run("add_bias")
        calls.append(launch(add, *each_of_rows(*sizes), out, bias[0], *sizes, len(weight)))
    return in_turn(*calls)


@kernel("_conv_grad_data")
def grad_data(call: KernelCall) -> BoundCall | None:
    (grad, weight), (out,) = call.ins, call.outs
    layout = images(call, out, grad)
    if layout is None:
        return None
    turned = weight.reshape(len(weight), -1).T
    return in_turn(
        *[
            bound
            for image, g in layout.each()
            for bound in (times(turned, g, layout.columns), layout.spread(image))
        ]
    )


@kernel("_conv_grad_weight")
def grad_weight(call: KernelCall) -> BoundCall | None:
    """Bind the images' products and their sum in order, in float32 if they have 16 bits."""
    (grad, data), (out,) = call.ins, call.outs
    layout = images(call, data, grad, spare_of(out))
    if layout is None:
        return None
    xp, gradient = module(), out.reshape(len(out), -1)
    part, *apart = layout.spare
    total = apart[0] if apart else gradient
    calls: list[BoundCall] = []
    for at, (image, g) in enumerate(layout.each()):
        target = part if at or apart else total
        calls += [layout.read(image), times(g, layout.columns.T, target)]
        if at:
            calls.append(BoundCall(xp.add, (total, part, total)))
        elif apart:
            calls.append(BoundCall(xp.copyto, (total, part)))
    return in_turn(*calls, *([BoundCall(xp.copyto, (gradient, total, "unsafe"))] if apart else []))
