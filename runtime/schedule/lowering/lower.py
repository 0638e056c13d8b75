"""Lowering: compute lists become full programs with messages, frees and updates."""

from __future__ import annotations

from itertools import pairwise
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from partitioner.base.types import PHASES, Topology
from runtime.schedule.generators.table import ComputeLists
from runtime.schedule.instructions import REPLICAS, Instruction, Run
from runtime.schedule.lowering import lower_walk as walk
from runtime.schedule.program import Columns, Program, Schedule
from runtime.schedule.replay.facts import Facts
from symgraph.core.errors import ScheduleError


def lower(
    topology: Topology, compute_lists: ComputeLists, *, update: bool = False, replicas: bool = False
) -> Schedule:
    """Wrap each run in the receives its body wants and the sends it feeds, and free what it leaves.

    Runs of bodies that a stage does not have are left out; a B run of a stage whose backward is
    cut becomes I and W. Messages of one channel (a pair of ranks) are received in the order in
    which they are sent, because NCCL has no tags: when a body wants a message, those before it
    on the channel are received first. With `update`, the programs end with the reductions (of
    gradients of `replicas` first) and the parameter updates of a training step. ScheduleError names
    a run of a stage that there is not or that is another rank's, and one of an impossible
    micro-batch.

    A free stands where its sends are known to be delivered: where the rank receives a message
    that the other one sent after taking its own; so a free never waits for a rank that waits for
    this one. Without such a message it comes last.

        rank 0   0F0 S0.0 0F1 S0.1 R1.0 D0F0 ...      R1.0 tells that S0.0 was taken
        rank 1   R0.0 1F0 1B0 S1.0 ...
    """
    facts = Facts.of(topology)
    mbs, start, runs = _numbered(facts, [Program.of(runs) for runs in compute_lists])
    wires = _wires(facts)
    bodies = walk.Bodies(
        *np.array(
            [(PHASES.index(key.phase), key.stage, key.segment) for key in facts.keys], np.int32
        )
        .reshape(-1, 3)
        .T.copy()
    )
    queues = walk.queue_messages(runs, mbs, wires)
    ran, lengths = walk.place_runs(start, runs, mbs, wires, queues)
    frees = walk.place_frees(
        start,
        runs,
        ran,
        mbs,
        wires,
        queues,
        walk.known_delivered(wires, queues),
        bodies.stage,
        np.zeros(len(facts.rank_of) * mbs, np.int32),
        _offsets(lengths),
    )
    ends = lengths + np.diff(start)
    reductions = np.array([REPLICAS, 0] if replicas else [0], np.int32)
    updates = np.bincount(facts.rank_of, minlength=facts.ranks)
    tail = len(reductions) + updates if update else 0
    base = _offsets(ends + tail)
    out = Columns(np.empty(base[-1], np.uint8), *(np.empty(base[-1], np.int32) for _ in range(3)))
    walk.write_runs(start, runs, ran, mbs, frees, bodies, base, out)
    walk.write_messages(queues, mbs, facts.channel_src, facts.channel_dst, frees, base, out)
    if update:
        walk.write_updates(np.array(facts.rank_of, np.int32), base[:-1] + ends, reductions, out)
    return Schedule(
        tuple(
            [
                Program(Columns(*(column[begin:end] for column in out)))
                for begin, end in pairwise(base)
            ]
        )
    )


def _numbered(facts: Facts, lists: list[Program]) -> tuple[int, walk.Ints, walk.Ints]:
    """How many micro-batches there are, rank -> its first run, and all runs as numbers."""
    if len(lists) > facts.ranks:
        raise ScheduleError(f"{len(lists)} compute lists for {facts.ranks} ranks")
    # No rank with runs has fewer of them than there are micro-batches.
    limit = max(map(len, lists), default=0)
    mbs = 0
    for rank, program in enumerate(lists):
        batches = program.columns.mb
        if batches.min(initial=0) < 0 or batches.max(initial=-1) >= limit:
            index = int(np.flatnonzero((batches < 0) | (batches >= limit))[0])
            raise ScheduleError(
                f"rank {rank}, step {index}: {program[index]} is of micro-batch {batches[index]}, "
                f"but no rank has more than {limit} runs"
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


def _refuse(rank: int, step: int, now: Instruction, facts: Facts) -> NoReturn:
    if not isinstance(now, Run):
        why = "is no run: a compute list has nothing else"
    elif not 0 <= now.stage < len(facts.rank_of):
        why = f"names stage {now.stage}, which there is not (stages: {len(facts.rank_of)})"
    else:
        why = f"belongs to rank {facts.rank_of[now.stage]}"
    raise ScheduleError(f"rank {rank}, step {step}: {now} {why}")


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
    """Where each of these begins when they lie one after the other; one more at the end."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
