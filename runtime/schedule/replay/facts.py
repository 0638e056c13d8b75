"""Facts: what must precede what, read off a topology once, as arrays of small integers.

Bodies are numbered in the order of their keys, edges by their tags. `check`, `simulate`, `lower`
and the memory account all read these arrays; nothing else in the code base knows the rules:

- A body runs after those of its own rank that make what it reads, and after the receives of what
  comes from other ranks.
- The bodies of one stage run in one order: forward segments rising, then B (or I) segments
  falling; W segments fall as well, each after the I of its own segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from partitioner.base.types import (
    FORWARD,
    INPUT,
    PHASES,
    WEIGHT,
    BodyKey,
    CommEdge,
    Topology,
)

Ints = npt.NDArray[Any]


@dataclass(frozen=True)
class Lists:
    """Lists of integers in one array: list i is items[start[i] : start[i + 1]]; int32."""

    start: Ints
    items: Ints

    @classmethod
    def of(cls, lists: Iterable[Iterable[int]]) -> Lists:
        rows = [list(row) for row in lists]
        start = np.zeros(len(rows) + 1, np.int32)
        np.cumsum([len(row) for row in rows], out=start[1:])
        return cls(start, np.array([i for row in rows for i in row], np.int32))

    def __getitem__(self, index: int) -> list[int]:
        return [int(i) for i in self.items[self.start[index] : self.start[index + 1]]]


@dataclass(frozen=True)
class Facts:
    """A topology in numbers; all arrays are int32.

    The messages of an exchange have channels of their own and are copied when they are posted, so
    that no free waits for them; each arrives when all of the same micro-batch are posted.
    """

    #: The bodies, in the order of their numbers.
    keys: tuple[BodyKey, ...]
    #: By stage.
    rank_of: tuple[int, ...]
    ranks: int
    #: By tag.
    edges: tuple[CommEdge, ...]
    #: [phase, stage, segment]: the body, or -1.
    body_at: Ints
    #: By body: its rank, and the bodies of that rank that run before it.
    body_rank: Ints
    before: Lists
    #: By body: the edges from and to other ranks.
    incoming: Lists
    outgoing: Lists
    #: By edge: the bodies at its ends, and its channel, or -1 if both are on one rank.
    edge_src: Ints
    edge_dst: Ints
    edge_channel: Ints
    #: By channel: the ranks at its ends, and the exchange whose messages it carries, or -1.
    channel_src: Ints
    channel_dst: Ints
    channel_exchange: Ints
    #: The names of the exchanges, see runtime.schedule.exchanges.
    exchanges: tuple[str, ...]

    @property
    def exchange_sizes(self) -> Ints:
        """The number of messages of each exchange, per micro-batch."""
        of_edges = self.channel_exchange[self.edge_channel[self.edge_channel >= 0]]
        sizes = np.bincount(of_edges[of_edges >= 0], minlength=len(self.exchanges))
        return sizes.astype(np.int32)

    @classmethod
    def of(cls, topology: Topology) -> Facts:
        rank_of, edges = tuple(topology.rank_of), tuple(topology.edges)
        keys = tuple(topology.bodies)
        number = {key: i for i, key in enumerate(keys)}
        segments = 1 + max((key.segment for key in keys), default=0)
        body_at = np.full((len(PHASES), len(rank_of), segments), -1, np.int32)
        for key, i in number.items():
            body_at[PHASES.index(key.phase), key.stage, key.segment] = i
        before = [[number[k] for k in _earlier(key, number, segments)] for key in keys]
        incoming: list[list[int]] = [[] for _ in keys]
        outgoing: list[list[int]] = [[] for _ in keys]
        channels: dict[tuple[int, int, int], int] = {}
        exchanges: dict[str, int] = {"": -1}
        channel = np.full(len(edges), -1, np.int32)
        for edge in edges:
            src, dst = number[edge.src], number[edge.dst]
            ends = rank_of[edge.src.stage], rank_of[edge.dst.stage]
            if ends[0] == ends[1]:
                before[dst].append(src)
            else:
                exchange = exchanges.setdefault(edge.exchange, len(exchanges) - 1)
                channel[edge.tag] = channels.setdefault((*ends, exchange), len(channels))
                outgoing[src].append(edge.tag)
                incoming[dst].append(edge.tag)
        src_of, dst_of, exchange_of = np.array(list(channels), np.int32).reshape(-1, 3).T.copy()
        return cls(
            keys,
            rank_of,
            topology.ranks,
            edges,
            body_at,
            np.array([rank_of[key.stage] for key in keys], np.int32),
            Lists.of(dict.fromkeys(row) for row in before),
            Lists.of(incoming),
            Lists.of(outgoing),
            np.array([number[e.src] for e in edges], np.int32),
            np.array([number[e.dst] for e in edges], np.int32),
            channel,
            src_of,
            dst_of,
            exchange_of,
            tuple(exchanges)[1:],
        )


def _earlier(key: BodyKey, bodies: dict[BodyKey, int], segments: int) -> list[BodyKey]:
    """Return the last bodies of a stage, one of each kind, that must run before this one."""
    stage, phase, segment = key
    # Of each kind: the segments, from the last one back.
    chains = [(FORWARD, range((segment if phase == FORWARD else segments) - 1, -1, -1))]
    if phase == WEIGHT:
        chains.append((INPUT, range(segment, segments)))
    if phase != FORWARD:
        chains.append((phase, range(segment + 1, segments)))
    keys = ((BodyKey(stage, kind, k) for k in chain) for kind, chain in chains)
    lasts = (next((k for k in chain if k in bodies), None) for chain in keys)
    return [last for last in lasts if last is not None]
