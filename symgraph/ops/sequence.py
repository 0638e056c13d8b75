"""Sequences of different lengths in one array: SequenceMask, SequenceLast, SequenceReverse.

Data is (T, B, ...) with axis=0, or (B, T, ...) with axis=1; `sequence_length` holds the number of
valid time steps of each of the B samples, which come first. It is an input only with
use_sequence_length=True; without it every sequence is T long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import (
    PARTIAL,
    WHOLE,
    BatchRule,
    Layout,
    Layouts,
    Split,
    refuse_mixing,
)
from symgraph.core.params import Attrs, Param, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, Env, Names, Partial, Shapes, no_flops, register
from symgraph.core.shapes import expect, unify
from symgraph.core.types import Array, Shape, Types
from symgraph.ops.elementwise import DTypes
from symgraph.ops.index import checked, integers


def zero_or_one(raw: Any) -> int:
    axis = params.integer().parse(raw)
    if axis not in (0, 1):
        raise ValueError
    return int(axis)


SEQUENCE = {
    "use_sequence_length": params.boolean(False),
    "axis": Param(zero_or_one, 0, "time axis, 0 or 1", type="Literal[0, 1]"),
}


def with_lengths(attrs: Attrs) -> Names:
    return ("data", "sequence_length") if attrs["use_sequence_length"] else ("data",)


def lengths_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    """The data's dtype; an unknown dtype of lengths defaults to it."""
    data = ins[0] or "float32"
    return [data, *(d or data for d in ins[1:])], [data]


def lengths_of(site: Site, given: Shapes, data: Partial) -> tuple[list[Partial], Partial]:
    """Return the shapes of the lengths, if any, and of the data, each from the other."""
    if data is not None and len(data) < 2:
        site.fail(f"data of shape {data} has no time and batch axes")
    batch = 1 - site.attrs["axis"]
    if data is None or not given:
        return list(given), data
    (lengths,) = given
    count = expect(site, "sequence_length", lengths, (data[batch],), f"(data of shape {data})")
    assert count is not None
    return [count], (*data[:batch], count[0], *data[batch + 1 :])


def kept_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    lengths, data = lengths_of(site, ins[1:], unify(site, ins[0], outs[0], "output shapes"))
    return [data, *lengths], [data]


def last_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, out, axis = ins[0], outs[0], site.attrs["axis"]
    if data is None and out is None:
        return ins, outs
    if data is None:
        assert out is not None
        data = (*out[:axis], 0, *out[axis:])
    out = unify(site, (*data[:axis], *data[axis + 1 :]), out, "output shapes")
    assert out is not None
    lengths, data = lengths_of(site, ins[1:], (*out[:axis], data[axis], *out[axis:]))
    assert data is not None
    return [data, *lengths], [(*data[:axis], *data[axis + 1 :])]


def sequence_batch(after: Callable[[Site, Layout], Layout], *, linear: bool = True) -> BatchRule:
    """The batch lies along the samples, alike in data and lengths, or on an axis behind them."""

    def rule(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
        data, *lengths = ins
        time = site.attrs["axis"]
        if isinstance(data, Split) and data.axis == time:
            refuse_mixing(site, f"works along axis {time}, where the batch lies")
        wanted: Layout = WHOLE
        if isinstance(data, Split) and data.axis < 2:
            wanted = Split(0, data.outer, data.inner)
        if lengths not in ([], [wanted]):
            refuse_mixing(
                site, f"has data and lengths whose batch lies differently ({data}, {lengths[0]})"
            )
        if data is PARTIAL and not (linear or site.attrs["value"] == 0):
            refuse_mixing(site, "puts a constant into a sum over the batch")
        return [after(site, data)]

    return rule


def by_rows(a: Attrs, lengths: Array, rank: int) -> Any:
    """Return the lengths in a shape that broadcasts against data."""
    shape = [1] * rank
    shape[1 - a["axis"]] = lengths.size
    return lengths.reshape(shape)


def steps(xp: Any, a: Attrs, shape: Shape) -> Any:
    """Return the numbers of the time steps in a shape that broadcasts against data."""
    ones = [1] * len(shape)
    ones[a["axis"]] = shape[a["axis"]]
    return xp.arange(shape[a["axis"]]).reshape(ones)


def mask(env: Env, a: Attrs, x: Array, lengths: Array | None = None) -> Any:
    if lengths is None:
        return x
    inside = steps(env.xp, a, x.shape) < by_rows(a, lengths, x.ndim)
    return env.xp.where(inside, x, x.dtype.type(a["value"]))


def mask_grad(c: Call) -> Sequence[Ref | None]:
    masked = apply("SequenceMask", c.gy, *c.x[1:], **{**c.attrs, "value": 0.0})
    return [masked, *[None] * len(c.x[1:])]


register(
    name="SequenceMask",
    inputs=with_lengths,
    shape=kept_shape,
    compute=mask,
    grad=mask_grad,
    dtype=lengths_dtype,
    batch=sequence_batch(lambda site, layout: layout, linear=False),
    params={
        "use_sequence_length": SEQUENCE["use_sequence_length"],
        "value": params.number(0.0),
        "axis": SEQUENCE["axis"],
    },
    full_inputs=("sequence_length",),
    doc="The data with `value` in all time steps from a sample's sequence_length on. MXNet "
    "SequenceMask.",
)


def last_index(xp: Any, a: Attrs, lengths: Array, size: int) -> tuple[Any, ...]:
    """Return the last steps as an index of axes 0 and 1."""
    if lengths.min() < 1:
        raise IndexError(f"sequence length {lengths.min()} is outside 1..{size}")
    ends, samples = checked(lengths, size + 1, "sequence length") - 1, xp.arange(lengths.size)
    return (ends, samples) if a["axis"] == 0 else (samples, ends)


def last(env: Env, a: Attrs, x: Array, lengths: Array | None = None) -> Any:
    if lengths is None:
        return x[-1] if a["axis"] == 0 else x[:, -1]
    return x[last_index(env.xp, a, lengths, x.shape[a["axis"]])]


def last_grad(c: Call) -> Sequence[Ref | None]:
    size = c.x[0].shape[c.attrs["axis"]]
    spread = apply("_sequence_last_grad", c.gy, *c.x[1:], size=size, **c.attrs)
    return [spread, *[None] * len(c.x[1:])]


def without_time(site: Site, layout: Layout) -> Layout:
    if not isinstance(layout, Split):
        return layout
    return Split(layout.axis - (layout.axis > site.attrs["axis"]), layout.outer, layout.inner)


register(
    name="SequenceLast",
    inputs=with_lengths,
    shape=last_shape,
    compute=last,
    grad=last_grad,
    flops=no_flops,
    dtype=lengths_dtype,
    batch=sequence_batch(without_time),
    params=SEQUENCE,
    full_inputs=("sequence_length",),
    reads_on_host=True,
    doc="The last time step of each sample: (B, ...). A sequence_length outside 1..T raises "
    "IndexError. MXNet SequenceLast.",
)


def last_grad_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    grad, axis = ins[0], site.attrs["axis"]
    return ins, [None if grad is None else (*grad[:axis], site.attrs["size"], *grad[axis:])]


def last_grad_compute(env: Env, a: Attrs, g: Array, lengths: Array | None = None) -> Array:
    axis, size = a["axis"], a["size"]
    out: Array = env.xp.zeros((*g.shape[:axis], size, *g.shape[axis:]), g.dtype)
    if lengths is None:
        out[(slice(None),) * axis + (-1,)] = g
    else:
        out[last_index(env.xp, a, lengths, size)] = g
    return out


register(
    name="_sequence_last_grad",
    inputs=lambda attrs: ("grad", *with_lengths(attrs)[1:]),
    shape=last_grad_shape,
    compute=last_grad_compute,
    grad=lambda c: [
        apply("SequenceLast", c.gy, *c.x[1:], **{k: c.attrs[k] for k in SEQUENCE}),
        *[None] * len(c.x[1:]),
    ],
    flops=no_flops,
    dtype=lengths_dtype,
    params={**SEQUENCE, "size": params.integer()},
    reads_on_host=True,
    doc="Gradient of SequenceLast's data: grad in the last time step, zero in the others.",
)


def reverse(env: Env, a: Attrs, x: Array, lengths: Array | None = None) -> Any:
    if lengths is None:
        return env.xp.flip(x, a["axis"])
    size = x.shape[a["axis"]]
    count = by_rows(a, checked(lengths, size + 1, "sequence length"), x.ndim)
    at = steps(env.xp, a, x.shape)
    source = env.xp.where(at < count, count - 1 - at, at)
    return env.xp.take_along_axis(x, integers(source), a["axis"])


register(
    name="SequenceReverse",
    inputs=with_lengths,
    shape=kept_shape,
    compute=reverse,
    grad=lambda c: [
        apply("SequenceReverse", c.gy, *c.x[1:], **c.attrs),
        *[None] * len(c.x[1:]),
    ],
    flops=no_flops,
    dtype=lengths_dtype,
    batch=sequence_batch(lambda site, layout: layout),
    params=SEQUENCE,
    full_inputs=("sequence_length",),
    reads_on_host=True,
    doc="The first sequence_length time steps of each sample in reverse order, the others "
    "unchanged. A sequence_length outside 0..T raises IndexError. MXNet SequenceReverse "
    "(whose axis is always 0).",
)
