"""A small language-model run for tests of the command line and of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import symgraph as sg
from examples.lstm_lm import build
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.trainer import Trainer
from runtime.transports import make_cluster
from symgraph.app.config import load_config

CONFIG = """\
model: examples.lstm_lm:build
args: {args}
data: {{kind: text, path: {text}, batch_size: 6, sequence_length: 5, vocab: 20}}
devices: [cpu(0), cpu(1)]
group2ctx: {{embed: cpu(0), layer0: cpu(0), layer1: cpu(1), decode: cpu(1)}}
pipeline: {{schedule: 1f1b, micro_batches: 4}}
train: {train}
"""

DATA = "batch_size: 6, sequence_length: 5, vocab: 20"
BUCKETED_TRAIN = "{optimizer: adam, learning_rate: 0.02, clip_global_norm: 1.0, steps: 14}"


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


def write_bucketed(
    folder: Path,
    lengths: str = "buckets: [4, 7, 12], batches_per_step: 2",
    more: str = "",
    longest: int = 12,
) -> Path:
    """A config that reads lines of 2 to `longest` - 1 words, each word told by the one before."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(120):
        first, count = rng.integers(17), rng.integers(2, longest)
        lines.append(" ".join(f"w{(first + i * i) % 17}" for i in range(count)))
    text = folder / "lines.txt"
    text.write_text("\n".join(lines), encoding="utf-8")
    config = CONFIG.format(
        args="{layers: 2, hidden: 8, embed: 8, dropout: 0.1}", text=text, train=BUCKETED_TRAIN
    )
    path = folder / "run.yaml"
    path.write_text(config.replace(DATA, f"batch_size: 6, {lengths}, vocab: 20") + more)
    return path


def losses(path: object, *overrides: str) -> float:
    """The loss at the end of a run on threads."""
    config = load_config(str(path), overrides)
    with make_cluster("threads", len(config.devices)) as cluster:
        return Trainer(prepare(config), cluster, load_data(config)).fit()["loss"]


def late(**given: Any) -> sg.Model:
    """A model whose decoder says that it belongs to the first time step."""
    with sg.AttrScope(time_step="0"):
        return build(**given)
