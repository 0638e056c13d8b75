"""Rules: what a user demands of a placement, and which demands contradict each other.

    together   all nodes of these names are on one device
    apart      no device has nodes of two of these names
    pin        these nodes are on this device
    not_on     these nodes are on none of these devices
    at_most    these nodes are on no more than this number of devices
    same       the nodes of the second name are where those of the first are, one by one
    split      an automatic split of this group is along this axis only

A name is a ctx_group, a node, or a pattern of both such as `layer*`. To a strategy, `together` and
`same` are ties; `pin` and `not_on` are devices that a node may be on. The other two are made so
where they are broken, see branching.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import combinations, pairwise

import numpy as np

from symgraph.core.connected import connected
from symgraph.core.context import Context
from symgraph.core.errors import PlacementError, nearest
from symgraph.core.graph import Graph, Node
from symgraph.core.tags import lookup
from symgraph.core.types import Array
from symgraph.core.units import count_text

TOGETHER, APART, PIN, NOT_ON = "together", "apart", "pin", "not_on"
AT_MOST, SAME, SPLIT = "at_most", "same", "split"
SAMPLES, CLASSES = "samples", "classes"  # axes of splits; none: neither

Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class Rule:
    """What a user demands of some nodes."""

    kind: str
    """The kind of rule: `together`, `apart`, ..., as listed at the top of this file."""
    names: tuple[str, ...]
    """Groups, nodes or patterns."""
    devices: tuple[Context, ...] = ()
    """The device of a pin, or the devices that not_on forbids."""
    count: int = 0
    """The largest number of devices that at_most allows."""
    axis: str = ""
    """The axis that split allows: SAMPLES (replicas), CLASSES (shards) or `none`."""

    def __str__(self) -> str:
        if self.kind in (TOGETHER, APART):
            return f"{self.kind}: [{', '.join(self.names)}]"
        if self.kind == SAME:
            return f"{self.kind}: {{{self.names[1]}: {self.names[0]}}}"
        devices = [str(d) for d in self.devices]
        listed = devices[0] if len(devices) == 1 else f"[{', '.join(devices)}]"
        value = listed if devices else self.axis or self.count
        return f"{self.kind}: {{{self.names[0]}: {value}}}"


@dataclass(frozen=True)
class Demands:
    """Rules in numbers of nodes and devices."""

    #: Nodes on one device.
    ties: Pairs
    #: Whether a node may be on a device: [nodes, devices].
    allowed: Array
    #: Sets of nodes of which no two share a device.
    apart: list[tuple[frozenset[int], frozenset[int]]] = field(default_factory=list)
    #: Sets of nodes, and on how many devices they may be.
    at_most: list[tuple[frozenset[int], int]] = field(default_factory=list)

    def broken(self, devices: Sequence[int]) -> str:
        """Say what a placement breaks: node -> device; "": nothing."""
        if any(devices[a] != devices[b] for a, b in self.ties):
            return TOGETHER
        if not all(self.allowed[node, device] for node, device in enumerate(devices)):
            return NOT_ON
        on = [[{devices[i] for i in side} for side in sides] for sides in self.apart]
        if any(a & b for a, b in on):
            return APART
        if any(len({devices[i] for i in held}) > count for held, count in self.at_most):
            return AT_MOST
        return ""


def callable_nodes(graph: Graph) -> list[Node]:
    """List the forward operators of a graph, which rules are about."""
    return [n for n in graph if n.origin is None and not n.is_variable]


def nodes_named(graph: Graph) -> Callable[[str], list[int]]:
    """Return a function that finds the nodes of a name, numbered as in `callable_nodes`.

    A variable stands for its first reader. Raises PlacementError for a name without nodes.
    """
    nodes = callable_nodes(graph)
    index = {n.name: [i] for i, n in enumerate(nodes)}
    groups: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        group = lookup(node.tags, "ctx_group")
        if group is not None:
            groups.setdefault(group, []).append(i)
        for value in node.inputs:
            index.setdefault(value.node, [i])
    known = {**index, **groups}

    def find(name: str) -> list[int]:
        if name in known:
            return known[name]
        found = {i for other, held in known.items() if fnmatchcase(other, name) for i in held}
        if not found:
            names = [*groups, *(n.name for n in nodes)]
            raise PlacementError(f"no ctx_group or node {name!r}; {nearest(name, names)}")
        return sorted(found)

    return find


def demands(graph: Graph, rules: Sequence[Rule], contexts: Sequence[Context]) -> Demands:
    """Turn rules into numbers. Raises PlacementError for unknown names and devices."""
    found = Demands([], np.ones((len(callable_nodes(graph)), len(contexts)), dtype=bool))
    if not rules:
        return found
    find = nodes_named(graph)
    for rule in rules:
        held = [find(name) for name in rule.names]
        every = frozenset(i for nodes in held for i in nodes)
        unknown = [d for d in rule.devices if d not in contexts]
        if unknown:
            there = nearest(str(unknown[0]), map(str, contexts))
            raise PlacementError(f"{rule}: no device {unknown[0]}; {there}")
        columns = [contexts.index(d) for d in rule.devices]
        if rule.kind == TOGETHER:
            found.ties.extend(pairwise(sorted(every)))
        elif rule.kind == SAME:
            if len(held[0]) != len(held[1]):
                one, other = (count_text(len(nodes), "node") for nodes in held)
                raise PlacementError(
                    f"{rule}: {rule.names[1]!r} has {other} and {rule.names[0]!r} {one}, so they "
                    "do not match one by one; use together"
                )
            found.ties.extend(zip(*held, strict=True))
        elif rule.kind == APART:
            sets = map(frozenset, held)
            found.apart.extend(combinations(sets, 2))
        elif rule.kind == AT_MOST:
            found.at_most.append((every, rule.count))
        elif rule.kind == PIN:
            others = [d for d in range(len(contexts)) if d not in columns]
            found.allowed[np.ix_(sorted(every), others)] = False
        elif rule.kind == NOT_ON:
            found.allowed[np.ix_(sorted(every), columns)] = False
    return found


def require_kept(graph: Graph, rules: Sequence[Rule], device_of: Mapping[str, Context]) -> None:
    """Raise PlacementError for the first rule that a placement breaks.

    Args:
        graph: the graph.
        rules: the rules.
        device_of: the device of each forward node.
    """
    contexts = sorted({*device_of.values(), *(d for rule in rules for d in rule.devices)})
    devices = [contexts.index(device_of[n.name]) for n in callable_nodes(graph)]
    for rule in rules:
        if demands(graph, [rule], contexts).broken(devices):
            raise PlacementError(f"the placement breaks the constraint {rule}")


def may_split(rules: Iterable[Rule], group: str, axis: str) -> bool:
    """Tell whether a group may be split along an axis."""
    asked = [r.axis for r in rules if r.kind == SPLIT and fnmatchcase(group, r.names[0])]
    return all(a == axis for a in asked)


# -- contradictions ------------------------------------------------------------------------------


def settled(found: Demands, ties: Pairs) -> list[int] | None:
    """Find a device for every node that keeps all demands and ties, or None if there is none.

    Nodes that the demands treat alike are on one device, if that can be: then whatever else is kept
    with them on several is kept with them on one. So it is a search over few kinds of nodes.
    """
    count, k = found.allowed.shape
    part = connected(count, [*found.ties, *ties])
    allowed = np.ones((int(part.max()) + 1, k), dtype=bool)
    np.logical_and.at(allowed, part, found.allowed)
    sides = [side for pair in found.apart for side in pair] + [held for held, _ in found.at_most]
    within = np.zeros((len(allowed), len(sides)), dtype=bool)
    for at, side in enumerate(sides):
        within[part[sorted(side)], at] = True
    rows, kind = np.unique(np.hstack([allowed, within]), axis=0, return_inverse=True)
    choice = _choose(rows[:, :k], rows[:, k:], len(found.apart), [c for _, c in found.at_most])
    return None if choice is None else [choice[int(kind.ravel()[p])] for p in part]


def _choose(allowed: Array, within: Array, pairs: int, counts: Sequence[int]) -> list[int] | None:
    """Search a device for each kind of nodes; those with fewest devices first."""
    order = sorted(range(len(allowed)), key=lambda i: int(allowed[i].sum()))
    choice = [-1] * len(allowed)
    columns = [column.tobytes() for column in allowed.T]
    if any(row[2 * p] and row[2 * p + 1] for row in within for p in range(pairs)):
        return None

    def keeps(kind: int, device: int) -> bool:
        for p in range(pairs):
            for side in (2 * p, 2 * p + 1):
                if within[kind, side] and any(
                    within[o, side ^ 1] and choice[o] == device for o in order
                ):
                    return False
        for at, most in enumerate(counts, 2 * pairs):
            used = {choice[o] for o in order if within[o, at] and choice[o] >= 0}
            if within[kind, at] and len(used | {device}) > most:
                return False
        return True

    def search(at: int) -> bool:
        if at == len(order):
            return True
        kind, fresh = order[at], set[bytes]()
        for device in np.flatnonzero(allowed[kind]).tolist():
            if device not in choice:  # of unused devices that are alike, the first will do
                if columns[device] in fresh:
                    continue
                fresh.add(columns[device])
            if keeps(kind, device):
                choice[kind] = device
                if search(at + 1):
                    return True
                choice[kind] = -1
        return False

    return choice if search(0) else None


def contradiction(
    graph: Graph, rules: Sequence[Rule], contexts: Sequence[Context], ties: Pairs
) -> list[Rule]:
    """Find a smallest set of rules that contradict each other, by leaving out one after another.

    None of its rules can be left out: the others can be kept (a deletion filter, Chinneck and
    Dravnieks 1991). Empty: all rules can be kept at once.

    Args:
        graph: the graph.
        rules: the rules.
        contexts: the devices.
        ties: nodes that are on one device in any case, as they share parameters.
    """

    def possible(some: Sequence[Rule]) -> bool:
        return settled(demands(graph, some, contexts), ties) is not None

    if possible(rules):
        return []
    left = list(rules)
    for rule in rules:
        fewer = [r for r in left if r is not rule]
        if not possible(fewer):
            left = fewer
    return left
