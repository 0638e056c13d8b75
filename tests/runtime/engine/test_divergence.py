"""Losses that are not finite: training stops and names where they began, skips, or goes on."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import symgraph as sg
from runtime.engine.session import Session, initialize
from runtime.planning.options import Options
from runtime.planning.planner import plan
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.trainer import Trainer
from runtime.transports import ThreadCluster, make_cluster
from symgraph.app.config import load_config
from symgraph.core.context import cpu, gpu
from symgraph.core.errors import RunError
from symgraph.core.types import TensorType
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.passes.batching import Feed
from symgraph.passes.loss_scale import LossScale
from tests.helpers.gpus import STAND_IN
from tests.helpers.small_lm import write_config
from tests.mpi.launch import launch, needs_mpi

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ROWS, WIDTH = 4, 3
TYPES = {
    "data": TensorType((ROWS, WIDTH), "float32"),
    "factor": TensorType((ROWS, WIDTH), "float32"),
    "state": TensorType((ROWS, WIDTH), "float32"),
    "label": TensorType((ROWS,), "int32"),
}


def session(
    cluster: ThreadCluster,
    *,
    clip: float | None = None,
    on_nan: str = "stop",
    norm: bool = False,
    **given: Any,
) -> Session:
    """A pipeline of two ranks that takes the logarithm of `factor`, and carries a state."""
    with AttrScope(ctx_group="first"):
        x = sym.FullyConnected(sym.Variable("data"), num_hidden=WIDTH, name="inner")
        state = sym.identity(sym.Variable("state") * 0.5 + x, name="next")
        x = sym.BatchNorm(x, name="norm") if norm else x
    with AttrScope(ctx_group="second"):
        x = sym.elemwise_mul(x, sym.log(sym.Variable("factor"), name="logged"), name="product")
        x = sym.FullyConnected(x, num_hidden=5, name="outer")
        label = sym.Variable("label")
        loss = sym.SoftmaxOutput(x, label, normalization="valid", name="loss")
        out = sym.Group([loss, sym.nll_stats(loss, label, name="nll"), state])
    feeds = {name: Feed(type_, 0) for name, type_ in TYPES.items()}
    wrt = ["inner_weight", "inner_bias", "outer_weight", "outer_bias"]
    groups = {"first": cpu(0), "second": cpu(1)}
    more: dict[str, Any] = {"update": True, "states": {"state": state.list_outputs()[0]}}
    count = 1 if norm else 2  # normalisation mixes the samples of a micro-batch
    more |= {"groups": groups, "default": cpu(0), "devices": (cpu(0), cpu(1))}
    more |= {"schedule": "1f1b", "micro_batches": count}
    options = Options(**(more | given))
    made = plan(out, feeds, options, wrt=wrt, dtypes=dict.fromkeys(wrt, "float32"))
    arrays = initialize(made, cluster, sg.init.Uniform(0.5), seed=3)
    rule = sg.optimizer.create("sgd", learning_rate=0.1)
    return Session(made, cluster, arrays, optimizer=rule, clip=clip, on_nan=on_nan)


def fed(step: int, *, bad: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    feeds: dict[str, np.ndarray] = {
        name: rng.uniform(0.5, 1.5, TYPES[name].shape).astype("float32")
        for name in ("data", "factor")
    }
    if bad:
        feeds["factor"][-1, 0] = -1.0  # in the second micro-batch of two
    return feeds | {"label": rng.integers(0, 5, ROWS).astype("int32")}


def weights(run: Session) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in run.parameters().items()}


def test_stop_names_the_first_node_before_anything_is_updated():
    with ThreadCluster(2) as cluster:
        run = session(cluster)
        run.step(fed(0))
        before = weights(run)
        with pytest.raises(RunError) as caught:
            run.step(fed(1, bad=True))
        assert weights(run) == before
        run.step(fed(2))  # the session is whole
    assert str(caught.value) == (
        "training has diverged at step 2: the value of node 'logged' (log) is the first that is "
        "not finite (rank 1, micro-batch 1); its inputs are finite; lower the learning rate, or "
        "use on_nan: skip"
    )


@pytest.mark.parametrize(
    ("name", "node", "rank"),
    [
        ("inner_weight", "'inner' (FullyConnected)", 0),
        ("outer_bias", "'outer' (FullyConnected)", 1),
    ],
)
def test_parameters_that_were_bad_before_the_step_are_named(name, node, rank):
    with ThreadCluster(2) as cluster:
        run = session(cluster)
        run.arrays[rank][name].reshape(-1)[0] = np.inf if name == "inner_weight" else np.nan
        with pytest.raises(RunError) as caught:
            run.step(fed(0))
    assert f"node {node} is the first" in str(caught.value)
    assert f"(rank {rank}, micro-batch 0)" in str(caught.value)
    assert f"its parameter {name!r} was not finite before" in str(caught.value)


@pytest.mark.parametrize("name", ["data", "factor"])
def test_data_that_are_not_finite_are_named(name):
    """The advice was to lower the learning rate."""
    with ThreadCluster(2) as cluster:
        run = session(cluster)
        feeds = fed(0)
        feeds[name].reshape(-1)[0] = np.nan
        with pytest.raises(RunError) as caught:
            run.step(feeds)
    assert str(caught.value) == (
        "training has diverged at step 1: the batch has numbers that are not finite in "
        f"{name!r} (micro-batch 0); mend the data, or use on_nan: skip"
    )


@pytest.mark.parametrize("shared_gpu", [STAND_IN], indirect=True)
def test_values_on_a_card_are_looked_at_too(shared_gpu):
    with ThreadCluster(2) as cluster:
        cards = {"groups": {"first": gpu(0), "second": gpu(1)}, "devices": (gpu(0), gpu(1))}
        run = session(cluster, **cards, default=gpu(0))
        run.step(fed(0))
        with pytest.raises(RunError, match=r"node 'logged' \(log\) .* \(rank 1, micro-batch 1\)"):
            run.step(fed(1, bad=True))


def test_a_gradient_that_is_not_finite_is_found_at_the_next_step_at_the_latest():
    """Zeros times anything finite are a finite loss; its gradient is 1e38 times 13.8."""
    with ThreadCluster(2) as cluster:
        run = session(cluster)
        run.arrays[1]["outer_weight"][...] = np.linspace(-3e38, 3e38, 15).reshape(5, 3)
        run.arrays[0]["inner_weight"][...] = 0
        run.arrays[0]["inner_bias"][...] = 0
        figures = run.step(fed(0) | {"factor": np.full((ROWS, WIDTH), 1e6, "float32")})
        assert np.isfinite([*figures.values()]).all()
        with pytest.raises(RunError, match=r"at step 2: .* its parameter 'inner_.*' was not fin"):
            run.step(fed(1))


@pytest.mark.parametrize("norm", [False, True])
def test_skip_leaves_the_step_out(norm):
    """Weights, carried states and moving averages are those of a run without the step."""
    ends = []
    for bad in (True, False):
        with ThreadCluster(2) as cluster:
            run = session(cluster, on_nan="skip", norm=norm)
            figures = [run.step(fed(0))]
            if bad:
                figures.append(run.step(fed(1, bad=True)))
                assert np.isnan([v for v in figures[1].values() if v != 1.0]).any()
            else:
                run.steps += 1
            figures.append(run.step(fed(2)))
            states = [
                [a.tobytes() for arrays in worker.states.values() for a in arrays]
                for _, worker in sorted(run.workers.items())
            ]
            ends.append((weights(run), states, figures[-1], run.updaters[0].updates))
            assert [f["skipped"] for f in figures] == ([0, 1, 0] if bad else [0, 0])
    assert ends[0] == ends[1]


@pytest.mark.parametrize("clip", [None, 1.0])
def test_ignore_computes_as_written(clip):
    with ThreadCluster(2) as cluster:
        run = session(cluster, on_nan="ignore", clip=clip)
        figures = run.step(fed(0, bad=True))
        assert "skipped" not in figures
        assert all(np.isnan(run.arrays[1]["outer_weight"]).any() for _ in run.step(fed(1)))


@pytest.mark.parametrize("clip", [None, 1.0])
def test_an_overflow_under_a_loss_scale_is_no_error_but_a_bad_loss_is(clip):
    with ThreadCluster(2) as cluster:
        scale = LossScale(2.0**40, dynamic=True)
        run = session(cluster, clip=clip, precision="float16", loss_scale=scale)
        assert run.step(fed(0))["skipped"] == 1.0
        with pytest.raises(
            RunError, match=r"node 'logged' \(log\) is the first that is not finite"
        ):
            run.step(fed(1, bad=True))
        assert run.updaters[0].loss_scale.value == 2.0**39


def test_only_a_step_that_has_diverged_is_looked_at(monkeypatch):
    """Nothing is bound to look at values, nor looked at, in a normal step."""
    monkeypatch.setattr("runtime.engine.worker.NodeWatch", None)
    with ThreadCluster(2) as cluster:
        run = session(cluster, clip=1.0)
        for step in range(3):
            run.step(fed(step))
        assert all(worker.watch is None for worker in run.workers.values())


# -- whole runs ----------------------------------------------------------------------------------

DIVERGES = "optimizer: sgd, learning_rate: 1.0e+30, steps: 6"


def test_a_run_that_skips_counts_it_in_log_and_summary(tmp_path):
    path = write_config(tmp_path, DIVERGES + ", on_nan: skip", "evaluate: {tokens: 1}\n")
    config = load_config(str(path), [])
    steps = []
    with make_cluster("threads", 2) as cluster:
        trainer = Trainer(prepare(config), cluster, load_data(config))
        with pytest.raises(RunError, match="the loss is"):  # of the evaluation
            trainer.fit(steps.append)
    skipped = [step.scaling["skipped"] for step in steps]
    assert skipped[0] == 0
    assert trainer.skipped == sum(skipped) > 0


def test_a_run_that_ignores_it_ends_with_losses_that_are_none(tmp_path):
    config = load_config(str(write_config(tmp_path, DIVERGES + ", on_nan: ignore")), [])
    with make_cluster("threads", 2) as cluster:
        summary = Trainer(prepare(config), cluster, load_data(config)).fit()
    assert (summary["loss"], summary["perplexity"], summary["train_loss"]) == (None,) * 3
    assert json.loads(json.dumps(summary, allow_nan=False))["steps"] == 6


@pytest.mark.parametrize("processes", [pytest.param(2, marks=needs_mpi)])
def test_all_processes_name_the_same_node(tmp_path, processes):
    ended = launch(processes, "symgraph.run", write_config(tmp_path, DIVERGES))
    assert ended.status == 1, str(ended)
    said = ended.lines("training has diverged")
    assert said
    assert len({line.split("error: ")[-1].split(" (flight")[0] for line in said}) == 1
    assert "is the first that is not finite (rank " in said[0]
