"""Agreement checks before a run: if the ranks differ, all raise the same error and none hangs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from runtime.backends.cpu.choice import (
    AUTO,
    WORDS,
    Choice,
    choice_of,
    chosen,
    kinds_there,
    named,
    settle,
)
from runtime.backends.cpu.pair_calls import AMX, PACKED
from runtime.transports.base import Transport
from symgraph.core.errors import PeerFailed, RunError


def agree(transport: Transport, mine: Any, complaint: Callable[[int, Any, Any], str]) -> None:
    """Raise the same RunError on every rank unless all ranks pass the same value.

    Args:
        transport: The rank's endpoint.
        mine: This rank's value, small and JSON-able.
        complaint: Makes the error's text of the first rank that differs from rank 0, its value and
            rank 0's value.
    """
    values = transport.exchange(mine)
    others = [r for r, value in enumerate(values) if value != values[0]]
    if others:
        with suppress(PeerFailed):
            transport.exchange(None)  # nobody ends before all have seen what differs
        raise RunError(complaint(others[0], values[others[0]], values[0]))


class Digested(Protocol):
    """A plan, or anything else that ranks compare by a hash."""

    @property
    def digest(self) -> str: ...


def agree_on_plan(transport: Transport, plan: Digested) -> None:
    """Raise RunError on every rank unless all run the same plan, and multiply by the same BLAS."""
    transport.waiting_for("the start: comparing plans")

    def complaint(rank: int, theirs: Sequence[str], ours: Sequence[str]) -> str:
        if theirs[0] != ours[0]:
            return (
                f"rank {rank} has another graph, placement or schedule than rank 0 (digest "
                f"{theirs[0]:.12}, not {ours[0]:.12}): all ranks must be started with the same "
                "config and package version, and plan with the same costs"
            )
        kinds = zip(WORDS.values(), theirs[1:], ours[1:], strict=True)
        kind, other, own = next(one for one in kinds if one[1] != one[2])
        return (
            f"rank {rank} multiplies by {other} ({kind}), but rank 0 by {own}, which gives other "
            "bits: install the same libraries on all hosts, and name one as `blas`"
        )

    agree(transport, [plan.digest, *chosen()], complaint)


def agree_on_blas(transport: Transport, name: str) -> None:
    """Make all ranks use the same BLAS: rank 0's choice, where `auto` leaves it open.

    Without AMX on every host, none uses that.

    Args:
        transport: The rank's endpoint.
        name: The `blas` of the config.

    Raises:
        RunError: A rank lacks a library that is needed; raised on every rank.
    """
    transport.waiting_for("the start: choosing a BLAS")
    choice = None
    if transport.rank == 0:
        choice = choice_of(AUTO) if name == AUTO else named(name)
    found: list[Any] = transport.exchange([choice, kinds_there()])
    choice = Choice(*found[0][0])
    if choice.bfloat16 == AMX and not all(AMX in there for _, there in found):
        choice = choice._replace(bfloat16=PACKED)
    for rank, (_, there) in enumerate(found):
        missing = sorted(choice.libraries - {*there})
        if missing:
            raise RunError(
                f"blas: {name}: rank {rank} has no {missing[0]}: "
                f"pip install 'symgraph[{missing[0]}]' on all hosts, or say blas=openblas"
            )
    settle(choice, name)


def agree_on_data(transport: Transport, digest: str) -> None:
    """Raise RunError on every rank unless all ranks read the same text."""
    transport.waiting_for("the start: comparing data")
    agree(
        transport,
        digest,
        lambda rank, theirs, ours: (
            f"rank {rank} reads other data than rank 0; all ranks need the same files (and, for "
            "stdlib_text, the same Python version)"
        ),
    )


def agree_on_batches(transport: Transport, what: str, read: int) -> None:
    """Raise RunError on every rank unless all have read the same batches for this purpose."""
    transport.waiting_for("the comparison of batches")
    agree(
        transport,
        read,
        lambda rank, theirs, ours: (
            f"rank {rank} has read another batch than rank 0 for {what}: all ranks need the "
            "same batches in the same order; is a file shorter on one host?"
        ),
    )


def agree_on_settings(transport: Transport, settings: dict[str, Any]) -> None:
    """Raise RunError on every rank unless all were started with the same settings."""
    transport.waiting_for("the start: comparing configs")

    def complaint(rank: int, theirs: dict[str, Any], ours: dict[str, Any]) -> str:
        key = next(k for k in {**ours, **theirs} if ours.get(k) != theirs.get(k))
        return (
            f"rank {rank} has {key}: {theirs.get(key)!r}, but rank 0 has {ours.get(key)!r}: all "
            "ranks must be started with the same config and options"
        )

    agree(transport, settings, complaint)


def agree_on_versions(transport: Transport, versions: Mapping[str, str]) -> None:
    """Raise RunError on every rank unless all run the same code; warn of other libraries.

    Results remain right with another numpy or BLAS on a host, but their bits depend on what is
    placed there.
    """
    transport.waiting_for("the start: comparing versions")
    everywhere = transport.exchange(dict(versions))
    agree(
        transport,
        versions["symgraph"],
        lambda rank, theirs, ours: (
            f"rank {rank} has symgraph {theirs}, but rank 0 has {ours}: install the same version "
            "on all hosts"
        ),
    )
    for rank, theirs in enumerate(everywhere):
        other = [name for name in versions if theirs[name] != everywhere[0][name]]
        if other and transport.rank == 0:
            differ = ", ".join(f"{n} {theirs[n]} (rank 0: {everywhere[0][n]})" for n in other)
            warnings.warn(
                f"rank {rank} has {differ}: bits will depend on what is placed there",
                stacklevel=2,
            )
