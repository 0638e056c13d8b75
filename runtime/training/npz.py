"""Writing of .npz files of arrays that need not fit into memory.

Rows, which are single samples, come one after the other. They wait in unnamed files in the folder
of the archive, because an archive is written one array after the other, and because an array's
shape stands before its numbers.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from symgraph.core.errors import ConfigError, RunError
from symgraph.core.types import Array

PARTIAL = ".{}.partial"  # the name of an archive that is not finished


class NpzWriter:
    """Writes one archive; a file of its name appears when it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path.with_name(PARTIAL.format(path.name))
        self._files: dict[str, IO[bytes]] = {}
        self._like: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}  # of a row
        self._closing = ExitStack()
        self._begun = False
        #: The rows of each array so far.
        self.rows: dict[str, int] = {}

    def __enter__(self) -> NpzWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # a full disk, again: the files are without use now
            self._closing.close()
        if self._begun:  # by this process, not by the one that has rank 0
            self._partial.unlink(missing_ok=True)

    def add(self, arrays: Mapping[str, Array]) -> None:
        """Add rows to each of these arrays; RunError if the disk is full."""
        for name, array in arrays.items():
            with self._named():
                if name not in self._files:
                    unnamed = tempfile.TemporaryFile(dir=self.path.parent)  # noqa: SIM115
                    self._files[name] = self._closing.enter_context(unnamed)
                    self._like[name], self.rows[name] = (array.shape[1:], array.dtype), 0
                self._files[name].write(array.tobytes())
            self.rows[name] += len(array)

    def finish(self, shaped: Callable[[str, Array], Array]) -> dict[str, Array]:
        """Write the archive; RunError if the disk is full.

        Args:
            shaped: Returns the array to write for the rows of a name.

        Returns:
            The arrays as they were written, by name, of which only what is read is in memory.
        """
        found = {}
        self._begun = True
        with self._named(), zipfile.ZipFile(self._partial, "w", allowZip64=True) as archive:
            for name, file in self._files.items():
                file.flush()
                row, dtype = self._like[name]
                shape = (self.rows[name], *row)
                stored = np.memmap(file, dtype, "r", shape=shape) if 0 not in shape else None
                found[name] = shaped(name, np.empty(shape, dtype) if stored is None else stored)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, found[name], allow_pickle=False)
        with self._named():
            self._partial.replace(self.path)
        return found

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the archive where it cannot be written."""
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise RunError(f"cannot write outputs into {self.path}: {why}") from error


def require_archive(path: str) -> None:
    """Raise ConfigError for a name that is not of an .npz file."""
    if not path.endswith(".npz"):
        raise ConfigError(f"{path}: predictions are written as .npz, so use {path}.npz")
