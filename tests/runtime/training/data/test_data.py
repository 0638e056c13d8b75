"""Data of any kind: arrays in files, batches from functions, random values; losses and metrics."""

from __future__ import annotations

import gzip
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

import symgraph as sg
from runtime.training.data import python as python_data
from runtime.training.data.base import Inputs
from runtime.training.data.files import read_array, read_arrays
from runtime.training.data.random_values import RandomValues
from runtime.training.data.table import SOURCES, load_data
from runtime.training.job import prepare
from runtime.training.loss import FIGURES, with_figures
from runtime.training.trainer import Trainer
from runtime.transports import make_cluster
from symgraph import Feed, Model, TensorType
from symgraph.app.config import load_config
from symgraph.app.data_config import KINDS
from symgraph.core.errors import ConfigError, RunError
from symgraph.core.reference import evaluate
from symgraph.core.registry import OPS
from symgraph.frontend import idx_file
from symgraph.frontend.lower import lower
from symgraph.frontend.model import load_model
from symgraph.passes.number_ranges import number_ranges
from tests.runtime.training.data import nets

NETS = Path(nets.__file__)
PYTHON = {"kind": "python", "function": "nets.py:batches", "batch_size": 16}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load a config with this data section, beside a copy of nets.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS.read_text(encoding="utf-8"), encoding="utf-8")

    def loaded(data, *overrides, args=None):
        config = {
            "model": "nets.py:build",
            "args": args or {},
            "data": data,
            "devices": ["cpu(0)", "cpu(1)"],
            "group2ctx": {"a": "cpu(0)", "b": "cpu(1)"},
            "pipeline": {"micro_batches": 3},
            "train": {"learning_rate": 0.3, "epochs": 2},
        }
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        return load_config("run.yaml", overrides)

    return loaded


def fitted(config):
    """The summary of a run on threads, and the losses of its steps."""
    losses = []
    with make_cluster("threads", len(config.devices)) as cluster:
        trainer = Trainer(prepare(config), cluster, load_data(config))
        return trainer.fit(lambda p: losses.append(p.loss)), losses


def inputs(batch=16, head="softmax"):
    return Inputs.of(nets.build(batch, head))


# -- the kinds -------------------------------------------------------------------------------------


def test_every_kind_has_a_section_and_a_loader():
    assert {*KINDS} == {*SOURCES}


def test_arrays_are_shuffled_anew_each_epoch_and_held_out_ones_are_never_trained_on(load):
    np.savez("d.npz", **nets.samples(50))
    config = load({"kind": "arrays", "path": "d.npz", "batch_size": 16, "held_out": 0.2})
    data, model = load_data(config), nets.build(16)
    train, valid = (data.source(part, config, model) for part in ("training", "held-out"))

    def rows(source, steps):
        found = [b.feeds["data"][: 16 - b.pad] for n in steps for b in source.batches(n)]
        return [row.tobytes() for row in np.concatenate(found)]

    first, second, held = rows(train, range(2)), rows(train, range(2, 4)), rows(valid, range(1))
    assert (len(train), len(valid)) == (2, 1)
    assert first != second
    assert len({*first}) == 32
    assert len(held) == 10
    assert not {*held} & {*first, *second}
    assert rows(train, range(2)) == first  # an earlier step again
    assert train.begins_epoch(2)
    assert not train.begins_epoch(1)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [5, 7, 16, 21])
def test_the_loss_of_held_out_samples_does_not_depend_on_the_batch(load, batch):
    """Samples that fill up the last batch do not count: 21 are 5 x 5 - 4, 3 x 7, 16 + 5."""
    np.savez("d.npz", **nets.samples(64))
    np.savez("v.npz", **nets.samples(21, seed=5))
    data = {"kind": "arrays", "path": "d.npz", "valid_path": "v.npz", "batch_size": batch}
    config = load(data, "evaluate.metrics=[accuracy, ce]", "train.learning_rate=1e-9")
    summary, _ = fitted(config)
    held_out = summary["held_out"]
    assert held_out["loss"] == pytest.approx(held_out["cross-entropy"], rel=1e-6)
    whole = load({**data, "batch_size": 21}, "evaluate.metrics=[accuracy]", *config_of_rate())
    assert held_out["loss"] == pytest.approx(fitted(whole)[0]["loss"], rel=1e-5)
    assert held_out["accuracy"] * 21 == pytest.approx(round(held_out["accuracy"] * 21))


def test_short_batches_anywhere_in_the_held_out_part_count_by_their_samples(load):
    """Only the padding of the last batch was taken out of the loss."""
    data = {**PYTHON, "valid": "nets.py:ragged_batches"}
    held_out = fitted(load(data, "evaluate.metrics=[ce]"))[0]["held_out"]
    assert held_out["loss"] == pytest.approx(held_out["cross-entropy"], rel=1e-6)


def test_samples_that_fill_up_a_batch_do_not_count_where_states_are_carried(load):
    """They had the states of the samples that they stood for, which were not subtracted."""
    data = {**PYTHON, "valid": "nets.py:ragged_batches", "args": {"head": "linear"}}
    config = load(data, "model=nets.py:carried", "evaluate.metrics=[mse]", *config_of_rate())
    held_out = fitted(config)[0]["held_out"]
    assert held_out["loss"] == pytest.approx(held_out["mse"], rel=1e-6)


def config_of_rate():
    return ("train.learning_rate=1e-9",)


def test_batches_of_a_function_start_anew_each_epoch(load):
    config = load(PYTHON)
    source = load_data(config).source("training", config, nets.build(16))
    first = [source.batches(n)[0].feeds["data"].copy() for n in range(5)]
    assert len(source) == 2  # of 40 samples; the rest is left out
    assert source.begins_epoch(4)
    assert not source.begins_epoch(3)
    assert not np.array_equal(first[0], first[2])  # another epoch
    assert np.array_equal(source.batches(0)[0].feeds["data"], first[0])
    assert np.array_equal(first[2], nets.samples(40, seed=1)["data"][:16])


def test_a_function_may_return_a_function_of_the_epoch(load):
    config = load({"kind": "python", "function": "nets.py:loaded_once", "batch_size": 32})
    source = load_data(config).source("training", config, nets.build(32))
    assert [source.begins_epoch(n) for n in range(6)] == [True, True, False, True, False, False]


def test_an_endless_iterator_needs_a_number_of_batches_or_steps(load, monkeypatch):
    monkeypatch.setattr(python_data, "LONGEST", 50)
    endless = {**PYTHON, "function": "nets.py:endless"}
    with pytest.raises(ConfigError, match=r"has more than 50 batches: set data\.batches"):
        fitted(load(endless))
    assert fitted(load({**endless, "batches": 3}))[0]["steps"] == 6
    assert fitted(load(endless, "train.epochs=null", "train.steps=5"))[0]["steps"] == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"function": "nets.py:strange"}, r"nets.py:strange returns int, not an iterable"),
        ({"function": "nets.py:batchs"}, r"no function 'batchs'; did you mean 'batches'"),
        ({"function": "nots.py:batches"}, r"data.function: no such file: nots.py"),
        ({"args": {"cuont": 3}}, r"unexpected keyword argument 'cuont'.*did you mean 'count'"),
        ({"function": "nets.py:broken"}, r"failed at .*nets.py, line \d+: OSError: disk gone"),
        ({"args": {"head": "linear"}}, r"'label' has the shape \(16, 3\), but .* float32\[16\]"),
        ({"args": {"count": 9}}, r"has no whole batch of 16 samples"),
        (  # ended the epoch, and what followed was never used
            {"function": "nets.py:ragged_batches"},
            r"ragged_batches yields a batch of \d+ samples in epoch 0 and others after it",
        ),
        ({"function": "nets.py:ragged"}, r"ragged: 'data' is no array: .*inhomogeneous"),
        ({"function": "nets.py:scalars"}, r"scalars: 'data' has the shape \(\), but .*\[16,6\]"),
        ({"valid": "nets.py:strange"}, r"data.valid: nets.py:strange returns int"),
    ],
)
def test_mistakes_in_functions_are_one_line(load, change, message):
    with pytest.raises(ConfigError, match=message) as raised:
        fitted(load({**PYTHON, **change}, "train.epochs=1"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.valid=nets.py:nope"], r"data.valid: nets.py has no function 'nope'"),
        (["data.valid=nets.py:misnamed"], r"misnamed has 'dta', but the network has no such input"),
        (["evaluate.metrics=[accuracy,f1]"], r"evaluate.metrics.* 'f1': .*two classes, not .*, 3"),
        (["evaluate.metrics=[mae]"], r"evaluate.metrics.* 'mae': labels \(16,\) do not fit"),
    ],
)
def test_held_out_data_and_metrics_that_do_not_fit_are_refused_before_a_step(
    load, overrides, message
):
    """All steps were made before the error, and their weights were lost."""
    config = load({**PYTHON, "valid": "nets.py:held_out"}, *overrides)
    with make_cluster("threads", 2) as cluster, pytest.raises(ConfigError, match=message):
        Trainer(prepare(config), cluster, load_data(config))


def test_metrics_that_fit_are_let_through(load):
    data = {**PYTHON, "valid": "nets.py:held_out"}  # the last batch is filled up
    found = fitted(load(data, "evaluate.metrics=[accuracy,ce,pcc]"))[0]
    assert len(found["held_out"]) == 4
    data["args"] = {"head": "logistic"}
    found = fitted(load(data, "evaluate.metrics=[mae,pearsonr]", args={"head": "logistic"}))[0]
    assert len(found["held_out"]) == 3


def test_held_out_data_that_break_off_after_training_are_a_failure(load):
    """It was bad input, after which a supervisor starts no run again."""
    with pytest.raises(RunError, match=r"data.valid: nets.py:broken failed at .*disk gone"):
        fitted(load({**PYTHON, "valid": "nets.py:broken"}))


def test_a_look_at_the_first_held_out_batch_takes_none_from_the_evaluation(load):
    """A function may return one reader, which is wherever the last loop over it was."""
    data = {**PYTHON, "function": "nets.py:sixteens", "batch_size": 16}
    plain, again = (
        fitted(load({**data, "valid": f"nets.py:{name}"}))[0]["held_out"]
        for name in ("sixteens", "rewound")
    )
    assert again == plain


def test_an_evaluation_that_fails_leaves_the_checkpoint_and_the_summary(load):
    """The summary was computed after the evaluation, and never seen."""
    config = load({**PYTHON, "valid": "nets.py:unknown_class"}, "checkpoint.directory=saved")
    with make_cluster("threads", 2) as cluster:
        trainer = Trainer(prepare(config), cluster, load_data(config))
        with pytest.raises(RunError, match=r"label 7\.0 is outside"):
            trainer.fit()
    assert trainer.trained is not None
    assert trainer.trained["steps"] == 4
    assert trainer.trained["held_out"] == {}
    assert trainer.where_saved == "checkpoint saved/step-00000004"
    assert Path("saved/step-00000004").is_dir()


def test_random_ids_are_within_the_range_of_what_reads_them():
    data, label, lengths = map(sg.sym.Variable, ("data", "label", "lengths"))
    x = sg.sym.Embedding(sg.sym.Reshape(data, shape=(-1,)), input_dim=11, output_dim=4, name="e")
    x = sg.sym.SequenceMask(sg.sym.Reshape(x, shape=(5, 2, 4)), lengths, use_sequence_length=True)
    x = sg.sym.FullyConnected(sg.sym.Reshape(x, shape=(-1, 4)), num_hidden=3, name="fc")
    graph = lower(
        sg.sym.SoftmaxOutput(x, sg.sym.Cast(label, dtype="float32")),
        {"data": (5, 2), "label": (10,), "lengths": (2,)},
        {"data": "int32", "label": "int32", "lengths": "int32"},
    )
    found = number_ranges(graph, ["data", "label", "lengths", "fc_weight"])
    assert found == {"data": (0, 11), "label": (0, 3), "lengths": (1, 6)}


def test_random_numbers_of_losses_regions_and_distributions_are_valid():
    """They were normal numbers, so that no config with these operators ran on random values."""
    names = ("x", "word", "image", "region", "anchor", "box", "scores", "alpha", "beta")
    x, word, image, region, anchor, box, scores, alpha, beta = map(sg.sym.Variable, names)
    symbol = sg.sym.Group(
        [
            sg.sym.CTCLoss(x, word),
            sg.sym.ROIPooling(image, region, pooled_size=(2, 2), spatial_scale=0.5),
            sg.sym.contrib.MultiBoxTarget(anchor, box, scores),
            sg.sym.sample_gamma(alpha, beta),
        ]
    )
    shapes = ((9, 2, 5), (2, 4), (2, 1, 8, 6), (3, 5), (1, 7, 4), (2, 3, 5), (2, 4, 7), (3,), (3,))
    types = {name: TensorType(shape) for name, shape in zip(names, shapes, strict=True)}
    graph = lower(symbol, {name: type_.shape for name, type_ in types.items()})
    found = number_ranges(graph, names)
    assert found == {
        "word": (1, 5),
        "region": ((0, 0, 0, 6, 8), (2, 6, 8, 12, 16)),
        "box": ((0, 0, 0, 1, 1), (3, 1, 1, 2, 2)),
        "alpha": (1, 10),
        "beta": (1, 10),
    }
    model = Model(symbol, {name: Feed(type_) for name, type_ in types.items()})
    (batch,) = RandomValues(Inputs.of(model), found, 1, 0).batches(0)
    evaluate(graph, batch.feeds)  # raises for what is out of range


def test_random_numbers_are_in_the_domain_of_what_reads_them():
    """Half of the logarithms were NaN, so a trial of speed ended as training that diverged."""
    x, mask, other = map(sg.sym.Variable, ("x", "mask", "other"))
    y = sg.sym.where(mask, sg.sym.log(x), other**2) + sg.sym.sqrt(sg.sym.Reshape(x, shape=(4, 2)))
    graph = lower(y + x**-0.5, dict.fromkeys(("x", "mask", "other"), (4, 2)))
    assert number_ranges(graph, ["x", "mask", "other"]) == {"x": (1, 10), "mask": (0, 2)}


def test_a_config_without_data_is_given_random_values_if_asked(load, tmp_path):
    load({"kind": "random"})
    text = (tmp_path / "run.yaml").read_text().replace("data: {kind: random}", "")
    (tmp_path / "run.yaml").write_text(text.replace("data:\n  kind: random\n", ""))
    assert load_config("run.yaml", ["data.batch_size=4"], synthetic=True).data.kind == "random"
    with pytest.raises(ConfigError, match="data: required key is missing"):
        load_config("run.yaml")
    assert fitted(load({"batch_size": 8, "batches": 3}))[0]["samples"] == 48


# -- losses ----------------------------------------------------------------------------------------


def test_every_loss_has_figures():
    """But one of a user's own, of which only its author knows what it measures."""
    losses = {name for name, op in OPS.items() if op.loss and not name.startswith("_")}
    assert losses - {"Custom"} == {*FIGURES}


@pytest.mark.every(4)
@pytest.mark.parametrize("head", nets.HEADS)
def test_losses_are_those_of_the_whole_batch_on_every_placement(load, head):
    np.savez("d.npz", **nets.samples(40, head))
    data = {"kind": "arrays", "path": "d.npz", "batch_size": 12, "held_out": 0}
    config = load(data, "train.learning_rate=0.05", args={"head": head})
    summary, losses = fitted(config)
    assert losses[-1] < losses[0]
    assert (summary["loss"], summary["held_out"]) == (None, {})
    rate = "train.learning_rate=0.05"
    alone = load(data, rate, "devices=[cpu(0)]", "group2ctx={}", args={"head": head})
    assert fitted(alone)[1] == losses
    whole = load(data, rate, "pipeline.micro_batches=1", args={"head": head})
    assert fitted(whole)[1] == pytest.approx(losses, rel=1e-5)
    values = {"train.learning_rate=1e-9", "data.shuffle=false", "train.steps=1"}
    _, (first,) = fitted(load(data, *values, args={"head": head}))
    assert first == pytest.approx(by_hand(head, config), rel=1e-5)


def test_a_network_that_mixes_samples_reports_its_loss(load):
    """It trained one step, and ended in a KeyError: no output was known as a sum over samples."""
    values = ["model=nets.py:of_pairs", "group2ctx={}", "pipeline.micro_batches=1"]
    config = load({"kind": "random", "batch_size": 4, "batches": 1}, *values, "train.steps=1")
    _, (loss,) = fitted(config)
    assert loss == pytest.approx(np.log(4), rel=0.05)


def by_hand(head, config):
    """The loss of the first 12 samples with the first weights, in numpy."""
    with make_cluster("threads", 2) as cluster:
        trainer = Trainer(prepare(config), cluster, load_data(config))
        weights = trainer.training.parameters()
    arrays = nets.samples(40, head)
    x, y = arrays["data"][:12].astype("float64"), arrays["label"][:12]
    x = np.tanh(x @ weights["fc1_weight"].T + weights["fc1_bias"])
    x = x @ weights["fc2_weight"].T + weights["fc2_bias"]
    if head == "softmax":
        p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        return -np.log(p[np.arange(12), y.astype(int)]).mean()
    if head == "soft":
        return -(y * np.log(np.exp(x) / np.exp(x).sum(1, keepdims=True))).sum(1).mean()
    if head.startswith("svm"):
        margin, scale, power = (1, 0.1, 2) if head == "svm" else (0.5, 1, 1)
        sign = np.where(y[:, None] == np.arange(3), -1, 1)
        return scale * (np.maximum(0, margin + sign * x) ** power).sum(1).mean()
    if head == "logistic":
        p = 1 / (1 + np.exp(-x))
        return -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()
    error = np.abs(x - y) if head == "mae" else (x - y) ** 2
    return error.sum() / 12 if head == "summed" else error.mean()


def test_plans_of_one_network_have_the_same_names(load):
    """--search took a placement over from another plan, and "node '_plus5' is not placed" was said.

    Operators without a name were counted on from one build to the next.
    """
    config = load(PYTHON, args={"head": "linear"})
    first, again = (list(prepare(config).training.partition.graph.nodes) for _ in range(2))
    assert any(name.startswith("reshape") for name in first)
    assert first == again


def test_a_model_that_reports_its_loss_is_not_changed():
    model = load_model(
        "examples.lstm_lm:build",
        {"batch_size": 2, "sequence_length": 3, "vocab": 9, "layers": 1, "hidden": 4, "embed": 4},
    )
    same, (loss,) = with_figures(model)
    assert same is model
    assert (loss.total, loss.count) == ("nll_nll", "nll_count")


def test_metrics_that_do_not_fit_are_one_line(load):
    np.savez("d.npz", **nets.samples(40))
    data = {"kind": "arrays", "path": "d.npz", "batch_size": 8}
    with pytest.raises(ConfigError, match=r"evaluate.metrics: unknown metric 'acuracy'.*accuracy"):
        fitted(load(data, "evaluate.metrics=[acuracy]"))


# -- files -----------------------------------------------------------------------------------------


def idx(array, kind=8):
    head = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype({8: ">u1", 13: ">f4"}[kind]).tobytes()


def test_files_of_all_formats_hold_the_same_arrays(tmp_path):
    arrays = {"data": np.arange(24, dtype="uint8").reshape(4, 2, 3), "label": np.arange(4)}
    np.savez(tmp_path / "d.npz", **arrays)
    save_file(arrays, tmp_path / "d.safetensors")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    for path in ("d.npz", "d.safetensors", "folder"):
        found, valid = read_arrays(str(tmp_path / path))
        assert valid is None
        assert {*found} == {*arrays}
        assert all(np.array_equal(found[n], arrays[n]) for n in arrays)
    assert isinstance(read_array(str(folder / "data.npy")), np.memmap)
    (tmp_path / "images.gz").write_bytes(gzip.compress(idx(arrays["data"])))
    assert np.array_equal(read_array(str(tmp_path / "images.gz")), arrays["data"])
    (tmp_path / "floats").write_bytes(idx(np.array([1.5, -2.0]), 13))
    assert read_array(str(tmp_path / "floats")).tolist() == [1.5, -2.0]


def test_mnist_and_cifar_folders_have_a_held_out_part(tmp_path):
    mnist, cifar = tmp_path / "mnist", tmp_path / "cifar"
    mnist.mkdir()
    cifar.mkdir()
    for part, count in (("train", 5), ("t10k", 2)):
        pixels = np.full((count, 28, 28), count, "uint8")
        (mnist / f"{part}-images-idx3-ubyte").write_bytes(idx(pixels))
        labels = gzip.compress(idx(np.arange(count, dtype="uint8")))
        (mnist / f"{part}-labels-idx1-ubyte.gz").write_bytes(labels)
    train, valid = read_arrays(str(mnist))
    assert train["data"].shape == (5, 28, 28)
    assert valid["label"].tolist() == [0, 1]
    for name, count in (("data_batch_1", 3), ("data_batch_2", 2), ("test_batch", 1)):
        rows = np.zeros((count, 1 + 3072), "uint8")
        rows[:, 0] = count
        (cifar / f"{name}.bin").write_bytes(rows.tobytes())
    train, valid = read_arrays(str(cifar))
    assert train["data"].shape == (5, 3, 32, 32)
    assert train["label"].tolist() == [3, 3, 3, 2, 2]
    assert valid["label"].tolist() == [1]


def test_images_of_bytes_are_scaled_and_reshaped_to_the_network(load):
    pixels = np.arange(40 * 6, dtype="uint8").reshape(40, 2, 3)
    np.savez("d.npz", data=pixels, label=np.arange(40) % 3)
    data = {"kind": "arrays", "path": "d.npz", "batch_size": 10, "held_out": 0, "shuffle": False}
    config = load({**data, "scale": {"data": 0.5}})
    batch = load_data(config).source("training", config, nets.build(10)).batches(1)[0]
    assert batch.feeds["data"].dtype == "float32"
    assert np.array_equal(batch.feeds["data"], pixels[10:20].reshape(10, 6) * 0.5)


def damaged(tmp_path):
    """Files that are not what their names say, and what must be said of them."""
    pickled = np.array([{"a": 1}], dtype=object)
    np.save(tmp_path / "pickle.npy", pickled, allow_pickle=True)
    np.savez(tmp_path / "pickle.npz", data=pickled)
    (tmp_path / "short.npz").write_bytes(b"PK\x03\x04rest")
    (tmp_path / "short").write_bytes(idx(np.zeros((3, 2)))[:-1])
    huge = bytes([0, 0, 8, 3]) + struct.pack(">3I", 1 << 31, 1 << 31, 1 << 31)
    (tmp_path / "huge").write_bytes(huge)
    (tmp_path / "huge.gz").write_bytes(gzip.compress(huge + bytes(1 << 20)))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(idx(np.zeros((30, 20))))[:-9])
    zeros = bytes([0, 0, 8, 2]) + struct.pack(">2I", 3, 1 << 29) + bytes(1 << 20)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(zeros))
    (tmp_path / "words.bin").write_bytes(b"no image")
    (tmp_path / "text.npy").write_bytes(b"some words")
    large = {"descr": "<f4", "fortran_order": False, "shape": (1 << 62, 4)}
    with (tmp_path / "overflow.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, large)
    with zipfile.ZipFile(tmp_path / "hello.npz", "w") as archive:
        archive.writestr("data.npy", "hello")
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", bytes(1 << 22))
    (tmp_path / "empty").mkdir()
    return {
        "pickle.npy": "Python objects",
        "text.npy": "neither .npy nor an IDX file",
        "overflow.npy": "too big",
        "hello.npz": "'data' in it is no .npy file",
        "bomb.npz": "more than 100 times as many",
        "bomb.gz": "more than 100 times as many",
        "pickle.npz": "allow_pickle",
        "short.npz": "not a file of arrays",
        "short": "has 6 bytes of numbers, but there are fewer",
        "huge": "of numbers, but there are fewer",
        "huge.gz": "more than 100 times as many",
        "cut.gz": "not a",
        "words.bin": "not a number of CIFAR's images",
        "empty": "has no files of arrays",
        "none.npz": "no such file of arrays",
    }


def test_damaged_files_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(idx_file, "LARGEST", 1 << 20)
    for name, message in damaged(tmp_path).items():
        read = read_arrays if name.endswith((".npz", ".bin", "empty")) else read_array
        with pytest.raises(ConfigError, match=message) as raised:
            read(str(tmp_path / name))
        assert name in str(raised.value)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"data": np.zeros((40, 6))}, "lacks 'label': the network's inputs are data, label"),
        ({"data": np.zeros((40, 6)), "lable": np.zeros(40)}, "no such input; did you mean 'label'"),
        ({"data": np.zeros((40, 6)), "label": np.zeros(39)}, "numbers of samples differ: .* 39"),
        ({"data": np.zeros((40, 7)), "label": np.zeros(40)}, r"the shape \(8, 7\), but .*\[8,6\]"),
        ({"data": np.zeros((5, 6)), "label": np.zeros(5)}, "fewer than a batch of 8"),
        ({"data": np.zeros((0, 6)), "label": np.zeros(0)}, "has no samples"),
        ({"data": np.full((40, 6), "a"), "label": np.zeros(40)}, "which is no number"),
    ],
)
def test_arrays_that_do_not_fit_the_network_are_one_line(load, arrays, message):
    np.savez("d.npz", **arrays)
    with pytest.raises(ConfigError, match=message) as raised:
        fitted(load({"kind": "arrays", "path": "d.npz", "batch_size": 8}))
    assert "\n" not in str(raised.value)


def test_labels_that_are_no_whole_numbers_do_not_become_ids():
    feeds = {"label": sg.Feed(sg.TensorType((2,), "int32"))}
    with pytest.raises(
        ConfigError, match=r"'label' has 0\.5, which is no number of the network's type"
    ):
        Inputs(feeds).batch_of({"label": np.array([0.5, 1.0])}, "x")
    fitting = Inputs(feeds).batch_of({"label": np.array([2.0, 1.0])}, "x")
    assert fitting.feeds["label"].tolist() == [2, 1]


def test_a_diverged_loss_ends_the_run(load):
    np.savez("d.npz", **nets.samples(40, "linear"))
    config = load(
        {"kind": "arrays", "path": "d.npz", "batch_size": 8},
        "train.learning_rate=1e30",
        args={"head": "linear"},
    )
    with pytest.raises(RunError, match="diverged"):
        fitted(config)
