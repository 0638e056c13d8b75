"""symgraph: VGG-16 on 32x32 images, trained as by examples/vgg_channel_parallel.py.

python -m benchmarks.peers.symgraph_vgg RANKS parallel|sharded BATCH
"""

from __future__ import annotations

import sys

import numpy as np

import symgraph as sg
from benchmarks.peers.protocol import BATCHES, serve
from examples.vgg_channel_parallel import VGG, make_sessions
from runtime import make_cluster

RATE = 0.01


def main() -> None:
    ranks, convolution, batch = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    rng = np.random.default_rng(0)
    feeds = [
        {
            "data": rng.standard_normal((batch, 3, 32, 32)).astype("float32"),
            "label": rng.integers(0, 10, batch).astype("int32"),
        }
        for _ in range(BATCHES)
    ]
    symbol = VGG(ranks, convolution, dropout=0.0).network()
    with make_cluster("threads", ranks) as cluster:
        session, _ = make_sessions(symbol, cluster, batch, RATE)

        def step(number: int) -> float:
            figures = session.step(feeds[number])
            return figures["nll_nll"] / figures["nll_count"]

        serve(step, f"symgraph {sg.__version__}, numpy {np.__version__}")


if __name__ == "__main__":
    main()
