"""Control flow: `sym.contrib.foreach`, a network repeated over the first axis of its data.

The body is called once and kept in the node, as JSON. In a graph, one copy for each time step
stands in the node's place, with the attribute `time_step`, so a loop can be cut by time as an
unrolled recurrent network can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import count
from typing import Any

from symgraph.core import params
from symgraph.core.errors import DTypeError, GraphError
from symgraph.core.params import MAX_PARTS, Attrs, Param, Site
from symgraph.core.registry import (
    Names,
    Partial,
    Shapes,
    by_its_parts,
    no_flops,
    register,
)
from symgraph.core.shapes import unify
from symgraph.core.tags import hide
from symgraph.core.types import Types
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.infer import Inferred, infer_dtypes, infer_shapes
from symgraph.frontend.operator_calls import call
from symgraph.frontend.symbol import Symbol, from_json
from symgraph.frontend.symnode import Entry, SymNode, replaced, walk
from symgraph.ops.elementwise import DTypes

BODY = "__subgraph_name__"  # the attribute of what is made inside a body (MXNet)
Nested = Any  # a symbol, or lists of them
Layout = Any  # None for a symbol, a list of these for a list

_bodies = count()


def foreach(
    body: Callable[[Nested, Nested], tuple[Nested, Nested]],
    data: Nested,
    init_states: Nested,
    name: str = "foreach",
) -> tuple[Nested, Nested]:
    """Repeat a network for each part of data along axis 0 (`mx.sym.contrib.foreach`).

    Args:
        body: a function of (one time step of data, states) that returns (outputs, new states); it
            is called once. It may use symbols from outside. Random numbers that it draws are other
            ones in every step.
        data: a symbol of shape (T, ...), or nested lists of them. A step's part of shape () is
            given as (1,).
        init_states: the states before the first step: a symbol, or nested lists.
        name: ignored, as by MXNet, for the node's name.

    Returns:
        The outputs of all steps, stacked along a first axis of length T, and the last states.

    Raises:
        GraphError: if the new states are not nested as the old ones.
        TypeError: for anything but symbols.
    """
    slices, data_layout = flattened(data, "foreach: data")
    states, state_layout = flattened(init_states, "foreach: init_states")
    if not slices:
        raise GraphError("foreach needs data to count its steps by")
    with AttrScope(**{BODY: str(next(_bodies))}) as scope:
        variables = [_variable(f"data{i}") for i in range(len(slices))]
        variables += [_variable(f"state{i}") for i in range(len(states))]
        made, after = body(
            nested(variables[: len(slices)], data_layout),
            nested(variables[len(slices) :], state_layout),
        )
    outputs, output_layout = flattened(made, "foreach: outputs")
    ends, end_layout = flattened(after, "foreach: new states")
    if end_layout != state_layout:
        raise GraphError(
            f"foreach: the body returns states {after!r}, which are not nested as {init_states!r}"
        )
    network, closed = _cut([*outputs, *ends], variables, scope.get(None)[BODY])
    counts = {"num_data": len(slices), "num_states": len(states), "num_closed": len(closed)}
    inputs = [*slices, *states, *(Symbol([e]) for e in closed)]
    text = Symbol(network).tojson()
    found = Symbol(call("_foreach", "_foreach", inputs, {"body": text, **counts}))
    return (
        nested(list(found[: len(outputs)]), output_layout),
        nested(list(found[len(outputs) :]), state_layout),
    )


def flattened(given: Nested, what: str) -> tuple[list[Symbol], Layout]:
    """Return the symbols of nested lists, and how they are nested."""
    if isinstance(given, Symbol):
        return [given], None
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"{what} are symbols, not {type(given).__name__}")
    parts = [flattened(part, what) for part in given]
    return [s for symbols, _ in parts for s in symbols], [layout for _, layout in parts]


def nested(symbols: Sequence[Symbol], layout: Layout) -> Nested:
    """Return the symbols in lists as `flattened` found them."""
    left = iter(symbols)

    def build(layout: Layout) -> Nested:
        return next(left) if layout is None else [build(part) for part in layout]

    return build(layout)


def _variable(name: str) -> Symbol:
    return Symbol([Entry(SymNode(name, None, AttrScope.current().get(None)))])


def _cut(made: list[Symbol], variables: list[Symbol], mark: str) -> tuple[list[Entry], list[Entry]]:
    """Separate what is made inside a body from the network around it.

    Args:
        made: the body's outputs and new states.
        variables: those of its data and states.
        mark: the value of the attribute BODY of what is made inside.

    Returns:
        The body as a network of its own, whose variables from outside are called arg0, arg1, ...;
        and the outputs outside that these stand for.
    """
    heads = [symbol.one("an output of foreach's body") for symbol in made]
    own = [v.entries[0].node for v in variables]
    copies = {id(node): SymNode(node.name, None, {}) for node in own}
    closed: dict[tuple[int, int], tuple[Entry, SymNode]] = {}

    def copied(entry: Entry) -> Entry:
        node, key = entry.node, (id(entry.node), entry.port)
        if id(node) in copies:
            return Entry(copies[id(node)], entry.port)
        if key not in closed:
            outer = entry
            if node.op is None and BODY in node.attrs:
                outer = Entry(SymNode(node.name, None, _unmarked(node)))
            closed[key] = outer, SymNode(f"arg{len(closed)}", None, {})
        return Entry(closed[key][1])

    for node in walk(heads):
        if node.op is not None and node.attrs.get(BODY) == mark:
            inputs = tuple(map(copied, node.inputs))
            copies[id(node)] = SymNode(node.name, node.op, _unmarked(node), node.params, inputs)
    network = [copied(e) for e in heads]
    return network, [outer for outer, _ in closed.values()]


def _unmarked(node: SymNode) -> dict[str, str]:
    return {key: value for key, value in node.attrs.items() if key != BODY}


# -- the operator ----------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 8)
def _body(text: str) -> Symbol:
    return from_json(text)


def foreach_inputs(a: Attrs) -> Names:
    kinds = ("data", a["num_data"]), ("state", a["num_states"]), ("arg", a["num_closed"])
    return tuple(f"{kind}{i}" for kind, count in kinds for i in range(count))


def foreach_outputs(a: Attrs) -> Names:
    return tuple(f"output{i}" for i in range(len(_body(a["body"]).entries)))


def foreach_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Infer the shapes of one step: data without its first axis, states alike before and after."""
    a, names = site.attrs, foreach_inputs(site.attrs)
    known = dict(zip(names, ins, strict=True))
    data, states = names[: a["num_data"]], names[a["num_data"] :][: a["num_states"]]
    outputs = len(outs) - len(states)
    steps = 0
    for name, shape in (*((n, known[n]) for n in data), *(("outputs", s) for s in outs[:outputs])):
        if shape is not None:
            (steps,) = unify(site, (steps,), shape[:1], f"lengths of {name} and data") or (0,)
    inner: dict[str, Partial] = {
        n: s if s is None or n not in data else s[1:] or (1,) for n, s in known.items()
    }
    for name, shape in zip(states, outs[outputs:], strict=True):
        inner[name] = unify(site, inner[name], shape, f"shapes of {name}")
    while True:
        found = _one_step(a, infer_shapes, inner)
        heads = [found.values.get((id(e.node), e.port)) for e in _body(a["body"]).entries]
        after = {n: found.variables.get(n) or s for n, s in inner.items()}
        for name, shape in zip(states, heads[outputs:], strict=True):
            after[name] = unify(site, after[name], shape, f"shapes of {name} in two time steps")
        if after == inner:
            break
        inner = after
    inputs = [
        (steps, *s) if s and n in data and known[n] != (steps,) else known[n] if n in data else s
        for n, s in inner.items()
    ]
    stacked = [None if s is None else (steps, *s) for s in heads[:outputs]]
    return inputs, [*stacked, *(inner[n] for n in states)]


def _one_step(a: Attrs, infer: Callable[..., Inferred], given: dict[str, Any]) -> Inferred:
    body = _body(a["body"])
    read = set(body.list_inputs())
    return infer(body, {n: value for n, value in given.items() if value is not None and n in read})


def foreach_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    a, names = site.attrs, foreach_inputs(site.attrs)
    found = _one_step(a, infer_dtypes, dict(zip(names, ins, strict=True)))
    inputs = [
        given or found.variables.get(n) or "float32" for n, given in zip(names, ins, strict=True)
    ]
    heads = [str(found.values[id(e.node), e.port]) for e in _body(a["body"]).entries]
    first = a["num_data"]
    before = inputs[first : first + a["num_states"]]
    for i, (old, new) in enumerate(zip(before, heads[len(heads) - len(before) :], strict=True)):
        if old != new:
            raise DTypeError(
                f"{site.op} {site.name!r}: state {i} is {old} before a step and {new} behind it"
            )
    return list(inputs), heads


def foreach_network(site: Site, types: Types) -> Symbol:
    """Return a copy of the body for each time step, one behind the other."""
    a, names, body = site.attrs, foreach_inputs(site.attrs), _body(site.attrs["body"])
    inputs = {name: Symbol([Entry(SymNode(name, None, {}))]) for name in names}
    data, states = names[: a["num_data"]], names[a["num_data"] :][: a["num_states"]]
    length = types[0].shape[0]
    if length * len(walk(body.entries)) > MAX_PARTS:
        site.fail(
            f"{length} time steps of {len(walk(body.entries))} nodes are more than {MAX_PARTS} "
            "nodes: use shorter sequences"
        )
    by_step = {"num_outputs": length, "axis": 0, "squeeze_axis": True}
    slices = {}
    for name, type_ in zip(data, types, strict=False):
        rows = [inputs[name]]
        if len(type_.shape) == 1:
            rows = [Symbol(call("expand_dims", f"{name}_column", rows, {"axis": 1}))]
        slices[name] = call("SliceChannel", f"{name}_steps", rows, by_step)
    swap = {name: symbol.entries[0] for name, symbol in inputs.items()}
    stacked: list[list[Symbol]] = [[] for _ in range(len(body.entries) - len(states))]
    for t in range(length):
        swap |= {name: steps[t] for name, steps in slices.items()}
        with AttrScope(time_step=str(t)):
            made = replaced(body.entries, swap, partial(_at_step, t))
            for column, entry in zip(stacked, made, strict=False):
                column.append(_expanded(Symbol([entry])))
        swap |= dict(zip(states, made[len(stacked) :], strict=True))
    outputs = [Symbol(call("Concat", "outputs", column, {"dim": 0})) for column in stacked]
    return Symbol([*(s.entries[0] for s in outputs), *(swap[name] for name in states)])


def _at_step(t: int, node: SymNode) -> tuple[str, dict[str, str]]:
    return f"t{t}_{node.name}", {**node.attrs, hide("time_step"): str(t)}


def _expanded(step: Symbol) -> Symbol:
    return Symbol(call("expand_dims", "step", (step,), {"axis": 0}))


register(
    name="_foreach",
    inputs=foreach_inputs,
    outputs=foreach_outputs,
    shape=foreach_shape,
    dtype=foreach_dtype,
    compute=by_its_parts,
    flops=no_flops,
    params={
        "body": Param(str, kind="network of one step, as JSON"),
        "num_data": params.count(),
        "num_states": params.integer(0),
        "num_closed": params.integer(0),
    },
    expand=foreach_network,
    caption=lambda attrs: f"{len(foreach_outputs(attrs)) - attrs['num_states']} outputs",
    doc="The network `body` for each part of the data along their first axis; made by "
    "`sym.contrib.foreach`. Inputs are num_data data, num_states states and num_closed values "
    "that every step reads; outputs are those of all steps, stacked, and the last states. In a "
    "graph, the nodes of all steps stand in its place. MXNet _foreach.",
)
