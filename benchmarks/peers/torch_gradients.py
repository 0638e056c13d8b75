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

from benchmarks.peers.protocol import CONFIGS, Config, answer
from benchmarks.peers.torch_lstm import model_of


def parameters_of(model: nn.Module, config: Config) -> dict[str, nn.Parameter]:
    """Return the module's parameters under the names of the model in examples/."""
    if config.heads:
        return {of_example(name): parameter for name, parameter in model.named_parameters()}
    found = {
        "embed_weight": model.embed.weight,
        "decode_weight": model.decode.weight,
        "decode_bias": model.decode.bias,
    }
    for i in range(config.layers):
        for ours, theirs in (("i2h", "ih"), ("h2h", "hh")):
            for kind in ("weight", "bias"):
                found[f"layer{i}_{ours}_{kind}"] = getattr(model.lstm, f"{kind}_{theirs}_l{i}")
    return found


def of_example(name: str) -> str:
    """Return the name in examples.transformer_lm of a parameter of TransformerModel."""
    *path, kind = name.replace("layers.", "layer").split(".")
    if not path:
        return f"{kind}_weight"
    if path[-1].endswith("norm"):
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    return "_".join([*path, kind])


def main() -> None:
    config = CONFIGS[sys.argv[1]]
    with np.load(sys.argv[2]) as file:
        given = dict(file)
    model = model_of(config)
    parameters = parameters_of(model, config)
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
