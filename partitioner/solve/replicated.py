"""Pipelines of replicated stages, by the model of PipeDream (Narayanan et al., SOSP 2019).

A machine has levels: devices in a host, hosts in a cluster, each with one bandwidth. A pipeline is
a chain of down-sets of the layers; a stage of it runs on m components of a level, each of which
takes every m-th minibatch. Within a component the stage is a pipeline over the level below. With t
seconds for a component, w bytes of parameters, the bandwidth b and n devices in a component, the
seconds for each minibatch are

    (t + 4 (m - 1) w / (m n b)) / m        and at least 2 x / (m b) for the x bytes over each border

where a border counts for the stages behind the first. A pipeline takes as long as its slowest
stage. The dynamic programme finds the best one of all down-sets, numbers of components and levels.

    Profile, levels ──replicate──▶ Pipeline (stages, replicas, seconds)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from partitioner.base.compiled import compiled
from partitioner.solve.down_sets import Family, down_sets, within
from symgraph.core.errors import PlacementError
from symgraph.core.types import Array


@dataclass(frozen=True)
class Level:
    """A level of a machine: components that are alike, and the links between them."""

    components: int
    bandwidth: float  #: bytes per second


class Stage(NamedTuple):
    """A stage of a pipeline."""

    layers: tuple[int, ...]
    replicas: int


@dataclass(frozen=True)
class Pipeline:
    """Stages in order, with the seconds that a minibatch takes when all are busy."""

    stages: tuple[Stage, ...]
    seconds: float

    def __str__(self) -> str:
        return "-".join(str(stage.replicas) for stage in self.stages)


@dataclass(frozen=True)
class Layers:
    """Layers to place; sizes are in bytes."""

    seconds: Array  #: of each layer, forward and backward
    parameters: Array
    outputs: Array
    arcs: frozenset[tuple[int, int]]

    @cached_property
    def family(self) -> Family:
        """All down-sets of the layers."""
        return down_sets(len(self.seconds), self.arcs)

    @cached_property
    def sums(self) -> _Sums:
        """Sums over each down-set, which the dynamic programme looks up."""
        held = np.unpackbits(
            self.family.bits.astype("<u8").view(np.uint8), axis=1, bitorder="little"
        )[:, : len(self.seconds)].astype(bool)
        crossing = np.zeros_like(held)
        for a, b in self.arcs:
            crossing[:, a] |= held[:, a] & ~held[:, b]
        return _Sums(held @ self.seconds, held @ self.parameters, crossing @ self.outputs)


class _Sums(NamedTuple):
    """Figures of each down-set."""

    seconds: Array
    parameters: Array
    crossing: Array  #: bytes that what comes later reads


class _Solved(NamedTuple):
    """The best pipelines over a level: [first down-set, last down-set, components - 1]."""

    best: Array
    split: Array  #: the down-set before the last stage; -1: there is one stage
    used: Array  #: the components of the last stage


def replicate(layers: Layers, levels: Sequence[Level]) -> Pipeline:
    """Find the fastest pipeline over a machine; its levels are given from the inside.

    Raises:
        PlacementError: there is no level or no layer.
    """
    if not levels or not len(layers.seconds):
        raise PlacementError("a pipeline needs at least one layer and one level of devices")
    family, sums = layers.family, layers.sums
    last = len(family) - 1
    # No stage of a better pipeline takes longer than all work as one stage on all devices.
    bound, inside = float(sums.seconds[last]), 1
    for level in levels:
        count, bandwidth = level.components, level.bandwidth
        sync = 4 * (count - 1) * sums.parameters[last] / (count * bandwidth * inside)
        bound, inside = (bound + sync) / count, inside * count
    base = sums.seconds[None, :] - sums.seconds[:, None]
    solved: list[_Solved] = []
    inside = 1
    for number, level in enumerate(levels, 1):
        count = level.components
        starts = 1 if number == len(levels) else last
        shape = starts, last + 1, count
        most = bound * math.prod(outer.components for outer in levels[number:]) * (1 + 1e-9)
        found = _Solved(
            np.full(shape, math.inf), np.full(shape, -1, np.int32), np.zeros(shape, np.int16)
        )
        _solve(family.bits, base, *sums, level.bandwidth, inside, most, *found)
        solved.append(found)
        base, inside = np.ascontiguousarray(found.best[:, :, -1]), inside * count
    stages = tuple(_stages(layers.family, solved, 0, last, 1))
    return Pipeline(stages, float(solved[-1].best[0, last, -1]))


def _stages(
    family: Family, solved: Sequence[_Solved], first: int, last: int, replicas: int
) -> list[Stage]:
    """Return the stages of the best pipeline from one down-set to another over all levels."""
    if not solved:
        return [Stage(tuple(family.difference(last, first)), replicas)]
    *below, level = solved
    components, ends = level.best.shape[2], []
    while last >= 0 and components:
        split, used = (int(x[first, last, components - 1]) for x in (level.split, level.used))
        ends.append((first if split < 0 else split, last, used))
        last, components = split, components - used
    stages: list[Stage] = []
    for start, end, used in reversed(ends):
        stages += _stages(family, below, start, end, replicas * used)
    return stages


def timed(layers: Layers, bandwidth: float, replicas: Sequence[int]) -> Pipeline:
    """Cut the layers where a pipeline with these replicas on one level is fastest.

    Raises:
        PlacementError: there are fewer layers than stages.
    """
    family, sums = layers.family, layers.sums
    n = len(family)
    best = np.full(n, math.inf)
    came: list[Array] = []
    best[0] = 0.0
    for number, m in enumerate(replicas):
        after, split = np.full(n, math.inf), np.full(n, -1)
        for end in range(1, n):
            within = ~(family.bits[:end] & ~family.bits[end]).any(axis=1)
            weight = sums.parameters[end] - sums.parameters[:end]
            seconds = sums.seconds[end] - sums.seconds[:end]
            seconds = (seconds + 4 * (m - 1) * weight / (m * bandwidth)) / m
            if number:
                border = np.maximum(sums.crossing[:end], sums.crossing[end])
                seconds = np.maximum(seconds, 2 * border / (m * bandwidth))
            total = np.where(within, np.maximum(best[:end], seconds), math.inf)
            split[end] = int(total.argmin())
            after[end] = total[split[end]]
        best, came = after, [*came, split]
    if not math.isfinite(best[-1]):
        raise PlacementError(f"{len(layers.seconds)} layers make no {len(replicas)} stages")
    end, stages = n - 1, []
    for split, m in zip(reversed(came), reversed(replicas), strict=True):
        start = int(split[end])
        stages.append(Stage(tuple(family.difference(end, start)), m))
        end = start
    return Pipeline(tuple(reversed(stages)), float(best[-1]))


@compiled()
def _solve(  # type: ignore[no-untyped-def]  # numba infers
    bits, base, work, weight, crossing, bandwidth, inside, bound, best, split, used
):
    """Fill the table of a level.

    `base` has the seconds of a component; what takes longer than `bound` is left out.
    """
    starts, sets, count = best.shape
    first = np.empty(sets, np.int64)  # the down-sets that may come before one
    for i in range(starts):
        for j in range(i + 1, sets):
            if work[j] - work[i] > bound * count * inside or not within(bits[i], bits[j]):
                continue
            found = 0
            for k in range(i + 1, j):
                if best[i, k, count - 1] <= bound and within(bits[k], bits[j]):
                    first[found] = k
                    found += 1
            for m in range(1, count + 1):
                sync = 4 * (m - 1) * (weight[j] - weight[i]) / (m * inside * bandwidth)
                least, at, on = (base[i, j] + sync) / m, -1, m
                if m > 1 and best[i, j, m - 2] <= least:  # with one component fewer
                    least, at, on = best[i, j, m - 2], split[i, j, m - 2], used[i, j, m - 2]
                for x in range(found):
                    k = first[x]
                    border = max(crossing[k], crossing[j])
                    grown = weight[j] - weight[k]
                    for own in range(1, m):
                        before = best[i, k, m - own - 1]
                        if before >= least:
                            break  # with fewer components it takes longer still
                        sync = 4 * (own - 1) * grown / (own * inside * bandwidth)
                        seconds = max((base[k, j] + sync) / own, 2 * border / (own * bandwidth))
                        if max(before, seconds) < least:
                            least, at, on = max(before, seconds), k, own
                best[i, j, m - 1], split[i, j, m - 1], used[i, j, m - 1] = least, at, on
