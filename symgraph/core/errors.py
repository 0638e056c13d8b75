"""Errors a user can meet: every message names the thing, the place and the nearest valid choice."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from symgraph.core.visible import visible

WORD, MESSAGE = 300, 4000  # characters: the longest word and the longest message to show


def readable(message: str) -> str:
    """Return an error's message with what comes of users' names made visible, and shortened.

    Only a line break before two blanks stays one: so messages set off what they list.
    """
    if len(message) > WORD:
        message = re.sub(rf"\S{{{WORD + 1},}}", lambda word: visible(word[0], WORD), message)
    if len(message) > MESSAGE:
        message = visible(message, MESSAGE)
    return "\n  ".join(map(visible, message.split("\n  ")))


class SymgraphError(Exception):
    """Base of every error this library raises on purpose; its message is short and printable."""

    def __str__(self) -> str:
        return readable(super().__str__())


class GraphError(SymgraphError, ValueError):
    """A symbol or graph is put together wrongly: unknown names, bad arguments, cycles."""


class ShapeError(GraphError):
    """Shapes disagree or cannot be inferred."""


class DTypeError(GraphError):
    """Element types disagree or are not carried by an operator or a transport."""


class MicroBatchError(GraphError):
    """A graph mixes the samples of a batch, so micro-batches would change its result."""


class PlacementError(SymgraphError, ValueError):
    """Nodes, groups and devices do not fit together."""


class ScheduleError(SymgraphError, ValueError):
    """A schedule is malformed, breaks an order, or would hang."""


class LimitError(PlacementError, ScheduleError):
    """Nothing fits the memory limit; the message names the smallest limit that works.

    Args:
        message: the text.
        smallest: that limit in bytes.
    """

    def __init__(self, message: str, smallest: int = 0) -> None:
        super().__init__(message)
        self.smallest = smallest


class ConfigError(SymgraphError, ValueError):
    """A config file or command line is not valid; the message names key, line and nearest key."""


class RunError(SymgraphError, RuntimeError):
    """A rank failed while running; the message names rank, instruction and node."""


class PeerFailed(RunError):
    """Another rank failed or was lost, so this one stopped."""

    #: The exit status of the rank that failed.
    status = 1


class Terminated(KeyboardInterrupt):
    """A signal ended the program: SIGTERM, or SIGUSR1."""


class OutputClosed(BrokenPipeError):
    """Nobody reads the output of a run any more, as after `| head`."""


class TransportTimeout(RunError):
    """A wait for another rank exceeded its time limit."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a half sentence for an error about an unknown name: near misses, or all known names.

    >>> nearest("guipe", ["gpipe", "1f1b"])
    "did you mean 'gpipe'? (known: '1f1b', 'gpipe')"
    """
    names = sorted(set(known))
    listed = ", ".join(repr(n) for n in names[:20]) + (", ..." if len(names) > 20 else "")
    close = get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(repr(c) for c in close)}? (known: {listed})"
    return f"known: {listed}" if names else "none are known"
