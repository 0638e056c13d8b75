"""The plan dump: a whole plan as lines of JSON, one record each, to read, search and verify.

`is` says what a record is:

plan       the format's number, devices (by rank), stages (their ranks), micro-batches (samples)
prologue   a node that runs once on the whole batch, before the first micro-batch
node       a node of the graphs of each micro-batch size, in run order, with the body that runs it.
           alias: nothing runs, as its outputs lie in its first input's memory ("view"), or its
           inputs side by side ("join"). over: pairs of an output and an input that it may be
           written over. again: it repeats a forward node
output, state, aux, gradient   what a step gives back: values of the graph
copies     the variables that are replicas of one parameter; their gradients are summed by C1, and
           if each updates a part (sharded), C2 spreads the weights
message    an edge between two ranks: one message per micro-batch
exchange   a collective that some messages make up, in the order in which all ranks start them
program    the instructions of a rank, in the form of runtime/schedule/instructions.py
memory     bytes of a rank; peak = parameters + optimizer + scratch + arena
root       the place of values (`stage:value`) in a piece of memory; own: a parameter's array
block      the place of a root, or of a partial sum of a gradient, in the arena, and its life: the
           first and the last instruction of the rank that may touch it, counted from 0
adding     how a run adds its gradients to those of other micro-batches: in partial sums
total      the partial sum that becomes the gradient of a variable

The plan of the largest bucket is written, if there are several. `verify.py` reads this format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from partitioner.base.aliasing import is_join, is_view
from partitioner.base.types import AGAIN, Body, Partition
from partitioner.memory.memory_layout import MemoryLayout
from runtime.backends.bodies import next_states
from runtime.planning.memory.arena import Arena, Kind
from runtime.planning.memory.tree_sum import Keep
from runtime.planning.plan import Plan
from runtime.schedule.exchanges import exchanges, in_order
from runtime.schedule.instructions import Run
from symgraph.core.graph import Node
from symgraph.core.registry import find
from symgraph.core.types import Value
from symgraph.core.writing import writing
from symgraph.passes.replicate import copies_of

FORMAT = 1
Record = dict[str, Any]


def write_plan(plan: Plan, path: str) -> None:
    """Write the dump of a plan to a file, as `writing` does."""
    with writing(path, "cannot write --dump"), Path(path).open("w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in plan_records(plan))


def plan_records(plan: Plan) -> Iterator[Record]:
    """Yield the records of a plan, in the order in which the module's docstring lists them."""
    placement = plan.placement
    yield {
        "is": "plan",
        "format": FORMAT,
        "schedule": plan.choice.schedule,
        "micro_batches": list(plan.sizes),
        "time_segment": plan.choice.time_segment,
        "recompute": list(plan.choice.recompute),
        "devices": [str(device) for device in plan.devices],
        "stages": list(placement.rank_of),
        "digest": plan.digest,
    }
    for node in plan.prologue:
        yield {"is": "prologue", **_call(node)}
    arenas = [plan.account.arena(rank) for rank in range(plan.partition.ranks)]
    for size in plan.partitions:
        yield from _nodes(plan, size, [arena.layouts[Kind(0, size)] for arena in arenas])
    yield from _results(plan)
    yield from _messages(plan)
    for rank, program in enumerate(plan.schedule.programs):
        device = str(plan.devices[rank])
        yield {"is": "program", "rank": rank, "device": device, "instructions": str(program)}
    for rank, arena in enumerate(arenas):
        yield from _memory(plan, rank, arena)


def _call(node: Node) -> Record:
    return {
        "name": node.name,
        "operator": node.op,
        "inputs": [str(value) for value in node.inputs],
        "outputs": [str(type_) for type_ in node.types],
    }


# -- the graph -----------------------------------------------------------------------------------


def _nodes(plan: Plan, size: int, layouts: Sequence[MemoryLayout]) -> Iterator[Record]:
    """Yield the nodes of one micro-batch size, body by body; layouts: by rank."""
    partition, placement = plan.partitions[size], plan.placement
    for key, body in partition.bodies.items():
        rank = partition.rank(key)
        for inside in body.graph:
            if inside.name not in body.imports:
                node = partition.graph[inside.name]
                yield {
                    "is": "node",
                    "samples": size,
                    **_call(node),
                    "body": str(key),
                    "rank": rank,
                    "device": str(placement.devices[rank]),
                    "variable": _variable(plan, node) if node.is_variable else "",
                    "origin": node.origin,
                    "again": AGAIN in node.tags,
                    "alias": _alias(inside, body, layouts[rank], partition),
                    "over": [] if node.is_variable else [list(p) for p in find(node.op).in_place],
                }


def _variable(plan: Plan, node: Node) -> str:
    """Say where the values of a variable come from."""
    if node.name in plan.network.parameters:
        return "parameter"
    if node.name in plan.states:
        return "state"
    return "feed" if node.name in plan.feeds else "made"


def _alias(node: Node, body: Body, layout: MemoryLayout, partition: Partition) -> str:
    """Say why a node of a body needs no call, if so: its outputs are in place already."""
    if is_view(node, body.graph):
        return "view"
    if not is_join(node):
        return ""
    stage, type_of = body.key.stage, partition.graph.type_of
    root, at = layout.places[stage, Value(node.name)]
    for value in (body.imports.get(v.node, v) for v in node.inputs):
        if layout.places[stage, value] != (root, at):
            return ""
        at += type_of(value).nbytes
    return "join"


def _results(plan: Plan) -> Iterator[Record]:
    """Yield what a step gives back."""
    graph, placement, partition = plan.partition.graph, plan.placement, plan.partition
    for name, value in zip(plan.output_names, plan.outputs, strict=True):
        yield {"is": "output", "name": name, "value": str(value)}
    for name, value in plan.states.items():
        yield {"is": "state", "variable": name, "value": str(value)}
    for body in partition.bodies.values():
        for name, value in next_states(body):
            yield {"is": "aux", "variable": name, "value": str(value), "body": str(body.key)}
    for name, value in plan.grads.items():
        yield {
            "is": "gradient",
            "variable": name,
            "value": str(value),
            "stage": placement.stage_of[name],
            "bytes": graph.type_of(value).nbytes,
        }
    for parameter, names in copies_of(graph).items():
        yield {
            "is": "copies",
            "parameter": parameter,
            "variables": list(names),
            "sharded": plan.options.shard_optimizer,
            "shared": names[0] in plan.shared_copies,
        }


# -- messages ------------------------------------------------------------------------------------


def _messages(plan: Plan) -> Iterator[Record]:
    """Yield the messages of each micro-batch size and the collectives that they make up."""
    for size, partition in plan.partitions.items():
        for edge in partition.edges:
            if partition.crosses(edge):
                yield {
                    "is": "message",
                    "samples": size,
                    "tag": edge.tag,
                    "value": str(edge.value),
                    "type": str(edge.type),
                    "bytes": edge.type.nbytes,
                    "from": partition.rank(edge.src),
                    "to": partition.rank(edge.dst),
                    "made_by": str(edge.src),
                    "taken_by": str(edge.dst),
                    "exchange": edge.exchange,
                }
    cuts = [plan.partitions[size] for size in plan.sizes]
    every = [x for mb, cut in enumerate(cuts) for x in exchanges(cut.edges, cut.rank_of, mb)]
    for exchange in in_order([plan.schedule], every):
        yield {
            "is": "exchange",
            "name": exchange.name,
            "mb": exchange.mb,
            "kind": exchange.kind,
            "ranks": list(exchange.ranks),
        }


# -- memory --------------------------------------------------------------------------------------


def _memory(plan: Plan, rank: int, arena: Arena) -> Iterator[Record]:
    """Yield what a rank holds, and where and when."""
    held = plan.memory[rank]
    yield {
        "is": "memory",
        "rank": rank,
        "parameters": held.parameters,
        "optimizer": held.optimizer,
        "scratch": held.scratch,
        "arena": arena.nbytes,
        "peak": held.peak,
        "limit": plan.options.memory,
    }
    for kind, layout in arena.layouts.items():
        for root in _roots(layout, plan.partitions[kind.size]):
            yield {"is": "root", "rank": rank, "samples": kind.size, **root}
    yield from _blocks(plan, rank, arena)
    for (key, mb), steps in arena.adding.items():
        run = str(Run(key.stage, key.phase, mb, key.segment))
        for name, step in steps:
            if isinstance(step, Keep):
                do = f"keep {step.number}"
            else:
                do = f"add {step.number if step.ends else 'term'} to {step.into}"
            yield {"is": "adding", "rank": rank, "run": run, "variable": name, "do": do}
    for name, number in arena.totals.items():
        yield {"is": "total", "rank": rank, "variable": name, "sum": number}


def _roots(layout: MemoryLayout, partition: Partition) -> Iterator[Record]:
    """Yield the roots of a layout; the scratch of each body is one, named as the body."""
    inside: dict[str, dict[str, int]] = {str(key): {} for key in layout.scratch}
    sizes = {str(key): nbytes for key, nbytes in layout.scratch.items()}
    own: dict[str, str] = {}
    for (stage, value), (root, offset) in layout.places.items():
        about, name, at = layout.roots[root], f"root {root}", offset
        if root in layout.scratch_at:
            name, at = str(about.bodies[0]), offset + layout.scratch_at[root]
        elif about.fixed is not None:
            own[name], sizes[name] = about.fixed, about.nbytes
        else:
            sizes[name] = about.nbytes
        inside.setdefault(name, {})[f"{stage}:{value}"] = at
    for name, values in inside.items():
        yield {"root": name, "own": own.get(name), "bytes": sizes[name], "values": values}


def _blocks(plan: Plan, rank: int, arena: Arena) -> Iterator[Record]:
    """Yield the blocks of an arena; moments there count from 1."""
    sums, _, scratch = arena.needs

    def block(offset: int, nbytes: int, first: int, last: int, **what: Any) -> Record:
        life = {"offset": offset, "bytes": nbytes, "first": first - 1, "last": last - 1}
        return {"is": "block", "rank": rank, **what, **life}

    layouts = {kind.size: layout for kind, layout in arena.layouts.items()}
    for (mb, root), offset in arena.at.items():
        nbytes = layouts[plan.sizes[mb]].roots[root].nbytes
        yield block(offset, nbytes, *arena.lives[mb, root], root=f"root {root}", mb=mb)
    for (key, mb), need in zip(arena.scratch, scratch, strict=True):
        offset = arena.scratch[key, mb]
        yield block(offset, need.nbytes, need.first, need.last, root=str(key), mb=mb)
    for (name, number), need in zip(arena.sums, sums, strict=True):
        offset = arena.sums[name, number]
        yield block(offset, need.nbytes, need.first, need.last, variable=name, sum=number)
