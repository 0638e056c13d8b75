"""Whole recurrent networks as one node of a symbol: `sym.RNN`, and `sym._recurrent` for importers.

In a graph, cells stand in its place, unrolled over the time steps of the data's shape: so time
segments, placement and gradients are those of cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from symgraph.core import params
from symgraph.core.params import MAX_PARTS, Attrs, Site
from symgraph.core.registry import Names, Partial, Shapes, by_its_parts, no_flops, register
from symgraph.core.shapes import expect
from symgraph.core.types import Types
from symgraph.frontend import sym
from symgraph.frontend.symbol import Symbol
from symgraph.ops.elementwise import DTypes, floats
from symgraph.rnn.unrolled import CELLS, Form, Unroller
from symgraph.rnn.variants import activations

DIRECTIONS = {"forward": "l", "reverse": "r", "bidirectional": "lr"}
SHARED = {
    "mode": params.choice(*CELLS),
    "state_size": params.count(most=1 << 24),
    "num_layers": params.count(1, most=1000),
    "p": params.number(0.0),
    "state_outputs": params.boolean(False),
    "use_sequence_length": params.boolean(False),
}


# -- rules of both operators -----------------------------------------------------------------------


def form_of(a: Attrs) -> Form:
    """Return the network that the parameters of either operator describe."""
    if "bidirectional" in a:
        letters = "lr" if a["bidirectional"] else "l"
        return Form(
            a["mode"],
            a["state_size"],
            a["num_layers"],
            letters,
            a["p"],
            projection=a["projection_size"],
        )
    return Form(
        a["mode"],
        a["state_size"],
        a["num_layers"],
        DIRECTIONS[a["direction"]],
        a["p"],
        a["activations"],
        a["clip"],
        a["peepholes"],
        a["input_forget"],
        a["reset_after"],
    )


def output_names(a: Attrs) -> Names:
    return ("output", *form_of(a).states) if a["state_outputs"] else ("output",)


def sequence_shapes(
    site: Site, named: Mapping[str, Partial], outs: Shapes, width: int
) -> tuple[dict[str, Partial], list[Partial]]:
    """Return the shapes of data, states and lengths by name, and of the outputs.

    `width` is the features of the data that its parameters tell, or 0.
    """
    form = form_of(site.attrs)
    units = len(form.directions) * form.width
    data = expect(site, "data", named["data"], (0, 0, width), "(time, batch, features)")
    out = expect(site, "output", outs[0], (0, 0, units))
    assert data is not None
    assert out is not None
    steps = expect(site, "output", out[:1], data[:1], f"(data of shape {data})")
    batch = expect(site, "output", out[1:2], data[1:2], f"(data of shape {data})")
    batch = expect(site, "sequence_length", named.get("sequence_length"), batch)
    assert steps is not None
    cells, rows = len(form.prefixes), batch or (0,)
    known = [
        *((name, named.get(name)) for name in form.states),
        *zip(form.states, outs[1:], strict=False),
    ]
    for name, shape in known:
        wanted = (cells, *rows, form.state_widths[name])
        state = expect(site, name, shape, wanted, f"(data of shape {data})")
        assert state is not None
        rows = state[1:2]
    states: dict[str, Partial] = {n: (cells, *rows, form.state_widths[n]) for n in form.states}
    found = {**states, "data": (*steps, *rows, data[2]), "sequence_length": rows}
    return found, [(*steps, *rows, units), *list(states.values())[: len(outs) - 1]]


def dtypes(site: Site, ins: Sequence[str | None]) -> DTypes:
    """One float dtype for all but the lengths, whose unknown dtype defaults to it."""
    count = len(ins) - site.attrs["use_sequence_length"]
    known, outs = floats(site, ins[:count])
    return [*known, *(dtype or outs[0] for dtype in ins[count:])], outs


def caption(a: Attrs) -> str:
    form = form_of(a)
    kind = f"{form.layers} x {form.mode}({form.units})"
    return f"{kind}, both directions" if len(form.directions) > 1 else kind


def unrolled(site: Site, types: Types, inputs: Mapping[str, Symbol]) -> Symbol:
    """Return the network of cells on symbols of the inputs; the data's type is the first one."""
    form, length = form_of(site.attrs), types[0].shape[0]
    if length * len(form.prefixes) > MAX_PARTS:
        site.fail(
            f"{length} time steps of {len(form.prefixes)} cells are more than {MAX_PARTS} nodes: "
            "use shorter sequences"
        )
    return Unroller(form, length, inputs, site.attrs["state_outputs"]).run()


# -- MXNet's operator ------------------------------------------------------------------------------


def rnn_inputs(a: Attrs) -> Names:
    lengths = ("sequence_length",) if a["use_sequence_length"] else ()
    return ("data", "parameters", *form_of(a).states, *lengths)


def rnn_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """The vector's length tells the data's features, and the other way round."""
    form, names = form_of(site.attrs), rnn_inputs(site.attrs)
    if form.projection is not None and form.mode != "lstm":
        site.fail(f"projection_size is for mode='lstm', not {form.mode!r}")
    named = dict(zip(names, ins, strict=True))
    vector = expect(site, "parameters", named["parameters"], (0,))
    assert vector is not None
    each, least = len(form.directions) * form.rows, form.size(0)
    width, rest = divmod(vector[0] - least, each) if vector[0] else (0, 0)
    if rest or width < 0 or (vector[0] and not width):
        site.fail(
            f"parameters of shape {vector} do not fit: they must be {least} numbers and {each} "
            "more for each feature of data"
        )
    found, outputs = sequence_shapes(site, named, outs, width)
    data = found["data"]
    assert data is not None
    found["parameters"] = (form.size(data[2]) if data[2] else 0,)
    return [found[name] for name in names], outputs


def rnn_network(site: Site, types: Types) -> Symbol:
    inputs = {name: sym.Variable(name) for name in rnn_inputs(site.attrs)}
    pieces = dict(form_of(site.attrs).pieces(types[0].shape[2]))
    sizes = [shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in pieces.values()]
    parts = sym._cut(inputs.pop("parameters"), sizes=sizes)
    for (name, shape), part in zip(pieces.items(), parts, strict=True):
        inputs[name] = sym.Reshape(part, shape=shape, name=name)
    return unrolled(site, types, inputs)


register(
    name="RNN",
    inputs=rnn_inputs,
    outputs=output_names,
    shape=rnn_shape,
    dtype=dtypes,
    compute=by_its_parts,
    flops=no_flops,
    params={
        **SHARED,
        "bidirectional": params.boolean(False),
        "projection_size": params.optional(params.count(most=1 << 24)),
        "lstm_state_clip_min": params.only(None),
        "lstm_state_clip_max": params.only(None),
        "lstm_state_clip_nan": params.only(False),
    },
    expand=rnn_network,
    caption=caption,
    doc="A recurrent network of mode rnn_relu, rnn_tanh, lstm or gru on data (T, B, I). D is 2 if "
    "bidirectional=True, else 1. `parameters` is one vector: the weights of all layers "
    "and directions, each for the input and then for the state, then all biases in the same "
    "order; rnn.FusedRNNCell packs and unpacks it. `state`, and `state_cell` of an lstm, are "
    "(num_layers * D, B, state_size). projection_size=P of an lstm multiplies each output by a "
    "weight (P, state_size), which follows that for the state in the vector, so outputs and "
    "`state` have P units. With use_sequence_length=True, sequence_length (B,) tells "
    "how many steps of each sample count, 1 or more. Outputs are (T, B, D * state_size) and, "
    "with state_outputs=True, the last states. Dropout of probability p is between layers. In a "
    "graph, the nodes of cells stand in its place. MXNet RNN.",
)


# -- the operator of importers ---------------------------------------------------------------------


def parameter_names(a: Attrs) -> list[str]:
    """List the parameters of one cell after another."""
    kinds = ["i2h_weight", "h2h_weight"]
    kinds += [] if a["no_bias"] else ["i2h_bias", "h2h_bias"]
    kinds += ["peephole"] if a["peepholes"] else []
    return [f"{prefix}{kind}" for prefix in form_of(a).prefixes for kind in kinds]


def recurrent_inputs(a: Attrs) -> Names:
    states = form_of(a).states if a["use_state"] else ()
    lengths = ("sequence_length",) if a["use_sequence_length"] else ()
    return ("data", *parameter_names(a), *states, *lengths)


def recurrent_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    a, form = site.attrs, form_of(site.attrs)
    names = recurrent_inputs(a)
    named = dict(zip(names, ins, strict=True))
    width = 0
    for prefix in form.prefixes[: len(form.directions)]:
        name = f"{prefix}i2h_weight"
        (_, width) = expect(site, name, named[name], (form.rows, width)) or (0, 0)
    found, outputs = sequence_shapes(site, named, outs, width)
    data = found["data"]
    assert data is not None
    wanted = {
        **dict(form.pieces(data[2])),
        **{f"{prefix}peephole": (3 * form.units,) for prefix in form.prefixes},
    }
    for name in parameter_names(a):
        found[name] = expect(site, name, named[name], wanted[name], f"(data of shape {data})")
    return [found[name] for name in names], outputs


def recurrent_network(site: Site, types: Types) -> Symbol:
    a, form = site.attrs, form_of(site.attrs)
    count = len(form.activations)
    if count not in (0, len(form.usual_activations) * len(form.directions)):
        site.fail(
            f"{count} activations, but {form.mode} in {len(form.directions)} directions has "
            f"{len(form.usual_activations) * len(form.directions)}"
        )
    inputs = {name: sym.Variable(name) for name in recurrent_inputs(a)}
    if a["no_bias"]:
        zeros = sym.zeros(shape=(form.rows,), dtype=types[0].dtype, name="no_bias")
        for prefix in form.prefixes:
            inputs |= {f"{prefix}{kind}_bias": zeros for kind in ("i2h", "h2h")}
    return unrolled(site, types, inputs)


register(
    name="_recurrent",
    inputs=recurrent_inputs,
    outputs=output_names,
    shape=recurrent_shape,
    dtype=dtypes,
    compute=by_its_parts,
    flops=no_flops,
    params={
        **SHARED,
        "direction": params.choice(*DIRECTIONS, default="forward"),
        "no_bias": params.boolean(False),
        "use_state": params.boolean(False),
        "activations": activations,
        "clip": params.optional(params.number()),
        "peepholes": params.boolean(False),
        "input_forget": params.boolean(False),
        "reset_after": params.boolean(True),
    },
    expand=recurrent_network,
    caption=caption,
    doc="A recurrent network as RNN, with an input for each parameter and the options of ONNX. The "
    "parameters come layer by layer, forward (l0_, l1_, ...) before backward (r0_, ...): "
    "l0_i2h_weight (G H, I), l0_h2h_weight (G H, H), unless no_bias=True l0_i2h_bias and "
    "l0_h2h_bias (G H,), and with peepholes=True l0_peephole (3 H,) of the gates i, f, o. The G "
    "gates have the order of cells: i, f, c, o of an lstm, r, z, o of a gru. With "
    "use_state=True the initial states follow, which are zeros otherwise, then sequence_length. "
    "direction='reverse' has backward cells (r0_) alone. activations, for one direction after "
    "another, are for rnn f, for gru f (gates), g (new state), for lstm f (gates), g "
    "(candidate), h (state in the output), such as 'tanh' or 'affine(0.5, 1)'; clip bounds what "
    "f and g see. With input_forget=True an lstm's f is 1 - i. With reset_after=False a gru's "
    "reset gate multiplies the state before its product with the weight.",
)
