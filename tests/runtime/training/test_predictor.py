"""Networks that run forward only: predictions for every sample, whatever they run on."""

from __future__ import annotations

import resource

import numpy as np
import pytest
import yaml

from runtime.engine.prediction import STREAM
from runtime.engine.session import Session
from runtime.training.data.base import Inputs
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.npz import NpzWriter
from runtime.training.predictor import Predictor
from runtime.training.trainer import Trainer, initial_arrays
from runtime.transports import ThreadCluster
from symgraph.app.config import load_config
from symgraph.core.errors import ConfigError, DTypeError, GraphError, LimitError, RunError
from symgraph.frontend.optimizer import SGD
from tests.helpers import forward_nets

ONE = ("devices=[cpu(0)]",)
RNG = np.random.default_rng(0)
SHAPES = {"mlp": (6,), "images": (1, 8, 8), "sequences": (4, 3)}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load a config of a network of forward_nets, with these arrays as its data."""
    monkeypatch.chdir(tmp_path)

    def loaded(name, arrays, *overrides, **sections):
        config = {
            "model": f"{forward_nets.__name__}:{name}",
            "data": {"kind": "arrays", "path": "in.npz", "batch_size": 8, "held_out": 0},
            "group2ctx": {"a": "cpu(0)", "b": "cpu(1)"},
            "pipeline": {"micro_batches": 3},
            "train": {"learning_rate": 0.1, "steps": 3},
        }
        np.savez(tmp_path / "in.npz", **arrays)
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config | sections), encoding="utf-8")
        return load_config("run.yaml", overrides)

    return loaded


def written(config, path="out.npz"):
    """What is written for a config, and the parameters."""
    with ThreadCluster(len(config.devices)) as cluster:
        predictor = Predictor(prepare(config, whole=True), cluster)
        figures = predictor.write(load_data(config), path)
        weights = predictor.session.parameters()
    with np.load(path) as file:
        found = dict(file)
    assert figures["outputs"] == {
        name: {"shape": list(array.shape), "dtype": array.dtype.name}
        for name, array in found.items()
    }
    return found, weights


def mlp(x, w):
    hidden = np.tanh(x @ w["fc1_weight"].T + w["fc1_bias"])
    return hidden @ w["fc2_weight"].T + w["fc2_bias"]


# 5 of 8 samples in the last batch; one batch more than a step has, and 3 samples; less than one.
@pytest.mark.parametrize("count", [21, 8 * STREAM + 11, 3])
@pytest.mark.parametrize("name", SHAPES)
def test_every_sample_is_written_once_to_the_same_bits_on_one_device(name, count, load):
    x = RNG.standard_normal((count, *SHAPES[name])).astype("float32")
    found, weights = written(load(name, {"data": x}))
    alone, _ = written(load(name, {"data": x}, *ONE))
    assert found.keys() == alone.keys()
    for output, array in found.items():
        np.testing.assert_array_equal(array, alone[output])
    if name == "mlp":
        np.testing.assert_allclose(found["fc2_output"], mlp(x, weights), rtol=1e-4, atol=1e-6)
    if name == "images":
        assert found["p_output"].shape == (count, 5)
    if name == "sequences":  # sums over the batch are left out
        assert found.keys() == {"every_output", "flat_output"}
        np.testing.assert_array_equal(found["flat_output"], found["every_output"].reshape(-1, 5))
        assert found["every_output"].shape == (4, count, 5)
        first, _ = written(load(name, {"data": x[:8]}))
        np.testing.assert_array_equal(found["every_output"][:, :8], first["every_output"])


def test_arrays_that_are_no_inputs_may_have_any_length(load):
    arrays = {"classes": np.array(["a", "b", "c"]), "rate": np.array(0.5), "data": np.ones((9, 6))}
    found, _ = written(load("mlp", arrays))
    assert found["fc2_output"].shape == (9, 3)


def test_weights_are_those_of_the_newest_checkpoint(load):
    """Labels are not needed, and a network without the loss takes the same parameters."""
    x, label = RNG.standard_normal((16, 6)).astype("float32"), RNG.integers(0, 3, 16)
    saving = {"checkpoint": {"directory": "saved"}}
    config = load("trained", {"data": x, "label": label}, **saving)
    with pytest.raises(ConfigError, match="saved has no checkpoint to predict with; train first"):
        written(config)
    with ThreadCluster(2) as cluster:
        trainer = Trainer(prepare(config), cluster, load_data(config))
        trainer.fit()
        weights = trainer.training.parameters()
    want = mlp(x, weights)
    probabilities = np.exp(want) / np.exp(want).sum(1, keepdims=True)
    with_labels, _ = written(config)
    without, used = written(load("trained", {"data": x}, **saving))
    for found in (with_labels, without):
        np.testing.assert_allclose(found["p_output"], probabilities, rtol=1e-4)
    for name, array in weights.items():
        np.testing.assert_array_equal(used[name], array)
    scores, _ = written(load("mlp", {"data": x, "label": label}, *ONE, **saving))
    np.testing.assert_allclose(scores["fc2_output"], want, rtol=1e-4, atol=1e-6)
    with pytest.raises(ConfigError, match=r"has no '(conv|fc)_weight': it was written by another"):
        written(load("images", {"data": x}, **saving))


def test_states_are_handed_on_from_batch_to_batch(load):
    x = RNG.standard_normal((20, 6)).astype("float32")
    found, _ = written(load("running", {"data": x}, *ONE))
    assert found.keys() == {"shown_output"}
    rows = x.sum(1, keepdims=True)
    want = np.concatenate(
        [rows[:8], rows[:8] + rows[8:16], (rows[:8] + rows[8:16])[:4] + rows[16:]]
    )
    np.testing.assert_allclose(found["shown_output"], want, rtol=1e-4, atol=1e-5)


def test_batches_of_a_function_may_be_short(load):
    function = f"{forward_nets.__name__}:short_batches"
    config = load("mlp", {}, data={"kind": "python", "function": function, "batch_size": 8})
    found, weights = written(config)
    x = np.concatenate([batch["data"] for batch in forward_nets.short_batches(8)])
    assert len(x) == 19
    np.testing.assert_allclose(found["fc2_output"], mlp(x, weights), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "arrays", "data", "message"),
    [
        ("mlp", {"date": np.zeros((9, 6))}, {}, "lacks 'data': the network's inputs are data"),
        ("mlp", {"data": np.zeros((9, 5))}, {}, r"'data' has the shape \(8, 5\), but the network"),
        ("mlp", {}, {"kind": "random"}, "predict on `arrays`, or on batches from a `python` func"),
    ],
)
def test_data_that_cannot_be_predicted_is_refused(name, arrays, data, message, load):
    sections = {"data": {"batch_size": 8, **data}} if data else {}
    with pytest.raises(ConfigError, match=message):
        written(load(name, arrays, **sections))


def test_an_input_of_another_type_than_the_weights_names_the_setting(load):
    config = load("mlp", {"data": np.zeros((9, 6))}, "train.dtype=float64")
    with pytest.raises(DTypeError, match=r"input 'data' \(float32\) and train.dtype \(float64\)"):
        prepare(config)


def test_a_text_has_no_samples_in_an_order(load, tmp_path):
    (tmp_path / "a.txt").write_text("one two\n" * 40)
    text = {"kind": "text", "path": "a.txt", "batch_size": 8, "sequence_length": 4, "vocab": 5}
    with pytest.raises(ConfigError, match="no samples in an order; predict on `arrays`"):
        load_data(load("mlp", {}, data=text)).in_order(Inputs({}))


def test_a_network_without_outputs_of_samples_is_refused(load):
    with pytest.raises(
        GraphError, match="nothing to predict: none of the outputs total_output has"
    ):
        written(load("summed", {"data": np.zeros((8, 6))}))


def test_a_session_predicts_from_python(load):
    config = load("mlp", {"data": np.zeros((8, 6))})
    x = RNG.standard_normal((20, 6)).astype("float32")
    job = prepare(config)
    with ThreadCluster(2) as cluster:
        session = Session(job.training, cluster, initial_arrays(job, cluster), keep_outputs=True)
        found = session.predict({"data": x[i : i + 8]} for i in range(0, 20, 8))
        again = session.predict([{"data": x[i : i + 1]} for i in range(20)])
        weights = session.parameters()
        assert session.predict([]) == {}
        with pytest.raises(GraphError, match="no input 'date'; did you mean 'data'"):
            session.predict([{"date": x}])
        with pytest.raises(GraphError, match=r"'data' of float32\[8,6\] is given"):
            session.predict([{"data": x}])
        plain = Session(job.training, cluster, session.arrays)
        with pytest.raises(RunError, match="this session does not predict"):
            plain.predict([{"data": x[:8]}])
    assert found.keys() == {"fc2_output"}
    np.testing.assert_allclose(found["fc2_output"], mlp(x, weights), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found["fc2_output"], again["fc2_output"])


def test_a_step_of_a_trained_network_has_one_batch(load):
    config = load("trained", {"data": np.zeros((16, 6)), "label": np.zeros(16)})
    job = prepare(config)
    with ThreadCluster(2) as cluster:
        session = Session(job.training, cluster, initial_arrays(job, cluster), optimizer=SGD(0.1))
        batches = load_data(config).source("training", config, job.model).batches(0)
        with pytest.raises(RunError, match="a step of this session has one batch, not 2"):
            session.step_batches(batches * 2)


def test_a_forward_only_plan_has_no_gradients_and_keeps_its_limit(load):
    arrays = {"data": np.zeros((8, 6))}
    job = prepare(load("mlp", arrays))
    assert job.evaluation is job.training
    assert not job.training.grads
    assert job.training.options.slots == 0
    with pytest.raises(
        ConfigError, match="has no loss, so there is nothing to train: `symgraph pred"
    ):
        Trainer(job, ThreadCluster(2), load_data(job.config)).fit()
    with pytest.raises(LimitError, match="that is the smallest limit that works"):
        prepare(load("mlp", arrays, partition={"memory": 100}))


def test_an_archive_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "out.npz"
    path.write_bytes(b"older")
    with pytest.raises(ValueError, match="shapes"), NpzWriter(path) as writer:
        writer.add({"a": np.zeros((2, 3)) + np.zeros(2)})
    assert path.read_bytes() == b"older"
    with NpzWriter(path) as writer:
        writer.add({"a": np.arange(6).reshape(2, 3), "b": np.zeros((2, 0), bool)})
        writer.add({"a": np.arange(3).reshape(1, 3), "b": np.zeros((1, 0), bool)})
        writer.finish(lambda name, rows: rows.T if name == "a" else rows)
    assert [file.name for file in tmp_path.iterdir()] == ["out.npz"]
    with np.load(path) as file:
        np.testing.assert_array_equal(file["a"], [[0, 3, 0], [1, 4, 1], [2, 5, 2]])
        assert file["b"].shape == (3, 0)


@pytest.mark.parametrize("rows", [200, 1])
def test_an_archive_for_which_there_is_no_room_is_named(tmp_path, rows):
    """It was "6144 requested and 0 written", and nothing said of what.

    A row has 8 bytes: 200 are too many by themselves, and one is with the archive's heads.
    """

    def write():
        with NpzWriter(tmp_path / "out.npz") as writer:
            writer.add({"a": np.zeros(rows)})
            writer.finish(lambda name, found: found)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(RunError, match=r"out\.npz: File too large"):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_scale_of_no_input_is_refused(load):
    config = load("mlp", {"data": np.ones((8, 6), "float32")}, "data.scale={dta: 0.5}", *ONE)
    with pytest.raises(ConfigError, match="the network has no input 'dta'"):
        written(config)
