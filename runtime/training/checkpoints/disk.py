"""The file operations of checkpoints: all of them, so that a test can cut the power between two."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path


class Disk:
    """A file system. Only what is synced is there after a power cut."""

    def make(self, folder: Path) -> None:
        """Make a folder, and those above it, unless it is there."""
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, file: Path, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a new file."""
        with open(file, "wb") as stream:
            for chunk in chunks:
                stream.write(chunk)

    def sync(self, path: Path) -> None:
        """Wait until the content of a file, or the names in a folder, are on the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # such folders sync themselves
                raise
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or folder another name, which nothing has."""
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with all that is in it."""
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
