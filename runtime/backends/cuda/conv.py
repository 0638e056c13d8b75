"""Convolution of images: columns of what the windows read, and a product by cuBLAS an image."""

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
from runtime.backends.cuda.blas import product
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
        """The columns become what the windows read of an image."""
        shape = each_of_rows(*self.columns.shape)
        depth = len(self.columns)
        return launch(self.run("columns_of"), *shape, image, self.columns, depth, *self.sizes)

    def spread(self, image: Array) -> BoundCall:
        """An image becomes the sum of what the columns have of each pixel."""
        channels = len(image)
        shape = each_of_rows(channels, image.size // channels)
        return launch(self.run("image_of"), *shape, self.columns, image, channels, *self.sizes)

    def each(self) -> Iterator[tuple[Array, Array]]:
        """Each image's data, and its output as (filters, windows)."""
        for data, output in zip(self.data, self.output, strict=True):
            yield data, output.reshape(len(output), -1)


def times(x: Array, y: Array, out: Array) -> BoundCall:
    """A product of arrays that `images` has looked at."""
    made = product(x, y, out)
    assert made is not None
    return made


def images(
    call: KernelCall, data: Array, output: Array, spare: Sequence[TensorType] = ()
) -> Images | None:
    """Of two spatial axes and one group; other convolutions have no kernel.

    spare: what its scratch holds besides the columns.
    """
    columns = columns_of(call, data, output)
    if columns is None:
        return None
    found = windows_of(call.attrs)
    windows = (*found.kernel, *found.stride, *found.dilate, *found.pad)
    between, *more = scratch(call.context, [columns, *spare])
    return Images(data, output, between, more, windows)


def columns_of(call: KernelCall, data: Array, output: Array) -> TensorType | None:
    """The type of one image's columns; None if there is no kernel."""
    found = windows_of(call.attrs)
    together = call.attrs["num_group"] == 1 and len(found.kernel) == 2
    if not together or not floating(*call.ins, *call.outs):
        return None
    depth = data.shape[1] * found.kernel[0] * found.kernel[1]
    return TensorType((depth, output.shape[2] * output.shape[3]), data.dtype.name)


def spare_of(out: Array) -> list[TensorType]:
    """For one image's gradient of a weight; and for the sum, where it is wider than the weight."""
    shape, own = (len(out), out.size // len(out)), out.dtype.name
    return [TensorType(shape, name) for name in dict.fromkeys([own, wide(own)])]


@kernel("Convolution")
def convolution(call: KernelCall) -> BoundCall | None:
    (data, weight, *bias), (out,) = call.ins, call.outs
    found = images(call, data, out)
    if found is None:
        return None
    filters = weight.reshape(len(weight), -1)
    calls = [
        bound
        for image, made in found.each()
        for bound in (found.read(image), times(filters, found.columns, made))
    ]
    if bias:
        sizes = out.shape[0] * out.shape[1], out.shape[2] * out.shape[3]
        add = found.run("add_bias")
        calls.append(launch(add, *each_of_rows(*sizes), out, bias[0], *sizes, len(weight)))
    return in_turn(*calls)


@kernel("_conv_grad_data")
def grad_data(call: KernelCall) -> BoundCall | None:
    (grad, weight), (out,) = call.ins, call.outs
    found = images(call, out, grad)
    if found is None:
        return None
    turned = weight.reshape(len(weight), -1).T
    return in_turn(
        *[
            bound
            for image, g in found.each()
            for bound in (times(turned, g, found.columns), found.spread(image))
        ]
    )


@kernel("_conv_grad_weight")
def grad_weight(call: KernelCall) -> BoundCall | None:
    """The images' products, added up one after the other; those of 16 bits in float32."""
    (grad, data), (out,) = call.ins, call.outs
    found = images(call, data, grad, spare_of(out))
    if found is None:
        return None
    xp, whole = module(), out.reshape(len(out), -1)
    part, *apart = found.spare
    total = apart[0] if apart else whole
    calls: list[BoundCall] = []
    for at, (image, g) in enumerate(found.each()):
        made = part if at or apart else total
        calls += [found.read(image), times(g, found.columns.T, made)]
        if at:
            calls.append(BoundCall(xp.add, (total, part, total)))
        elif apart:
            calls.append(BoundCall(xp.copyto, (total, part)))
    return in_turn(*calls, *([BoundCall(xp.copyto, (whole, total, "unsafe"))] if apart else []))
