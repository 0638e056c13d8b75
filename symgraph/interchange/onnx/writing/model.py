"""ONNX models: `export_model`, and files with the weights inside or beside them.

A model computes what the network computes in evaluation: a loss is written as its output
(SoftmaxOutput as Softmax), and a label that nothing else reads is no input.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from symgraph.core.types import Array
from symgraph.core.writing import writing
from symgraph.frontend.params_file import load_params
from symgraph.frontend.sym import load
from symgraph.frontend.symbol import Symbol
from symgraph.interchange.onnx.package import onnx_package
from symgraph.interchange.onnx.writing.graph import onnx_graph
from symgraph.interchange.onnx.writing.inputs import Inputs, inputs_of
from symgraph.interchange.onnx.writing.lengths import lengths_of
from symgraph.interchange.onnx.writing.nodes import NUMBERS, OnnxGraph, OnnxNode, OnnxValue

OPSET, IR_VERSION = 20, 9  # of onnx 1.15 and ONNX Runtime 1.17
LARGEST = 2**31 - 2**26  # bytes of weights in a file: protobuf's limit, with room for the graph
IN_FILE = 1024  # smaller weights stay in the file: values that shapes are made of, mostly
ALIGNED = 4096  # weights beside the file begin at such bytes, so that they can be memory-mapped


def export_model(
    sym: Symbol | str,
    params: Any,
    in_shapes: Any = None,
    in_types: Any = None,
    onnx_file_path: str = "model.onnx",
    verbose: bool = False,
    dynamic: bool = False,
    dynamic_input_shapes: Any = None,
    run_shape_inference: bool = False,
    input_type: Any = None,
    input_shape: Any = None,
    large_model: bool = False,
) -> str:
    """Write what a network computes in evaluation as an ONNX model (`mx.onnx.export_model`).

    Args:
        sym: The network, or its JSON file.
        params: Parameters and states by name, two such tables, or a `.params` file. Variables that
            are not there are the model's inputs, except labels that only losses read.
        in_shapes: Shapes of the inputs, by name or in order, with or without labels; None, 0 or a
            name leaves a length open. By default those that the variables have.
        in_types: Their dtypes likewise, or one for all; by default those that follow, or float32.
        onnx_file_path: The file to write.
        verbose: Whether to log each node.
        dynamic: Whether to leave the batch open: N of each variable's `__layout__`, or axis 0.
        dynamic_input_shapes: With `dynamic`, shapes with None or a name where it is left open.
        run_shape_inference: Whether to state the types of values inside the model.
        input_type: The older name of in_types.
        input_shape: The older name of in_shapes.
        large_model: Whether weights go to `<onnx_file_path>.data`, as over 2 GB always do.

    Returns:
        onnx_file_path.

    Raises:
        GraphError: Shapes that do not fit; all nodes that ONNX cannot express.
        ConfigError: A file cannot be read or written, or the package onnx is missing.
    """
    network, arrays = load(sym) if isinstance(sym, str) else sym, parameters_of(params)
    shapes = input_shape if in_shapes is None else in_shapes
    types = input_type if in_types is None else in_types
    opened = (dynamic_input_shapes or ()) if dynamic else None
    graph = network_graph(network, arrays, inputs_of(network, arrays, shapes, types, opened))
    if verbose:
        for node in graph.nodes:
            logging.info("%s %s -> %s", node.op, ", ".join(node.inputs), ", ".join(node.outputs))
    inside = graph.values if run_shape_inference else ()
    write_model(graph, onnx_file_path, types=inside, beside=large_model)
    return onnx_file_path


def network_graph(network: Symbol, arrays: Mapping[str, Array], inputs: Inputs) -> OnnxGraph:
    """Return the ONNX graph of a network."""
    held = {n: arrays[n] for n in network.list_inputs() if n in arrays}
    shapes = {**{n: a.shape for n, a in held.items()}, **inputs.shapes}
    dtypes = {**{n: str(a.dtype) for n, a in held.items()}, **inputs.dtypes}
    return onnx_graph(network, lengths_of(network, shapes, inputs.sizes, dtypes), held)


def parameters_of(params: Any) -> dict[str, Array]:
    """Return parameters and auxiliary states by name, from any form that MXNet takes."""
    if isinstance(params, (str, os.PathLike)):
        params = load_params(os.fspath(params))
    tables = [params] if isinstance(params, Mapping) else [*params]
    found: dict[str, Array] = {}
    for table in tables:
        for name, value in table.items():
            kind, colon, rest = name.partition(":")
            array = value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)
            found[rest if colon and kind in ("arg", "aux") else name] = array
    return found


# -- protobuf messages -----------------------------------------------------------------------------


def model_message(graph: OnnxGraph, types: Iterable[OnnxValue] = ()) -> Any:
    """Return a graph as a ModelProto that has no weights yet."""
    helper = onnx_package().helper
    message = helper.make_graph(
        [_node(node) for node in graph.nodes],
        "network",
        [_value(value) for value in graph.inputs],
        [_value(value) for value in graph.outputs],
        value_info=[_value(value) for value in types],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(
        message, producer_name="symgraph", opset_imports=opsets, ir_version=IR_VERSION
    )


def _node(node: OnnxNode) -> Any:
    onnx = onnx_package()
    tensor = onnx.numpy_helper.from_array
    attrs = {k: tensor(v) if isinstance(v, np.ndarray) else v for k, v in node.attrs.items()}
    return onnx.helper.make_node(node.op, node.inputs, node.outputs, node.name, **attrs)


def _value(value: OnnxValue) -> Any:
    make = onnx_package().helper.make_tensor_value_info
    return make(value.name, NUMBERS[value.dtype], value.shape)


# -- files -----------------------------------------------------------------------------------------


def write_model(
    graph: OnnxGraph,
    path: str,
    *,
    types: Iterable[OnnxValue] = (),
    beside: bool = False,
    finish: Any = None,
) -> None:
    """Write a graph with its weights to a file, which appears when it is complete.

    Args:
        graph: The graph.
        path: The file.
        types: Values inside the graph whose types are stated.
        beside: Whether weights go to a second file; they do if they are too large for one.
        finish: A function that adds to the ModelProto.

    Raises:
        ConfigError: The file cannot be written.
    """
    model = model_message(graph, types)
    if finish is not None:
        finish(model)
    beside = beside or sum(a.nbytes for a in graph.initializers.values()) > LARGEST
    partial, data = Path(f"{path}.partial"), Path(f"{path}.data")
    with writing(path):
        if beside:
            _write_beside(model, graph.initializers, data)
        else:
            tensors = onnx_package().numpy_helper.from_array
            named = graph.initializers.items()
            model.graph.initializer.extend([tensors(array, name) for name, array in named])
        partial.write_bytes(model.SerializeToString())
        os.replace(partial, path)


def _write_beside(model: Any, arrays: Mapping[str, Array], path: Path) -> None:
    """Write weights to a file of their own, and to the model where they are in it."""
    onnx = onnx_package()
    partial = Path(f"{path}.partial")
    with partial.open("wb") as file:
        for name, array in arrays.items():
            if array.nbytes < IN_FILE:
                model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
                continue
            tensor = model.graph.initializer.add()
            tensor.name, tensor.data_type = name, NUMBERS[str(array.dtype)]
            tensor.dims.extend(array.shape)
            file.seek(-(-file.tell() // ALIGNED) * ALIGNED)
            place = {"location": path.name, "offset": file.tell(), "length": array.nbytes}
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(np.ascontiguousarray(array).tobytes())
    os.replace(partial, path)
