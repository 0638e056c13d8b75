"""Kernels for GPUs, built for the CPU, against the operators' own computations."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.backends.cuda import KERNELS, attention
from runtime.backends.cuda.base import MAX_GRID_Y, absent, code_of, each, options
from runtime.backends.cuda.rank_memory import ERROR_BLOCK, DeferredErrors
from runtime.backends.device.table import CallContext, KernelCall
from symgraph.core.registry import Env
from symgraph.core.types import HALVES, TensorType, dtype_name
from tests.fakes.fake_cupy import fake_cupy
from tests.runtime.backends.cuda.calls import (
    REALS,
    Called,
    agree,
    cells,
    has_no_kernel,
    near_of,
    numbers,
    on_gpu,
)
from tests.runtime.backends.cuda.emulation import MISSING, RawModule, compiler

pytestmark = [pytest.mark.every(6), pytest.mark.skipif(compiler() is None, reason=MISSING)]

PAIRS = [
    ("float32", "int32"),
    ("float32", "float32"),
    ("float64", "int64"),
    ("float64", "float64"),
    ("float16", "int32"),
    ("bfloat16", "int32"),
]
SIZES = [(1, 1), (3, 7), (3, 1000), (64, 33)]
each_real = pytest.mark.parametrize("dtype", REALS)
each_size = pytest.mark.parametrize("shape", SIZES, ids=str)
each_pair = pytest.mark.parametrize(("dtype", "ids"), PAIRS)


@pytest.fixture(autouse=True)
def kernels():
    with fake_cupy():
        yield


# -- gates -----------------------------------------------------------------------------------------

GATES = [
    ("_lstm_gates", {}, (4, 4, 1), [{}, {2: 0}, {2: 1}]),
    ("_lstm_gates_grad", {}, (1, 1, 4, 1, 1), [{}, {0: 2, 1: 1}]),
    ("_lstm_gates_grad", {"has_dh": False}, (1, 4, 1, 1), [{}, {0: 1, 1: 0}]),
    ("_lstm_gates_grad", {"has_dc": False}, (1, 4, 1, 1), [{}, {0: 1}]),
    ("_gru_gates", {}, (3, 3, 1), [{}, {1: 0}, {1: 1}]),
    ("_gru_gates_grad", {}, (1, 3, 1, 1), [{}, {0: 1, 2: 0}]),
]


@pytest.mark.parametrize(("op", "given", "blocks", "places"), GATES)
@each_real
@each_size
def test_gates(op, given, blocks, places, dtype, shape):
    rows, units = shape
    ins = [numbers((rows, n * units), dtype, i) for i, n in enumerate(blocks)]
    if op.startswith("_lstm"):
        at = {"_lstm_gates": [2], "_lstm_gates_grad": [-2, -1]}[op]
        at += [len(blocks) - 4] if op == "_lstm_gates_grad" and given.get("has_dc", True) else []
        for i in at:
            (ins[i],) = cells(ins[i])
    found = [agree(op, *ins, over=place, **given) for place in places]
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("op", ["_lstm_gates", "_gru_gates"])
def test_gates_that_are_full(op):
    n = 4 if op == "_lstm_gates" else 3
    pre = np.array([[-1e4, -80.0, 80.0, 1e4] * n], "float32")
    agree(op, pre, np.zeros_like(pre), np.ones((1, 4), "float32"))


# -- softmax ---------------------------------------------------------------------------------------


@pytest.mark.every(3)
@each_real
@each_size
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "SoftmaxActivation", "SoftmaxOutput"])
def test_softmax(op, dtype, shape):
    ins = [5 * numbers(shape, dtype)]
    if op == "SoftmaxOutput":
        ins.append(np.zeros(shape[0], dtype))
    (apart,) = agree(op, *ins)
    (over,) = agree(op, *ins, over={0: 0})
    np.testing.assert_array_equal(apart, over)


@each_real
@each_size
@pytest.mark.parametrize("op", ["_softmax_grad", "_log_softmax_grad"])
def test_softmax_gradients(op, dtype, shape):
    y = np.random.default_rng(0).uniform(size=shape).astype(dtype)
    grad = numbers(shape, dtype)
    near = near_of(dtype, 1e-4, 1e-12)  # a row's sum is made in another order
    agree(op, y, grad, near=near)


def test_more_axes_and_large_numbers():
    agree("softmax", 50 * numbers((2, 3, 50)) + 1000)
    agree("SoftmaxOutput", numbers((2, 3, 5)), np.zeros((2, 3), "int32"), preserve_shape=True)


def test_not_a_number_and_the_infinite():
    x = numbers((6, 70))
    x[0, 3] = x[1, -1] = np.nan
    x[2, 5:9] = -np.inf
    x[3, :] = 7
    x[4, 2] = np.inf
    x[5, :] = -np.inf
    with np.errstate(invalid="ignore"):
        agree("softmax", x)
        agree("log_softmax", x)


def test_other_axes_are_left_to_the_operator():
    assert has_no_kernel("log_softmax", numbers((3, 4)), axis=0)
    assert has_no_kernel("softmax", numbers((3, 4)), temperature=2.0)
    assert has_no_kernel("SoftmaxOutput", numbers((2, 3, 4)), np.zeros((2, 4)), multi_output=True)


# -- labels ----------------------------------------------------------------------------------------


def probabilities(shape, dtype):
    x = np.exp(2 * numbers(shape, "float64"))
    return (x / x.sum(axis=-1, keepdims=True)).astype(dtype_name(dtype))


def some_labels(count, classes, dtype="int32", ignored=()):
    """Of a dtype; for 16 bits, which hold no large label, int32."""
    dtype = dtype if dtype not in HALVES else "int32"
    label = np.random.default_rng(5).integers(0, classes, count).astype(dtype)
    for i in ignored:
        label[i] = -1
    return label


@pytest.mark.every(3)
@each_pair
@each_size
def test_the_heads_gradient(ids, dtype, shape):
    prob, label = probabilities(shape, dtype), some_labels(shape[0], shape[1], ids)
    (apart,) = agree("_softmax_output_grad", prob, label, grad_scale=0.3)
    (over,) = agree("_softmax_output_grad", prob, label, grad_scale=0.3, over={0: 0})
    np.testing.assert_array_equal(apart, over)


@each_real
def test_divisors_and_ignored_labels(dtype):
    prob, label = probabilities((5, 9), dtype), some_labels(5, 9, dtype, ignored=[1, 4])
    use = {"use_ignore": True, "ignore_label": -1.0}
    (found,) = agree("_softmax_output_grad", prob, label, normalization="batch", **use)
    assert not found[[1, 4]].any()
    agree("_softmax_output_grad", prob, label, np.array([3.0]), normalization="valid", **use)
    agree("_softmax_output_grad", prob, label, normalization="batch", count=20, **use)
    assert has_no_kernel("_softmax_output_grad", prob, label, smooth_alpha=0.1)


@each_real
@each_size
def test_cross_entropy(dtype, shape):
    x, label = 3 * numbers(shape, dtype), some_labels(shape[0], shape[1], dtype)
    agree("softmax_cross_entropy", x, label, near=1e-5 if dtype == "float32" else None)
    prob = probabilities(shape, dtype)
    nll, count = agree("_nll", prob, label)
    assert (nll.dtype, count[0]) == (np.float64, shape[0])


@each_real
def test_nll_counts_what_is_not_ignored(dtype):
    prob, label = probabilities((700, 5), dtype), some_labels(700, 5, "int32", ignored=[0, 3, 699])
    prob[1] = 0
    _, count = agree("_nll", prob, label, use_ignore=True)
    assert count[0] == 697
    agree("_picked_nll", prob[:, 0].copy(), label, use_ignore=True)


@each_real
@pytest.mark.parametrize("begin", [0, 4, 8])
def test_shards(dtype, begin):
    whole, label = 3 * numbers((37, 12), dtype), some_labels(37, 12, dtype, ignored=[2, 30])
    x = whole[:, begin : begin + 4].copy()
    of_shard = {"begin": begin, "classes": 12, "use_ignore": True}
    (figures,) = agree("_shard_row_figures", whole, near=1e-5)
    agree("_shard_row_figures", x)
    (prob,) = agree("_shard_softmax_output", x, label, figures, **of_shard)
    agree("_softmax_output_grad", prob, label, **of_shard)
    agree("_shard_residual", x, label, figures, **of_shard)
    agree("_shard_cross_entropy", x, label, figures, near=1e-5, **of_shard)
    agree("_shard_pick", prob, label, **of_shard)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_figures_of_two_shards(dtype):
    parts = [np.abs(numbers((2, 70), dtype, i)) for i in range(2)]
    parts[0][0, 3] = parts[1][0, 5] = np.finfo(dtype).min
    agree("_shard_join_figures", *parts, num_args=2)


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.every(3)
@each_pair
@pytest.mark.parametrize("columns", [1, 7, 300])
def test_look_ups(ids, dtype, columns):
    weight, at = numbers((11, columns), dtype), some_labels((5, 6), 11, ids)
    agree("Embedding", at, weight, input_dim=11, output_dim=columns)
    shard = {"begin": 4, "classes": 11, "input_dim": len(weight[4:8]), "output_dim": columns}
    agree("Embedding", at, weight[4:8].copy(), **shard)
    agree("take", weight, at - 3)


@each_pair
@pytest.mark.parametrize(("count", "columns"), [(1, 1), (40, 7), (700, 3), (30, 300)])
def test_gradients_of_look_ups(ids, dtype, count, columns):
    at, grad = some_labels(count, 11, ids), numbers((count, columns), dtype)
    near = near_of(dtype, 3e-5, 1e-12)  # the operator sums in another order
    agree("_embedding_grad", at, grad, input_dim=11, near=near)
    agree("_embedding_grad", at, grad, begin=4, classes=11, input_dim=5, near=near)
    agree("_take_grad", at - 3, grad, axis=0, size=7, near=near)
    agree("_take_grad", at, grad, axis=0, size=11, mode="raise", near=near)


def test_sums_by_id_are_in_the_order_of_the_batch():
    at, grad = some_labels(600, 3), numbers((600, 5))
    (found,) = agree("_embedding_grad", at, grad, input_dim=4, near=1e-4)
    wanted = np.zeros((4, 5), "float32")
    for i, row in zip(at, grad, strict=True):
        wanted[i] += row
    np.testing.assert_array_equal(found, wanted)


def test_rows_of_millions_of_numbers_fit_a_grid():
    """CUDA takes 65,535 blocks along a grid's second axis. The arrays have no memory."""
    columns = 1 << 25
    types = [("int32", (2,)), ("float32", (2, columns)), ("float32", (3, columns))]
    *ins, out = (absent(TensorType(shape, dtype)) for dtype, shape in types)
    call = KernelCall({"axis": 0, "mode": "clip"}, tuple(ins), (out,), CallContext())
    *_, add = KERNELS["_take_grad"](call).args[0]
    grid, *_ = add.args
    assert grid[1] <= MAX_GRID_Y


# -- ids that are none -----------------------------------------------------------------------------

WRONG = [
    ("Embedding", (numbers((4, 3)),), {"input_dim": 4, "output_dim": 3}, "id", 4, 0),
    ("_embedding_grad", (numbers((5, 3)),), {"input_dim": 4}, "id", 4, 0),
    ("_softmax_output_grad", (numbers((5, 4)),), {}, "label", 4, 1),
    ("softmax_cross_entropy", (numbers((5, 4)),), {}, "label", 4, 1),
    ("_nll", (probabilities((5, 4), "float32"),), {}, "label", 4, 1),
]


@pytest.mark.parametrize(("op", "more", "given", "what", "count", "at"), WRONG)
@pytest.mark.parametrize("wrong", [4, -1, 2**40])
def test_ids_out_of_range_are_raised_after_the_step(op, more, given, what, count, at, wrong):
    ids = np.array([0, 1, wrong, 3, 2])
    called = Called(op, [ids, *more] if at == 0 else [*more, ids], {}, given)
    outs = called.results()
    if op != "_embedding_grad":  # a row that is nowhere
        assert np.isnan(outs[0]).any()
    with pytest.raises(IndexError) as own:
        called.computed(Env())
    with pytest.raises(IndexError) as noted:
        called.context.check()
    assert f"is outside 0..{count - 1}" in str(noted.value)
    if wrong < 2**30:
        assert str(noted.value) == str(own.value) == f"{what} {wrong} is outside 0..{count - 1}"
    called.context.check()  # it is said once


def test_more_kinds_of_ids_than_are_read_together():
    """Hundreds of embeddings have hundreds of sizes."""
    errors = DeferredErrors()
    places = [errors.place("id", count) for count in range(1, ERROR_BLOCK + 3)]
    places[-1].fill(-7)
    with pytest.raises(IndexError, match=rf"id -7 is outside 0\.\.{ERROR_BLOCK + 1}"):
        errors.check()
    errors.check()  # it is said once


def test_an_id_that_is_no_number():
    ids = np.array([0, np.nan], "float32")
    called = Called("Embedding", [ids, numbers((4, 3))], {}, {"input_dim": 4, "output_dim": 3})
    called.results()
    with pytest.raises(IndexError, match=r"id nan is outside 0\.\.3"):
        called.context.check()


# -- products --------------------------------------------------------------------------------------


@pytest.mark.every(3)
@each_real
@pytest.mark.parametrize(("rows", "inner", "units"), [(1, 1, 1), (3, 5, 7), (64, 33, 300)])
def test_fully_connected(dtype, rows, inner, units):
    x, w = numbers((rows, inner), dtype), numbers((units, inner), dtype, 1)
    b, g = numbers(units, dtype, 2), numbers((rows, units), dtype, 3)
    near = near_of(dtype, 3e-5, 1e-12)
    agree("FullyConnected", x, w, b, num_hidden=units, near=near)
    agree("FullyConnected", x, w, num_hidden=units, no_bias=True, near=near)
    agree("_fc_grad_data", g, w, shape=x.shape, near=near)
    agree("_fc_grad_weight", g, x, near=near)
    agree("_sum_rows", g, near=near)


def test_leading_axes():
    x, w, b = numbers((2, 3, 4)), numbers((5, 4)), numbers(5)
    agree("FullyConnected", x, w, b, num_hidden=5, flatten=False)
    agree("FullyConnected", x, numbers((5, 12)), b, num_hidden=5)
    agree("_fc_grad_weight", numbers((2, 3, 5)), x)
    agree("_fc_grad_data", numbers((2, 3, 5)), w, shape=x.shape)
    agree("_sum_rows", numbers((2, 100, 40)), near=1e-5)


@each_real
@pytest.mark.parametrize("shape", [(512, 3), (513, 3), (5000, 1), (200000, 2), (2000, 300)])
def test_many_rows_of_few_columns_are_summed_in_runs(dtype, shape):
    agree("_sum_rows", numbers(shape, dtype), near=near_of(dtype, 1e-4, 1e-11))


# -- attention -------------------------------------------------------------------------------------

ATTENTION = "scaled_dot_product_attention"
MASKS = [None, (2, 3, 20, 37), (1, 3, 20, 1), (2, 1, 1, 37)]


def attends(q, k, v, *mask, near, **given):
    """Check a call, and its gradient with the output and sums that it has found."""
    made = agree(ATTENTION, q, k, v, *mask, near=near, use_mask=bool(mask), **given)
    grad = numbers(made[0].shape, q.dtype.name, 4)
    ins = grad, *made, q, k, v, *mask
    return made + agree("_attention_grad", *ins, near=near, use_mask=bool(mask), **given)


@each_real
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(dtype, mask, causal):
    q, k, v = (numbers((2, 3, *s), dtype, i) for i, s in enumerate([(20, 8), (37, 8), (37, 5)]))
    masks = [] if mask is None else cells(numbers(mask, dtype, 3))
    attends(q, k, v, *masks, causal=causal, near=near_of(dtype, 2e-5, 1e-12))


def test_attention_over_many_words():
    """A block has a row, not a warp."""
    q, k, v = (numbers((1, 1, rows, 8), "float32", i) for i, rows in enumerate((3, 1030, 1030)))
    attends(q, k, v, near=2e-5)


def test_attention_takes_as_many_matrices_as_have_room(monkeypatch):
    q, k, v = (numbers((5, *s), "float64", i) for i, s in enumerate([(40, 3), (7, 3), (7, 2)]))
    mask = numbers((5, 1, 7), "float64", 3)
    mask[2, 0, 3] = mask[4, 0, 0] = -np.inf
    together = attends(q, k, v, mask, scale=0.3, near=1e-12)
    for count in (0, 4):
        monkeypatch.setattr(attention, "LIMIT", count * 40 * 7 * 8)
        for one, other in zip(together, attends(q, k, v, mask, scale=0.3, near=1e-12), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_mask_that_alternates_along_many_axes_is_left_to_the_operator():
    q, mask = numbers((2, 2, 2, 2, 2, 3, 4)), numbers((2, 1, 2, 1, 2, 3, 3))
    assert has_no_kernel(ATTENTION, q, q, q, mask, use_mask=True)
    near = near_of("float32", 2e-5, 0)
    attends(*[q.reshape(2, 2, 2, 4, 3, 4)] * 3, mask[:, :, :, :, 1], near=near)


DIVIDE = """
extern "C" __global__ void divide(const i64* a, const i64* b, i64* whole, i64* rest, i64 size) {
    const i64 at = thread_index();
    if (at >= size) return;
    const Divided found = divided(a[at], b[at]);
    whole[at] = found.whole, rest[at] = found.rest;
}
"""


def test_divisions_of_any_size():
    """Of 32 bits where that will do, and else of 64."""
    edges = [1, 2, 3, 7, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, 1 << 62]
    a, b = (np.array(x, np.int64).ravel() for x in np.meshgrid([0, *edges], edges))
    module = RawModule(code=code_of("linear") + DIVIDE, options=options(real="float32"))
    whole, rest = (on_gpu(np.zeros_like(a)) for _ in range(2))
    grid, block = each(a.size)
    divide = module.get_function("divide")
    divide(grid, block, (on_gpu(a), on_gpu(b), whole, rest, np.int64(a.size)))
    np.testing.assert_array_equal(whole.get(), a // b)
    np.testing.assert_array_equal(rest.get(), a % b)
