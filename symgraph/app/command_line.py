"""Command lines: arguments of `symgraph.run`; exit statuses and one-line errors of all commands."""

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


# at most one of them; none: train
MODES = ("plan", "profile", "compare", "search", "measure_machine")
NEEDS: dict[str, tuple[str, ...]] = {  # what goes with some modes only
    "steps": ("profile", "compare", "search"),
    "winner": ("search",),
    "trace": ("profile",),
    "save_costs": ("profile",),
    "report": ("profile", "compare"),
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = Parser(
        prog="python -m symgraph.run",
        description="Train the network of a config file as a pipeline over its devices.",
        epilog="exit status: 0 done, 1 a failure while running, 2 bad input, 3 no placement or "
        "schedule keeps to the memory limit, 130 interrupted",
    )
    parser.add_argument("config", nargs="?", help="config file (YAML), e.g. examples/lstm_lm.yaml")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key.path=value",
        help="change a key of the config, e.g. pipeline.micro_batches=8; with --compare also "
        "further configs",
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="print partition, memory, schedule and predicted timeline; run nothing",
    )
    parser.add_argument(
        "--log", metavar="FILE", help="append a line of JSON to FILE for each training step"
    )
    parser.add_argument(
        "--tensorboard", metavar="DIR", help="write scalars of each training step for TensorBoard"
    )
    _profiling(parser.add_argument_group("profiling"))
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as one JSON object on the last line of stdout",
    )
    parser.add_argument(
        "--measure-machine",
        nargs="?",
        const="-",
        metavar="FILE",
        help='measure this machine (under mpiexec: its ranks), or "devices=[gpu(0)]" of it; '
        "write FILE, or print it, and exit",
    )
    parser.add_argument("--keys", action="store_true", help="list the keys of a config and exit")
    parser.add_argument(
        "--traceback", action="store_true", help="print the Python traceback of an error"
    )
    return parser


def _profiling(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--profile",
        action="store_true",
        help="measure some steps: where their time goes, beside what was predicted",
    )
    group.add_argument(
        "--compare",
        action="store_true",
        help="measure several configs, or the `candidates:` of one, in alternation, and rank them",
    )
    group.add_argument(
        "--search",
        action="store_true",
        help="find the fastest split, schedule, micro-batches and time segments, and write them as "
        "a config; with `machine: FILE` by simulation alone",
    )
    group.add_argument(
        "--winner", metavar="FILE", help="config that --search writes (default: winner.yaml)"
    )
    group.add_argument("--steps", type=_count, metavar="N", help="steps to measure (default: 20)")
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="with --profile: write measured and predicted timelines for ui.perfetto.dev",
    )
    group.add_argument(
        "--report",
        metavar="DIR",
        help="write a page with timelines and tables, pictures and CSV files",
    )
    group.add_argument(
        "--save-costs",
        metavar="FILE",
        help="with --profile: write the kernel times, for partition.costs",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of steps, got {text!r}")
    return int(text)
