"""A small network, its data, and modules of it, for tests of modules."""

from __future__ import annotations

from typing import Any

import numpy as np

import symgraph as mx
from symgraph.frontend.io import NDArrayIter
from symgraph.frontend.name import NameManager

TWO = [mx.cpu(0), mx.cpu(1)]
GROUPS = {"a": mx.cpu(0), "b": mx.cpu(1)}
ON_GPUS = {"a": mx.gpu(0), "b": mx.gpu(1)}


def network(dropout: float = 0.0) -> mx.Symbol:
    with NameManager():
        with mx.AttrScope(ctx_group="a"):
            x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
            x = mx.sym.Activation(x, act_type="tanh", name="act")
            if dropout:
                x = mx.sym.Dropout(x, p=dropout, name="drop")
        with mx.AttrScope(ctx_group="b"):
            x = mx.sym.FullyConnected(x, num_hidden=3, name="fc2")
            return mx.sym.SoftmaxOutput(x, name="softmax")


def samples(count: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 4)).astype("float32"), rng.integers(0, 3, count)


def batches(count: int = 10, size: int = 4) -> NDArrayIter:
    return NDArrayIter(*samples(count), batch_size=size)


def ready(symbol: mx.Symbol | None = None, **settings: Any) -> mx.mod.Module:
    """A module of `network` with first values and an optimizer."""
    module = mx.mod.Module(network() if symbol is None else symbol, **settings)
    it = batches()
    module.bind(it.provide_data, it.provide_label)
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer_params={"learning_rate": 0.5, "momentum": 0.9})
    return module


def fitted(symbol: mx.Symbol | None = None, epochs: int = 2, **settings: Any) -> dict[str, Any]:
    with mx.mod.Module(network() if symbol is None else symbol, **settings) as module:
        module.fit(
            batches(),
            num_epoch=epochs,
            initializer=mx.init.Xavier(),
            optimizer="adam",
            optimizer_params={"learning_rate": 0.1},
        )
        return module.get_params()[0]


def same_bits(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(a[n].tobytes() == b[n].tobytes() for n in a)


def train_both_ways(whole: Any, parts: Any, batch: Any) -> None:
    """A step of one module, and its three parts of another: their outputs have the same bits."""
    whole.train_batch(batch)
    parts.forward(batch)
    parts.backward()
    parts.update()
    for a, b in zip(whole.get_outputs(), parts.get_outputs(), strict=True):
        assert a.tobytes() == b.tobytes()
