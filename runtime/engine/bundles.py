"""Bundles: neighbouring messages of a channel, which travel together as one.

A network that is unrolled in time and cut between two layers has a message for each time step. One
run of the sender makes them all, and one of the receiver needs them all, so they go at once:

    rank 0    0F0 S0 S1 S2 S7           0F1      to rank 1: S0 S1 S2; to rank 2: S7
    rank 1              R0 R1 R2 1F0    R9       R0 brings R1 and R2 as well

Messages are neighbours if neither rank has a run between them: the sender has them all when it
sends the first one, and whoever has waited for the first one need not wait for the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from partitioner.base.types import BodyKey, CommEdge
from runtime.backends.parcels import Parcel
from runtime.schedule.instructions import COLLECTIVE, FREE, RECV, SEND
from runtime.schedule.program import Program, Schedule
from symgraph.core.context import Context

Message = tuple[int, int]  # tag, micro-batch
Channel = tuple[int, int]  # the ranks that send and receive


class Bundle(NamedTuple):
    """Messages that travel together, as one of their two ranks sees them."""

    #: The other rank.
    peer: int
    #: The tag of each message.
    tags: tuple[int, ...]
    #: The array of each message.
    parcel: Parcel
    #: The first message, and its micro-batch.
    first: tuple[CommEdge, int]
    #: Body and micro-batch that make messages -> one of these messages.
    makers: Mapping[tuple[BodyKey, int], CommEdge]


class _Place(NamedTuple):
    """A message in a program."""

    message: Message
    #: The place of its instruction.
    at: int
    #: How many instructions before it part neighbours.
    spell: int


def bundled(
    schedule: Schedule,
    rank: int,
    devices: Sequence[Context],
    channel_of: Callable[[Message], Channel | None],
) -> list[list[int]]:
    """List the bundles of a rank: the places of their instructions in its program.

    Args:
        schedule: The programs of all ranks.
        rank: The rank.
        devices: The devices of all ranks.
        channel_of: Returns the channel of a message, None for one of an exchange.
    """
    programs, found = schedule.programs, list[list[int]]()
    for mine, theirs in ((SEND, RECV), (RECV, SEND)):
        for channel, own in _channels(programs[rank], mine, devices[rank], channel_of).items():
            peer = channel[mine == SEND]
            others = _channels(programs[peer], theirs, devices[peer], channel_of)
            found += _neighbours(own, others.get(channel, ()))
    return found


def _channels(
    program: Program,
    code: int,
    device: Context,
    channel_of: Callable[[Message], Channel | None],
) -> dict[Channel, list[_Place]]:
    """List the messages that a program sends or receives, by channel.

    Memory that is freed between two receives may be the second one's place, unless that is held
    since the last run; see `early_messages`.
    """
    codes, tags, mbs, _ = program.columns
    runs, frees = codes < FREE, (codes >= FREE) & (codes < SEND)
    parts = runs | (codes >= COLLECTIVE)
    if code == RECV:
        parts |= frees if device.kind == "cpu" else frees & (np.cumsum(runs) == 0)
    else:  # a message that went before what this rank waits for first would hide a deadlock
        parts |= codes == RECV
    spells = np.cumsum(parts)
    found: dict[Channel, list[_Place]] = defaultdict(list)
    for at in np.flatnonzero(codes == code).tolist():
        message = int(tags[at]), int(mbs[at])
        channel = channel_of(message)
        if channel is not None:
            found[channel].append(_Place(message, at, int(spells[at])))
    return found


def _neighbours(own: Sequence[_Place], others: Sequence[_Place]) -> Iterator[list[int]]:
    """Yield the places of neighbours in this rank's program; others: the channel's other end."""
    together: list[int] = []
    spells = None
    for mine, theirs in zip_longest(own, others[: len(own)]):
        same = theirs is not None and theirs.message == mine.message
        now = (mine.spell, theirs.spell) if same else None
        if together and (now is None or now != spells):
            yield together
            together = []
        together.append(mine.at)
        spells = now
    if together:
        yield together
