"""Consistency of measured costs: do they add up, and does backward time go with forward time?

A profiler that takes the time between two hooks that fire out of order gives it to the wrong node:
in PipeDream's published gnmt profiles a bidirectional LSTM takes 14.1 ms forward and 0.02 ms
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

LIKE_TWINS, LIKE_OTHERS = 2.5, 4.0  # how far from the usual ratio is an outlier
SHARE = 0.02  # of the whole time: less cannot matter
TOLERANCE = 0.05  # of the measured step: how far off the sum may be


class Timed(NamedTuple):
    """Forward and backward time of an operator, in any unit. kind: what is alike with others."""

    name: str
    kind: str
    forward: float
    backward: float


class Outlier(NamedTuple):
    """An operator whose backward time is not about what it was expected to be."""

    timed: Timed
    expected: float


def outliers(timed: Sequence[Timed]) -> list[Outlier]:
    """Those whose backward time does not go with their forward time.

    Compared with those of the same kind where there are three or more, else with all.
    """
    total = sum(x.forward + x.backward for x in timed)
    heavy = [x for x in timed if x.forward > 0 and x.forward + x.backward > SHARE * total]
    if not heavy or not any(x.backward for x in timed if x.forward > 0):
        return []
    found = []
    for x in timed:
        twins = [y for y in heavy if y.kind == x.kind]
        many = len(twins) >= 3
        expected = x.forward * _usual(twins if many else heavy)
        far = LIKE_TWINS if many else LIKE_OTHERS
        strange = x.backward > far * expected or x.backward * far < expected
        if strange and abs(x.backward - expected) > SHARE * total:
            found.append(Outlier(x, expected))
    return found


def _usual(timed: Sequence[Timed]) -> float:
    """The median ratio of backward to forward time."""
    return median(x.backward / x.forward for x in timed)


@dataclass(frozen=True)
class Consistency:
    """What is strange about costs. Seconds.

    nodes: the sum of all nodes' times. step: that of the whole as it was measured. outliers: of
    all calls with one signature together; its name is the signature.
    """

    nodes: float
    step: float
    outliers: tuple[Outlier, ...]

    @property
    def off(self) -> float:
        """How far the sum is above (or below: < 0) the whole, as a share of it."""
        return self.nodes / self.step - 1

    @property
    def findings(self) -> tuple[str, ...]:
        """What is strange, in words, a line each; none if all is well."""
        found = []
        if abs(self.off) > TOLERANCE:
            why = (
                "measured one by one they are slower than together"
                if self.off > 0
                else ("some of the step is in no node, or other work slows them down")
            )
            found.append(
                f"the nodes' times add up to {seconds_text(self.nodes)}, the step took "
                f"{seconds_text(self.step)} ({self.off:+.0%}): {why}"
            )
        found += [
            f"{x.timed.name}: backward {seconds_text(x.timed.backward)} for forward "
            f"{seconds_text(x.timed.forward)}, where about {seconds_text(x.expected)} is usual: "
            "measured on another node?"
            for x in self.outliers
        ]
        return tuple(found)


def consistency(costs: Costs, graph: Graph, measured_step: float, runs: int = 1) -> Consistency:
    """Check costs against a whole step, in seconds, in which a graph with gradients runs.

    measured_step: what one device computes, or all together. runs: of the graph in the step.
    Nodes without gradient nodes, and those that take no time themselves, are not compared.
    """
    kinds: dict[str, str] = {}
    forward: dict[str, float] = {}
    backward: dict[str, float] = {}
    total = 0.0
    for node in graph:
        seconds = runs * costs.seconds_of(node, graph)
        total += seconds
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
    return Consistency(total, measured_step, tuple(outliers(timed)))
