"""Small ONNX models for tests, made of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def value(name: str, shape: Any, kind: int = FLOAT) -> Any:
    """An input or output: integers are lengths, strings and None leave a dimension open."""
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: Any, inputs: Any, outputs: Any, opset: int = 17, **weights: Any) -> Any:
    """A model; inputs are name -> shape, outputs are names, weights are arrays."""
    given = [value(name, shape) for name, shape in inputs.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "graph", given, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
