"""Look-ups, scatters and copies against the operators' own computations."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.backends.cpu.rows import copy_all
from runtime.backends.cpu.table import KERNELS
from runtime.backends.device.table import BoundCall, CallContext, KernelCall, noop
from symgraph.core.params import parse_params
from symgraph.core.registry import find
from tests.runtime.backends.cpu.test_flat import DTYPES, agree, bind, numbers

NEAR = {"float32": 1e-6, "float64": 1e-15}  # sums are made in another order
ID_DTYPES = ["int32", "int64", "float32", "float64"]


def some_ids(shape, count, dtype="int32", seed=0):
    return np.random.default_rng(seed).integers(0, count, shape).astype(dtype)


# -- copies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_joins_and_cuts(axis, dtype):
    x = (10 * numbers((4, 6, 8), "float64")).astype(dtype)
    agree("SliceChannel", x, num_outputs=2, axis=axis)
    agree("slice_axis", x, axis=axis, begin=1, end=-1)
    agree("slice_axis", x, axis=axis, begin=2, end=None)
    agree("Concat", x, x + 1, x[:1] * 2 if axis == 0 else x, num_args=3, dim=axis)
    agree("_shard_join", x, x + 1, num_args=2, dim=axis)
    agree("stack", x, x + 1, num_args=2, axis=axis)
    agree("_pad_axis", x, axis=axis, begin=0, size=9)
    agree("_pad_axis", x, axis=axis, begin=2, size=13)


def test_cuts_that_drop_an_axis():
    agree("SliceChannel", numbers((4, 3, 8)), num_outputs=3, axis=1, squeeze_axis=True)
    agree("SliceChannel", numbers((4, 3, 8)), num_outputs=8, axis=-1, squeeze_axis=True)


def test_slices_by_step_and_their_gradient():
    where = {"begin": (None, 5), "end": (None, 0), "step": (None, -2)}
    agree("slice", numbers((4, 6, 8)), **where)
    agree("_slice_grad", numbers((4, 3, 8)), shape=(4, 6, 8), **where)


@pytest.mark.parametrize("axes", [(), (1, 0, 2), (0, 2, 1), (2, 0, 1)])
def test_transpose(axes):
    agree("transpose", numbers((5, 3, 7)), axes=axes)


def test_swapped_axes():
    agree("SwapAxis", numbers((5, 3, 7)), dim1=0, dim2=1)
    agree("SwapAxis", numbers((5, 3, 7)), dim1=-1, dim2=0)


def join(name, ins, out, **given):
    attrs = parse_params(name, "test", find(name).params, {**given, "num_args": len(ins)})
    return KERNELS[name](KernelCall(attrs, tuple(ins), (out,), CallContext()))


def test_a_join_leaves_alone_what_lies_in_it():
    out = numbers((6, 5))
    assert join("Concat", [out[:2], out[2:3], out[3:]], out, dim=0) == BoundCall(noop, ())
    assert join("stack", list(out), out, axis=0) == BoundCall(noop, ())
    before, other = out.copy(), numbers((1, 5), seed=1)
    bound = join("Concat", [out[:2], other, out[3:]], out, dim=0)
    assert bound.function is np.copyto
    bound.function(*bound.args)
    np.testing.assert_array_equal(out, np.concatenate([before[:2], other, before[3:]]))


def test_a_join_copies_what_only_begins_at_its_place():
    out = numbers((3, 4))
    left = out.reshape(-1)[:6].reshape(3, 2)  # at the address of the left half, but not in it
    assert join("Concat", [left, numbers((3, 2))], out, dim=1).function is copy_all


def test_parts_that_lie_in_the_data_are_no_call():
    bound, *_ = bind("slice_axis", [numbers((1, 5))], over=(0, 0), axis=0, begin=0, end=None)
    assert bound == BoundCall(noop, ())


# -- look-ups ----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 7, 64])
@pytest.mark.parametrize("ids_dtype", ID_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(dtype, ids_dtype, width):
    ids = some_ids((5, 3), 11, ids_dtype)
    agree(
        "Embedding",
        ids,
        numbers((11, width), dtype),
        tolerance=0,
        input_dim=11,
        output_dim=width,
        dtype=dtype,
    )
    agree("_embedding_grad", ids, numbers((5, 3, width), dtype), near=NEAR[dtype], input_dim=11)


def test_fractions_of_ids_are_cut_off():
    ids = np.array([0.0, 3.9, 10.5], "float32")
    agree("Embedding", ids, numbers((11, 4)), tolerance=0, input_dim=11, output_dim=4)


def test_gradients_of_one_id_are_added_in_order():
    grad = (numbers((40, 3)) * 10.0 ** np.arange(-4, 4).repeat(5)[:, None]).astype("float32")
    found = agree("_embedding_grad", np.full(40, 2, "int32"), grad, near=0.01, input_dim=5)
    total = np.zeros(3, "float32")
    for row in grad:
        total += row
    np.testing.assert_array_equal(found[0][2], total)


@pytest.mark.parametrize(
    ("ids", "wrong"),
    [([0, 11], "11"), ([3, -1], "-1"), ([0.0, np.nan], "nan"), ([-0.5, 2.0], "-0.5")],
)
@pytest.mark.parametrize("name", ["Embedding", "_embedding_grad", "shard", "take"])
def test_bad_ids(name, ids, wrong):
    ids = np.array(ids, "float32" if isinstance(ids[0], float) else "int32")
    good, table = np.zeros_like(ids), numbers((11, 4))
    shard = {"begin": 4, "classes": 11}
    ins, given = {
        "Embedding": ((good, table), {"input_dim": 11, "output_dim": 4}),
        "_embedding_grad": ((good, table[:2]), {"input_dim": 11}),
        "shard": ((good, table[4:6]), {"input_dim": 2, "output_dim": 4, **shard}),
        "take": ((table, good), {"mode": "raise"}),
    }[name]
    bound, *_ = bind("Embedding" if name == "shard" else name, ins, **given)
    bound.args[0][:] = ids
    with pytest.raises(IndexError, match=rf"id {wrong} is outside 0\.\.10"):
        bound.function(*bound.args)


@pytest.mark.parametrize("begin", [0, 4, 9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_shards_of_embeddings(dtype, begin):
    ids, shard = some_ids((5, 3), 20), {"begin": begin, "classes": 20}
    agree("Embedding", ids, numbers((6, 9), dtype), tolerance=0, input_dim=6, output_dim=9, **shard)
    grad = numbers((5, 3, 9), dtype)
    agree("_embedding_grad", ids, grad, near=NEAR[dtype], input_dim=6, **shard)
    agree("_embedding_grad", ids * 0 + 19, grad, near=NEAR[dtype], input_dim=6, **shard)


@pytest.mark.parametrize("mode", ["clip", "raise"])
@pytest.mark.parametrize("ids_dtype", ID_DTYPES)
def test_take(mode, ids_dtype):
    ids = some_ids((5, 3), 11, ids_dtype)
    if mode == "clip":
        ids[0, :2] = -3, 17
    agree("take", numbers((11, 4, 2)), ids, mode=mode, tolerance=0)
    agree("_take_grad", ids, numbers((5, 3, 4, 2)), axis=0, size=11, mode=mode, near=1e-6)


def test_cases_without_kernel():
    table, ids = numbers((11, 4)), some_ids(3, 4)
    assert bind("take", (table, ids), axis=1)[0] is None
    assert bind("take", (table, ids), mode="wrap")[0] is None
    assert bind("_take_grad", (ids, table[:3]), axis=0, size=11, mode="wrap")[0] is None
    small = table.astype("float16")
    assert bind("Embedding", (ids, small), input_dim=11, output_dim=4, dtype="float16")[0] is None
    assert bind("Embedding", (ids.astype("uint8"), table), input_dim=11, output_dim=4)[0] is None


@pytest.mark.parametrize("ids_dtype", ID_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_hot(dtype, ids_dtype):
    ids = some_ids((5, 3), 11, ids_dtype)
    ids[0, :2] = -3, 17
    agree("one_hot", ids, depth=11, dtype=dtype, tolerance=0)
    agree("one_hot", ids, depth=11, dtype=dtype, on_value=0.3, off_value=-0.1, tolerance=0)


def test_not_a_number_stays():
    table = numbers((11, 4))
    table[3, 1] = np.nan
    agree("Embedding", some_ids((5, 3), 11), table, input_dim=11, output_dim=4)
    agree("_embedding_grad", some_ids(11, 11), table, input_dim=11)
