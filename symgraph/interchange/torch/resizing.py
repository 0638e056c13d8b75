"""Converters of what changes the size of pictures: interpolation, and pixels taken as channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from symgraph.core.types import Array
from symgraph.frontend import sym
from symgraph.frontend.symbol import Symbol
from symgraph.interchange.torch.call import Call, converts
from symgraph.interchange.torch.movement import constant

CUBIC = -0.75  # PyTorch's parameter of bicubic interpolation


def along(c: Call, x: Symbol, axis: int, matrix: Array, last: int) -> Symbol:
    """Return the product of a matrix (old length, new length) with x along an axis."""
    x = sym.SwapAxis(x, dim1=axis, dim2=last)
    weight = constant(c, matrix.T.astype(c.out.dtype))
    x = sym.FullyConnected(x, weight, num_hidden=matrix.shape[1], no_bias=True, flatten=False)
    return sym.SwapAxis(x, dim1=axis, dim2=last)


def weights(name: str, old: int, new: int, scale: float | None, corners: bool) -> Array:
    """Return the share (old, new) that each old element along an axis has of each new one."""
    step = 1 / scale if scale else old / new
    at = (np.arange(new) + 0.5) * step - 0.5
    if "nearest" in name:
        at = np.floor(at + 0.5 if "exact" in name else np.arange(new) * step)
        taps = [(0, np.ones(new))]
    else:
        if corners:
            at = np.arange(new) * ((old - 1) / max(new - 1, 1))
        at = at if "cubic" in name else np.maximum(at, 0)
        rest = at - np.floor(at)
        taps = [(0, 1 - rest), (1, rest)]
        if "cubic" in name:
            taps = [(k, _cubic(abs(rest - k))) for k in range(-1, 3)]
    matrix = np.zeros((old, new))
    for k, share in taps:
        rows = np.clip(np.floor(at).astype(int) + k, 0, old - 1)
        np.add.at(matrix, (rows, np.arange(new)), share)
    return matrix


def _cubic(t: Array) -> Array:
    """Return the share of an element at a distance from 0 to 2."""
    near = ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1
    far = ((t - 5) * t + 8) * t * CUBIC - 4 * CUBIC
    return np.where(t <= 1, near, far)


@converts(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
    "_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d upsample_bicubic2d"
)
def upsample(c: Call) -> Symbol:
    argument = "self" if c.has("self") else "input"
    x, lengths = c.x(argument), c.meta(argument).shape
    name = c.node.target.split(".")[1]
    rank, corners = len(lengths) - 2, bool(c.get("align_corners", False))
    own = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}
    scales = c.get("scale_factors") or [c.get(key) for key in own[rank]]
    for axis, scale in enumerate(scales, 2):
        old, new = int(lengths[axis]), int(c.out.shape[axis])
        if "nearest" in name and new % old == 0:
            x = sym.repeat(x, repeats=new // old, axis=axis) if new != old else x
        else:
            c.bound(old, new)
            x = along(c, x, axis, weights(name, old, new, scale, corners), rank + 1)
    return x


@converts("pixel_shuffle pixel_unshuffle")
def pixel_shuffle(c: Call) -> Symbol:
    """Take channels as pixels, or pixels as channels: a transposition in both directions."""
    up = "unshuffle" not in c.node.target
    r = c.integer("upscale_factor" if up else "downscale_factor")
    *lead, channels, rows, columns = c.meta("self").shape
    split: tuple[int, ...] = (channels // r**2, r, r, rows, columns)
    order = (0, 3, 1, 4, 2)
    if not up:
        split, order = (channels, rows // r, r, columns // r, r), (0, 2, 4, 1, 3)
    k = len(lead)
    x = sym.transpose(c.reshape(c.x(), (*lead, *split)), axes=(*range(k), *(k + i for i in order)))
    return c.reshape(x, c.out.shape)


@converts("channel_shuffle native_channel_shuffle")
def channel_shuffle(c: Call) -> Symbol:
    rows, channels, *rest = c.meta("self").shape
    groups = c.integer("groups")
    x = c.reshape(c.x(), (rows, groups, channels // groups, math.prod(rest)))
    return c.reshape(sym.SwapAxis(x, dim1=1, dim2=2), c.out.shape)


@converts("grid_sampler grid_sampler_2d")
def grid_sampler(c: Call) -> Any:
    kept = c.integer("interpolation_mode", 0) == c.integer("padding_mode", 0) == 0
    if not kept or len(c.out.shape) != 4 or not c.get("align_corners", False):
        c.fail("only mode='bilinear', padding_mode='zeros', align_corners=True is supported, in 2D")
    return sym.BilinearSampler(c.x("input"), sym.transpose(c.x("grid"), axes=(0, 3, 1, 2)))
