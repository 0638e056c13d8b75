"""Saving while training goes on: order, back-pressure, failures."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from runtime.backends.device.processor import limit_blas
from runtime.training.checkpoints.disk import Disk
from runtime.training.checkpoints.folder import CheckpointFolder
from runtime.training.checkpoints.manifest import Manifest
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.trainer import Trainer
from runtime.transports import make_cluster
from symgraph.app.config import load_config
from symgraph.core.errors import RunError
from tests.runtime.training.test_checkpoint import checkpointed, train

LONG = 60.0  # seconds; a wait that comes near it hangs


class HeldDisk(Disk):
    """A disk that writes tensors only once it is let go."""

    def __init__(self) -> None:
        self.go, self.writing = threading.Event(), threading.Event()

    def write(self, file, chunks):
        self.writing.set()
        assert self.go.wait(LONG)
        super().write(file, chunks)


@pytest.fixture
def path(tmp_path):
    return checkpointed(tmp_path)


def trained(path: Path, disk: Disk, *overrides: str, **hooks):
    config = load_config(str(path), overrides)
    with make_cluster("threads", 2) as cluster, limit_blas(1):
        trainer = Trainer(prepare(config), cluster, load_data(config))
        assert trainer.folder is not None
        trainer.folder.disk = disk
        return trainer.fit(**hooks)


def test_training_goes_on_while_files_are_written(path):
    """What is saved is the state of that step, though later steps have changed the weights."""
    disk = HeldDisk()

    def on_step(progress):
        if progress.step == 7:
            assert disk.writing.wait(LONG)
            assert not (path.parent / "saved" / "step-00000005").exists()
            disk.go.set()

    summary = trained(path, disk, "train.steps=9", on_step=on_step)
    assert summary["checkpoint_stall"]["saves"] == 1
    saved = path.parent / "saved"
    assert [e.path.name for e in CheckpointFolder(saved).entries()] == [
        "step-00000009",
        "step-00000005",
    ]
    train(path, f"checkpoint.directory={path.parent / 'other'}", "train.steps=5")
    there, other = (Manifest.read(f / "step-00000005") for f in (saved, path.parent / "other"))
    assert there.files == other.files  # their checksums, too


def test_a_save_waits_for_the_one_before(path):
    """Never two at once, however often the config asks."""
    partials = []

    class Counting(Disk):
        def write(self, file, chunks):
            partials.append(len([*(path.parent / "saved").glob(".step-*.partial")]))
            super().write(file, chunks)

    stalls = []
    summary = trained(
        path,
        Counting(),
        "checkpoint.every=1",
        "checkpoint.keep=20",
        on_save=lambda step, stall: stalls.append((step, stall)),
    )
    assert set(partials) == {1}
    assert [step for step, _ in stalls] == [*range(1, 13)]
    assert summary["checkpoint_stall"]["saves"] == 12
    entries = CheckpointFolder(path.parent / "saved").entries()
    assert [e.manifest.order for e in entries if e.manifest] == [(n, n) for n in range(12, 0, -1)]


def test_blocking_and_asynchronous_saves_have_the_same_bits(path):
    files = []
    for asynchronous in ("true", "false"):
        folder = path.parent / asynchronous
        train(path, f"checkpoint.directory={folder}", f"checkpoint.asynchronous={asynchronous}")
        files.append([Manifest.read(e.path).files for e in CheckpointFolder(folder).entries()])
    assert files[0] == files[1]
    assert len(files[0]) == 2


def test_an_error_abandons_the_save_under_way(path):
    """Nothing half-written keeps its place, and no thread remains."""
    disk = HeldDisk()

    def on_step(progress):
        if progress.step == 6:
            assert disk.writing.wait(LONG)
            threading.Timer(0.2, disk.go.set).start()
            raise RunError("something else")

    with pytest.raises(RunError, match="something else"):
        trained(path, disk, on_step=on_step)
    assert [*(path.parent / "saved").glob("*step*")] == []
    assert [t.name for t in threading.enumerate() if t.name.startswith("symgraph-save")] == []
