"""Chainer 7.8: the language model on NStepLSTM.

PYTHON -m benchmarks.peers.chainer_lstm CONFIG
"""

from __future__ import annotations

import sys
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from benchmarks.peers.protocol import CLIP, CONFIGS, RATE, VOCAB, Config, batches, serve


class Model(chainer.Chain):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden = config.hidden
        with self.init_scope():
            self.embed = L.EmbedID(VOCAB, hidden)
            self.lstm = L.NStepLSTM(config.layers, hidden, hidden, 0.0)
            self.decode = L.Linear(hidden, VOCAB)

    def forward(self, data: np.ndarray, label: np.ndarray) -> Any:
        """data, label: (B, T); NStepLSTM takes a list of sequences."""
        x = F.split_axis(self.embed(data.reshape(-1)), len(data), 0)
        _, _, outputs = self.lstm(None, None, x)
        scores = self.decode(F.concat(outputs, axis=0))
        return F.softmax_cross_entropy(scores, label.reshape(-1))


def main() -> None:
    config = CONFIGS[sys.argv[1]]
    model = Model(config)
    optimizer = chainer.optimizers.SGD(lr=RATE)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(CLIP))
    data = [tuple(np.ascontiguousarray(a.T.astype("i")) for a in pair) for pair in batches(config)]

    def step(number: int) -> float:
        model.cleargrads()
        loss = model(*data[number])
        loss.backward()
        optimizer.update()
        return float(loss.array)

    serve(step, f"chainer {chainer.__version__}, numpy {np.__version__}")


if __name__ == "__main__":
    main()
