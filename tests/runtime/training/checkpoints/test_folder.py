"""The folder of checkpoints: what is newest, what remains, and what is no checkpoint at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from runtime.training.checkpoints import manifest
from runtime.training.checkpoints.folder import CheckpointFolder
from runtime.training.checkpoints.tensors import Image
from symgraph.core.errors import ConfigError


def written(folder: CheckpointFolder, steps: int, keep: int = 9) -> None:
    """A checkpoint of one small file."""
    partial = folder.partial(steps)
    folder.disk.make(partial)
    arrays = {"w": np.full(3, float(steps)), "n": np.array(steps)}
    image = Image(arrays)
    image.fill(arrays)
    files = {"rank-0.safetensors": image.write(folder.disk, partial / "rank-0.safetensors")}
    folder.publish(steps, files, {"updates": steps})
    folder.prune(keep)


def names(folder: CheckpointFolder) -> list[str]:
    return [entry.path.name for entry in folder.entries()]


def test_clocks_do_not_matter(tmp_path):
    """F6: after the clock was set back, every new checkpoint was pruned as soon as it was there."""
    folder = CheckpointFolder(tmp_path)
    for steps in (1, 2):
        written(folder, steps)
    for path in tmp_path.rglob("*"):
        os.utime(path, (2**40, 2**40))
    written(folder, 3, keep=2)
    assert names(folder) == ["step-00000003", "step-00000002"]


def test_the_number_of_a_checkpoint_never_falls(tmp_path):
    """Also when a run begins anew, and when older ones are pruned."""
    folder = CheckpointFolder(tmp_path)
    for steps in (7, 8, 1, 2, 1):
        written(folder, steps, keep=2)
    assert names(folder) == ["step-00000001", "step-00000002"]
    assert [e.manifest.generation for e in folder.entries() if e.manifest] == [5, 4]


def test_only_names_of_checkpoints_are_checkpoints(tmp_path):
    """F12: a folder that was renamed step-garbage was resumed from."""
    folder = CheckpointFolder(tmp_path)
    written(folder, 4)
    (tmp_path / "step-00000004").rename(tmp_path / "step-garbage")
    (tmp_path / "step-00000005").write_text("a file")
    assert folder.newest() is None
    (tmp_path / "step-garbage").rename(tmp_path / "step-00000009")
    ((path, manifest, damage),) = folder.entries()
    assert (path.name, manifest) == ("step-00000009", None)
    assert damage == "checkpoint.json is that of step-00000004"


def test_what_cannot_be_ordered_counts_as_newest(tmp_path):
    """An unreadable manifest is refused, not passed over; nor is it pruned, as it may be dear."""
    folder = CheckpointFolder(tmp_path)
    for steps in (1, 2, 3):
        written(folder, steps)
    (tmp_path / "step-00000001" / "checkpoint.json").write_text("{")
    assert names(folder) == ["step-00000001", "step-00000003", "step-00000002"]
    folder.prune(1)
    assert names(folder) == ["step-00000001", "step-00000003"]


def test_what_killed_runs_leave_is_cleaned(tmp_path):
    """A checkpoint that was about to be replaced is taken back."""
    folder = CheckpointFolder(tmp_path)
    written(folder, 2)
    (tmp_path / "step-00000002").rename(tmp_path / ".step-00000002.replaced")
    for name in (".step-00000003.partial", ".step-00000001.removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-0.safetensors").write_bytes(b"half")
    (tmp_path / ".hidden").write_text("of somebody else")
    folder.clean()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".hidden", "step-00000002"]


def test_setting_aside_keeps_the_files(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for _ in range(2):
        written(folder, 2)
        aside = folder.set_aside(tmp_path / "step-00000002")
    assert folder.entries() == []
    assert sorted(p.name for p in aside.iterdir()) == ["checkpoint.json", "rank-0.safetensors"]


def test_a_file_of_tensors_is_safetensors(tmp_path):
    from safetensors.numpy import load_file

    arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.array(7),
        "flags": np.array([True, False, True]),
        "none": np.zeros((0, 4), np.float16),
    }
    image = Image(arrays)
    image.fill(arrays)
    image.write(CheckpointFolder(tmp_path).disk, tmp_path / "x.safetensors")
    read = load_file(tmp_path / "x.safetensors")
    assert {n: (a.dtype, a.shape, a.tobytes()) for n, a in read.items()} == {
        n: (a.dtype, a.shape, a.tobytes()) for n, a in arrays.items()
    }
    assert image.fits(arrays)
    assert not image.fits(arrays | {"a": np.zeros(2)})


def test_what_this_user_may_not_read_is_not_damaged(tmp_path, monkeypatch):
    """The advice was to start anew, and checkpoint.fallback set another user's checkpoint aside."""
    folder = CheckpointFolder(tmp_path)
    written(folder, 1)
    (entry,) = folder.entries()

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(manifest, "facts_of", refuse)
    with pytest.raises(ConfigError, match=r"^cannot read .*rank-0.safetensors: Permission denied"):
        entry.manifest.damage(entry.path)
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(ConfigError, match=r"^cannot read .*checkpoint.json: Permission denied"):
        folder.entries()
    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(ConfigError, match=f"^cannot read {tmp_path}: Permission denied"):
        folder.entries()
