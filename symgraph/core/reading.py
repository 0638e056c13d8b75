"""Reading what others wrote: any failure is one line that names the file, and the line in it.

Every reader of files goes through here: `read_text` or `read_bytes` for the contents, and
`reading` around what understands them, so that a damaged file cannot end in a traceback.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path

from symgraph.core.errors import ConfigError, SymgraphError


def read_bytes(path: str | os.PathLike[str], what: str) -> bytes:
    """Return a file's contents. Raises ConfigError if it cannot be read.

    Args:
        path: The file.
        what: The kind of file for the message, such as "config file".
    """
    with reading(path, what):
        if stat.S_ISCHR(os.stat(path).st_mode):  # /dev/zero never ends
            raise ConfigError(f"{path}: a device, not a {what}")
        return Path(path).read_bytes()


def read_text(
    path: str | os.PathLike[str], what: str, error: type[SymgraphError] = ConfigError
) -> str:
    """Return the text of a file in UTF-8, with or without a byte-order mark.

    Raises ConfigError if it cannot be read, and the given error if it is not UTF-8.
    """
    with reading(path, what, error):
        return read_bytes(path, what).decode("utf-8-sig").replace("\r\n", "\n")


@contextmanager
def reading(source: object, what: str, error: type[SymgraphError] = ConfigError) -> Iterator[None]:
    """Turn any failure of the block, which reads a file, into one error that names file and line.

    Errors that the library raises on purpose keep their kind.

    Args:
        source: The file; "" for text that comes from none.
        what: The kind of file for the message, such as "config file".
        error: The kind of error for contents that are not as they should be.
    """
    begin = f"{source}: " if str(source) else ""
    try:
        yield
    except SymgraphError as failure:
        if str(failure).startswith(str(source)):
            raise
        raise type(failure)(f"{begin}{failure}") from failure
    except FileNotFoundError as failure:
        raise ConfigError(f"{begin}no such {what}") from failure
    except OSError as failure:
        reason = failure.strerror or failure
        raise ConfigError(f"{begin}cannot read this {what}: {reason}") from failure
    except UnicodeDecodeError as failure:
        line = failure.object[: failure.start].count(b"\n") + 1
        reason = f"not UTF-8 text at byte {failure.start}"
        raise error(f"{_place(source, line)}not a {what}: {reason}") from failure
    except JSONDecodeError as failure:
        reason = f"not valid JSON at column {failure.colno}: {failure.msg}"
        raise error(f"{_place(source, failure.lineno)}not a {what}: {reason}") from failure
    except RecursionError as failure:
        raise error(f"{begin}not a {what}: nested too deeply") from failure
    except Exception as failure:
        kind = "" if isinstance(failure, ValueError) else f"{type(failure).__name__}: "
        raise error(f"{begin}not a {what}: {kind}{failure}") from failure


def _place(source: object, line: int) -> str:
    """Return the beginning of a message about a line."""
    return f"{source}:{line}: " if str(source) else f"line {line}: "
