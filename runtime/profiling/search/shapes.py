"""Shapes: the devices of a pipeline, its replicas and its micro-batches, judged before planning.

A shape's bound is proved: no step is shorter than its work spread evenly over its devices. Its
estimate is that of a pipeline that is cut in a row (Huang et al., GPipe, 2019): p pieces of
l_1 ... l_p seconds per micro-batch and m micro-batches, each in n segments of time steps, take

    sum(l) / n + (m n - 1) max(l) / n + (p + m n - 1) a

with a the seconds that a further message and its instructions take. Replicas then sum gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from partitioner.base.segments import time_steps
from partitioner.costs.machine import Machine
from partitioner.solve.prices import priced
from partitioner.strategies import Constraints
from partitioner.strategies.coarse import Coarse, coarsen
from runtime.planning.costs.prices import CostModel
from runtime.planning.network import make_network
from runtime.planning.plan import Plan
from symgraph.core.types import Array

FEW_DEVICES = 8  # of more, only powers of two and all of them are tried
HALVINGS = 30  # of the interval that holds the largest load of a row
MESSAGE_INSTRUCTIONS = 4  # a receive, a run, a send and a free


class Shape(NamedTuple):
    """The size of a grid of devices, and the number of micro-batches."""

    devices: int
    """Of one replica's pipeline."""
    rows: int
    """Replicas."""
    micro_batches: int


class Outlook(NamedTuple):
    """What is known of a shape before it is planned."""

    seconds: float
    """The estimated step."""
    shape: Shape
    bound: float
    """Seconds that no step of this shape is shorter than."""
    used: int
    """The devices of a pipeline that the estimate uses; the others would only send more."""


def device_counts(devices: int, least: int) -> list[int]:
    """Return the numbers of devices to try, from `least`: all of a few, or powers of two."""
    powers = {1 << power for power in range(devices.bit_length())}
    some = range(1, devices) if devices <= FEW_DEVICES else powers
    return sorted(count for count in {*some, devices} if least <= count <= devices)


def shapes(
    counts: Sequence[int], devices: int, samples: int, *, rows: bool, most: int
) -> Iterator[Shape]:
    """Yield the shapes to try.

    Args:
        counts: numbers of devices of a pipeline.
        devices: the number of all devices.
        samples: the batch, of which each replica takes an equal share.
        rows: whether there may be several replicas.
        most: micro-batches, at most.
    """
    powers = [1 << power for power in range(samples.bit_length())]
    for count in counts:
        for row in powers if rows else [1]:
            if row * count <= devices and samples % row == 0:
                for number in powers:
                    if number * row <= samples and number <= most:
                        yield Shape(count, row, number)


def promising(outlooks: Iterable[Outlook]) -> list[Outlook]:
    """Sort outlooks by estimate; leave out what only adds idle devices to another one."""
    kept: dict[Shape, Outlook] = {}
    for outlook in sorted(outlooks, key=lambda outlook: outlook.shape):
        kept.setdefault(outlook.shape._replace(devices=outlook.used), outlook)
    return sorted(kept.values())


@dataclass(frozen=True)
class _Row:
    """A network of one micro-batch size, whose classes are cut in a row."""

    coarse: Coarse
    steps: int
    """Time steps; 0: the network is not unrolled."""


class Forecast:
    """The outlooks of the shapes of one network."""

    def __init__(self, plan: Plan, machine: Machine | None, batches: int) -> None:
        """Take a plan of the network, its machine if that is in a file, and batches per step."""
        assert plan.request is not None
        self.request, self.options, self.machine = plan.request, plan.options, machine
        self.prices = None if machine is None else CostModel.of_machine(machine)
        self.batches = batches
        self.samples = sum(plan.sizes)
        self._rows: dict[int, _Row] = {}
        self._pieces: dict[tuple[int, int], tuple[Array, float]] = {}

    def of(self, shape: Shape) -> Outlook:
        """Return the outlook of a shape."""
        devices, rows, count = shape
        size = -(-self.samples // (rows * count))
        row, smallest = self._row(size), self._row(self.samples // (rows * count))
        times = smallest.coarse.times[:devices]
        total = times.sum(axis=1)
        price = total.min() / total if total.min() > 0 else np.ones(devices)
        least = float(priced(times, price).sum() / price.sum())
        loads, nbytes = self._cut(size, devices)
        runs = count * self.batches
        seconds = self._pipeline(loads, runs, row.steps) + self._sums(shape, nbytes)
        return Outlook(seconds, shape, runs * least, len(loads))

    def _row(self, size: int) -> _Row:
        if size not in self._rows:
            parts = -(-self.samples // size)
            options = replace(self.options, micro_batches=parts, groups=None, shards={})
            network = make_network(self.request, options, {})
            graph = network.first
            prices = self.prices or self.options.costs(graph)
            machine = self.machine or prices.machine_of(self.options.ranks)
            self.machine, self.overhead = machine, float(prices.overhead)
            constraints = Constraints(
                parameters=network.parameters,
                grads=network.grads,
                keep_groups=self.options.keep_groups,
                split_tied=self.options.split_tied,
            )
            kernels = prices.merged(graph, machine.contexts)
            coarse = coarsen(graph, kernels, machine, constraints, contiguous=True)
            self._rows[size] = _Row(coarse, time_steps(graph))
        return self._rows[size]

    def _cut(self, size: int, devices: int) -> tuple[Array, float]:
        """Return the loads of the pieces of a row, and the most bytes of parameters of one."""
        if (size, devices) not in self._pieces:
            self._pieces[size, devices] = _cut_row(self._row(size).coarse, devices)
        return self._pieces[size, devices]

    def _pipeline(self, loads: Array, runs: int, steps: int) -> float:
        """Estimate the step of a pipeline with the best number of segments."""
        pieces = len(loads)
        if pieces == 1:
            return runs * float(loads[0])
        assert self.machine is not None
        latency = self.machine.link(0, pieces - 1).latency
        more = latency + MESSAGE_INSTRUCTIONS * self.overhead
        total, largest = float(loads.sum()), float(loads.max())
        segments = [1 << power for power in range(max(1, steps).bit_length())]
        return min(
            total / n + (runs * n - 1) * largest / n + (pieces + runs * n - 1) * more
            for n in segments
        )

    def _sums(self, shape: Shape, nbytes: float) -> float:
        """Estimate the sums of replicas' gradients, passed around a ring of all of them."""
        if shape.rows == 1:
            return 0.0
        assert self.machine is not None
        link = self.machine.link(0, shape.devices * (shape.rows - 1))
        share = (shape.rows - 1) / shape.rows
        return 2 * (share * nbytes / link.bandwidth + (shape.rows - 1).bit_length() * link.latency)


def _cut_row(coarse: Coarse, devices: int) -> tuple[Array, float]:
    """Cut the classes in topological order where the largest load is least, nearly.

    Returns:
        The loads of the pieces with their messages, and the bytes of parameters of the largest.
    """
    n = len(coarse)
    work = np.concatenate([np.zeros((devices, 1)), coarse.times[:devices].cumsum(axis=1)], axis=1)
    crossing = np.zeros((2, n + 2))  # messages and bytes over the cut before each class
    for star in coarse.stars:
        held = star.centre, *star.others
        amounts = star.messages, star.nbytes
        crossing[:, min(held) + 1] += amounts
        crossing[:, max(held) + 1] -= amounts
    crossing = crossing.cumsum(axis=1)[:, : n + 1]
    low, high = 0.0, float(work[0, -1])
    ends = [n]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = _ends(coarse.machine, work, crossing, middle)
        if found is None:
            low = middle
        else:
            high, ends = middle, found
        if high - low <= 1e-3 * high:
            break
    starts = [0, *ends[:-1]]
    loads = np.array(
        [
            work[i, end]
            - work[i, start]
            + _message(coarse.machine, crossing, i, start)
            + _message(coarse.machine, crossing, i + 1, end)
            for i, (start, end) in enumerate(zip(starts, ends, strict=True))
        ]
    )
    nbytes = np.concatenate([[0], coarse.parameters.cumsum()])
    return loads, float((nbytes[ends] - nbytes[starts]).max())


def _message(machine: Machine, crossing: Array, piece: int, cut: int) -> float:
    """Return the seconds of what crosses the cut between a piece and the one before it."""
    if not 0 < piece < len(machine.devices) or not 0 < cut < crossing.shape[1] - 1:
        return 0.0
    link = machine.link(piece - 1, piece)
    return float(crossing[0, cut] * link.latency + crossing[1, cut] / link.bandwidth)


def _ends(machine: Machine, work: Array, crossing: Array, most: float) -> list[int] | None:
    """Return where pieces end, each as late as its load allows; None: there are too few devices."""
    devices, n = len(work), work.shape[1] - 1
    ends: list[int] = []
    start = 0
    for piece in range(devices):
        coming = _message(machine, crossing, piece, start)
        room = most - coming
        if work[piece, n] - work[piece, start] <= room:
            return [*ends, n]
        if piece + 1 == devices:
            return None
        link = machine.link(piece, piece + 1)
        last = int(np.searchsorted(work[piece], work[piece, start] + room, "right"))
        cuts = slice(start + 1, min(last, n))
        going = crossing[0, cuts] * link.latency + crossing[1, cuts] / link.bandwidth
        fits = np.flatnonzero(work[piece, cuts] - work[piece, start] + going <= room)
        if not len(fits):
            return None
        start += 1 + int(fits[-1])
        ends.append(start)
    return None
