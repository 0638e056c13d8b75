"""A small language-model run for tests of the command line and of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import symgraph as sg
from examples.lstm_lm import build

CONFIG = """\
model: examples.lstm_lm:build
args: {args}
data: {{kind: text, path: {text}, batch_size: 6, sequence_length: 5, vocab: 20}}
devices: [cpu(0), cpu(1)]
group2ctx: {{embed: cpu(0), layer0: cpu(0), layer1: cpu(1), decode: cpu(1)}}
pipeline: {{schedule: 1f1b, micro_batches: 4}}
train: {train}
"""


def write_config(folder: Path, train: str, more: str = "", args: str = "") -> Path:
    """Write a text and a config that reads it; the config's path.

    train: the inside of its `train:` section. more: further lines. args: further model arguments.
    """
    words = " ".join(f"w{(i * i) % 17}" for i in range(40))
    text = folder / "text.txt"
    text.write_text("\n".join([words] * 40), encoding="utf-8")
    path = folder / "config.yaml"
    model = f"{{layers: 2, hidden: 8, embed: 8{', ' + args if args else ''}}}"
    filled = CONFIG.format(args=model, text=text, train=f"{{{train}}}")
    path.write_text(filled + more, encoding="utf-8")
    return path


def late(**given: Any) -> sg.Model:
    """A model whose decoder says that it belongs to the first time step."""
    with sg.AttrScope(time_step="0"):
        return build(**given)
