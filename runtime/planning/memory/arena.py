"""The arena: one piece of memory for all that a rank's programs hold, planned before they run.

The programs tell from which instruction to which every root of every micro-batch is needed. Roots
with the same life form a region; regions and the scratch of runs are packed over the programs, and
nothing is allocated while they run.

Messages that may come while a run is under way (see runtime.engine.bound_program) have their places
from that run on, so that none has to wait for its end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner import Partition
from partitioner.base.types import PHASES, BodyKey
from partitioner.memory.memory_layout import MemoryLayout, lay_out, turn
from partitioner.memory.memory_plan import early_messages
from partitioner.memory.packing import Need, pack
from runtime.planning.memory.tree_sum import Join, Keep, TreeSum
from runtime.schedule.instructions import FREE, RECV, SEND
from runtime.schedule.program import Program
from symgraph.core.types import Value
from symgraph.passes.replicate import copies_of

Array = npt.NDArray[Any]


class Region(NamedTuple):
    """Roots that come and go together."""

    nbytes: int
    roots: Mapping[int, int]
    """Root -> its offset in the region."""
    lasts: bool
    """Whether the roots stay until the step's end."""


class Kind(NamedTuple):
    """A kind of micro-batch: those of one kind run the same bodies."""

    part: int
    """The first batch of the step that has their bucket."""
    size: int
    """The number of samples."""


# Kind of micro-batch -> body -> variables whose gradients it completes -> their bytes.
Gradients = Mapping[Kind, Mapping[BodyKey, Mapping[str, int]]]
Message = tuple[int, int]  # tag, micro-batch


class Arena(NamedTuple):
    """The offsets of everything that a rank's programs hold, in bytes."""

    nbytes: int
    """The size of the arena."""
    layouts: Mapping[Kind, MemoryLayout]
    """The layout of each kind of micro-batch."""
    at: Mapping[tuple[int, int], int]
    """(micro-batch, root) -> offset."""
    lives: Mapping[tuple[int, int], tuple[int, int]]
    """(micro-batch, root) -> first and last moment; moments count from 1."""
    scratch: Mapping[tuple[BodyKey, int], int]
    """(body, micro-batch) -> offset."""
    sums: Mapping[tuple[str, int], int]
    """(variable, partial sum) -> offset."""
    adding: Mapping[tuple[BodyKey, int], list[tuple[str, Keep | Join]]]
    """(body, micro-batch) -> how to add up the gradients that it completes."""
    totals: Mapping[str, int]
    """Variable -> the partial sum that becomes its gradient."""
    needs: tuple[list[Need], list[Need], list[Need]]
    """Needs of partial sums, of results for other runs, and of scratch; moments count from 1."""
    free: Mapping[Message, int]
    """Early message -> the last earlier instruction that still uses its memory; 0: none."""


class _Touches(NamedTuple):
    """The regions of a layout, and the numbers of those that each instruction touches."""

    regions: list[Region]
    """The regions."""
    by_run: Mapping[BodyKey, list[int]]
    """Body of a run -> its regions."""
    by_free: Mapping[BodyKey, list[int]]
    """Body of a free -> its regions."""
    by_message: Mapping[int, list[int]]
    """Tag of a message -> its regions."""


class _Span(NamedTuple):
    """The run of a body at a moment of the programs."""

    key: BodyKey
    """The body."""
    mb: int
    """The micro-batch."""
    now: int
    """The moment."""


def reserve(
    programs: Iterable[Program],
    rank: int,
    partitions: Mapping[Kind, Partition],
    kinds: Sequence[Kind],
    grads: Mapping[Kind, Mapping[str, Value]],
    fixed: Collection[str],
) -> Arena:
    """Plan the memory for programs of one rank that run one after the other, as one step.

    Args:
        programs, rank: the programs, and the rank.
        partitions: the cut graph of every kind of micro-batch.
        kinds: the kind of each micro-batch.
        grads: for every kind, parameter -> the value of its gradient.
        fixed: variables that have arrays of their own.
    """
    one = len(kinds) == 1
    layouts = {
        kind: lay_out(partition, rank, fixed, grads[kind], several=not one)
        for kind, partition in partitions.items()
    }
    added = _copied(partitions, rank, grads, layouts) if one else grads
    gradients = {k: _completed(p, rank, added[k]) for k, p in partitions.items()}
    early = {kind: early_messages(partition) for kind, partition in partitions.items()}
    touches = {kind: _touches(layout) for kind, layout in layouts.items()}
    lives, runs, came, end = _walk(programs, touches, kinds, early)
    adding, totals, held = _sums(runs, gradients, kinds, end)
    kept = []
    for (mb, number), (first, last) in lives.items():
        region = touches[kinds[mb]].regions[number]
        kept.append(Need(first, end if region.lasts else last, region.nbytes))
    needs = (
        list(held.values()),
        kept,
        [Need(r.now, r.now, layouts[kinds[r.mb]].scratch[r.key]) for r in runs],
    )
    every = [need for some in needs for need in some]
    places, total = pack(every)
    need_of = {region: len(held) + i for i, region in enumerate(lives)}
    free = _free(every, places, {message: need_of[region] for message, region in came.items()})
    offsets = iter(places)
    sums = {which: next(offsets) for which in held}
    at, spans = {}, {}
    for (mb, number), need in zip(lives, kept, strict=True):
        begin = next(offsets)
        for root, inside in touches[kinds[mb]].regions[number].roots.items():
            at[mb, root], spans[mb, root] = begin + inside, (need.first, need.last)
    scratch = {(run.key, run.mb): next(offsets) for run in runs}
    return Arena(total, layouts, at, spans, scratch, sums, adding, totals, needs, free)


def _copied(
    partitions: Mapping[Kind, Partition],
    rank: int,
    grads: Mapping[Kind, Mapping[str, Value]],
    layouts: Mapping[Kind, MemoryLayout],
) -> dict[Kind, dict[str, Value]]:
    """Return the gradients of one micro-batch that have to be copied to arrays of their own.

    Sums over replicas are made in place. So they are those of replicas whose memory is needed for
    something else too: two biases of a sum share theirs, and a later body may read what is also a
    gradient.
    """
    return {k: _shared(p, rank, grads[k], layouts[k]) for k, p in partitions.items()}


def _shared(
    partition: Partition, rank: int, grads: Mapping[str, Value], layout: MemoryLayout
) -> dict[str, Value]:
    replicas = {n for names in copies_of(partition.graph).values() for n in names}
    at = {
        name: (key, value, layout.places[key.stage, value].root)
        for key, name, value in (_results(partition, rank, grads) if replicas else ())
    }
    gradients = Counter(number for _, _, number in at.values())
    shared = {}
    for name, (key, value, number) in at.items():
        root = layout.roots[number]
        others = gradients[number] > 1 or root.fixed or root.messages or root.sends
        if name in replicas and (others or max(root.bodies, key=turn) != key):
            shared[name] = value
    return shared


def _results(
    partition: Partition, rank: int, grads: Mapping[str, Value]
) -> Iterator[tuple[BodyKey, str, Value]]:
    """Yield the gradients that each body of a rank completes."""
    names: dict[Value, list[str]] = {}
    for name, value in grads.items():
        names.setdefault(value, []).append(name)
    for key, body in partition.bodies.items():
        if partition.rank(key) == rank:
            for value in body.results:
                yield from ((key, name, value) for name in names.get(value, ()))


def _completed(
    partition: Partition, rank: int, grads: Mapping[str, Value]
) -> dict[BodyKey, dict[str, int]]:
    """Return the gradients to add up that each body of a rank completes: variable -> bytes."""
    completed: dict[BodyKey, dict[str, int]] = {
        key: {} for key in partition.bodies if partition.rank(key) == rank
    }
    for key, name, value in _results(partition, rank, grads):
        completed[key][name] = partition.graph.type_of(value).nbytes
    return completed


def _walk(
    programs: Iterable[Program],
    touches: Mapping[Kind, _Touches],
    kinds: Sequence[Kind],
    early: Mapping[Kind, Collection[int]],
) -> tuple[dict[tuple[int, int], list[int]], list[_Span], dict[Message, tuple[int, int]], int]:
    """Walk the programs once.

    Returns:
        (micro-batch, region) -> first and last moment; the runs; the region of each early message;
        the moment after the last one.
    """
    lives: dict[tuple[int, int], list[int]] = {}
    runs: list[_Span] = []
    came: dict[Message, tuple[int, int]] = {}
    now = 0
    for program in programs:
        columns = (column.tolist() for column in program.columns)
        ran = 0  # the last run of this program
        for code, at, mb, segment in zip(*columns, strict=True):
            now += 1
            first = now
            touched: Sequence[int] = ()
            if code < SEND:
                key = BodyKey(at, PHASES[code % len(PHASES)], segment)
                regions = touches[kinds[mb]]
                touched = (regions.by_run if code < FREE else regions.by_free).get(key, ())
                if code < FREE:
                    runs.append(_Span(key, mb, now))
                    ran = now
            elif code == RECV:
                touched = touches[kinds[mb]].by_message.get(at, ())
                if at in early[kinds[mb]]:
                    first = ran or now
                    (came[at, mb],) = ((mb, region) for region in touched)
            for region in touched:
                lives.setdefault((mb, region), [first, now])[1] = now
    return lives, runs, came, now + 1


def _free(
    needs: Sequence[Need], places: Sequence[int], came: Mapping[Message, int]
) -> dict[Message, int]:
    """Return `Arena.free`; came: message -> the need that it comes into."""
    if not came:
        return {}
    first, last, nbytes = np.array(needs, np.int64).T
    begin = np.array(places, np.int64)
    end = begin + nbytes
    free = {}
    for message, need in came.items():
        other = (last < first[need]) & (begin < end[need]) & (end > begin[need])
        free[message] = int(last[other].max(initial=0))
    return free


def _sums(
    runs: Iterable[_Span], gradients: Gradients, kinds: Sequence[Kind], end: int
) -> tuple[
    dict[tuple[BodyKey, int], list[tuple[str, Keep | Join]]],
    dict[str, int],
    dict[tuple[str, int], Need],
]:
    """Return `Arena.adding` and `Arena.totals`, and the need of each partial sum."""
    adding: dict[tuple[BodyKey, int], list[tuple[str, Keep | Join]]] = {}
    trees: dict[str, TreeSum] = {}
    needs: dict[tuple[str, int], Need] = {}
    for key, mb, now in runs:
        for name, nbytes in gradients.get(kinds[mb], {}).get(key, {}).items():
            for step in trees.setdefault(name, TreeSum(len(kinds))).add(mb):
                adding.setdefault((key, mb), []).append((name, step))
                if isinstance(step, Keep):
                    needs[name, step.number] = Need(now, end, nbytes)
                elif step.ends:
                    ended = needs[name, step.number]
                    needs[name, step.number] = ended._replace(last=now)
    totals = {name: tree.waiting[0] for name, tree in trees.items() if tree.waiting}
    return adding, totals, needs


def _touches(layout: MemoryLayout) -> _Touches:
    lives: dict[object, list[int]] = defaultdict(list)
    for number, root in enumerate(layout.roots):
        if root.fixed is None and not root.scratch:
            lives[root.bodies, root.messages, root.sends, root.lasts].append(number)
    regions: list[Region] = []
    by_run: dict[BodyKey, list[int]] = defaultdict(list)
    by_free: dict[BodyKey, list[int]] = defaultdict(list)
    by_message: dict[int, list[int]] = defaultdict(list)
    for numbers in lives.values():
        root, total, inside = layout.roots[numbers[0]], 0, {}
        for number in numbers:
            inside[number] = total
            total += layout.roots[number].nbytes
        for key in root.bodies:
            by_run[key].append(len(regions))
        for key in root.sends:
            by_free[key].append(len(regions))
        for tag in root.messages:
            by_message[tag].append(len(regions))
        regions.append(Region(total, inside, root.lasts))
    return _Touches(regions, by_run, by_free, by_message)
