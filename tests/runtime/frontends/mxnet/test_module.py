"""Modules: MXNet's numbers from MXNet's calls, and the same ones on every device and schedule."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symgraph as mx
from runtime.backends.device.arrays import on_host
from runtime.frontends.mxnet import module_binding
from runtime.frontends.mxnet.bound_network import BoundNetwork
from symgraph.core.errors import ConfigError, GraphError, RunError, ShapeError
from symgraph.frontend.io import DataBatch, NDArrayIter
from symgraph.frontend.name import NameManager
from tests.helpers.gpus import everywhere
from tests.helpers.modules import (
    GROUPS,
    ON_GPUS,
    TWO,
    batches,
    fitted,
    network,
    ready,
    same_bits,
    samples,
    train_both_ways,
)

MXNET = Path(__file__).parents[3] / "symgraph" / "data" / "mxnet_module.npz"


@pytest.fixture(scope="module")
def mxnet() -> Any:
    """What MXNet 1.9.1 learnt; see data/write_mxnet.py."""
    with np.load(MXNET) as arrays:
        return dict(arrays)


# -- numbers -------------------------------------------------------------------------------------


@pytest.mark.every(4)
@everywhere(ON_GPUS, cpus=GROUPS)
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("kind", ["sgd", "adam", "rmsprop", "adagrad", "ftrl", "lamb"])
def test_fit_learns_what_mxnet_learns(kind, micro_batches, groups, mxnet):
    """Parameters, metrics after each batch and predictions, with the last batch padded."""
    figures: list[list[float]] = []
    module = mx.mod.Module(
        network(),
        context=[*groups.values()],
        group2ctxs=groups,
        micro_batches=micro_batches,
        schedule="1f1b",
    )
    it = NDArrayIter(mxnet["data"], mxnet["label"], batch_size=4)
    module.fit(
        it,
        eval_metric=["acc", "ce"],
        optimizer=kind,
        num_epoch=2,
        optimizer_params=json.loads(str(mxnet[f"{kind}/settings"])),
        arg_params={n.removeprefix("first/"): a for n, a in mxnet.items() if "first/" in n},
        batch_end_callback=lambda p: figures.append(
            [value for _, value in p.eval_metric.get_name_value()]
        ),
    )
    np.testing.assert_allclose(figures, mxnet[f"{kind}/figures"], rtol=2e-5)
    for name, array in module.get_params()[0].items():
        np.testing.assert_allclose(array, mxnet[f"{kind}/{name}"], rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(module.predict(it), mxnet[f"{kind}/predicted"], rtol=5e-5, atol=1e-6)


@pytest.mark.every(6)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_fit_is_the_same_on_every_placement_and_schedule(micro_batches):
    how = {"micro_batches": micro_batches}
    one = fitted(network(0.5), **how)
    assert same_bits(one, fitted(network(0.5), **how, context=TWO, group2ctxs=[GROUPS]))
    swapped = {"a": mx.cpu(1), "b": mx.cpu(0)}
    assert same_bits(one, fitted(network(0.5), **how, group2ctxs=swapped, schedule="1f1b"))
    assert same_bits(one, fitted(network(0.5), **how, context=TWO, strategy="uniform"))
    assert not same_bits(one, fitted(network(0.5), **how, seed=1))


@pytest.mark.every(4)
@everywhere(ON_GPUS, cpus=GROUPS)
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_the_parts_of_a_step_are_the_step(schedule, micro_batches, groups):
    settings = {
        "group2ctxs": groups,
        "schedule": schedule,
        "micro_batches": micro_batches,
    }
    with ready(network(0.5), **settings) as whole, ready(network(0.5), **settings) as parts:
        for batch in batches(12):
            train_both_ways(whole, parts, batch)
        assert same_bits(whole.get_params()[0], parts.get_params()[0])
        parts.train_batch(batch)  # the two ways can be mixed: one optimizer state
        whole.forward_backward(batch)
        whole.update()
        assert same_bits(whole.get_params()[0], parts.get_params()[0])


@everywhere({"a": mx.gpu(0), "b": [mx.gpu(0), mx.gpu(1)]}, cpus={"a": mx.cpu(0), "b": TWO})
@pytest.mark.parametrize("mark", ["shard", "replicate"])
def test_groups_on_two_devices(mark, groups):
    """On CPUs shards are views of the parameter's array; copies stay equal."""
    with NameManager():
        with mx.AttrScope(ctx_group="a"):
            x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
            x = mx.sym.Activation(x, act_type="tanh", name="act")
        with mx.AttrScope(ctx_group="b", **{mark: "2"}):
            x = mx.sym.FullyConnected(x, num_hidden=4, name="fc2")
        with mx.AttrScope(ctx_group="a"):
            symbol = mx.sym.SoftmaxOutput(x, name="softmax")
    want = fitted(network_of_four())
    got = fitted(symbol, group2ctxs=groups)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5)
    with ready(symbol, group2ctxs=groups) as parts, ready(symbol, group2ctxs=groups) as whole:
        for batch in batches(8):
            parts.forward_backward(batch)
            assert parts.grad_dict["fc2_weight"].shape == (4, 8)
            parts.update()
            whole.train_batch(batch)
        assert same_bits(parts.get_params()[0], whole.get_params()[0])
        parts.set_params(*whole.get_params())
        before = parts.predict(samples()[0][:4])
        parts.set_params({n: np.zeros_like(a) for n, a in whole.get_params()[0].items()})
        assert np.ptp(parts.predict(samples()[0][:4])) == 0 < np.ptp(before)


def network_of_four() -> mx.Symbol:
    with NameManager():
        x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
        x = mx.sym.Activation(x, act_type="tanh", name="act")
        x = mx.sym.FullyConnected(x, num_hidden=4, name="fc2")
        return mx.sym.SoftmaxOutput(x, name="softmax")


# -- gradients -----------------------------------------------------------------------------------


@everywhere(ON_GPUS, none=None)
def test_gradients_are_written_or_added_and_can_be_changed(groups):
    with mx.mod.Module(network(), group2ctxs=groups) as module:
        it = batches()
        requests = {"fc1_weight": "add", "fc2_weight": "write"}
        module.bind(it.provide_data, it.provide_label, grad_req=requests)
        module.init_params(mx.init.Xavier())
        batch = next(it)
        module.forward_backward(batch)
        first = {n: a.copy() for n, a in module.grad_dict.items()}
        assert first.keys() == {"fc1_weight", "fc2_weight"}
        module.forward_backward(batch)
        second = {n: on_host(a) for n, a in module.grad_dict.items()}
        np.testing.assert_allclose(second["fc1_weight"], 2 * on_host(first["fc1_weight"]))
        np.testing.assert_array_equal(second["fc2_weight"], on_host(first["fc2_weight"]))
        module.init_optimizer(optimizer_params={"learning_rate": 1.0, "rescale_grad": 1.0})
        before = module.get_params()[0]
        module.grad_dict["fc1_weight"][:] = 3.0
        module.update()
        after = module.get_params()[0]
        np.testing.assert_allclose(after["fc1_weight"], before["fc1_weight"] - 3.0, rtol=1e-6)
        assert same_bits({"b": after["fc1_bias"]}, {"b": before["fc1_bias"]})
        with pytest.raises(ConfigError, match="grad_req of 'fc1_weight' is 'add', but a whole"):
            module.train_batch(batch)


@everywhere({"a": mx.gpu(0)}, none=None)
def test_head_gradients_and_gradients_of_inputs(groups):
    with mx.AttrScope(ctx_group="a"):
        x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, no_bias=True, name="fc")
    with mx.mod.Module(x, label_names=None, group2ctxs=groups) as module:
        module.bind([("data", (2, 4))], inputs_need_grad=True)
        module.init_params(mx.init.Xavier())
        data, head = np.ones((2, 4), "float32"), np.arange(6.0).reshape(2, 3)
        module.forward(DataBatch([data]))
        module.backward([head])
        weight = module.get_params()[0]["fc_weight"]
        np.testing.assert_allclose(module.get_input_grads()[0], head @ weight, rtol=1e-5)
        gradient = on_host(module.grad_dict["fc_weight"])
        np.testing.assert_allclose(gradient, head.T @ data, rtol=1e-5)
        module.forward(DataBatch([data]))
        with pytest.raises(RunError, match="'fc_output' is not a loss, so backward needs its head"):
            module.backward()
        module.init_optimizer()
        with pytest.raises(GraphError, match="'fc_output' is not a loss, so fit cannot train it"):
            module.train_batch(DataBatch([data]))


def test_requests_for_gradients_may_be_a_list():
    """In the order of the parameters, as MXNet's may."""
    (batch, *_) = batches()
    gradients = []
    names = [n for n in network().list_arguments() if n not in ("data", "softmax_label")]
    for request in ("write", ["write"] * (len(names) - 1) + ["null"]):
        with ready() as module:
            shapes = module.data_shapes, module.label_shapes
            module.bind(*shapes, force_rebind=True, grad_req=request)
            module.forward_backward(batch)
            gradients.append({name: on_host(a).copy() for name, a in module.grad_dict.items()})
    last = gradients[0].pop(names[-1])
    assert last.any()
    assert same_bits(*gradients)
    with ready() as module, pytest.raises(GraphError, match=r"grad_req has 1 entries for \d param"):
        module.bind(*shapes, force_rebind=True, grad_req=["write"])


def test_fixed_parameters_stay():
    module = ready(fixed_param_names=["fc1_weight"])
    before = module.get_params()[0]
    module.train_batch(next(batches()))
    after = module.get_params()[0]
    changed = {n for n in before if not np.array_equal(before[n], after[n])}
    assert changed == {"fc1_bias", "fc2_weight", "fc2_bias"}


def test_a_network_of_which_nothing_is_trained_can_be_fitted():
    """`fit` spoke of `plan(..., wrt=None)`; forward, backward and update worked."""
    fixed = ready(fixed_param_names=["fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"])
    before = fixed.get_params()[0]
    fixed.fit(batches(), num_epoch=1)
    assert same_bits(before, fixed.get_params()[0])
    fixed.train_batch(next(batches()))
    assert fixed.get_outputs()[0].shape == (4, 3)


# -- using ---------------------------------------------------------------------------------------


@everywhere(ON_GPUS, none=None)
def test_score_and_predict_leave_padding_out(groups):
    module, it = ready(group2ctxs=groups), batches(10, 4)
    whole = module.predict(samples()[0])
    assert whole.shape == (10, 3)
    np.testing.assert_allclose(module.predict(it), whole, rtol=1e-6)
    right = (whole.argmax(axis=1) == samples()[1]).mean()
    nll = -np.log(whole[np.arange(10), samples()[1]]).mean()
    assert module.score(it, ["acc", "ce"]) == [
        ("accuracy", pytest.approx(right)),
        ("cross-entropy", pytest.approx(nll, rel=1e-6)),
    ]
    two = module.score(it, ["acc", mx.metric.CrossEntropy()], num_batch=2)
    assert [name for name, _ in two] == ["accuracy", "cross-entropy"]
    shapes = [outputs[0].shape for outputs, *_ in module.iter_predict(it)]
    assert shapes == [(4, 3), (4, 3), (2, 3)]
    planned = module.plan
    np.testing.assert_allclose(module.predict(samples()[0][:4]), whole[:4], rtol=1e-6)
    assert module.plan is planned  # without labels it is the same network
    apart = module.predict(it, merge_batches=False)
    assert [len(outputs) for outputs in apart] == [1, 1, 1]
    assert isinstance(module.predict(it, always_output_list=True), list)


def test_a_module_for_prediction_needs_no_labels():
    trained = ready()
    module = mx.mod.Module(network(), group2ctxs=GROUPS, micro_batches=2)
    module.bind([("data", (4, 4))], for_training=False)
    module.set_params(*trained.get_params())
    data = samples()[0][:4]
    np.testing.assert_allclose(module.predict(data), trained.predict(data), rtol=1e-6)
    assert module.output_shapes == [("softmax_output", (4, 3))]
    with pytest.raises(RunError, match="not bound for training"):
        module.forward(DataBatch([data]), is_train=True)


def test_batches_of_other_shapes_are_bound_by_themselves(monkeypatch):
    module, plans = ready(), []

    def made(*given: Any) -> BoundNetwork:
        network = BoundNetwork(*given)
        plans.append(weakref.ref(network.plan))
        return network

    monkeypatch.setattr(module_binding, "BoundNetwork", made)
    data, label = samples(30)
    for size in (4, 7, 1, 7, 4):
        module.train_batch(DataBatch([data[:size]], [label[:size]]))
        assert module.get_outputs()[0].shape == (size, 3)
    assert module.data_shapes[0].shape == (4, 4)
    gc.collect()
    left = [plan.sizes for ref in plans if (plan := ref()) is not None]
    assert left == [(7,)]  # each size that had been bound stayed for ever
    with pytest.raises(ShapeError, match=r"'fc1_weight' has shape \(8, 4\), but .* it \(8, 5\)"):
        module.predict(np.zeros((4, 5), "float32"))


@pytest.mark.parametrize(
    "groups", [{"a": TWO, "b": TWO[0]}, [GROUPS, {"a": mx.cpu(2), "b": mx.cpu(3)}]]
)
def test_batches_that_copies_share_unevenly(groups):
    """One of 7 samples after one of 4 was a PlacementError: 'data[deal 2][0]' is on no stage."""
    data, label = samples(7)
    with ready() as alone, ready(group2ctxs=groups) as shared:
        for size in (4, 7, 3, 4):
            batch = DataBatch([data[:size]], [label[:size]])
            for module in (alone, shared):
                module.train_batch(batch)
            for a, b in zip(alone.get_outputs(), shared.get_outputs(), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_batch_of_fewer_samples_than_micro_batches():
    """It was an error, so a short last batch ended the training."""
    data, label = samples(8)
    with ready() as alone, ready(group2ctxs=GROUPS, micro_batches=4) as piped:
        for size in (4, 3, 1, 4):
            for module in (alone, piped):
                module.train_batch(DataBatch([data[:size]], [label[:size]]))
            np.testing.assert_allclose(piped.get_outputs()[0], alone.get_outputs()[0], rtol=1e-5)


def test_a_sequence_with_time_as_its_first_axis():
    """The batch is the second axis, and lies inside the rows of the flattened output."""
    steps, size = 3, 4
    with NameManager():
        x = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=7, output_dim=5, name="embed")
        cell = mx.rnn.LSTMCell(6)
        x, _ = cell.unroll(steps, x, layout="TNC", merge_outputs=True)
        x = mx.sym.FullyConnected(mx.sym.Reshape(x, shape=(-1, 6)), num_hidden=7, name="decode")
        label = mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
        symbol = mx.sym.SoftmaxOutput(x, label, name="softmax")
    words = np.random.default_rng(0).integers(0, 7, (steps, 10))
    it = NDArrayIter(words, np.roll(words, -1, 0), size, layout="TN")
    with mx.mod.Module(symbol, micro_batches=2, time_segment=1) as module:
        module.fit(it, eval_metric=mx.metric.Perplexity(None), num_epoch=2)
        made = module.predict(it)
        assert made.shape == (steps * (4 + 4 + 2), 7)
        module.forward(DataBatch([words], [words]), is_train=False)  # all ten at once
        first = module.get_outputs()[0].reshape(steps, 10, 7)[:, :4].reshape(-1, 7)
        np.testing.assert_allclose(made[: steps * 4], first, rtol=1e-4)


@everywhere({"a": mx.gpu(0)}, none=None)
def test_auxiliary_states_are_learnt_saved_and_used(groups, tmp_path):
    """Moving averages of a BatchNorm: by hand after one batch, and in evaluation."""
    with NameManager(), mx.AttrScope(ctx_group="a"):
        x = mx.sym.BatchNorm(mx.sym.Variable("data"), momentum=0.9, name="bn")
        x = mx.sym.FullyConnected(x, num_hidden=3, name="fc")
        symbol = mx.sym.SoftmaxOutput(x, name="softmax")
    module, it = ready(symbol, group2ctxs=groups), batches(8, 4)
    batch = next(it)
    module.forward(batch, is_train=False)
    before = module.get_outputs()[0]
    module.train_batch(batch)
    _, aux = module.get_params()
    assert aux.keys() == {"bn_moving_mean", "bn_moving_var"}
    np.testing.assert_allclose(aux["bn_moving_mean"], 0.1 * batch.data[0].mean(0), rtol=1e-5)
    module.save_checkpoint(str(tmp_path / "net"), 1)
    again = mx.mod.Module.load(str(tmp_path / "net"), 1, group2ctxs=groups)
    again.bind(it.provide_data, it.provide_label)
    for one in (module, again):
        one.forward(batch, is_train=False)
    np.testing.assert_array_equal(again.get_outputs()[0], module.get_outputs()[0])
    assert not np.array_equal(before, module.get_outputs()[0])
