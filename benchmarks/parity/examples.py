"""Comparison with MXNet: names and shapes of the unchanged definition files of its examples.

    python -m benchmarks.parity.examples --source DIR --mxnet PYTHON

DIR is a checkout of MXNet 1.2.1, the last release with all of these files; PYTHON has MXNet 1.9.1.
The files run unchanged: here, their `import mxnet` imports symgraph. The exit status is 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.parity.record import shapes_by_name

ROOT = Path(__file__).parents[2]
BATCH, STEPS, VOCAB, HIDDEN, EMBED = 2, 5, 20, 8, 6


class Example(NamedTuple):
    """A function of a file under example/, its arguments, and the shapes of its symbol's inputs."""

    file: str
    function: str
    arguments: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]


def image(name: str, size: int = 224, channels: int = 3, **arguments: Any) -> Example:
    """Return an example of example/image-classification."""
    file = f"image-classification/symbols/{name}.py"
    shapes = {"data": (BATCH, channels, size, size)}
    return Example(file, "get_symbol", {"num_classes": 10, **arguments}, shapes)


def states(kinds: str = "ch") -> dict[str, tuple[int, ...]]:
    return {f"l{i}_init_{kind}": (BATCH, HIDDEN) for i in range(2) for kind in kinds}


LARGE, SMALL = {"image_shape": "3,224,224"}, {"image_shape": "3,28,28"}
SIZES = {
    "seq_len": STEPS,
    "input_size": VOCAB,
    "num_hidden": HIDDEN,
    "num_embed": EMBED,
    "num_label": VOCAB,
}
LSTM = {"num_lstm_layer": 2, **SIZES}
SENTENCES = {"data": (BATCH, STEPS), "softmax_label": (BATCH, STEPS)}
WORDS = {f"t{t}_data": (BATCH,) for t in range(STEPS)}
JOINED = {**WORDS, "label": (BATCH * STEPS,), **states()}
PARALLEL = "model-parallel/lstm/lstm.py"
IMAGES = {"data": (1, 3, 224, 224)}

EXAMPLES = {
    "alexnet": image("alexnet"),
    "alexnet float16": image("alexnet", dtype="float16"),
    "googlenet": image("googlenet"),
    "inception-bn": image("inception-bn", **LARGE),
    "inception-bn 28": image("inception-bn", 28, **SMALL),
    "inception-resnet-v2": image("inception-resnet-v2", 299),
    "inception-v3": image("inception-v3", 299),
    "inception-v4": image("inception-v4", 299),
    "lenet": image("lenet", 28, 1),
    "mlp": image("mlp", 28, 1),
    "mobilenet": image("mobilenet"),
    "resnet-v1-50": image("resnet-v1", num_layers=50, **LARGE),
    "resnet-v1-20": image("resnet-v1", 28, num_layers=20, **SMALL),
    "resnet-50": image("resnet", num_layers=50, **LARGE),
    "resnet-18 float16": image("resnet", num_layers=18, dtype="float16", **LARGE),
    "resnext-50": image("resnext", num_layers=50, **LARGE),
    "vgg-16": image("vgg", num_layers=16),
    "vgg-11-bn": image("vgg", num_layers=11, batch_norm=True),
    "rnn/old lstm": Example("rnn/old/lstm.py", "lstm_unroll", LSTM, {**SENTENCES, **states()}),
    "rnn/old lstm step": Example(
        "rnn/old/lstm.py",
        "lstm_inference_symbol",
        {k: v for k, v in LSTM.items() if k != "seq_len"},
        {"data": (BATCH,), **states()},
    ),
    "rnn/old gru": Example(
        "rnn/old/gru.py", "gru_unroll", {"num_gru_layer": 2, **SIZES}, {**SENTENCES, **states("h")}
    ),
    "rnn/old rnn": Example(
        "rnn/old/rnn.py",
        "rnn_unroll",
        {"num_rnn_layer": 2, **SIZES},
        {**{f"data/{t}": (BATCH,) for t in range(STEPS)}, **states("h")},
    ),
    "bi-lstm-sort": Example(
        "bi-lstm-sort/lstm.py", "bi_lstm_unroll", SIZES, {**SENTENCES, **states()}
    ),
    "model-parallel": Example(PARALLEL, "lstm_unroll", {**LSTM, "dropout": 0.1}, JOINED),
    "model-parallel loss": Example(PARALLEL, "lstm_unroll", {**LSTM, "use_loss": True}, JOINED),
    "model-parallel steps": Example(
        PARALLEL,
        "lstm_unroll",
        {**LSTM, "concat_decode": False},
        {**WORDS, **{f"t{t}_label": (BATCH,) for t in range(STEPS)}, **states()},
    ),
    "fcn-xs 32s": Example(
        "fcn-xs/symbol_fcnxs.py",
        "get_fcn32s_symbol",
        {"numclass": 21, "workspace_default": 64},
        IMAGES,
    ),
    "fcn-xs 8s": Example(
        "fcn-xs/symbol_fcnxs.py",
        "get_fcn8s_symbol",
        {"numclass": 21, "workspace_default": 64},
        IMAGES,
    ),
    "ssd vgg-16": Example("ssd/symbol/vgg16_reduced.py", "get_symbol", {"num_classes": 20}, IMAGES),
}


def describe(mx: Any, folder: Path, example: Example) -> dict[str, Any]:
    """Return names and shapes of arguments, outputs and states, or the error."""
    spec = importlib.util.spec_from_file_location("definition", folder / example.file)
    assert spec is not None
    assert spec.loader is not None
    definition = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(definition)
        with mx.name.NameManager():
            symbol = getattr(definition, example.function)(**example.arguments)
        arguments, outputs, aux = symbol.infer_shape(**example.shapes)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "arguments": list(shapes_by_name(symbol.list_arguments(), arguments).items()),
        "outputs": list(shapes_by_name(symbol.list_outputs(), outputs).items()),
        "states": list(shapes_by_name(symbol.list_auxiliary_states(), aux).items()),
    }


def describe_all(mx: Any, source: str) -> dict[str, Any]:
    sys.modules["mxnet"] = mx
    return {n: describe(mx, Path(source) / "example", e) for n, e in EXAMPLES.items()}


def with_mxnet(python: str, source: str) -> dict[str, Any]:
    program = (
        "import json, sys; from benchmarks.parity import examples; "
        "from benchmarks.parity.with_mxnet import mx; "
        "found = examples.describe_all(mx, sys.argv[1]); print(); print(json.dumps(found))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [python, "-c", program, source]
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, metavar="DIR")
    parser.add_argument("--mxnet", required=True, metavar="PYTHON")
    given = parser.parse_args()
    theirs = with_mxnet(given.mxnet, given.source)
    import symgraph

    ours = json.loads(json.dumps(describe_all(symgraph, given.source)))
    wrong = 0
    for name, other in theirs.items():
        equal = ours[name] == other and "error" not in other
        wrong += not equal
        print(
            f"{name:22} {len(other.get('arguments', ())):3} arguments: "
            f"{'equal' if equal else 'DIFFERENT'}"
        )
        for key in () if equal else sorted(ours[name].keys() | other.keys()):
            print(f"    {key}: {ours[name].get(key)} here, {other.get(key)} there")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
