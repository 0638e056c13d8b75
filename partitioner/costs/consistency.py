"""Consistency of measured costs: do they add up, and does backward time fit forward time?

A profiler that measures between two hooks that fire out of order assigns the time to the wrong
node: in PipeDream's published gnmt profiles a bidirectional LSTM takes 14.1 ms forward and 0.02 ms
backward, and the embedding before it 25.5 ms backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from partitioner.costs.cost import Costs, is_free, signature
from symgraph.core.graph import Graph
from symgraph.core.units import seconds_text

KIND_FACTOR, GENERAL_FACTOR = 2.5, 4.0  # from the usual ratio to an outlier
MIN_TWINS = 3  # operators of one kind that are enough to compare with
MIN_SHARE = 0.02  # of the whole time: less cannot matter
TOLERANCE = 0.05  # of the measured step: how far off the sum may be


class Timed(NamedTuple):
    """Forward and backward time of an operator, in any unit."""

    name: str
    kind: str  #: operators of one kind are compared with each other
    forward: float
    backward: float


class Outlier(NamedTuple):
    """An operator whose backward time is far from the expected one."""

    timed: Timed
    expected: float


def outliers(timed: Sequence[Timed]) -> list[Outlier]:
    """Find operators whose backward time does not fit their forward time.

    They are compared with others of the same kind if there are enough of those, else with all.
    """
    total = sum(x.forward + x.backward for x in timed)
    heavy = [x for x in timed if x.forward > 0 and x.forward + x.backward > MIN_SHARE * total]
    if not heavy or not any(x.backward for x in timed if x.forward > 0):
        return []
    found = []
    for x in timed:
        twins = [y for y in heavy if y.kind == x.kind]
        many = len(twins) >= MIN_TWINS
        expected = x.forward * _usual(twins if many else heavy)
        far = KIND_FACTOR if many else GENERAL_FACTOR
        strange = x.backward > far * expected or x.backward * far < expected
        if strange and abs(x.backward - expected) > MIN_SHARE * total:
            found.append(Outlier(x, expected))
    return found


def _usual(timed: Sequence[Timed]) -> float:
    """Return the median ratio of backward to forward time."""
    return median(x.backward / x.forward for x in timed)


@dataclass(frozen=True)
class Consistency:
    """Costs compared with a measured step, in seconds."""

    nodes: float  #: the sum of all nodes' times; of alone and all together, the nearest to `step`
    step: float  #: the whole step as measured
    outliers: tuple[Outlier, ...]  #: named by signature; all calls of one signature are one

    @property
    def off(self) -> float:
        """How far the sum is above (> 0) or below (< 0) the step, as a share of the step."""
        return self.nodes / self.step - 1

    @property
    def findings(self) -> tuple[str, ...]:
        """What is inconsistent, one line each; none if everything fits."""
        lines = []
        if abs(self.off) > TOLERANCE:
            why = (
                "timed one by one, nodes are slower than together"
                if self.off > 0
                else ("part of the runs is in no node, or other work slows the nodes down")
            )
            lines.append(
                f"the nodes' times add up to {seconds_text(self.nodes)} of computing on all "
                f"devices, their runs to {seconds_text(self.step)} ({self.off:+.0%}): {why}"
            )
        lines += [
            f"{x.timed.name}: backward {seconds_text(x.timed.backward)} for forward "
            f"{seconds_text(x.timed.forward)}, where about {seconds_text(x.expected)} is usual: "
            "was it measured on another node?"
            for x in self.outliers
        ]
        return tuple(lines)


def consistency(
    costs: Costs,
    graph: Graph,
    measured_step: float,
    runs: int = 1,
    *,
    alone: Costs | None = None,
) -> Consistency:
    """Compare costs with a whole measured step of a graph with gradients.

    Nodes without gradient nodes, and those that take no time themselves, are not compared.

    Args:
        costs: seconds of nodes.
        graph: the graph that runs.
        measured_step: seconds of computation in the step, of one device or all together.
        runs: how often the graph runs in the step.
        alone: seconds of nodes while other devices wait; by default the same.
    """
    kinds: dict[str, str] = {}
    forward: dict[str, float] = {}
    backward: dict[str, float] = {}
    total = least = 0.0
    for node in graph:
        seconds = runs * costs.seconds_of(node, graph)
        total += seconds
        least += runs * alone.seconds_of(node, graph) if alone else seconds
        if node.is_variable:
            continue
        served = node if node.origin is None else graph[node.origin]
        if served.is_variable or is_free(served, graph):
            continue
        name = signature(served, graph)
        kinds[name] = served.op
        into = forward if served is node else backward
        into[name] = into.get(name, 0.0) + seconds
    timed = [Timed(name, kinds[name], forward.get(name, 0.0), b) for name, b in backward.items()]
    nearest = min(max(measured_step, least), total)
    return Consistency(nearest, measured_step, tuple(outliers(timed)))
