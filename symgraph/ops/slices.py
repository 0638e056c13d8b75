"""Parts of a value at fixed positions: slice_axis, slice, slice_like, and their gradients.

Positions are numbers, so a slice along the batch axis would take other samples in each micro-batch:
only slices that leave that axis whole can be split.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import Layouts, Split, named_axis, not_along, refuse_mixing
from symgraph.core.params import Attrs, Param, Site
from symgraph.core.ref import apply
from symgraph.core.registry import Env, Offsets, Shapes, no_flops, register
from symgraph.core.shapes import axes_of, expect, unify
from symgraph.core.types import Array, Shape, Types
from symgraph.ops.movement import one_axis

MaybeInts = tuple[int | None, ...]


def along_axis(a: Attrs, rank: int, part: slice) -> tuple[slice, ...]:
    """Return an index that takes `part` of one axis."""
    axis: int = a["axis"] % rank
    return (*[slice(None)] * axis, part)


def bounds(site: Site, length: int) -> tuple[int, int]:
    """Return non-negative begin and end on an axis of that length; empty or outside: ShapeError."""
    begin, end = site.attrs["begin"], site.attrs["end"]
    first = begin + length if begin < 0 else begin
    last = length if end is None else end + length if end < 0 else end
    if not 0 <= first < last <= length:
        site.fail(
            f"begin={begin}, end={end} selects nothing or goes outside an axis of length {length}"
        )
    return first, last


def slice_axis_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    known = outs[0] if ins[0] is None else ins[0]
    if known is None:
        return ins, outs
    data = (0,) * len(known) if ins[0] is None else ins[0]
    axis = one_axis(site, site.attrs["axis"], len(data))
    begin, end = site.attrs["begin"], site.attrs["end"]
    length = 0
    if data[axis]:
        first, last = bounds(site, data[axis])
        length = last - first
    elif end is not None and (begin < 0) == (end < 0):
        length = max(0, end - begin)
    out = unify(site, (*data[:axis], length, *data[axis + 1 :]), outs[0], "output shapes")
    assert out is not None
    return [(*out[:axis], data[axis], *out[axis + 1 :])], [out]


def slice_offset(a: Attrs, ins: Types, outs: Types) -> Offsets | None:
    """A part of an axis is contiguous if no dimension before the axis is longer than 1."""
    before = ins[0].before(a["axis"])
    if before != 1 and ins[0] != outs[0]:
        return None
    length = ins[0].shape[a["axis"]]
    return (a["begin"] % length * ins[0].nbytes // (before * length),)


register(
    name="slice_axis",
    inputs=("data",),
    shape=slice_axis_shape,
    compute=lambda env, a, x: x[along_axis(a, x.ndim, slice(a["begin"], a["end"]))],
    grad=lambda c: (
        apply(
            "_pad_axis",
            c.gy,
            axis=c.attrs["axis"],
            begin=bounds(Site("slice_axis", "", c.attrs), c.x[0].shape[c.attrs["axis"]])[0],
            size=c.x[0].shape[c.attrs["axis"]],
        ),
    ),
    flops=no_flops,
    batch=not_along(
        lambda a, rank: () if (a["begin"], a["end"]) == (0, None) else named_axis(a, rank),
        why="takes fixed positions of the batch axis",
    ),
    params={
        "axis": params.integer(),
        "begin": params.integer(),
        "end": params.optional(params.integer()),
    },
    view=slice_offset,
    reads_part=True,
    doc="The part [begin, end) of one axis; end=None means up to the axis's end, and negative "
    "positions count from there. MXNet slice_axis.",
)


def pad_axis_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = ins[0]
    if data is None:
        return ins, outs
    axis = one_axis(site, site.attrs["axis"], len(data))
    begin, size = site.attrs["begin"], site.attrs["size"]
    if not 0 <= begin <= size - data[axis]:
        site.fail(f"{data[axis]} elements do not fit at {begin} of {size}")
    return ins, [unify(site, (*data[:axis], size, *data[axis + 1 :]), outs[0], "output shapes")]


def pad_axis(env: Env, a: Attrs, x: Array) -> Array:
    axis = a["axis"] % x.ndim
    out: Array = env.xp.zeros((*x.shape[:axis], a["size"], *x.shape[axis + 1 :]), x.dtype)
    out[along_axis(a, x.ndim, slice(a["begin"], a["begin"] + x.shape[axis]))] = x
    return out


register(
    name="_pad_axis",
    inputs=("data",),
    shape=pad_axis_shape,
    compute=pad_axis,
    grad=lambda c: (
        apply(
            "slice_axis",
            c.gy,
            axis=c.attrs["axis"],
            begin=c.attrs["begin"],
            end=c.attrs["begin"] + c.x[0].shape[c.attrs["axis"]],
        ),
    ),
    flops=no_flops,
    batch=not_along(named_axis, why="pads the batch axis"),
    params={"axis": params.integer(), "begin": params.integer(), "size": params.integer()},
    doc="Zeros of length `size` along one axis, with the data at `begin`. Gradient of slice_axis.",
)


def parse_positions(raw: Any) -> MaybeInts:
    value = params.literal(raw)
    position = params.optional(params.integer())
    values = value if isinstance(value, (tuple, list)) else [value]
    return tuple(position.parse(v) for v in values)


POSITIONS = Param(parse_positions, kind="tuple of ints or None", type="int | Sequence[int | None]")
SLICE = {"begin": POSITIONS, "end": POSITIONS, "step": replace(POSITIONS, default=())}


def parts(a: Attrs) -> tuple[slice, ...]:
    """Return one slice for each leading axis that the parameters name."""
    steps = a["step"] or (None,) * len(a["begin"])
    return tuple(slice(*part) for part in zip(a["begin"], a["end"], steps, strict=True))


def picked(site: Site, part: slice, length: int) -> int:
    """Return how many elements of an axis a slice takes; none raises ShapeError."""
    count = len(range(*part.indices(length)))
    if not count:
        site.fail(
            f"begin={part.start}, end={part.stop}, step={part.step} selects nothing of an "
            f"axis of length {length}"
        )
    return count


def slice_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = ins[0]
    begin, end, step = (site.attrs[key] for key in SLICE)
    if len(begin) != len(end) or len(step) not in (0, len(begin)) or 0 in step:
        site.fail(f"begin={begin}, end={end}, step={step} have different lengths or a step of 0")
    cuts = parts(site.attrs)
    if data is None:
        return ins, outs
    if len(cuts) > len(data):
        site.fail(f"slices {len(cuts)} axes of data of shape {data}")
    front = [picked(site, cut, d) if d else 0 for cut, d in zip(cuts, data, strict=False)]
    rest = len(front)
    out = unify(site, (*front, *data[rest:]), outs[0], "output shapes")
    assert out is not None
    return [(*data[:rest], *out[rest:])], [out]


def sliced_axes(a: Attrs, rank: int) -> list[int]:
    """Return the axes of which `slice` takes a part."""
    return [
        axis
        for axis, cut in enumerate(parts(a))
        if cut.start not in (None, 0) or cut.stop is not None or cut.step not in (None, 1)
    ]


SLICE_BATCH = not_along(sliced_axes, why="takes fixed positions of the batch axis")

register(
    name="slice",
    inputs=("data",),
    shape=slice_shape,
    compute=lambda env, a, x: x[parts(a)],
    grad=lambda c: (apply("_slice_grad", c.gy, shape=c.x[0].shape, **c.attrs),),
    flops=no_flops,
    batch=SLICE_BATCH,
    params=SLICE,
    aliases=("crop",),
    reads_part=True,
    doc="The parts [begin, end) by step of the leading axes; None stands for the axis's own end, "
    "and negative positions count from there. MXNet slice.",
)


def slice_grad_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    shape: Shape = site.attrs["shape"]
    cuts = parts(site.attrs)
    front = tuple(picked(site, cut, d) for cut, d in zip(cuts, shape, strict=False))
    taken = (*front, *shape[len(front) :])
    return [expect(site, "data", ins[0], taken)], [unify(site, shape, outs[0], "output shapes")]


def slice_grad(env: Env, a: Attrs, x: Array) -> Array:
    out: Array = env.xp.zeros(a["shape"], x.dtype)
    out[parts(a)] = x
    return out


register(
    name="_slice_grad",
    inputs=("data",),
    shape=slice_grad_shape,
    compute=slice_grad,
    grad=lambda c: (apply("slice", c.gy, **{key: c.attrs[key] for key in SLICE}),),
    flops=no_flops,
    batch=SLICE_BATCH,
    params={**SLICE, "shape": params.integers()},
    doc="Zeros of `shape`, with the data where `slice` takes it. Gradient of slice.",
)


# -- slice_like --------------------------------------------------------------------------------


def like_axes(a: Attrs, rank: int) -> tuple[int, ...]:
    """Return the axes that are cut to another value's lengths: those named, or the first `rank`."""
    return tuple(axis % rank for axis in a["axes"]) or tuple(range(rank))


def slice_like_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, like = ins
    if data is None or like is None:
        return ins, outs
    named = site.attrs["axes"]
    if not named and len(data) != len(like):
        site.fail(f"shapes {data} and {like} have other numbers of axes; give axes=")
    for rank in (len(data), len(like)) if named else ():
        axes_of(site, named, rank)  # ShapeError for an axis that one of them lacks
    wanted = list(data)
    for axis in like_axes(site.attrs, len(data)):
        if like[axis] > data[axis] > 0:
            site.fail(f"data of shape {data} is shorter than shape_like {like} along axis {axis}")
        wanted[axis] = like[axis]
    return ins, [unify(site, tuple(wanted), outs[0], "output shapes")]


def like_parts(a: Attrs, data: Shape, like: Shape) -> dict[str, MaybeInts]:
    """Return the same part as parameters of `slice`."""
    axes = like_axes(a, len(data))
    end = tuple(like[axis] if axis in axes else None for axis in range(len(data)))
    return {"begin": (None,) * len(data), "end": end}


def slice_like_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Derive the layout; along the batch, which must not be cut, both have all samples."""
    data, like = ins
    axes = like_axes(site.attrs, len(in_types[0].shape))
    if isinstance(data, Split) and data.axis in axes and data != like:
        refuse_mixing(site, f"cuts axis {data.axis}, where the batch lies")
    if isinstance(like, Split) and like.axis in axes and data != like:
        refuse_mixing(site, f"cuts axis {like.axis} to the number of samples")
    return [data]


register(
    name="slice_like",
    inputs=("data", "shape_like"),
    shape=slice_like_shape,
    compute=lambda env, a, x, like: x[parts({**like_parts(a, x.shape, like.shape), "step": ()})],
    grad=lambda c: (
        apply(
            "_slice_grad",
            c.gy,
            shape=c.x[0].shape,
            **like_parts(c.attrs, c.x[0].shape, c.x[1].shape),
        ),
        None,
    ),
    flops=no_flops,
    dtype=lambda site, ins: ([ins[0] or "float32", ins[1] or "float32"], [ins[0] or "float32"]),
    batch=slice_like_batch,
    params={"axes": params.integers(())},
    reads_part=True,
    doc="The first elements of data along `axes`, as many as shape_like has; () means all axes. "
    "MXNet slice_like.",
)
