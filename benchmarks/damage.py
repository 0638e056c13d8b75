"""Damaged checkpoints: is each refused with a whole one named, and never a wrong number loaded?

    python -m benchmarks.damage [--cases 500] [--seed 1]

A small training run leaves three checkpoints. In each case something happens to the folder: bits
flip, a file is cut off, gone, empty, of another checkpoint or of another rank, has a NaN, a
manifest is edited, clocks are wrong; or the power is cut while the run saves, and what was not
synced is lost. Then a run resumes, without and with `checkpoint.fallback`. What it loads must be,
to the bit, what the undisturbed run had after that many steps.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.power_cut import CutDisk, Operation, RecordingDisk
from benchmarks.runs import write_config
from runtime.backends.device.processor import limit_blas
from runtime.training.checkpoints.folder import CheckpointFolder
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.trainer import Trainer
from runtime.transports import Cluster, make_cluster
from symgraph.app.config import load_config
from symgraph.core.errors import ConfigError

STEPS, EVERY, DEVICES = 6, 2, 2
POWER_CUTS = 0.25  # share of the cases
RUNS = (  # one after the other into one folder, during which the power is cut
    (),
    ("checkpoint.resume=never",),
    ("checkpoint.resume=never", "train.steps=2", "checkpoint.keep=1"),
    ("checkpoint.resume=never", "train.steps=2", "checkpoint.keep=1"),
)
Damage = Callable[[random.Random, Path, Path], None]  # of the newest; another is older


def main(argv: Sequence[str] | None = None) -> int:
    """Damage checkpoints, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    with TemporaryDirectory() as folder:
        outcomes = Bench(Path(folder)).run(options.cases, options.seed)
    for what, count in sorted(outcomes.items()):
        print(f"{count:6} {what}")
    wrong = sum(count for what, count in outcomes.items() if what.startswith("WRONG"))
    print(f"{sum(outcomes.values()):6} cases, {wrong} wrong")
    return bool(wrong)


class Bench:
    """Runs with their checkpoints, and the numbers that each of these must give."""

    def __init__(self, folder: Path) -> None:
        """Train; `folder` is for all files."""
        self.path = write_config(folder, DEVICES, STEPS, EVERY, blas_threads=1)
        self.saved, self.tried = folder / "saved", folder / "tried"
        #: Steps -> the digest of all that a run had then.
        self.right: dict[int, str] = {}
        (folder / "cut").mkdir()
        self.disk = RecordingDisk(folder / "cut")
        with make_cluster("threads", DEVICES) as cluster, limit_blas(1):
            self._train(self.trainer(cluster, self.saved))
            for overrides in RUNS:
                trainer = self.trainer(cluster, self.disk.root, *overrides)
                assert trainer.folder is not None
                trainer.folder.disk = self.disk
                self._train(trainer)
        assert sorted(self.right) == [2, 4, 6]

    def trainer(self, cluster: Cluster, directory: Path, *overrides: str) -> Trainer:
        """Create a trainer whose checkpoints are in this folder."""
        of_all = [f"checkpoint.directory={directory}", "checkpoint.keep=3"]
        config = load_config(str(self.path), [*of_all, *overrides])
        return Trainer(prepare(config), cluster, load_data(config))

    def _train(self, trainer: Trainer) -> None:
        save = trainer.save

        def saving() -> float:
            now = digest(trainer)
            assert self.right.setdefault(trainer.training.steps, now) == now
            return save()

        trainer.save = saving  # type: ignore[method-assign]
        trainer.fit()

    def run(self, cases: int, seed: int) -> Counter[str]:
        """Try so many cases; count the outcomes."""
        outcomes: Counter[str] = Counter()
        with make_cluster("threads", DEVICES) as cluster, limit_blas(1):
            trainers = [
                self.trainer(cluster, self.tried, f"checkpoint.fallback={fallback}")
                for fallback in ("false", "true")
            ]
            for number in range(cases):
                draw = random.Random(f"{seed} {number}")
                name, steps = self._damage(draw)
                outcomes[f"{name}: {self._outcome(trainers, steps)}"] += 1
        return outcomes

    def _damage(self, draw: random.Random) -> tuple[str, set[int]]:
        """Make a damaged folder; say what was done, and the steps of which a run finds one.

        None of them: it is refused, or the newest is found.
        """
        shutil.rmtree(self.tried, ignore_errors=True)
        if draw.random() < POWER_CUTS:
            end = draw.randrange(len(self.disk.operations) + 1)
            self.tried.mkdir()
            cut = CutDisk(self.disk.operations[:end])
            cut.leave(self.tried, draw, draw.choice(("least", "names", "any", "any")))
            return "power cut", found_after(self.disk.operations, end)
        shutil.copytree(self.saved, self.tried)
        newest, older, _ = (entry.path for entry in CheckpointFolder(self.tried).entries())
        name = draw.choice(sorted(DAMAGES))
        DAMAGES[name](draw, newest, older)
        return name, set()

    def _outcome(self, trainers: Sequence[Trainer], steps: set[int]) -> str:
        for trainer in trainers:
            spoil(trainer)
        strict, falling_back = trainers
        try:
            found = strict.resume()
        except ConfigError as error:
            if steps:
                return f"WRONG: refused: {error}"
            if "the newest whole one is" not in str(error):
                return f"WRONG: no whole one named: {error}"
        else:
            at = strict.training.steps if found else 0
            if at not in (steps or {STEPS}):
                return f"WRONG: step {at}, not one of {steps}"
            return "resumed" if not at or self.is_right(strict) else "WRONG numbers"
        finally:
            strict._unlock()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            falling_back.resume()
        falling_back._unlock()
        right = falling_back.training.steps < STEPS and self.is_right(falling_back)
        return "refused, the older one named and resumed" if right else "WRONG numbers"

    def is_right(self, trainer: Trainer) -> bool:
        """Return whether a trainer has the numbers that training had after as many steps."""
        return self.right.get(trainer.training.steps) == digest(trainer)


def digest(trainer: Trainer) -> str:
    """Hash all numbers from which a training run goes on."""
    session = trainer.training
    arrays = dict(session.parameters())
    for updater in session.updaters.values():
        for name, slots in updater.states.items():
            arrays |= {f"{name}/{slot}": array for slot, array in slots.items()}
    for worker in session.workers.values():
        for name, parts in worker.states.items():
            arrays |= {f"{name}/{i}": part for i, part in enumerate(parts)}
    text = f"{session.steps} {session.updaters[0].progress}"
    whole = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        whole.update(name.encode())
        whole.update(np.ascontiguousarray(arrays[name]).tobytes())
    return whole.hexdigest()


def spoil(trainer: Trainer) -> None:
    """Overwrite what a trainer holds, so that nothing right is left of an earlier case."""
    trainer.training.steps = -1
    for arrays in trainer.training.arrays.values():
        for array in arrays.values():
            array.fill(np.nan)
    for updater in trainer.training.updaters.values():
        updater.states.clear()


def found_after(operations: Sequence[Operation], end: int) -> set[int]:
    """The steps of the checkpoint that is on the disk after some operations, or of the next one."""
    names, synced = [0], 0
    for number, (kind, path, to, _) in enumerate(operations):
        if kind == "rename" and to is not None and to.name.startswith("step-"):
            names.append(int(to.name.removeprefix("step-")))
        elif kind == "sync" and path == Path() and number < end:
            synced = len(names) - 1
    return set(names[synced : synced + 2])


# -- damages -----------------------------------------------------------------------------------


def _any_file(draw: random.Random, folder: Path) -> Path:
    return draw.choice(sorted(folder.iterdir()))


def _tensors(draw: random.Random, folder: Path) -> Path:
    return draw.choice(sorted(folder.glob("*.safetensors")))


def _flip(draw: random.Random, newest: Path, older: Path) -> None:
    file = _any_file(draw, newest)
    data = bytearray(file.read_bytes())
    for _ in range(draw.choice((1, 1, 1, 8))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)


def _cut_off(draw: random.Random, newest: Path, older: Path) -> None:
    file = _any_file(draw, newest)
    os.truncate(file, draw.randrange(file.stat().st_size))


def _longer(draw: random.Random, newest: Path, older: Path) -> None:
    with _tensors(draw, newest).open("ab") as stream:
        stream.write(bytes(draw.randint(1, 4096)))


def _zeros(draw: random.Random, newest: Path, older: Path) -> None:
    file = _tensors(draw, newest)
    data = bytearray(file.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    file.write_bytes(data)


def _nan(draw: random.Random, newest: Path, older: Path) -> None:
    file = _tensors(draw, newest)
    tensors = load_file(file)
    name = draw.choice(sorted(n for n, a in tensors.items() if a.size))
    tensors[name] = tensors[name].copy()
    tensors[name].flat[0] = np.nan
    save_file(tensors, file)


def _edited(draw: random.Random, newest: Path, older: Path) -> None:
    file = newest / "checkpoint.json"
    text = file.read_text()
    key = draw.choice(('"updates": ', '"steps": ', '"generation": '))
    at = text.index(key) + len(key)
    file.write_text(f"{text[:at]}1{text[at:]}")


def _gone(draw: random.Random, newest: Path, older: Path) -> None:
    _any_file(draw, newest).unlink()


def _stale(draw: random.Random, newest: Path, older: Path) -> None:
    name = _any_file(draw, newest).name
    shutil.copyfile(older / name, newest / name)


def _rank_7(draw: random.Random, newest: Path, older: Path) -> None:
    shutil.copyfile(_tensors(draw, older), newest / "rank-7.safetensors")


def _swapped(draw: random.Random, newest: Path, older: Path) -> None:
    first, second = newest / "rank-0.safetensors", newest / "rank-1.safetensors"
    data = first.read_bytes()
    shutil.copyfile(second, first)
    second.write_bytes(data)


def _clocks(draw: random.Random, newest: Path, older: Path) -> None:
    for path in newest.parent.rglob("*"):
        os.utime(path, (draw.randrange(2**31),) * 2)


def _strangers(draw: random.Random, newest: Path, older: Path) -> None:
    shutil.copytree(older, newest.parent / "step-garbage")
    shutil.copytree(older, newest.parent / ".step-00000099.partial")


def _renamed(draw: random.Random, newest: Path, older: Path) -> None:
    newest.rename(newest.parent / "step-00000099")


DAMAGES: dict[str, Damage] = {
    "flipped bits": _flip,
    "cut off": _cut_off,
    "too long": _longer,
    "half of zeros": _zeros,
    "a NaN": _nan,
    "an edited manifest": _edited,
    "a file gone": _gone,
    "a file of another step": _stale,
    "a stale rank 7": _rank_7,
    "ranks swapped": _swapped,
    "wrong clocks": _clocks,
    "strange folders": _strangers,
    "a renamed checkpoint": _renamed,
}

if __name__ == "__main__":
    sys.exit(main())
