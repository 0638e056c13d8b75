"""The gradient check: PyTorch's gradients compared with those in a file, for the same weights.

    PYTHON -m benchmarks.peers.torch_gradients CONFIG FILE.npz

Prints one JSON line: the relative errors of the loss and of each parameter's gradient (the largest
difference divided by the largest element).
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import nn

from benchmarks.peers.protocol import CONFIGS, answer
from benchmarks.peers.torch_lstm import FusedModel


def parameters_of(model: FusedModel, layers: int) -> dict[str, nn.Parameter]:
    """Return the module's parameters under the names of examples.lstm_lm."""
    found = {
        "embed_weight": model.embed.weight,
        "decode_weight": model.decode.weight,
        "decode_bias": model.decode.bias,
    }
    for i in range(layers):
        for ours, theirs in (("i2h", "ih"), ("h2h", "hh")):
            for kind in ("weight", "bias"):
                found[f"layer{i}_{ours}_{kind}"] = getattr(model.lstm, f"{kind}_{theirs}_l{i}")
    return found


def main() -> None:
    config = CONFIGS[sys.argv[1]]
    with np.load(sys.argv[2]) as file:
        given = dict(file)
    model = FusedModel(config)
    parameters = parameters_of(model, config.layers)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(given[f"weight {name}"]))
    loss = model(torch.from_numpy(given["data"]), torch.from_numpy(given["label"]))
    loss.backward()
    errors = {"loss": abs(float(given["loss"]) / loss.item() - 1)}
    for name, parameter in parameters.items():
        wanted = parameter.grad.numpy()
        difference = np.abs(given[f"gradient {name}"] - wanted).max()
        errors[name] = float(difference / np.abs(wanted).max())
    answer({"errors": errors, "loss": loss.item()})


if __name__ == "__main__":
    main()
