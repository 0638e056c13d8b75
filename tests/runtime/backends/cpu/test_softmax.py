"""Softmax kernels, whole and in shards, against the operators' own computations."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.backends.cpu.test_flat import DTYPES, TOLERANCE, agree, bind, numbers

LABEL_DTYPES = ["int32", "int64", "float32", "float64"]
SHAPES = [(1, 1), (3, 7), (5, 1000), (2, 2049)]


def near(dtype):
    """Sums are made in another order; a difference may cancel."""
    return TOLERANCE[dtype]


def probabilities(shape, dtype):
    x = np.exp(2 * numbers(shape, "float64"))
    return (x / x.sum(axis=-1, keepdims=True)).astype(dtype)


def some_labels(shape, classes, dtype="int32"):
    return np.random.default_rng(5).integers(0, classes, shape).astype(dtype)


# -- softmax -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_output(dtype, shape):
    x, label = 5 * numbers(shape, dtype), np.zeros(shape[0], dtype)
    (apart,) = agree("SoftmaxOutput", x, label)
    (over,) = agree("SoftmaxOutput", x, label, over=(0, 0))
    np.testing.assert_array_equal(apart, over)


def test_a_row_does_not_depend_on_the_others():
    x, label = numbers((6, 1003)), np.zeros(6, "float32")
    (all_rows,) = agree("SoftmaxOutput", x, label)
    (one,) = agree("SoftmaxOutput", x[4:5], label[:1])
    np.testing.assert_array_equal(all_rows[4:5], one)


@pytest.mark.parametrize("shape", [*SHAPES, (2, 3, 50)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("over", [None, (0, 0)])
def test_last_axis(name, dtype, shape, over):
    agree(name, 5 * numbers(shape, dtype), over=over, near=near(dtype))


def test_large_numbers_and_wide_rows():
    agree("softmax", 50 * numbers((3, 100)) + 1000)
    agree("softmax", numbers((1, 300_001)))


@pytest.mark.parametrize("shape", [*SHAPES, (2, 3, 50)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("over", [None, (0, 0), (0, 1)])
def test_gradients_along_the_last_axis(dtype, shape, over):
    y, g = probabilities(shape, dtype), numbers(shape, dtype, 1)
    close = {"near": 10 * near(dtype), "over": over}
    agree("_softmax_grad", y, g, **close)
    agree("_softmax_grad", y, g, axis=len(shape) - 1, **close)
    agree("_log_softmax_grad", np.log(y), g, **close)


def test_softmax_activation():
    x = numbers((4, 90))
    agree("SoftmaxActivation", x)
    agree("SoftmaxActivation", x, mode="channel")
    agree("SoftmaxActivation", numbers((2, 3, 40)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_not_a_number_and_the_infinite(dtype):
    x = numbers((6, 70), dtype)
    x[0, 3] = x[1, -1] = np.nan
    x[2, 5:9] = -np.inf
    x[3, :] = 7
    with np.errstate(invalid="ignore"):
        x[4, 2] = np.inf
        x[5, :] = -np.inf
        for name in ("softmax", "log_softmax"):
            agree(name, x, near=near(dtype))
        for name in ("_softmax_grad", "_log_softmax_grad"):
            agree(name, probabilities(x.shape, dtype), x[::-1], near=10 * near(dtype))
        agree("SoftmaxOutput", x, np.zeros(6, dtype), over=(0, 0))
        (figures,) = agree("_shard_row_figures", np.delete(x, [0, 1], 0), near=near(dtype))
    assert np.isfinite(figures[0][[0, 1, 3]]).all()
    bound, (found,), _ = bind("_shard_row_figures", [x[:2]])
    bound.function(*bound.args)
    assert np.isnan(found[1]).all()


def test_cases_without_kernel():
    x, label = numbers((2, 3, 4)), np.zeros((2, 4), "float32")
    assert bind("SoftmaxOutput", (x, label), multi_output=True)[0] is None
    assert bind("_softmax_output_grad", (x, label), multi_output=True)[0] is None
    assert bind("softmax", [x], axis=1)[0] is None
    assert bind("softmax", [x], temperature=2.0)[0] is None
    assert bind("SoftmaxActivation", [x], mode="channel")[0] is None
    for name in ("_softmax_grad", "_log_softmax_grad"):
        assert bind(name, [x, x], axis=1)[0] is None
        assert bind(name, [x.astype("float16")] * 2)[0] is None
    flat, label = x[0], np.zeros(3, "float32")
    assert bind("_softmax_output_grad", (flat, label), smooth_alpha=0.1)[0] is None
    assert bind("softmax", [x.astype("float16")])[0] is None
    figures = [numbers((2, 3))] * 3
    assert bind("_shard_join_figures", figures, num_args=3)[0] is None


# -- the head's gradient -----------------------------------------------------------------------

SCALES = [
    {},
    {"grad_scale": 0.25},
    {"normalization": "batch"},
    {"normalization": "batch", "count": 35, "grad_scale": 3.0},
    {"use_ignore": True, "ignore_label": -1},
    {"use_ignore": True, "ignore_label": 2, "normalization": "batch"},
    {"use_ignore": True, "ignore_label": 0.1},
]


@pytest.mark.parametrize("label_dtype", LABEL_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("settings", SCALES)
def test_head_gradient(settings, dtype, label_dtype):
    prob, label = probabilities((7, 33), dtype), some_labels(7, 33, label_dtype)
    if settings.get("use_ignore"):
        label[[0, 4]] = settings["ignore_label"]
    for over in (None, (0, 0)):
        agree("_softmax_output_grad", prob, label, over=over, **settings)
        for begin in (0, 20):
            shard = {"begin": begin, "classes": 53}
            agree("_softmax_output_grad", prob, label, over=over, **settings, **shard)


@pytest.mark.parametrize("dtype", DTYPES)
def test_head_gradient_by_the_count_of_valid_labels(dtype):
    prob, label, valid = probabilities((7, 33), dtype), some_labels(7, 33), np.array([5.0])
    label[2] = -1
    settings = {"normalization": "valid", "use_ignore": True, "grad_scale": 0.7}
    agree("_softmax_output_grad", prob, label, valid, **settings)
    agree("_softmax_output_grad", prob, label, valid, begin=8, classes=50, **settings)


def test_head_gradient_with_more_axes():
    prob, label = probabilities((2, 3, 9), "float32"), some_labels((2, 3), 9)
    agree("_softmax_output_grad", prob, label, preserve_shape=True)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("_softmax_output_grad", {}),
        ("_softmax_output_grad", {"use_ignore": True, "ignore_label": -2}),
        ("softmax_cross_entropy", {}),
        ("_nll", {}),
        ("_shard_pick", {"begin": 3, "classes": 9}),
    ],
)
@pytest.mark.parametrize("wrong", [9, -1])
def test_bad_labels(name, given, wrong):
    label = np.zeros(4, "int32")
    bound, *_ = bind(name, (probabilities((4, 9), "float32"), label), **given)
    bound.args[0].raw[2] = wrong
    with pytest.raises(IndexError, match=rf"label {wrong} is outside 0\.\.8"):
        bound.function(*bound.args)


# -- cross entropy -----------------------------------------------------------------------------


@pytest.mark.parametrize("label_dtype", LABEL_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy(dtype, label_dtype):
    x, label = 4 * numbers((7, 1033), dtype), some_labels(7, 1033, label_dtype)
    agree("softmax_cross_entropy", x, label)


@pytest.mark.parametrize("label_dtype", LABEL_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "ignore", [{}, {"use_ignore": True}, {"use_ignore": True, "ignore_label": 3}]
)
def test_perplexity_figures(ignore, dtype, label_dtype):
    prob, label = probabilities((2, 4, 33), dtype), some_labels((2, 4), 33, label_dtype)
    if ignore:
        label[0, 1] = label[1, 2] = ignore.get("ignore_label", -1)
    prob[0, 0] = 0
    agree("_nll", prob, label, **ignore)
    picked = prob[..., 4]
    agree("_picked_nll", picked, label, **ignore)
    for begin in (0, 20):
        agree("_shard_pick", prob, label, begin=begin, classes=53, **ignore)


def test_not_a_number_in_cross_entropy():
    x, label = numbers((4, 9)), some_labels(4, 9)
    x[1, 2] = np.nan
    assert np.isnan(agree("softmax_cross_entropy", x, label)[0])
    prob = probabilities((4, 9), "float32")
    prob[2, label[2]] = np.nan
    assert np.isnan(agree("_nll", prob, label)[0])
    grad = agree("_softmax_output_grad", prob, label, grad_scale=0.5)[0]
    assert np.isnan(grad).sum() == 1


# -- shards ------------------------------------------------------------------------------------


def figures_of(x):
    top = x.max(axis=-1)
    return np.stack([top, np.exp(x - top[..., None]).sum(axis=-1)])


@pytest.mark.parametrize("shape", [*SHAPES, (2, 3, 50)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_row_figures(dtype, shape):
    agree("_shard_row_figures", 5 * numbers(shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("over", [None, (0, 0), (0, 1)])
def test_joined_figures(dtype, over):
    parts = [figures_of(5 * numbers((2, 19, 50), dtype, seed)) for seed in range(2)]
    agree("_shard_join_figures", *parts, num_args=2, over=over)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("begin", [0, 10])
def test_shards_of_heads(dtype, begin):
    whole = 3 * numbers((2, 5, 41), dtype)
    x, label, figures = whole[..., begin : begin + 31], some_labels((2, 5), 41), figures_of(whole)
    shard = {"begin": begin, "classes": 41}
    for name in ("_shard_softmax_output", "_shard_residual"):
        (apart,) = agree(name, x, label, figures, **shard)
        (over,) = agree(name, x, label, figures, over=(0, 0), **shard)
        np.testing.assert_array_equal(apart, over)
    agree("_shard_cross_entropy", x, label, figures, **shard)
    label[0, 2] = -1
    shard["use_ignore"] = True
    agree("_shard_residual", x, label, figures, **shard)
    agree("_shard_cross_entropy", x, label, figures, **shard)
