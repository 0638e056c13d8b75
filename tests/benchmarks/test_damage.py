"""Damaged checkpoints and power cuts: a whole one is found or named, wrong ones never load."""

from __future__ import annotations

import random
import shutil

import pytest

from benchmarks.damage import DAMAGES, Bench, found_after, spoil
from benchmarks.power_cut import CutDisk
from runtime.backends.device.processor import limit_blas
from runtime.training.checkpoints.folder import CheckpointFolder
from runtime.transports import make_cluster

CASES = 40

pytestmark = pytest.mark.slow  # each case trains


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("damage"))


def found(bench, operations, mode, draw):
    """The steps of the checkpoint found after a cut; 0 for none, -1 for a damaged one."""
    shutil.rmtree(bench.tried, ignore_errors=True)
    bench.tried.mkdir()
    CutDisk(operations).leave(bench.tried, draw, mode)
    folder = CheckpointFolder(bench.tried)
    folder.clean()
    entries = folder.entries()
    if not entries:
        return 0
    (path, manifest, _), *_ = entries
    whole = manifest is not None and manifest.damage(path) is None
    return manifest.steps if whole else -1


def test_the_power_may_be_cut_at_any_operation(bench):
    """F7: older checkpoints were pruned before the newest was on the disk, which was empty then."""
    operations, draw = bench.disk.operations, random.Random(1)
    for end in range(len(operations) + 1):
        for mode in ("least", "names", "any"):
            steps = found(bench, operations[:end], mode, draw)
            assert steps in found_after(operations, end), (end, mode)


@pytest.mark.parametrize("what", ["files", "folders"])
def test_without_syncs_a_cut_would_lose_checkpoints(bench, what):
    operations, draw = bench.disk.operations, random.Random(1)
    kept = [o for o in operations if o.kind != "sync" or (what == "files") != bool(o.path.suffix)]
    assert len(kept) < len(operations)
    outcomes = {
        found(bench, kept[:end], mode, draw)
        for end in range(len(kept) // 2, len(kept))
        for mode in ("least", "names", "any")
    }
    assert outcomes & {0, -1}


def test_no_damage_gives_a_wrong_number(bench):
    """F4: 55 of 55 flipped bits loaded without a word, as did files of another step, and NaNs."""
    outcomes = bench.run(CASES, seed=1)
    assert sum(outcomes.values()) == CASES
    assert not [what for what in outcomes if "WRONG" in what]


@pytest.mark.parametrize("name", ["a NaN", "flipped bits"])
def test_the_bench_sees_what_is_loaded_without_checksums(bench, name, monkeypatch):
    monkeypatch.setattr("runtime.training.checkpoints.manifest.Manifest.damage", lambda *_: None)
    shutil.rmtree(bench.tried, ignore_errors=True)
    shutil.copytree(bench.saved, bench.tried)
    newest, older, _ = (entry.path for entry in CheckpointFolder(bench.tried).entries())
    tensors = [file for file in newest.iterdir() if file.suffix == ".safetensors"]
    monkeypatch.setattr("benchmarks.damage._any_file", lambda draw, _: draw.choice(tensors))
    DAMAGES[name](random.Random(3), newest, older)
    with make_cluster("threads", 2) as cluster, limit_blas(1):
        trainer = bench.trainer(cluster, bench.tried)
        spoil(trainer)
        assert trainer.resume() == newest
        assert not bench.is_right(trainer)
