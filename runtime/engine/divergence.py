"""Divergence: what happens when a loss or norm is not finite, and where that began.

Every rank sees a step's figures and norms before the updates, so all notice at the same place, and
the weights are still those that the step began with. Random numbers are keyed by the step. So the
step can be run once more, with a look at the values of each node: the search costs time only then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime.backends.device.arrays import on_host
from runtime.planning.step import StepBatches
from symgraph.core.types import Array

STOP, SKIP, IGNORE = "stop", "skip", "ignore"
REMEDY = "lower the learning rate, or use on_nan: skip"


class NodeWatch:
    """Looks at the values of all nodes that a rank runs, as they are made.

    Attributes:
        mb: The micro-batch that runs now.
        found: By micro-batch, the first node whose value is not finite, and its variables that were
            not finite before.
    """

    def __init__(self) -> None:
        self.mb = 0
        self.found: dict[int, tuple[str, list[str]]] = {}
        self._bad: list[str] = []

    def before(self, variables: Mapping[str, Array]) -> None:
        """Look at the variables that the next node reads."""
        wanted = {} if self.mb in self.found else variables
        self._bad = [name for name, array in wanted.items() if not is_finite(array)]

    def after(self, node: str, outs: Sequence[Array]) -> None:
        """Look at the values that a node has made."""
        if self.mb not in self.found and not all(map(is_finite, outs)):
            self.found[self.mb] = node, self._bad


def is_finite(array: Array) -> bool:
    """Return whether all numbers of an array are finite."""
    host = on_host(array)
    return host.dtype.kind in "iub" or bool(np.isfinite(host).all())


def first_of(found: Sequence[Mapping[str, Any]], parts: StepBatches) -> str:
    """Say where values that are not finite began and what may help, from what all ranks have found.

    Within a micro-batch that is the first of the found nodes in the order of the graph, in which
    every node comes after its inputs. Nodes of forward phases come first: gradients may overflow
    beside them, which a dynamic loss scale allows.

    Args:
        found: By rank, `NodeWatch.found`; keys are texts.
        parts: The micro-batches of the step.
    """
    places = []
    for rank, nodes in enumerate(found):
        for text, (node, bad) in nodes.items():
            mb = int(text)
            graph = parts.partitions[parts.kinds[mb]].graph
            order = list(graph.nodes).index(node)
            backward = graph[node].origin is not None
            places.append((backward, mb, order, rank, node, graph[node].op, bad))
    if not places:
        return (
            "every node's value is finite, so a sum over micro-batches or replicas is too large; "
            f"{REMEDY}"
        )
    _, mb, _, rank, node, op, bad = min(places)
    known, states = parts.plans[0].parameters, parts.plans[0].states
    if fed := [name for name in bad if name not in known and name not in states]:
        names = " and ".join(map(repr, fed))
        return (
            f"the batch has numbers that are not finite in {names} (micro-batch {mb}); mend the "
            "data, or use on_nan: skip"
        )
    kinds = {True: "its parameter", False: "its input"}
    inputs = [f"{kinds[name in known]} {name!r} was not finite before" for name in bad]
    return (
        f"the value of node {node!r} ({op}) is the first that is not finite (rank {rank}, "
        f"micro-batch {mb}); {' and '.join(inputs) or 'its inputs are finite'}; {REMEDY}"
    )
