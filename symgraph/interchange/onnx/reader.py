"""ONNX files: read with bounded sizes, tensors and attributes decoded, external data found."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from symgraph.core.errors import ConfigError, GraphError
from symgraph.core.reading import read_bytes, reading
from symgraph.core.types import DTYPES, Array, dtype_name
from symgraph.interchange.onnx.package import onnx_package

OLDEST, NEWEST = 7, 28  # versions of ONNX's own operators that are known as a whole
LARGEST_FILE = (1 << 31) - 1  # what protobuf holds
WHAT = "model file of ONNX"
NAMELESS = "ONNX model"
STANDARD = ("", "ai.onnx")


def read_model(file: Any) -> tuple[Any, Path | None, str]:
    """Read a model.

    Args:
        file: A path, the bytes of a file, or a ModelProto.

    Returns:
        (the ModelProto, the folder of its external data, what to call it in errors).

    Raises:
        ConfigError: It cannot be read, or is no ONNX model.
    """
    onnx = onnx_package()
    if isinstance(file, onnx.ModelProto):
        return file, None, NAMELESS
    folder, source, data = None, NAMELESS, file
    if not isinstance(file, bytes):
        source = os.fspath(file)
        folder = Path(source).resolve().parent
        with reading(source, WHAT):
            if os.stat(source).st_size > LARGEST_FILE:
                raise ConfigError("more than 2 GiB: weights of that size go into external data")
        data = read_bytes(source, WHAT)
    model = onnx.ModelProto()
    with reading(source, WHAT):
        try:
            model.ParseFromString(data)
        except Exception as error:
            raise ConfigError(f"not a {WHAT}: {error}") from None
        if not model.graph.output:
            raise ConfigError(f"not a {WHAT}: it has no graph with outputs")
    return model, folder, source


def opsets(model: Any, default: int = 0) -> dict[str, int]:
    """Return the versions of the operators that a model or function uses, by domain.

    Args:
        model: The ModelProto or FunctionProto.
        default: The version of ONNX's own operators if it names none; 0: the newest.

    Raises:
        GraphError: It is a version that is not known.
    """
    versions = {o.domain if o.domain not in STANDARD else "": o.version for o in model.opset_import}
    strange = {d: v for d, v in versions.items() if not 0 <= v < 1 << 31}
    if strange:
        raise GraphError(f"it states impossible versions of operators: {strange}")
    version = versions.setdefault("", default or NEWEST)
    if not 1 <= version <= NEWEST:
        raise GraphError(
            f"it uses opset {version} of ONNX's operators; known: {OLDEST} to {NEWEST} "
            "(onnx.version_converter may convert it)"
        )
    return versions


def element_type(number: int) -> str:
    """Return the name of one of ONNX's element types, such as float32 or string."""
    onnx = onnx_package()
    try:
        name = str(onnx.TensorProto.DataType.Name(number)).lower()
    except ValueError:
        return f"type number {number}"
    return {"float": "float32", "double": "float64"}.get(name, name)


def dtype_of(number: int, what: str) -> str:
    """Return symgraph's dtype of an element type; GraphError if it has none."""
    name = element_type(number)
    try:
        return dtype_name(name)
    except KeyError:
        raise GraphError(
            f"{what} holds {name}; symgraph has {', '.join(DTYPES)} and bfloat16"
        ) from None


def tensor_array(tensor: Any, folder: Path | None) -> Array:
    """Return the elements of a TensorProto.

    Raises GraphError for sizes that contradict one another, and for strings.
    """
    onnx = onnx_package()
    name, dims = tensor.name or "a tensor", tuple(tensor.dims)
    if any(d < 0 for d in dims):
        raise GraphError(f"{name!r} has the shape {dims}")
    kind = element_type(tensor.data_type)
    if kind in ("string", "undefined") or kind.startswith("type "):
        raise GraphError(f"{name!r} holds elements of {kind}")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        return _external(tensor, folder, dtype, dims)
    try:
        array: Array = onnx.numpy_helper.to_array(tensor)
    except Exception as error:
        raise GraphError(f"{name!r} of shape {dims} and {kind}: {error}") from None
    if array.shape != dims:
        raise GraphError(f"{name!r} has {array.size} elements for the shape {dims}")
    return array


def _external(tensor: Any, folder: Path | None, dtype: np.dtype[Any], dims: Any) -> Array:
    """Read elements from a file within the model's folder."""
    where = {entry.key: entry.value for entry in tensor.external_data}
    location, name = where.get("location", ""), tensor.name
    if folder is None:
        raise GraphError(f"{name!r} is in the file {location!r}: read the model from its path")
    path = (folder / location).resolve()
    if not location or not path.is_relative_to(folder) or Path(location).is_absolute():
        raise GraphError(f"{name!r} is in {location!r}, outside the model's folder: not read")
    with reading(path, "file of tensors", GraphError):
        if not path.is_file():
            raise ConfigError("no such file of tensors")
        offset = int(where.get("offset", 0))
        count = math.prod(dims)
        needed, size = count * dtype.itemsize, path.stat().st_size
        length = int(where.get("length", needed))
        if offset < 0 or length != needed or offset + needed > size:
            raise ConfigError(
                f"{name!r} of {dtype}{list(dims)} takes {needed} bytes, but the file has "
                f"{max(0, min(length, size - offset))} for it"
            )
        return np.fromfile(path, dtype, count, offset=offset).reshape(dims)


def attributes(proto: Any, folder: Path | None) -> dict[str, Any]:
    """Return the attributes of a node as numbers, strings, lists, arrays and GraphProtos.

    Args:
        proto: The NodeProto.
        folder: Where external data lies.
    """
    onnx = onnx_package()
    kinds = onnx.AttributeProto
    found: dict[str, Any] = {}
    for attribute in proto.attribute:
        if attribute.ref_attr_name:
            continue
        kind = attribute.type
        if kind == kinds.TENSOR:
            found[attribute.name] = tensor_array(attribute.t, folder)
        elif kind == kinds.GRAPH:
            found[attribute.name] = attribute.g
        elif kind == kinds.STRING:
            found[attribute.name] = attribute.s.decode("utf-8", "replace")
        elif kind == kinds.STRINGS:
            found[attribute.name] = [s.decode("utf-8", "replace") for s in attribute.strings]
        elif kind in (kinds.FLOAT, kinds.INT):
            found[attribute.name] = attribute.f if kind == kinds.FLOAT else attribute.i
        elif kind in (kinds.FLOATS, kinds.INTS):
            found[attribute.name] = list(
                attribute.floats if kind == kinds.FLOATS else attribute.ints
            )
        else:
            raise GraphError(
                f"its attribute {attribute.name!r} is of a kind that no operator here takes"
            )
    return found
