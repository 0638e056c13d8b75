"""Comparison with ONNX Runtime: the network of every example, exported to ONNX, and read back.

    python -m benchmarks.parity.onnx_export [--small] [--keep DIR] [NAME ...]

Weights are random. A difference is relative to values above 1; the exit status is 1 if one is
1e-5 or more. --small: networks of a few units. --keep: the folder that the models stay in.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime

import symgraph as sg
from examples import (
    dual_parallel,
    lstm_lm,
    mlp,
    mlp_chain_list,
    mlp_model_parallel,
    table,
    tagger,
    transformer_lm,
    vgg,
)
from examples.seq2seq import network as seq2seq
from examples.seq2seq_attention import network as attention
from examples.seq2seq_attention.numerals import VOCABULARY
from examples.vgg_channel_parallel import VGG
from symgraph import Model, Symbol
from symgraph.core.reference import evaluate
from symgraph.core.types import Array
from symgraph.frontend.lower import lower

CLOSE = 1e-5


class Example(NamedTuple):
    """A network, its inputs, and the axis along which each has its samples."""

    symbol: Symbol
    inputs: Mapping[str, Array]
    axes: Mapping[str, int] = {}


def ids(rng: np.random.Generator, shape: tuple[int, ...], count: int, least: int = 0) -> Array:
    return rng.integers(least, count, shape, "int32")


def perceptron(network: Callable[[], Symbol]) -> Callable[[bool], Example]:
    def build(small: bool) -> Example:
        rng = np.random.default_rng(0)
        data = rng.standard_normal((8, 784), "float32")
        return Example(network(), {"data": data, "label": ids(rng, (8,), 10)})

    return build


def of_model(
    build: Callable[..., Model], count: int, small: Mapping[str, int], **sizes: int
) -> Callable[[bool], Example]:
    """Return an example of a config's model; inputs of integers are drawn from 1 to count - 1."""

    def example(is_small: bool) -> Example:
        model, rng = build(**(sizes | small if is_small else sizes)), np.random.default_rng(0)
        inputs = {}
        for name, (type_, _) in model.feeds.items():
            whole = "int" in type_.dtype or name == "label"
            drawn = ids(rng, type_.shape, count, 1) if whole else rng.standard_normal(type_.shape)
            inputs[name] = drawn.astype(type_.dtype)
        return Example(model.symbol, inputs, {n: f.axis for n, f in model.feeds.items()})

    return example


def channels(convolution: str) -> Callable[[bool], Example]:
    def build(small: bool) -> Example:
        network = VGG(2, convolution, first=4 if small else 64).network()
        rng = np.random.default_rng(0)
        data = rng.standard_normal((2, 3, 32, 32), "float32")
        return Example(network, {"data": data, "label": ids(rng, (2,), 10)})

    return build


def translation(small: bool) -> Example:
    sizes = seq2seq.Sizes(30, 40, *((8, 2) if small else (256, 2)))
    rng = np.random.default_rng(0)
    symbol, _, _ = seq2seq.training((6, 7), sizes)
    words = {"source": ids(rng, (6, 3), 30), "target": ids(rng, (7, 3), 40)}
    axes = {"source": 1, "target": 1, "label": 1}
    return Example(symbol, words | {"label": ids(rng, (7, 3), 40)}, axes)


def greedy(small: bool) -> Example:
    sizes = seq2seq.Sizes(30, 40, *((8, 2) if small else (256, 2)))
    rng = np.random.default_rng(0)
    symbol, _, _ = seq2seq.greedy((6, 7), sizes)
    return Example(
        symbol, {"source": ids(rng, (6, 3), 30), "begin": ids(rng, (3,), 40)}, {"source": 1}
    )


def numerals(small: bool) -> Example:
    rng = np.random.default_rng(0)
    symbol, _, _ = attention.network((6, 7), 8 if small else 128)
    shapes = {"source": (3, 6), "target": (3, 7), "label": (3, 7)}
    inputs = {name: ids(rng, shape, len(VOCABULARY)) for name, shape in shapes.items()}
    return Example(symbol, inputs | {"source_length": ids(rng, (3,), 7, 1)})


WORDS = {"batch_size": 4, "sequence_length": 5}
LITTLE = {"hidden": 8, "embed": 8, "layers": 2, "vocab": 50}
EXAMPLES: Mapping[str, Callable[[bool], Example]] = {
    "mlp": perceptron(mlp.network),
    "mlp_model_parallel": perceptron(mlp_model_parallel.network),
    "mlp_chain_list": perceptron(mlp_chain_list.network),
    "dual_parallel": perceptron(dual_parallel.network),
    "table": of_model(table.build, 2, {"hidden": 8}, batch_size=4),
    "vgg": of_model(vgg.build, 10, {"filters": 2}, batch_size=2),
    "tagger": of_model(tagger.build, 7, {"length": 7, "hidden": 8}, batch_size=3),
    "lstm_lm": of_model(lstm_lm.build, 50, LITTLE, **WORDS),
    "transformer_lm": of_model(
        transformer_lm.build, 50, {"hidden": 8, "layers": 2, "vocab": 50}, **WORDS
    ),
    "vgg_channel_parallel": channels("parallel"),
    "vgg_channel_parallel sharded": channels("sharded"),
    "seq2seq": translation,
    "seq2seq greedy": greedy,
    "seq2seq_attention": numerals,
}


class Compared(NamedTuple):
    """The result of an example."""

    nodes: int
    #: The largest difference from the reference of what ONNX Runtime computes.
    difference: float
    #: The same for twice as many samples, which the one model computes too.
    twice: float
    #: The largest difference of the network that is read back from the file.
    back: float


def weights(example: Example) -> dict[str, Array]:
    """Return random weights, of which each output's variance is about that of the inputs."""
    rng = np.random.default_rng(1)
    dtypes = {name: str(array.dtype) for name, array in example.inputs.items()}
    shapes = {name: array.shape for name, array in example.inputs.items()}
    found = {}
    for node in lower(example.symbol, shapes, dtypes).variables:
        if node.name not in example.inputs:
            shape, dtype = node.types[0]
            scale = np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 10
            array = rng.standard_normal(shape) / scale + node.name.endswith(("gamma", "var"))
            found[node.name] = array.astype(dtype)
    return found


def compare(example: Example, path: str) -> Compared:
    """Export a network with the batch left open, run the model, and compare with the reference."""
    inputs, params = example.inputs, weights(example)
    axis_of = {name: example.axes.get(name, 0) for name in inputs}
    shapes = {
        name: (*a.shape[: axis_of[name]], "batch", *a.shape[axis_of[name] + 1 :])
        for name, a in inputs.items()
    }
    dtypes = {name: str(array.dtype) for name, array in inputs.items()}
    sg.onnx.export_model(example.symbol, params, shapes, dtypes, path)
    onnx.checker.check_model(path, full_check=True)
    double = {n: np.concatenate([a, a], axis_of[n]) for n, a in inputs.items()}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    apart = []
    for fed in (inputs, double):
        found = session.run(None, {n: a for n, a in fed.items() if n in names})
        apart.append(difference(found, computed(example.symbol, {**fed, **params})))
    again, args, states = sg.onnx.import_model(path)
    read = computed(again, {**inputs, **args, **states})
    nodes = len(onnx.load(path, load_external_data=False).graph.node)
    back = difference(read, computed(example.symbol, {**inputs, **params}))
    return Compared(nodes, *apart, back)


def computed(symbol: Symbol, values: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of a network, as the reference computes them."""
    known = {name: values[name] for name in symbol.list_inputs()}
    shapes = {name: array.shape for name, array in known.items()}
    graph = lower(symbol, shapes, {name: str(array.dtype) for name, array in known.items()})
    return evaluate(graph, {n.name: known[n.name] for n in graph.variables})


def difference(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """Return the largest difference of all outputs."""
    worst = 0.0
    for got, right in zip(found, wanted, strict=True):
        assert (got.shape, got.dtype) == (right.shape, right.dtype)
        wide = right.astype("float64")
        assert np.isfinite(wide).all()
        apart = np.abs(got.astype("float64") - wide) / np.maximum(1, np.abs(wide))
        worst = max(worst, float(apart.max(initial=0.0)))
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parity.onnx_export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXAMPLES))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in EXAMPLES]
    if unknown:
        parser.error(f"no example {unknown[0]!r}; known: {', '.join(EXAMPLES)}")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        home = given.keep or Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        columns = ("nodes", "difference", "twice the batch", "read back")
        print(f"{'example':30}", *columns)
        for name in given.names or EXAMPLES:
            found = compare(
                EXAMPLES[name](given.small), str(home / f"{name.replace(' ', '_')}.onnx")
            )
            figures = zip(columns, found, strict=True)
            print(
                f"{name:30}", *(f"{n:{len(c)}{'' if c == 'nodes' else '.1e'}}" for c, n in figures)
            )
            worst = max(worst, *found[1:])
    print(f"largest difference {worst:.1e}")
    return int(worst >= CLOSE)


if __name__ == "__main__":
    sys.exit(main())
