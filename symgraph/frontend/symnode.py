"""Symbol nodes: the immutable graph behind symbols, before shapes are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from symgraph.core.errors import GraphError
from symgraph.core.params import Attrs
from symgraph.core.registry import OpDef


class Entry(NamedTuple):
    """One output of a SymNode."""

    node: SymNode
    port: int = 0


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class SymNode:
    """One call of an operator, or a variable (op is None).

    attrs: the user's attributes as MXNet stores them (`__ctx_group__`). params: parsed operator
    parameters. inputs: aux states come last.
    """

    name: str
    op: OpDef | None
    attrs: Mapping[str, str]
    params: Attrs = field(default_factory=dict)
    inputs: tuple[Entry, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.op.name if self.op else 'variable'} {self.name}>"  # not all behind it

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs that users see."""
        if self.op is None:
            return [self.name]
        names = self.op.output_names(self.params)[: self.op.visible]
        return [f"{self.name}_{n}" for n in names]

    @property
    def input_names(self) -> tuple[str, ...]:
        return () if self.op is None else self.op.input_names(self.params)


def walk(entries: Iterable[Entry]) -> list[SymNode]:
    """All nodes behind these entries, inputs first, in MXNet's depth-first post-order."""
    order: list[SymNode] = []
    seen: set[int] = set()
    stack: list[tuple[SymNode, bool]] = [(e.node, False) for e in reversed(list(entries))]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((e.node, False) for e in reversed(node.inputs))
    return order


def require_unique_variables(nodes: Iterable[SymNode]) -> None:
    """Raise GraphError if two different variables have the same name."""
    counts = Counter(node.name for node in nodes if node.op is None)
    for name, count in counts.items():
        if count > 1:
            raise GraphError(f"two variables are named {name!r}; use one variable in both places")


class Outputs:
    """Some outputs of a graph of SymNodes, in order: what a Symbol is, without its methods."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = tuple(entries)

    @property
    def name(self) -> str | None:
        """The name of the node behind a single output; None for a group."""
        nodes = {id(e.node) for e in self.entries}
        return self.entries[0].node.name if len(nodes) == 1 else None

    def one(self, what: str) -> Entry:
        if len(self.entries) != 1:
            raise GraphError(
                f"{what} takes one output, but {self!r} has {len(self.entries)} "
                f"({', '.join(self.list_outputs())}); pick one with [i]"
            )
        return self.entries[0]

    def list_outputs(self) -> list[str]:
        return [e.node.outputs[e.port] for e in self.entries]

    def each(self) -> list[Outputs]:
        """Every output by itself."""
        return [Outputs([e]) for e in self.entries]
