"""The first of our code that a command runs: what happens during imports is said in one line.

Packages are imported before their `__main__`, which can thus not catch a Ctrl-C or an error there.
Importing this module is enough. It changes nothing for programs of others that import symgraph.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import warnings
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from symgraph.core.errors import SymgraphError

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")  # set by MPI's launchers
COMMANDS = ("symgraph", "partitioner", "runtime")
BAD_INPUT, INTERRUPTED = 2, 130


def _one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report what ended the imports, and end with the status that `command_line` would give it."""
    if not isinstance(error, KeyboardInterrupt | SymgraphError):
        sys.__excepthook__(kind, error, trace)
        return
    interrupted = isinstance(error, KeyboardInterrupt)
    if sys.stderr is not None:
        sys.stderr.write(f"symgraph: {'interrupted' if interrupted else f'error: {error}'}\n")
    leave(INTERRUPTED if interrupted else BAD_INPUT)


def leave(status: int) -> NoReturn:
    """End this process with an exit status; an interrupted rank that has not started MPI by SIGINT.

    A launcher that sees a mere status would let the other ranks wait for this one to start MPI.
    """
    launched = any(name in os.environ for name in RANK_VARIABLES)
    if status == INTERRUPTED and launched and "mpi4py.MPI" not in sys.modules:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(status)


def _is_ours(words: list[str]) -> bool:
    """Tell whether Python is still importing the packages of one of our commands."""
    if sys.argv and Path(sys.argv[0]).stem == COMMANDS[0]:
        return True  # the installed command
    if sys.argv[:1] != ["-m"] or "-m" not in words:
        return False
    package = "".join(words[words.index("-m") + 1 :][:1]).partition(".")[0]
    return package in COMMANDS


if _is_ours(sys.orig_argv):
    atexit.register(gc.disable)  # else ending looks through all objects, for 0.1 s
    sys.excepthook = _one_line
    warnings.formatwarning = lambda message, *_, **__: f"symgraph: warning: {message}\n"
