"""The reference interpreter: one device, one node after another. It judges every executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from symgraph.core.errors import GraphError
from symgraph.core.graph import Graph
from symgraph.core.registry import Env, find, run
from symgraph.core.types import Array, TensorType, Value

PLAIN = Env()


def evaluate(graph: Graph, feeds: Mapping[str, Any], env: Env = PLAIN) -> list[Array]:
    """Compute the outputs of a graph.

    Args:
        graph: The graph.
        feeds: Variable name -> array of exactly the variable's type.
        env: The environment of all computations.

    Raises:
        GraphError: A variable has no value, or one of another type.
    """
    values: dict[Value, Array] = {}
    for node in graph:
        if node.is_variable:
            results: tuple[Array, ...] = (_fed(node.name, node.types[0], feeds),)
        else:
            arrays = [values[v] for v in node.inputs]
            results = run(find(node.op), env, node.attrs, arrays)
        for index, (array, type_) in enumerate(zip(results, node.types, strict=True)):
            got = TensorType(tuple(array.shape), str(array.dtype))
            assert got == type_, f"{node.op} {node.name!r} computed {got}, not {type_}"
            values[Value(node.name, index)] = array
    return [values[v] for v in graph.outputs]


def _fed(name: str, type_: TensorType, feeds: Mapping[str, Any]) -> Array:
    if name not in feeds:
        raise GraphError(f"no value is given for variable {name!r} of {type_}")
    array = np.asarray(feeds[name])
    if (array.shape, str(array.dtype)) != type_:
        raise GraphError(f"variable {name!r} of {type_} is given {array.dtype}{list(array.shape)}")
    return array
