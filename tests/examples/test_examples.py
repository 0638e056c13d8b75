"""The examples, as their first lines say to run them."""

from __future__ import annotations

import gzip
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from runtime.planning.options import Options
from runtime.planning.planner import plan
from symgraph.core.context import cpu
from symgraph.frontend.model import load_model
from tests.helpers.pipelines import Case, assert_close, judge, on_threads
from tests.mpi.launch import launch, needs_mpi

ROOT = Path(__file__).parents[2]


SEEDS = {"mlp_model_parallel": 2, "mlp_chain_list": 2, "dual_parallel": 4}  # example -> its ranks


def run_mlp(*arguments: str, example: str = "mlp") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"examples.{example}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_mlp_on_digits_has_equal_losses(schedule):
    pytest.importorskip("sklearn")
    done = run_mlp("--epochs", "1", "--schedule", schedule, "--micro-batches", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "17 steps, all losses equal bit for bit"


@pytest.mark.slow
@pytest.mark.parametrize("example", SEEDS)
def test_examples_of_chainermn_have_equal_losses(example):
    """X18: those of one process, at each step."""
    pytest.importorskip("sklearn")
    done = run_mlp("--epochs", "1", example=example)
    assert done.returncode == 0, done.stderr
    assert f"{SEEDS[example]} devices" in done.stdout
    assert done.stdout.splitlines()[-1] == "17 steps, all losses equal bit for bit"


@pytest.mark.parametrize("example", [pytest.param(name, marks=needs_mpi) for name in SEEDS])
def test_examples_run_on_mpi_ranks(example):
    pytest.importorskip("sklearn")
    ended = launch(SEEDS[example], f"examples.{example}", "--epochs", "1")
    assert (ended.status, ended.stderr) == (0, ""), ended
    assert ended.stdout.splitlines()[-1] == "17 steps, all losses equal bit for bit"


@pytest.mark.slow
def test_mlp_reads_idx_files(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (250, 28, 28), np.uint8)
    labels = rng.integers(0, 10, 250).astype(np.uint8)
    header = np.array([2051, 250, 28, 28], ">i4").tobytes()
    (tmp_path / "train-images-idx3-ubyte").write_bytes(header + images.tobytes())
    with gzip.open(tmp_path / "train-labels-idx1-ubyte.gz", "wb") as file:
        file.write(np.array([2049, 250], ">i4").tobytes() + labels.tobytes())
    done = run_mlp("--mnist", str(tmp_path), "--epochs", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("4 steps, ")


@pytest.fixture
def refused(monkeypatch, capsys):
    """Run an example in this process, which it leaves with status 2; what it says."""

    def run(example: str, *arguments: str) -> str:
        name = f"examples.{example}"
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        for module in (name, f"{name}.__main__"):  # else runpy warns
            monkeypatch.delitem(sys.modules, module, raising=False)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(name, run_name="__main__")
        assert ended.value.code == 2
        return capsys.readouterr().err

    return run


def test_mlp_names_the_missing_file(tmp_path, refused):
    assert "MNIST's such as train-images-idx3-ubyte.gz" in refused("mlp", "--mnist", str(tmp_path))


@pytest.mark.parametrize(
    ("example", "arguments", "said"),
    [
        ("mlp", "--epochs 0", "argument --epochs: '0' is not a whole number of 1 or more"),
        ("mlp", "--mnist nowhere", "no such file or folder: nowhere"),
        ("vgg_channel_parallel", "--steps -1", "argument --steps: '-1' is not a whole number"),
        ("seq2seq_attention", "--digits 7", "--digits 7 is more than 6"),
        ("seq2seq_attention", "--digits 1", "--digits 1 gives fewer than 10"),
    ],
)
def test_examples_name_arguments_that_leave_nothing_to_do(example, arguments, said, refused):
    """They divided by 0 steps, samples or texts, or read what no step had set."""
    pytest.importorskip("sklearn")
    assert said in (told := refused(example, *arguments.split()))
    assert "Traceback" not in told


def language_model_case(**args) -> Case:
    """The example's network in float64, with data, states and weights for it."""
    sizes = {"batch_size": 5, "sequence_length": 4, "vocab": 11, "hidden": 6, "embed": 6}
    model = load_model("examples.lstm_lm:build", {"layers": 3, "dtype": "float64", **sizes, **args})
    rng = np.random.default_rng(3)
    feeds = {}
    for name, feed in model.feeds.items():
        shape, dtype = feed.type
        feeds[name] = rng.integers(0, 11, shape) if "int" in dtype else rng.standard_normal(shape)
        feeds[name] = feeds[name].astype(dtype)
    weights = [n for n in model.symbol.list_arguments() if n not in feeds]
    made = plan(model.symbol, model.feeds, Options(), dtypes=dict.fromkeys(weights, "float64"))
    types = {n: made.partition.graph[n].types[0] for n in weights}
    arrays = {n: rng.standard_normal(t.shape) / 3 for n, t in types.items()}
    axes = {n: f.axis for n, f in model.feeds.items()}
    return Case(model.symbol, feeds, arrays, axes)


@pytest.mark.every(16)
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("residual", [True, False])
def test_lstm_lm_equals_reference(micro_batches, schedule, residual):
    """Time-major data, merged (T*B) rows, residual skips over stages, ragged micro-batches."""
    groups = {
        "embed": cpu(0),
        "layer0": cpu(0),
        "layer1": cpu(1),
        "layer2": cpu(2),
        "decode": cpu(2),
    }
    case = language_model_case(residual=residual)
    got = on_threads(case, Options(groups, cpu(0), (), schedule, micro_batches))
    assert_close(got, judge(case))
