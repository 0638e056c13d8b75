"""The inputs of an ONNX graph: their types, and where the batch lies in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from symgraph.core.errors import GraphError, nearest
from symgraph.core.types import Array, TensorType, is_float
from symgraph.interchange.onnx.reader import dtype_of
from symgraph.interchange.values import BATCHES

BATCH_NAMES = ("n", "b", "batch", "batch_size", "batchsize", "bs")
LAYOUTS = ("N", "NC", "NCW", "NCHW", "NCDHW")
Dim = int | str | None  # a length, a name, or open
NOTHING = -1  # a length of 0: such an input has no elements


class Input(NamedTuple):
    """An input of the network."""

    name: str
    #: Its type at both sizes of the batch.
    types: tuple[TensorType, TensorType]
    #: The axis where the batch lies; None if it has none.
    axis: int | None

    @property
    def layout(self) -> str | None:
        """The letters of its axes, N for the batch, as `mx.io.DataDesc` has them."""
        rank = len(self.types[0].shape)
        if self.axis is None:
            return None
        if self.axis == 0 and rank <= len(LAYOUTS):
            return LAYOUTS[rank - 1]
        letters = list("TCDHWXYZUV"[: rank - 1])
        return "".join([*letters[: self.axis], "N", *letters[self.axis :]])


def dims_of(info: Any) -> list[Dim]:
    """Return the dimensions of a ValueInfoProto; GraphError if it is no tensor with a rank."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        raise GraphError(f"input {info.name!r} is a {kind or 'value of no type'}, not a tensor")
    if not info.type.tensor_type.HasField("shape"):
        raise GraphError(
            f"input {info.name!r} has no shape in the file: give it by "
            f"shapes={{{info.name!r}: (...)}}"
        )
    found: list[Dim] = []
    for dim in info.type.tensor_type.shape.dim:
        stated = dim.WhichOneof("value") == "dim_value"
        length = dim.dim_value if dim.dim_value > 0 else None
        found.append(NOTHING if stated and not dim.dim_value else length or dim.dim_param or None)
    return found


def constant_of(info: Any, given: Any) -> Array:
    """Return a value given for an input in the input's dtype; GraphError if that changes it."""
    dtype = dtype_of(info.type.tensor_type.elem_type, f"input {info.name!r}")
    array = np.asarray(given)
    made = array.astype(dtype)
    if not is_float(str(made.dtype)) and not np.array_equal(made, array):
        raise GraphError(f"constants: {info.name!r} is of {made.dtype}, but {given!r} is given")
    return made


def without_elements(info: Any) -> Array | None:
    """Return the value of an input that has an axis of length 0; None for any other input."""
    if info.type.WhichOneof("value") != "tensor_type":
        return None
    dims = dims_of(info) if info.type.tensor_type.HasField("shape") else []
    lengths = [dim for dim in dims if isinstance(dim, int)]
    if NOTHING not in lengths or len(lengths) < len(dims):
        return None
    dtype = dtype_of(info.type.tensor_type.elem_type, f"input {info.name!r}")
    return np.zeros([max(n, 0) for n in lengths], dtype)


def read_inputs(
    infos: Sequence[Any], shapes: Mapping[str, Sequence[int]], batch_axis: int | None
) -> tuple[list[Input], int]:
    """Return the inputs of a graph, and the batch size that the file fixes (0: it does not).

    Args:
        infos: The ValueInfoProtos of the inputs.
        shapes: Shapes by name in place of the file's, 0 (or None or -1) for the batch.
        batch_axis: The axis of all inputs where the batch lies, if the file does not tell.

    Raises:
        GraphError: Types or dimensions that cannot be used; the message says how to give them.
    """
    known = [info.name for info in infos]
    for name in shapes:
        if name not in known:
            raise GraphError(f"shapes: no input {name!r}; {nearest(name, known)}")
    dims: dict[str, list[Dim]] = {}
    lengths: dict[str, int] = {}
    batch: set[str] = set()
    for info in infos:
        given = shapes.get(info.name)
        if given is None:
            dims[info.name] = dims_of(info)
            continue
        dims[info.name] = [d if isinstance(d, str) or not d or d > 0 else 0 for d in given]
        if info.type.tensor_type.HasField("shape"):
            for old, new in zip(dims_of(info), given, strict=False):
                if isinstance(old, str):
                    batch |= {old} if not new else set()
                    lengths.setdefault(old, new)
    fixed = 0
    if batch_axis is not None:
        fixed = _free(dims, batch_axis)
    names = [
        d for row in dims.values() for d in row if isinstance(d, str) and not lengths.get(d, 0)
    ]
    batch |= set(_batch_names(dims, dict.fromkeys(names))) if not batch else set()
    inputs = [_input(info, dims[info.name], lengths, batch) for info in infos]
    return inputs, fixed


def _free(dims: dict[str, list[Dim]], axis: int) -> int:
    """Open an axis of all inputs; return its length in the file."""
    found = {row[axis] for row in dims.values() if len(row) > axis}
    if not found:
        raise GraphError(f"batch_axis={axis}: no input has that axis")
    if len(found) != 1:
        raise GraphError(f"batch_axis={axis}: the inputs have the lengths {found} there")
    for row in dims.values():
        if len(row) > axis:
            row[axis] = 0
    (length,) = found
    return length if isinstance(length, int) else 0


def _batch_names(dims: Mapping[str, list[Dim]], names: Mapping[str, None]) -> list[str]:
    """Return the name of the batch among the names of open dimensions."""
    if len(names) <= 1:
        return list(names)
    called = [name for name in names if name.lower() in BATCH_NAMES]
    if called:
        return called[:1]
    first = [row[0] for row in dims.values() if row and row[0] in names]
    return [str(first[0])] if first else []


def _input(info: Any, row: Sequence[Dim], lengths: Mapping[str, int], batch: set[str]) -> Input:
    name = info.name
    sizes: list[tuple[int, int]] = []
    axes, unknown = [], []
    if NOTHING in row:
        raise GraphError(f"input {name!r} has an axis of length 0: no elements")
    for axis, dim in enumerate(row):
        length = lengths.get(dim, 0) if isinstance(dim, str) else dim
        if length:
            sizes.append((length, length))
        elif dim == 0 or (isinstance(dim, str) and dim in batch) or (dim is None and axis == 0):
            axes.append(axis)
            sizes.append(BATCHES)
        else:
            unknown.append(repr(dim) if dim else f"axis {axis}")
    if unknown or len(axes) > 1:
        what = ", ".join(unknown) or f"axes {axes}"
        shown = tuple(d or 0 for d in row)
        raise GraphError(
            f"input {name!r} of shape {shown} leaves {what} open, but only the batch may be: give "
            f"the shape with 0 for the batch by shapes={{{name!r}: (...)}}"
        )
    dtype = dtype_of(info.type.tensor_type.elem_type, f"input {name!r}")
    types = [TensorType(tuple(s[i] for s in sizes), dtype) for i in range(2)]
    return Input(name, (types[0], types[1]), axes[0] if axes else None)
