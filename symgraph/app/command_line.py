"""Command lines: exit statuses and one-line errors of all commands."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TextIO

from symgraph.core.columns import fitting, wrapped
from symgraph.core.errors import (
    ConfigError,
    LimitError,
    OutputClosed,
    PeerFailed,
    RunError,
    SymgraphError,
    Terminated,
    readable,
)

OK, FAILED, BAD_INPUT, NO_FIT, INTERRUPTED, UNREAD, TERMINATED = 0, 1, 2, 3, 130, 141, 143


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError instead of printing its usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the process after --help or --version, unless their text cannot be written."""
        sys.stdout.flush()
        super().exit(status, message)


def status_of(work: Callable[[], int], *, with_traceback: bool = False) -> int:
    """Run a command and return its exit status; report an error in one line on stderr."""
    _prepare_streams()
    try:
        with fitting(sys.stdout, os.environ):
            status = work()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        _discard(sys.stdout)
        return OK
    except (Exception, KeyboardInterrupt) as error:
        return report(error, with_traceback=with_traceback)
    return status


def report(error: BaseException, *, with_traceback: bool = False) -> int:
    """Report an error in one line on stderr; return its exit status.

    A traceback precedes it if it is requested, or if the error is unexpected.
    """
    if isinstance(error, KeyboardInterrupt):
        say(str(error) if isinstance(error, Terminated) else "interrupted")
        return exit_status(error)
    if isinstance(error, OSError):  # a full disk, a missing file, a closed pipe
        _discard(sys.stdout)
    text = _explained(error)
    if with_traceback or text is None:
        with suppress(OSError):
            traceback.print_exception(error)
    say(f"error: {text or error}")
    folder = getattr(error, "flight_records", None)  # see runtime.engine.flight_record
    if folder:
        say(f"flight records: symgraph postmortem {folder}")
    return exit_status(error)


def _explained(error: BaseException) -> str | None:
    """Return the words for an error that users can meet; None for what only a bug can raise."""
    if isinstance(error, SymgraphError):
        return str(error)
    if isinstance(error, OSError):
        if isinstance(error, FileNotFoundError) and error.filename is None:  # of os.getcwd
            return "the current folder no longer exists: change to another"
        where = "" if error.filename is None else f": {error.filename}"
        return f"{error.strerror}{where}" if error.strerror else str(error)
    if isinstance(error, MemoryError):
        return f"out of memory: {error or 'an allocation failed'} (see `ulimit -v`)"
    if "can't start new thread" in str(error):
        return f"{error}: this user or container has too many processes (see `ulimit -u`)"
    return None


def exit_status(error: BaseException) -> int:
    """Return the exit status for an error; it is the same on all ranks, as launchers mix them."""
    if isinstance(error, PeerFailed):
        return error.status
    if isinstance(error, KeyboardInterrupt):
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    if isinstance(error, OutputClosed):  # as a shell counts what SIGPIPE ends
        return UNREAD
    if isinstance(error, LimitError):
        return NO_FIT
    bad_input = isinstance(error, SymgraphError) and not isinstance(error, RunError)
    return BAD_INPUT if bad_input else FAILED


def require_folder(path: str, doing: str) -> None:
    """Create a folder; raise ConfigError, as `require_writable` does, if it is not writable."""
    _require_folder(Path(path), f"{doing} {path}")


def _require_folder(path: Path, failure: str) -> None:
    """Create a folder; raise ConfigError that begins with `failure` if it is not writable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        number = errno.ENOTDIR
    except OSError as error:
        number = error.errno or errno.EIO
    else:
        if os.access(path, os.W_OK):
            return
        number = errno.EACCES
    raise ConfigError(f"{failure}: {os.strerror(number)}")


def require_writable(path: str, doing: str) -> None:
    """Create the folder of a file; raise ConfigError if the file cannot be written.

    This is done before any work, as a report's folder is made.

    doing: the beginning of the message, such as "cannot write the trace".
    """
    at = Path(path)
    if at.is_dir():
        number = errno.EISDIR
    elif not at.exists():
        return _require_folder(at.parent, f"{doing} {path}")
    elif not os.access(at, os.W_OK):
        number = errno.EACCES
    else:
        return
    raise ConfigError(f"{doing} {path}: {os.strerror(number)}")


def say(text: str) -> None:
    """Write one line to stderr with a single call, because ranks may share the stream.

    On a terminal it is wrapped.
    """
    try:
        with fitting(sys.stderr, os.environ):
            sys.stderr.write(f"{wrapped(f'symgraph: {readable(text)}')}\n")
        sys.stderr.flush()
    except OSError:  # its disk is full, or nobody reads it
        _discard(sys.stderr)


def _prepare_streams() -> None:
    """Let stdout and stderr take any text, also if they are closed or not in UTF-8.

    A closed one leads to nowhere; its number would else be given to the next file or socket.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
            setattr(sys, name, os.fdopen(number, "w", closefd=False))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard(stream: TextIO) -> None:
    """Redirect a broken stream to nowhere, or Python reports it again when it exits."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
