"""The folder of a run's checkpoints: their order, which of them are whole, and which remain.

A checkpoint gets its name once all of it is on the disk, and an older one is removed only after
that, so a cut of the power at any moment leaves a whole one. What is newest is told by the
manifests alone, never by clocks. Hidden names are of what is not finished:

    .step-00000500.partial      being written
    .step-00000500.replaced     of the same number, being replaced
    .step-00000400.removed      being removed
    damaged-step-00000450       set aside when a run resumed from an older one
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from runtime.training.checkpoints.disk import Disk
from runtime.training.checkpoints.manifest import NAME, STEP, Damaged, Manifest
from runtime.training.checkpoints.tensors import FileFacts
from symgraph.app.command_line import require_folder
from symgraph.core.errors import ConfigError

PARTIAL, REPLACED, REMOVED = ".{}.partial", ".{}.replaced", ".{}.removed"
DAMAGED = "damaged-{}"


class Entry(NamedTuple):
    """A checkpoint of a folder."""

    path: Path
    #: Its manifest; None if that is damaged.
    manifest: Manifest | None
    #: What is wrong with the manifest.
    damage: str | None = None

    @property
    def order(self) -> tuple[float, float]:
        """Its place: larger is newer, and what cannot be told counts as newest."""
        return (math.inf, 0) if self.manifest is None else self.manifest.order


class CheckpointFolder:
    """The checkpoints of one run, or of one rank's program."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path, self.disk = path, Disk() if disk is None else disk

    def make(self) -> None:
        """Make the folder, for good; ConfigError if it cannot be written."""
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        require_folder(str(self.path), "checkpoint.directory: cannot write")
        for path in reversed(missing):
            self.disk.sync(path.parent)

    def entries(self) -> list[Entry]:
        """List checkpoints, newest first; those whose manifest is damaged come before all."""
        found = []
        for path in self._paths():
            try:
                found.append(Entry(path, Manifest.read(path)))
            except Damaged as error:
                found.append(Entry(path, None, str(error)))
        return sorted(found, key=lambda entry: entry.order, reverse=True)

    def _paths(self) -> list[Path]:
        """Find the folders of checkpoints, highest number first."""
        try:
            paths = [self.path / name for name in os.listdir(self.path) if NAME.fullmatch(name)]
            return sorted((path for path in paths if path.is_dir()), reverse=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError as error:  # there can be some
            raise ConfigError(f"cannot read {self.path}: {error.strerror}") from None

    def newest(self) -> Path | None:
        """Find the checkpoint that is newest, without reading its tensors."""
        return next((entry.path for entry in self.entries()), None)

    def clean(self) -> None:
        """Remove what runs that were killed have left behind."""
        for path in sorted(self.path.glob(".step-*")):
            name = path.name.removeprefix(".").rpartition(".")[0]
            if path.name == REPLACED.format(name) and not (self.path / name).exists():
                self.disk.rename(path, self.path / name)
                self.disk.sync(self.path)
            else:
                self.disk.remove(path)

    def named(self, steps: int) -> Path:
        """Return the path that a checkpoint has once it is published."""
        return self.path / STEP.format(steps)

    def partial(self, steps: int) -> Path:
        """Return the folder into which the files of a checkpoint are written."""
        return self.path / PARTIAL.format(STEP.format(steps))

    def publish(self, steps: int, files: Mapping[str, FileFacts], facts: Mapping[str, Any]) -> Path:
        """Give a partial folder, whose files are on the disk, its manifest and its name."""
        partial, path = self.partial(steps), self.named(steps)
        written = [e.manifest.generation for e in self.entries() if e.manifest is not None]
        manifest = Manifest(max(written, default=0) + 1, steps, files, facts)
        manifest.write(self.disk, partial)
        self.disk.sync(partial)
        replaced = self.path / REPLACED.format(path.name)
        if path.exists():
            self.disk.rename(path, replaced)
        self.disk.rename(partial, path)
        self.disk.sync(self.path)
        if replaced.exists():
            self.disk.remove(replaced)
        return path

    def prune(self, keep: int) -> None:
        """Remove all but the newest `keep` of those whose manifest can be read."""
        known = [entry.path for entry in self.entries() if entry.manifest is not None]
        for path in known[keep:]:
            removed = self.path / REMOVED.format(path.name)
            self.disk.rename(path, removed)
            self.disk.sync(self.path)  # else a cut could leave half of it under its name
            self.disk.remove(removed)

    def discard(self, steps: int) -> None:
        """Remove a partial folder, if it can be done."""
        with suppress(OSError):
            self.disk.remove(self.partial(steps))

    def set_aside(self, path: Path) -> Path:
        """Rename a damaged checkpoint, so that it is none any more."""
        aside = path.with_name(DAMAGED.format(path.name))
        if aside.exists():
            self.disk.remove(aside)
        self.disk.rename(path, aside)
        self.disk.sync(self.path)
        return aside

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder against other runs until the block ends, or the process.

        Raises ConfigError if another run has the lock. A file system without locks lets all in.
        """
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"checkpoint.directory: another run is writing checkpoints into {self.path}; "
                    "wait until it ends, or use another folder"
                ) from None
            except OSError:
                pass
            yield
        finally:
            os.close(descriptor)
