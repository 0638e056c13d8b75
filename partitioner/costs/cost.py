"""Costs: seconds of nodes and bodies, measured where they were, estimated from counts elsewhere.

A measurement belongs to a signature, which all calls of one kernel on arrays of the same types
share, so a network unrolled over 60 time steps has as many as one over 2.
"""

from __future__ import annotations

import json
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from partitioner.base.aliasing import is_join, is_view
from partitioner.base.types import Body
from symgraph.core.errors import ConfigError
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find
from symgraph.core.types import TensorType
from symgraph.core.units import seconds_text

SCHEMA = 3  # of saved tables

# Attributes that change what is computed but not how long it takes: the name of a random stream,
# what the types say already, where a slice of that size lies, numbers to divide by.
UNTIMED = {"stream", "shape", "begin", "end", "count", "share", "classes"}

LARGE = 1 << 15  # bytes of a parameter for which it matters where it lies


def is_free(node: Node, graph: Graph) -> bool:
    """Whether a call takes no time: its output is its inputs' memory, or is laid beside it."""
    return is_view(node, graph) or is_join(node)


def signature(node: Node, graph: Graph) -> str:
    """What the time of a call depends on: operator, attributes that matter, types in and out.

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
    given = ", ".join(f"{k}={v!r}" for k, v in sorted(attrs) if k not in UNTIMED)
    return f"{op}({_listed(ins)}{'; ' if given else ''}{given}) -> {_listed(outs)}"


def _listed(types: tuple[TensorType, ...]) -> str:
    """Types as text, equal neighbours once: `60*float32[16,200]`."""
    runs = [(type_, len(list(group))) for type_, group in groupby(types)]
    return " ".join(f"{count}*{type_}" if count > 1 else str(type_) for type_, count in runs)


def parameters(node: Node, graph: Graph, elsewhere: Container[str] = ()) -> list[str]:
    """The large variables that a call reads.

    elsewhere: variables that do not count, as what they stand for was made a moment ago.
    """
    found = dict.fromkeys(v.node for v in node.inputs if graph[v.node].is_variable)
    return [v for v in found if v not in elsewhere and graph[v].types[0].nbytes >= LARGE]


def touched_bytes(node: Node, graph: Graph) -> int:
    """Bytes that a call reads and writes."""
    written = sum(t.nbytes for t in node.types)
    sizes = [t.nbytes for t in graph.types_of(node.inputs)]
    reads_part = not node.is_variable and find(node.op).reads_part
    return written + sum(min(size, written) if reads_part else size for size in sizes)


def resident_bytes(body: Body) -> int:
    """Bytes of a body's variables: what it finds in memory, or in caches."""
    return sum(n.types[0].nbytes for n in body.graph.variables)


class Costs(Protocol):
    """Seconds of one call of a node: a CostTable, a Speed, or whatever else counts."""

    def seconds_of(self, node: Node, graph: Graph) -> float: ...


@dataclass(frozen=True)
class Speed:
    """What one device does: operations a second, seconds to call a small kernel, bytes a second.

    A call takes as long as its operations or its bytes in and out, whichever is more (the
    roofline: Williams, Waterman and Patterson 2009).
    """

    flops: float
    call: float
    bandwidth: float = inf

    def seconds_of(self, node: Node, graph: Graph) -> float:
        """Time of one call; variables take none."""
        if node.is_variable:
            return 0.0
        if is_free(node, graph):
            return 0.0
        ins = graph.types_of(node.inputs)
        operations = find(node.op).flops(node.attrs, ins, node.types)
        return self.call + self.roofline(operations, touched_bytes(node, graph))

    def roofline(self, flops: float, nbytes: float) -> float:
        """The least seconds for so many operations on so many bytes."""
        return max(flops / self.flops, nbytes / self.bandwidth)

    @property
    def rates(self) -> Rates:
        """Of what goes through memory."""
        return Rates(self.bandwidth, self.bandwidth)

    def seconds(self, body: Body) -> float:
        """Time of one run of a body."""
        return sum(self.seconds_of(n, body.graph) for n in body.graph)


@dataclass(frozen=True)
class KindCosts:
    """Costs where devices are of several kinds; kinds: by the kind of their contexts."""

    kinds: Mapping[str, Costs]

    def seconds_of(self, node: Node, graph: Graph) -> float:
        """Time of one call on the kind that does it in the least."""
        return min(costs.seconds_of(node, graph) for costs in self.kinds.values())


class Caches(NamedTuple):
    """Bytes that a device finds in its own cache, and in its part of the one that all share."""

    own: int
    shared: int


class Rates(NamedTuple):
    """Bytes a second, while the other devices do the same.

    passes: over large arrays, that are read and written. packing: of parameters that are laid out
    anew.
    """

    passes: float
    packing: float

    @classmethod
    def mean(cls, rates: Sequence[Rates]) -> Rates:
        """Of several devices."""
        return cls(*(sum(of_all) / len(rates) for of_all in zip(*rates, strict=True)))


class Measured(NamedTuple):
    """A kernel's time and the interquartile range, in seconds, of that many calls.

    levels: its time if its parameters come from the own cache, from the shared one, from memory;
    empty if it reads none.
    """

    seconds: float
    spread: float
    calls: int
    levels: tuple[float, ...] = ()


@dataclass(frozen=True)
class CostTable:
    """Measured kernels of one kind of device, and the speed by which all others are estimated.

    dispatch: seconds of the runtime's loop for one call, which come on top of a measured kernel.
    measured, failed: by signature; failed: why it could not be measured. machine: where, in words.
    """

    speed: Speed
    dispatch: float
    rates: Rates
    caches: Caches
    measured: Mapping[str, Measured]
    failed: Mapping[str, str]
    machine: Mapping[str, str]

    def seconds_of(self, node: Node, graph: Graph) -> float:
        """Time of one call; variables take none."""
        if node.is_variable or is_free(node, graph):
            return 0.0
        found = self.measured.get(signature(node, graph))
        if found is None:
            return self.speed.seconds_of(node, graph)
        return found.seconds + self.dispatch

    def seconds(self, body: Body, between: float = 0.0) -> float:
        """Time of one run of a body.

        A parameter is in a cache if no more was read and written since its last use than that
        holds. between: bytes that the rank touches before the body runs again.
        """
        graph, total, moved = body.graph, 0.0, 0.0
        used: dict[str, float] = {}
        for node in graph:
            if node.is_variable or is_free(node, graph):
                continue
            moved += touched_bytes(node, graph)
            found = self.measured.get(signature(node, graph))
            own = parameters(node, graph, body.imports) if found and found.levels else ()
            if not found or not own:
                total += self.seconds_of(node, graph)
                continue
            far = max(moved - used.get(name, -between) for name in own)
            used |= dict.fromkeys(own, moved)
            total += found.levels[sum(far > size for size in self.caches)] + self.dispatch
        return total

    def measured_share(self, graph: Graph) -> float:
        """The part of a graph's time that rests on measurements, from 0 to 1."""
        total = known = 0.0
        for node in graph:
            seconds = self.seconds_of(node, graph)
            total += seconds
            if not node.is_variable and signature(node, graph) in self.measured:
                known += seconds
        return known / total if total else 1.0

    def to_json(self) -> str:
        """The table as text, signatures in alphabetical order."""
        return json.dumps(self.data(), indent=1, sort_keys=True)

    def data(self) -> dict[str, Any]:
        """The table as JSON can say it."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, text: str, source: str = "costs") -> CostTable:
        """The table that `to_json` wrote; ConfigError naming the source if it is none."""
        try:
            found = json.loads(text)
        except ValueError as error:
            raise _no_table(source, error) from None
        return cls.from_data(found, source)

    @classmethod
    def from_data(cls, found: Any, source: str = "costs") -> CostTable:
        """The table that `data` said; ConfigError naming the source if it is none."""
        try:
            return cls._parsed(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _no_table(source, error) from None

    @classmethod
    def _parsed(cls, found: Any) -> CostTable:
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']} is not {SCHEMA}")
        return cls(
            Speed(**{key: float(value) for key, value in found["speed"].items()}),
            float(found["dispatch"]),
            Rates(*map(float, found["rates"])),
            Caches(*map(int, found["caches"])),
            {
                key: Measured(float(s), float(d), int(n), tuple(map(float, levels)))
                for key, (s, d, n, levels) in found["measured"].items()
            },
            {key: str(why) for key, why in found["failed"].items()},
            {key: str(value) for key, value in found["machine"].items()},
        )

    def save(self, path: str | Path) -> None:
        """Write the table as JSON."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> CostTable:
        """The table that `save` wrote; ConfigError if the file is missing or no such table."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the table of costs {path}: {error}") from None
        return cls.from_json(text, str(path))

    def __str__(self) -> str:
        """One line a signature, the slowest first."""
        slowest = sorted(self.measured.items(), key=lambda item: -item[1].seconds)
        lines = [
            f"{seconds_text(m.seconds):>9} ± {seconds_text(m.spread / 2):>9}  {text}"
            for text, m in slowest
        ]
        lines += [f"{'failed':>21}  {text}: {why}" for text, why in sorted(self.failed.items())]
        return "\n".join([*lines, f"{seconds_text(self.dispatch):>21}  dispatch of a call"])


def _no_table(source: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{source} is no table of costs of this version ({type(error).__name__}: {error}); "
        "measure it anew with --profile"
    )
