"""Norms and updates in one pass, against the optimizers' own code."""

from __future__ import annotations

import math

import numpy as np
import pytest

from runtime.backends.updates import prepare, squared_norm, step_of
from symgraph.frontend import optimizer
from symgraph.frontend.optimizer import sum_of_squares
from tests.runtime.backends.cpu.test_flat import DTYPES, numbers, placed


@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize("size", [1, 1000, (1 << 14) + 3, 200_001])
def test_the_squared_norm(dtype, size):
    x = numbers(size, dtype)
    found = squared_norm(np, x)
    assert found == squared_norm(np, placed(x))
    assert found == pytest.approx(sum_of_squares(np, x), rel=1e-13)


def test_the_norm_of_what_has_diverged():
    x = numbers(100)
    x[50] = np.inf
    assert squared_norm(np, x) == math.inf
    x[60] = np.nan
    assert math.isnan(squared_norm(np, x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("decay", "clip"), [(0.0, None), (0.01, 0.5), (0.0, 0.5), (0.01, None)])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sgd", {}),
        ("sgd", {"momentum": 0.9}),
        ("nag", {"momentum": 0.9}),
        ("adam", {}),
        ("adam", {"beta1": 0.5, "epsilon": 0.1}),
        ("adamw", {"beta1": 0.5, "epsilon": 0.1}),
        ("rmsprop", {}),
    ],
)
def test_updates_are_the_optimizers(name, settings, decay, clip, dtype):
    grads = [numbers((3, 1003), dtype, i) for i in range(3)]
    made = optimizer.create(
        name, learning_rate=0.3, wd=decay, clip_gradient=clip, rescale_grad=0.5, **settings
    )
    arrays = [numbers((3, 1003), dtype, 9) for _ in range(2)]
    states = [made.state("a_weight", array) for array in arrays]
    for count, grad in enumerate(grads, 1):
        made.apply(np, "a_weight", arrays[0], grad, states[0], count, scale=0.7)
        given = np, "a_weight", arrays[1], grad, states[1], count
        step = step_of(made, *given, {})
        if step is None:
            made.apply(*given, scale=0.7)
        else:
            prepare(np, [step])(0.7)
    tolerance = {"float32": 3e-6, "float64": 1e-13}[dtype]
    for key, state in states[0].items():
        np.testing.assert_allclose(states[1][key], state, tolerance, tolerance)
    np.testing.assert_allclose(arrays[1], arrays[0], tolerance, tolerance)


def test_a_gradient_that_is_no_number_is_not_hidden():
    weight, grad = numbers(10), numbers(10)
    grad[3] = np.nan
    made = optimizer.create("sgd", learning_rate=0.1, clip_gradient=1.0)
    step = step_of(made, np, "a_weight", weight, grad, {}, 1, {})
    assert step is not None
    prepare(np, [step])(1.0)
    assert np.isnan(weight).tolist() == np.isnan(grad).tolist()
