"""Mixed precision from end to end: training, memory, messages, overflows and checkpoints."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, pairwise

import numpy as np
import pytest

import symgraph.passes.loss_scale
from partitioner.base.types import BACKWARD, FORWARD, WEIGHT
from runtime.backends.device.processor import limit_blas
from runtime.backends.scratch import scratch_bytes
from runtime.planning.planner import plan
from runtime.training.checkpoints.folder import CheckpointFolder
from runtime.training.checkpoints.state import read_about
from runtime.training.data.table import load_data
from runtime.training.job import prepare, training_plan
from runtime.training.summary import plan_rows
from runtime.training.trainer import Progress, Trainer
from runtime.transports import make_cluster
from symgraph import cpu
from symgraph.app.config import load_config
from symgraph.core.errors import ConfigError
from symgraph.core.reference import evaluate
from symgraph.core.types import HALVES, TensorType
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.passes.batching import Feed
from symgraph.passes.loss_scale import LossScale
from symgraph.passes.precision import is_parameter_cast
from tests.fakes.fake_cupy import fake_cupy
from tests.helpers.networks import random_case, random_groups
from tests.helpers.pipelines import assert_same_bits, on_devices, on_threads
from tests.helpers.small_lm import write_bucketed, write_config
from tests.runtime.backends.cuda.emulation import MISSING, compiler

TRAIN = "optimizer: adam, learning_rate: 0.02, clip_global_norm: 1.0, steps: 12"
SHARED = "group2ctx.decode=[cpu(0), cpu(1)]"
NEAR = {"float16": 2e-3, "bfloat16": 1e-2}


@pytest.fixture
def path(tmp_path):
    more = f"checkpoint: {{directory: {tmp_path / 'saved'}}}\nblas_threads: 1\n"
    return write_config(tmp_path, TRAIN, more, args="dropout: 0.2")


def run(path, *overrides, resume=False):
    """Of a run: what is known after each step, the summary, the weights and the trainer."""
    config = load_config(str(path), overrides)
    steps: list[Progress] = []
    with make_cluster("threads", len(config.devices)) as cluster, limit_blas(1):
        trainer = Trainer(prepare(config), cluster, load_data(config))
        assert (trainer.resume() is not None) == resume
        summary = trainer.fit(steps.append)
        return steps, summary, trainer.training.parameters(), trainer


def fresh(path, name, *overrides):
    return run(path, f"checkpoint.directory={path.parent / name}", *overrides)


def same_bits(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == "float32"
        assert array.tobytes() == other[name].tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("low", HALVES)
def test_losses_follow_those_of_float32(path, low):
    full, _, _, _ = fresh(path, "full")
    steps, summary, weights, _ = fresh(path, low, f"train.precision={low}")
    np.testing.assert_allclose([s.loss for s in steps], [s.loss for s in full], NEAR[low])
    assert steps[-1].loss < steps[0].loss - 0.1
    assert {a.dtype.name for a in weights.values()} == {"float32"}
    assert (summary["precision"], summary["skipped_steps"]) == (low, 0)


ELSEWHERE = {
    "one device": ["devices=[cpu(0)]"],
    "another schedule": ["pipeline.schedule=zb-h1"],
    "back and forth": ["group2ctx={embed: cpu(1), layer0: cpu(0), layer1: cpu(0), decode: cpu(1)}"],
    "a strategy": ["group2ctx={}", "partition.strategy=optimal"],
    "recomputed": ["pipeline.recompute=all"],
}


@pytest.mark.every(5)
@pytest.mark.parametrize(("where", "low"), [*zip(ELSEWHERE, cycle(HALVES), strict=False)])
def test_placements_and_schedules_give_the_same_bits(path, where, low):
    precision = ["train.precision=" + low, "train.steps=3"]
    _, _, want, _ = fresh(path, "here", *precision)
    _, _, got, _ = fresh(path, "there", *precision, *ELSEWHERE[where])
    same_bits(got, want)


@pytest.mark.filterwarnings("ignore:group2ctx maps groups")
@pytest.mark.parametrize("seed", range(4))
def test_random_networks_are_the_same_wherever_they_are(seed):
    case = random_case(seed)
    single = [{n: a.astype("float32") for n, a in t.items()} for t in (case.feeds, case.arrays)]
    case = case._replace(feeds=single[0], arrays=single[1])
    for low in HALVES:
        options = on_devices(3, random_groups(seed, 3), "1f1b", 3, precision=low)
        alone = replace(options, groups=None, devices=(cpu(0),))
        assert_same_bits(on_threads(case, options), on_threads(case, alone))


@pytest.mark.every(9)
@pytest.mark.parametrize(
    "more",
    [
        [SHARED],
        ["group2ctx.layer1=[cpu(0), cpu(1)]", "pipeline.micro_batches=3"],
        ["pipeline.time_segment=2"],
    ],
    ids=["shards", "replicas", "segments"],
)
def test_what_is_split(path, more):
    precision = ["train.precision=float16", "train.steps=4"]
    want, _, _, _ = fresh(path, "whole", *precision)
    got, _, _, _ = fresh(path, "split", *precision, *more)
    np.testing.assert_allclose([s.loss for s in got], [s.loss for s in want], 2e-3)


@pytest.mark.slow
def test_buckets(tmp_path):
    path = write_bucketed(tmp_path)
    want, _, _, _ = run(path, "train.steps=6")
    got, _, _, _ = run(path, "train.steps=6", "train.precision=float16")
    np.testing.assert_allclose([s.loss for s in got], [s.loss for s in want], 2e-3)
    assert all(s.scaling["loss_scale"] == symgraph.passes.loss_scale.FIRST for s in got)


# -- what it is for --------------------------------------------------------------------------------


@pytest.mark.parametrize("low", HALVES)
def test_memory_and_messages_fall(tmp_path, low):
    path = write_config(tmp_path, TRAIN, args="dropout: 0.2")
    wide = ["args.hidden=32", "args.embed=32", "args.dropout=0", "data.batch_size=16"]
    full = prepare(load_config(str(path), wide)).training
    half = prepare(load_config(str(path), [*wide, f"train.precision={low}"])).training
    rows = (plan_rows(made, made.memory) for made in (full, half))
    for before, after in zip(*rows, strict=True):
        assert after["messages"] == before["messages"]
        assert 2 * after["bytes_sent"] == before["bytes_sent"]
        assert after["parameter_bytes"] == before["parameter_bytes"]
        assert after["activation_bytes"] < 0.66 * before["activation_bytes"]
        rank = full.partition.rank_of[after["stage"]]
        peaks = [row["peak_bytes_predicted"] for row in (after, before)]
        beside = [scratch_bytes(made.partition, made.parameters)[rank] for made in (half, full)]
        # Of so small a network, most is what calls use for themselves.
        assert peaks[0] - beside[0] < peaks[1] - beside[1]
    _, summary, _, _ = run(path, *wide, f"train.precision={low}", "train.steps=2")
    for stage in summary["stages"]:
        assert stage["peak_bytes_measured"] == pytest.approx(stage["peak_bytes_predicted"], rel=0.1)


def test_parameters_in_16_bits_are_not_kept(path):
    """They are cast again for the backward phase: one kept for each micro-batch would be more than
    the activations that are saved."""
    made = prepare(load_config(str(path), ["train.precision=float16"])).training
    assert no_parameters_kept(made, FORWARD, BACKWARD)


def test_parameters_in_16_bits_are_not_kept_over_time_segments(path):
    """Only the forward phase keeps them, from its first segment that reads them on."""
    over = ["train.precision=float16", "pipeline.time_segment=2"]
    made = prepare(load_config(str(path), over)).training
    assert no_parameters_kept(made, BACKWARD)
    decoder = [key for key, body in made.partition.bodies.items() if "decode" in body.graph.nodes]
    bodies = [
        key
        for key in made.partition.bodies
        if key.stage == decoder[0].stage and key.phase == FORWARD
    ]
    found = made.partition.graph["decode_weight[float16]"]
    (at,) = [k for k in bodies if found.name in made.partition.bodies[k].graph.nodes]
    assert at == decoder[0]


def no_parameters_kept(made, *phases):
    """Whether bodies of these phases keep none of the parameters in 16 bits that there are."""
    cut = made.partition
    casts = {n.name for n in cut.graph if is_parameter_cast(cut.graph, n.name)}
    kept = {v.node for key, body in cut.bodies.items() if key.phase in phases for v in body.keeps}
    return casts and not kept.intersection(casts)


def test_gradients_of_parameters_still_can_wait(path):
    """Their W bodies have the products, though a cast lies between these and the parameter."""
    over = ["train.precision=float16", "pipeline.schedule=zb-h1"]
    bodies = prepare(load_config(str(path), over)).training.partition.bodies
    for key, body in bodies.items():
        products = {n.op for n in body.graph} & {"_fc_grad_weight", "_fc_grad_data"}
        assert products == {"_fc_grad_weight" if key.phase == WEIGHT else "_fc_grad_data"} or (
            not products
        )


def layers(names, sizes):
    x = sym.Variable("data")
    for name, size in zip(names, sizes, strict=True):
        with AttrScope(ctx_group=name):
            x = sym.tanh(sym.FullyConnected(x, num_hidden=size, name=name))
    with AttrScope(ctx_group=names[-1]):
        return sym.LinearRegressionOutput(x, sym.Variable("label"), name="loss")


@pytest.mark.every(15)
@pytest.mark.parametrize("strategy", [None, "chain", "optimal", "noncontiguous", "refine"])
def test_a_parameter_is_cast_in_the_stage_that_reads_it(strategy):
    """Not in an earlier one of its rank, nor on another rank: no edge carries a parameter."""
    names = ["a", "b", "c"]
    feeds = {n: Feed(TensorType((4, 6))) for n in ("data", "label")}
    groups = {"a": cpu(0), "b": cpu(1), "c": cpu(0)} if strategy is None else None
    options = on_devices(2, groups, "gpipe", 2, precision="float16", strategy=strategy)
    made = plan(layers(names, [6, 6, 6]), feeds, options, wrt=None).partition
    stage_of = made.placement.stage_of
    for node in made.graph:
        for value in node.inputs:
            if node.origin is None and is_parameter_cast(made.graph, value.node):
                assert stage_of[node.name] == stage_of[value.node]
    assert not [e for e in made.edges if is_parameter_cast(made.graph, e.value.node)]


# -- the loss scale --------------------------------------------------------------------------------


def test_a_scale_changes_nothing_but_what_is_rounded(path):
    """In bfloat16 a power of two is no rounding: norms, clipping and updates see none of it."""
    _, _, want, _ = fresh(path, "one", "train.precision=bfloat16")
    many = ["train.precision=bfloat16", "train.loss_scale=1024"]
    steps, _, got, _ = fresh(path, "many", *many)
    same_bits(got, want)
    assert {s.scaling["loss_scale"] for s in steps} == {1024}


def test_a_scale_saves_small_gradients():
    """A loss that is divided by much has gradients that float16 has no numbers for."""
    data, label = sym.Variable("data"), sym.Variable("label")
    fc = sym.FullyConnected(data, num_hidden=3, no_bias=True, name="fc")
    loss = sym.LinearRegressionOutput(fc, label, grad_scale=1e-9, name="loss")
    feeds = {n: Feed(TensorType((4, 3))) for n in ("data", "label")}
    found = {}
    for scale in (1.0, 2.0**14):
        options = on_devices(1, None, precision="float16", loss_scale=LossScale(scale))
        made = plan(loss, feeds, options, wrt=None)
        assert bool(made.network.scales) == (scale != 1)
        names = {"loss_loss_scale": np.full((1, 1), scale, "float32")}
        rng = np.random.default_rng(0)
        values = {n: rng.standard_normal((4, 3)).astype("float32") for n in feeds}
        weight = {"fc_weight": rng.standard_normal((3, 3)).astype("float32")}
        graph = made.network.first
        given = {n.name: (values | weight | names)[n.name] for n in graph.variables}
        found[scale] = evaluate(graph, given)[-1] / scale
    assert not found[1.0].any()
    assert np.abs(found[2.0**14]).min() > 0


@pytest.fixture
def too_large(monkeypatch):
    """Scales that begin where gradients overflow, and rise soon."""
    monkeypatch.setattr(symgraph.passes.loss_scale, "FIRST", 2.0**26)
    monkeypatch.setattr(symgraph.passes.loss_scale, "PATIENCE", 3)


def test_an_overflow_is_left_out_on_all_ranks_alike(path, too_large):
    steps, summary, weights, trainer = fresh(path, "two", "train.precision=float16")
    skipped = [s.scaling["skipped"] for s in steps]
    assert skipped[0] == 1
    assert 0 in skipped
    assert summary["skipped_steps"] == sum(skipped)
    ranks = trainer.training.updaters.values()
    assert len({(u.updates, u.loss_scale) for u in ranks}) == 1
    assert next(iter(ranks)).updates == len(steps) - sum(skipped)
    for one, other in pairwise(steps):
        factor = other.scaling["loss_scale"] / one.scaling["loss_scale"]
        assert factor == 0.5 if one.scaling["skipped"] else factor in (1, 2)
    _, _, alone, _ = fresh(path, "one", "train.precision=float16", "devices=[cpu(0)]")
    same_bits(alone, weights)
    assert all(np.isfinite(a).all() for a in weights.values())


def test_a_step_that_is_left_out_changes_no_weight(path, too_large):
    steps, _, weights, trainer = fresh(path, "a", "train.precision=float16", "train.steps=1")
    assert steps[0].scaling == {"loss_scale": 2.0**26, "skipped": 1.0}
    config = trainer.job.config
    with make_cluster("threads", 2) as cluster:
        begun = Trainer(prepare(config), cluster, load_data(config))
        same_bits(begun.training.parameters(), weights)


@pytest.mark.slow
def test_going_on_ends_with_the_same_bits(path, too_large):
    """Also the scale, its good steps and the count of updates, which is not that of steps."""
    precision = "train.precision=float16"
    _, _, want, whole = fresh(path, "whole", precision)
    run(path, precision, "train.steps=7")
    about = read_about(CheckpointFolder(path.parent / "saved").newest())
    assert about["updates"] < about["steps"] == 7
    _, _, got, again = run(path, precision, resume=True)
    same_bits(got, want)
    assert whole.training.updaters[0].progress == again.training.updaters[0].progress


def test_a_run_goes_on_in_another_precision(path):
    """Weights and states are float32 in a checkpoint whatever the precision.

    A run without a dynamic scale used to save a scale of 1, from which one in float16 went on.
    """
    run(path, "train.steps=7")
    steps, _, _, _ = run(path, "train.precision=float16", resume=True)
    full, _, _, _ = fresh(path, "full")
    np.testing.assert_allclose([s.loss for s in steps], [s.loss for s in full[7:]], 2e-3)
    assert {s.scaling["loss_scale"] for s in steps} == {symgraph.passes.loss_scale.FIRST}


# -- elsewhere -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason=MISSING)
@pytest.mark.parametrize("low", HALVES)
def test_gpus(path, low, monkeypatch):
    monkeypatch.setenv("SYMGRAPH_SHARE_GPUS", "1")
    over = ["train.precision=" + low, "train.steps=2"]
    groups = "group2ctx={embed: gpu(0), layer0: gpu(0), layer1: gpu(1), decode: gpu(1)}"
    with fake_cupy():
        got, _, _, _ = fresh(path, "gpus", *over, "devices=[gpu(0), gpu(1)]", groups)
    want, _, _, _ = fresh(path, "cpus", *over)
    np.testing.assert_allclose([s.loss for s in got], [s.loss for s in want], NEAR[low])


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("precision: float8", "train.precision: unknown value 'float8'"),
        ("precision: float16, dtype: float64", "float16 needs weights of float32, not train.dtype"),
        ("loss_scale: 0", "train.loss_scale: expected auto or a number above 0, got 0"),
        ("loss_scale: always", "train.loss_scale: expected auto or a number above 0"),
    ],
)
def test_mistakes(tmp_path, train, message):
    with pytest.raises(ConfigError, match=message):
        load_config(str(write_config(tmp_path, train)))


def test_a_precision_to_be_found_is_for_searches_of_devices_that_are_here(tmp_path):
    given = load_config(str(write_config(tmp_path, "precision: auto")))
    with pytest.raises(ConfigError, match="auto is for `symgraph search`, which tries float32"):
        training_plan(given)
    machine = tmp_path / "machine.yaml"
    machine.write_text("devices: {cpu(0): {flops: 1 TFLOP/s, call: 1 us}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"precision: auto compares measured losses, but `mach"):
        load_config(str(write_config(tmp_path, "precision: auto")), [f"machine={machine}"])
