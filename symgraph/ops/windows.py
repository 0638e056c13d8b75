"""Windows: the kernel, stride, dilation and padding of convolutions and pooling.

Data is (batch, channel, *spatial) with one to three spatial axes; a window covers
dilate * (kernel - 1) + 1 elements of each, and `pad` of them may lie outside on either side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple

from symgraph.core import params
from symgraph.core.params import Attrs, Param, Site
from symgraph.core.registry import Partial
from symgraph.core.types import Shape

WINDOW: Mapping[str, Param] = {
    "kernel": params.integers(),
    "stride": params.integers(()),
    "dilate": params.integers(()),
    "pad": params.integers(()),
}
LAYOUTS = ("NCW", "NCHW", "NCDHW")  # by the number of spatial axes
CUDNN: Mapping[str, Param] = {
    "cudnn_tune": params.optional(params.choice("off", "limited_workspace", "fastest")),
    "cudnn_off": params.boolean(False),
    "layout": params.optional(params.choice(*LAYOUTS)),
}


class Windows(NamedTuple):
    """Windows along spatial axes, one entry per axis in each field."""

    kernel: Shape
    stride: Shape
    dilate: Shape
    pad: Shape

    @property
    def extent(self) -> Shape:
        """The number of elements that a window spans."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilate, strict=True))

    @property
    def is_point(self) -> bool:
        """Whether every element is a window of its own."""
        return not any(self.pad) and {*self.kernel, *self.stride} == {1}

    def padded(self, spatial: Shape) -> Shape:
        return tuple(n + 2 * p for n, p in zip(spatial, self.pad, strict=True))

    def counts(self, spatial: Shape) -> Shape:
        """Return the number of windows along each axis of known data."""
        fields = zip(self.padded(spatial), self.extent, self.stride, strict=True)
        return tuple((n - extent) // step + 1 for n, extent, step in fields)

    def inside(self, spatial: Shape) -> tuple[slice, ...]:
        """Return the place of the data within its padding."""
        return tuple(slice(p, p + n) for n, p in zip(spatial, self.pad, strict=True))

    def offsets(self) -> Iterator[Shape]:
        """Iterate over the positions in the kernel, the last axis fastest."""
        return product(*map(range, self.kernel))

    def at(self, offset: Shape, counts: Shape, first: int = 0) -> tuple[slice, ...]:
        """Return the place of the padded elements at one position in the windows.

        Args:
            offset: The position in the kernel.
            counts: The number of windows along each spatial axis.
            first: The first window along axis 0.
        """
        starts = [o * d for o, d in zip(offset, self.dilate, strict=True)]
        starts[0] += first * self.stride[0]
        return tuple(
            slice(start, start + (n - 1) * step + 1, step)
            for start, n, step in zip(starts, counts, self.stride, strict=True)
        )


def sized(attrs: Attrs) -> str:
    """Return kernel and stride as captions show them: 3x3/2x2."""
    kernel, stride = ("x".join(map(str, attrs[key])) for key in ("kernel", "stride"))
    return f"{kernel}/{stride or 1}"


def windows_of(attrs: Attrs) -> Windows:
    """Return the parameters with MXNet's defaults: stride and dilate 1, pad 0."""
    kernel = attrs["kernel"]
    ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
    return Windows(
        kernel, attrs["stride"] or ones, attrs.get("dilate") or ones, attrs["pad"] or zeros
    )


def checked(site: Site) -> Windows:
    """Return `windows_of`; wrong lengths or values raise ShapeError."""
    windows = windows_of(site.attrs)
    rank = len(windows.kernel)
    if not 1 <= rank <= len(LAYOUTS):
        site.fail(f"kernel={windows.kernel} has {rank} axes, not 1 to {len(LAYOUTS)}")
    for key, values in windows._asdict().items():
        if len(values) != rank:
            site.fail(
                f"{key}={values} does not have one value for each axis of kernel={windows.kernel}"
            )
        if min(values) < (key != "pad"):
            site.fail(f"{key}={values} must be {'0' if key == 'pad' else '1'} or more")
    layout = site.attrs.get("layout")
    if layout is not None and layout != LAYOUTS[rank - 1]:
        site.fail(
            f"layout={layout!r} does not go with kernel={windows.kernel}; it is "
            f"{LAYOUTS[rank - 1]!r}"
        )
    return windows


def with_rank(site: Site, what: str, shape: Partial, rank: int) -> Shape:
    """Return a partly known shape of (batch, channel) and `rank` spatial axes."""
    if shape is None:
        return (0,) * (rank + 2)
    if len(shape) != rank + 2:
        site.fail(
            f"{what} of shape {shape} needs {rank + 2} axes (batch, channel and one for "
            f"each of kernel={site.attrs['kernel']})"
        )
    return shape


def counts_of(site: Site, windows: Windows, data: Shape) -> Shape:
    """Return the number of windows along each spatial axis of padded data; 0 where unknown."""
    lengths = windows.padded(data[2:])
    for length, known, extent in zip(lengths, data[2:], windows.extent, strict=True):
        if known and length < extent:
            site.fail(
                f"a window of {windows.extent} (kernel={windows.kernel}, "
                f"dilate={windows.dilate}) does not fit into data of shape {data} with "
                f"pad={windows.pad}"
            )
    return tuple(
        (length - extent) // step + 1 if known else 0
        for length, known, extent, step in zip(
            lengths, data[2:], windows.extent, windows.stride, strict=True
        )
    )
