"""Grids, bilinear sampling, spatial transformers and Correlation."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph import sym
from symgraph.core.errors import GraphError, MicroBatchError, ShapeError
from symgraph.passes.testing import check_op, run_op
from tests.symgraph.ops.layouts import WHOLE, Split, check_layout

RNG = np.random.default_rng(33)
DATA = RNG.standard_normal((3, 2, 5, 4))
IDENTITY = np.tile([1.0, 0, 0, 0, 1, 0], (3, 1))
AFFINE = IDENTITY + 0.3 * RNG.standard_normal((3, 6))
GRID = RNG.uniform(-1.4, 1.4, (3, 2, 3, 6))


def sample(data, grid):
    """One pixel after another; zeros around."""
    count, channels, height, width = data.shape
    around = np.zeros((count, channels, height + 4, width + 4))
    around[..., 2:-2, 2:-2] = data
    made = np.zeros((count, channels, *grid.shape[2:]))
    for n, i, j in np.ndindex(count, *grid.shape[2:]):
        x = (grid[n, 0, i, j] + 1) * (width - 1) / 2
        y = (grid[n, 1, i, j] + 1) * (height - 1) / 2
        if not (-1 < x < width and -1 < y < height):
            continue
        (left, u), (top, v) = ((int(np.floor(c)), c - np.floor(c)) for c in (x, y))
        for row, column, weight in (
            (top, left, (1 - u) * (1 - v)),
            (top, left + 1, u * (1 - v)),
            (top + 1, left, (1 - u) * v),
            (top + 1, left + 1, u * v),
        ):
            made[n, :, i, j] += weight * around[n, :, row + 2, column + 2]
    return made


def test_sampling():
    np.testing.assert_allclose(run_op("BilinearSampler", DATA, GRID), sample(DATA, GRID))
    check_op("BilinearSampler", DATA, GRID, second=False)
    found = check_layout("BilinearSampler", [DATA, GRID], [Split(0)] * 2, 3, (2, 1))
    assert found == [Split(0)]
    with pytest.raises(MicroBatchError, match="whose batch lies differently"):
        check_layout("BilinearSampler", [DATA, GRID], [Split(0), WHOLE], 3, (2, 1))


def test_grids():
    affine = {"transform_type": "affine", "target_shape": (5, 4)}
    grid = run_op("GridGenerator", AFFINE, **affine)
    x, y = np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 5))
    wanted = np.einsum("nij,jhw->nihw", AFFINE.reshape(3, 2, 3), [x, y, np.ones_like(x)])
    np.testing.assert_allclose(grid, wanted)
    check_op("GridGenerator", AFFINE, second=False, **affine)
    flow = np.ones((3, 2, 5, 4)) * [[[1.0]], [[-2.0]]]
    grid = run_op("GridGenerator", flow, transform_type="warp")
    np.testing.assert_allclose(grid[0], [x + 2 / 3, y - 1], atol=1e-12)
    check_op("GridGenerator", flow, transform_type="warp", second=False)
    for value, given in ((AFFINE, affine), (flow, {"transform_type": "warp"})):
        assert check_layout("GridGenerator", [value], [Split(0)], 3, (1, 2), **given) == [Split(0)]


def test_a_spatial_transformer():
    """The identity keeps the data; anything else is its two parts."""
    shape = {"target_shape": (5, 4)}
    given = {"transform_type": "affine", "sampler_type": "bilinear"}
    kept = run_op("SpatialTransformer", DATA, IDENTITY, **shape, **given)
    np.testing.assert_allclose(kept, DATA, atol=1e-12)
    grid = run_op("GridGenerator", AFFINE, target_shape=(2, 3), transform_type="affine")
    made = run_op("SpatialTransformer", DATA, AFFINE, target_shape=(2, 3), **given)
    np.testing.assert_allclose(made, run_op("BilinearSampler", DATA, grid))
    check_op("SpatialTransformer", DATA, AFFINE, second=False, target_shape=(2, 3))
    layouts = [Split(0)] * 2
    found = check_layout("SpatialTransformer", [DATA, AFFINE], layouts, 3, (2, 1), **shape)
    assert found == [Split(0)]


CASES = [
    {},
    {"kernel_size": 3, "max_displacement": 2, "stride2": 2, "pad_size": 3},
    {"max_displacement": 1, "stride1": 2, "pad_size": 2, "is_multiply": False},
    {"kernel_size": 3, "max_displacement": 3, "stride1": 2, "stride2": 2, "pad_size": 5},
]


def correlate(x, y, kernel=1, reach=1, stride1=1, stride2=1, pad=0, multiply=True):
    """As in the documentation, one place after another; patches begin at their displacement."""
    x, y = (np.pad(d, ((0, 0), (0, 0), (pad, pad), (pad, pad))) for d in (x, y))
    steps = [k * stride2 for k in range(-(reach // stride2), reach // stride2 + 1)]
    border = 2 * (reach + kernel // 2)
    sizes = [-(-(n - border) // stride1) for n in x.shape[2:]]
    made = np.zeros((len(x), len(steps) ** 2, *sizes))
    for q, i, j in np.ndindex(*made.shape[1:]):
        down, right = steps[q // len(steps)], steps[q % len(steps)]
        r, c = (reach + k * stride1 for k in (i, j))
        one = x[:, :, r : r + kernel, c : c + kernel]
        other = y[:, :, r + down : r + down + kernel, c + right : c + right + kernel]
        each = one * other if multiply else abs(one - other)
        made[:, q, i, j] = each.mean((1, 2, 3))
    return made


@pytest.mark.parametrize("given", CASES)
def test_correlation(given):
    x, y = RNG.standard_normal((2, 3, 2, 6, 7))
    words = {"kernel_size": "kernel", "max_displacement": "reach", "pad_size": "pad"}
    words |= {"is_multiply": "multiply"}
    wanted = correlate(x, y, **{words.get(k, k): v for k, v in given.items()})
    np.testing.assert_allclose(run_op("Correlation", x, y, **given), wanted, atol=1e-12)
    check_op("Correlation", x, y, second=False, **given)
    found = check_layout("Correlation", [x, y], [Split(0)] * 2, 3, (2, 1), **given)
    assert found == [Split(0)]


def test_shapes_and_errors():
    data, grid = sym.Variable("data"), sym.Variable("grid")
    net = sym.BilinearSampler(data, grid)
    assert net.infer_shape(data=(0, 3, 8, 8), grid=(2, 2, 4, 5))[0][0] == (2, 3, 8, 8)
    net = sym.SpatialTransformer(data, target_shape=(4, 5), name="s")
    assert net.infer_shape(data=(2, 3, 8, 8)) == (
        [(2, 3, 8, 8), (2, 6)],
        [(2, 3, 4, 5)],
        [],
    )
    with pytest.raises(ShapeError, match="must be the height and width"):
        sym.GridGenerator(data, transform_type="affine").infer_shape(data=(2, 6))
    with pytest.raises(ShapeError, match="smaller than the patches and displacements, 9"):
        sym.Correlation(data, grid, max_displacement=4).infer_shape(data=(1, 2, 8, 9))
    with pytest.raises(GraphError, match="kernel_size=2 is not a valid odd int"):
        sym.Correlation(data, grid, kernel_size=2)
