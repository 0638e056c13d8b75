"""Kernels of attention, against the operator's own computation."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.backends.cpu.attention import BLOCK
from runtime.backends.cpu.micro import available
from tests.runtime.backends.cpu.test_flat import DTYPES, agree, bind, numbers

OP, GRAD = "scaled_dot_product_attention", "_attention_grad"
NEAR = {"float32": 3e-5, "float64": 1e-11}
# (matrices, queries, keys, units of keys, of values)
SHAPES = [(2, 64, 64, 48, 48), (1, 1, 1, 1, 1), (2, 5, 9, 3, 20), (1, BLOCK + 4, BLOCK + 1, 8, 7)]
SHAPES += [(1, 2 * BLOCK + 1, 30, 5, 33), (1, 40, 3 * BLOCK, 16, 16)]

pytestmark = pytest.mark.skipif(not available(), reason="this CPU has no AVX2")


def arrays_of(shape, dtype="float32"):
    n, queries, keys, d, units = shape
    q, k, v, g = [(queries, d), (keys, d), (keys, units), (queries, units)]
    return [numbers((n, *s), dtype, i) for i, s in enumerate((q, k, v, g))]


def both(shape, dtype, *mask, **how):
    """The kernels' results, which are those of the operators' own computations."""
    q, k, v, g = arrays_of(shape, dtype)
    close = {"tolerance": NEAR[dtype], "near": NEAR[dtype], "use_mask": bool(mask), **how}
    y, sums = agree(OP, q, k, v, *mask, **close)
    return [y, sums, *agree(GRAD, g, y, sums, q, k, v, *mask, **close)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_of_all_sizes(shape, dtype, causal):
    both(shape, dtype, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 100, 110), (1, 100, 110), (2, 1, 110), (1, 100, 1)])
def test_masks_of_all_shapes(shape, causal):
    both((2, 100, 110, 5, 6), "float64", numbers(shape, "float64", 9), causal=causal)


def test_hidden_keys_take_no_part():
    """A block of keys that are all hidden comes first, so no score has been seen until then."""
    mask = np.zeros((1, 1, 2 * BLOCK), "float64")
    mask[..., : BLOCK + 3] = -np.inf
    shape = (2, 10, 2 * BLOCK, 4, 4)
    y, *_ = both(shape, "float64", mask)
    q, k, v, _ = arrays_of(shape, "float64")
    (rest, _) = agree(OP, q, k[:, BLOCK + 3 :], v[:, BLOCK + 3 :], near=1e-11)
    np.testing.assert_allclose(y, rest, rtol=1e-11)


def test_a_matrix_does_not_depend_on_the_others():
    shape = (5, 70, 70, 20, 20)
    q, k, v, g = arrays_of(shape)
    for parts in (slice(3, 4), slice(1, 5)):
        for name, given in ((OP, [q, k, v]), (GRAD, [g, g, g[..., 0], q, k, v])):
            made = []
            for cut in (slice(None), parts):
                call, outs, _ = bind(name, [x[cut] for x in given], causal=True)
                call.function(*call.args)
                made.append(outs)
            for whole, part in zip(*made, strict=True):
                np.testing.assert_array_equal(whole[parts], part)


def test_what_is_not_a_number_stays():
    q, k, v, _ = arrays_of((2, 50, 30, 8, 8))
    q[0, 3, 2] = np.nan
    (y, _) = agree(OP, q, k, v, near=3e-5, tolerance=3e-5)
    assert np.isnan(y[0, 3]).all()
    assert np.isfinite(np.delete(y.reshape(100, 8), 3, 0)).all()


def test_many_axes_and_masks_of_some_of_them():
    q, k, v = (numbers((2, 3, 20, 8), "float64", i) for i in range(3))
    for shape in ((2, 1, 1, 20), (1, 3, 20, 20), (2, 3, 1, 1)):
        agree(OP, q, k, v, numbers(shape, "float64", 4), use_mask=True, near=1e-11, tolerance=1e-11)
