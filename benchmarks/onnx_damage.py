"""Random damage of ONNX files: every damaged copy must be read, or be refused in one line.

    python -m benchmarks.onnx_damage [COPIES]

Changes, removes, repeats and inserts bytes of several models, 10,000 copies by default, and reads
each of them. The exit status is 1 if a copy ends in anything else than a network or an error of
symgraph, takes more than ten seconds of the processor, or 2 GiB of memory.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import symgraph as sg
from symgraph.core.errors import SymgraphError

SECONDS, MEMORY = 10.0, 2 << 30
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _value(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(nodes: Any, inputs: Any, output: str, **weights: Any) -> Any:
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    result = helper.make_empty_tensor_value_info(output)
    graph = helper.make_graph(nodes, "graph", inputs, [result], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def convolution() -> Any:
    """A convolution network."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "v"], ["y"]),
    ]
    weights = {"w": np.ones((4, 3, 3, 3), "float32"), "b": np.ones(4, "float32")}
    weights["v"] = np.ones((64, 5), "float32")
    return _model(nodes, [_value("x", ["N", 3, 8, 8])], "y", **weights)


def recurrent() -> Any:
    """An embedding and an LSTM whose initial states depend on the batch."""
    node = helper.make_node
    nodes = [
        node("Gather", ["e", "ids"], ["x"]),
        node("Shape", ["ids"], ["s"], start=1),
        node("Concat", ["one", "s", "four"], ["hs"], axis=0),
        node("ConstantOfShape", ["hs"], ["h"]),
        node("LSTM", ["x", "w", "r", "b", "", "h", "h"], ["a", "last"], hidden_size=4),
        node("Squeeze", ["last", "zero"], ["q"]),
        node("Softmax", ["q"], ["y"], axis=-1),
    ]
    weights = {"e": np.ones((9, 3), "float32"), "w": np.ones((1, 16, 3), "float32")}
    weights |= {"r": np.ones((1, 16, 4), "float32"), "b": np.ones((1, 32), "float32")}
    shapes = {"one": np.array([1]), "four": np.array([4]), "zero": np.array([0])}
    return _model(nodes, [_value("ids", [5, "N"], INT)], "y", **weights, **shapes)


def control() -> Any:
    """A loop, a branch and a function of ONNX's."""
    node = helper.make_node
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Mul", ["v", "k"], ["w"])],
        "body",
        [_value("i", [], INT), _value("go", [], BOOL), _value("v", ["N", 4])],
        [_value("on", [], BOOL), _value("w", ["N", 4])],
    )
    branches = [
        helper.make_graph([node(op, ["z"], [op])], op, [], [_value(op, None)])
        for op in ("Mish", "HardSwish")
    ]
    nodes = [
        node("Loop", ["three", "yes", "x"], ["z"], body=body),
        node("If", ["yes"], ["q"], then_branch=branches[0], else_branch=branches[1]),
        node("LayerNormalization", ["q", "k", "k"], ["y"]),
    ]
    weights = {"three": np.array(3), "yes": np.array(True), "k": np.ones(4, "float32")}
    return _model(nodes, [_value("x", ["N", 4])], "y", **weights)


MODELS: dict[str, Callable[[], Any]] = {
    "convolution": convolution,
    "recurrent": recurrent,
    "control": control,
}


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a copy with a few bytes changed, removed, repeated or inserted, or cut short."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(len(data)))
        size = int(rng.integers(1, 9))
        match rng.integers(6):
            case 0:
                data[at] = int(rng.integers(256))
            case 1:
                data[at] ^= 1 << int(rng.integers(8))
            case 2:
                del data[at : at + size]
            case 3:
                data[at:at] = data[at : at + size]
            case 4:
                data[at:at] = rng.integers(0, 256, size, dtype="uint8").tobytes()
            case _:
                del data[max(1, len(data) - size) :]
        if not data:
            break
    return bytes(data)


def message_of(content: bytes) -> str | None:
    """Return the error of reading a file; None if it is read."""
    try:
        sg.onnx.import_model(content)
    except SymgraphError as error:
        return str(error)
    return None


def main() -> int:
    copies = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    files = [make().SerializeToString() for make in MODELS.values()]
    kinds: Counter[str] = Counter()
    slowest, failures = 0.0, 0
    for seed in range(copies):
        begin = time.process_time()
        try:
            text = message_of(damaged(files[seed % len(files)], np.random.default_rng(seed)))
        except Exception as error:
            failures += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
            continue
        took = time.process_time() - begin
        slowest = max(slowest, took)
        if took > SECONDS or "\n" in (text or ""):
            failures += 1
            print(f"seed {seed}: {took:.1f} s: {text!r}")
        kinds["read" if text is None else "refused"] += 1
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(
        f"{copies} copies: {dict(kinds)}, {failures} failures, the slowest took {slowest:.1f} s, "
        f"the most memory was {memory >> 20} MiB"
    )
    return int(failures > 0 or memory > MEMORY)


if __name__ == "__main__":
    sys.exit(main())
