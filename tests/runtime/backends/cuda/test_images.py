"""Kernels of convolution and pooling, built for the CPU, against the operators' own formulas."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.backends.cuda import conv
from symgraph.core.params import parse_params
from symgraph.core.registry import Env, find, run
from tests.fakes.fake_cupy import fake_cupy
from tests.runtime.backends.cuda.calls import REALS, agree, has_no_kernel, near_of, numbers
from tests.runtime.backends.cuda.emulation import MISSING, compiler

pytestmark = [pytest.mark.every(6), pytest.mark.skipif(compiler() is None, reason=MISSING)]

each_real = pytest.mark.parametrize("dtype", REALS)


@pytest.fixture(autouse=True)
def kernels():
    with fake_cupy():
        yield


def shape_of(op, *ins, **given):
    attrs = parse_params(op, "test", find(op).params, given)
    return run(find(op), Env(), attrs, list(ins))[0].shape


WINDOWS = [
    {"kernel": (1, 1)},
    {"kernel": (3, 3), "pad": (1, 1)},
    {"kernel": (3, 2), "stride": (2, 1), "pad": (0, 1)},
    {"kernel": (2, 3), "dilate": (2, 1), "stride": (1, 3), "pad": (2, 0)},
]


@each_real
@pytest.mark.parametrize("how", WINDOWS, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 5, 4), (3, 4, 9, 20)], ids=str)
def test_convolution(how, shape, dtype):
    x, w = numbers(shape, dtype), numbers((5, shape[1], *how["kernel"]), dtype, 1)
    near = near_of(dtype, 2e-5, 1e-12)
    (y,) = agree("Convolution", x, w, numbers(5, dtype, 2), num_filter=5, near=near, **how)
    agree("Convolution", x, w, num_filter=5, no_bias=True, near=near, **how)
    g = numbers(y.shape, dtype, 3)
    agree("_conv_grad_data", g, w, shape=shape, near=near, **how)
    agree("_conv_grad_weight", g, x, near=3 * near, **how)  # sums of hundreds of terms


@each_real
@pytest.mark.parametrize("limit", [1, 800, conv.LIMIT])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    "how",
    [
        {"kernel": (3, 3), "pad": (1, 1), "stride": (2, 1)},
        {"kernel": (3,), "pad": (2,), "dilate": (2,)},
    ],
    ids=str,
)
def test_parts_of_a_batch_and_groups(how, groups, limit, dtype, monkeypatch):
    """Images one by one, some together, and all at once; of a sequence as well."""
    monkeypatch.setattr(conv, "LIMIT", limit)
    shape = 5, 4, *(6, 7)[: len(how["kernel"])]
    x, w = numbers(shape, dtype), numbers((8, 4 // groups, *how["kernel"]), dtype, 1)
    how = {**how, "num_group": groups}
    near = near_of(dtype, 2e-5, 1e-12)
    (y,) = agree("Convolution", x, w, numbers(8, dtype, 2), num_filter=8, near=near, **how)
    g = numbers(y.shape, dtype, 3)
    agree("_conv_grad_data", g, w, shape=shape, near=near, **how)
    agree("_conv_grad_weight", g, x, near=3 * near, **how)


@each_real
@pytest.mark.parametrize("limit", [1, 800, conv.LIMIT])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    "how",
    [
        {"kernel": (2, 2), "stride": (2, 2)},
        {"kernel": (3, 2), "stride": (3, 2), "pad": (1, 0), "dilate": (2, 1), "adj": (2, 1)},
        {"kernel": (3, 3), "stride": (2, 1), "target_shape": (9, 8)},
        {"kernel": (4,), "stride": (5,), "pad": (1,)},
    ],
    ids=str,
)
def test_deconvolution(how, groups, limit, dtype, monkeypatch):
    monkeypatch.setattr(conv, "LIMIT", limit)
    rank = len(how["kernel"])
    x = numbers((5, 4, *(4, 7)[:rank]), dtype)
    w = numbers((4, 8 // groups, *how["kernel"]), dtype, 1)
    how = {**how, "num_group": groups, "num_filter": 8, "near": near_of(dtype, 2e-5, 1e-12)}
    agree("Deconvolution", x, w, **how)
    agree("Deconvolution", x, w, numbers(8, dtype, 2), no_bias=False, **how)


@each_real
@pytest.mark.parametrize("scale", [2, 3])
def test_bilinear_upsampling(scale, dtype):
    side = 2 * scale - scale % 2
    x, w = numbers((3, 2, 4, 5), dtype), numbers((2, 1, side, side), dtype, 1)
    how = {"scale": scale, "sample_type": "bilinear", "num_filter": 2}
    agree("UpSampling", x, w, near=near_of(dtype, 2e-5, 1e-12), **how)
    assert has_no_kernel("UpSampling", x, scale=scale, sample_type="nearest")


def test_other_axes_are_left_to_the_operator():
    volume, w = numbers((2, 4, 5, 5, 5)), numbers((6, 4, 3, 3, 3))
    how = {"num_filter": 6, "no_bias": True, "kernel": (3, 3, 3)}
    assert has_no_kernel("Convolution", volume, w, **how)
    assert has_no_kernel("Deconvolution", volume, w.swapaxes(0, 1), **how)
    x, line = numbers((2, 4, 5, 5)), numbers((2, 4, 5))
    assert has_no_kernel("Pooling", x, kernel=(2, 2), pool_type="lp", p_value=2)
    assert has_no_kernel("Pooling", line, kernel=(2,))


POOLS = [
    {"kernel": (2, 2), "stride": (2, 2)},
    {"kernel": (3, 2), "stride": (2, 1), "pad": (1, 1)},
    {"kernel": (3, 3), "stride": (2, 2), "pooling_convention": "full"},
    {"kernel": (1, 3), "stride": (2, 4), "pooling_convention": "same"},
    {"global_pool": True},
]


@each_real
@pytest.mark.parametrize("how", POOLS, ids=str)
@pytest.mark.parametrize("kind", ["max", "avg", "sum"])
@pytest.mark.parametrize("shape", [(1, 1, 4, 5), (3, 2, 9, 20)], ids=str)
def test_pooling(kind, how, shape, dtype):
    x = np.round(numbers(shape, dtype))  # with equal maxima
    for padding in (True, False) if kind == "avg" else (True,):
        how = {**how, "pool_type": kind, "count_include_pad": padding}
        (y,) = agree("Pooling", x, **how)
        g = numbers(y.shape, dtype, 1)
        if kind == "max":
            agree("_max_pool_grad", g, x, **how)
        else:
            agree("_pool_grad", g, shape=shape, **how)


def test_maxima_of_what_is_no_number():
    x = numbers((1, 2, 4, 6))
    x[0, 0, 1, 1] = np.nan
    x[0, 1, 2, 3] = -np.inf
    how = {"kernel": (2, 2), "stride": (2, 2)}
    (y,) = agree("Pooling", x, **how)
    assert np.isnan(y[0, 0, 0, 0])
    agree("_max_pool_grad", np.ones_like(y), x, **how)
