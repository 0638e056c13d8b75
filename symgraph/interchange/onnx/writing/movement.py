"""Operators that move data: shapes, axes, parts, joins, repetitions and padding."""

from __future__ import annotations

from collections.abc import Sequence

from symgraph.core.registry import Env, find, run
from symgraph.interchange.onnx.writing.call import (
    BEFORE,
    LAST,
    Call,
    Converter,
    Table,
    all_fixed,
)
from symgraph.interchange.onnx.writing.lengths import Dims
from symgraph.ops.broadcasts import padded
from symgraph.ops.crop import begins
from symgraph.ops.movement import squeezed, swap_order, transpose_order
from symgraph.ops.resize import pairs
from symgraph.ops.slices import like_axes, parts

# -- shapes and axes -------------------------------------------------------------------------------


def identity(call: Call) -> str:
    return call.op("Identity", call.x[0])


def reshaped(call: Call) -> str:
    return call.reshape(call.x[0], call.out_dims())


def transposed(call: Call) -> str:
    order = transpose_order(call.node.site, call.rank)
    return call.op("Transpose", call.x[0], perm=[*order])


def swapped(call: Call) -> str:
    return call.op("Transpose", call.x[0], perm=[*swap_order(call.node.site, call.rank)])


def expanded(call: Call) -> str:
    return call.op("Unsqueeze", call.x[0], call.ints(call.attrs["axis"]))


def without_ones(call: Call) -> str:
    axes = squeezed(call.node.site, call.ins[0].shape)
    if len(axes) == call.rank:  # a scalar has one axis
        return call.reshape(call.x[0], (1,))
    return call.op("Squeeze", call.x[0], call.ints(*axes))


# -- parts -----------------------------------------------------------------------------------------


def sliced(call: Call, x: str, cuts: dict[int, slice]) -> str:
    """Take a part of some axes, as Python slices do."""
    starts, ends, steps = [], [], []
    for cut in cuts.values():
        step = 1 if cut.step is None else int(cut.step)
        first, last = (0, LAST) if step > 0 else (LAST, BEFORE)
        starts.append(first if cut.start is None else int(cut.start))
        ends.append(last if cut.stop is None else int(cut.stop))
        steps.append(step)
    more = [] if set(steps) == {1} else [call.ints(*steps)]
    return call.op("Slice", x, *(call.ints(*n) for n in (starts, ends, [*cuts])), *more)


def slice_axis(call: Call) -> str:
    return sliced(call, call.x[0], {call.axis(): slice(call.attrs["begin"], call.attrs["end"])})


def slice_(call: Call) -> str:
    whole = slice(None)
    cuts = {i: cut for i, cut in enumerate(parts(call.attrs)) if cut != whole}
    return sliced(call, call.x[0], cuts) if cuts else identity(call)


def reversed_along(call: Call) -> str:
    axes = [a % call.rank for a in call.attrs["axis"] or range(call.rank)]
    return sliced(call, call.x[0], dict.fromkeys(axes, slice(None, None, -1)))


def cropped(call: Call) -> str:
    data, out = (all_fixed(d[2:]) for d in (call.dims(), call.out_dims()))
    if data is None or out is None:
        call.refuse("it crops to a height and width that are left open")
    first = begins(call.node.site, (0, 0, *data), (0, 0, *out))
    cuts = {2 + i: slice(b, b + n) for i, (b, n) in enumerate(zip(first, out, strict=True))}
    return sliced(call, call.x[0], cuts)


def split(call: Call) -> Sequence[str]:
    axis, count = call.axis(), call.attrs["num_outputs"]
    pieces = call.ops("Split", count, call.x[0], axis=axis, num_outputs=count)
    if call.attrs["squeeze_axis"]:
        pieces = [call.op("Squeeze", piece, call.ints(axis)) for piece in pieces]
    return pieces


def cut(call: Call) -> Sequence[str]:
    sizes = call.attrs["sizes"]
    return call.ops("Split", len(sizes), call.x[0], call.ints(*sizes), axis=call.axis())


# -- joins -----------------------------------------------------------------------------------------


def joined(call: Call) -> str:
    return call.op("Concat", *call.x, axis=call.axis("dim"))


def stacked(call: Call) -> str:
    axis = call.attrs["axis"] % (call.rank + 1)
    items = [call.op("Unsqueeze", x, call.ints(axis)) for x in call.x]
    return call.op("Concat", *items, axis=axis)


# -- repetitions -----------------------------------------------------------------------------------


def to_shape(call: Call, x: str, dims: Dims, old: Dims) -> str:
    """Repeat a value along axes of length 1; an axis that keeps its length needs no number."""
    wide = (1,) * (len(dims) - len(old)) + old
    wanted = tuple(1 if d == w else d for d, w in zip(dims, wide, strict=True))
    return call.op("Expand", x, call.shape(wanted))


def broadcast(call: Call) -> str:
    return to_shape(call, call.x[0], call.out_dims(), call.dims())


def broadcast_axes(call: Call) -> str:
    axes = call.attrs["axes"]
    ones = tuple(1 if i in axes else d for i, d in enumerate(call.out_dims()))
    return to_shape(call, call.reshape(call.x[0], ones), call.out_dims(), ones)


def broadcast_like(call: Call) -> str:
    return call.op("Expand", call.x[0], call.op("Shape", call.x[1]))


def tiled(call: Call) -> str:
    rank = len(call.out.shape)
    x = call.x[0]
    if rank > call.rank:
        x = call.op("Unsqueeze", x, call.ints(*range(rank - call.rank)))
    return call.op("Tile", x, call.ints(*padded(call.attrs["reps"], rank)))


def repeated(call: Call) -> str:
    """Tile a new axis behind the repeated one, and merge the two."""
    x, axis = call.x[0], call.attrs["axis"]
    rank = call.rank if axis is not None else 1
    if axis is None:
        x = call.op("Reshape", x, call.ints(-1))
    at = (axis or 0) % rank + 1
    times = [1] * (rank + 1)
    times[at] = call.attrs["repeats"]
    tiles = call.op("Tile", call.op("Unsqueeze", x, call.ints(at)), call.ints(*times))
    return call.reshape(tiles, call.out_dims())


# -- padding ---------------------------------------------------------------------------------------


def pad(call: Call) -> str:
    around = pairs(call.attrs)
    widths = call.ints(*[before for before, _ in around], *[after for _, after in around])
    more = [call.const(call.attrs["constant_value"])] if call.attrs["mode"] == "constant" else []
    return call.op("Pad", call.x[0], widths, *more, mode=call.attrs["mode"])


def pad_axis(call: Call) -> str:
    axis, begin = call.axis(), call.attrs["begin"]
    rest = call.attrs["size"] - begin - call.fixed(call.dims()[axis])
    widths = [0] * (2 * call.rank)
    widths[axis], widths[axis + call.rank] = begin, rest
    return call.op("Pad", call.x[0], call.ints(*widths), call.const(0))


def slice_like(call: Call) -> str:
    axes = like_axes(call.attrs, call.rank)
    return sliced(call, call.x[0], {a: slice(call.fixed(call.dims(1)[a])) for a in axes})


def upsampled(call: Call) -> str:
    if len(call.x) > 1:
        call.refuse("only UpSampling of one input is offered")
    scale = float(call.attrs["scale"])
    scales = call.const([1, 1, scale, scale], "float32")
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    return call.op("Resize", call.x[0], "", scales, **how, nearest_mode="floor")


# -- constants -------------------------------------------------------------------------------------


def filled(value: float | None) -> Converter:
    """Return the converter of an array of one number; None: the parameter `value`."""

    def convert(call: Call) -> str:
        number = call.attrs["value"] if value is None else value
        return call.full(number, call.out_dims(), call.out.dtype)

    return convert


def filled_like(value: float) -> Converter:
    def convert(call: Call) -> str:
        shape = call.op("Shape", call.x[0])
        return call.full_of(value, shape, call.out.dtype)

    return convert


def computed(call: Call) -> str:
    """Write the values of a call without inputs as a constant."""
    (array,) = run(find(call.node.op), Env(), call.attrs, ())
    return call.op("Constant", value=array)


def begin_state(call: Call) -> str:
    rows = call.op("Shape", call.x[0], start=0, end=1)
    shape = call.op("Concat", rows, call.ints(*call.attrs["shape"][1:]), axis=0)
    return call.full_of(0, shape, call.out.dtype)


CONVERTERS: Table = {
    **dict.fromkeys(
        ["identity", "BlockGrad", "_CrossDeviceCopy", "_receive", "_pseudo_connect"], identity
    ),
    "Reshape": reshaped,
    "Flatten": lambda call: call.op("Flatten", call.x[0], axis=1),
    "transpose": transposed,
    "SwapAxis": swapped,
    "expand_dims": expanded,
    "squeeze": without_ones,
    "slice_axis": slice_axis,
    "slice": slice_,
    "reverse": reversed_along,
    "Crop": cropped,
    "SliceChannel": split,
    "_cut": cut,
    "Concat": joined,
    "_join_shares": joined,
    "stack": stacked,
    "broadcast_to": broadcast,
    "broadcast_axis": broadcast,
    "_broadcast_axes": broadcast_axes,
    "broadcast_like": broadcast_like,
    "tile": tiled,
    "repeat": repeated,
    "Pad": pad,
    "_pad_axis": pad_axis,
    "UpSampling": upsampled,
    "slice_like": slice_like,
    "reshape_like": reshaped,
    "depth_to_space": lambda call: call.op(
        "DepthToSpace", call.x[0], blocksize=call.attrs["block_size"], mode="DCR"
    ),
    "space_to_depth": lambda call: call.op(
        "SpaceToDepth", call.x[0], blocksize=call.attrs["block_size"]
    ),
    "_zeros": filled(0),
    "_ones": filled(1),
    "_full": filled(None),
    "_arange": computed,
    "zeros_like": filled_like(0),
    "ones_like": filled_like(1),
    "_begin_state": begin_state,
}
