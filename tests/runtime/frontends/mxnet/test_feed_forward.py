"""The model before modules: arrays in, arrays out."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as mx
from symgraph.core.errors import ConfigError, GraphError, RunError, ShapeError

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(40, 5)).astype("float32")
CLASSES = POINTS[:, :3].argmax(axis=1)


def network():
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def made(**settings):
    given = {"num_epoch": 3, "numpy_batch_size": 8, "learning_rate": 0.5} | settings
    return mx.model.FeedForward(network(), **given)


def test_a_model_learns_as_a_module_does(tmp_path):
    """On arrays, and saved, loaded and used again."""
    model = mx.model.FeedForward.create(
        network(),
        POINTS,
        CLASSES.reshape(-1, 1),
        num_epoch=3,
        numpy_batch_size=8,
        learning_rate=0.5,
        eval_data=(POINTS, CLASSES),
    )
    batches = mx.io.NDArrayIter(POINTS, CLASSES, 8, shuffle=True, last_batch_handle="roll_over")
    with mx.mod.Module(network()) as module:
        module.fit(batches, num_epoch=3, optimizer_params={"learning_rate": 0.5})
        wanted = module.predict(mx.io.NDArrayIter(POINTS, CLASSES, 8))
    found = model.predict(POINTS)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert type(found) is np.ndarray
    assert model.score(POINTS, y=CLASSES) == (found.argmax(axis=1) == CLASSES).mean()
    model.save(str(tmp_path / "m"))
    again = mx.model.FeedForward.load(str(tmp_path / "m"), 3, num_epoch=4)
    outputs, data, label = again.predict(
        mx.io.NDArrayIter(POINTS[:11], CLASSES[:11], 4), return_data=True
    )
    np.testing.assert_allclose(outputs, found[:11], rtol=1e-6)
    assert (data == POINTS[:11]).all()
    assert (label == CLASSES[:11]).all()
    again.fit(POINTS, CLASSES)  # epoch 3 alone
    assert again.begin_epoch == 3


def test_the_size_of_an_epoch():
    counted = []
    model = made(epoch_size=7, num_epoch=2)
    model.fit(
        mx.io.NDArrayIter(POINTS, CLASSES, 8), batch_end_callback=lambda p: counted.append(p.nbatch)
    )
    assert counted == [*range(7)] * 2


def test_extra_parameters():
    params = {"fc_weight": np.ones((3, 5)), "fc_bias": np.zeros(3), "other": np.ones(2)}
    with pytest.raises(GraphError, match="no parameter 'other'"):
        made(arg_params=params).predict(POINTS)
    model = made(arg_params=params, allow_extra_params=True)
    np.testing.assert_allclose(model.predict(POINTS), np.full((40, 3), 1 / 3), rtol=1e-6)


def test_a_network_for_each_bucket():
    def generate(length):
        x = mx.sym.sum(mx.sym.Variable("data"), axis=1, keepdims=True) * length
        x = mx.sym.FullyConnected(x, num_hidden=3, name="fc")
        return mx.sym.SoftmaxOutput(x, name="softmax")

    data = mx.io.NDArrayIter(POINTS, CLASSES, 8)
    data.default_bucket_key = 5
    model = mx.model.FeedForward(generate, num_epoch=1)
    model.fit(data)
    assert model.arg_params["fc_weight"].shape == (3, 1)


def test_mistakes_are_named():
    with pytest.raises(RunError, match="no parameters yet: call fit"):
        made().predict(POINTS)
    with pytest.raises(ConfigError, match="y is missing"):
        made().fit(POINTS)
    with pytest.raises(ShapeError, match=r"40 samples with labels of shape \(3,\)"):
        made().fit(POINTS, CLASSES[:3])
    with pytest.raises(ConfigError, match="num_epoch is None"):
        made(num_epoch=None).fit(POINTS, CLASSES)
    with pytest.raises(TypeError, match="made of a symbol, or of a function, not 3"):
        mx.model.FeedForward(3)
    with pytest.raises(AttributeError, match=r"symgraph\.model has no 'FeedForwrd'; did you mean"):
        _ = mx.model.FeedForwrd
