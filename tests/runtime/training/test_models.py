"""Models that come in files, losses that a config adds, and files in place of a config."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import symgraph as sg
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.models import build_model
from runtime.training.trainer import Trainer
from runtime.transports import make_cluster
from symgraph.app.config import Config, load_config
from symgraph.core.errors import ConfigError, GraphError
from symgraph.frontend.params_file import save_params
from tests.helpers.profiles import costs

TORCH = Path(__file__).parents[2] / "symgraph" / "interchange" / "torch" / "data"
RNG = np.random.default_rng(0)
WEIGHTS = {
    "fc_weight": RNG.standard_normal((3, 4)).astype("float32"),
    "fc_bias": RNG.standard_normal(3).astype("float32"),
}
DATA = RNG.standard_normal((8, 4)).astype("float32")


def network(end: str = "") -> sg.Symbol:
    """Three outputs of four inputs; end: the operator behind."""
    x = sg.sym.FullyConnected(sg.sym.Variable("data"), num_hidden=3, name="fc")
    return getattr(sg.sym, end)(x, name="end") if end else x


def onnx_file(folder: Path, end: str = "", batch: int = 0) -> Path:
    pytest.importorskip("onnx", reason="needs the extra `onnx`")
    path = folder / "net.onnx"
    sg.onnx.export_model(network(end), WEIGHTS, [(batch, 4)], onnx_file_path=str(path))
    return path


def arrays(folder: Path, label: np.ndarray) -> str:
    np.savez(folder / "data.npz", data=DATA, label=label)
    return str(folder / "data.npz")


def stepped(config: Config) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """The summary of a run, and the weights at its end."""
    with make_cluster("threads", len(config.devices)) as cluster:
        trainer = Trainer(prepare(config), cluster, load_data(config))
        summary = trainer.fit()
        return summary, trainer.training.parameters()


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


OUT = DATA @ WEIGHTS["fc_weight"].T + WEIGHTS["fc_bias"]
CLASSES = OUT.argmin(1)
TARGETS = RNG.standard_normal((8, 3)).astype("float32")
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
SIGMOID = 1 / (1 + np.exp(-OUT))
# The kind, what the network ends in, the labels -> the mean loss, and its gradient by the output.
LOSSES = {
    "softmax_cross_entropy": (
        "",
        CLASSES,
        -np.log(softmax(OUT)[ONE_HOT > 0]).mean(),
        softmax(OUT) - ONE_HOT,
    ),
    "softmax_cross_entropy of a softmax": (
        "softmax",
        CLASSES,
        -np.log(softmax(OUT)[ONE_HOT > 0]).mean(),
        softmax(OUT) - ONE_HOT,
    ),
    "logistic": (
        "",
        ONE_HOT,
        -np.log(np.where(ONE_HOT > 0, SIGMOID, 1 - SIGMOID)).mean(),
        (SIGMOID - ONE_HOT) / 3,
    ),
    "logistic of a sigmoid": (
        "sigmoid",
        ONE_HOT,
        -np.log(np.where(ONE_HOT > 0, SIGMOID, 1 - SIGMOID)).mean(),
        (SIGMOID - ONE_HOT) / 3,
    ),
    "squared_error": ("", TARGETS, ((OUT - TARGETS) ** 2).mean(), (OUT - TARGETS) / 3),
    "absolute_error": ("", TARGETS, np.abs(OUT - TARGETS).mean(), np.sign(OUT - TARGETS) / 3),
}


@pytest.mark.every(6)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("parts", [1, 3])
def test_a_config_adds_a_loss(name, parts, tmp_path):
    end, label, loss, gradient = LOSSES[name]
    config = load_config(
        str(onnx_file(tmp_path, end)),
        (
            "batch_size=8",
            f"loss.kind={name.split()[0]}",
            f"data={{path: {arrays(tmp_path, label)}, held_out: 0, shuffle: false, batch_size: 8}}",
            "train={steps: 1, learning_rate: 0.5}",
            f"pipeline.micro_batches={parts}",
            f"partition.costs={costs(tmp_path)}",
        ),
    )
    summary, weights = stepped(config)
    assert summary["train_loss"] == pytest.approx(loss, rel=1e-5)
    want = WEIGHTS["fc_weight"] - 0.5 * gradient.T @ DATA / 8
    np.testing.assert_allclose(weights["fc_weight"], want, rtol=1e-4, atol=1e-6)


def test_labels_of_images_and_of_sequences(tmp_path):
    """The classes are on axis 1 or the last one; ignored labels do not count."""
    x = RNG.standard_normal((4, 5, 3)).astype("float32")
    label = RNG.integers(0, 3, (4, 5))
    label[0, 0] = 7
    found = []
    for axis, array in ((-1, x), (1, x.transpose(0, 2, 1))):
        folder = tmp_path / str(axis)
        folder.mkdir()
        net = sg.sym.broadcast_mul(
            sg.sym.Variable("data"), sg.sym.Variable("scale_weight", shape=(1, 1, 1))
        )
        np.savez(folder / "data.npz", data=array, label=label)
        net.save(str(folder / "net.json"))
        save_params(folder / "net.params", {"scale_weight": np.ones((1, 1, 1), "float32")}, {})
        config = load_config(
            str(folder / "net.json"),
            (
                f"args={{params: {folder}/net.params, shapes: {{data: {[0, *array.shape[1:]]}}}}}",
                f"data={{path: {folder}/data.npz, held_out: 0, batch_size: 4}}",
                f"loss={{axis: {axis}, ignore_label: 7}}",
                "train={steps: 1}",
                "pipeline.micro_batches=2",
                f"partition.costs={costs(folder)}",
            ),
        )
        found.append(stepped(config)[0]["train_loss"])
    counted = label != 7
    want = -np.log(softmax(x[counted])[np.arange(counted.sum()), label[counted]]).mean()
    assert found == pytest.approx([want, want], rel=1e-5)


@pytest.mark.slow
def test_an_exported_mean_is_reported_as_it_is(tmp_path):
    """PyTorch's losses are means: the sum of micro-batches' parts was divided by the samples."""
    with np.load(TORCH / "encoder_layer.npz") as file:
        inputs = {k[6:]: v for k, v in file.items() if k.startswith("input:")}
        want = float(file["output"].reshape(()))
    np.savez(tmp_path / "data.npz", **inputs)
    config = load_config(
        str(TORCH / "encoder_layer.pt2"),
        (
            f"batch_size={len(next(iter(inputs.values())))}",
            f"data.path={tmp_path}/data.npz",
            "data.held_out=0",
            "loss.kind=output",
            "train.steps=1",
            "pipeline.micro_batches=2",
            "devices=[cpu(0), cpu(1)]",
            f"partition.costs={costs(tmp_path)}",
        ),
    )
    assert config.partition.strategy == "auto"
    assert stepped(config)[0]["train_loss"] == pytest.approx(want, rel=1e-5)


def test_mxnets_files_train_where_they_were_left(tmp_path):
    """A symbol with its loss and parameters: the label's shape follows from the network."""
    net = sg.sym.SoftmaxOutput(network(), name="softmax")
    net.save(str(tmp_path / "net-symbol.json"))
    save_params(tmp_path / "net-0003.params", WEIGHTS, {})
    (tmp_path / "run.yaml").write_text(
        "model: net-symbol.json\n"
        "args: {params: net-0003.params, shapes: {data: [0, 4]}}\n"
        "data: {batch_size: 4}\n",
        encoding="utf-8",
    )
    model = build_model(load_config(str(tmp_path / "run.yaml")))
    assert {n: f.type.shape for n, f in model.feeds.items()} == {
        "data": (4, 4),
        "softmax_label": (4,),
    }
    assert model.params.keys() == WEIGHTS.keys()


def test_a_plan_in_the_file_places_the_network(tmp_path):
    pytest.importorskip("onnx", reason="needs the extra `onnx`")
    from runtime.frontends.cli.plan_onnx import write_onnx
    from runtime.training.job import training_plan

    given = load_config("examples/table.yaml", ("data={kind: random, batch_size: 8}",))
    path = str(tmp_path / "planned.onnx")
    write_onnx(training_plan(given), path)
    config = load_config(path, ("batch_size=8",), synthetic=True)
    assert config.devices == given.devices
    assert set(config.group2ctx.values()) == set(given.devices)
    assert config.partition.strategy is None
    chosen = load_config(path, ("partition.strategy=chain",), synthetic=True)
    assert not chosen.group2ctx
    one = load_config(path, ("devices=[cpu(0)]",), synthetic=True)
    assert set(one.group2ctx.values()) == {"cpu(0)"}


def test_the_batch_that_a_file_fixes_can_be_another(tmp_path):
    path = str(onnx_file(tmp_path, batch=2))
    sizes = {}
    for given in ((), ("batch_size=6",)):
        model = build_model(load_config(path, given, synthetic=True))
        sizes[given] = model.feeds["data"].type.shape
    assert [*sizes.values()] == [(2, 4), (6, 4)]


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ((), "leaves the batch of 'data' open"),
        (("batch_size=8", "args.shape={data: [0, 4]}"), "args.shape: .*shapes"),
        (("batch_size=8", "args.shapes={dat: [0, 4]}"), "no input 'dat'.*data"),
        (("batch_size=8", "loss.output=en"), "no output 'en'.*fc_output"),
        (("batch_size=8", "loss.kind=softmax"), "loss.kind: .*softmax_cross_entropy"),
        (("data={kind: stdlib_text, batch_size: 4, buckets: [4]}",), "data.buckets.*function"),
    ],
)
def test_mistakes_are_named(overrides, error, tmp_path):
    path = str(onnx_file(tmp_path))
    with pytest.raises((ConfigError, GraphError), match=error):
        prepare(load_config(path, overrides, synthetic=True))


def test_a_model_file_that_is_missing_or_damaged(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.onnx"):
        prepare(load_config(str(tmp_path / "nowhere.onnx"), (), synthetic=True))
    (tmp_path / "net.json").write_text(json.dumps({"nodes": [], "heads": "?"}), encoding="utf-8")
    with pytest.raises((ConfigError, GraphError), match=r"net\.json"):
        prepare(load_config(str(tmp_path / "net.json"), (), synthetic=True))
    with pytest.raises(ConfigError, match=r"model: .*\.onnx"):
        load_config("examples/table.yaml", ("model=net.h5",))
