"""Modules beside their numbers: checkpoints, callbacks, and what mistakes are told."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import numpy as np
import pytest

import symgraph as mx
from symgraph.core.errors import ConfigError, GraphError, PlacementError, RunError, ShapeError
from symgraph.frontend.io import DataBatch
from tests.helpers.gpus import everywhere
from tests.helpers.modules import GROUPS, ON_GPUS, batches, network, ready, same_bits, samples

RATE = {"learning_rate": 0.1}

# -- checkpoints ---------------------------------------------------------------------------------


@everywhere(ON_GPUS, cpus=GROUPS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_run_goes_on_from_its_checkpoint(optimizer, groups, tmp_path):
    """The same bits as without a pause, on another placement."""
    prefix = str(tmp_path / "net")
    settings = {"learning_rate": 0.1}

    def train(module: mx.mod.Module, steps: int) -> None:
        it = batches()
        module.bind(it.provide_data, it.provide_label)
        module.init_params(mx.init.Xavier())
        module.init_optimizer(optimizer=optimizer, optimizer_params=settings)
        for _ in range(steps):
            it.reset()
            for batch in it:
                module.train_batch(batch)

    here = {"a": groups["b"], "b": groups["b"]}
    straight, paused = (mx.mod.Module(network(0.5), group2ctxs=here) for _ in range(2))
    train(straight, 4)
    train(paused, 2)
    paused.save_checkpoint(prefix, 2, save_optimizer_states=True)
    again = mx.mod.Module.load(prefix, 2, load_optimizer_states=True, group2ctxs=groups)
    assert same_bits(again.get_params()[0], paused.get_params()[0])
    train(again, 2)
    assert same_bits(again.get_params()[0], straight.get_params()[0])
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "net-0002.params",
        "net-0002.states",
        "net-symbol.json",
    ]


@everywhere(ON_GPUS, cpus=GROUPS)
def test_a_module_that_is_bound_anew_goes_on(groups):
    """With parameters and momentum, wherever a strategy places it then."""
    with ready(group2ctxs=groups) as stays, ready(group2ctxs=groups) as moves:
        for batch in batches(12):
            for module in (stays, moves):
                module.train_batch(batch)
            swapped = dict(zip(groups, reversed(groups.values()), strict=True))
            moves._options = replace(moves._options, groups=swapped)
            moves.bind(moves.data_shapes, moves.label_shapes, force_rebind=True)
            groups = swapped
        assert same_bits(stays.get_params()[0], moves.get_params()[0])
        assert moves.plan.rank_of("fc1_weight") != stays.plan.rank_of("fc1_weight")


def test_a_module_whose_new_shapes_are_refused_stays_as_it_was():
    """It kept the shapes and for_training of a bind that had failed.

    The next forward(batch) then ran a network silently that was not bound for training.
    """
    (first, *_) = batches()
    with ready() as module, ready() as other:
        shapes = module.data_shapes, module.label_shapes
        with pytest.raises(ShapeError, match=r"'\w+' has shape .*, but these inputs make it"):
            module.bind([("data", (4, 9))], for_training=False, force_rebind=True)
        with pytest.raises(GraphError, match="data_shapes describes"):
            module.bind([("date", (4, 4))], inputs_need_grad=True, force_rebind=True)
        assert (module.data_shapes, module.label_shapes) == shapes
        assert (module.for_training, module.inputs_need_grad) == (True, False)
        for each in (module, other):
            each.forward(first)
            each.backward()
            each.update()
        assert same_bits(module.get_params()[0], other.get_params()[0])


def test_a_module_can_be_bound_after_a_mistake():
    before = threading.active_count()
    with mx.mod.Module(network()) as module:
        with pytest.raises(GraphError, match="data_shapes describes"):
            module.bind([("date", (4, 4))])
        assert not module.binded
        module.bind([("data", (4, 4))], [("softmax_label", (4,))])
        assert module.binded
    assert threading.active_count() <= before


def test_optimizer_states_of_another_kind_are_refused(tmp_path):
    """Without momentum, nothing was kept that momentum could go on with."""
    module, other = ready(), ready()
    module.init_optimizer(optimizer="sgd", force_init=True)
    module.train_batch(next(batches()))
    module.save_optimizer_states(str(tmp_path / "x.states"))
    module.load_optimizer_states(str(tmp_path / "x.states"))
    with pytest.raises(ConfigError, match=r"x\.states has no 'fc1_weight/mom'"):
        other.load_optimizer_states(str(tmp_path / "x.states"))
    other.init_optimizer(optimizer="lamb", force_init=True)
    module.init_optimizer(optimizer="adam", force_init=True)
    module.train_batch(next(batches()))
    module.save_optimizer_states(str(tmp_path / "y.states"))
    with pytest.raises(ConfigError, match="states of the optimizer Adam, not of LAMB"):
        other.load_optimizer_states(str(tmp_path / "y.states"))  # with arrays of the same names


def test_optimizer_states_of_other_shapes_are_refused(tmp_path):
    """They were told by a rank at the next update."""
    data = mx.sym.Variable("data")
    wide = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=4, name="fc1"), name="s")
    narrow = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=3, name="fc1"), name="s")
    file = str(tmp_path / "x.states")
    for symbol in (wide, narrow):
        with mx.mod.Module(symbol, label_names=["s_label"]) as module:
            module.bind([("data", (4, 4))], [("s_label", (4,))])
            module.init_params()
            module.init_optimizer(optimizer="adam")
            if symbol is narrow:
                with pytest.raises(ConfigError, match=r"/mean' is float32\[4.*\], but the param"):
                    module.load_optimizer_states(file)
            module.train_batch(DataBatch([np.ones((4, 4))], [np.zeros(4)]))
            module.save_optimizer_states(file)


@pytest.mark.parametrize("begin", [0, 100])
def test_states_of_an_optimizer_that_has_not_begun(begin, tmp_path):
    """A file from before the first update left the momentum of later ones as it was.

    If that was not update 1, momentum was asked of it that nothing had made yet.
    """
    first, again = ready(), ready()
    for module in (first, again):
        settings = {"learning_rate": 0.5, "momentum": 0.9, "begin_num_update": begin}
        module.init_optimizer(optimizer_params=settings, force_init=True)
    file = str(tmp_path / "x.states")
    again.save_optimizer_states(file)
    given, _ = again.get_params()
    batch = next(batches())
    again.train_batch(batch)
    again.set_params(given)
    again.load_optimizer_states(file)
    for module in (first, again):
        module.train_batch(batch)
    assert same_bits(first.get_params()[0], again.get_params()[0])


def test_parameters_of_a_file(tmp_path):
    module, other = ready(), ready(seed=5)
    module.save_params(str(tmp_path / "x.params"))
    other.load_params(str(tmp_path / "x.params"))
    assert same_bits(module.get_params()[0], other.get_params()[0])
    with pytest.raises(ConfigError, match="holds no optimizer's states"):
        other.load_optimizer_states(str(tmp_path / "x.params"))


def test_given_parameters_must_fit():
    module = ready()
    params = module.get_params()[0]
    with pytest.raises(GraphError, match="no parameter 'fc1_wieght'; did you mean 'fc1_weight'"):
        module.set_params({**params, "fc1_wieght": 1})
    module.set_params({**params, "other": 1}, allow_extra=True)
    with pytest.raises(RunError, match="parameter 'fc1_bias' is missing among those given"):
        module.set_params({"fc1_weight": params["fc1_weight"]})
    module.set_params({"fc1_weight": params["fc1_weight"]}, allow_missing=True)
    with pytest.raises(ShapeError, match=r"'fc1_bias' is given \(1,\), but is \(8,\)"):
        module.set_params({**params, "fc1_bias": np.zeros(1)})
    assert same_bits(module.get_params()[0], params)


# -- callbacks -----------------------------------------------------------------------------------


def test_callbacks_log_and_save(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    epochs: list[int] = []
    with mx.mod.Module(network()) as module:
        module.fit(
            batches(24),
            batches(8),
            num_epoch=2,
            batch_end_callback=[
                mx.callback.Speedometer(4, 2),
                mx.callback.log_train_metric(3),
                mx.callback.ProgressBar(6, 10),
            ],
            epoch_end_callback=[
                mx.callback.do_checkpoint(str(tmp_path / "a"), 2),
                mx.callback.module_checkpoint(module, str(tmp_path / "b"), 1, True),
                lambda epoch, symbol, args, aux: epochs.append(epoch),
            ],
            eval_end_callback=mx.callback.LogValidationMetricsCallback(),
        )
    lines = [record.getMessage() for record in caplog.records]
    assert epochs == [0, 1]
    speed = [line for line in lines if "samples/sec" in line]
    assert [line.split("\t")[0] for line in speed] == [
        f"Epoch[{epoch}] Batch [{k}-{k + 2}]" for epoch in (0, 1) for k in (0, 2)
    ]
    assert "accuracy=" in speed[0]
    assert sum("Validation-accuracy" in line for line in lines) == 4
    assert "[==========] 100%" in lines
    assert sum(line.startswith("Iter[1] Batch[3] Train-accuracy=") for line in lines) == 1
    names = {p.name for p in tmp_path.iterdir()}
    assert {"a-0002.params", "b-0001.params", "b-0002.states"} < names
    assert "a-0001.params" not in names


def test_metrics_of_an_epoch_are_of_the_whole_epoch(caplog):
    """Speedometer lets the metric begin anew, which must not change what an epoch reports."""
    caplog.set_level(logging.INFO)
    with mx.mod.Module(network()) as module:
        module.fit(
            batches(24),
            num_epoch=1,
            optimizer_params={"learning_rate": 0.0},
            batch_end_callback=mx.callback.Speedometer(4, 1),
            initializer=mx.init.Xavier(),
        )
        (scored,) = module.score(batches(24), "acc")
    (line,) = [r.getMessage() for r in caplog.records if "Train-accuracy" in r.getMessage()]
    assert float(line.split("=")[1]) == pytest.approx(scored[1], abs=1e-6)


# -- mistakes ------------------------------------------------------------------------------------


def test_what_must_come_before_is_named():
    module = mx.mod.Module(network())
    for call in (module.init_params, module.get_outputs, lambda: module.data_shapes):
        with pytest.raises(RunError, match="not bound to shapes: call bind"):
            call()
    module.bind([("data", (4, 4))], [("softmax_label", (4,))])
    with pytest.raises(RunError, match="parameters have no values yet: call init_params"):
        module.forward(next(batches()))
    module.init_params()
    with pytest.raises(RunError, match="there is no optimizer yet: call init_optimizer"):
        module.train_batch(next(batches()))
    with pytest.raises(RunError, match="backward needs a forward before"):
        module.backward()
    with pytest.raises(RunError, match="there are no outputs yet"):
        module.get_outputs()
    with pytest.raises(GraphError, match="no value is given for 'softmax_label'"):
        module.forward(DataBatch([np.zeros((4, 4))]), is_train=True)


def test_wrong_names_and_settings_are_refused():
    with pytest.raises(GraphError, match="data_names: no argument 'dat'; did you mean 'data'"):
        mx.mod.Module(network(), data_names=["dat"])
    with pytest.raises(TypeError, match="label_names is a list of names, not the name 'softmax_la"):
        mx.mod.Module(network(), label_names="softmax_label")
    with pytest.raises(TypeError, match="context is a device like cpu"):
        mx.mod.Module(network(), context="cpu")
    with pytest.raises(ConfigError, match="context is an empty list"):
        mx.mod.Module(network(), context=[])
    with pytest.raises(GraphError, match="fixed_param_names: no argument 'fc1'"):
        mx.mod.Module(network(), fixed_param_names=["fc1"])
    with pytest.raises(ConfigError, match="group2ctxs has 2 maps, each for a copy"):
        mx.mod.Module(network(), group2ctxs=[GROUPS, GROUPS])
    with pytest.raises(PlacementError, match="no strategy 'foo'"):
        mx.mod.Module(network(), strategy="foo")
    module = mx.mod.Module(network())
    with pytest.raises(TypeError, match=r"data_shapes is a list of DataDescs, or .*, not 4"):
        module.bind(4)
    for given in ((samples()[0],), (batches(), samples()[0]), (None,)):
        with pytest.raises(TypeError, match=r"_data is an iterator, .*, not (a ndarray|None)$"):
            mx.mod.Module(network()).fit(*given, num_epoch=1)
    with pytest.raises(GraphError, match=r"data_shapes describes \['x'\], but .* \['data'\]"):
        module.bind([("x", (4, 4))])
    with pytest.raises(GraphError, match=r"label_shapes describes \['y'\], but .* \['softmax_la"):
        module.bind([("data", (4, 4))], [("y", (4,))])
    with pytest.raises(GraphError, match="grad_req: no parameter 'fc3'; known: 'fc1_bias'"):
        module.bind([("data", (4, 4))], grad_req={"fc3": "add"})
    with pytest.raises(GraphError, match="grad_req of 'fc1_bias': 'ad'; did you mean 'add'"):
        module.bind([("data", (4, 4))], grad_req={"fc1_bias": "ad"})
    with pytest.raises(ConfigError, match="inputs_need_grad needs for_training=True"):
        module.bind([("data", (4, 4))], for_training=False, inputs_need_grad=True)
    wide = mx.mod.Module(network(), micro_batches=2)
    with pytest.raises(ConfigError, match="gradient of input 'data' is wanted, which needs micro"):
        wide.bind([("data", (4, 4))], inputs_need_grad=True)
    with pytest.raises(ConfigError, match="num_epoch is None; say how many"):
        module.fit(batches())
    with pytest.raises(ConfigError, match="unknown optimizer 'sdg': did you mean 'sgd'"):
        mx.mod.Module(network()).fit(batches(), optimizer="sdg", num_epoch=1)
    with pytest.raises(ConfigError, match="kvstore='dist_sync'"):
        mx.mod.Module(network()).fit(batches(), kvstore="dist_sync", num_epoch=1)
    with pytest.raises(AttributeError, match=r"mod has no 'Modul'; did you mean 'Module'"):
        mx.mod.Modul  # noqa: B018
    used = batches()
    list(used)
    with pytest.raises(RunError, match="train_data gave no batch in epoch 0: call its reset"):
        mx.mod.Module(network()).fit(used, num_epoch=1)


def test_a_label_that_is_no_argument_is_told(caplog):
    mx.mod.Module(network(), label_names=["softmax_labl"])
    assert "label_names: no argument 'softmax_labl'; did you mean 'softmax_label'?" in caplog.text
    caplog.clear()
    mx.mod.Module(network().get_internals()["fc2_output"])  # whose label is MXNet's default
    assert not caplog.text


def test_what_is_there_already_stays_and_is_told(caplog):
    """A second fit passed over its optimizer and its arg_params without a word; MXNet warns."""
    with ready() as module:
        before, optimizer = module.get_params()[0], module._store.optimizer
        assert not caplog.text
        module.init_optimizer(optimizer="adam", optimizer_params=None)
        module.init_params(arg_params={n: a + 1 for n, a in before.items()})
        assert "there already is an optimizer, which stays unless force_init" in caplog.text
        assert "parameters already have values, which stay unless force_init" in caplog.text
        assert module._store.optimizer is optimizer
        assert same_bits(module.get_params()[0], before)
        with pytest.raises(TypeError, match=r"optimizer must be one of symgraph\.optimizer"):
            module.init_optimizer(optimizer=mx.optimizer.SGD)


def test_labels_that_nobody_reads_are_left_out():
    """Binding left them out, and the first batch had one label too many."""
    data, label = samples()
    it = mx.io.NDArrayIter(data, {"other": label + 9, "softmax_label": label}, batch_size=4)
    with mx.mod.Module(network()) as module:
        module.fit(it, num_epoch=1, initializer=mx.init.Xavier(), optimizer_params=RATE)
        with mx.mod.Module(network()) as plain:
            plain.fit(batches(), num_epoch=1, initializer="xavier", optimizer_params=RATE)
            assert same_bits(module.get_params()[0], plain.get_params()[0])
            assert module.score(it, "acc") == plain.score(batches(), "acc")


def test_metrics_are_shown_labels_by_their_names():
    """They were paired with `label_names` in order, whatever the iterator's order was."""
    x = mx.sym.Variable("data")
    heads = [mx.sym.LinearRegressionOutput(x, mx.sym.Variable(n), name=n[0]) for n in ("b", "a")]
    data = samples()[0]
    it = mx.io.NDArrayIter(data, {"a": data + 1, "b": data + 2}, batch_size=4)
    metric = mx.metric.MAE(output_names=["a_output"], label_names=["a"])
    with mx.mod.Module(mx.sym.Group(heads), label_names=["b", "a"]) as module:
        module.bind(it.provide_data, it.provide_label, for_training=False)
        module.init_params()
        assert module.score(it, metric)[0][1] == pytest.approx(1)


def test_gradients_are_computed_once():
    """A second backward read what the first one had overwritten."""
    with ready() as module:
        module.forward_backward(next(batches()))
        first = module.grad_dict["fc1_weight"].copy()
        with pytest.raises(RunError, match="backward needs a forward before"):
            module.backward()
        module.forward_backward(next(batches()))
        assert module.grad_dict["fc1_weight"].tobytes() == first.tobytes()
        module.forward(next(batches()))
        with pytest.raises(GraphError, match="backward: 2 head gradients for 1 outputs"):
            module.backward([None, None])


def test_parameters_need_values_from_somewhere():
    """They were zeros."""
    module = mx.mod.Module(network())
    module.bind([("data", (4, 4))])
    with pytest.raises(ConfigError, match="neither an initializer nor arg_params"):
        module.init_params(None)
    with pytest.raises(GraphError, match="unknown initializer 'xavir'"):
        module.init_params("xavir")


def test_a_shared_module_is_bound_first():
    with pytest.raises(RunError, match="not bound to shapes: call bind"):
        mx.mod.Module(network()).bind([("data", (4, 4))], shared_module=mx.mod.Module(network()))


def test_a_module_for_prediction_says_how_to_train_it():
    module = mx.mod.Module(network())
    module.bind([("data", (4, 4))], [("softmax_label", (4,))], for_training=False)
    with pytest.raises(RunError, match="bind it with for_training=True and force_rebind=True"):
        module.fit(batches(), num_epoch=1)


def test_a_batch_has_samples():
    with ready() as module, pytest.raises(ShapeError, match=r"'data' of a batch has no elements"):
        module.predict(np.zeros((0, 4)))


def test_a_checkpoint_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with (
        ready() as module,
        pytest.raises(ConfigError, match=r"cannot write .*file/net-symbol.json"),
    ):
        module.save_checkpoint(str(tmp_path / "file" / "net"), 1)
