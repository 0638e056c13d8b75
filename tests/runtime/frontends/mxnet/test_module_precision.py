"""Mixed precision in modules: what they learn, their loss scale, buckets and checkpoints."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import symgraph as mx
import symgraph.passes.loss_scale
from runtime.backends.device.arrays import beside, device, on_host
from runtime.backends.device.processor import limit_blas
from runtime.training.data.table import load_data
from runtime.training.job import create_optimizer, prepare, training_plan
from runtime.training.trainer import Trainer
from runtime.transports import make_cluster
from symgraph.app.config import load_config
from symgraph.core.errors import ConfigError, DTypeError
from symgraph.core.types import HALVES
from symgraph.frontend.io import DataBatch, DataDesc, NDArrayIter
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
from tests.helpers.small_lm import write_config
from tests.runtime.frontends.mxnet.test_bucketing_module import GROUPS as BUCKETED
from tests.runtime.frontends.mxnet.test_bucketing_module import batch as bucket_batch
from tests.runtime.frontends.mxnet.test_bucketing_module import bits, bound, sym_gen

NEAR = {"float16": 4e-3, "bfloat16": 3e-2}
AT_FIRST = 2.0**26


@pytest.fixture
def too_large(monkeypatch):
    """Scales that begin where gradients overflow, and rise soon."""
    monkeypatch.setattr(symgraph.passes.loss_scale, "FIRST", AT_FIRST)
    monkeypatch.setattr(symgraph.passes.loss_scale, "PATIENCE", 3)


def epochs(module: Any, count: int) -> list[float]:
    """Train in whole steps; the loss scale after each."""
    scales = []
    for _ in range(count):
        for batch in batches():
            module.train_batch(batch)
            scales.append(module.loss_scale)
    return scales


def kinds(module: Any) -> set[str]:
    """The types of what layers make in the bound network."""
    graph = module.plan.partition.graph
    return {n.types[0].dtype for n in graph if n.op in ("FullyConnected", "Activation")}


# -- what is learnt ------------------------------------------------------------------------------


@pytest.mark.parametrize("low", HALVES)
def test_fit_learns_as_in_float32(low):
    points, _ = samples(400)
    classes = points[:, :3].argmax(axis=1)
    found = {}
    for precision in ("float32", low):
        with mx.mod.Module(network(), precision=precision, micro_batches=2) as module:
            train = NDArrayIter(points, classes, batch_size=20)
            module.fit(
                train,
                num_epoch=10,
                initializer=mx.init.Xavier(),
                optimizer="adam",
                optimizer_params={"learning_rate": 0.05},
            )
            assert kinds(module) == {precision}
            (scored,) = module.score(train, "ce")
            weights = module.get_params()[0]
            assert {a.dtype.name for a in weights.values()} == {"float32"}
            assert module.predict(train).dtype == np.float32
            found[precision] = scored[1]
            assert (module.loss_scale > 1) == (precision == "float16")
    assert found["float32"] < 0.15
    assert found[low] == pytest.approx(found["float32"], rel=0.1)


@pytest.mark.every(2)
@pytest.mark.parametrize("low", HALVES)
def test_it_is_the_same_on_every_placement_and_schedule(low):
    how: dict[str, Any] = {"micro_batches": 2, "precision": low}
    one = fitted(network(0.5), **how)
    assert same_bits(one, fitted(network(0.5), **how, context=TWO, group2ctxs=[GROUPS]))
    swapped = {"a": mx.cpu(1), "b": mx.cpu(0)}
    assert same_bits(one, fitted(network(0.5), **how, group2ctxs=swapped, schedule="1f1b"))
    assert same_bits(one, fitted(network(0.5), **how, context=TWO, strategy="uniform"))
    assert not same_bits(one, fitted(network(0.5), micro_batches=2))


@pytest.mark.slow
def test_it_is_what_a_run_learns(tmp_path, too_large):
    """The same bits as of `symgraph.run`, with steps that are left out, states and dropout."""
    path = write_config(
        tmp_path, "optimizer: adam, learning_rate: 0.02, steps: 14, seed: 3", args="dropout: 0.2"
    )
    config = load_config(str(path), ["train.precision=float16"])
    model = training_plan(config).model
    assert model is not None
    with make_cluster("threads", 2) as cluster, limit_blas(1):
        trainer = Trainer(prepare(config), cluster, load_data(config))
        first = {n: a.copy() for n, a in trainer.training.parameters().items()}
        given = [b.feeds for _, (b,) in trainer.steps(0)]
        trainer.fit()
        want = trainer.training.parameters()
        assert 0 < trainer.skipped < len(given)
        end = trainer.training.updaters[0].loss_scale.value
    groups = {
        name: mx.cpu(rank)
        for name, rank in {"embed": 0, "layer0": 0, "layer1": 1, "decode": 1}.items()
    }
    module = mx.mod.Module(
        model.symbol,
        [*model.feeds],
        None,
        context=TWO,
        group2ctxs=groups,
        micro_batches=4,
        schedule="1f1b",
        seed=3,
        precision="float16",
    )
    with module, limit_blas(1):
        module.bind(
            [
                DataDesc(name, feed.type.shape, feed.type.dtype, "T" * feed.axis + "N")
                for name, feed in model.feeds.items()
            ]
        )
        module.init_params(None, first)
        module.init_optimizer(optimizer=create_optimizer(config))
        states = {n: np.zeros(*model.feeds[n].type) for n in model.states}
        for feeds in given:
            values = feeds | states
            module.train_batch(DataBatch([values[n] for n in model.feeds]))
            made = dict(zip(module.output_names, module.get_outputs(), strict=True))
            states = {n: made[output] for n, output in model.states.items()}
        assert module.loss_scale == end
        assert same_bits(module.get_params()[0], want)


@pytest.mark.every(12)
@everywhere(ON_GPUS, cpus=GROUPS)
@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1"])
def test_the_parts_of_a_step_are_the_step(schedule, groups, too_large):
    """Also of one that is left out."""
    how: dict[str, Any] = {
        "group2ctxs": groups,
        "schedule": schedule,
        "micro_batches": 3,
        "precision": "float16",
    }
    with ready(network(0.5), **how) as whole, ready(network(0.5), **how) as parts:
        scales = []
        for _ in range(5):
            for batch in batches(12):
                train_both_ways(whole, parts, batch)
                assert whole.loss_scale == parts.loss_scale
                scales.append(whole.loss_scale)
            parts.train_batch(batch)  # the two ways can be mixed: one scale
            whole.forward_backward(batch)
            whole.update()
        assert same_bits(whole.get_params()[0], parts.get_params()[0])
        assert whole._store.updates == parts._store.updates > 0
    assert scales[0] == AT_FIRST / 2


@pytest.mark.parametrize("mark", ["shard", "replicate"])
def test_groups_on_two_devices(mark, too_large):
    with NameManager():
        with mx.AttrScope(ctx_group="a"):
            x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
        with mx.AttrScope(ctx_group="b", **{mark: "2"}):
            x = mx.sym.FullyConnected(mx.sym.tanh(x), num_hidden=4, name="fc2")
        with mx.AttrScope(ctx_group="a"):
            symbol = mx.sym.SoftmaxOutput(x, name="softmax")
    how: dict[str, Any] = {"group2ctxs": {"a": mx.cpu(0), "b": TWO}, "precision": "float16"}
    with ready(symbol, **how) as parts, ready(symbol, **how) as whole:
        before = whole.get_params()[0]
        for _ in range(6):
            for batch in batches(12):
                parts.forward_backward(batch)
                parts.update()
                whole.train_batch(batch)
        assert same_bits(parts.get_params()[0], whole.get_params()[0])
        assert not same_bits(before, whole.get_params()[0])
        assert parts.loss_scale == whole.loss_scale


# -- the loss scale ------------------------------------------------------------------------------


def test_an_overflow_leaves_the_step_out_and_halves_the_scale(too_large):
    with ready(precision="float16", context=TWO, group2ctxs=GROUPS) as module:
        before = module.get_params()[0]
        assert module.loss_scale == AT_FIRST
        module.train_batch(next(batches()))
        assert module.loss_scale == AT_FIRST / 2
        assert same_bits(before, module.get_params()[0])
        assert module._store.updates == 0
        module.forward_backward(next(batches()))
        module.update()
        assert module.loss_scale == AT_FIRST / 4
        assert same_bits(before, module.get_params()[0])
        scales = epochs(module, 6)
        assert not same_bits(before, module.get_params()[0])
        assert all(np.isfinite(a).all() for a in module.get_params()[0].values())
        good = sum(after >= before for before, after in pairwise([AT_FIRST / 4, *scales]))
        assert module._store.updates == good > 0
        module.init_optimizer(force_init=True)
        assert module.loss_scale == AT_FIRST


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_fixed_scale_stays_and_an_overflow_is_told(too_large):
    with ready(precision="float16", loss_scale=256) as module:
        assert set(epochs(module, 3)) == {256.0}
    with ready(precision="float16", loss_scale=AT_FIRST) as module:
        with pytest.warns(RuntimeWarning, match="overflow encountered in cast"):
            module.forward_backward(next(batches()))
        assert module.loss_scale == AT_FIRST


@everywhere({"a": mx.gpu(0)}, none=None)
def test_gradients_are_without_the_scale(groups):
    """Those of parameters and of inputs, from losses and from head gradients, wherever they lie."""
    here = device(groups["a"] if groups else mx.cpu(0))

    def gradients(scale: float | str, precision: str) -> list[Any]:
        with NameManager(), mx.AttrScope(ctx_group="a"):
            x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
            loss = mx.sym.SoftmaxOutput(x, mx.sym.Variable("softmax_label"), name="softmax")
            symbol = mx.sym.Group([loss, mx.sym.tanh(x, name="top")])
        it = batches()
        how: dict[str, Any] = {"group2ctxs": groups, "precision": precision, "loss_scale": scale}
        with mx.mod.Module(symbol, **how) as module:
            module.bind(it.provide_data, it.provide_label, inputs_need_grad=True)
            module.init_params(mx.init.Xavier())
            module.forward(next(it))
            with here.use():
                head = here.put(np.random.default_rng(1).standard_normal((4, 3)))
                here.finish()
            module.backward([None, head])
            return [*map(on_host, module.grad_dict.values()), *module.get_input_grads()]

    exact, scaled = (gradients(scale, "bfloat16") for scale in (1, 1024))
    assert len(exact) == 3
    for one, other in zip(exact, scaled, strict=True):
        np.testing.assert_array_equal(one, other)  # a power of two is no rounding
    for one, other in zip(gradients("auto", "float32"), gradients(1024, "float16"), strict=True):
        assert other.dtype == np.float32
        np.testing.assert_allclose(one, other, 4e-3, 4e-3)


def test_a_scale_saves_small_gradients():
    """A loss that is divided by much has gradients that float16 has no numbers for."""
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, no_bias=True, name="fc")
    symbol = mx.sym.SoftmaxOutput(x, grad_scale=1e-9, name="softmax")
    found = {}
    for scale in (1, "auto"):
        with ready(symbol, precision="float16", loss_scale=scale) as module:
            module.forward_backward(next(batches()))
            found[scale] = module.grad_dict["fc_weight"].copy()
    assert not found[1].any()
    assert found["auto"].all()


@everywhere(ON_GPUS, none=None)
def test_gradients_can_be_added_and_changed(groups):
    with mx.mod.Module(network(), group2ctxs=groups, precision="float16") as module:
        it = batches()
        module.bind(it.provide_data, it.provide_label, grad_req="add")
        module.init_params(mx.init.Xavier())
        batch = next(it)
        module.forward_backward(batch)
        first = {n: on_host(a).copy() for n, a in module.grad_dict.items()}
        module.forward_backward(batch)
        for name, array in module.grad_dict.items():
            np.testing.assert_array_equal(on_host(array), 2 * first[name])
        module.init_optimizer(optimizer_params={"learning_rate": 1.0, "rescale_grad": 1.0})
        before = module.get_params()[0]
        for array in module.grad_dict.values():
            with beside(array):
                array[:] = 3.0
        module.update()
        for name, array in module.get_params()[0].items():
            np.testing.assert_array_equal(array, before[name] - np.float32(3))


# -- buckets and checkpoints ---------------------------------------------------------------------


@pytest.mark.parametrize("low", HALVES)
def test_buckets(low):
    found = {}
    for precision in ("float32", low):
        with bound(precision=precision) as module:
            for seed, length in enumerate([8, 3, 5, 3, 8]):
                module.train_batch(bucket_batch(length, seed))
                assert module.loss_scale == (2.0**16 if precision == "float16" else 1)
            found[precision] = module.get_params()[0]
    for name, array in found["float32"].items():
        np.testing.assert_allclose(found[low][name], array, NEAR[low], NEAR[low])
        assert not np.array_equal(found[low][name], array)


def test_buckets_have_one_scale_on_every_placement(too_large):
    """What overflows in one bucket halves the scale of all."""
    found = []
    for settings in ({}, {"group2ctxs": BUCKETED, "schedule": "1f1b"}):
        with bound(precision="float16", **settings) as module:
            first = bits(module)
            module.train_batch(bucket_batch(3))
            assert (module.loss_scale, bits(module)) == (AT_FIRST / 2, first)
            module.train_batch(bucket_batch(8))
            assert (module.loss_scale, bits(module)) == (AT_FIRST / 4, first)
            for seed in range(12):
                module.train_batch(bucket_batch((3, 5, 8)[seed % 3], seed))
            assert bits(module) != first
            found.append((module.loss_scale, bits(module)))
    assert found[0] == found[1]


def test_a_checkpoint_keeps_the_scale(tmp_path, too_large):
    """And the good steps in a row, so that it rises when it would have: the same bits."""
    prefix = str(tmp_path / "net")
    how: dict[str, Any] = {"precision": "float16"}
    settings = {"learning_rate": 0.5, "momentum": 0.9}
    with ready(network(0.5), **how) as straight, ready(network(0.5), **how) as paused:
        epochs(paused, 5)
        epochs(straight, 5)
        paused.save_checkpoint(prefix, 5, save_optimizer_states=True)
        again = mx.mod.Module.load(
            prefix, 5, load_optimizer_states=True, context=TWO, group2ctxs=GROUPS, **how
        )
        it = batches()
        again.bind(it.provide_data, it.provide_label)
        again.init_optimizer(optimizer_params=settings)
        assert paused._store.loss_scale.good > 0
        assert again._store.loss_scale == paused._store.loss_scale
        assert epochs(again, 5) == epochs(straight, 5)
        assert same_bits(again.get_params()[0], straight.get_params()[0])
        again.close()


def test_a_checkpoint_of_buckets_keeps_the_scale(tmp_path, too_large):
    prefix = str(tmp_path / "lm")
    with bound(precision="float16") as module:
        for length in (3, 8, 5):
            module.train_batch(bucket_batch(length))
        module.save_checkpoint(prefix, 1, save_optimizer_states=True)
        again = mx.mod.BucketingModule.load(
            prefix, 1, sym_gen, 8, load_optimizer_states=True, precision="float16"
        )
        with again:
            again.bind(bucket_batch(8).provide_data, bucket_batch(8).provide_label)
            again.init_optimizer(optimizer_params={"learning_rate": 1.0, "momentum": 0.5})
            assert again.loss_scale == module.loss_scale == AT_FIRST / 8


def test_a_module_goes_on_in_another_precision(tmp_path):
    """Then its scale begins anew."""
    prefix = str(tmp_path / "net")
    with ready() as module:
        epochs(module, 2)
        module.save_checkpoint(prefix, 2, save_optimizer_states=True)
        wanted = module.get_params()[0]
    for low, scale in (("float16", 2.0**16), ("bfloat16", 1.0)):
        again = mx.mod.Module.load(prefix, 2, load_optimizer_states=True, precision=low)
        with again:
            again.bind(batches().provide_data, batches().provide_label)
            again.init_optimizer(optimizer_params={"learning_rate": 0.5, "momentum": 0.9})
            assert same_bits(again.get_params()[0], wanted)
            assert again.loss_scale == scale
            epochs(again, 1)


def test_modules_that_share_parameters_share_the_scale(too_large):
    with ready(precision="float16") as module:
        other = mx.mod.Module(network())
        it = batches(12, 6)
        other.bind(it.provide_data, it.provide_label, shared_module=module)
        assert kinds(other) == {"float16"}
        other.train_batch(next(it))
        assert module.loss_scale == other.loss_scale == AT_FIRST / 2


# -- mistakes ------------------------------------------------------------------------------------


def test_mistakes(monkeypatch):
    data, label = [("data", (4, 4))], [("softmax_label", (4,))]
    with pytest.raises(ConfigError, match="unknown precision 'flaot16'; did you mean 'float16'"):
        mx.mod.Module(network(), precision="flaot16").bind(data, label)
    for scale in (0, -1, float("inf"), "always"):
        with pytest.raises(ConfigError, match=f"loss_scale is {scale!r} but must be auto or a num"):
            mx.mod.Module(network(), precision="float16", loss_scale=scale)
    for dtype in ("float64", "float16"):
        wide = [(*data[0], dtype)], [(*label[0], dtype)]
        with pytest.raises(
            DTypeError,
            match=f"float16 needs parameters of float32, but 'fc1_weight' is {dtype}: leave dtypes",
        ):
            mx.mod.Module(network(), precision="float16").bind(*wide)
        mx.mod.Module(network()).bind(*wide)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(DTypeError, match="bfloat16 needs the package ml_dtypes"):
        mx.mod.Module(network(), precision="bfloat16").bind(data, label)
