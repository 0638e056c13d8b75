"""Calls: what a body consists of when it is bound to its arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from symgraph.core.types import Array


class NodeFailed(Exception):
    """A node's computation raised; carries the node's name for the rank's error."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node


class Call(NamedTuple):
    """A node's call: function(*args) fills its outputs."""

    #: The node.
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    #: Whether it does the same with the same memory in every training run, and in every other.
    fixed: bool = True
    #: The arrays that it reads and writes, which it keeps: its arguments may be addresses only.
    arrays: tuple[tuple[Array, ...], tuple[Array, ...]] = ((), ())
    #: Whether a CUDA graph may run it beside later calls, since it has scratch of its own.
    beside: bool = False


def make(steps: Sequence[Call]) -> None:
    """Make all calls; NodeFailed, raised from the node's own error, names one that fails."""
    name = ""
    try:
        for name, function, args, *_ in steps:  # noqa: B007
            function(*args)
    except NodeFailed:
        raise
    except Exception as error:
        raise NodeFailed(name) from error
