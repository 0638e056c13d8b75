"""Networks that PyTorch exported, with the loss and gradients that it computed.

`benchmarks/parity/torch_cases.py` writes the files.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import symgraph as sg
from tests.helpers.pipelines import Case

DATA = Path(__file__).parents[1] / "symgraph" / "interchange" / "torch" / "data"
# The batch's axis of each case.
RECORDED = {
    "lstm_lm": 1,
    "bidirectional_gru": 0,
    "encoder_layer": 0,
    "gpt2_block": 0,
    "resnet_block": 0,
    "vgg_block": 0,
}


@cache
def recorded(name: str) -> tuple[Case, dict[str, Any]]:
    """A network with its loss, and what PyTorch got: `output0` and `grad <parameter>`."""
    network, parameters, states = sg.from_torch(DATA / f"{name}.pt2")
    with np.load(DATA / f"{name}.npz") as arrays:
        inputs = {k[6:]: v for k, v in arrays.items() if k.startswith("input:")}
        want = {f"grad {k[5:]}": v for k, v in arrays.items() if k.startswith("grad:")}
        want["output0"] = arrays["output"].reshape(1)
    with sg.name.NameManager():
        loss = sg.sym.MakeLoss(network, name="loss")
    axes = dict.fromkeys(inputs, RECORDED.get(name, 0))
    return Case(loss, inputs, parameters | states, axes), want
