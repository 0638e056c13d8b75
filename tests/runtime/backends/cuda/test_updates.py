"""Norms and updates on a GPU's arrays, against the optimizers' own code."""

from __future__ import annotations

import math

import numpy as np
import pytest

from runtime.backends.cuda.tables import table_of
from runtime.backends.updates import prepare, squared_norm, squared_norms, step_of
from symgraph.frontend import optimizer
from tests.fakes.fake_cupy import fake_cupy
from tests.runtime.backends.cuda.calls import numbers, on_gpu, whole
from tests.runtime.backends.cuda.emulation import MISSING, compiler

pytestmark = [pytest.mark.every(6), pytest.mark.skipif(compiler() is None, reason=MISSING)]


REALS = ["float32", "float64"]  # parameters have no others


@pytest.fixture
def cupy():
    with fake_cupy() as module:
        yield module


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("shape", [(1,), (3, 1003), (20_001,)], ids=str)
def test_the_squared_norm(cupy, dtype, shape):
    x = numbers(shape, dtype)
    found = squared_norm(cupy, on_gpu(x))
    assert found == squared_norm(cupy, on_gpu(x))
    assert found == pytest.approx(squared_norm(np, x), rel=1e-13)


def test_norms_of_several_have_the_bits_that_each_has_alone(cupy):
    gradients = [on_gpu(numbers((n, 41), dtype)) for n in (1, 300, 7) for dtype in REALS]
    alone = [squared_norm(cupy, gradient) for gradient in gradients]
    assert squared_norms(cupy, gradients).get().tolist() == alone
    assert squared_norms(cupy, []).get().tolist() == []


def test_alike_parameters_on_two_cards():
    """Each card's tables are in its own memory, even if another's gave back the same addresses."""
    with fake_cupy(cards=2) as cupy:
        for card in range(2):
            with cupy.cuda.Device(card):
                squares = squared_norms(cupy, [on_gpu(numbers((n, 4))) for n in (3, 1)])
                assert squares.get()[1] == pytest.approx(squared_norm(np, numbers((1, 4))))
                assert table_of(cupy, ((8, 16, 1),), 1, 1).device.id == card


def test_the_norm_of_what_has_diverged(cupy):
    x = numbers(100)
    x[50] = np.inf
    assert squared_norm(cupy, on_gpu(x)) == math.inf
    x[60] = np.nan
    assert math.isnan(squared_norm(cupy, on_gpu(x)))


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize(("decay", "clip"), [(0.0, None), (0.01, 0.5)])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sgd", {}),
        ("sgd", {"momentum": 0.9}),
        ("nag", {"momentum": 0.9}),
        ("adam", {}),
        ("adam", {"beta1": 0.5, "epsilon": 0.1}),
        ("adamw", {"beta1": 0.5, "epsilon": 0.1}),
    ],
)
def test_updates_are_the_optimizers(cupy, name, settings, decay, clip, dtype):
    made = optimizer.create(
        name, learning_rate=0.3, wd=decay, clip_gradient=clip, rescale_grad=0.5, **settings
    )
    here = numbers((3, 303), dtype, 9)
    there, own = on_gpu(here), made.state("a_weight", here)
    other = {slot: on_gpu(zeros) for slot, zeros in own.items()}
    for count in range(1, 4):
        grad = numbers((3, 303), dtype, count)
        made.apply(np, "a_weight", here, grad, own, count, scale=0.7)
        given = cupy, "a_weight", there, on_gpu(grad), other, count
        step = step_of(made, *given, {})
        if step is None:
            made.apply(*given, scale=0.7)
        else:
            prepare(cupy, [step])(0.7)
    near = {"float32": 3e-6, "float64": 1e-13}[dtype]
    for slot, array in other.items():
        np.testing.assert_allclose(array.get(), own[slot], near, near)
    np.testing.assert_allclose(there.get(), here, near, near)
    assert all(map(whole, (there, *other.values()))) or name == "nag"


def test_a_gradient_that_is_no_number_is_not_hidden(cupy):
    weight, grad = on_gpu(numbers(10)), numbers(10)
    grad[3] = np.nan
    made = optimizer.create("sgd", learning_rate=0.1, clip_gradient=1.0)
    step = step_of(made, cupy, "a_weight", weight, on_gpu(grad), {}, 1, {})
    assert step is not None
    prepare(cupy, [step])(1.0)
    assert np.isnan(weight.get()[3])
