"""Commands: what all command lines share, their exit statuses and errors as one line."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from symgraph.core.errors import ConfigError, LimitError, PeerFailed, RunError, SymgraphError

OK, FAILED, BAD_INPUT, NO_FIT, INTERRUPTED = 0, 1, 2, 3, 130


class Parser(argparse.ArgumentParser):
    """One whose errors are one line, like all others of bad input."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} ({self.prog} --help tells more)")


def status_of(work: Callable[[], int], *, with_traceback: bool = False) -> int:
    """Do a command's work, which gives its exit status; tell what ended it in one line."""
    try:
        status = work()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        _let_go_of_stdout()
        return OK
    except (Exception, KeyboardInterrupt) as error:
        return report(error, with_traceback=with_traceback)
    return status


def report(error: BaseException, *, with_traceback: bool = False) -> int:
    """Say what ended a command, in one line; its exit status.

    A traceback comes before it if that is wanted, or if nobody foresaw the error.
    """
    if isinstance(error, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    if with_traceback or not isinstance(error, SymgraphError | OSError):
        traceback.print_exception(error)
    text = str(error)
    if isinstance(error, OSError):  # a full disk, a file that is gone, a reader that is
        _let_go_of_stdout()
        where = "" if error.filename is None else f": {error.filename}"
        text = f"{error.strerror}{where}" if error.strerror else text
    say(f"error: {text}")
    return exit_status(error)


def exit_status(error: BaseException) -> int:
    """What a run that an error ended exits with; the same on all ranks, as launchers mix them."""
    if isinstance(error, PeerFailed):
        return error.status
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, LimitError):
        return NO_FIT
    bad_input = isinstance(error, SymgraphError) and not isinstance(error, RunError)
    return BAD_INPUT if bad_input else FAILED


def require_folder(path: str, doing: str) -> None:
    """Make a folder; ConfigError unless files can be written there, as of require_writable."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        number = errno.ENOTDIR
    except OSError as error:
        number = error.errno or errno.EIO
    else:
        if os.access(path, os.W_OK):
            return
        number = errno.EACCES
    raise ConfigError(f"{doing} {path}: {os.strerror(number)}")


def require_writable(path: str, doing: str) -> None:
    """ConfigError if no file can be written there: better before the work than after it.

    doing: the first words of the message, such as "cannot write the trace".
    """
    at = Path(path)
    near = at if at.exists() else at.parent
    if at.is_dir():
        number = errno.EISDIR
    elif not near.exists():
        number = errno.ENOENT
    elif near is not at and not near.is_dir():
        number = errno.ENOTDIR
    elif not os.access(near, os.W_OK):
        number = errno.EACCES
    else:
        return
    raise ConfigError(f"{doing} {path}: {os.strerror(number)}")


def say(text: str) -> None:
    """One line on stderr, in one piece, since several ranks may share it."""
    sys.stderr.write(f"symgraph: {text}\n")
    sys.stderr.flush()


def _let_go_of_stdout() -> None:
    """If it takes no more: Python would try again at its end, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
