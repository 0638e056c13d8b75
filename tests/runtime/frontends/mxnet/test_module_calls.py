"""Calls that MXNet's scripts make of a module."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

import symgraph as mx
from symgraph.core.errors import ConfigError, GraphError, ShapeError

Batch = namedtuple("Batch", ["data"])
POINTS = np.random.default_rng(0).normal(size=(12, 5)).astype("float32")


def network():
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def batches():
    return mx.io.NDArrayIter(POINTS, np.arange(12) % 3, 4)


def test_any_object_with_data_is_a_batch():
    """As in MXNet's tutorial on predicting with a loaded model."""
    params = {"fc_weight": mx.nd.ones((3, 5)), "fc_bias": mx.nd.zeros(3)}
    with mx.mod.Module(symbol=network(), context=mx.cpu(), label_names=None) as module:
        module.bind(
            for_training=False, data_shapes=[("data", (1, 5))], label_shapes=module._label_shapes
        )
        module.set_params(params, {}, allow_missing=True)
        module.forward(Batch([mx.nd.array(POINTS[:1])]))
        found = module.get_outputs()[0].asnumpy()
        assert found.shape == (1, 3)
        ((same,),) = module.get_outputs(merge_multi_context=False)
        assert (same == found).all()
        with pytest.raises(TypeError, match="a list of arrays named data, not a ndarray"):
            module.forward(POINTS[:1])
        with pytest.raises(TypeError, match="data of a batch must be a list"):
            module.forward(Batch(POINTS[:1]))


def test_arrays_of_a_module_are_ndarrays():
    it = batches()
    with mx.mod.Module(network()) as module:
        module.bind(it.provide_data, it.provide_label, inputs_need_grad=True)
        module.init_params(mx.init.One())
        batch = it.next()
        module.forward_backward(batch)
        arrays = [*batch.data, *module.get_outputs(), *module.get_input_grads()]
        arrays += [*module.get_params()[0].values(), *module.grad_dict.values()]
        arrays += [module.predict(it), *next(module.iter_predict(it))[0]]
        assert all(type(a.asnumpy()) is np.ndarray for a in arrays)

        def right(label, pred):
            return (pred.argmax(axis=1) == label).mean()

        class Shapes(mx.metric.EvalMetric):
            def update(self, labels, preds):
                self.sum_metric += len(labels[0].asnumpy()) + len(preds[0].asnumpy())
                self.num_inst += 1

        assert 0 <= dict(module.score(it, mx.metric.np(right)))["right"] <= 1
        assert module.score(it, Shapes("shapes")) == [("shapes", 8)]


def test_reshape_keeps_what_is_learnt():
    """MXNet's test_module_reshape."""
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=20, name="fc")
    with mx.mod.Module(x, label_names=None) as module:
        module.bind([("data", (7, 20))])
        module.init_params()
        module.init_optimizer(optimizer_params={"learning_rate": 1})
        for rows, bias in ((7, -1), (14, -3)):
            if rows > 7:
                module.reshape([("data", (rows, 20))])
            module.forward(mx.io.DataBatch([mx.nd.ones((rows, 20))]))
            module.backward([mx.nd.ones((rows, 20))])
            module.update()
            assert module.get_outputs()[0].shape == (rows, 20)
            assert (module.get_params()[0]["fc_bias"].asnumpy() == bias).all()


def test_update_without_a_pass_changes_what_decays_alone():
    it = batches()
    settings = {"learning_rate": 0.5, "wd": 0.5}
    with mx.mod.Module(network()) as module:
        module.bind(it.provide_data, it.provide_label)
        module.init_params(mx.init.Uniform(1))
        module.init_optimizer(optimizer_params=settings, kvstore=mx.kvstore.create("device"))
        before = module.get_params()[0]
        module.update()
        after = module.get_params()[0]
        np.testing.assert_allclose(after["fc_weight"], 0.75 * before["fc_weight"], rtol=1e-6)


def test_states_stay_until_they_are_set():
    """MXNet's test_module_states."""
    state = mx.sym.Variable("state")
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="fc")
    net = mx.sym.tanh(x + state, name="next")
    with mx.mod.Module(net, label_names=None, state_names=["state"]) as module:
        module.bind([("data", (2, 3))], for_training=False)
        module.init_params()
        assert [*module.get_params()[0]] == ["fc_weight", "fc_bias"]
        batch = mx.io.DataBatch([mx.nd.zeros((2, 3))])
        for want in (0.0, np.tanh(1.0), np.tanh(np.tanh(1.0))):
            module.forward(batch)
            np.testing.assert_allclose(module.get_outputs()[0], np.full((2, 4), want), rtol=1e-6)
            if want:
                module.set_states(module.get_outputs(merge_multi_context=False))
            else:
                module.set_states(value=1)
        assert module.get_states()[0].shape == (2, 4)
        with pytest.raises(GraphError, match="either states or a value"):
            module.set_states()
        with pytest.raises(GraphError, match="2 arrays for the states"):
            module.set_states([1, 2])
        with pytest.raises(GraphError, match=r"'state' of shape \(2, 4\) is given \(3,\)"):
            module.set_states([np.ones(3)])
    with pytest.raises(GraphError, match="state_names: no argument 'stat'; did you mean 'state'"):
        mx.mod.Module(net, state_names=["stat"])
    wide = mx.sym.broadcast_add(x, mx.sym.Variable("state", shape=(1, 4)))
    module = mx.mod.Module(wide, label_names=None, state_names=["state"])
    with pytest.raises(ShapeError, match=r"input 'state' of shape \(1, 4\) does not have"):
        module.bind([("data", (2, 3))])


def test_the_seed_of_mxnet_is_that_of_a_module_without_its_own():
    drop = mx.sym.Dropout(mx.sym.Variable("data"), p=0.5)

    def masks():
        mx.random.seed(7)
        module.forward(mx.io.DataBatch([mx.nd.ones((4, 16))]), is_train=True)
        return module.get_outputs()[0].tobytes()

    with mx.mod.Module(drop, label_names=None) as module:
        module.bind([("data", (4, 16))])
        module.init_params()
        assert masks() == masks()
    mx.random.seed(0)


def test_stores_are_names():
    assert mx.kv.create() == mx.kvstore.create("local")
    store = mx.kvstore.create("device")
    assert (store.type, store.rank, store.num_workers) == ("device", 0, 1)
    with pytest.raises(ConfigError, match="kvstore='dist_sync': a module runs in one process"):
        mx.kvstore.create("dist_sync")
    with pytest.raises(ConfigError, match="kvstore='locl'; did you mean 'local'"):
        mx.kvstore.create("locl")
    with pytest.raises(ConfigError, match="gradients are not compressed"):
        mx.mod.Module(network(), compression_params={"type": "2bit"})


def test_the_current_context_is_a_modules_and_an_executors():
    with mx.cpu(2):
        module = mx.mod.Module(network())
        executor = network().simple_bind(data=(2, 5))
    with executor, module:
        module.bind([("data", (2, 5))], for_training=False)
        assert [*module.plan.devices] == [*executor.plan.devices] == [mx.cpu(2)]
