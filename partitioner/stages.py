"""Stages: the nodes of each rank, gathered so that no two stages wait for each other.

A rank whose nodes all come before, or all after, another rank's has one stage. When values go
forth and back (groups A, B, A) one rank gets several stages, so that bodies stay acyclic:

    rank 0   a0 ── a1          a4        stage 0 = a0 a1     stage 2 = a4
                    \\         /
    rank 1           b2 ── b3            stage 1 = b2 b3
"""

from __future__ import annotations

from collections.abc import Mapping

from symgraph.graph import Graph


def form_stages(
    graph: Graph, rank_of_node: Mapping[str, int]
) -> tuple[dict[str, int], tuple[int, ...]]:
    """The stage of every forward node, and the rank of every stage, in topological order.

    Nodes of one rank and one level (the number of rank changes on the longest way to them) form
    a unit; units join the rank's last stage unless that would make a cycle.
    """
    units = _units(graph, rank_of_node)
    before = _unit_predecessors(graph, units)
    stages: list[int] = []  # stage -> rank
    ancestors: list[int] = []  # stage -> bit set of the stages that come before it
    last: dict[int, int] = {}  # rank -> its newest stage
    stage_of_unit: dict[tuple[int, int], int] = {}
    for unit in sorted(before):
        rank = unit[1]
        sources = {stage_of_unit[p] for p in before[unit]}
        need = 0
        for s in sources:
            need |= ancestors[s] | 1 << s
        stage = last.get(rank)
        if stage is None or any(s != stage and ancestors[s] >> stage & 1 for s in sources):
            stage = last[rank] = len(stages)
            stages.append(rank)
            ancestors.append(need)
        else:
            new = need & ~(1 << stage)
            for s in range(len(stages)):
                if s == stage or ancestors[s] >> stage & 1:
                    ancestors[s] |= new
        stage_of_unit[unit] = stage
    order = sorted(range(len(stages)), key=lambda s: (ancestors[s].bit_count(), s))
    number = {s: i for i, s in enumerate(order)}
    stage_of = {name: number[stage_of_unit[unit]] for name, unit in units.items()}
    return stage_of, tuple(stages[s] for s in order)


def _units(graph: Graph, rank_of_node: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Node -> (level, rank). A variable joins its first consumer on its own rank."""
    units: dict[str, tuple[int, int]] = {}
    for node in graph:
        if node.origin is None:
            rank = rank_of_node[node.name]
            level = 0
            for value in node.inputs:
                at, source = units[value.node]
                level = max(level, at + (source != rank))
            units[node.name] = (level, rank)
    first: dict[str, tuple[int, int]] = {}
    for node in graph:
        if node.origin is None:
            for value in node.inputs:
                unit = units[node.name]
                if graph[value.node].is_variable and unit[1] == units[value.node][1]:
                    first[value.node] = min(unit, first.get(value.node, unit))
    away = {v.node for n in graph if n.origin is None for v in n.inputs
            if units[v.node][1] != units[n.name][1]}  # fmt: skip
    return units | {name: unit for name, unit in first.items() if name not in away}


def _unit_predecessors(
    graph: Graph, units: Mapping[str, tuple[int, int]]
) -> dict[tuple[int, int], set[tuple[int, int]]]:
    before: dict[tuple[int, int], set[tuple[int, int]]] = {u: set() for u in units.values()}
    for node in graph:
        if node.origin is None:
            unit = units[node.name]
            before[unit].update(units[v.node] for v in node.inputs if units[v.node] != unit)
    return before
