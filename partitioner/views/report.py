"""The report of a partition: the table that `print(partition)` shows."""

from __future__ import annotations

from collections import Counter

from partitioner.base.types import PHASES, Body, CommEdge, Partition
from partitioner.memory.memory_plan import kept_bytes
from symgraph.core.columns import aligned_columns
from symgraph.core.registry import find
from symgraph.core.units import bytes_text, count_text, flops_text


def body_flops(body: Body) -> int:
    """Count the floating-point operations of one run of a body (one micro-batch)."""
    graph = body.graph
    return sum(
        find(n.op).flops(n.attrs, graph.types_of(n.inputs), n.types)
        for n in graph
        if not n.is_variable
    )


def parameter_bytes(partition: Partition, stage: int, parameters: set[str] | None = None) -> int:
    """Count the bytes of the variables (all, or those named) that live on a stage."""
    graph, placement = partition.graph, partition.placement
    return sum(
        n.types[0].nbytes
        for n in graph.variables
        if n.origin is None
        and placement.stage_of[n.name] == stage
        and (parameters is None or n.name in parameters)
    )


def table(partition: Partition, parameters: set[str] | None = None) -> str:
    """Make a table of the stages, and list the messages between ranks.

    A row has the stage's rank, device, nodes by phase, flops, bytes of parameters and activations,
    and messages. Figures are for one micro-batch; activations are the bytes that the forward phase
    keeps for the backward phase.

    Args:
        partition: the cut graph.
        parameters: the variables to count as parameters; None: all.
    """
    placement = partition.placement
    phases = [p for p in PHASES if any(k.phase == p for k in partition.bodies)]
    segments = 1 + max((k.segment for k in partition.bodies), default=0)
    cut_in_time = ["segments"] if segments > 1 else []
    head = (
        "stage",
        "rank",
        "device",
        *cut_in_time,
        *(f"nodes {p}" for p in phases),
        "flops",
        "parameters",
        "activations",
        "sends",
        "bytes sent",
    )
    rows: list[tuple[str, ...]] = [head]
    kept = kept_bytes(partition)
    for stage, rank in enumerate(placement.rank_of):
        bodies = {k: b for k, b in partition.bodies.items() if k.stage == stage}
        counts = Counter[str]()
        for key, body in bodies.items():
            counts[key.phase] += sum(not n.is_variable for n in body.graph)
        sends = [e for e in partition.edges if e.src.stage == stage and partition.crosses(e)]
        rows.append(
            (
                str(stage),
                str(rank),
                str(placement.devices[rank]),
                *[str(len({k.segment for k in bodies})) for _ in cut_in_time],
                *(str(counts[p]) for p in phases),
                flops_text(sum(map(body_flops, bodies.values()))),
                bytes_text(parameter_bytes(partition, stage, parameters)),
                bytes_text(kept[stage]),
                str(len(sends)),
                bytes_text(sum(e.type.nbytes for e in sends)),
            )
        )
    return "\n".join([*aligned_columns(rows), "", *_edge_lines(partition)])


def _edge_lines(partition: Partition, most: int = 12) -> list[str]:
    crossing = [e for e in partition.edges if partition.crosses(e)]
    if not crossing:
        return ["no messages: everything is on one rank"]
    count, total = len(crossing), bytes_text(sum(e.type.nbytes for e in crossing))
    in_time = any(e.src.segment for e in crossing)
    legend = "0F.1: stage 0, forward, time segment 1" if in_time else "0F: stage 0, forward"
    lines = [f"{count_text(count, 'message')} a micro-batch, {total} ({legend}):"]
    lines += [f"  {e.tag:>4}  {_arrow(e, partition)}" for e in crossing[:most]]
    if len(crossing) > most:
        lines.append(f"  ... and {len(crossing) - most} more")
    return lines


def _arrow(edge: CommEdge, partition: Partition) -> str:
    ranks = f"rank {partition.rank(edge.src)} -> {partition.rank(edge.dst)}"
    return f"{edge.src} -> {edge.dst}  {ranks}  {edge.value}  {edge.type}"
