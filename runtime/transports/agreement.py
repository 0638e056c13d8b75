"""Agreement of all ranks on what they are about to run: a difference is an error, never a hang."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from runtime.transports.base import Transport
from symgraph.core.errors import PeerFailed, RunError


def agree(transport: Transport, mine: Any, complaint: Callable[[int, Any, Any], str]) -> None:
    """Raise RunError on every rank, in the same words, unless all give the same small value.

    mine: JSON-able. complaint: the error for (the first rank that differs from rank 0, its value,
    rank 0's value).
    """
    values = transport.exchange(mine)
    others = [r for r, value in enumerate(values) if value != values[0]]
    if others:
        with suppress(PeerFailed):
            transport.exchange(None)  # nobody ends before all have seen what differs
        raise RunError(complaint(others[0], values[others[0]], values[0]))


class Digested(Protocol):
    """A plan, or whatever else ranks compare by a hash."""

    @property
    def digest(self) -> str: ...


def agree_on_plan(transport: Transport, plan: Digested) -> None:
    """All ranks run one plan, or all of them say who differs."""
    transport.waiting_for("the start: comparing plans")
    agree(
        transport,
        plan.digest,
        lambda rank, theirs, ours: (
            f"rank {rank} has another graph, placement or schedule than rank 0 (digest "
            f"{theirs:.12}, not {ours:.12}): all ranks must be started with the same config and "
            "package version"
        ),
    )


def agree_on_data(transport: Transport, digest: str) -> None:
    """All ranks read the same text."""
    transport.waiting_for("the start: comparing data")
    agree(
        transport,
        digest,
        lambda rank, theirs, ours: (
            f"rank {rank} reads other data than rank 0; all ranks need the same files (and, for "
            "stdlib_text, the same Python version)"
        ),
    )


def agree_on_settings(transport: Transport, settings: dict[str, Any]) -> None:
    """All ranks were started with the same values of these keys."""
    transport.waiting_for("the start: comparing configs")

    def complaint(rank: int, theirs: dict[str, Any], ours: dict[str, Any]) -> str:
        key = next(k for k in {**ours, **theirs} if ours.get(k) != theirs.get(k))
        return (
            f"rank {rank} has {key}: {theirs.get(key)!r}, but rank 0 has {ours.get(key)!r}: all "
            "ranks must be started with the same config"
        )

    agree(transport, settings, complaint)
