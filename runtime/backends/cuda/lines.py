"""Normalisation of lines, rows or columns, on a GPU: LayerNorm, its gradients, L2Normalization."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from runtime.backends.cuda.base import (
    WARP,
    Shape,
    block_a_row,
    each,
    floating,
    function,
    in_turn,
    kernel,
    launch,
    packed_rows,
    warp_a_row,
)
from runtime.backends.cuda.rank_memory import scratch
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Array, TensorType, wide
from symgraph.ops.normalize import normal_axes

LANES = 16  # threads of a sum that shares its block with others
MIN_RUN = 128  # lines whose terms of gamma's and beta's gradients are added up together
MAX_RUNS = 32
SHORT = 2048  # elements of a row that has a warp of its own


class Lines(NamedTuple):
    """Data as (before, length, after), whose lines go along the middle."""

    before: int
    length: int
    after: int

    @property
    def number(self) -> int:
        return self.before * self.after

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The arguments of kernels."""
        return self.number, self.length, self.after

    @property
    def along(self) -> Shape:
        """The launch of a sum along each line."""
        return sums(self.number, self.length, apart=self.after == 1)

    @property
    def has_warps(self) -> bool:
        """Whether each line has a warp: short rows, many of which share a block."""
        return self.after == 1 and self.length <= SHORT

    @property
    def warps(self) -> Shape:
        """The launch of a warp for each line."""
        return warp_a_row(self.number)

    @property
    def run(self) -> int:
        """The number of lines that are added up together in sums over all lines."""
        return max(MIN_RUN, -(-self.number // MAX_RUNS))

    @property
    def runs(self) -> int:
        return -(-self.number // self.run)

    @property
    def over(self) -> Shape:
        """The launch of a sum over each run of lines, for each place in a line."""
        (blocks,), threads = sums(self.length, self.run, apart=self.after > 1)
        return (blocks, self.runs), threads


def sums(count: int, terms: int, *, apart: bool) -> Shape:
    """Return a launch of `count` sums: a block for each if `apart`, else one for 32 neighbours."""
    if apart:
        return block_a_row(count, terms)
    return (-(-count // WARP),), (WARP, LANES)


def along(data: Array, axis: int, axes: int = 1) -> Lines:
    """Return the lines of data along `axes` neighbouring axes, the first of which is `axis`."""
    axis %= data.ndim
    shape = data.shape
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + axes :])
    return Lines(before, math.prod(shape[axis : axis + axes]), after)


def run(name: str, data: Array) -> Any:
    return function("lines", name, real=data.dtype.name)


@kernel("LayerNorm")
def layer_norm(call: KernelCall) -> BoundCall | None:
    if not floating(*call.ins, *call.outs):
        return None
    x, a = call.ins[0], call.attrs
    layout, arrays = along(x, a["axis"]), (*call.ins, *call.outs)
    if layout.has_warps:
        sizes = layout.number, layout.length, packed_rows(*call.ins, call.outs[0])
        return launch(run("layer_norm_rows", x), *layout.warps, *arrays, *sizes, float(a["eps"]))
    return launch(run("layer_norm", x), *layout.along, *arrays, *layout.sizes, float(a["eps"]))


@kernel("_layer_norm_grad")
def layer_norm_grad(call: KernelCall) -> BoundCall | None:
    (x, gamma, mean, std, g), (of_x, *vectors) = call.ins, call.outs
    if not floating(*call.ins, *call.outs):
        return None
    layout, arrays = along(x, call.attrs["axis"]), (x, gamma, mean, std, g, of_x)
    (parts,) = scratch(call.context, [parts_of(layout, x)])
    of_lines, of_runs = run("layer_norm_parts", x), run("layer_norm_sums", x)
    of_data = launch(run("layer_norm_grad", x), *layout.along, *arrays, *layout.sizes)
    if layout.has_warps:
        sizes = layout.number, layout.length, packed_rows(x, gamma, g, of_x)
        of_data = launch(run("layer_norm_grad_rows", x), *layout.warps, *arrays, *sizes)
    return in_turn(
        launch(of_lines, *layout.over, x, mean, std, g, parts, *layout.sizes, layout.run),
        launch(of_runs, *each(layout.length), parts, *vectors, layout.length, layout.runs),
        of_data,
    )


def parts_of(lines: Lines, data: Array) -> TensorType:
    """Return the type of the runs' sums for gamma and beta."""
    return TensorType((2, lines.runs, lines.length), wide(data.dtype.name))


@kernel("L2Normalization")
def l2_normalization(call: KernelCall) -> BoundCall | None:
    (x,), a = call.ins, call.attrs
    if not floating(x, *call.outs):
        return None
    axes = normal_axes(a, x.ndim)
    layout, compiled = along(x, axes[0], len(axes)), run("l2_normalize", x)
    return launch(compiled, *layout.along, x, *call.outs, *layout.sizes, float(a["eps"]))
