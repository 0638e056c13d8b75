"""Symbol nodes: the immutable graph behind symbols, before shapes are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
    """One call of an operator, or a variable."""

    name: str
    #: The operator; None for a variable.
    op: OpDef | None
    #: The user's attributes, under the keys that MXNet stores (`__ctx_group__`).
    attrs: Mapping[str, str]
    #: The operator's parsed parameters.
    params: Attrs = field(default_factory=dict)
    #: Inputs, auxiliary states last.
    inputs: tuple[Entry, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.op.name if self.op else 'variable'} {self.name}>"  # not the inputs

    @property
    def outputs(self) -> list[str]:
        """Names of the visible outputs."""
        if self.op is None:
            return [self.name]
        names = self.op.output_names(self.params)[: self.op.visible]
        return [f"{self.name}_{n}" for n in names]

    @property
    def is_loss(self) -> bool:
        """Whether it starts the backward pass."""
        return self.op is not None and self.op.is_loss(self.params)

    @property
    def input_names(self) -> tuple[str, ...]:
        return () if self.op is None else self.op.input_names(self.params)


def walk(entries: Iterable[Entry]) -> list[SymNode]:
    """List all nodes that these entries depend on, in MXNet's depth-first post-order."""
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


def replaced(
    entries: Iterable[Entry],
    swap: Mapping[str, Entry],
    changed: Callable[[SymNode], tuple[str, Mapping[str, str]]],
) -> list[Entry]:
    """Copy a network.

    Args:
        entries: its outputs.
        swap: what takes the place of variables, by name.
        changed: the name and attributes of the copy of a node.
    """
    entries = list(entries)
    copies: dict[int, SymNode | Entry] = {}

    def copied(entry: Entry) -> Entry:
        copy = copies[id(entry.node)]
        return copy if isinstance(copy, Entry) else Entry(copy, entry.port)

    for node in walk(entries):
        if node.op is None and node.name in swap:
            copies[id(node)] = swap[node.name]
        else:
            name, attrs = changed(node)
            inputs = tuple(copied(e) for e in node.inputs)
            copies[id(node)] = SymNode(name, node.op, attrs, node.params, inputs)
    return [copied(e) for e in entries]


def require_unique_variables(nodes: Iterable[SymNode]) -> None:
    """Raise GraphError if two different variables have the same name."""
    counts = Counter(node.name for node in nodes if node.op is None)
    for name, count in counts.items():
        if count > 1:
            raise GraphError(f"two variables are named {name!r}; use one variable in both places")


class Outputs:
    """An ordered tuple of outputs of SymNodes: the base class of Symbol."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = tuple(entries)

    @property
    def name(self) -> str | None:
        """Name of the node if all outputs belong to one; None for a group."""
        nodes = {id(e.node) for e in self.entries}
        return self.entries[0].node.name if len(nodes) == 1 else None

    def one(self, what: str) -> Entry:
        """Return the single output; GraphError, which begins with `what`, if there are several."""
        if len(self.entries) != 1:
            raise GraphError(
                f"{what} takes one output, but {self!r} has {len(self.entries)} "
                f"({', '.join(self.list_outputs())}); pick one with [i]"
            )
        return self.entries[0]

    def list_outputs(self) -> list[str]:
        """List the names of the outputs."""
        return [e.node.outputs[e.port] for e in self.entries]

    def each(self) -> list[Outputs]:
        """Return every output separately."""
        return [Outputs([e]) for e in self.entries]
