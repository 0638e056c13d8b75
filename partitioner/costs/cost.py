"""Costs: seconds of nodes and bodies, measured or else estimated from operation counts.

A measurement belongs to a signature, which all calls of one kernel on arrays of the same types
share, so a network unrolled over 60 time steps has as many as one over 2.
"""

from __future__ import annotations

import json
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from partitioner.base.aliasing import is_join, is_view
from partitioner.base.types import Body
from symgraph.core.graph import Graph, Node
from symgraph.core.reading import read_text, reading
from symgraph.core.registry import find
from symgraph.core.types import TensorType
from symgraph.core.units import seconds_text

TABLE = "table of costs of this version (measure it again with `symgraph profile`)"
SCHEMA = 4  # the version of saved tables

# Attributes that change what is computed but not how long it takes: the name of a random stream,
# what the types say already, where a slice of that size lies, numbers to divide by.
UNTIMED = {"stream", "shape", "begin", "end", "count", "share", "classes"}

CACHED_BYTES = 1 << 15  # parameters from this size on are slower when not in a cache


def is_free(node: Node, graph: Graph) -> bool:
    """Tell whether a call takes no time: its output is in its inputs' memory, or beside it."""
    return is_view(node, graph) or is_join(node)


def signature(node: Node, graph: Graph) -> str:
    """Write what the time of a call depends on: operator, attributes that matter, types.

    `FullyConnected(float32[16,200] float32[800,200]; ..., no_bias=True) -> float32[16,800]`
    """
    ins = tuple(graph.types_of(node.inputs))
    return _text(node.op, tuple(node.attrs.items()), ins, node.types)


@lru_cache(maxsize=1 << 14)
def _text(
    op: str,
    attrs: tuple[tuple[str, Hashable], ...],
    ins: tuple[TensorType, ...],
    outs: tuple[TensorType, ...],
) -> str:
    attributes = ", ".join(f"{k}={v!r}" for k, v in sorted(attrs) if k not in UNTIMED)
    return f"{op}({_listed(ins)}{'; ' if attributes else ''}{attributes}) -> {_listed(outs)}"


def _listed(types: tuple[TensorType, ...]) -> str:
    """Write types, equal neighbours once: `60*float32[16,200]`."""
    runs = [(type_, len(list(group))) for type_, group in groupby(types)]
    return " ".join(f"{count}*{type_}" if count > 1 else str(type_) for type_, count in runs)


def parameters(node: Node, graph: Graph, elsewhere: Container[str] = ()) -> list[str]:
    """List the large variables that a call reads.

    Args:
        node: the call.
        graph: its graph.
        elsewhere: variables to leave out, because their values were made a moment ago.
    """
    variables = dict.fromkeys(v.node for v in node.inputs if graph[v.node].is_variable)
    return [v for v in variables if v not in elsewhere and graph[v].types[0].nbytes >= CACHED_BYTES]


def touched_bytes(node: Node, graph: Graph) -> int:
    """Count the bytes that a call reads and writes."""
    written = sum(t.nbytes for t in node.types)
    sizes = [t.nbytes for t in graph.types_of(node.inputs)]
    reads_part = not node.is_variable and find(node.op).reads_part
    return written + sum(min(size, written) if reads_part else size for size in sizes)


def resident_bytes(body: Body) -> int:
    """Count the bytes of a body's variables, which it finds in memory or in caches."""
    return sum(n.types[0].nbytes for n in body.graph.variables)


class Costs(Protocol):
    """A source of costs: a CostTable, a Speed, or any other."""

    def seconds_of(self, node: Node, graph: Graph) -> float:
        """Return the seconds of one call of a node."""
        ...


@dataclass(frozen=True)
class Speed:
    """The speed of one device.

    A call takes as long as its operations or its bytes in and out, whichever is more (the
    roofline: Williams, Waterman and Patterson 2009).
    """

    flops: float  #: operations per second
    call: float  #: seconds to call a small kernel
    bandwidth: float = inf  #: bytes per second to and from memory

    def seconds_of(self, node: Node, graph: Graph) -> float:
        """Estimate the seconds of one call; variables take none."""
        if node.is_variable or is_free(node, graph):
            return 0.0
        ins = graph.types_of(node.inputs)
        operations = find(node.op).flops(node.attrs, ins, node.types)
        return self.call + self.roofline(operations, touched_bytes(node, graph))

    def roofline(self, flops: float, nbytes: float) -> float:
        """Return the least seconds for these numbers of operations and bytes."""
        return max(flops / self.flops, nbytes / self.bandwidth)

    @property
    def rates(self) -> Rates:
        """The rates of passes through memory."""
        return Rates(self.bandwidth, self.bandwidth)

    @property
    def alone(self) -> Speed:
        """The costs while no other device works: devices share nothing."""
        return self

    def least(self) -> Speed:
        """Return the least costs, wherever calls find what they read: caches do not count."""
        return self

    def seconds(self, body: Body) -> float:
        """Estimate the seconds of one run of a body."""
        return sum(self.seconds_of(n, body.graph) for n in body.graph)


@dataclass(frozen=True)
class KindCosts:
    """Costs where devices are of several kinds."""

    kinds: Mapping[str, Costs]  #: by the kind of the devices' contexts

    def seconds_of(self, node: Node, graph: Graph) -> float:
        """Return the seconds of one call on the fastest kind."""
        return min(costs.seconds_of(node, graph) for costs in self.kinds.values())


class Caches(NamedTuple):
    """The bytes of a device's caches."""

    own: int
    shared: int  #: the device's part of the cache that all share


class Rates(NamedTuple):
    """The rates of a step's work besides its bodies, in bytes per second while all devices work."""

    passes: float  #: over large arrays that are read and written
    packing: float  #: of parameters into another layout
    step: float = 0.0  #: seconds of the host to begin and end a step

    @classmethod
    def mean(cls, rates: Sequence[Rates]) -> Rates:
        """Average the rates of several devices."""
        return cls(*(sum(of_all) / len(rates) for of_all in zip(*rates, strict=True)))


class Measured(NamedTuple):
    """A measured kernel."""

    seconds: float  #: of a call among others, with what the runtime needs for it
    spread: float  #: the interquartile range, in seconds
    calls: int  #: the number of calls that were measured
    #: Seconds if its parameters come from the device's cache, the shared one, and memory; empty if
    #: it reads no large parameters.
    levels: tuple[float, ...] = ()
    #: Its time while no other device works, relative to that while all do, as in all figures above.
    alone: float = 1.0


class Variation(NamedTuple):
    """The variation of a machine's speed, its own and that caused by other programs.

    It is given by the quartiles of the seconds of the same work, relative to the median.
    """

    low: float = 1.0
    high: float = 1.0

    def union(self, other: Variation) -> Variation:
        """Return the variation over both measurements."""
        return Variation(min(self.low, other.low), max(self.high, other.high))


STEADY = Variation()


@dataclass(frozen=True)
class CostTable:
    """Measured kernels of one kind of device, and the speed that estimates all others."""

    speed: Speed
    rates: Rates
    caches: Caches
    measured: Mapping[str, Measured]  #: by signature
    failed: Mapping[str, str]  #: signature -> why it could not be measured
    machine: Mapping[str, str]  #: where it was measured, in words
    variation: Variation = STEADY  #: of the machine during the measurement

    def seconds_of(self, node: Node, graph: Graph) -> float:
        """Return the seconds of one call; variables take none."""
        if node.is_variable or is_free(node, graph):
            return 0.0
        kernel = self.measured.get(signature(node, graph))
        if kernel is None:
            return self.speed.seconds_of(node, graph)
        return kernel.seconds

    def seconds(
        self, body: Body, between: float = 0.0, variables: Container[str] = frozenset()
    ) -> float:
        """Return the seconds of one run of a body.

        A parameter is in a cache if the bytes read and written since its last use fit into that.

        Args:
            body: the body.
            between: bytes that the rank touches before the body runs again.
            variables: those of the whole graph: a body's other imports were made a moment ago.
        """
        graph, total, moved = body.graph, 0.0, 0.0
        made = {name for name in body.imports if name not in variables}
        used: dict[str, float] = {}
        for node in graph:
            if node.is_variable or is_free(node, graph):
                continue
            moved += touched_bytes(node, graph)
            kernel = self.measured.get(signature(node, graph))
            reads = parameters(node, graph, made) if kernel and kernel.levels else ()
            if not kernel or not reads:
                total += self.seconds_of(node, graph)
                continue
            distance = max(moved - used.get(name, -between) for name in reads)
            used |= dict.fromkeys(reads, moved)
            total += kernel.levels[sum(distance > size for size in self.caches)]
        return total

    @cached_property
    def alone(self) -> CostTable:
        """The costs of calls while no other device works."""
        measured = {
            name: kernel._replace(
                seconds=kernel.seconds * kernel.alone,
                levels=tuple([level * kernel.alone for level in kernel.levels]),
                alone=1.0,
            )
            for name, kernel in self.measured.items()
        }
        return replace(self, measured=measured)

    def least(self) -> CostTable:
        """Return the costs of calls that find what they read in a cache, while no other works."""
        seconds = {
            name: min(kernel.levels, default=kernel.seconds)
            for name, kernel in self.alone.measured.items()
        }
        return replace(self, measured={name: Measured(x, 0.0, 1) for name, x in seconds.items()})

    def measured_share(self, graph: Graph) -> float:
        """Return the share of a graph's time that is measured, from 0 to 1."""
        total = known = 0.0
        for node in graph:
            seconds = self.seconds_of(node, graph)
            total += seconds
            if not node.is_variable and signature(node, graph) in self.measured:
                known += seconds
        return known / total if total else 1.0

    def to_json(self) -> str:
        """Write the table as JSON, signatures in alphabetical order."""
        return json.dumps(self.data(), indent=1, sort_keys=True)

    def data(self) -> dict[str, Any]:
        """Return the table as JSON-able data."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, text: str, source: str = "costs") -> CostTable:
        """Read what `to_json` wrote. Raises ConfigError, which names the source, for other text."""
        with reading(source, TABLE):
            return cls.from_data(json.loads(text), source)

    @classmethod
    def from_data(cls, data: Any, source: str = "costs") -> CostTable:
        """Read what `data` returned. Raises ConfigError, which names the source, otherwise."""
        with reading(source, TABLE):
            return cls._parsed(data)

    @classmethod
    def _parsed(cls, data: Any) -> CostTable:
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']} is not {SCHEMA}")
        return cls(
            Speed(**{key: float(value) for key, value in data["speed"].items()}),
            Rates(*map(float, data["rates"])),
            Caches(*map(int, data["caches"])),
            {
                key: Measured(
                    float(s), float(d), int(n), tuple(map(float, levels)), *map(float, alone)
                )
                for key, (s, d, n, levels, *alone) in data["measured"].items()
            },
            {key: str(why) for key, why in data["failed"].items()},
            {key: str(value) for key, value in data["machine"].items()},
            Variation(*map(float, data.get("variation", ()))),
        )

    def save(self, path: str | Path) -> None:
        """Write the table to a file as JSON."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> CostTable:
        """Read a file that `save` wrote. Raises ConfigError if that is missing or another."""
        return cls.from_json(read_text(path, TABLE), str(path))

    def __str__(self) -> str:
        """Show one line per signature, the slowest first."""
        slowest = sorted(self.measured.items(), key=lambda item: -item[1].seconds)
        lines = [
            f"{seconds_text(m.seconds):>9} ± {seconds_text(m.spread / 2):>9}  {text}"
            for text, m in slowest
        ]
        lines += [f"{'failed':>21}  {text}: {why}" for text, why in sorted(self.failed.items())]
        return "\n".join(lines)
