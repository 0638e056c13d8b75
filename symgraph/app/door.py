"""The first of our code that `python -m` runs: what happens during imports is said in one line.

Packages are imported before their `__main__`, which can thus not catch a Ctrl-C or an error there.
Importing this module is enough. It changes nothing for programs of others that import symgraph.
"""

from __future__ import annotations

import sys
import warnings
from types import TracebackType

from symgraph.core.errors import SymgraphError

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
    raise SystemExit(INTERRUPTED if interrupted else BAD_INPUT)


def _is_ours(words: list[str]) -> bool:
    """Tell whether Python is still importing the packages of one of our commands."""
    if sys.argv[:1] != ["-m"] or "-m" not in words:
        return False
    package = "".join(words[words.index("-m") + 1 :][:1]).partition(".")[0]
    return package in COMMANDS


if _is_ours(sys.orig_argv):
    sys.excepthook = _one_line
    warnings.formatwarning = lambda message, *_, **__: f"symgraph: warning: {message}\n"
