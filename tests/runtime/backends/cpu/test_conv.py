"""Kernels of convolution, pooling and batch normalisation against the operators' computations."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from runtime.backends.cpu.conv import SCRATCH, units
from symgraph.core.registry import Env
from tests.runtime.backends.cpu.test_flat import DTYPES, agree, bind, numbers

TRAINING = Env(train=True)
NEAR = {"float32": 2e-5, "float64": 1e-12}  # of sums of a hundred to thousands of terms


def close(name, *ins, **how):
    dtype = str(np.asarray(ins[0]).dtype)
    return agree(name, *ins, tolerance=10 * NEAR[dtype], near=10 * NEAR[dtype], **how)


def layer(shape, filters, pad, dtype="float32"):
    """Data, weight, bias, the output's gradient, and the parameters."""
    n, channels, *lengths = shape
    outer = [length + 2 * p - 2 for length, p in zip(lengths, pad, strict=True)]
    weight = numbers((filters, channels, 3, 3), dtype, 1) / np.sqrt(9 * channels).astype(dtype)
    g = numbers((n, filters, *outer), dtype, 3)
    attrs = {"kernel": (3, 3), "pad": pad}
    return numbers(shape, dtype), weight, numbers(filters, dtype, 2), g, attrs


# -- convolution ---------------------------------------------------------------------------------

SHAPES = [
    ((16, 16, 8, 8), 16, (1, 1)),
    ((13, 17, 7, 5), 19, (1, 1)),  # samples and lengths that are no multiples
    ((33, 16, 4, 4), 24, (0, 0)),
    ((9, 24, 3, 6), 16, (2, 1)),
    ((8, 16, 33, 35), 16, (0, 2)),  # several units
    ((300, 16, 3, 3), 16, (1, 1)),  # several samples a unit, and several units
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "filters", "pad"), SHAPES)
def test_convolution(shape, filters, pad, dtype):
    x, weight, bias, g, attrs = layer(shape, filters, pad, dtype)
    close("Convolution", x, weight, bias, num_filter=filters, **attrs)
    close("Convolution", x, weight, num_filter=filters, no_bias=True, **attrs)
    close("_conv_grad_data", g, weight, shape=shape, **attrs)
    scale = np.sqrt(g[:, 0].size).astype(dtype)  # sums over samples and places
    close("_conv_grad_weight", g / scale, x, **attrs)


def test_a_sample_does_not_depend_on_the_others():
    x, weight, bias, _, attrs = layer((40, 16, 6, 6), 16, (1, 1))
    (whole,) = close("Convolution", x, weight, bias, num_filter=16, **attrs)
    (last,) = close("Convolution", x[-8:], weight, bias, num_filter=16, **attrs)
    np.testing.assert_allclose(last, whole[-8:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "more",
    [
        {"kernel": (5, 5)},
        {"kernel": (3,), "pad": (1,)},
        {"stride": (2, 1)},
        {"dilate": (2, 2)},
        {"num_group": 2},
        {"pad": (3, 3)},
    ],
)
def test_other_windows_have_no_kernel(more):
    attrs = {"kernel": (3, 3), "pad": (1, 1), **more}
    shape = (8, 32, 9) if len(attrs["kernel"]) == 1 else (8, 32, 9, 9)
    weight = numbers((32, 32 // attrs.get("num_group", 1), *attrs["kernel"]))
    bound, _, _ = bind(
        "Convolution", (numbers(shape), weight), num_filter=32, no_bias=True, **attrs
    )
    assert bound is None


@pytest.mark.parametrize(
    ("shape", "filters", "dtype"),
    [
        ((16, 3, 8, 8), 16, "float32"),
        ((16, 16, 8, 8), 8, "float32"),
        ((1, 16, 32, 32), 16, "float32"),
        ((8, 16, 2, 2), 16, "float32"),
        ((16, 16, 8, 8), 16, "float16"),
    ],
)
def test_what_does_not_pay_has_no_kernel(shape, filters, dtype):
    x, weight, _, g, attrs = layer(shape, filters, (1, 1), dtype)
    given = {"num_filter": filters, "no_bias": True, **attrs}
    assert bind("Convolution", (x, weight), **given)[0] is None
    assert bind("_conv_grad_data", (g, weight), shape=shape, **attrs)[0] is None
    assert bind("_conv_grad_weight", (g, x), **attrs)[0] is None


@pytest.mark.parametrize("batch", [1, 16, 40])
@pytest.mark.parametrize("tiles", [(1, 1), (2, 3), (16, 16), (3, 2000)])
def test_units_are_every_tile_row_once(batch, tiles):
    seen = np.zeros((-(-batch // 16) * 16, tiles[0]), int)
    for start, samples, top, end in units(batch, tiles, 16, 512):
        assert samples % 16 == 0
        seen[start : start + samples, top:end] += 1
    assert (seen[:batch] == 1).all()


def test_calls_of_two_threads_do_not_meet():
    x, weight, _, _, attrs = layer((16, 16, 20, 20), 16, (1, 1))
    given = {"num_filter": 16, "no_bias": True, **attrs}
    calls = [bind("Convolution", (k * x, weight), **given) for k in (1, 2)]
    places: list[int] = []

    def run(bound):
        for _ in range(20):
            bound.function(*bound.args)
        places.append(SCRATCH.arrays(np.dtype("float32"), (1,))[0].ctypes.data)

    threads = [threading.Thread(target=run, args=(bound,)) for bound, _, _ in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(places)) == 2
    for _, (out,), (want,) in calls:
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)


# -- pooling -------------------------------------------------------------------------------------

HALVES = {"kernel": (2, 2), "stride": (2, 2)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (1, 2, 5, 7), (1, 1, 2, 2), (2, 2, 64, 33)])
def test_maxima_of_halves(shape, dtype):
    """With many equal elements, of which the first counts."""
    x = np.round(numbers(shape, dtype))
    (y,) = agree("Pooling", x, tolerance=0, **HALVES)
    agree("_max_pool_grad", numbers(y.shape, dtype, 1), x, tolerance=0, **HALVES)


def test_maxima_of_what_is_no_number():
    x = numbers((1, 2, 6, 6))
    x[0, 0, 1, 1] = x[0, 1, 4, 2] = np.nan
    x[0, 0, 2:4, 2:4] = -np.inf
    x[0, 1, 0, 0] = np.inf
    (y,) = agree("Pooling", x, tolerance=0, **HALVES)
    assert np.isnan(y).sum() == 2
    agree("_max_pool_grad", numbers(y.shape, seed=1), x, tolerance=0, **HALVES)


@pytest.mark.parametrize(
    "more",
    [
        {"pool_type": "avg"},
        {"kernel": (3, 3)},
        {"stride": (1, 1)},
        {"pad": (1, 1)},
        {"pooling_convention": "full"},
        {"global_pool": True},
    ],
)
def test_other_pooling_has_no_kernel(more):
    assert bind("Pooling", [numbers((1, 2, 5, 5))], **{**HALVES, **more})[0] is None


# -- batch normalisation -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis"), [((5, 3, 4, 6), 1), ((2, 7, 300), 1), ((3, 5, 40), 0)])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"fix_gamma": False, "eps": 0.1, "momentum": 0.3},
        {"use_global_stats": True},
    ],
)
@pytest.mark.parametrize("env", [TRAINING, Env()])
def test_batch_norm(shape, axis, dtype, given, env):
    x, g = numbers(shape, dtype) + 3, numbers(shape, dtype, 1)
    gamma, beta, mean = (numbers(shape[axis], dtype, seed) for seed in (2, 3, 4))
    var = np.abs(numbers(shape[axis], dtype, 5)) + dtype_one(dtype)
    how = {"axis": axis, "env": env, **given}
    close("BatchNorm", x, gamma, beta, mean, var, **how)
    how.pop("momentum", None)
    close("_batch_norm_grad", x, gamma, mean, var, g, **how)


def dtype_one(dtype):
    return np.dtype(dtype).type(1)


def test_statistics_of_data_far_from_zero():
    x = (1000 + numbers((64, 2, 32, 32), "float64")).astype("float32")
    vectors = [np.ones(2, "float32")] * 4
    bound, outs, _ = bind("BatchNorm", [x, *vectors], env=TRAINING)
    bound.function(*bound.args)
    exact = x.astype("float64")
    np.testing.assert_allclose(outs[1], exact.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(outs[2], exact.var((0, 2, 3)), rtol=1e-4)


def test_channels_that_lie_innermost_have_no_kernel():
    vectors = [np.ones(5, "float32")] * 4
    assert bind("BatchNorm", [numbers((4, 6, 5)), *vectors], axis=-1)[0] is None
    assert bind("BatchNorm", [numbers((4, 5)), *vectors])[0] is None
