"""Whole runs of a config whose data is sentences in buckets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner.costs.cost import Speed
from runtime.backends.device.processor import limit_blas
from runtime.frontends.cli.plan_report import plan_report
from runtime.training.data.table import load_data
from runtime.training.data.text import IGNORED
from runtime.training.job import prepare
from runtime.training.trainer import Trainer
from runtime.transports import make_cluster
from symgraph.app.config import load_config
from symgraph.core.errors import ConfigError, LimitError
from tests.helpers.profiles import ESTIMATES, costs
from tests.helpers.small_lm import write_bucketed


def run(path, *overrides):
    """The summary, the weights, and the step that was gone on from."""
    config = load_config(str(path), overrides)
    with make_cluster("threads", len(config.devices)) as cluster, limit_blas(1):
        trainer = Trainer(prepare(config), cluster, load_data(config))
        trainer.resume()
        first = trainer.training.steps
        return trainer.fit(), trainer.training.parameters(), first


@pytest.mark.slow
def test_a_run_learns_and_counts_its_words(tmp_path):
    path = write_bucketed(tmp_path)
    config = load_config(str(path))
    summary, _, _ = run(path, "train.steps=60")
    batches = load_data(config).source("training", config, None)
    counted = 0
    for step in range(60):
        given = batches.batches(step)
        assert len(given) == 2
        counted += sum(int((b.label[0] != IGNORED).sum()) for b in given)
    assert summary["tokens"] == counted
    assert summary["perplexity"] < 12
    assert summary["predicted_step_seconds"] is None
    for stage in summary["stages"]:
        assert stage["peak_bytes_measured"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "elsewhere",
    [[], ["devices=[cpu(0)]"], ["pipeline.schedule=gpipe"], ["data.buckets=[12, 7, 4, 7]"]],
)
def test_a_run_goes_on_with_the_same_bits(tmp_path, elsewhere):
    path = write_bucketed(tmp_path, more=f"checkpoint: {{directory: {tmp_path / 'saved'}}}\n")
    summary, weights, _ = run(path, f"checkpoint.directory={tmp_path / 'other'}")
    run(path, "train.steps=5")
    again, then, first = run(path, *elsewhere)
    assert first == 5
    assert again["loss"] == summary["loss"]
    assert again["tokens"] == summary["tokens"]
    assert all(then[name].tobytes() == array.tobytes() for name, array in weights.items())


@pytest.mark.slow
def test_a_run_by_time_goes_on_with_the_same_bits_though_prices_have_changed(tmp_path):
    """A run that measures its prices again would choose other micro-batches."""
    saved = f"checkpoint.directory={tmp_path / 'saved'}"
    more = f"checkpoint: {{directory: {tmp_path / 'other'}}}\n"
    path = write_bucketed(tmp_path, more=more)
    given = "data.micro_batches=by_time", "data.window=2", "blas_threads=1"
    slow, fast = (f"partition.costs={priced(tmp_path, call)}" for call in (1e-3, 1e-9))
    summary, weights, _ = run(path, *given, slow)
    run(path, *given, slow, saved, "train.steps=5")
    again, then, first = run(path, *given, fast, saved)
    assert first == 5
    assert again["loss"] == summary["loss"]
    assert again["tokens"] == summary["tokens"]
    assert all(then[name].tobytes() == array.tobytes() for name, array in weights.items())
    _, other, _ = run(path, *given, fast, "checkpoint=null")
    assert any(other[name].tobytes() != array.tobytes() for name, array in weights.items())


def priced(folder, call):
    """A file of costs with that many seconds a call."""
    table = replace(ESTIMATES, speed=Speed(1e9, call, 1e10))
    path = folder / f"costs{call}.json"
    path.write_text(table.to_json())
    return path


def test_the_plan_says_which_bucket_it_shows(tmp_path):
    text, _ = plan_report(prepare(load_config(str(write_bucketed(tmp_path)))))
    assert "of the buckets 4, 7, 12 the largest is shown" in text


@pytest.mark.parametrize("by", ["by_bucket", "by_time"])
def test_a_limit_that_planning_accepts_is_enough_for_every_step(tmp_path, by):
    """`plan` counted one batch, and `train` stopped at the first step that needed more. By time,
    the limit that was named was that of the largest bucket alone, and did not work either."""
    path = write_bucketed(tmp_path, "buckets: [3, 5], batches_per_step: 2", longest=5)
    given = f"data.micro_batches={by}", "train.steps=8", f"partition.costs={costs(tmp_path)}"
    with pytest.raises(LimitError, match="that is the smallest limit that works") as error:
        prepare(load_config(str(path), [*given, "partition.memory=1000"]))
    smallest = error.value.smallest
    with pytest.raises(LimitError) as error:
        prepare(load_config(str(path), [*given, f"partition.memory={smallest - 1}"]))
    assert error.value.smallest == smallest
    summary, _, _ = run(path, *given, f"partition.memory={smallest}")
    peaks = [stage["peak_bytes_predicted"] for stage in summary["stages"]]
    assert max(peaks) <= smallest


@pytest.mark.slow
def test_memory_is_told_of_all_batches_of_a_step(tmp_path):
    """The predicted memory was of one batch, the measured memory of steps with two."""
    path = write_bucketed(tmp_path, "buckets: [12], batches_per_step: 2")
    text, figures = plan_report(prepare(load_config(str(path))))
    assert "at the worst moment of a step of 2 batches of the largest bucket" in text
    alone = prepare(load_config(str(path), ["data.batches_per_step=1"])).training.memory
    summary, _, _ = run(path, "train.steps=2")
    for known, ran in zip(figures["stages"], summary["stages"], strict=True):
        assert known["peak_bytes_predicted"] == ran["peak_bytes_predicted"]
        assert ran["peak_bytes_predicted"] > 1.1 * alone[ran["rank"]].peak
        assert ran["peak_bytes_measured"] == pytest.approx(ran["peak_bytes_predicted"], rel=0.05)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ("buckets: [4], sequence_length: 5", "data.buckets: excludes data.sequence_length"),
        ("valid_path: null", "data: sequence_length or buckets is missing"),
        (
            "sequence_length: 5, batches_per_step: 2",
            "data.batches_per_step: applies to data.buckets",
        ),
        (
            "sequence_length: 5, micro_batches: by_time",
            "data.micro_batches: applies to data.buckets",
        ),
        ("buckets: [4], rows: [2]", "data.rows: applies to data.micro_batches: by_time"),
        ("buckets: [4], window: 2", "data.window: applies to data.micro_batches: by_time"),
        ("buckets: [4], micro_batches: by_size", "data.micro_batches.*by_bucket.*by_time"),
        ("buckets: []", "data.buckets"),
        ("buckets: [4, 0]", "data.buckets"),
    ],
)
def test_lengths_that_are_no_lengths(tmp_path, lengths, message):
    with pytest.raises(ConfigError, match=message):
        load_config(str(write_bucketed(tmp_path, lengths)))


def test_a_model_that_cannot_ignore_pads_is_refused(tmp_path):
    path = write_bucketed(tmp_path)
    path.write_text(
        path.read_text().replace("examples.lstm_lm:build", "tests.helpers.faults:build")
    )
    with pytest.raises(ConfigError, match="ignore_label"):
        prepare(load_config(str(path)))


@pytest.mark.slow
def test_times_of_stages_are_those_of_all_buckets(tmp_path):
    """Short buckets have fewer time segments than the largest, by whose stages times are shown."""
    path = write_bucketed(tmp_path, more="blas_threads: 1\n")
    summary, _, _ = run(path, "pipeline.time_segment=3", "train.steps=4")
    assert all(stage["seconds"] > 0 for stage in summary["stages"])
