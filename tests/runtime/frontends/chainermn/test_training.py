"""Data parallel training, and metrics, over ranks: equal to one process with the whole batch."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

import symgraph as sg
from runtime.backends.device.arrays import on_host
from runtime.frontends import chainermn
from runtime.transports import ThreadCluster
from symgraph.core.errors import GraphError, RunError

BATCH, CLASSES = 12, 3


def on_ranks(p, work, name="flat"):
    with ThreadCluster(p, timeout=30) as cluster:
        return cluster.run(lambda end: work(chainermn.create_communicator(name, end)))


def network():
    x = sg.sym.FullyConnected(sg.sym.Variable("data"), num_hidden=7, name="fc1")
    x = sg.sym.FullyConnected(sg.sym.tanh(x), num_hidden=CLASSES, name="fc2")
    return sg.sym.SoftmaxOutput(x, sg.sym.Variable("label"), normalization="batch", name="softmax")


def data():
    rng = np.random.default_rng(0)
    return rng.standard_normal((BATCH, 5)).astype("float32"), rng.integers(0, CLASSES, BATCH)


def trained(comm, steps, optimizer, context=None):
    """Weights after some steps, each rank on its part of the batch and with weights of its own."""
    images, labels = data()
    begin, end = chainermn.scatter_index(BATCH, comm)
    with network().simple_bind(context, data=(end - begin, 5), label=(end - begin,)) as executor:
        params = {n: a for n, a in executor.arg_dict.items() if n.startswith("fc")}
        for name, array in params.items():
            first = np.random.default_rng([comm.rank, len(name)]).standard_normal(array.shape)
            executor.copy_params_from({name: first})
        shared = chainermn.create_multi_node_optimizer(optimizer, comm)
        shared.setup(params)
        for _ in range(steps):
            executor.forward(is_train=True, data=images[begin:end], label=labels[begin:end])
            executor.backward()
            shared.update(executor.grad_dict)
        return {n: on_host(a).copy() for n, a in params.items()}


@pytest.mark.parametrize("name", ["naive", "flat", "hierarchical", "two_dimensional"])
@pytest.mark.parametrize("steps", [1, 4])
def test_ranks_train_as_one_process(name, steps):
    """X10: the first update is a step."""
    optimizer = sg.optimizer.Adam(learning_rate=0.1)
    (want,) = on_ranks(1, lambda comm: trained(comm, steps, optimizer))
    for got in on_ranks(3, lambda comm: trained(comm, steps, optimizer), name):
        for key, array in want.items():
            np.testing.assert_allclose(got[key], array, rtol=2e-4, atol=1e-5)
    (start,) = on_ranks(1, lambda comm: trained(comm, 0, optimizer))
    assert all(np.abs(want[key] - start[key]).max() > 0.05 for key in want)


def test_all_ranks_hold_the_same_bits():
    got = on_ranks(4, lambda comm: trained(comm, 3, sg.optimizer.SGD(0.1, momentum=0.9)))
    for other in got[1:]:
        assert all(other[key].tobytes() == got[0][key].tobytes() for key in other)


def test_missing_gradients_count_as_zeros():
    def work(comm):
        params = {"a_weight": np.ones(2), "b_weight": np.ones(2)}
        shared = chainermn.create_multi_node_optimizer(sg.optimizer.SGD(1.0), comm)
        shared.setup(params)
        shared.update({"a_weight": np.full(2, 4.0)} if comm.rank else {"a_weight": None})
        return params

    for params in on_ranks(2, work):
        assert params["a_weight"].tolist() == [-1, -1]
        assert params["b_weight"].tolist() == [1, 1]


def test_a_gradient_that_cannot_be_written_has_a_mean():
    """It was a ValueError after the sum, so that other ranks had taken their step."""
    ones = np.broadcast_to(np.float32(1), (3,))
    for means in on_ranks(2, lambda comm: comm.multi_node_mean_grad({"w": ones})):
        assert means["w"].tolist() == [1, 1, 1]


def test_update_before_setup():
    def work(comm):
        with pytest.raises(RunError, match="call setup first"):
            chainermn.create_multi_node_optimizer(sg.optimizer.SGD(1.0), comm).update({})

    on_ranks(1, work)


def test_metrics_weigh_samples_and_not_ranks():
    """1 of 4 right on one rank and 1 of 1 on the other are 2 of 5, not 0.625."""
    labels, right = [np.zeros(4, int), np.zeros(1, int)], [np.array([0, 1, 1, 1]), np.array([0])]

    def work(comm):
        metric = chainermn.create_multi_node_evaluator(sg.metric.Accuracy(), comm)
        metric.update(labels[comm.rank], right[comm.rank])
        found = metric.get()
        metric.reset()
        return found, metric.get()

    for found, nothing in on_ranks(2, work):
        assert found == ("accuracy", 0.4)
        assert np.isnan(nothing[1])


def test_metrics_that_differ_between_ranks_are_an_error():
    """It was a ValueError of `zip`, or the sum of unlike figures."""

    def work(comm):
        metric = sg.metric.create(["acc", "mse"][comm.rank])
        with pytest.raises(GraphError, match=r"is \['mse'\] on rank 1, but \['accuracy'\]"):
            chainermn.create_multi_node_evaluator(metric, comm).get()

    on_ranks(2, work)


def test_several_metrics_are_told_as_lists():
    """A composite metric has no sum of its own: `get` was an AttributeError."""

    def work(comm):
        metric = chainermn.create_multi_node_evaluator(sg.metric.create(["acc", "mse"]), comm)
        metric.update(np.zeros(1 + comm.rank), np.full(1 + comm.rank, float(comm.rank)))
        return metric.get()

    for found in on_ranks(2, work):
        assert found == (["accuracy", "mse"], [1 / 3, 2 / 3])


@pytest.mark.parametrize("name", ["f1", "mcc", "pcc", "pearsonr", "perplexity"])
def test_metrics_of_tables_are_those_of_all_samples(name):
    """Their sums are arrays, of PCC's a larger one on a rank that has seen more classes."""
    metric = sg.metric.create(name, **({"ignore_label": None} if name == "perplexity" else {}))
    labels = np.array([0, 1, 1, 0, 1, 2 if name == "pcc" else 0])
    scores = np.abs(np.random.default_rng(0).standard_normal((6, 3 if name == "pcc" else 2)))
    preds = scores[:, 0] if name == "pearsonr" else scores / scores.sum(axis=1, keepdims=True)
    metric.update(labels, preds)

    def work(comm):
        shared = chainermn.create_multi_node_evaluator(deepcopy(metric), comm)
        shared.reset()
        if comm.rank < 2:  # the last one has no samples
            part = slice(0, 4) if comm.rank == 0 else slice(4, 6)
            shared.update(labels[part], preds[part])
        return shared.get()

    for found in on_ranks(3, work):
        assert found == (metric.name, pytest.approx(metric.get()[1]))
