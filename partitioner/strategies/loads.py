"""Loads: seconds and bytes of every device under a placement of classes, kept as classes move.

Every message takes time of both its ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.strategies.coarse import Coarse, Moves
from symgraph.core.orders import find_cycle


class Loads:
    """The devices of all classes, with the seconds and bytes of each device."""

    def __init__(self, coarse: Coarse, devices: Sequence[int]) -> None:
        k = len(coarse.limits)
        self.coarse, self.devices = coarse, list(devices)
        latency, seconds_per_byte = coarse.link_costs
        self._latency, self._rate = latency.tolist(), seconds_per_byte.tolist()
        self._times = coarse.times.tolist()
        self._memory = [int(nbytes) for nbytes in coarse.memory]
        self._stars: list[list[int]] = [[] for _ in coarse.names]
        for i, star in enumerate(coarse.stars):
            for c in (star.centre, *star.others):
                self._stars[c].append(i)
        self.seconds, self.memory = [0.0] * k, [0] * k
        for c, d in enumerate(self.devices):
            self.seconds[d] += self._times[d][c]
            self.memory[d] += self._memory[c]
        self._readers: list[dict[int, int]] = [{} for _ in coarse.stars]  # device -> others there
        for i, star in enumerate(coarse.stars):
            for c in star.others:
                self._read(i, self.devices[c], 1)
            self._send(i, 1.0)

    @property
    def largest(self) -> float:
        """The seconds of the slowest device."""
        return max(self.seconds)

    def _send(self, at: int, sign: float) -> None:
        """Add a star's messages to the loads, or take them away."""
        star = self.coarse.stars[at]
        home = self.devices[star.centre]
        for d in sorted(self._readers[at]):
            if d != home:
                seconds = star.messages * self._latency[home][d] + star.nbytes * self._rate[home][d]
                self.seconds[home] += sign * seconds
                self.seconds[d] += sign * seconds

    def _read(self, at: int, device: int, change: int) -> None:
        """Count the others of a star on a device."""
        count = self._readers[at].get(device, 0) + change
        if count:
            self._readers[at][device] = count
        else:
            del self._readers[at][device]

    def move(self, moves: Moves) -> Moves:
        """Put classes on devices; return the moves that undo it."""
        stars = sorted({i for c, _ in moves for i in self._stars[c]})
        for i in stars:
            self._send(i, -1.0)
        undo = [(c, self.devices[c]) for c, _ in moves]
        for c, d in moves:
            old = self.devices[c]
            self.seconds[old] -= self._times[old][c]
            self.seconds[d] += self._times[d][c]
            self.memory[old] -= self._memory[c]
            self.memory[d] += self._memory[c]
            self.devices[c] = d
            for i in self._stars[c]:
                if c != self.coarse.stars[i].centre:
                    self._read(i, old, -1)
                    self._read(i, d, 1)
        for i in stars:
            self._send(i, 1.0)
        return undo

    def acyclic(self) -> bool:
        """Tell whether the devices can be put in a row that all forward values follow."""
        home = self.devices
        return not find_cycle(
            {
                (home[star.centre], home[c])
                for star in self.coarse.stars
                if not star.backward
                for c in star.others
                if home[c] != home[star.centre]
            }
        )
