"""Mixed precision in executors: 16 bits inside, float32 in all arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from runtime.backends.device.arrays import on_host
from runtime.frontends.mxnet.executor import bind, simple_bind
from symgraph.core.context import cpu
from symgraph.core.errors import ConfigError, DTypeError
from symgraph.core.types import HALVES
from symgraph.frontend import sym
from tests.helpers.gpus import everywhere
from tests.runtime.frontends.mxnet.test_executor import ON_GPUS, PLACES, net, net_values, same

NEAR = {"float16": 4e-3, "bfloat16": 3e-2}


def values() -> dict[str, Any]:
    return {name: array.astype("float32") for name, array in net_values().items()}


def results(precision: str, groups: Any = None) -> dict[str, Any]:
    """The output and the gradients of `net`, as host arrays."""
    how: dict[str, Any] = {"group2ctx": groups, "precision": precision, "data": (5, 4)}
    with simple_bind(net(), cpu(0), **how) as executor:
        executor.copy_params_from(values())
        (before,) = executor.forward()
        (out,) = executor.forward(is_train=True)
        executor.backward()
        assert same(on_host(before), on_host(out))
        graph = executor.plan.partition.graph
        assert graph["fc2"].types[0].dtype == precision
        tables = (executor.arg_dict, executor.grad_dict, {"": out})
        assert {a.dtype.name for table in tables for a in table.values()} == {"float32"}
        return {n: on_host(a) for n, a in {**executor.grad_dict, "": out}.items()}


@everywhere(ON_GPUS, **PLACES)
@pytest.mark.parametrize("low", HALVES)
def test_results_are_near_those_of_float32(low, groups):
    want, got, alone = results("float32"), results(low, groups), results(low)
    assert got.keys() == {"data", "shared_weight", "fc2_weight", "fc2_bias", "softmax_label", ""}
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, NEAR[low], NEAR[low])
        assert same(got[name], alone[name]) or groups is ON_GPUS
    assert not same(got["fc2_weight"], want["fc2_weight"])


def test_bind_takes_a_precision():
    arrays = values()
    targets = {"fc2_weight": np.zeros_like(arrays["fc2_weight"])}
    with bind(net(), cpu(), arrays, targets, precision="float16") as executor:
        executor.forward(is_train=True)
        executor.backward()
    assert same(targets["fc2_weight"], results("float16")["fc2_weight"])


def test_losses_and_head_gradients_can_be_scaled():
    """By the caller, who divides what he gets: float16 has no numbers for gradients of 1e-9."""
    x, w = sym.Variable("data"), sym.Variable("w")
    fc = sym.FullyConnected(x, w, num_hidden=3, no_bias=True, name="fc")

    def gradient(symbol: Any, head: float | None) -> Any:
        with simple_bind(symbol, precision="float16", data=(4, 3)) as executor:
            for array in executor.arg_dict.values():
                array[:] = 0.5
            executor.forward(is_train=True)
            executor.backward(None if head is None else np.full((4, 3), head, "float32"))
            return executor.grad_dict["w"]

    def loss(scale: float) -> Any:
        label = sym.Variable("label")
        return sym.LinearRegressionOutput(fc, label, grad_scale=scale, name="loss")

    assert not gradient(loss(1e-9), None).any()
    scaled = gradient(loss(1e-9 * 2**24), None) / 2**24
    np.testing.assert_allclose(scaled, gradient(loss(1.0), None) * 1e-9, rtol=2e-3)
    assert not gradient(fc, 1e-9).any()
    np.testing.assert_allclose(gradient(fc, 1e-9 * 2**24) / 2**24, 4 * 0.5 * 1e-9, rtol=2e-3)


def test_mistakes(monkeypatch):
    with pytest.raises(ConfigError, match="unknown precision 'half'; known: 'bfloat16', 'float16'"):
        simple_bind(net(), precision="half", data=(5, 4))
    with pytest.raises(
        DTypeError, match=r"float16 needs parameters of float32, but '.*' is float64"
    ):
        bind(net(), cpu(), net_values(), precision="float16")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(DTypeError, match="bfloat16 needs the package ml_dtypes"):
        net().simple_bind(cpu(), precision="bfloat16", data=(5, 4))
