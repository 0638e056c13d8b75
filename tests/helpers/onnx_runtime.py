"""Exported models beside the reference: ONNX Runtime computes the same network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symgraph as sg
from benchmarks.parity.onnx_export import difference
from symgraph.core.reference import evaluate
from symgraph.core.types import Array
from symgraph.frontend.lower import lower
from symgraph.frontend.symbol import Symbol

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

Arrays = Mapping[str, Array]
CLOSE = 1e-5  # of a value, or of 1 if it is smaller


def drawn(net: Symbol, inputs: Arrays, seed: int = 0) -> dict[str, Array]:
    """Values for a network's parameters and states, in their own dtypes."""
    rng = np.random.default_rng(seed)
    graph = lower(net, {n: a.shape for n, a in inputs.items()}, dtypes(inputs))
    found = {}
    for node in graph.variables:
        if node.name not in inputs:
            shape, dtype = node.types[0]
            low = 0.5 if node.name.endswith("var") else -0.5
            found[node.name] = rng.uniform(low, low + 1, shape).astype(dtype)
    return found


def dtypes(inputs: Arrays) -> dict[str, str]:
    return {name: str(array.dtype) for name, array in inputs.items()}


def reference(net: Symbol, values: Arrays) -> list[Array]:
    """What the network computes in evaluation."""
    shapes = {name: array.shape for name, array in values.items()}
    graph = lower(net, shapes, dtypes(values))
    return evaluate(graph, {n.name: values[n.name] for n in graph.variables})


def run_model(path: str | Path, inputs: Arrays) -> list[Array]:
    """What ONNX Runtime computes, from those of the arrays that the model reads."""
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    return session.run(None, {n: a for n, a in inputs.items() if n in names})


def assert_equal(got: Sequence[Array], wanted: Sequence[Array]) -> None:
    assert difference(got, wanted) < CLOSE


def checked_model(path: str | Path) -> Any:
    """A model that ONNX's checker passes, with all types inferred; no two nodes share a name."""
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path))
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    return model


def check_export(
    net: Symbol, inputs: Arrays, path: Path, params: Arrays | None = None, **options: Any
) -> Any:
    """Export a network, check the model and its results; return the model.

    With `dynamic`, results are compared for twice as many samples too.
    """
    params = drawn(net, inputs) if params is None else params
    shapes = {name: array.shape for name, array in inputs.items()}
    file = str(path / "model.onnx")
    assert sg.onnx.export_model(net, params, shapes, dtypes(inputs), file, **options) == file
    model = checked_model(file)
    assert_equal(run_model(file, inputs), reference(net, {**inputs, **params}))
    if options.get("dynamic"):
        twice = {name: np.concatenate([a, a]) for name, a in inputs.items()}
        assert_equal(run_model(file, twice), reference(net, {**twice, **params}))
    return model
