"""The gradient check: PyTorch's gradients compared with those in a file, for the same weights.

    PYTHON -m benchmarks.peers.torch_gradients CONFIG FILE.npz

Prints one JSON line: the relative errors of the loss and of each parameter's gradient (the largest
difference divided by the largest element).
"""

from __future__ import annotations

import re
import sys

import numpy as np
import torch
from torch import nn

from benchmarks.peers.protocol import CONFIGS, answer
from benchmarks.peers.torch_networks import model_of

#: Of seq2seq, the prefix of each of PyTorch's layers in examples.seq2seq_attention.
GRUS = {"encoder": "ahead", "encoder reverse": "back", "decoder": "write"}


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the module's parameters under the names of the model in examples/."""
    return {of_example(name): parameter for name, parameter in model.named_parameters()}


def of_example(name: str) -> str:
    """Return the name in examples/ of a parameter of `torch_networks`."""
    *path, kind = name.replace("layers.", "layer").split(".")
    if not path:
        return f"{kind}_weight"
    gates = re.fullmatch(r"(weight|bias)_([ih])h_l(\d+)(_reverse)?", kind)
    if gates:
        kind, of, layer, back = gates.groups()
        prefix = GRUS.get(path[0] + (back or "").replace("_", " "), f"layer{layer}")
        return f"{prefix}_{of}2h_{kind}"
    if path[-1].endswith("norm"):
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    return "_".join([*path, kind])


def main() -> None:
    with np.load(sys.argv[2]) as file:
        given = dict(file)
    model = model_of(CONFIGS[sys.argv[1]])
    parameters = parameters_of(model)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(given[f"weight {name}"]))
    fed = {n.removeprefix("fed "): v for n, v in given.items() if n.startswith("fed ")}
    loss = model(**{name: torch.from_numpy(ids) for name, ids in fed.items()})
    loss.backward()
    errors = {"loss": abs(float(given["loss"]) / loss.item() - 1)}
    for name, parameter in parameters.items():
        wanted = parameter.grad.numpy()
        difference = np.abs(given[f"gradient {name}"] - wanted).max()
        errors[name] = float(difference / np.abs(wanted).max())
    answer({"errors": errors, "loss": loss.item()})


if __name__ == "__main__":
    main()
