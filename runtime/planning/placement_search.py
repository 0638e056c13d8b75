"""The search for a placement: moves of classes for as long as the estimated step gets shorter.

It starts from what strategies find, from single devices too, and ends after a number of estimates,
not of seconds, so that the result is the same every time. Classes move alone, in pairs that change
places, or all that a device has before or behind one of them; then the best placement is shaken
and improved again. Devices may stay idle.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import TypeVar

from partitioner.strategies.assignments import numbered_in_a_row
from runtime.planning.placement_sketch import Sketch

LOG = logging.getLogger(__name__)
ENOUGH = 1.001  # times the lower bound
SHAKEN = 3  # parts that are moved at once, at most
PATIENCE = 8  # times to shake without meeting a new placement

Devices = tuple[int, ...]  # class -> device
Choice = TypeVar("Choice")


class PlacementSearch:
    """The placements of a sketch that were estimated."""

    def __init__(self, sketch: Sketch, estimates: int, *, for_memory: bool = False) -> None:
        """Take the number of estimates to make, and whether the least memory is the aim."""
        coarse = sketch.coarse
        self.sketch, self.estimates, self.for_memory = sketch, estimates, for_memory
        self._parts = [part for part in coarse.parts if coarse.pins[part[0]] < 0]
        self._devices = range(len(coarse.limits))
        self._random = random.Random(0)
        self._found: dict[Devices, float] = {}
        self._most = min(estimates, len(self._devices) ** len(self._parts))
        self.best: tuple[float, Devices] = (math.inf, ())

    def run(self, starts: Iterable[Sequence[int]]) -> None:
        """Search from these placements."""
        rows = dict.fromkeys(self._row(s) for s in starts if self.sketch.coarse.keeps(s))
        ranked = sorted(rows, key=self._seconds)
        if len(self._devices) < 2 or not self._parts:
            return
        if len(self._devices) ** len(self._parts) <= self.estimates:
            self._try_all()
            return
        if not ranked:
            return
        for start in ranked:
            self._improve(start)
        stale = 0
        while stale < PATIENCE and self._is_open():
            before = len(self._found)
            self._improve(self._shaken(self.best[1]))
            stale = stale + 1 if len(self._found) == before else 0

    def _try_all(self) -> None:
        """Estimate all placements but those that cannot be best."""
        moved = [max(pin, 0) for pin in self.sketch.coarse.pins]
        for homes in product(self._devices, repeat=len(self._parts)):
            for part, device in zip(self._parts, homes, strict=True):
                for c in part:
                    moved[c] = device
            row = self._row(moved)
            if self.sketch.coarse.keeps(row) and not self._hopeless(row, self.best[0]):
                self._seconds(row)

    def within(self, factor: float) -> Iterator[Devices]:
        """Yield the placements that take no longer than so many times the best, best first."""
        ranked = sorted((seconds, devices) for devices, seconds in self._found.items())
        return (devices for seconds, devices in ranked if seconds <= factor * self.best[0])

    def _is_open(self) -> bool:
        more = len(self._found) < self.estimates
        return more and (self.for_memory or self.best[0] > ENOUGH * self.sketch.bound)

    def _row(self, devices: Sequence[int]) -> Devices:
        return tuple(numbered_in_a_row(self.sketch.coarse, devices))

    def _seconds(self, devices: Devices) -> float:
        if devices not in self._found:
            done = {"done": len(self._found), "of": self._most}
            LOG.debug("moving operators of the best placements", extra=done)
            score = self.sketch.peak if self.for_memory else self.sketch.seconds
            self._found[devices] = score(devices)
            self.best = min(self.best, (self._found[devices], devices))
        return self._found[devices]

    def _hopeless(self, devices: Devices, seconds: float) -> bool:
        """Tell whether a placement cannot take less; that needs no estimate."""
        if devices in self._found or self.for_memory:
            return False
        return self.sketch.busy(devices) >= seconds

    def _improve(self, devices: Devices) -> None:
        """Move classes until no move helps."""
        seconds, better = self._seconds(devices), True
        while better:
            better = False
            for moves in self._neighbourhoods(devices):
                for moved in moves:
                    if not self._is_open():
                        return
                    trial = self._row(moved)
                    if not self.sketch.coarse.keeps(trial) or self._hopeless(trial, seconds):
                        continue
                    if self._seconds(trial) < seconds * (1 - 1e-9):
                        devices, seconds, better = trial, self._seconds(trial), True
                        break
                if better:
                    break

    def _neighbourhoods(self, devices: Devices) -> Iterator[Iterator[list[int]]]:
        """Yield ways to change a placement, each in a random order that is always the same."""
        yield self._moves(devices)
        yield self._blocks(devices)
        yield self._swaps(devices)

    def _moves(self, devices: Devices) -> Iterator[list[int]]:
        for part, d in self._shuffled([(p, d) for p in self._parts for d in self._devices]):
            if devices[part[0]] != d:
                yield self._put(devices, part, d)

    def _blocks(self, devices: Devices) -> Iterator[list[int]]:
        """Yield what a device has before or behind a part on another device."""
        turns = [(i, d) for i in range(len(self._parts)) for d in self._devices]
        for i, d in self._shuffled(turns):
            home = devices[self._parts[i][0]]
            if home != d:
                for side in (self._parts[i:], self._parts[: i + 1]):
                    same = [c for part in side if devices[part[0]] == home for c in part]
                    yield self._put(devices, same, d)

    def _swaps(self, devices: Devices) -> Iterator[list[int]]:
        for a, b in combinations(self._devices, 2):
            other = {a: b, b: a}
            moved = list(devices)
            for part in self._parts:
                for c in part:
                    moved[c] = other.get(devices[c], devices[c])
            yield moved
        for one, two in self._shuffled([*combinations(self._parts, 2)]):
            a, b = devices[one[0]], devices[two[0]]
            if a != b:
                yield self._put(tuple(self._put(devices, one, b)), two, a)

    def _put(self, devices: Devices, classes: Iterable[int], device: int) -> list[int]:
        moved = list(devices)
        for c in classes:
            moved[c] = device
        return moved

    def _shuffled(self, items: list[Choice]) -> list[Choice]:
        return self._random.sample(items, len(items))

    def _shaken(self, devices: Devices) -> Devices:
        moved = list(devices)
        for part in self._random.sample(self._parts, min(SHAKEN, len(self._parts))):
            device = self._random.choice(self._devices)
            for c in part:
                moved[c] = device
        row = self._row(moved)
        return row if self.sketch.coarse.keeps(row) else devices
