"""Symbol files written by MXNet 1.9.1, and the shapes it infers, for the tests of loading.

    PYTHON -m benchmarks.parity.write_symbols FOLDER

The networks are those of MXNet's model zoo, and Inception-BN and the recurrent ones of networks.py.
Run it with the Python that has MXNet.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.parity.networks import NETWORKS
from benchmarks.parity.record import shapes_by_name
from benchmarks.parity.with_mxnet import mx

ZOO = ("vgg11_bn", "resnet18_v1", "resnet18_v2")
IMAGES = {"data": (2, 3, 224, 224)}


def from_zoo(name: str) -> Any:
    net = getattr(mx.gluon.model_zoo.vision, name)()
    return mx.sym.SoftmaxOutput(net(mx.sym.Variable("data")), name="softmax")


def write(folder: Path, name: str, symbol: Any, shapes: Mapping[str, Any]) -> None:
    arguments, outputs, states = symbol.infer_shape(**shapes)
    inferred = {
        "arguments": shapes_by_name(symbol.list_arguments(), arguments),
        "outputs": shapes_by_name(symbol.list_outputs(), outputs),
        "states": shapes_by_name(symbol.list_auxiliary_states(), states),
    }
    files = {f"{name}-symbol.json": json.loads(symbol.tojson()), f"{name}-inferred.json": inferred}
    for file, content in files.items():
        text = json.dumps(content, separators=(",", ":")).replace("},{", "},\n{")
        (folder / file).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    for zoo_name in ZOO:
        write(target, zoo_name, from_zoo(zoo_name), IMAGES)
    for own_name in ("inception_bn", "stacked_lstm", "gru"):
        network = NETWORKS[own_name]
        with mx.name.NameManager():
            write(target, own_name, network.build(mx), network.shapes)
