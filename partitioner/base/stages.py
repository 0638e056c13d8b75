"""Stages: the nodes of each rank, gathered so that no two stages wait for each other.

A rank whose nodes all come before, or all after, another rank's has one stage. Where values go
back and forth (groups A, B, A), one rank gets several stages, so that bodies stay acyclic:

    rank 0   a0 ── a1          a4        stage 0 = a0 a1     stage 2 = a4
                    \\         /
    rank 1           b2 ── b3            stage 1 = b2 b3

Shards of one operator on several ranks are separate stages, so that their inputs are sent before
the first of them runs, and they run at the same time.

On every rank, the inputs of a collective are made in earlier stages than those that use its
outputs, so that all its messages can go at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitioner.base.exchanges import Exchanges, find_exchanges, sort_with_exchanges
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup
from symgraph.passes.precision import is_parameter_cast
from symgraph.passes.shards import place_of

Unit = tuple[int, int, tuple[int, int] | None]  # level, rank, the shard of its nodes


def form_stages(
    graph: Graph, rank_of_node: Mapping[str, int]
) -> tuple[dict[str, int], tuple[int, ...]]:
    """Find the stage of every forward node, and the rank of every stage in topological order.

    Nodes of one rank and one level (the number of rank changes on the longest way to them) form
    a unit; units join the rank's last stage unless that would make a cycle. Where shards are on
    several ranks, the way into a shard and out of it counts as a change of ranks too. An exchange
    counts as a unit on a rank of its own (below 0), between the nodes at its two ends.
    """
    exchanges = find_exchanges(graph, rank_of_node)
    units = _units(graph, rank_of_node, exchanges)
    stage_of_unit, rank_of = join_units(_unit_predecessors(graph, units, exchanges))
    stage_of = {n: stage_of_unit[unit] for n, unit in units.items() if n not in exchanges}
    return stage_of, rank_of


def join_units(before: Mapping[Unit, set[Unit]]) -> tuple[dict[Unit, int], tuple[int, ...]]:
    """Find the stage of every unit on a rank, and the rank of every stage in topological order.

    Args:
        before: unit -> the units that it reads from.
    """
    stages: list[int] = []  # stage -> rank
    ancestors: list[int] = []  # stage -> bit set of the stages that come before it
    last: dict[int, int] = {}  # rank -> its newest stage
    stage_of_unit: dict[Unit, int] = {}
    for unit in sorted(before, key=_unit_order):
        _, rank, shard = unit
        sources = {stage_of_unit[p] for p in before[unit]}
        need = 0
        for s in sources:
            need |= ancestors[s] | 1 << s
        stage = None if shard else last.get(rank)
        if stage is None or any(s != stage and ancestors[s] >> stage & 1 for s in sources):
            stage = len(stages)
            if shard is None:
                last[rank] = stage
            stages.append(rank)
            ancestors.append(need)
        else:
            new = need & ~(1 << stage)
            for s in range(len(stages)):
                if s == stage or ancestors[s] >> stage & 1:
                    ancestors[s] |= new
        stage_of_unit[unit] = stage
    real = (s for s, rank in enumerate(stages) if rank >= 0)
    order = sorted(real, key=lambda s: (ancestors[s].bit_count(), s))
    number = {s: i for i, s in enumerate(order)}
    real_units = {unit: number[s] for unit, s in stage_of_unit.items() if s in number}
    return real_units, tuple([stages[s] for s in order])


def _unit_order(unit: Unit) -> tuple[int, int, tuple[int, int]]:
    """Sort units so that each comes after those it reads from.

    A variable may feed a shard and, on the same rank and level, nodes of no shard: those go first.
    """
    level, rank, shard = unit
    return level, rank, shard or (-1, 0)


def _units(graph: Graph, rank_of_node: Mapping[str, int], exchanges: Exchanges) -> dict[str, Unit]:
    """Find the unit of every node and exchange.

    A variable joins its first consumer on its rank, and so do a cast of a parameter and what a
    ctx_group computes for itself alone before anything else is there, such as a product with the
    first state: so its products over time are merged alike wherever the group is placed.
    """
    shards = {n.name: place_of(n) for n in graph if n.origin is None and not n.is_variable}
    if len({rank_of_node[name] for name, place in shards.items() if place}) < 2:
        shards = {}
    exchange_of = {name: x for x, ends in exchanges.items() for name in ends.taking}
    own_rank = {x: -1 - i for i, x in enumerate(exchanges)}
    units: dict[str, Unit] = {}
    for name in sort_with_exchanges(graph, exchanges):
        if name in exchanges:
            level = 1 + max(units[giver][0] for giver in exchanges[name].giving)
            units[name] = level, own_rank[name], None
            continue
        rank, shard = rank_of_node[name], shards.get(name)
        level = units[exchange_of[name]][0] + 1 if name in exchange_of else 0
        for value in graph[name].inputs:
            at, source, other = units[value.node]
            inside = source == rank and (other == shard or graph[value.node].is_variable)
            level = max(level, at + (not inside))
        units[name] = level, rank, shard
    away = {
        v.node
        for n in graph
        if n.origin is None
        for v in n.inputs
        if units[v.node][1] != units[n.name][1]
    }
    for ends in exchanges.values():  # whose inputs are made before their copies
        away |= ends.giving
    first: dict[str, Unit] = {}
    own = _for_their_group(graph, units)
    for node in reversed([*graph]):  # a cast's readers before the variable's
        if node.origin is None:
            unit = units[node.name]
            if node.name not in away:
                unit = first.get(node.name, unit)
            for value in node.inputs:
                joins = (
                    graph[value.node].is_variable
                    or is_parameter_cast(graph, value.node)
                    or value.node in own
                )
                if joins and unit[1] == units[value.node][1]:
                    first[value.node] = min(unit, first.get(value.node, unit), key=_unit_order)
    return units | {name: unit for name, unit in first.items() if name not in away}


def _for_their_group(graph: Graph, units: Mapping[str, Unit]) -> set[str]:
    """Find the operators that need no other group, and that only their own group reads.

    Such an operator reads variables, or those of its group that were dealt out to shards; all its
    readers have its rank and shard too.
    """
    forward = [n for n in graph if n.origin is None]
    group = {n.name: lookup(n.tags, "ctx_group") for n in forward}
    own: set[str] = set()
    for node in forward:
        level, _, shard = units[node.name]
        dealt = shard is not None and all(
            group[v.node] == group[node.name] and units[v.node][::2] == (0, None)
            for v in node.inputs
        )
        if not node.is_variable and group[node.name] is not None and (level == 0 or dealt):
            own.add(node.name)
    for node in forward:
        for value in node.inputs:
            at = value.node
            if units[node.name][1:] != units[at][1:] or group[node.name] != group[at]:
                own.discard(at)
    return own


def _unit_predecessors(
    graph: Graph, units: Mapping[str, Unit], exchanges: Exchanges
) -> dict[Unit, set[Unit]]:
    before: dict[Unit, set[Unit]] = {u: set() for u in units.values()}
    for node in graph:
        if node.origin is None:
            unit = units[node.name]
            before[unit].update(units[v.node] for v in node.inputs if units[v.node] != unit)
    for name, ends in exchanges.items():
        before[units[name]].update(units[giver] for giver in ends.giving)
        for copy in ends.taking:
            before[units[copy]].add(units[name])
    return before
