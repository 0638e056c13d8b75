"""Sharded networks in pipelines: placements, schedules, training, checkpoints, executors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import symgraph as sg
from partitioner.base.types import BodyKey
from runtime.engine.session import Session, initialize
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.replay import Costs, simulate
from runtime.training.checkpoints.sessions import save_checkpoint
from runtime.training.checkpoints.state import restore
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.trainer import Trainer
from runtime.transports import ThreadCluster, make_cluster
from symgraph.app.config import load_config
from symgraph.core.context import cpu
from symgraph.core.errors import ConfigError, PlacementError
from symgraph.core.registry import find
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.passes.shards import join
from tests.helpers.pipelines import (
    Case,
    Result,
    assert_close,
    assert_equal_parameters,
    assert_same_bits,
    in_pieces,
    judge,
    make_plan,
    on_devices,
)
from tests.helpers.small_lm import write_config
from tests.mpi.launch import launch, needs_mpi

VOCAB, WIDTH, STEPS, BATCH = 11, 4, 3, 6


def network(shards: str, *, head: str = "softmax", embed: str = "1", tied: bool = False) -> Case:
    """A time-major language model (T, B): embed, a hidden layer, decode, with ids to ignore."""
    rng = np.random.default_rng(5)
    weight = sym.Variable("tied_weight")
    own = {"weight": weight} if tied else {}
    with AttrScope(ctx_group="embed", shard=embed):
        x = sym.Embedding(
            sym.Variable("data"), input_dim=VOCAB, output_dim=WIDTH, name="embed", **own
        )
    with AttrScope(ctx_group="hidden"):
        x = sym.Reshape(x, shape=(-1, WIDTH), name="rows")
        x = sym.tanh(sym.FullyConnected(x, num_hidden=WIDTH, name="fc"))
    with AttrScope(ctx_group="decode", shard=shards):
        label = sym.Reshape(sym.Variable("label"), shape=(-1,), name="labels")
        scores = sym.FullyConnected(x, num_hidden=VOCAB, name="decode", **own)
        if head == "softmax":
            ignore = {"use_ignore": True, "ignore_label": 0}
            loss = sym.SoftmaxOutput(scores, label, normalization="valid", name="loss", **ignore)
            out = sym.Group([loss, sym.nll_stats(loss, label, name="nll", **ignore)])
        elif head == "batch":
            out = sym.SoftmaxOutput(scores, label, normalization="batch", grad_scale=2, name="loss")
        elif head == "entropy":
            out = sym.MakeLoss(sym.softmax_cross_entropy(scores, label), name="loss")
        else:
            out = sym.LinearRegressionOutput(scores, sym.one_hot(label, depth=VOCAB), name="loss")
    feeds = {n: rng.integers(0, VOCAB, (STEPS, BATCH)).astype("int32") for n in ("data", "label")}
    shapes, _, _ = out.infer_shape(**{n: a.shape for n, a in feeds.items()})
    arrays = {
        name: rng.standard_normal(shape)
        for name, shape in zip(out.list_arguments(), shapes, strict=True)
        if name not in feeds
    }
    return Case(out, feeds, arrays, {"data": 1, "label": 1})


def in_pipeline(case: Case, options: Options) -> Result:
    """One step's outputs and gradients, under the names of the network."""
    found, shards = in_pieces(case, options)
    return Result(found.outputs, join(shards, found.grads))


def placed(devices: int, decode: object, **more: object) -> Options:
    groups = {"embed": cpu(0), "hidden": cpu(devices // 2), "decode": decode} | more
    return on_devices(devices, groups)


PLACES = {
    1: placed(1, cpu(0)),
    2: placed(2, [cpu(1), cpu(0)]),
    3: placed(3, [cpu(1), cpu(2), cpu(0)]),
}


def scheduled(options: Options, schedule: str, micro_batches: int) -> Options:
    return replace(options, schedule=schedule, micro_batches=micro_batches)


@pytest.mark.every(4)
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("devices", PLACES)
def test_every_schedule_equals_the_unsharded_reference(devices, schedule, micro_batches):
    case = network(str(max(devices, 2)))
    got = in_pipeline(case, scheduled(PLACES[devices], schedule, micro_batches))
    assert_close(got, judge(case))


@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("head", ["batch", "entropy", "regression"])
@pytest.mark.parametrize("shards", ["2", "8:3"])
def test_every_head_equals_the_unsharded_reference(head, shards, micro_batches):
    case = network(shards, head=head)
    got = in_pipeline(case, scheduled(PLACES[2], "1f1b", micro_batches))
    assert_close(got, judge(case))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_embedding_and_decoder_in_shards(micro_batches, tied):
    case = network("3", embed="3", tied=tied)
    both = [cpu(2), cpu(0), cpu(1)]
    got = in_pipeline(case, scheduled(placed(3, both, embed=both), "gpipe", micro_batches))
    assert_close(got, judge(case))


def test_the_place_of_shards_changes_no_bit():
    case = network("2")
    alone = in_pipeline(case, scheduled(PLACES[1], "gpipe", 3))
    for decode in (cpu(2), [cpu(0), cpu(1)], [cpu(2), cpu(0)], [cpu(1), cpu(1)]):
        for schedule in ("1f1b", "zb-h1"):
            got = in_pipeline(case, scheduled(placed(3, decode), schedule, 3))
            assert_same_bits(got, alone)


def test_shards_live_on_their_devices_and_messages_are_few():
    """Between the two devices go no scores: the input, labels and a few figures a row alone."""
    case = network("2")
    made = make_plan(case, replace(PLACES[2], whole=False))
    place = made.partition.placement
    assert place.device_of("decode_weight[0:6]") == place.device_of("decode[0:6]") == cpu(1)
    assert place.device_of("decode_weight[6:11]") == place.device_of("loss[6:11]") == cpu(0)
    sent = [e for e in made.partition.edges if made.partition.crosses(e)]
    rows = STEPS * BATCH
    assert max(e.type.size for e in sent) == rows * WIDTH
    figures = [e for e in sent if e.type.shape in ((2, rows), (rows,))]
    assert len(figures) >= 3
    assert all(
        e.type.size <= 2 * rows for e in sent if e not in figures and e.type.shape[-1] != WIDTH
    )


def test_shards_run_at_the_same_time():
    """What shards read is sent before any of them runs: none is in a body with its input's maker.

    So a step of one micro-batch, where the decoder's products are all that takes time, takes
    much less than whole (6 of 11 classes are on one device).
    """
    seconds = {}
    for shards in ("1", "2"):
        options = placed(2, cpu(1) if shards == "1" else [cpu(1), cpu(0)])
        made = make_plan(network(shards), options)
        stage_of = made.partition.placement.stage_of
        if shards == "2":
            own = [stage_of[n] for n in ("decode[0:6]", "decode[6:11]", "loss[0:6]", "loss[6:11]")]
            others = {stage_of[n] for n in ("rows", "labels", "decode[figures]", "nll")}
            assert len(set(own)) == 4
            assert not others & set(own)

        def work(key: BodyKey, made: Plan = made) -> float:
            body = made.partition.bodies[key].graph
            calls = [n for n in body if n.name.startswith("decode") and not n.is_variable]
            ins = [body.types_of(n.inputs) for n in calls]
            return sum(
                find(n.op).flops(n.attrs, i, n.types) for n, i in zip(calls, ins, strict=True)
            )

        seconds[shards] = simulate(made.schedule, made.partition, Costs(work)).makespan
    assert seconds["2"] < 0.7 * seconds["1"]


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        ([cpu(0), cpu(1), cpu(2)], r"is shard 0 of 2, but group 'decode' is mapped to 3 devices"),
        ([], "group 'decode' is mapped to an empty list"),
    ],
)
def test_groups_that_do_not_fit_their_shards(decode, message):
    with pytest.raises(PlacementError, match=message):
        make_plan(network("2"), placed(3, decode))


def test_several_devices_for_a_group_that_cannot_be_split():
    """An executor's arguments have no batch axis along which the group could be replicated."""
    case = network("1")
    shapes = {n: a.shape for n, a in case.feeds.items()}
    groups = {"embed": cpu(0), "hidden": cpu(0), "decode": [cpu(0), cpu(1)]}
    with pytest.raises(PlacementError, match=r"nothing in it is split: mark its .*shard=\"2\""):
        case.symbol.simple_bind(cpu(0), group2ctx=groups, **shapes)


# -- training ------------------------------------------------------------------------------------


def session(shards: str, devices: int, cluster: ThreadCluster, *, clip: float = 0.5) -> Session:
    case = network(shards)
    decode = cpu(0) if shards == "1" or devices == 1 else [cpu(i) for i in range(devices)]
    options = scheduled(replace(placed(devices, decode), update=True, whole=False), "1f1b", 3)
    wrt = case.trained()
    made = plan(case.symbol, case.specs, options, wrt=wrt, dtypes=dict.fromkeys(wrt, "float64"))
    arrays = initialize(made, cluster, sg.init.Uniform(0.5), seed=3)
    rule = sg.optimizer.create("sgd", learning_rate=0.2, momentum=0.9, wd=0.01)
    return Session(made, cluster, arrays, optimizer=rule, clip=clip)


def feeds(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {n: rng.integers(0, VOCAB, (STEPS, BATCH)).astype("int32") for n in ("data", "label")}


def trained(shards: str, devices: int, steps: int = 20) -> tuple[dict[str, np.ndarray], float]:
    """The parameters after some steps, and the sum of all steps' losses."""
    with ThreadCluster(devices) as cluster:
        run = session(shards, devices, cluster)
        loss = sum(run.step(feeds(i))["nll_nll"] for i in range(steps))
        return run.parameters(), loss


@pytest.mark.parametrize(("shards", "devices"), [("2", 1), ("2", 2), ("3", 3), ("5:1", 2)])
def test_training_in_shards_is_training_on_the_whole(shards, devices):
    """First values, momentum, weight decay by name, and clipping by the norm of all of them."""
    start, _ = trained("1", 1, steps=0)
    got, _ = trained(shards, devices, steps=0)
    assert all(got[name].tobytes() == array.tobytes() for name, array in start.items())
    want, loss = trained("1", 1)
    got, sharded_loss = trained(shards, devices)
    assert_equal_parameters(got, want)
    assert sharded_loss == pytest.approx(loss, rel=1e-10)
    assert np.abs(want["decode_weight"] - start["decode_weight"]).max() > 0.1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("2", 2), ("1", 1)),
        (("2", 2), ("3", 3)),
        (("2", 2), ("2", 1)),
        (("1", 1), ("5:6", 2)),
    ],
)
def test_a_checkpoint_goes_on_in_other_shards(tmp_path, before, after):
    want, _ = trained("1", 1)
    with ThreadCluster(before[1]) as cluster:
        run = session(*before, cluster)
        for i in range(9):
            run.step(feeds(i))
        saved = save_checkpoint(run, tmp_path, keep=1)
    with ThreadCluster(after[1]) as cluster:
        run = session(*after, cluster)
        restore(run, saved)
        for i in range(9, 20):
            run.step(feeds(i))
        assert_equal_parameters(run.parameters(), want)


def test_a_checkpoint_holds_whole_parameters(tmp_path):
    from safetensors.numpy import load_file

    with ThreadCluster(2) as cluster:
        run = session("2", 2, cluster)
        run.step(feeds(0))
        saved = save_checkpoint(run, tmp_path, keep=1)
        tensors: dict[str, np.ndarray] = {}
        for file in saved.glob("*.safetensors"):
            tensors |= load_file(file)
        weights = run.parameters()
    assert set(tensors) == set(weights) | {f"optimizer/{n}/mom" for n in weights}
    for name, array in weights.items():
        np.testing.assert_array_equal(tensors[name], array)
        assert tensors[f"optimizer/{name}/mom"].shape == array.shape


@pytest.mark.parametrize("vocab", [4, 9, 40])
def test_a_checkpoint_of_another_vocabulary_is_refused(tmp_path, monkeypatch, vocab):
    with ThreadCluster(1) as cluster:
        saved = save_checkpoint(session("1", 1, cluster), tmp_path, keep=1)
    monkeypatch.setattr("tests.system.test_sharded.VOCAB", vocab)
    with ThreadCluster(2) as cluster:
        run = session("2", 2, cluster)
        for arrays in run.arrays.values():  # the embedding comes first, and would be refused first
            arrays.pop("embed_weight", None)
        with pytest.raises(ConfigError, match=rf"decode_\w+' is float64\[11.* float64\[{vocab}"):
            restore(run, saved)


# -- executor and command line -------------------------------------------------------------------


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_an_executor_shows_whole_parameters(grad_req):
    """Arrays that are assigned in place reach the shards, whose gradients reach grad_dict."""
    found = []
    for shards, decode in (("1", cpu(0)), ("2", [cpu(1), cpu(0)])):
        case = network(shards)
        groups = {"embed": cpu(0), "hidden": cpu(1), "decode": decode}
        shapes = {n: a.shape for n, a in case.feeds.items()}
        kinds = dict.fromkeys(case.arrays, "float64")
        requests = dict.fromkeys(case.arrays, grad_req)
        with case.symbol.simple_bind(
            cpu(0), requests, type_dict=kinds, group2ctx=groups, **shapes
        ) as executor:
            assert set(executor.arg_dict) == {*case.arrays, *case.feeds}
            for _ in range(2):
                for name, array in case.arrays.items():
                    executor.arg_dict[name][:] = array
                executor.forward(is_train=True, **case.feeds)
                executor.backward()
                executor.arg_dict["decode_weight"][:] *= 2
            inference = executor.forward(is_train=False)
            found.append((inference, {n: g.copy() for n, g in executor.grad_dict.items()}))
    (wanted, grads), (got, sharded) = found
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert sharded.keys() == grads.keys()
    for name, want in grads.items():
        np.testing.assert_allclose(sharded[name], want, rtol=1e-10, atol=1e-12, err_msg=name)


EVALUATED = "evaluate: {metrics: [accuracy], tokens: 300}\n"


def losses(path: Path, *overrides: str) -> tuple[float, Path | None]:
    config = load_config(str(path), overrides)
    with make_cluster("threads", len(config.devices)) as cluster:
        trainer = Trainer(prepare(config), cluster, load_data(config))
        source = trainer.resume()
        return trainer.fit()["loss"], source


@pytest.mark.slow
@pytest.mark.parametrize("pieces", ["devices", "1"])  # in shards, and by replicas
def test_metrics_and_predictions_are_of_whole_outputs(pieces, tmp_path):
    """The accuracy was that of the first shard's classes, and each shard was an output."""
    path = write_config(
        tmp_path, "optimizer: adam, learning_rate: 0.05, steps: 8, dtype: float64", EVALUATED
    )
    found = []
    for overrides in ([], ["group2ctx.decode=[cpu(0), cpu(1)]", f"args.decode_shards={pieces}"]):
        config = load_config(str(path), [*overrides, "pipeline.micro_batches=2"])
        with make_cluster("threads", 2) as cluster:
            job = prepare(config)
            held_out = Trainer(job, cluster, load_data(config)).fit()["held_out"]
        names = prepare(config, whole=True).evaluation.output_names
        found.append((held_out["accuracy"], names[0], len(job.training.outputs)))
    (plain, *_, outputs), (split, name, more) = found
    assert 0.2 < split == plain < 1
    assert name == "softmax_output"
    assert more == outputs + 1, "training leaves the softmax in pieces"


@pytest.mark.slow
def test_the_language_model_in_shards_from_a_config(tmp_path):
    train = "optimizer: adam, learning_rate: 0.01, clip_global_norm: 1.0, steps: 8, dtype: float64"
    more = f"checkpoint: {{directory: {tmp_path / 'saved'}, every: 5}}\n"
    path = write_config(tmp_path, train, more)
    whole, _ = losses(path, f"checkpoint.directory={tmp_path / 'whole'}")
    losses(path, "group2ctx.decode=[cpu(1), cpu(0)]", "train.steps=3")
    three = ["devices=[cpu(0), cpu(1), cpu(2)]", "group2ctx.decode=[cpu(2), cpu(0), cpu(1)]"]
    _, source = losses(path, *three, "train.steps=6")
    assert source is not None
    assert source.name == "step-00000003"
    again, source = losses(path, "devices=[cpu(0)]")
    assert source is not None
    assert again == pytest.approx(whole, rel=1e-10)


@pytest.mark.every(2)
@pytest.mark.parametrize("schedule", ["wavefront", "zb-h1"])
def test_time_segments_and_recomputation_with_shards(tmp_path, schedule):
    train = "optimizer: sgd, learning_rate: 0.5, steps: 4, dtype: float64"
    path = write_config(tmp_path, train, args="dropout: 0.2")
    whole, _ = losses(path)
    ways = ["pipeline.time_segment=2", "pipeline.recompute=all", f"pipeline.schedule={schedule}"]
    split, _ = losses(path, "group2ctx.decode=[cpu(1), cpu(0)]", *ways)
    assert split == pytest.approx(whole, rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [pytest.param(2, marks=needs_mpi)])
def test_shards_in_processes_of_their_own(tmp_path, processes):
    train = "optimizer: adam, learning_rate: 0.01, clip_global_norm: 1.0, steps: 8, dtype: float64"
    more = f"checkpoint: {{directory: {tmp_path / 'saved'}}}\n"
    path = write_config(tmp_path, train, more)
    whole, _ = losses(path, f"checkpoint.directory={tmp_path / 'whole'}")
    split = "group2ctx.decode=[cpu(1), cpu(0)]"
    ended = launch(processes, "symgraph.run", path, split, "train.steps=5")
    assert ended.status == 0, str(ended)
    again, source = losses(path)
    assert source is not None
    assert again == pytest.approx(whole, rel=1e-10)


def test_lists_of_devices_in_a_config(tmp_path):
    path = write_config(tmp_path, "steps: 1")
    lists = ["group2ctx.decode=[cpu(1), cpu(0)]", "pipeline.recompute=[0, 1]"]
    config = load_config(str(path), lists)
    assert config.groups["decode"] == (cpu(1), cpu(0))
    assert config.groups["embed"] == cpu(0)
    text = tmp_path / "again.yaml"
    text.write_text(config.to_yaml(), encoding="utf-8")
    assert load_config(str(text)) == config
    for wrong, message in (
        ("[cpu(1), cpu(7)]", r"group 'decode' is on cpu\(7\), which is not in devices"),
        ("[]", "expected a device, or a list of devices, one per shard, got "),
        ("[cpu(1), 3]", "expected a device, or a list of devices"),
        ("[cpu(1), cup(0)]", r"'cup\(0\)' is not a device"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_config(str(path), [f"group2ctx.decode={wrong}"])
