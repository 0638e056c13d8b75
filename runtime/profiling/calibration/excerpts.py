"""Excerpts: some calls of a graph by themselves, bound on made-up inputs, so as to be timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partitioner import Placement
from partitioner.cutting.cut import cut
from partitioner.memory.memory_layout import lay_out
from runtime.backends.bodies import Binder, BoundBody, Packs
from runtime.backends.cuda_graphs import CapturedRun
from runtime.backends.device.arrays import HOST, Device
from runtime.backends.device.table import CallContext
from runtime.profiling.calibration.synthetic_inputs import MadeUp, limits
from symgraph.core.build import Builder
from symgraph.core.context import cpu
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import VARIABLE, Env
from symgraph.core.types import Array, Value


def bound(
    graph: Graph,
    arrays: Mapping[str, Array],
    context: CallContext | None = None,
    here: Device = HOST,
) -> BoundBody:
    """A whole forward graph as one body, bound as the worker does it; arrays: of its variables.

    here: the device, which this thread uses.
    """
    partition = cut(graph, Placement(dict.fromkeys(graph.nodes, 0), (0,), (cpu(0),)))
    (body,) = partition.bodies.values()
    layout = lay_out(partition, 0, arrays)
    memory, context = here.bytes(layout.scratch[body.key]), context or CallContext()
    context.set(context.env._replace(xp=here.xp))
    binder = Binder(layout, arrays, frozenset(arrays), memory, Packs(), context, here)
    return binder.bind(body, {}, 0)


def on_card(body: BoundBody, context: CallContext, here: Device, times: int = 1) -> CapturedRun:
    """A body, or so many equal ones in a row, as a GPU runs them after the first two runs."""
    replay = CapturedRun(here, context, body.steps * times)
    replay()  # compiles, and touches all memory
    replay()  # captures
    return replay


def cut_out(
    graph: Graph, names: Sequence[str], data: MadeUp, context: CallContext | None = None
) -> BoundBody:
    """These calls alone, in their order, as in training, on the device of the made-up data.

    What other calls make is made up, what others read is kept.
    """
    inside = set(names)
    kept = {v for n in graph if n.name not in inside for v in n.inputs} | {*graph.outputs}
    fresh = Builder(graph).fresh
    made_up: dict[tuple[Value, int | None], Node] = {}
    feeds: dict[str, Array] = {}
    calls = []
    data.begin()
    for name in names:
        node = graph[name]
        types = graph.types_of(node.inputs)
        inputs = []
        for value, type_, limit in zip(node.inputs, types, limits(node, types), strict=True):
            if value.node in inside and limit is None:
                inputs.append(value)
                continue
            if (value, limit) not in made_up:
                variable = Node(fresh("made_up"), VARIABLE, types=(type_,))
                made_up[value, limit] = variable
                feeds[variable.name] = data.next(type_, limit)
            inputs.append(Value(made_up[value, limit].name))
        calls.append(Node(name, node.op, tuple(inputs), node.attrs, node.types))
    results = [v for n in calls for i in range(len(n.types)) if (v := Value(n.name, i)) in kept]
    context = context or CallContext()
    context.env = Env(train=True)
    return bound(Graph.of([*made_up.values(), *calls], results), feeds, context, data.here)
