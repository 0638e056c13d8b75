"""Kernels of convolution, pooling and batch normalisation against the operators' computations."""

from __future__ import annotations

import threading

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np
import pytest

from runtime.backends.cpu import conv as winograd
from runtime.backends.cpu.choice import installed, use_blas
from runtime.backends.cpu.conv import units
from runtime.backends.cpu.conv_blocks import blocks, convolve
from runtime.backends.cpu.scratch import SCRATCH
from symgraph.core.registry import Env
from symgraph.core.types import BFLOAT16
from symgraph.ops.windows import windows_of
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


BLOCKED = [  # shape, kernel, stride, dilate, pad, groups
    ((3, 4, 7), (3,), (2,), (1,), (1,), 1),
    ((3, 4, 9), (2,), (1,), (3,), (2,), 4),
    ((8, 32, 9, 9), (5, 5), (1, 1), (1, 1), (1, 1), 1),
    ((8, 32, 9, 9), (3, 3), (2, 1), (1, 1), (1, 1), 1),
    ((8, 32, 9, 9), (3, 3), (1, 1), (2, 2), (1, 1), 1),
    ((8, 32, 9, 9), (3, 3), (1, 1), (1, 1), (1, 1), 2),
    ((8, 32, 9, 9), (3, 3), (1, 1), (1, 1), (3, 3), 1),
    ((3, 4, 12, 11), (1, 1), (1, 1), (1, 1), (0, 0), 1),
    ((3, 4, 6, 5), (1, 1), (2, 2), (1, 1), (1, 0), 1),
    ((3, 4, 4, 4), (3, 3), (1, 1), (1, 1), (4, 3), 1),
    ((3, 4, 5, 4, 6), (2, 2, 3), (1, 2, 1), (1, 1, 2), (1, 1, 0), 2),
    ((5, 3, 40, 30), (3, 3), (1, 1), (1, 1), (0, 0), 1),  # several samples a block, fewer at last
    ((2, 8, 60, 50), (3, 3), (2, 2), (1, 1), (0, 0), 1),  # several blocks a sample
    ((70, 2, 5, 4), (3, 3), (1, 1), (1, 1), (0, 0), 1),
    ((1, 2, 30, 1), (3, 1), (1, 1), (1, 1), (0, 0), 1),
    ((3, 4, 7, 30), (3, 3), (1, 1), (2, 1), (1, 1), 2),  # rows long enough for samples outermost
    ((2, 4, 300, 26), (5, 3), (1, 1), (1, 1), (0, 0), 2),  # of several blocks a sample
    ((3, 4, 70), (3,), (2,), (1,), (1,), 4),
    ((5, 4, 17, 9), (1, 1), (2, 1), (1, 1), (0, 0), 2),
    ((16, 3, 8, 8), (3, 3), (1, 1), (1, 1), (1, 1), 1),  # what does not pay by Winograd's products
    ((16, 16, 8, 8), (3, 3), (1, 1), (1, 1), (1, 1), 8),
    ((1, 16, 32, 32), (3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((8, 16, 2, 2), (3, 3), (1, 1), (1, 1), (1, 1), 1),
]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("shape", "kernel", "stride", "dilate", "pad", "groups"), BLOCKED)
def test_blocks(shape, kernel, stride, dilate, pad, groups, dtype):
    near = {"float16": 2e-2, **{name: 100 * limit for name, limit in NEAR.items()}}[dtype]
    channels, filters = shape[1], 16

    def same(op, *ins, **more):
        bound, outs, wanted = bind(op, ins, widens=True, **form, **more)
        assert bound.function not in (winograd.convolve, winograd.weight_gradient)
        bound.function(*bound.args)
        assert outs[0].dtype == wanted[0].dtype
        np.testing.assert_allclose(outs[0], wanted[0], rtol=near, atol=near)
        return outs[0]

    form = {"kernel": kernel, "stride": stride, "dilate": dilate, "pad": pad, "num_group": groups}
    x, bias = numbers(shape, dtype), numbers(filters, dtype, 2)
    depth = np.sqrt(channels // groups * np.prod(kernel)).astype(dtype)
    weight = numbers((filters, channels // groups, *kernel), dtype, 1) / depth
    y = same("Convolution", x, weight, bias, num_filter=filters)
    g = numbers(y.shape, dtype, 3)
    same("_conv_grad_data", g, weight, shape=shape)
    same("_conv_grad_weight", g / np.sqrt(g[:, 0].size).astype(dtype), x)
    back = same("Deconvolution", g, weight, num_filter=channels)
    same(
        "Deconvolution", g, weight, numbers(channels, dtype, 4), num_filter=channels, no_bias=False
    )
    assert back.shape[:2] == shape[:2]


@pytest.mark.parametrize("length", [8, 30])
def test_data_and_output_may_lie_within_larger_arrays(length):
    windows = windows_of({"kernel": (3, 3), "stride": (), "pad": (1, 1)})
    x, y = numbers((3, 6, length, length), "float32")[:, 1:4], np.zeros((3, 9, length, length))
    weight, out = numbers((4, 3, 3, 3), "float32", 1), y.astype("float32")[:, 2:6]
    convolve(x, weight, None, windows, 1, out)
    alone = np.empty(out.shape, "float32")
    convolve(x.copy(), weight, None, windows, 1, alone)
    np.testing.assert_allclose(out, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 5, 64])
@pytest.mark.parametrize("counts", [(1,), (7, 3), (224, 224), (2, 2)])
@pytest.mark.parametrize("depth", [9, 4608])
def test_blocks_are_every_window_once_and_of_even_sizes(batch, counts, depth):
    seen = np.zeros((batch, counts[0]), int)
    sizes = []
    for start, stop, top, end in blocks(batch, counts, depth, 4):
        seen[start:stop, top:end] += 1
        sizes.append((stop - start) * (end - top))
    assert (seen == 1).all()
    assert max(sizes) <= 2 * min(sizes) or batch % 2 or counts[0] % 2


def test_few_channels_of_bfloat16_are_multiplied_as_float32_and_rounded_once():
    x, weight, bias, g, attrs = layer((16, 16, 8, 8), 16, (1, 1))
    low = [a.astype(BFLOAT16) for a in (x, weight, bias, g)]
    given = {"num_filter": 16, **attrs}, attrs, attrs
    calls = ("Convolution", (0, 1, 2)), ("_conv_grad_data", (3, 1)), ("_conv_grad_weight", (3, 0))
    for (op, places), more in zip(calls, given, strict=True):
        made = []
        for ins in ([low[i] for i in places], [low[i].astype("float32") for i in places]):
            shape = {"shape": x.shape} if op == "_conv_grad_data" else {}
            bound, (out,), _ = bind(op, ins, widens=True, **more, **shape)
            bound.function(*bound.args)
            made.append(out)
        assert (made[0] == made[1].astype(BFLOAT16)).all()


LOW_SHAPES = [
    ((16, 32, 8, 8), 40, (1, 1)),
    ((13, 33, 7, 5), 35, (1, 1)),  # samples, channels and lengths that are no multiples
    ((9, 32, 33, 35), 32, (0, 2)),  # several units
]


def low_calls(shape, filters, pad):
    """Bound calls on bfloat16, their outputs, and what they are in float64."""
    x, weight, bias, g, attrs = (
        a.astype(BFLOAT16) if isinstance(a, np.ndarray) else a for a in layer(shape, filters, pad)
    )
    calls = (
        ("Convolution", (x, weight, bias), {"num_filter": filters}),
        ("_conv_grad_data", (g, weight), {"shape": shape}),
        ("_conv_grad_weight", (g, x), {}),
    )
    for op, ins, more in calls:
        bound, (out,), _ = bind(op, ins, **attrs, **more)
        *_, (want,) = bind(op, [a.astype("float64") for a in ins], **attrs, **more)
        yield bound, out, want


@pytest.mark.slow
@pytest.mark.parametrize("blas", ["openblas", "mkl"])
@pytest.mark.parametrize(("shape", "filters", "pad"), LOW_SHAPES)
def test_products_of_bfloat16_err_by_a_few_roundings(shape, filters, pad, blas):
    if blas not in installed():
        pytest.skip(f"{blas} is not installed")
    with use_blas(blas):
        for bound, out, want in low_calls(shape, filters, pad):
            assert bound.function in (winograd.convolve, winograd.weight_gradient)
            bound.function(*bound.args)
            error = out.astype("float64") - want
            assert np.sqrt((error**2).mean() / (want**2).mean()) < 2.0**-7.5
            largest = np.abs(error).max() / np.sqrt((want**2).mean())
            assert 0 < largest < 2.0**-4


def test_processors_without_products_of_pairs_have_the_same_bits(monkeypatch):
    made = []
    with use_blas("openblas"):
        for wide in (False, True):
            monkeypatch.setattr("runtime.backends.cpu.pairs.pairs_are_slower", lambda w=wide: w)
            for bound, out, _ in low_calls(*LOW_SHAPES[1]):
                bound.function(*bound.args)
                made.append(out.astype("float32"))
    for one, other in zip(made[:3], made[3:], strict=True):
        np.testing.assert_array_equal(one, other)


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
    both = threading.Barrier(2, timeout=60)  # memory of a thread that has ended may be another's

    def run(bound):
        for _ in range(20):
            bound.function(*bound.args)
        places.append(SCRATCH.arrays(np.dtype("float32"), (1,))[0].ctypes.data)
        both.wait()

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


@pytest.mark.parametrize("dtype", [*DTYPES, BFLOAT16])
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


LINES = [
    ((1, 2, 5, 5), {"kernel": (3, 3)}),
    ((2, 3, 7, 6), {"stride": (1, 1)}),
    ((2, 3, 7, 6), {"pad": (1, 1), "count_include_pad": False}),
    ((2, 3, 7, 6), {"kernel": (3, 2), "pad": (1, 0), "pooling_convention": "full"}),
    ((2, 3, 7, 6), {"pooling_convention": "same", "kernel": (3, 3)}),
    ((2, 3, 7, 6), {"global_pool": True}),
    ((2, 3, 9), {"kernel": (3,), "stride": (2,)}),
    ((2, 2, 5, 4, 6), {"kernel": (2, 3, 2), "stride": (1, 2, 2), "pad": (1, 1, 0)}),
]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["max", "avg", "sum", "lp"])
@pytest.mark.parametrize(("shape", "more"), LINES)
def test_pooling_by_lines(shape, more, kind, dtype):
    attrs = {**HALVES, **more, "pool_type": kind, **({"p_value": 2} if kind == "lp" else {})}
    near = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-13}[dtype]
    x = np.round(numbers(shape, dtype) * 2)  # with equal elements, of which the first counts
    (y,) = agree("Pooling", x, tolerance=near, near=near, **attrs)
    g = numbers(y.shape, dtype, 1)
    if kind == "max":
        agree("_max_pool_grad", g, x, tolerance=near, near=near, **attrs)
        agree("_at_maxima", numbers(shape, dtype, 2), x, tolerance=0, **attrs)
    elif kind != "lp":
        agree("_pool_grad", g, shape=shape, tolerance=near, near=near, **attrs)


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
