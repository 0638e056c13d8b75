"""Modules in a row, and losses in Python."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as mx
from symgraph.core.errors import ConfigError, GraphError, RunError

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(24, 5)).astype("float32")
CLASSES = POINTS[:, :3].argmax(axis=1)


def batches():
    return mx.io.NDArrayIter(POINTS, CLASSES, 8)


def lower():
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=6, name="fc1")
    return mx.sym.tanh(x, name="tanh")


def upper(x=None):
    x = mx.sym.Variable("data") if x is None else x
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=3, name="fc2"), name="softmax")


def row():
    first = mx.mod.Module(lower(), label_names=None)
    return (
        mx.mod.SequentialModule()
        .add(first)
        .add(mx.mod.Module(upper()), take_labels=True, auto_wiring=True)
    )


def test_two_modules_in_a_row_learn_what_one_does():
    settings = {"optimizer_params": {"learning_rate": 0.5, "momentum": 0.9}, "num_epoch": 3}
    with row() as two, mx.mod.Module(upper(lower())) as one:
        for module in (one, two):
            module.fit(batches(), batches(), initializer=mx.init.Xavier(), **settings)
            assert (module.optimizer_initialized, module.inputs_need_grad) == (True, False)
        wanted, found = one.get_params()[0], two.get_params()[0]
        assert wanted.keys() == found.keys()
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)
        assert two.score(batches(), "acc") == one.score(batches(), "acc")
        assert two.predict(batches()).shape == (24, 3)
        assert (two.data_names, two.output_names) == (["data"], ["softmax_output"])
        assert two.output_shapes == [("softmax_output", (8, 3))]


def test_a_row_takes_parameters_and_refuses_others():
    given = {"fc1_weight": np.ones((6, 5)), "fc1_bias": np.ones(6)}
    given |= {"fc2_weight": np.ones((3, 6)), "fc2_bias": np.ones(3)}
    with row() as module:
        with pytest.raises(TypeError, match="has modules, not 3"):
            module.add(3)
        it = batches()
        module.bind(it.provide_data, it.provide_label, inputs_need_grad=True)
        with pytest.raises(GraphError, match="no parameter 'w' in any module"):
            module.init_params(arg_params=given | {"w": np.ones(1)})
        module.init_params(arg_params=given, force_init=True)
        module.forward(it.next())
        module.backward()
        assert module.get_input_grads()[0].shape == (8, 5)
        assert float(module.get_params()[0]["fc2_bias"].sum()) == 3
    twice = mx.mod.SequentialModule()
    with pytest.raises(RunError, match="the SequentialModule is empty"):
        twice.bind([("data", (8, 5))])
    for _ in range(2):
        twice.add(
            mx.mod.Module(
                mx.sym.relu(
                    mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=5, name="fc")
                ),
                label_names=None,
            ),
            auto_wiring=True,
        )
    with twice:
        twice.bind([("data", (8, 5))])
        with pytest.raises(GraphError, match="modules 0 and 1 both have a 'fc_weight'"):
            twice.init_params()


# -- modules of a user's own -----------------------------------------------------------------------


class Residual(mx.mod.BaseModule):
    """A module's outputs plus its inputs, as in MXNet's example stochastic-depth.

    Like that one it has what MXNet asks of a module, and no more.
    """

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    data_names = property(lambda self: self.inner.data_names)
    output_names = property(lambda self: self.inner.output_names)
    data_shapes = property(lambda self: self.inner.data_shapes)
    label_shapes = property(lambda self: self.inner.label_shapes)
    output_shapes = property(lambda self: self.inner.output_shapes)

    def bind(self, *args, **kwargs):
        self.inner.bind(*args, **kwargs)
        self.binded = True

    def init_params(self, *args, **kwargs):
        self.inner.init_params(*args, **kwargs)

    def init_optimizer(self, *args, **kwargs):
        self.inner.init_optimizer(*args, **kwargs)

    def get_params(self):
        return self.inner.get_params()

    def forward(self, data_batch, is_train=None):
        self.inner.forward(data_batch, is_train)
        self.outputs = [
            x + y for x, y in zip(data_batch.data, self.inner.get_outputs(), strict=True)
        ]

    def backward(self, out_grads=None):
        self.inner.backward(out_grads)
        self.grads = [x + y for x, y in zip(out_grads, self.inner.get_input_grads(), strict=True)]

    def update(self):
        self.inner.update()

    def update_metric(self, eval_metric, labels):
        eval_metric.update(labels, self.outputs)

    def get_outputs(self, merge_multi_context=True):
        return self.outputs

    def get_input_grads(self, merge_multi_context=True):
        return self.grads


def test_a_users_module_with_what_mxnet_asks_for_trains_in_a_row():
    """It could not even be made: MXNet has defaults where symgraph had abstract methods."""

    def middle(x):
        return mx.sym.tanh(mx.sym.FullyConnected(x, num_hidden=6, name="fcm"))

    row = mx.mod.SequentialModule()
    row.add(mx.mod.Module(lower(), label_names=None))
    residual = Residual(mx.mod.Module(middle(mx.sym.Variable("data")), label_names=None))
    assert (residual.binded, residual.for_training) == (False, False)
    row.add(residual, auto_wiring=True)
    row.add(mx.mod.Module(upper()), take_labels=True, auto_wiring=True)
    x = lower()
    settings = {"optimizer_params": {"learning_rate": 0.5}, "num_epoch": 2}
    with row, mx.mod.Module(upper(x + middle(x))) as one:
        for each in (one, row):
            each.fit(batches(), batches(), initializer=mx.init.Xavier(), **settings)
        for name, wanted in one.get_params()[0].items():
            np.testing.assert_allclose(row.get_params()[0][name], wanted, rtol=1e-5, atol=1e-6)
        with pytest.raises(NotImplementedError, match="Residual has no install_monitor"):
            row.install_monitor(mx.mon.Monitor(1))
        padded = mx.io.NDArrayIter(np.zeros((12, 6), "float32"), np.zeros(12), 8)
        assert residual.predict(padded).shape == (12, 6)
        counted = mx.metric.Accuracy()
        residual.score(padded, counted)
        assert counted.num_inst == 16  # as in MXNet: its method is not told of the padding


# -- losses in Python ------------------------------------------------------------------------------


def cross_entropy_gradient(scores, labels):
    """What SoftmaxOutput passes on."""
    gradient = mx.nd.softmax(scores).asnumpy()
    gradient[np.arange(len(gradient)), labels.asnumpy().astype(int)] -= 1
    return gradient


def test_a_loss_in_python_trains_as_the_operator_does():
    scores = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc2")
    loss = mx.mod.PythonLossModule(grad_func=cross_entropy_gradient)
    module = mx.mod.SequentialModule()
    module.add(mx.mod.Module(scores, label_names=None)).add(
        loss, take_labels=True, auto_wiring=True
    )
    settings = {"optimizer_params": {"learning_rate": 0.5}, "num_epoch": 2}
    with module, mx.mod.Module(upper()) as one:
        for each in (one, module):
            each.fit(batches(), initializer=mx.init.Xavier(), **settings)
        for name, wanted in one.get_params()[0].items():
            np.testing.assert_allclose(module.get_params()[0][name], wanted, rtol=1e-5, atol=1e-6)
        found = dict(module.score(batches(), "acc"))["accuracy"]
        assert found == dict(one.score(batches(), "acc"))["accuracy"]
        monitor = mx.mon.Monitor(1, pattern="fc2_output")
        module.install_monitor(monitor)
        monitor.tic()
        module.forward(batches().next())
        assert [name for _, name, _ in monitor.toc()] == ["fc2_output"]


def test_what_a_loss_in_python_lacks_is_named():
    loss = mx.mod.PythonLossModule()
    with pytest.raises(ConfigError, match="only knows 'write'"):
        loss.bind([("data", (2, 3))], grad_req="add")
    with pytest.raises(GraphError, match=r"data_shapes describes \['x'\]"):
        loss.bind([("x", (2, 3))])
    loss.bind([("data", (2, 3))], [("softmax_label", (2,))])
    with pytest.raises(RunError, match="has no labels"):
        loss.forward(mx.io.DataBatch([np.ones((2, 3))]))
    loss.forward(mx.io.DataBatch([np.ones((2, 3))], [np.zeros(2)]))
    with pytest.raises(ConfigError, match="pyloss_output: give grad_func"):
        loss.backward()
    with pytest.raises(ConfigError, match="one data name and one label name"):
        mx.mod.PythonLossModule(data_names=["a", "b"])
