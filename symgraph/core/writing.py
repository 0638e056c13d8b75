"""Writing files: what the system refuses is one line that names the file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from symgraph.core.errors import ConfigError, RunError

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # no name that users give is wrong


@contextmanager
def writing(path: object, doing: str = "cannot write") -> Iterator[None]:
    """Turn what the system refuses in the block, which writes a file, into one error.

    That is a RunError for a full or damaged disk, and a ConfigError for a path of no use.

    Args:
        path: The file.
        doing: The beginning of the message, such as "cannot write the trace".
    """
    try:
        yield
    except OSError as error:
        kind = RunError if error.errno in DISK else ConfigError
        raise kind(f"{doing} {path}: {error.strerror or error}") from error


def keep(file: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file of a cache whole, or not at all; it is no error if the system refuses."""
    part = file.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as to:
                write(to)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
