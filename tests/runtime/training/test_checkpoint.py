"""Checkpoints: a run that stops and goes on elsewhere ends with the same bits."""

from __future__ import annotations

import errno
import os
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from runtime.backends.device.processor import limit_blas
from runtime.training.checkpoints.disk import Disk
from runtime.training.checkpoints.folder import CheckpointFolder
from runtime.training.checkpoints.sessions import load_checkpoint, save_checkpoint
from runtime.training.checkpoints.state import read_about
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.trainer import Trainer
from runtime.transports import make_cluster
from runtime.transports.versions import versions
from symgraph.app.config import load_config
from symgraph.core.errors import ConfigError, RunError
from tests.helpers.small_lm import write_config

TRAIN = "optimizer: adam, learning_rate: 0.01, clip_global_norm: 1.0, steps: 12"
ELSEWHERE = {
    "the same": [],
    "one device": ["devices=[cpu(0)]"],
    "three devices, swapped": [
        "devices=[cpu(0), cpu(1), cpu(2)]",
        "pipeline.schedule=gpipe",
        "group2ctx={embed: cpu(1), layer0: cpu(2), layer1: cpu(0), decode: cpu(1)}",
    ],
}


@pytest.fixture
def path(tmp_path):
    return checkpointed(tmp_path)


def checkpointed(folder: Path) -> Path:
    """A config that saves every 5 steps into `saved` beside it, with dropout to be kept exact."""
    more = f"checkpoint: {{directory: {folder / 'saved'}, every: 5}}\nblas_threads: 1\n"
    return write_config(folder, TRAIN, more, args="dropout: 0.2")


def train(path: Path, *overrides: str) -> tuple[float, dict[str, np.ndarray], Path | None]:
    """Held-out loss and weights at the end, and the checkpoint the run went on from."""
    config = load_config(str(path), overrides)
    with make_cluster("threads", len(config.devices)) as cluster, limit_blas(1):
        trainer = Trainer(prepare(config), cluster, load_data(config))
        source = trainer.resume()
        loss = trainer.fit()["loss"]
        return loss, trainer.training.parameters(), source


@pytest.fixture(scope="module")
def run_to(tmp_path_factory):
    """Train to a step, once for all tests; return the checkpoints, the loss and the weights."""

    @cache
    def made(steps: int) -> tuple[Path, float, dict[str, np.ndarray]]:
        path = checkpointed(tmp_path_factory.mktemp("run"))
        loss, weights, _ = train(path, f"train.steps={steps}")
        return path.parent / "saved", loss, weights

    return made


@pytest.fixture
def stopped(path, run_to):
    """Copy the checkpoints of a run that stopped at a step to where the config has them."""
    return lambda steps: shutil.copytree(run_to(steps)[0], path.parent / "saved")


@pytest.mark.every(3)
@pytest.mark.parametrize("where", ELSEWHERE)
def test_going_on_elsewhere_ends_with_the_same_bits(path, run_to, stopped, where):
    """Case X17, pipelines 29: also the optimizer, dropout, and states carried over batches."""
    _, loss, weights = run_to(12)
    stopped(7)
    again, then, source = train(path, *ELSEWHERE[where])
    assert source is not None
    assert source.name == "step-00000007"
    assert again == loss
    assert all(then[name].tobytes() == array.tobytes() for name, array in weights.items())


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_goes_on_from_zero_states_and_from_a_new_optimizer(path, steps):
    """Before the first step, and after `reset_states`, there are no arrays yet to be saved."""
    config, folder = load_config(str(path)), path.parent / "begun"
    weights = []
    with make_cluster("threads", 2) as cluster:
        for _ in range(2):
            trainer = Trainer(prepare(config), cluster, load_data(config))
            session = trainer.training
            if load_checkpoint(session, folder) is None:
                for step in range(steps):
                    session.step_batches(trainer.source.batches(step))
                session.reset_states()
                save_checkpoint(session, folder)
            session.step_batches(trainer.source.batches(steps))
            weights.append({name: a.tobytes() for name, a in session.parameters().items()})
    assert weights[0] == weights[1]


def test_the_newest_are_kept_and_hold_weights_by_name(run_to):
    saved, _, weights = run_to(12)
    assert sorted(p.name for p in saved.iterdir()) == ["step-00000010", "step-00000012"]
    files = sorted((saved / "step-00000012").glob("*.safetensors"))
    tensors = {k: v for file in files for k, v in load_file(file).items()}
    assert all(tensors[name].tobytes() == array.tobytes() for name, array in weights.items())
    assert "optimizer/decode_weight/mean" in tensors
    assert tensors["state/layer0_init_c"].shape == (6, 8)


@pytest.mark.slow
def test_a_finished_run_only_evaluates(path, run_to, stopped):
    stopped(12)
    again, _, source = train(path)
    assert source is not None
    assert again == run_to(12)[1]


def test_never_resume_starts_anew(path, run_to, stopped):
    stopped(12)
    again, _, source = train(path, "checkpoint.resume=never")
    assert (again, source) == (run_to(12)[1], None)


def test_a_run_begun_anew_keeps_its_own_checkpoints(path, stopped):
    """The highest step numbers were kept, so that those of a new run were removed at once."""
    stopped(12)
    train(path, "checkpoint.resume=never", "train.steps=7")
    saved = path.parent / "saved"
    assert sorted(p.name for p in saved.iterdir()) == ["step-00000005", "step-00000007"]
    assert CheckpointFolder(saved).newest() == saved / "step-00000007"


def test_a_checkpoint_that_was_not_finished_is_not_used(stopped):
    saved = stopped(5)
    (saved / "step-00000005").rename(saved / ".step-00000005.partial")
    assert CheckpointFolder(saved).newest() is None


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("args.hidden=9", r"args: .*hidden.* was written with"),
        ("train.optimizer=sgd", "train.optimizer: 'sgd', but .* was written with 'adam'"),
        ("data.sequence_length=4", "data.sequence_length: 4, but .* written with 5"),
    ],
)
def test_another_run_is_refused(path, stopped, override, message):
    stopped(2)
    with pytest.raises(ConfigError, match=message):
        train(path, override)


def test_other_words_are_refused(path, stopped):
    """Ids follow the words' counts: of a text that had grown, they meant other words, silently."""
    stopped(2)
    text = path.parent / "text.txt"
    text.write_text("\n".join([*text.read_text().splitlines()[::-1]]), encoding="utf-8")
    train(path, "train.steps=3")  # the same words in the same numbers
    text.write_text("w1 w1 new " * 50 + text.read_text(), encoding="utf-8")
    with pytest.raises(ConfigError, match="the text has another vocabulary than the one that"):
        train(path, "train.steps=4")


def flip(file: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 16
    file.write_bytes(data)


DAMAGES = {
    "a bit": (lambda f: flip(f / "rank-0.safetensors"), "rank-0.safetensors is not as it was w"),
    "gone": (lambda f: (f / "rank-1.safetensors").unlink(), "rank-1.safetensors is missing"),
    "cut": (lambda f: os.truncate(f / "rank-1.safetensors", 9), "rank-1.safetensors has 9 bytes"),
    "manifest": (lambda f: flip(f / "checkpoint.json"), "checkpoint.json (is not as|cannot be)"),
    "old": (lambda f: (f / "checkpoint.json").write_text('{"steps": 7}'), "has no checksum"),
    "stale": (
        lambda f: shutil.copy(f.with_name("step-00000005") / "rank-1.safetensors", f),
        r"rank-1.safetensors (has \d+ bytes|is not as it was written)",
    ),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_the_older_one_named(path, run_to, stopped, how):
    """F5: 128 of 128 were refused without a word of the older one, which was whole.

    And F4: what loads were not the numbers that had been saved.
    """
    damage, what = DAMAGES[how]
    saved = stopped(7)
    damage(saved / "step-00000007")
    with pytest.raises(ConfigError, match=rf"step-00000007 is damaged: .*{what}") as caught:
        train(path)
    assert f"the newest whole one is {saved / 'step-00000005'}: checkpoint.fallback=true" in str(
        caught.value
    )
    with pytest.warns(UserWarning, match="it is set aside, and .*step-00000005 taken"):
        loss, _, source = train(path, "checkpoint.fallback=true")
    assert source == saved / "step-00000005"
    assert sorted(p.name for p in saved.iterdir()) == [
        "damaged-step-00000007",
        "step-00000010",
        "step-00000012",
    ]
    assert loss == run_to(12)[1]


def test_without_a_whole_checkpoint_no_run_starts_silently_anew(path, stopped):
    flip(stopped(2) / "step-00000002" / "rank-0.safetensors")
    for fallback in ("true", "false"):
        with pytest.raises(ConfigError, match="no older one that is whole: start anew with"):
            train(path, f"checkpoint.fallback={fallback}")
    assert train(path, "checkpoint.resume=never", "train.steps=2")[2] is None


def test_other_versions_than_the_checkpoints_are_warned_of(path, stopped, monkeypatch):
    stopped(2)
    now = {**versions(), "numpy": "9.9"}
    monkeypatch.setattr("runtime.training.trainer.versions", lambda: now)
    with pytest.warns(UserWarning, match=r"other versions \(numpy 9.9, not .*: bits may differ"):
        train(path, "train.steps=3")


def test_the_manifest_says_how_the_run_was_planned(run_to):
    about = read_about(run_to(2)[0] / "step-00000002")
    assert about["plan"]["micro_batches"] == 4
    assert about["versions"] == versions()
    assert (about["steps"], about["updates"], about["generation"]) == (2, 2, 1)


def test_a_folder_that_cannot_be_written_is_told_before_the_first_step(path):
    """It was told after the last one, when nothing could be saved any more."""
    (path.parent / "saved").write_text("a file, not a folder")
    config = load_config(str(path))
    with (
        make_cluster("threads", 2) as cluster,
        pytest.raises(ConfigError, match=r"checkpoint.directory: cannot write .*: Not a directory"),
    ):
        Trainer(prepare(config), cluster, load_data(config))


def test_two_runs_do_not_write_into_one_folder(path):
    """Each removed what the other one was writing: one ended at a file that was not there.

    F12: the second one read the folder before it took the lock, and found half a checkpoint.
    """
    (path.parent / "step-00000009").mkdir()
    with (
        CheckpointFolder(path.parent).alone(),
        pytest.raises(ConfigError, match="another run is writing checkpoints into"),
    ):
        train(path, f"checkpoint.directory={path.parent}", "train.steps=1")
    (path.parent / "step-00000009").rmdir()
    train(path, f"checkpoint.directory={path.parent}", "train.steps=1")
    assert CheckpointFolder(path.parent).newest() == path.parent / "step-00000001"


@pytest.mark.parametrize("asynchronous", ["true", "false"])
def test_a_full_disk_ends_the_run_and_leaves_older_checkpoints(path, monkeypatch, asynchronous):
    """What was half written filled the disk."""
    saved = path.parent / "saved"
    (saved / ".step-00000003.partial").mkdir(parents=True)  # of a run that was killed
    train(path, "train.steps=2")
    assert [p.name for p in saved.iterdir()] == ["step-00000002"]

    def full(self, file, chunks):
        file.write_bytes(b"the first bytes")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Disk, "write", full)
    with pytest.raises(RunError, match=r"cannot write the checkpoint .*step-00000003: .* space"):
        train(
            path, "train.steps=6", "checkpoint.every=3", f"checkpoint.asynchronous={asynchronous}"
        )
    assert [p.name for p in saved.iterdir()] == ["step-00000002"]
