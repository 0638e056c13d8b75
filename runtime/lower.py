"""Lowering: compute lists become full programs with messages, frees and updates."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from partitioner.types import BodyKey, CommEdge, Partition
from runtime.instructions import Collective, Free, Instruction, Recv, Run, Schedule, Send, Update
from runtime.schedules import ComputeLists

Channel = tuple[int, int]  # (source rank, destination rank)
Message = tuple[int, int]  # (tag, micro-batch)
Edges = dict[BodyKey, list[CommEdge]]


def lower(partition: Partition, compute: ComputeLists, *, update: bool = False) -> Schedule:
    """Wrap each run in the receives its body wants and the sends it feeds.

    Runs of bodies that a stage does not have are left out. Messages of one channel (a pair of
    ranks) are received in the order in which they are sent, because NCCL has no tags: when a
    body wants a message, those before it on the channel are received first. With `update`, the
    programs end with the reduction and the parameter updates of a training step.
    """
    lists = [[r for r in runs if r.key in partition.bodies] for runs in compute]
    lists += [[] for _ in range(partition.placement.ranks - len(lists))]
    outgoing, incoming = _edges(partition)
    queues = _send_order(partition, lists, outgoing)
    at = {c: {message: i for i, message in enumerate(q)} for c, q in queues.items()}
    programs: list[list[Instruction]] = []
    for rank, runs in enumerate(lists):
        program: list[Instruction] = []
        received: dict[Channel, int] = defaultdict(int)
        for run in runs:
            for edge in incoming[run.key]:
                channel = (partition.rank(edge.src), rank)
                start, end = received[channel], at.get(channel, {}).get((edge.tag, run.mb), -1) + 1
                program += [Recv(tag, mb) for tag, mb in queues[channel][start:end]]
                received[channel] = max(start, end)
            program.append(run)
            program += [Send(e.tag, run.mb) for e in outgoing[run.key]]
        programs.append(program)
    programs = _with_frees(partition, programs, outgoing)
    if update:
        for rank, program in enumerate(programs):
            own = [s for s, r in enumerate(partition.placement.rank_of) if r == rank]
            program += [Collective(), *(Update(s) for s in own)]
    return Schedule(tuple(map(tuple, programs)))


def _edges(partition: Partition) -> tuple[Edges, Edges]:
    """The edges that cross ranks, by source body and by destination body."""
    outgoing: Edges = defaultdict(list)
    incoming: Edges = defaultdict(list)
    for edge in partition.edges:
        if partition.crosses(edge):
            outgoing[edge.src].append(edge)
            incoming[edge.dst].append(edge)
    return outgoing, incoming


def _send_order(
    partition: Partition, lists: ComputeLists, outgoing: Edges
) -> dict[Channel, list[Message]]:
    queues: dict[Channel, list[Message]] = defaultdict(list)
    for rank, runs in enumerate(lists):
        for run in runs:
            for edge in outgoing[run.key]:
                queues[rank, partition.rank(edge.dst)].append((edge.tag, run.mb))
    return queues


def _with_frees(
    partition: Partition, programs: list[list[Instruction]], outgoing: Edges
) -> list[list[Instruction]]:
    """Free what each run leaves, where its sends are known to be delivered.

    A rank knows it when it receives a message that the other one sent after taking its own; so
    a free never waits for a rank that waits for this one. Without such a message it comes last.

        rank 0   0F0 S0.0 0F1 S0.1 R1.0 D0F0 ...      R1.0 tells that S0.0 was taken
        rank 1   R0.0 1F0 1B0 S1.0 ...
    """
    at = [{now: i for i, now in enumerate(p)} for p in programs]
    ranks = {e.tag: (partition.rank(e.src), partition.rank(e.dst)) for e in partition.edges}
    replies: dict[Channel, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for source, program in enumerate(programs):
        for step, now in enumerate(program):
            if isinstance(now, Send):
                other = ranks[now.tag][1]
                sent, taken = replies[source, other]
                sent.append(step)
                taken.append(at[other].get(Recv(now.tag, now.mb), len(programs[other])))
    freed: list[list[Instruction]] = []
    for rank, program in enumerate(programs):
        after: dict[int, list[Free]] = defaultdict(list)
        stage_freed: dict[tuple[int, int], int] = {}  # a stage's phases are freed in order
        for step, now in enumerate(program):
            if isinstance(now, Run):
                place = max(step, stage_freed.get((now.stage, now.mb), 0))
                for edge in outgoing[now.key]:
                    other = ranks[edge.tag][1]
                    taken_there = at[other].get(Recv(edge.tag, now.mb), len(programs[other]))
                    sent, taken = replies[other, rank]
                    reply = bisect_right(sent, taken_there)
                    place = max(place, taken[reply] if reply < len(sent) else len(program) - 1)
                stage_freed[now.stage, now.mb] = place
                after[place].append(Free(now.stage, now.phase, now.mb))
        freed.append([i for step, now in enumerate(program) for i in (now, *after[step])])
    return freed
