"""The memory layout: where the values of a rank's micro-batch lie, and which share memory.

Values lie in roots, pieces of memory that are allocated and freed as a whole. A view lies in its
input's root. The inputs of a join are written side by side at once, so that joining time steps and
taking them apart cost nothing:

    h0 h1 h2 h3 h4      one root; the joins (h0 h1 h2 h3) and (h1 h2 h3 h4) are windows of it

An output may take the place of an input that no later call reads. Values that only one body touches
are scratch: their roots are packed by when the body's calls need them, and freed when it has run.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple
from weakref import WeakKeyDictionary

from partitioner.base.aliasing import is_join, view_offsets
from partitioner.base.types import BACKWARD, FORWARD, INPUT, WEIGHT, Body, BodyKey, Partition
from partitioner.cutting.cut import body_order, runs_before
from partitioner.memory.packing import Need, pack, to_cache_lines
from symgraph.core.graph import Node
from symgraph.core.registry import find
from symgraph.core.types import TensorType, Value

PHASE_ORDER = {FORWARD: 0, BACKWARD: 1, INPUT: 1, WEIGHT: 2}
NONE: frozenset[Value] = frozenset()
NO_GRADIENTS: Mapping[str, Value] = MappingProxyType({})
Key = tuple[int, Value]  # a stage, and a value that it has


class Place(NamedTuple):
    """The place of a value: a root, and the offset in it in bytes."""

    root: int
    offset: int


@dataclass(frozen=True)
class Root:
    """A piece of memory."""

    nbytes: int
    fixed: str | None = None  #: the variable whose own array it is; the layout does not allocate it
    bodies: tuple[BodyKey, ...] = ()  #: those that make or read values in it
    messages: tuple[int, ...] = ()  #: tags of the edges that are received into it
    sends: tuple[BodyKey, ...] = ()  #: bodies whose messages lie in it
    lasts: bool = False  #: whether it is held to the end of the step

    @property
    def scratch(self) -> bool:
        """Whether only one body's run needs it."""
        outside = self.fixed is not None or self.messages or self.sends or self.lasts
        return not outside and len(self.bodies) == 1


@dataclass(frozen=True)
class MemoryLayout:
    """Where a rank's values lie."""

    places: Mapping[Key, Place]
    roots: tuple[Root, ...]
    scratch: Mapping[BodyKey, int]  #: body -> bytes
    scratch_at: Mapping[int, int]  #: scratch root -> its offset in the body's scratch
    added: frozenset[Value]  #: gradients that are added to partial sums as soon as they are made

    @cached_property
    def touched(self) -> Mapping[BodyKey, tuple[int, ...]]:
        """The roots in which each body makes or reads values, except scratch and fixed ones."""
        touched: dict[BodyKey, list[int]] = {key: [] for key in self.scratch}
        for number, root in enumerate(self.roots):
            if root.fixed is None and not root.scratch:
                for key in root.bodies:
                    touched[key].append(number)
        return {key: tuple(numbers) for key, numbers in touched.items()}


_LAYOUTS: WeakKeyDictionary[Partition, dict[object, MemoryLayout]] = WeakKeyDictionary()


def lay_out(
    partition: Partition,
    rank: int,
    fixed: Collection[str] = (),
    grads: Mapping[str, Value] = NO_GRADIENTS,
    *,
    several: bool = False,
) -> MemoryLayout:
    """Lay out the memory of one rank.

    Layouts are cached as long as the partition exists: worker and memory plan use the same one.

    Args:
        partition: the cut graph.
        rank: whose memory.
        fixed: variables that have their own arrays; other variables are copied in.
        grads: variable -> the value of its gradient.
        several: whether a step has several micro-batches, so that each gradient is added to a
            partial sum, on a CPU as soon as it is made (a GPU makes gradients beside other work,
            which would wait for their memory); of one micro-batch, gradients stay after the last
            run.
    """
    rank_bodies = [b for k, b in partition.bodies.items() if partition.rank(k) == rank]
    fed = {n.name for b in rank_bodies for n in b.graph.variables if n.name not in b.imports}
    asked = frozenset(grads.values())
    lasting, added = NONE if several else asked, NONE
    if several and partition.placement.devices[rank].kind == "cpu":
        added = _only_added(partition, grads)
    key = rank, frozenset(fed.intersection(fixed)), lasting, added
    known = _LAYOUTS.setdefault(partition, {})
    if key not in known:
        bodies = sorted(rank_bodies, key=lambda b: turn(b.key))
        builder = _Builder(partition, bodies, *key[1:])
        builder.make_places()
        builder.join()
        builder.write_over()
        known[key] = builder.finish()
    return known[key]


def _only_added(partition: Partition, grads: Mapping[str, Value]) -> frozenset[Value]:
    """Return the gradients that are not outputs of the network too."""
    times = Counter(partition.graph.outputs)
    times.subtract(grads.values())
    return frozenset([value for value in grads.values() if times[value] <= 0])


def turn(key: BodyKey) -> tuple[int, int, tuple[int, int, int]]:
    """Sort bodies so that makers come before readers."""
    phase = PHASE_ORDER[key.phase]
    return phase, -key.stage if phase else key.stage, body_order(key)


class _Use(NamedTuple):
    """A use of a value: a body and the place of one of its calls; -1: before the first."""

    body: BodyKey
    at: int


class _Inside:
    """An index of the values in one root by where they lie: for each size, sorted by their begin.

    A root has one value per time step and a few of all steps, so few sizes and many values.
    """

    def __init__(self) -> None:
        self._of_size: dict[int, list[tuple[int, int, Key]]] = {}
        self._count = 0  # so that keys are never compared

    def add(self, key: Key, begin: int, size: int) -> None:
        self._count += 1
        insort(self._of_size.setdefault(size, []), (begin, self._count, key))

    def __iter__(self) -> Iterator[Key]:
        return (key for found in self._of_size.values() for _, _, key in found)

    def forget(self, begin: int, end: int) -> None:
        """Drop the values that lie in [begin, end)."""
        for size, found in self._of_size.items():
            first = bisect_left(found, begin, key=itemgetter(0))
            last = bisect_left(found, end - size + 1, key=itemgetter(0))
            del found[first:last]

    def within(self, begin: int, end: int) -> Iterator[Key]:
        """Yield the values that share a byte with [begin, end)."""
        for size, found in self._of_size.items():
            first = bisect_left(found, begin - size + 1, key=itemgetter(0))
            for start, _, key in islice(found, first, None):
                if start >= end:
                    break
                yield key


class _Builder:
    """Builds a layout step by step.

    Roots that are joined become parts of another root: `parent` holds its number and their offset
    in it. `cells` holds the intervals of other roots that are written, by their begin.
    """

    def __init__(
        self,
        partition: Partition,
        bodies: list[Body],
        fixed: frozenset[str],
        lasting: frozenset[Value],
        added: frozenset[Value],
    ) -> None:
        self.partition, self.bodies, self.fixed = partition, bodies, fixed
        self.lasting, self.added = lasting, added
        self.edges = {(e.dst.stage, e.value): e for e in partition.edges}
        self.parent: list[tuple[int, int] | None] = []
        self.name: list[str | None] = []  # the variable of a fixed root
        self.cells: list[dict[int, int]] = []
        self.places: dict[Key, Place] = {}
        self.made: dict[Key, _Use] = {}
        self.reads: dict[Key, list[_Use]] = {}
        self.messages: dict[Key, int] = {}
        self.joins: list[tuple[Key, list[Key]]] = []
        self.type = partition.graph.type_of

    # -- a place for every value ---------------------------------------------------------------

    def make_places(self) -> None:
        for body in self.bodies:
            at = -1
            for node in body.graph:
                if node.is_variable:
                    self._variable(body, node)
                    continue
                at += 1
                keys = [(body.key.stage, body.imports.get(v.node, v)) for v in node.inputs]
                for key in keys:
                    self.reads.setdefault(key, []).append(_Use(body.key, at))
                self._call(body, node, keys, _Use(body.key, at))

    def _variable(self, body: Body, node: Node) -> None:
        stage = body.key.stage
        value = body.imports.get(node.name, Value(node.name))
        key = stage, value
        if key in self.places:
            return
        edge = self.edges.get(key)
        if edge is not None and self.partition.crosses(edge):
            self.messages[key] = edge.tag
            self._new(key, self.type(value))
        elif edge is not None:
            self.places[key] = self.places[edge.src.stage, value]
        else:
            self._new(key, self.type(value), value.node if value.node in self.fixed else None)
        self.made[key] = _Use(body.key, -1)

    def _call(self, body: Body, node: Node, keys: list[Key], use: _Use) -> None:
        offsets = view_offsets(node, body.graph)
        for index, type_ in enumerate(node.types):
            key = body.key.stage, Value(node.name, index)
            self.made[key] = use
            if offsets is not None:
                root, offset = self.places[keys[0]]
                self.places[key] = Place(root, offset + offsets[index])
            else:
                self._new(key, type_)
        if is_join(node):
            self.joins.append(((body.key.stage, Value(node.name)), keys))

    def _new(self, key: Key, type_: TensorType, fixed: str | None = None) -> None:
        self.places[key] = Place(len(self.parent), 0)
        self.parent.append(None)
        self.name.append(fixed)
        self.cells.append({0: type_.nbytes})

    def where(self, key: Key) -> Place:
        """Find the root that is not part of another, and the offset in it."""
        root, offset = self.places[key]
        while (up := self.parent[root]) is not None:
            root, offset = up[0], offset + up[1]
        self.places[key] = Place(root, offset)
        return self.places[key]

    def size(self, key: Key) -> int:
        return self.type(key[1]).nbytes

    # -- joins -----------------------------------------------------------------------------------

    def join(self) -> None:
        """Lay the inputs of joins side by side, unless two joins need different orders."""
        for key, inputs in self.joins:
            moves = self._moves(key, inputs)
            if moves:
                target = next(iter(moves))
                cells = {s + d: e + d for r, d in moves.items() for s, e in self.cells[r].items()}
                self.cells[target] = {
                    s - moves[target]: e - moves[target] for s, e in sorted(cells.items())
                }
                for root, shift in moves.items():
                    if root != target:
                        self.parent[root] = target, shift - moves[target]
                joined = self.where(key).root
                self.parent[joined] = target, -moves[target]

    def _moves(self, key: Key, inputs: Iterable[Key]) -> dict[int, int]:
        """Find how far to move each input's root into the join's; {} if that is impossible."""
        joined = self.where(key)
        if self.cells[joined.root] != {0: self.size(key)} or joined.offset:
            return {}
        moves: dict[int, int] = {}
        begin = 0
        for source in inputs:
            root, offset = self.where(source)
            shift = begin - offset
            if moves.setdefault(root, shift) != shift or self.name[root] is not None:
                return {}
            begin += self.size(source)
        moved = sorted((s + d, e + d) for r, d in moves.items() for s, e in self.cells[r].items())
        clash = any(end > start for (_, end), (start, _) in pairwise(moved))
        return {} if clash or joined.root in moves else moves

    # -- in place --------------------------------------------------------------------------------

    def write_over(self) -> None:
        """Let outputs take the places of inputs that no later call reads."""
        pairs = [
            (body, at, node, pair)
            for body in self.bodies
            for at, node in enumerate(n for n in body.graph if not n.is_variable)
            for pair in find(node.op).in_place
        ]
        if not pairs:
            return
        sent = {(e.src.stage, e.value) for e in self.partition.edges if self.partition.crosses(e)}
        inside: defaultdict[int, _Inside] = defaultdict(_Inside)
        for key in self.places:
            root, offset = self.where(key)
            inside[root].add(key, offset, self.size(key))
        placed: set[Key] = set()
        for body, at, node, (out, source) in pairs:
            over = node.inputs[source]
            old = body.key.stage, body.imports.get(over.node, over)
            new = body.key.stage, Value(node.name, out)
            if new not in placed and self._may_take(body, at, old, new, inside, sent):
                (root, offset), (mine, _) = self.where(old), self.where(new)
                self.parent[mine] = root, offset
                # Their uses come before the new value's, so before whatever takes its place.
                inside[root].forget(offset, offset + self.size(new))
                for key in inside.pop(mine):
                    inside[root].add(key, self.where(key).offset, self.size(key))
                placed.add(new)

    def _may_take(
        self,
        body: Body,
        at: int,
        old: Key,
        new: Key,
        inside: Mapping[int, _Inside],
        sent: Collection[Key],
    ) -> bool:
        (root, begin), (mine, offset) = self.where(old), self.where(new)
        size = self.size(new)
        alone = self.cells[mine] == {0: size} and offset == 0 and mine != root
        if not alone or self.size(old) != size or self.name[root] is not None:
            return False
        stage = body.key.stage
        for key in inside[root].within(begin, begin + size):
            stays = key[1] in body.results or key[1] in self.lasting
            if key in sent or stays or key[0] != stage:
                return False
            uses = (*self.reads.get(key, ()), self.made[key])
            if not all(_before(use, body.key, at) for use in uses):
                return False
        return True

    # -- the result ------------------------------------------------------------------------------

    def finish(self) -> MemoryLayout:
        sent: dict[Key, BodyKey] = {
            (e.src.stage, e.value): e.src for e in self.partition.edges if self.partition.crosses(e)
        }
        inside: dict[int, list[Key]] = {}
        for key in self.places:
            inside.setdefault(self.where(key).root, []).append(key)
        number = {root: i for i, root in enumerate(inside)}
        low = {r: min(self.places[k].offset for k in keys) for r, keys in inside.items()}
        roots = tuple([self._root(r, keys, low[r], sent) for r, keys in inside.items()])
        places = {
            key: Place(number[root], offset - low[root])
            for key, (root, offset) in self.places.items()
        }
        scratch, scratch_at = self._scratch(roots, inside.values())
        return MemoryLayout(places, roots, scratch, scratch_at, self.added)

    def _root(self, root: int, keys: list[Key], low: int, sent: Mapping[Key, BodyKey]) -> Root:
        size = max(self.places[k].offset + self.size(k) for k in keys) - low
        uses = [u.body for k in keys for u in (*self.reads.get(k, ()), self.made.get(k)) if u]
        return Root(
            to_cache_lines(size),
            self.name[root],
            tuple(dict.fromkeys(uses)),
            tuple([self.messages[k] for k in keys if k in self.messages]),
            tuple(dict.fromkeys([sent[k] for k in keys if k in sent])),
            any(k[1] in self.lasting for k in keys),
        )

    def _scratch(
        self, roots: tuple[Root, ...], inside: Iterable[list[Key]]
    ) -> tuple[dict[BodyKey, int], dict[int, int]]:
        ends = {b.key: len(b.graph) for b in self.bodies}
        results = {b.key: {*b.results, *_next_states(b)} - self.added for b in self.bodies}
        needs: dict[BodyKey, list[Need]] = {b.key: [] for b in self.bodies}
        numbers: dict[BodyKey, list[int]] = {b.key: [] for b in self.bodies}
        for number, (root, keys) in enumerate(zip(roots, inside, strict=True)):
            if root.scratch:
                (body,) = root.bodies
                times = [u.at for k in keys for u in (*self.reads.get(k, ()), self.made[k])]
                stays = any(k[1] in results[body] for k in keys)
                needs[body].append(
                    Need(min(times), ends[body] if stays else max(times), root.nbytes)
                )
                numbers[body].append(number)
        total: dict[BodyKey, int] = {}
        at: dict[int, int] = {}
        for body, wanted in needs.items():
            offsets, total[body] = pack(wanted)
            at.update(zip(numbers[body], offsets, strict=True))
        return total, at


def _before(use: _Use, body: BodyKey, at: int) -> bool:
    """Tell whether a use comes before the end of call `at` of a body in every schedule."""
    if use.body == body:
        return use.at <= at
    return use.body.stage == body.stage and runs_before(use.body, body)


def _next_states(body: Body) -> list[Value]:
    calls = (n for n in body.graph if not n.is_variable)
    return [Value(n.name, i) for n in calls for i in find(n.op).aux_outputs]
