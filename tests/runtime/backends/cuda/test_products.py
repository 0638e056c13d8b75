"""Products by cuBLAS and dropout on GPUs, against the operators' own computations."""

from __future__ import annotations

import os

import numpy as np
import pytest

from runtime.backends.cuda import rank_memory
from runtime.backends.cuda.blas import BlasError, blas_of, product
from runtime.backends.device import arrays, settings
from runtime.backends.device.table import CallContext
from symgraph import gpu
from symgraph.core.errors import ConfigError
from symgraph.core.rand import key
from symgraph.core.registry import Env
from tests.fakes.fake_cupy import fake_cupy
from tests.runtime.backends.cuda.calls import REALS, Called, agree, has_no_kernel, numbers, on_gpu
from tests.runtime.backends.cuda.emulation import MISSING, compiler

pytestmark = [pytest.mark.every(6), pytest.mark.skipif(compiler() is None, reason=MISSING)]

each_real = pytest.mark.parametrize("dtype", REALS)


@pytest.fixture(autouse=True)
def kernels():
    with fake_cupy():
        yield


@each_real
@pytest.mark.parametrize("a", [False, True])
@pytest.mark.parametrize("b", [False, True])
def test_dot(dtype, a, b):
    x, y = numbers((5, 7), dtype), numbers((7, 3), dtype)
    ins = [np.ascontiguousarray(v.T) if turned else v for v, turned in ((x, a), (y, b))]
    agree("dot", *ins, transpose_a=a, transpose_b=b, near=1e-5 if dtype == "float32" else None)
    assert has_no_kernel("dot", x[0], y)


@each_real
@pytest.mark.parametrize("a", [False, True])
@pytest.mark.parametrize("b", [False, True])
def test_batch_dot(dtype, a, b):
    x, y = numbers((2, 3, 5, 7), dtype), numbers((2, 3, 7, 4), dtype)
    turns = ((x, a), (y, b))
    ins = [np.ascontiguousarray(v.swapaxes(2, 3)) if turned else v for v, turned in turns]
    close = 1e-5 if dtype == "float32" else None
    agree("batch_dot", *ins, transpose_a=a, transpose_b=b, near=close)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (1, 5, 3), (4, 1, 3), (4, 5, 1)])
@pytest.mark.parametrize("a", [False, True])
@pytest.mark.parametrize("b", [False, True])
def test_products_of_a_single_row_or_column(rows, inner, columns, a, b):
    """Strides of an axis of one element say nothing."""
    x, y = numbers((rows, inner), "float64"), numbers((inner, columns), "float64")
    ins = [np.ascontiguousarray(v.T) if turned else v for v, turned in ((x, a), (y, b))]
    agree("dot", *ins, transpose_a=a, transpose_b=b)


@pytest.mark.parametrize(
    ("asked", "sums", "of_cupy"),
    [
        (None, 68, "0"),
        ("float32", 68, "0"),
        ("tf32", 77, "1"),
        ("bfloat16", 75, "1"),
    ],
)
def test_products_of_float32_are_strict_unless_somebody_asks(monkeypatch, asked, sums, of_cupy):
    if asked is not None:
        monkeypatch.setenv(settings.PRODUCTS, asked)
    monkeypatch.setenv("CUPY_TF32", "1")
    arrays.require(gpu(0))
    assert os.environ["CUPY_TF32"] == of_cupy
    x = on_gpu(numbers((2, 2)))
    bound = product(x, x, on_gpu(numbers((2, 2))))
    _, _, args, _ = bound.args
    assert args[-2] == sums


def test_a_precision_that_there_is_not(monkeypatch):
    monkeypatch.setenv(settings.PRODUCTS, "tf23")
    with pytest.raises(ConfigError, match=r"SYMGRAPH_PRODUCTS=tf23: did you mean 'tf32'\?"):
        arrays.require(gpu(0))


def test_what_the_library_refuses_is_an_error(monkeypatch):
    x = on_gpu(numbers((2, 2)))
    call, args = product(x, x, on_gpu(numbers((2, 2))))
    monkeypatch.setattr(blas_of(args[0]).gemm, "_call", lambda *given: 13)
    with pytest.raises(BlasError, match="cuBLAS status 13"):
        call(*args)


# -- dropout -----------------------------------------------------------------------------------


@each_real
@pytest.mark.parametrize("p", [0, 0.3, 1])
@pytest.mark.parametrize(
    "place",
    [
        {},
        {"axis": 0, "first": 2},
        {"axis": 1, "outer": 3, "inner": 2},
    ],
)
def test_dropout(dtype, p, place):
    called = Called("Dropout", [numbers((3, 12), dtype)], {}, {"p": p, "stream": "d", **place})
    for env in (
        Env(train=True, seed=3, step=5, sample=4),
        Env(train=True, seed=3, step=6),
        Env(train=True, seed=3, step=6, sample=9),
        Env(),
    ):
        called.context.set(env)
        for found, wanted in zip(called.results(), called.computed(env), strict=True):
            np.testing.assert_array_equal(found, wanted)
        if env.train and 0 < p < 1:
            assert len(set(found.ravel().tolist())) == 2
    assert has_no_kernel("Dropout", numbers((3, 12), dtype), axes=(1,), stream="d")


def test_streams_differ_and_there_is_room_for_any_number(monkeypatch):
    monkeypatch.setattr(rank_memory, "KEY_BLOCK", 2)
    context, env = CallContext(), Env(train=True, step=1)
    places = {name: rank_memory.random_places(context, name)[0] for name in "abcde"}
    assert rank_memory.random_places(context, "b")[0].data.ptr == places["b"].data.ptr
    context.set(env)
    keys = {name: int(place.get()[0]) % 2**64 for name, place in places.items()}
    assert keys == {name: key(0, name, 1) for name in "abcde"}
    late = rank_memory.random_places(context, "late")[0]
    context.set(env)  # the same step, but of a stream more
    assert int(late.get()[0]) % 2**64 == key(0, "late", 1)
