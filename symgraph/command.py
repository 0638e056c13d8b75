"""Commands: what all command lines share, their exit statuses and bad input as one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from symgraph.errors import ConfigError, LimitError, PeerFailed, RunError, SymgraphError

OK, FAILED, BAD_INPUT, NO_FIT, INTERRUPTED = 0, 1, 2, 3, 130


class Parser(argparse.ArgumentParser):
    """One whose errors are one line, like all others of bad input."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} ({self.prog} --help tells more)")


def status_of(work: Callable[[], int]) -> int:
    """Do a command's work, which gives its exit status; tell bad input in one line."""
    try:
        status = work()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough; Python would flush again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except SymgraphError as error:
        say(f"error: {error}")
        return BAD_INPUT
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    return status


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


def say(text: str) -> None:
    """One line on stderr, in one piece, since several ranks may share it."""
    sys.stderr.write(f"symgraph: {text}\n")
    sys.stderr.flush()
