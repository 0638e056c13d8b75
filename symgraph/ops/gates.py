"""Gates: all arithmetic of one LSTM or GRU step between its matrix products, as one operator.

An unrolled network has one such node per time step and layer instead of a dozen, so backends can
compute a step's gates in one pass over the rows. Arrays are rows of blocks of H units: (B, H) is
one block, (B, 4H) four gates side by side. The gradients need hidden outputs: the activated gates,
which fit into the memory of the pre-activations, and nothing that is cheap to recompute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from symgraph.core import params
from symgraph.core.batch_layout import (
    PARTIAL,
    WHOLE,
    BatchRule,
    Layouts,
    Split,
    elementwise,
    refuse_mixing,
)
from symgraph.core.errors import DTypeError
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply, apply_all
from symgraph.core.registry import (
    LOW,
    Call,
    DTypeRule,
    Env,
    Names,
    ShapeRule,
    Shapes,
    find,
    register,
)
from symgraph.core.shapes import expect
from symgraph.core.types import Array, Types, is_float, wide
from symgraph.ops.elementwise import floats
from symgraph.ops.formulas import sigmoid


def blocks(counts: Mapping[str, int]) -> ShapeRule:
    """Every input and output is (B, n H) for one B and H; n is in `counts`, 1 by default."""

    def rule(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
        op = find(site.op)
        names = (*op.input_names(site.attrs), *op.output_names(site.attrs))
        of = [counts.get(name, 1) for name in names]
        rows, units = 0, 0
        said: list[str] = []
        for name, n, shape in zip(names, of, (*ins, *outs), strict=True):
            if shape is None:
                continue
            if len(shape) != 2 or shape[1] % n:
                wanted = "units" if n == 1 else f"{n} * units"
                site.fail(f"{name} of shape {shape} is not (batch, {wanted})")
            expect(site, name, shape, (rows, n * units), f"(beside {', '.join(said)})")
            rows, units = rows or shape[0], units or shape[1] // n
            said.append(f"{name} {shape}")
        shapes = [(rows, n * units) for n in of]
        return shapes[: len(ins)], shapes[len(ins) :]

    return rule


def by_rows(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Each row of the outputs is a nonlinear function of the same row of the inputs."""
    if any(isinstance(layout, Split) and layout.axis != 0 for layout in ins):
        refuse_mixing(site, "takes rows as samples, but the batch lies along axis 1")
    return elementwise(site, ins, in_types, outs)


def linear_in(*grads: str) -> BatchRule:
    """`by_rows`, and linear in the inputs of these names together."""

    def rule(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
        names = find(site.op).input_names(site.attrs)
        wanted = [PARTIAL if name in grads else WHOLE for name in names]
        if list(ins) == wanted:
            return [PARTIAL] * len(outs)
        return by_rows(site, ins, in_types, outs)

    return rule


def with_cells(*cells: str) -> DTypeRule:
    """One float dtype for all; the values `cells` may have the dtype that computations use.

    A cell's state is a sum over time steps: in 16 bits, with 11 or 8 binary digits, small additions
    to a large state are lost, and so are small parts of its gradient. The state takes 2 of the 14
    bytes per unit that a step keeps, so mixed precision leaves it in float32.
    """

    def rule(site: Site, ins: Sequence[str | None]) -> tuple[list[str | None], list[str]]:
        op = find(site.op)
        names = op.input_names(site.attrs)
        of_cells = {d for n, d in zip(names, ins, strict=True) if d and n in cells}
        others = {d for n, d in zip(names, ins, strict=True) if d and n not in cells}
        dtype = next(iter(others or of_cells), "float32")
        cell = next(iter(of_cells), dtype)
        if len(others) > 1 or len(of_cells) > 1 or cell not in (dtype, wide(dtype)):
            given = ", ".join(f"{n} {d}" for n, d in zip(names, ins, strict=True))
            raise DTypeError(f"{site.op} {site.name!r}: dtypes do not fit: {given}; add a Cast")
        if not is_float(dtype):
            raise DTypeError(f"{site.op} {site.name!r}: works on floats, not {dtype}; add a Cast")
        outs = op.output_names(site.attrs)
        return [cell if n in cells else dtype for n in names], [
            cell if n in cells else dtype for n in outs
        ]

    return rule


# Pieces of the second derivatives, which are made of plain operators.


def cut(x: Ref, count: int) -> tuple[Ref, ...]:
    return apply_all("SliceChannel", x, num_outputs=count, axis=1)


def join(*parts: Ref) -> Ref:
    return apply("Concat", *parts, num_args=len(parts), dim=1)


def of_sigmoid(grad: Ref, y: Ref) -> Ref:
    return apply("_sigmoid_grad", grad, y)


def of_tanh(grad: Ref, y: Ref) -> Ref:
    return apply("_tanh_grad", grad, y)


def or_zeros(grad: Ref | None, like: Ref) -> Ref:
    return apply("zeros_like", like) if grad is None else grad


# -- LSTM ----------------------------------------------------------------------------------------


def lstm_gates(env: Env, a: Attrs, i2h: Array, h2h: Array, c: Array) -> tuple[Array, ...]:
    xp, size = env.xp, c.shape[1]
    gates = i2h + h2h
    for start, stop in ((0, 2 * size), (3 * size, 4 * size)):
        gates[:, start:stop] = sigmoid(xp, gates[:, start:stop])
    gates[:, 2 * size : 3 * size] = xp.tanh(gates[:, 2 * size : 3 * size])
    i, f, new, o = xp.split(gates, 4, axis=1)
    next_c = f * c + i * new
    return o * xp.tanh(next_c), next_c, gates


def lstm_gates_grad(c: Call) -> Sequence[Ref | None]:
    """The activated gates have a gradient in second derivatives only."""
    dh, dc, of_gates = c.g
    given = [g for g in (dh, dc) if g is not None]
    there = {"has_dh": dh is not None, "has_dc": dc is not None}
    d_pre, d_c = apply_all("_lstm_gates_grad", *given, c.y[2], c.x[2], c.y[1], **there)
    if of_gates is not None:
        di, df, d_new, do = cut(of_gates, 4)
        i, f, new, o = cut(c.y[2], 4)
        d_pre += join(of_sigmoid(di, i), of_sigmoid(df, f), of_tanh(d_new, new), of_sigmoid(do, o))
    return d_pre, d_pre, d_c


register(
    name="_lstm_gates",
    inputs=("i2h", "h2h", "c"),
    outputs=("output", "state", "gates"),
    visible=2,
    shape=blocks({"i2h": 4, "h2h": 4, "gates": 4}),
    compute=lstm_gates,
    grad=lstm_gates_grad,
    flops=lambda attrs, ins, outs: 13 * outs[0].size,
    dtype=with_cells("c", "state"),
    batch=by_rows,
    precision=LOW,
    full_inputs=("c",),
    in_place=((2, 0), (2, 1)),
    doc="The arithmetic of an LSTM step: i2h + h2h (B, 4H) are the pre-activations of the gates "
    "i, f, c, o in this order, c (B, H) is the state. state = sigmoid(f) * c + sigmoid(i) * "
    "tanh(c gate) and output = sigmoid(o) * tanh(state), both (B, H); the activated gates (B, "
    "4H) are a hidden output. In 16-bit precision the states may be float32. MXNet's LSTMCell "
    "between its FullyConnected layers.",
)


def lstm_grad_inputs(attrs: Attrs) -> Names:
    grads = [name for name in ("dh", "dc") if attrs[f"has_{name}"]]
    return *grads, "gates", "c", "state"


def lstm_grad(env: Env, a: Attrs, *arrays: Array) -> tuple[Array, ...]:
    xp = env.xp
    *grads, gates, c, state = arrays
    i, f, new, o = xp.split(gates, 4, axis=1)
    dc = grads[-1] if a["has_dc"] else xp.zeros_like(c)
    do = xp.zeros_like(c)
    if a["has_dh"]:
        dh, tanh = grads[0], xp.tanh(state)
        dc = dc + dh * o * (1 - tanh * tanh)
        do = dh * tanh * o * (1 - o)
    di = dc * new * i * (1 - i)
    df = dc * c * f * (1 - f)
    d_new = dc * i * (1 - new * new)
    return xp.concatenate([di, df, d_new, do], axis=1), dc * f


def lstm_second_grad(c: Call) -> Sequence[Ref]:
    """Differentiate every line of lstm_grad; its updated dc is `whole` here."""
    *grads, gates, old, state = c.x
    of_pre, of_d_c = or_zeros(c.g[0], gates), or_zeros(c.g[1], old)
    (i, f, new, o), (ai, af, a_new, ao) = cut(gates, 4), cut(of_pre, 4)
    dh = or_zeros(grads[0] if c.attrs["has_dh"] else None, old)
    dc = or_zeros(grads[-1] if c.attrs["has_dc"] else None, old)
    tanh = apply("tanh", state)
    whole = dc + of_tanh(dh * o, tanh)
    of_whole = of_sigmoid(ai * new, i) + of_sigmoid(af * old, f) + of_tanh(a_new * i, new)
    of_whole += of_d_c * f
    of_gates = join(
        whole * (ai * new * (1.0 - i * 2.0) + of_tanh(a_new, new)),
        whole * (af * old * (1.0 - f * 2.0) + of_d_c),
        whole * (of_sigmoid(ai, i) - a_new * i * new * 2.0),
        dh * (ao * tanh * (1.0 - o * 2.0) + of_tanh(of_whole, tanh)),
    )
    of_dh = of_tanh(of_whole * o, tanh) + of_sigmoid(ao * tanh, o)
    of_state = of_tanh(dh * (of_sigmoid(ao, o) - of_whole * o * tanh * 2.0), tanh)
    of_grads = [g for g, name in ((of_dh, "has_dh"), (of_whole, "has_dc")) if c.attrs[name]]
    return *of_grads, of_gates, whole * of_sigmoid(af, f), of_state


register(
    name="_lstm_gates_grad",
    inputs=lstm_grad_inputs,
    outputs=("d_pre", "d_c"),
    shape=blocks({"gates": 4, "d_pre": 4}),
    compute=lstm_grad,
    grad=lstm_second_grad,
    flops=lambda attrs, ins, outs: (13 + 10 * attrs["has_dh"]) * outs[1].size,
    dtype=with_cells("dc", "c", "state", "d_c"),
    batch=linear_in("dh", "dc"),
    params={"has_dh": params.boolean(True), "has_dc": params.boolean(True)},
    in_place=((0, -3),),
    doc="Gradients of _lstm_gates from those of output (dh) and state (dc); a missing one is no "
    "input. d_pre (B, 4H) is the gradient of i2h and of h2h, d_c that of c.",
)


# -- GRU -----------------------------------------------------------------------------------------


def gru_gates(env: Env, a: Attrs, i2h: Array, h2h: Array, h: Array) -> tuple[Array, ...]:
    xp, size = env.xp, h.shape[1]
    gates = xp.empty_like(i2h)
    gates[:, : 2 * size] = sigmoid(xp, i2h[:, : 2 * size] + h2h[:, : 2 * size])
    r, z, new = xp.split(gates, 3, axis=1)
    inner = h2h[:, 2 * size :]
    new[...] = xp.tanh(i2h[:, 2 * size :] + r * inner)
    return (1 - z) * new + z * h, gates, inner


def gru_gates_grad(c: Call) -> Sequence[Ref | None]:
    """The hidden outputs have gradients in second derivatives only."""
    (_, gates, inner), (dh, of_gates, of_inner) = c.y, c.g
    d_i2h, d_h2h, d_h = apply_all("_gru_gates_grad", or_zeros(dh, c.y[0]), gates, inner, c.x[2])
    if of_gates is not None or of_inner is not None:
        r, z, new = cut(gates, 3)
        dr, dz, d_new = cut(or_zeros(of_gates, gates), 3)
        d_new = of_tanh(d_new, new)
        dr, dz = of_sigmoid(dr + d_new * inner, r), of_sigmoid(dz, z)
        d_i2h += join(dr, dz, d_new)
        d_h2h += join(dr, dz, d_new * r + or_zeros(of_inner, inner))
    return d_i2h, d_h2h, d_h


register(
    name="_gru_gates",
    inputs=("i2h", "h2h", "h"),
    outputs=("output", "gates", "inner"),
    visible=1,
    shape=blocks({"i2h": 3, "h2h": 3, "gates": 3}),
    compute=gru_gates,
    grad=gru_gates_grad,
    flops=lambda attrs, ins, outs: 11 * outs[0].size,
    dtype=floats,
    batch=by_rows,
    precision=LOW,
    doc="The arithmetic of a GRU step in cuDNN's form: i2h and h2h (B, 3H) are the "
    "pre-activations of the gates r, z, o in this order, h (B, H) is the state. r = "
    "sigmoid(i_r + h_r), z = sigmoid(i_z + h_z), output = (1 - z) * tanh(i_o + r * h_o) + z * "
    "h (B, H); the activated gates (B, 3H) and h_o (B, H) are hidden outputs. MXNet's GRUCell "
    "between its FullyConnected layers.",
)


def gru_grad(
    env: Env, a: Attrs, dh: Array, gates: Array, inner: Array, h: Array
) -> tuple[Array, ...]:
    r, z, new = env.xp.split(gates, 3, axis=1)
    d_new = dh * (1 - z) * (1 - new * new)
    dz = dh * (h - new) * z * (1 - z)
    dr = d_new * inner * r * (1 - r)
    d_i2h = env.xp.concatenate([dr, dz, d_new], axis=1)
    d_h2h = env.xp.concatenate([dr, dz, d_new * r], axis=1)
    return d_i2h, d_h2h, dh * z


def gru_second_grad(c: Call) -> Sequence[Ref]:
    """Differentiate every line of gru_grad."""
    dh, gates, inner, h = c.x
    r, z, new = cut(gates, 3)
    ar, az, a_new = cut(or_zeros(c.g[0], gates), 3)
    br, bz, b_inner = cut(or_zeros(c.g[1], gates), 3)
    of_d_h, of_dr, of_dz = or_zeros(c.g[2], h), ar + br, az + bz
    d_new = of_tanh(dh * (1.0 - z), new)
    of_d_new = a_new + b_inner * r + of_sigmoid(of_dr * inner, r)
    part = of_sigmoid(of_dz, z)
    of_dh = of_tanh(of_d_new * (1.0 - z), new) + part * (h - new) + of_d_h * z
    of_z = of_dz * (h - new) * (1.0 - z * 2.0) + of_d_h - of_tanh(of_d_new, new)
    of_gates = join(
        d_new * (b_inner + of_dr * inner * (1.0 - r * 2.0)),
        dh * of_z,
        -(dh * (of_d_new * (1.0 - z) * new * 2.0 + part)),
    )
    return of_dh, of_gates, d_new * of_sigmoid(of_dr, r), dh * part


register(
    name="_gru_gates_grad",
    inputs=("dh", "gates", "inner", "h"),
    outputs=("d_i2h", "d_h2h", "d_h"),
    shape=blocks({"gates": 3, "d_i2h": 3, "d_h2h": 3}),
    compute=gru_grad,
    grad=gru_second_grad,
    flops=lambda attrs, ins, outs: 16 * outs[2].size,
    dtype=floats,
    batch=linear_in("dh"),
    doc="Gradients of _gru_gates from that of its output: of i2h and h2h (B, 3H), and of h (B, H).",
)
