"""Monitors: intermediate values of executors and modules, and that looking changes nothing."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest

import symgraph as mx


def network():
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="fc1")
    x = mx.sym.BatchNorm(x, name="norm")
    x = mx.sym.Dropout(mx.sym.tanh(x, name="tanh"), p=0.5, name="drop")
    x = mx.sym.FullyConnected(x, num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def batches():
    rng = np.random.default_rng(0)
    return mx.io.NDArrayIter(rng.normal(size=(12, 5)), rng.integers(0, 3, 12), 4)


def test_every_value_that_an_executor_computes_is_shown():
    """Each shown value is the operator's on the values shown before it, dropout included."""
    seen = {}
    shapes = {"data": (4, 5), "softmax_label": (4,)}
    with network().simple_bind(**shapes) as executor:
        executor.copy_params_from({n: mx.nd.ones(a.shape) for n, a in executor.arg_dict.items()})
        executor.arg_dict["fc1_weight"][:] = np.random.default_rng(1).normal(size=(4, 5))
        executor.set_monitor_callback(lambda name, array: seen.update({name: array}))
        executor.forward(is_train=True)
        assert [*seen] == [
            n for n in network().get_internals().list_outputs() if n.endswith("_output")
        ]
        np.testing.assert_array_equal(seen["softmax_output"], executor.outputs[0])
        np.testing.assert_array_equal(seen["tanh_output"], np.tanh(seen["norm_output"]))
        kept = seen["drop_output"].asnumpy() != 0
        assert 0 < kept.sum() < kept.size
        np.testing.assert_allclose(
            seen["drop_output"].asnumpy()[kept], 2 * seen["tanh_output"].asnumpy()[kept], 1e-6
        )
        assert executor.aux_dict["norm_moving_mean"].any()  # of one update, not of two
        mean = 0.1 * seen["fc1_output"].asnumpy().mean(axis=0)
        np.testing.assert_allclose(executor.aux_dict["norm_moving_mean"], mean, rtol=1e-5)
        executor.set_monitor_callback(lambda name, array: seen.update({name: array}), True)
        executor.forward()
        assert {"data", "fc2_bias"} < {*seen}
        assert (seen["drop_data"] == seen["tanh_output"]).all()  # what each node reads
        assert seen["fc1_data"] is seen["data"]
        assert (seen["drop_output"] == seen["tanh_output"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"context": [mx.cpu(0), mx.cpu(1)], "micro_batches": 2}])
def test_fit_with_a_monitor_learns_the_same(settings, caplog):
    caplog.set_level(logging.INFO)
    learnt = []
    for monitor in (None, mx.mon.Monitor(2, np.mean, "fc2.*|norm_moving_mean", sort=True)):
        net = (
            network()
            if not settings
            else mx.sym.SoftmaxOutput(
                mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc2"),
                name="softmax",
            )
        )
        with mx.mod.Module(net, seed=3, **settings) as module:
            module.fit(batches(), num_epoch=1, monitor=monitor)
            learnt.append({n: a.tobytes() for n, a in module.get_params()[0].items()})
    assert learnt[0] == learnt[1]
    shown = re.findall(r"Batch: +(\d+) +(\w+) ", caplog.text)
    names = ["fc2_backward_bias", "fc2_backward_weight", "fc2_bias", "fc2_output", "fc2_weight"]
    names += [] if settings else ["norm_moving_mean"]
    assert shown == [(batch, name) for batch in ("1", "3") for name in names]


def test_a_statistic_may_be_an_array_or_a_list():
    monitor = mx.mon.Monitor(1, lambda x: [x.min(), mx.nd.sum(x)], pattern="y_out")
    with mx.sym.identity(mx.sym.Variable("x"), name="y").simple_bind(x=(3,)) as executor:
        monitor.install(executor)
        monitor.tic()
        executor.forward(x=np.array([1.0, 2, 3]))
        assert monitor.toc() == [(1, "y_output", "1.0\t6.0\t")]
        assert monitor.toc() == []
        executor.forward()  # it does not look
        monitor.tic()
        assert monitor.toc() == []


def test_inputs_and_gradients_are_shown_under_mxnets_names():
    """After the batch: a parameter's gradient has the name of the node that reads it first."""
    seen = {}
    monitor = mx.mon.Monitor(1, lambda x: x.copy(), pattern="data|.*backward")
    it = batches()
    with mx.mod.Module(network(), seed=3) as module:
        module.bind(it.provide_data, it.provide_label)
        module.init_params()
        module.install_monitor(monitor)
        monitor.tic()
        batch = it.next()
        module.forward_backward(batch)
        seen = {name: text for _, name, text in monitor.toc()}
        assert {*seen} == {"data"} | {
            f"{node}_backward_{arg}"
            for node, args in {
                "fc1": "weight bias",
                "fc2": "weight bias",
                "norm": "gamma beta",
            }.items()
            for arg in args.split()
        }
        assert seen["data"].strip() == str(batch.data[0])
        assert seen["fc2_backward_bias"].strip() == str(module.grad_dict["fc2_bias"])
