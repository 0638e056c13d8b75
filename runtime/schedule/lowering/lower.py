"""Lowering: compute lists become full programs with messages, frees and updates."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import numpy.typing as npt

from partitioner.base.types import PHASES, WEIGHT, Topology
from runtime.schedule.generators.table import ComputeLists
from runtime.schedule.instructions import REPLICAS, WEIGHTS, Instruction, Run
from runtime.schedule.lowering import lower_walk as walk
from runtime.schedule.lowering.weights_walk import put_off_weights
from runtime.schedule.program import Columns, Program, Schedule, programs_of
from runtime.schedule.replay.facts import Facts, Lists
from symgraph.core.errors import ScheduleError
from symgraph.core.units import but_only, count_text


def lower(
    topology: Topology,
    compute_lists: ComputeLists,
    *,
    update: bool = False,
    replicas: bool = False,
    weights: bool = False,
) -> Schedule:
    """Put each run between the receives that its body wants and the sends that it feeds.

    Runs of bodies that a stage does not have are left out; a B run of a stage whose backward is
    cut becomes I and W. Messages of one channel (a pair of ranks) are received in the order in
    which they are sent, because NCCL has no tags: when a body wants a message, those before it
    on the channel are received first. Ws that would wait for each other in a circle run later.

    A free stands where its sends are known to be delivered: where the rank receives a message
    that the other one sent after taking its own; so a free never waits for a rank that waits for
    this one. Without such a message it comes last.

        rank 0   0F0 S0.0 0F1 S0.1 R1.0 D0F0 ...      R1.0 tells that S0.0 was taken
        rank 1   R0.0 1F0 1B0 S1.0 ...

    Args:
        update: Whether the programs end with the reductions and updates of a training step.
        replicas: Whether gradients of replicas are reduced first.
        weights: Whether weights of replicas are spread last.

    Raises:
        ScheduleError: A run is of no stage, of another rank's, or of an impossible micro-batch.
    """
    facts = Facts.of(topology)
    mbs, start, runs = _numbered(facts, [Program.of(runs) for runs in compute_lists])
    wires, bodies = _wires(facts), _bodies(facts)
    runs = _without_circles(facts, start, runs, mbs, bodies.phase)
    queues = walk.queue_messages(runs, mbs, wires)
    ran, lengths = walk.place_runs(start, runs, mbs, wires, queues)
    known = walk.known_delivered(wires, queues)
    free, at = np.zeros(len(facts.rank_of) * mbs, np.int32), _offsets(lengths)
    frees = walk.place_frees(start, runs, ran, mbs, wires, queues, known, bodies.stage, free, at)
    ends = lengths + np.diff(start)
    before, after = _collectives(replicas, weights)
    updates = len(before) + np.bincount(facts.rank_of, minlength=facts.ranks) + len(after)
    base = _offsets(ends + (updates if update else 0))
    out = Columns(np.empty(base[-1], np.uint8), *(np.empty(base[-1], np.int32) for _ in range(3)))
    walk.write_runs(start, runs, ran, mbs, frees, bodies, base, out)
    walk.write_messages(queues, mbs, facts.channel_src, facts.channel_dst, frees, base, out)
    if update:
        walk.write_updates(np.array(facts.rank_of, np.int32), base[:-1] + ends, before, after, out)
    return Schedule(tuple(programs_of(out, base)))


def _collectives(replicas: bool, weights: bool) -> tuple[walk.Ints, walk.Ints]:
    """Return the tags of the collectives before the updates, and of those after them."""
    before, after = [REPLICAS, 0] if replicas else [0], [WEIGHTS] if weights else []
    return np.array(before, np.int32), np.array(after, np.int32)


def _numbered(facts: Facts, lists: list[Program]) -> tuple[int, walk.Ints, walk.Ints]:
    """Return the number of micro-batches, rank -> its first run, and all runs as numbers."""
    if len(lists) > facts.ranks:
        raise ScheduleError(f"{len(lists)} compute lists for {facts.ranks} ranks")
    # No rank with runs has fewer runs than there are micro-batches.
    limit = max(map(len, lists), default=0)
    mbs = 0
    for rank, program in enumerate(lists):
        batches = program.columns.mb
        if batches.min(initial=0) < 0 or batches.max(initial=-1) >= limit:
            index = int(np.flatnonzero((batches < 0) | (batches >= limit))[0])
            raise ScheduleError(
                f"rank {rank}, step {index}: {program[index]} belongs to micro-batch "
                f"{batches[index]}, but no rank has more than {count_text(limit, 'run')}"
            )
        mbs = max(mbs, 1 + int(batches.max(initial=-1)))
    rank_of = np.array(facts.rank_of, np.int32)
    numbers = []
    for rank, program in enumerate(lists):
        out = np.empty(2 * len(program), np.int32)
        runs = Columns(*map(np.ascontiguousarray, program.columns))
        count, bad = walk.number_runs(rank, runs, facts.body_at, rank_of, mbs, out)
        if bad >= 0:
            _refuse(rank, bad, program[bad], facts)
        numbers.append(out[:count])
    counts = [len(n) for n in numbers] + [0] * (facts.ranks - len(numbers))
    return mbs, _offsets(counts), np.concatenate([np.empty(0, np.int32), *numbers])


def _refuse(rank: int, step: int, instruction: Instruction, facts: Facts) -> NoReturn:
    if not isinstance(instruction, Run):
        why = "is not a run: a compute list holds nothing else"
    elif not 0 <= instruction.stage < len(facts.rank_of):
        why = f"refers to stage {instruction.stage}, {but_only(len(facts.rank_of), 'stage')}"
    else:
        why = f"belongs to rank {facts.rank_of[instruction.stage]}"
    raise ScheduleError(f"rank {rank}, step {step}: {instruction} {why}")


def _bodies(facts: Facts) -> walk.Bodies:
    rows = [(PHASES.index(key.phase), key.stage, key.segment) for key in facts.keys]
    return walk.Bodies(*np.array(rows, np.int32).reshape(-1, 3).T.copy())


def _without_circles(
    facts: Facts, start: walk.Ints, runs: walk.Ints, mbs: int, phase: walk.Ints
) -> walk.Ints:
    """Put off Ws that wait in a circle; only where stages share a weight does a W wait for a W."""
    weights = phase == PHASES.index(WEIGHT)
    across = facts.edge_channel >= 0
    if not (weights[facts.edge_src] & weights[facts.edge_dst] & across).any():
        return runs
    needs = _needs(facts)
    order: walk.Ints = put_off_weights(start, runs, mbs, phase, needs.start, needs.items)
    return order


def _needs(facts: Facts) -> Lists:
    """Return, by body, the bodies of any rank that it runs after.

    A message of an exchange comes when all of them are sent.
    """
    exchange = np.where(facts.edge_channel < 0, -1, facts.channel_exchange[facts.edge_channel])
    senders = [
        facts.edge_src[exchange == number].tolist() for number in range(len(facts.exchanges))
    ]

    def sources(tag: int) -> list[int]:
        return [int(facts.edge_src[tag])] if exchange[tag] < 0 else senders[exchange[tag]]

    return Lists.of(
        [*facts.before[body], *(b for tag in facts.incoming[body] for b in sources(tag))]
        for body in range(len(facts.keys))
    )


def _wires(facts: Facts) -> walk.Wires:
    pairs = list(zip(facts.channel_src.tolist(), facts.channel_dst.tolist(), strict=True))
    plain = facts.channel_exchange < 0
    number = {pair: channel for channel, pair in enumerate(pairs) if plain[channel]}
    reverse = np.array([number.get((dst, src), -1) for src, dst in pairs], np.int32)
    reverse[~plain] = walk.TAKEN_OVER
    incoming, outgoing = facts.incoming, facts.outgoing
    return walk.Wires(
        incoming.start,
        incoming.items,
        outgoing.start,
        outgoing.items,
        facts.edge_channel,
        reverse,
    )


def _offsets(lengths: npt.ArrayLike) -> walk.Ints:
    """Return where each of these begins when they lie one after the other, and their end."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
