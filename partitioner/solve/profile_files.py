"""PipeDream profiles (`graph.txt`): measured layers of a network, and doubts about them.

A node's time is forward + backward, its memory parameters + activations. A profile knows nothing
of links: without a bandwidth, communication is free (as in PipeDream's own optimizer, unless it is
given a compression ratio); with one, a value costs its own bytes and those of its gradient. As in
PipeDream, loading the inputs counts for no device.

Backward times land on the wrong node when a profiler takes the time between two hooks that fire
out of order, as for several nodes of the published gnmt profiles; the notes name them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partitioner.costs.consistency import Timed, outliers
from partitioner.solve.problem import Problem, Transfer, published
from partitioner.solve.replicated import Layers
from symgraph.core.errors import ConfigError

TIMES = ("forward_compute_time", "backward_compute_time")
FIELDS = (*TIMES, "activation_size", "parameter_size")


@dataclass(frozen=True)
class Layer:
    """A layer of a profile, which is one line of the file."""

    name: str  #: the id of the node
    title: str  #: the description, such as `Linear(in_features=..)`
    forward: float  #: milliseconds of the forward pass
    backward: float  #: milliseconds of the backward pass
    activation: float  #: bytes of the activations
    parameters: float  #: bytes of the parameters

    @property
    def kind(self) -> str:
        """The operator: the title up to its arguments."""
        return re.split(r"[(\s]", self.title, maxsplit=1)[0]


def parse_profile(
    text: str, bandwidth: float | None
) -> tuple[Problem, tuple[str, ...], tuple[str, ...]]:
    """Parse a profile into (problem, titles, notes); the caller sets its devices and limits."""
    layers, edges = _parse(text)
    number = {layer.name: i for i, layer in enumerate(layers)}
    targets: dict[int, dict[int, None]] = {}
    for line, a, b in edges:
        for name in (a, b):
            if name not in number:
                raise ConfigError(f"line {line}: an edge refers to {name}, which is not a node")
        targets.setdefault(number[a], {})[number[b]] = None
    read = {v for to in targets.values() for v in to}
    inputs = {i for i, x in enumerate(layers) if i not in read and x.title.startswith("Input")}
    notes = [
        f"{x.name} ({x.title}) loads data for {x.forward + x.backward:g} ms, which is not counted"
        for i, x in enumerate(layers)
        if i in inputs and x.forward + x.backward > 0
    ]
    notes += _strange(layers, targets, inputs)
    if bandwidth is None:
        notes.append(
            "communication is not counted, because a profile has no links; add --bandwidth"
        )
    elif not 0 < bandwidth < math.inf:
        raise ConfigError(f"the bandwidth must be a number > 0, not {bandwidth}")
    per_byte = 2e3 / bandwidth if bandwidth else 0.0  # ms: there, and the gradient back
    times = [0.0 if i in inputs else x.forward + x.backward for i, x in enumerate(layers)]
    problem = published(
        tuple(number),
        np.array(times),
        np.full(len(layers), np.inf),
        np.array([0 if i in inputs else x.activation + x.parameters for i, x in enumerate(layers)]),
        tuple(
            Transfer(v, tuple(to), 0.0 if v in inputs else layers[v].activation * per_byte)
            for v, to in targets.items()
        ),
        accelerators=1,
    )
    return problem, tuple(x.title for x in layers), tuple(notes)


def replicated_layers(text: str) -> Layers:
    """Parse a profile for `replicate`: without inputs, and without pieces that nobody reads."""
    every, edges = _parse(text)
    sources, targets = {a for _, a, _ in edges}, {b for _, _, b in edges}
    kept = [
        x
        for x in every
        if (x.name in targets or not x.title.startswith("Input"))
        and (x.name in sources or not x.title.startswith("__getitem__"))
    ]
    number = {layer.name: i for i, layer in enumerate(kept)}
    arcs = frozenset((number[a], number[b]) for _, a, b in edges if a in number and b in number)
    return Layers(
        np.array([(x.forward + x.backward) / 1e3 for x in kept]),
        np.array([x.parameters for x in kept]),
        np.array([x.activation for x in kept]),
        arcs,
    )


def _parse(text: str) -> tuple[list[Layer], list[tuple[int, str, str]]]:
    """Parse the nodes, and the edges as (line, source, target)."""
    layers: dict[str, Layer] = {}
    edges = []
    for at, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        parts = line.strip().split(" -- ")
        if line[0] == "\t":
            if len(parts) != 2:
                raise ConfigError(f"line {at}: an edge is `<tab>nodeA -- nodeB`, not {line!r}")
            edges.append((at, parts[0], parts[1]))
            continue
        layer = _layer(at, parts)
        if layer.name in layers:
            raise ConfigError(f"line {at}: {layer.name} is listed twice")
        layers[layer.name] = layer
    if not layers:
        raise ConfigError("neither a JSON workload nor a profile: the file has no nodes")
    return list(layers.values()), edges


def _layer(at: int, parts: Sequence[str]) -> Layer:
    fields = [i for i, part in enumerate(parts) if part.startswith(f"{FIELDS[0]}=")]
    if len(parts) < 3 or not fields or fields[0] < 2:
        raise ConfigError(
            f"line {at}: neither JSON nor a node `name -- text -- {FIELDS[0]}=..., ...`"
        )
    values = []
    for field in FIELDS:
        match = re.search(rf"\b{field}=(\[[^\]]*\]|[^,\s]*)", parts[fields[0]])
        if not match:
            raise ConfigError(f"line {at}: {parts[0]} has no {field}")
        try:
            value = sum(float(x) for x in match[1].strip("[]").split(";"))
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise ConfigError(
                f"line {at}: {field} of {parts[0]} is {match[1]!r}, not a number >= 0"
            )
        values.append(value)
    return Layer(parts[0], " -- ".join(parts[1 : fields[0]]), *values)


def _strange(
    layers: Sequence[Layer], targets: dict[int, dict[int, None]], inputs: set[int]
) -> list[str]:
    """Describe layers whose backward time does not fit their forward time.

    A layer that reads only inputs needs no gradient of them and may be faster.
    """
    first = {
        layers[v].name
        for i in inputs
        for v in targets.get(i, {})
        if all(v not in to for s, to in targets.items() if s not in inputs)
    }
    timed = [
        Timed(x.name, x.kind, x.forward, x.backward)
        for i, x in enumerate(layers)
        if i not in inputs
    ]
    return [
        f"{x.name} ({x.kind}): backward {x.backward:g} ms for forward {x.forward:g} ms, "
        f"where about {expected:.3g} is usual: was it measured on another node?"
        for x, expected in outliers(timed)
        if x.backward > expected or x.name not in first
    ]
